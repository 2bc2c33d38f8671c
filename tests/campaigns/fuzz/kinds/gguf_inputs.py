"""GGUF files: keys, types, counts, tensors and offsets of a whole tiny model, and plain damage.

Read by our own reader, as ``model show`` does; every twentieth is also given as ``--model``:
converted by the library, and run.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.drawing import NUMBERS, TEXTS, change_bytes, change_number, change_text, often
from fuzz.kinds import Kind

_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmn", "ab", "cd", "Ġ"]
_KEYS: list[tuple[str, int, Any]] = [
    ("general.architecture", _TEXT, "llama"), ("general.name", _TEXT, "tiny"),
    ("llama.block_count", 4, 1), ("llama.context_length", 4, 64), ("llama.embedding_length", 4, 32),
    ("llama.feed_forward_length", 4, 32), ("llama.attention.head_count", 4, 4),
    ("llama.attention.head_count_kv", 4, 4), ("llama.rope.freq_base", 6, 10000.0),
    ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5), ("llama.vocab_size", 4, 20),
    ("llama.rope.dimension_count", 4, 8), ("general.alignment", 4, 32),
    ("tokenizer.ggml.model", _TEXT, "gpt2"), ("tokenizer.ggml.pre", _TEXT, "gpt-2"),
    ("tokenizer.ggml.tokens", _LIST, (_TEXT, _WORDS)),
    ("tokenizer.ggml.token_type", _LIST, (5, [3, 3, 3, *[1] * 17])),
    ("tokenizer.ggml.scores", _LIST, (6, [float(-i) for i in range(20)])),
    ("tokenizer.ggml.merges", _LIST, (_TEXT, ["a b", "c d"])),
    ("tokenizer.ggml.bos_token_id", 4, 1), ("tokenizer.ggml.eos_token_id", 4, 2),
    ("tokenizer.ggml.add_bos_token", 7, True),
]  # fmt: skip
_TENSORS: list[tuple[str, tuple[int, ...], int]] = [
    ("token_embd.weight", (32, 20), 0), ("output_norm.weight", (32,), 0),
    ("blk.0.attn_norm.weight", (32,), 0), ("blk.0.ffn_norm.weight", (32,), 0),
    ("blk.0.attn_q.weight", (32, 32), 8), ("blk.0.attn_k.weight", (32, 32), 1),
    ("blk.0.attn_v.weight", (32, 32), 2), ("blk.0.attn_output.weight", (32, 32), 0),
    ("blk.0.ffn_gate.weight", (32, 32), 0), ("blk.0.ffn_up.weight", (32, 32), 0),
    ("blk.0.ffn_down.weight", (32, 32), 0),
]  # fmt: skip
_SIZES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34)}


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a tiny Llama with something wrong in its keys, tensors, counts or bytes."""
    keys, tensors = list(_KEYS), list(_TENSORS)
    wrong: dict[str, Any] = {}
    for _ in often(draw):
        change = draw.random()
        if change < 0.35:
            place = draw.randrange(len(keys))
            keys[place] = _change_key(keys[place], draw)
        elif change < 0.5:
            _change_list(keys, draw)
        elif change < 0.75:
            place = draw.randrange(len(tensors))
            tensors[place] = _change_tensor(tensors[place], draw)
        elif change < 0.85:
            what = draw.choice(("version", "n_keys", "n_tensors", "offset"))
            wrong[what] = draw.choice((*NUMBERS[:26], 4, 5))
        elif change < 0.93:
            listed: list[Any] = draw.choice((keys, tensors))
            listed.insert(draw.randrange(len(listed)), draw.choice(listed))
        elif change < 0.97:
            draw.choice((keys, tensors)).pop()
    made = _encode(keys, tensors, wrong, draw)
    return {"a.gguf": change_bytes(made, draw) if draw.random() < 0.25 else made}


def _change_key(key: tuple[str, int, Any], draw: random.Random) -> tuple[str, int, Any]:
    name, kind, value = key
    change = draw.random()
    if change < 0.2:
        return change_text(name, draw), kind, value
    if change < 0.35:  # another type than the bytes are of
        return name, draw.choice((*range(14), 77, 1 << 31)), value
    if isinstance(value, bool):
        return name, kind, not value
    if isinstance(value, int):
        return name, kind, change_number(value, draw)
    if isinstance(value, float):
        return name, kind, draw.choice((0.0, -1.0, 1e38, float("inf"), float("nan")))
    if isinstance(value, str):
        others = (
            "gpt2",
            "llama",
            "bert",
            "t5",
            "qwen2",
            "gemma2",
            "phi3",
            "mamba",
            "no_vocab",
            *TEXTS,
        )
        return name, kind, draw.choice(others)
    return name, _LIST, (_LIST, [value] * draw.choice((0, 1, 3)))


def _change_list(keys: list[tuple[str, int, Any]], draw: random.Random) -> None:
    places = [
        i for i, (_, kind, value) in enumerate(keys) if kind == _LIST and isinstance(value, tuple)
    ]
    if not places:
        return
    place = draw.choice(places)
    name, kind, (inner, values) = keys[place]
    made = list(values)
    change = draw.random()
    if change < 0.3 and made:
        at = draw.randrange(len(made))
        made[at] = draw.choice(TEXTS) if isinstance(made[at], str) else draw.choice((0, 1, 9, -1))
    elif change < 0.5:
        made = made[: draw.randint(0, len(made))]
    elif change < 0.6:
        made *= draw.choice((2, 50))
    elif change < 0.8:
        inner = draw.choice((*range(13), 77))
    else:  # nested
        for _ in range(draw.choice((1, 3, 4, 5, 40))):
            inner, made = _LIST, [(inner, made)]
    keys[place] = (name, kind, (inner, made))


def _change_tensor(
    tensor: tuple[str, tuple[int, ...], int], draw: random.Random
) -> tuple[str, tuple[int, ...], int]:
    name, shape, kind = tensor
    change = draw.random()
    if change < 0.25:
        return change_text(name, draw), shape, kind
    if change < 0.5:
        return name, shape, draw.choice((*range(42), 255, 1 << 31))
    made = list(shape)
    at = draw.randrange(len(made))
    made[at] = draw.choice((0, 1, 16, 31, 33, 64, 1 << 20, 1 << 31, 1 << 47, 1 << 62))
    if change > 0.9:
        made = made * draw.choice((2, 3, 70))
    return name, tuple(made), kind


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any, draw: random.Random) -> bytes:
    """Write a value as its type says, or as its own where that cannot be."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        inner, values = value
        count = len(values)
        if draw.random() < 0.02:
            count = draw.choice(NUMBERS[:26])
        parts = b"".join(_value(inner, one, draw) for one in values)
        return struct.pack("<IQ", inner & 0xFFFFFFFF, count) + parts
    form = _FORMS.get(kind, "I")
    try:
        return struct.pack("<" + form, value)
    except (struct.error, OverflowError):
        width = struct.calcsize("<" + form)
        number = int(value) if value == value and abs(value) != float("inf") else 0
        return (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _encode(
    keys: list[tuple[str, int, Any]], tensors: list[tuple[str, tuple[int, ...], int]],
    wrong: Mapping[str, int], draw: random.Random,
) -> bytes:  # fmt: skip
    counts = (wrong.get("n_tensors", len(tensors)), wrong.get("n_keys", len(keys)))
    mask = (1 << 64) - 1
    made = b"GGUF" + struct.pack("<I", wrong.get("version", 3) & 0xFFFFFFFF)
    made += struct.pack("<QQ", *(count & mask for count in counts))
    for name, kind, value in keys:
        made += _text(name) + struct.pack("<I", kind) + _value(kind, value, draw)
    data = b""
    for name, shape, kind in tensors:
        place = wrong.get("offset", len(data)) & mask
        made += _text(name) + struct.pack("<I", len(shape))
        made += b"".join(struct.pack("<Q", n & mask) for n in shape)
        made += struct.pack("<IQ", kind & 0xFFFFFFFF, place)
        per_block, block = _SIZES.get(kind, (1, 4))
        numbers = 1
        for n in shape:
            numbers *= n
        size = min(numbers // per_block * block, 1 << 14)
        data += (b"\x00\x3c" * (size // 2 + 1))[:size] if kind in (1, 2, 8) else bytes(size)
        data += b"\0" * (-len(data) % 32)
    return made + b"\0" * (-len(made) % 32) + data


def write_sound(path: Path) -> None:
    """Write the model with nothing wrong."""
    path.write_bytes(_encode(_KEYS, _TENSORS, {}, random.Random(0)))


def prepare(folder: Path) -> None:
    """Import the libraries, and try the whole way once."""
    import torch

    from attnviz.sources.models.library import load_transformers

    torch.set_num_threads(1)
    load_transformers()
    path = folder / "a.gguf"
    write_sound(path)
    convert_and_run(path)
    path.unlink()


def convert_and_run(path: Path) -> object:
    """Give a file as ``--model``; what was converted is not kept."""
    from attnviz.sources.models.cache import cache_folder
    from attnviz.sources.models.source import open_model

    try:
        source = open_model(path)
        seen: list[Any] = []
        source.run(source.tokenize("a b c"), source.layers, seen.append)
        assert len(seen) == len(source.layers)
        return seen
    finally:
        shutil.rmtree(cache_folder() / "gguf", ignore_errors=True)


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read metadata and tensors; give one of twenty as a model."""
    from attnviz.errors import InputError
    from attnviz.sources.models.card import model_card
    from attnviz.sources.models.gguf import read_gguf

    path = folder / "a.gguf"
    file = read_gguf(path)
    refused: InputError | None = None
    for name in file.tensors:
        try:
            file.read(name)
        except InputError as fault:  # this tensor alone: a type that is not dequantised
            refused = fault
    json.dumps(list(file.metadata))
    model_card(path)
    if zlib.crc32(files.get("a.gguf", b"")) % 20 == 0:
        convert_and_run(path)
    if refused is not None:
        raise refused
    return file


KIND = Kind(make, read, prepare, room_bytes=2 << 30)
