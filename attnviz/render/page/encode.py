"""What a page carries: one JSON header, and blocks of base64 that the script decodes on demand.

What lives here: ``LayerStack`` → header and blocks; ``Trace`` → ``LayerStack``. What does not: HTML
(``build``) and rounding (``numbers``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.errors import ResourceError, UsageError
from attnviz.records import Array, HeadChoice, LayerHeads, LayerStack, MaskRule, Tokens, Trace
from attnviz.render.page import numbers as stored
from attnviz.render.page.rules import describe_bias, describe_mask
from attnviz.render.tokens import visible

PAGE_SCHEMA = "attnviz.page/1"
_LITTLE = {
    "float64": "<f8", "float32": "<f4", "int16": "<i2", "uint16": "<u2", "uint8": "|u1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageData:
    """A page's data: the header as JSON values, and named blocks of base64 text."""

    header: dict[str, Any]
    blocks: dict[str, str]

    @property
    def n_bytes(self) -> int:
        """About what the page takes."""
        return stored.SHELL_BYTES + sum(map(len, self.blocks.values()))


def encode(
    stack: LayerStack,
    *,
    compact: bool = False,
    query: int | None = None,
    links: Sequence[HeadChoice] = (),
    no_sinks: bool = False,
    budget_mb: float,
) -> PageData:
    """Encode gathered layers for a page.

    Parameters
    ----------
    compact
        16-bit numbers; the largest error of a weight is computed and put into the header.
    query
        The query that is chosen when the page opens.
    links
        Links worth a look, by places of layer and head in the stack: the page opens at the first.
    no_sinks
        The page opens without the first token and special tokens, the rest of each row rescaled.
    budget_mb
        The most megabytes (10⁶ bytes) the blocks may take.

    Raises
    ------
    ResourceError
        Too large, with what would fit.
    """
    sizes = stored.sizes_of(stack)
    stored.check_budget(sizes, compact=compact, budget_mb=budget_mb)
    kind, with_values = stored.choose_numbers(stack, compact=compact)
    header: dict[str, Any] = {
        "schema": PAGE_SCHEMA,
        "text": stack.tokens.text,
        "tokens": tokens_to_dict(stack.tokens),
        "key_tokens": None if stack.key_tokens is None else tokens_to_dict(stack.key_tokens),
        "heads": list(stack.heads),
        "kv_index": list(stack.kv_index),
        "numbers": kind,
        "source_numbers": str(stack.layers[0].q.dtype),
        "has_values": with_values,
        "holds": "all" if stack.source.d_v else "no values",
        "weight_error": stored.weight_error(stack, kind),
        "start": {**_start(query, links), **({"sinks": False} if no_sinks else {})},
        "source": source_to_dict(stack),
        "run": {
            "version": stack.run.version,
            "device": stack.run.device,
            "dtype": stack.run.dtype,
            "core": stack.run.core,
            "overrides": dict(stack.run.overrides),
        },
        "notices": list(stack.notices),
        "layers": [],
    }
    blocks: dict[str, str] = {}
    shared: dict[str, str] = {}
    for place, layer in enumerate(stack.layers):
        facts, arrays = _encode_layer(layer, kind, with_values)
        if stack.value_norms:
            wide = "float64" if kind == "float64" else "float32"
            arrays["reach"] = np.asarray(stack.value_norms[place], wide)
        names = {}
        for name, values in arrays.items():
            text = to_base64(values)
            block = f"{name}-{place}"
            if name in ("mask", "bias"):  # the same for every layer, as a rule
                block = shared.setdefault(text, block)
            blocks[block] = text
            names[name] = block
        header["layers"].append({**facts, "blocks": names})
    data = PageData(header, blocks)
    if data.n_bytes > budget_mb * 1e6:
        raise ResourceError(
            f"the page would take {data.n_bytes / 1e6:.1f} MB, its masks and biases included: at "
            f"most {budget_mb:g} MB; choose fewer layers, fewer heads or a shorter text"
        )
    return data


def _start(query: int | None, links: Sequence[HeadChoice]) -> dict[str, Any]:
    """Return which cell a page opens at, and the links that it offers."""
    if not links:
        return {"query": query}
    names = ("layer", "head", "query", "key")
    found = [{name: int(getattr(link, name)) for name in names} for link in links]
    first = found[0] if query in (None, found[0]["query"]) else {**found[0], "query": query}
    if first["query"] != found[0]["query"]:
        del first["key"]  # the strongest of this query
    weights = [float(link.weight) for link in links]
    return {
        **first,
        "links": [{**link, "weight": w} for link, w in zip(found, weights, strict=True)],
    }


def _encode_layer(
    layer: LayerHeads, kind: stored.Numbers, with_values: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    mask, bias = describe_mask(layer), describe_bias(layer)
    wide = "float64" if kind == "float64" else "float32"
    arrays: dict[str, Array] = {}
    for name, values in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
        if name == "v" and not with_values:
            continue
        if kind == "int16":
            arrays[name], arrays[f"{name}_steps"] = stored.quantize(values)
        else:
            arrays[name] = np.asarray(values, kind)
    if not with_values:
        lengths_KS = np.sqrt(np.square(np.asarray(layer.v, np.float64)).sum(axis=-1))
        arrays["v_lengths"] = lengths_KS.astype(wide)
    arrays |= mask.arrays
    arrays |= {name: np.asarray(values, wide) for name, values in bias.arrays.items()}
    facts = {
        "layer": layer.layer,
        "name": layer.name,
        "scale": float(layer.scale),
        "softcap": None if layer.softcap is None else float(layer.softcap),
        "sinks": None if layer.sinks is None else np.asarray(layer.sinks, np.float64).tolist(),
        "d_k": layer.d_k,
        "d_v": layer.d_v,
        "mask": mask.facts,
        "bias": bias.facts,
    }
    return facts, arrays


def to_base64(values: Array) -> str:
    """Return the little-endian bytes of an array in base64."""
    plain = np.ascontiguousarray(values, _LITTLE[values.dtype.name])
    return base64.b64encode(plain.data).decode("ascii")


def to_script_json(value: object) -> str:
    r"""Write JSON that can stand inside a ``<script>`` element, whatever its strings hold.

    Plain ASCII, with ``<``, ``>`` and ``&`` escaped as well; lone surrogates stay what they are.

    Examples
    --------
    >>> to_script_json("</script>\u2028")
    '"\\u003c/script\\u003e\\u2028"'
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def tokens_to_dict(tokens: Tokens) -> dict[str, Any]:
    """Return tokens as columns; ``shown`` is the label made visible, None where it is the label."""
    seen = [visible(label) for label in tokens.labels]
    return {
        "ids": list(tokens.ids),
        "labels": list(tokens.labels),
        "shown": [s if s != label else None for s, label in zip(seen, tokens.labels, strict=True)],
        "spans": [None if span is None else list(span) for span in tokens.spans],
        "special": [i for i, flag in enumerate(tokens.special) if flag],
    }


def source_to_dict(stack: LayerStack | Trace) -> dict[str, Any]:
    """Return where the numbers came from: names, hashes and sizes, never a path."""
    source = stack.source
    return {
        name: getattr(source, name)
        for name in (
            "kind", "name", "sha256", "origin", "seed", "tokenizer", "tokenizer_sha256", "n_layers",
            "n_heads", "n_kv_heads", "d_model", "d_k", "d_v",
        )
    }  # fmt: skip


def stack_of(trace: Trace) -> LayerStack:
    """Return the q, k and v of a dense trace, key/value heads once.

    Raises
    ------
    UsageError
        The trace is the mean over heads, which has no q and k.
    """
    if any(name not in trace.stages for name in ("q", "k")) or "mean" in trace.heads:
        raise UsageError(
            "a page shows q and k, and the mean over heads has none: choose heads by number"
        )
    heads = tuple(int(head) for head in trace.heads)
    group = trace.source.n_heads // trace.source.n_kv_heads
    kv_heads = tuple(sorted({head // group for head in heads}))
    first_of = [next(j for j, h in enumerate(heads) if h // group == kv) for kv in kv_heads]
    layers = tuple(_layer_of(trace, i, first_of) for i in range(len(trace.layers)))
    return LayerStack(
        about=trace.about,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
    )


def _layer_of(trace: Trace, i: int, first_of: list[int]) -> LayerHeads:
    stages = trace.stages
    cells = np.asarray(trace.visible[i])
    return LayerHeads(
        q=np.asarray(stages["q"][i]),
        k=np.asarray(stages["k"][i])[first_of],
        v=_values(trace, i)[first_of],
        scale=trace.scale[i],
        visible=MaskRule() if bool(cells.all()) else MaskRule(cells=cells),
        softcap=trace.softcap[i],
        bias=np.asarray(stages["bias"][i]) if "bias" in stages else None,
        sinks=None if trace.sink_share is None else _sinks(trace, i),
        layer=trace.layers[i],
    )


def _values(trace: Trace, i: int) -> Array:
    """Return v, or nothing where q and k were given alone."""
    if "v" in trace.stages:
        return np.asarray(trace.stages["v"][i])
    k = np.asarray(trace.stages["k"][i])
    return np.zeros((*k.shape[:2], 1), k.dtype)


def _sinks(trace: Trace, i: int) -> Array | None:
    """Solve for the learned sink logits: share = eˢ / (eˢ + Σ e^masked), the same s in every row."""
    assert trace.sink_share is not None
    share_HL = np.asarray(trace.sink_share[i], np.float64)
    if not (share_HL > 0).any():
        return None
    masked_HLS = np.asarray(trace.stages["masked"][i], np.float64)
    sinks = []
    for share_L, masked_LS in zip(share_HL, masked_HLS, strict=True):
        row = int(np.argmin(np.abs(share_L - 0.5)))
        top = masked_LS[row].max()
        lse = top + np.log(np.exp(masked_LS[row] - top).sum())
        sinks.append(lse + np.log(share_L[row]) - np.log1p(-share_L[row]))
    return np.array(sinks)
