"""Layer by layer: what kind of mixing, window and rotary settings a config gives each.

What lives here: reading them from ``config.json`` or GGUF metadata. What does not: everything
else about a model (``card``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnviz.sources.models.gguf import Gguf

_LIKE_ATTENTION = re.compile(
    r"attn|attention\.(?!key|value|receptance|output|time)|query|qkv|[._]q[._]|\.q$|wq"
)
_WITHOUT = ("linear", "mamba", "conv", "recurrent", "rwkv", "ssm", "gated_delta")
_WINDOWED = ("sliding", "local", "chunked")


@dataclass(frozen=True, slots=True)
class LayerCard:
    """One layer's attention as its config describes it.

    Parameters
    ----------
    kind
        The config's own word (``full_attention``, ``sliding_attention``, ``mamba``, …).
    window
        Keys a query sees, itself included, or the chunk's size; None where it sees all.
    rotary_base
        θ of the rotary positions; None where there are none, or the config does not say.
    """

    layer: int
    kind: str
    has_attention: bool
    window: int | None = None
    rotary_base: float | None = None


def read_int(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of some settings that is a whole number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def read_layers(config: Mapping[str, Any]) -> tuple[LayerCard, ...]:
    """Read the layers of a ``config.json``."""
    n_layers = _count(config)
    kinds = _kinds(config, n_layers)
    window = read_int(config, "sliding_window", "attention_chunk_size", "local_attention",
                      "window_size")  # fmt: skip
    if config.get("use_sliding_window") is False:
        window = None
    found = []
    for layer, kind in enumerate(kinds):
        has_attention = not any(word in kind for word in _WITHOUT)
        is_windowed = any(word in kind for word in _WINDOWED)
        found.append(
            LayerCard(
                layer=layer,
                kind=kind,
                has_attention=has_attention,
                window=window if is_windowed else None,
                rotary_base=_rotary_base(config, kind, layer) if has_attention else None,
            )
        )
    return tuple(found)


def with_tensors(layers: tuple[LayerCard, ...], names: Iterable[str]) -> tuple[LayerCard, ...]:
    """Take attention from layers whose tensors have nothing like it, whatever the config says.

    Layers are told apart by the first number in a tensor's name; where layers share their tensors,
    the config is believed.

    Examples
    --------
    >>> layers = read_layers({"num_hidden_layers": 2})
    >>> told = with_tensors(layers, ["h.0.attn.q_proj.weight", "h.1.mixer.in_proj.weight"])
    >>> [(layer.kind, layer.has_attention) for layer in told]
    [('full_attention', True), ('other', False)]
    """
    numbered: dict[int, bool] = {}
    for name in names:
        found = re.search(r"\.(\d+)\.", name)
        if found is not None:
            is_alike = _LIKE_ATTENTION.search(name) is not None
            numbered[int(found[1])] = numbered.get(int(found[1]), False) or is_alike
    if any(layer.layer not in numbered for layer in layers):
        return layers
    return tuple(
        layer
        if numbered[layer.layer] or not layer.has_attention
        else replace(layer, kind="other", has_attention=False, window=None, rotary_base=None)
        for layer in layers
    )


def _count(config: Mapping[str, Any]) -> int:
    names = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"]
    if config.get("is_encoder_decoder"):
        names = ["decoder_layers", "num_decoder_layers", *names]
    return min(1024, max(0, read_int(config, *names) or 0))


def _kinds(config: Mapping[str, Any], n_layers: int) -> list[str]:
    for name in ("layer_types", "layers_block_type", "attention_layers", "block_types"):
        listed = config.get(name)
        if isinstance(listed, list) and len(listed) >= n_layers > 0:
            return [_word(entry) for entry in listed[:n_layers]]
    period = read_int(config, "attn_layer_period")
    if period:
        offset = read_int(config, "attn_layer_offset") or 0
        return ["attention" if i % period == offset else "mamba" for i in range(n_layers)]
    full = config.get("full_attn_idxs")
    if isinstance(full, list):
        return ["full_attention" if i in full else "conv" for i in range(n_layers)]
    pattern = read_int(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern:
        return [_every(i, pattern) for i in range(n_layers)]
    every = read_int(config, "global_attn_every_n_layers")
    if every:
        return ["full_attention" if i % every == 0 else "local_attention" for i in range(n_layers)]
    if config.get("model_type") == "gemma2":
        return [_every(i, 2) for i in range(n_layers)]
    if read_int(config, "sliding_window") and config.get("use_sliding_window") is not False:
        first = read_int(config, "max_window_layers") if "use_sliding_window" in config else 0
        return [
            "sliding_attention" if i >= (first or 0) else "full_attention" for i in range(n_layers)
        ]
    return ["full_attention"] * n_layers


def _every(layer: int, pattern: int) -> str:
    return "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"


def _word(entry: Any) -> str:
    word = str(entry)
    return {
        "attention": "full_attention",
        "global": "full_attention",
        "local": "local_attention",
    }.get(word, word)


def _rotary_base(config: Mapping[str, Any], kind: str, layer: int) -> float | None:
    without = config.get("no_rope_layers")
    if isinstance(without, list) and layer < len(without) and without[layer] == 0:
        return None
    settings = config.get("rope_parameters")
    if isinstance(settings, dict):
        settings = settings.get(kind, settings)
        value = settings.get("rope_theta") if isinstance(settings, dict) else None
    else:
        is_local = any(word in kind for word in _WINDOWED)
        names = ["rope_theta", "global_rope_theta", "rotary_emb_base"]
        if is_local:
            names = ["rope_local_base_freq", "local_rope_theta", *names]
        value = next((config[name] for name in names if config.get(name) is not None), None)
    return float(value) if isinstance(value, int | float) else None


def gguf_layers(file: Gguf) -> tuple[LayerCard, ...]:
    """Read the layers of a GGUF file; one without ``attn`` tensors has no attention."""
    count = file.setting("block_count")
    n_layers = min(1024, count) if isinstance(count, int) else 0
    window = file.setting("attention.sliding_window")
    pattern = file.setting("attention.sliding_window_pattern")
    base = file.setting("rope.freq_base")
    with_attention = {
        name.split(".")[1] for name in file.tensors if name.startswith("blk.") and ".attn_q" in name
    }
    found = []
    for layer in range(n_layers):
        has_attention = str(layer) in with_attention
        is_windowed = _is_windowed(file.architecture, pattern, layer) and isinstance(window, int)
        kind = "sliding_attention" if is_windowed else "full_attention"
        found.append(
            LayerCard(
                layer=layer,
                kind=kind if has_attention else "other",
                has_attention=has_attention,
                window=window if has_attention and is_windowed else None,
                rotary_base=float(base)
                if has_attention and isinstance(base, int | float)
                else None,
            )
        )
    return tuple(found)


def _is_windowed(architecture: str, pattern: Any, layer: int) -> bool:
    if isinstance(pattern, list):
        return layer < len(pattern) and bool(pattern[layer])
    if not isinstance(pattern, int) or isinstance(pattern, bool):
        known: dict[str, int] = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
        pattern = known.get(architecture, 0)
    return bool(pattern == 0 or (layer + 1) % pattern != 0)
