"""Small layers of attention as weight files hold them: names, shapes and types, without numpy."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from fuzz.drawing import TEXTS, change_number, change_text

WORDS = ["a", "cute", "teddy", "bear", "[UNK]", "reading"]
SENTENCE = "a teddy bear zzz"
D, HE, V = 4, 6, len(WORDS)


@dataclass
class Array:
    """One array before it is written in some format: its bytes need not fit its shape."""

    name: str
    dtype: str
    shape: list[int]
    data: bytes


WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4,
          "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "C64": 8,
          "F8_E8M0": 1}  # fmt: skip
FLOATS = {"F64": bytes(6) + b"\xe0\x3f", "F32": b"\x00\x00\x00\x3f", "F16": b"\x00\x38",
           "BF16": b"\x00\x3f", "F8_E4M3": b"\x30", "F8_E5M2": b"\x38"}  # fmt: skip
# number patterns that are not finite, by type
BAD = {"F64": bytes(6) + b"\xf8\x7f", "F32": b"\x00\x00\x80\x7f", "F16": b"\x00\x7e",
        "BF16": b"\x80\xff", "F8_E4M3": b"\x7f", "F8_E5M2": b"\x7c"}  # fmt: skip

LAYOUTS: tuple[dict[str, list[int]], ...] = (
    {"embedding": [V, D], "w_q": [D, HE], "w_k": [D, HE], "w_v": [D, HE], "w_o": [HE, D]},
    {"w_q": [D, HE], "w_k": [D, HE], "w_v": [D, HE], "b_q": [HE], "b_k": [HE], "b_v": [HE]},
    {"model.layers.0.self_attn.q_proj.weight": [HE, D], "model.embed_tokens.weight": [V, D],
     "model.layers.0.self_attn.k_proj.weight": [HE, D],
     "model.layers.0.self_attn.v_proj.weight": [HE, D],
     "model.layers.1.self_attn.q_proj.weight": [HE, D],
     "model.layers.1.self_attn.k_proj.weight": [HE, D],
     "model.layers.1.self_attn.v_proj.weight": [HE, D]},
    {"h.0.attn.c_attn.weight": [D, 3 * D], "h.0.attn.c_attn.bias": [3 * D], "wte.weight": [V, D],
     "h.0.attn.c_proj.weight": [D, D], "wpe.weight": [8, D]},
    {"in_proj_weight": [3 * D, D], "in_proj_bias": [3 * D], "out_proj.weight": [D, D]},
    {"bert.encoder.layer.0.attention.self.query.weight": [HE, D],
     "bert.encoder.layer.0.attention.self.key.weight": [HE, D],
     "bert.encoder.layer.0.attention.self.value.weight": [HE, D],
     "bert.embeddings.word_embeddings.weight": [V, D],
     "bert.embeddings.position_embeddings.weight": [66, D]},
    {"blocks.0.attn.W_Q": [2, D, 3], "blocks.0.attn.W_K": [2, D, 3], "blocks.0.attn.W_V": [2, D, 3],
     "blocks.0.attn.W_O": [2, 3, D], "embed.W_E": [V, D]},
    {"heads.0.key.weight": [3, D], "heads.0.query.weight": [3, D], "heads.0.value.weight": [3, D],
     "heads.1.key.weight": [3, D], "heads.1.query.weight": [3, D], "heads.1.value.weight": [3, D]},
    {"attention.query_key_value.weight": [3 * D, D], "attention.query_key_value.bias": [3 * D]},
    {"W_Q": [D, HE], "W_K": [D, 3], "W_V": [D, 3]},
)  # fmt: skip
NAMES = tuple(name for layout in LAYOUTS for name in layout)
METADATA: dict[str, str] = {
    "n_heads": "2", "n_kv_heads": "2", "scale": "0.5", "causal": "true", "origin": "a test",
    "vocab": json.dumps(WORDS), "embedding_from": "other.safetensors", "note": "x",
}  # fmt: skip
METADATA_VALUES = (
    *(text for text in TEXTS if text != "\ud83d"), "0", "-1", "3", "1e999", "nan", "none", "None", "false", "1", "[]", "{}", "[1]",
    '["a"]', "[" * 50, "999999999999999999999", "1_0", "٣", " 2 ", "2.0", "1/2", json.dumps(["a"] * 7),
    json.dumps(["a"] * 6), json.dumps(["\x1b[2J", "b", "c", "d", "e", "f"]), "\\ud83d",
)  # fmt: skip


def draw_layer(draw: random.Random) -> tuple[list[Array], dict[str, str]]:
    """Return a layer's arrays and metadata: sound, or with a wrong name, shape, type or number."""
    layout = draw.choice(LAYOUTS)
    kind = draw.choice(("F32", "F32", "F32", "F64", "F16", "BF16", "F8_E4M3", "I8", "I64"))
    arrays = [Array(name, kind, list(shape), b"") for name, shape in layout.items()]
    metadata = {k: v for k, v in METADATA.items() if k != "embedding_from" and draw.random() < 0.7}
    if draw.random() < 0.97:
        metadata["vocab"] = METADATA["vocab"]
    change = draw.random()
    if change < 0.2:
        one = draw.choice(arrays)
        one.shape = draw_shape(one.shape, draw)
    elif change < 0.26:
        draw.choice(arrays).dtype = draw.choice(tuple(WIDTHS))
    elif change < 0.32:
        draw.choice(arrays).name = change_text(draw.choice(NAMES), draw)
    elif change < 0.36:
        arrays.pop(draw.randrange(len(arrays)))
    elif change < 0.4:
        name = draw.choice(NAMES)
        arrays.append(Array(name, kind, [2, 3], b""))
    elif change < 0.6:
        key = draw.choice(tuple(METADATA))
        metadata[key] = draw.choice(METADATA_VALUES)
    for array in arrays:
        array.data = _numbers(array, draw)
    return arrays, metadata


def draw_shape(shape: list[int], draw: random.Random) -> list[int]:
    """Return another shape, small enough for its numbers to be written."""
    made = list(shape)
    change = draw.random()
    if change < 0.6 and made:
        place = draw.randrange(len(made))
        made[place] = draw.choice((0, 1, 2, 3, 5, 7, made[place] + 1, made[place] * 2))
    elif change < 0.7:
        made = made[::-1]
    elif change < 0.8:
        made.append(1)
    elif change < 0.9 and made:
        made.pop()
    else:
        made = [draw.randint(0, 3) for _ in range(draw.randint(0, 34))]
    return made if _count(made) < 4096 else [4096]


def _count(shape: list[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _numbers(array: Array, draw: random.Random) -> bytes:
    width = WIDTHS[array.dtype]
    one = FLOATS.get(array.dtype, b"\x01".ljust(width, b"\0"))
    made = bytearray(one * _count(array.shape))
    if made and draw.random() < 0.01 and array.dtype in BAD:
        place = draw.randrange(len(made) // width) * width
        made[place : place + width] = BAD[array.dtype]
    if made and draw.random() < 0.02:
        made[:] = draw.randbytes(len(made))
    return bytes(made)


def wrong_count(number: int, draw: random.Random) -> int:
    """Return a wrong number for a header, as often near as far."""
    return change_number(number, draw)
