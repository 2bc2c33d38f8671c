"""Weights of a model as the light engine maps them: whole models, of every type, damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.kinds import Kind
from fuzz.kinds.arrays import BAD, FLOATS, WIDTHS, Array
from fuzz.kinds.light import run_light
from fuzz.kinds.safetensors_inputs import damage

_D, _WORDS = 8, 12
_CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": _WORDS, "hidden_size": _D, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 6,
    "max_position_embeddings": 16, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_SHAPES = {
    "model.embed_tokens.weight": [_WORDS, _D], "model.norm.weight": [_D],
    "lm_head.weight": [_WORDS, _D],
    **{f"model.layers.0.{name}.weight": shape for name, shape in (
        ("self_attn.q_proj", [_D, _D]), ("self_attn.k_proj", [4, _D]), ("self_attn.v_proj", [4, _D]),
        ("self_attn.o_proj", [_D, _D]), ("mlp.gate_proj", [6, _D]), ("mlp.up_proj", [6, _D]),
        ("mlp.down_proj", [_D, 6]), ("input_layernorm", [_D]), ("post_attention_layernorm", [_D]),
    )},
}  # fmt: skip
_SCALES = ([], [1], [2, 1], [1, 3], [8], [4], [2, 2], [0, 1], [0], [2, 2, 2], [1 << 20, 1])
_KINDS = ("F32", "F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2")


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a model's weights, then break a name, a type, a scale, the header, or some bytes."""
    kind = draw.choice(_KINDS)
    arrays = [_array(name, kind, list(shape), draw) for name, shape in _SHAPES.items()]
    for one in list(arrays):
        if one.dtype.startswith("F8") and len(one.shape) == 2 and draw.random() < 0.5:
            end = draw.choice(("_scale", "_scale_inv"))
            arrays.append(_array(one.name + end, "F32", list(draw.choice(_SCALES[:-1])), draw))
    change = draw.random()
    if change < 0.15:
        arrays[draw.randrange(len(arrays))].dtype = draw.choice(tuple(WIDTHS))
    elif change < 0.25:
        del arrays[draw.randrange(len(arrays))]
    elif change < 0.35:
        arrays.append(_array(draw.choice(("x", "model.x.weight", "score.weight")), kind, [2], draw))
    elif change < 0.45:
        place = draw.randrange(len(arrays))
        shape = draw.choice((*_SCALES, [_D, _D, 1], [_WORDS, 1]))
        arrays[place] = _array(arrays[place].name, kind, list(shape), draw)
    return {"m/model.safetensors": damage(arrays, {}, draw)}


def _array(name: str, kind: str, shape: list[int], draw: random.Random) -> Array:
    count = 1
    for n in shape:
        count *= n
    pattern = FLOATS.get(kind, bytes(WIDTHS[kind]))
    if draw.random() < 0.03:
        pattern = BAD.get(kind, pattern)
    return Array(name, kind, shape, pattern * min(count, 1 << 10))


def prepare(folder: Path) -> None:
    """Write the config that stands beside the weights."""
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(_CONFIG))


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Run the folder."""
    return run_light(folder / "m", "not kept")


KIND = Kind(make, read, prepare)
