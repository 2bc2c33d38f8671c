"""The steps between x and q, k, v: seen by listening to a module's own projections.

What lives here: hooks on the linear layers of attention modules, and the proof that what was heard
is what attention got. What does not: attention itself (``capture``).

A step is shown only where it is proved: v passes from its projection to attention unchanged in
nearly every architecture, so a layout of heads is believed where it gives v exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_Q = ("q_proj", "query", "q_lin", "q", "q_b_proj", "wq")
_K = ("k_proj", "key", "k_lin", "k", "wk")
_V = ("v_proj", "value", "v_lin", "v", "wv")
_FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "wqkv")
_Q_NORM = ("q_norm", "q_layernorm", "query_layernorm")
_K_NORM = ("k_norm", "k_layernorm", "key_layernorm")
_OUT = ("o_proj", "out_proj", "out_lin", "o", "Wo", "wo", "c_proj", "dense")


@contextmanager
def listen(
    modules: list[torch.nn.Module],
) -> Iterator[Callable[[torch.nn.Module], Mapping[str, torch.Tensor]]]:
    """Listen to the projections of some attention modules while a model runs.

    Yields
    ------
    ``heard(module)``: ``x`` (B, L, D) and the raw outputs of its projections and norms by role
    (``q``, ``k``, ``v``, ``fused``, ``q_norm``, ``k_norm``), as of the latest forward.
    """
    heard: dict[int, dict[str, torch.Tensor]] = {}
    handles = []
    for module in dict.fromkeys(modules):
        notes = heard.setdefault(id(module), {})
        for role, names in _roles().items():
            child = next((getattr(module, n) for n in names if _is_child(module, n)), None)
            if child is not None:
                handles.append(child.register_forward_hook(_note(notes, role)))
    try:
        yield lambda module: heard.get(id(module), {})
    finally:
        for handle in handles:
            handle.remove()


def _roles() -> dict[str, tuple[str, ...]]:
    return {"q": _Q, "k": _K, "v": _V, "fused": _FUSED, "q_norm": _Q_NORM, "k_norm": _K_NORM}


def _is_child(module: torch.nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), torch.nn.Module)


def _note(notes: dict[str, torch.Tensor], role: str) -> Callable[..., None]:
    def hook(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            return
        notes[role] = output.detach()
        if role in ("q", "fused") and inputs and isinstance(inputs[0], torch.Tensor):
            notes["x"] = inputs[0].detach()

    return hook


def find_inputs(
    heard: Mapping[str, torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the proved steps of one call.

    Parameters
    ----------
    heard
        From ``listen``.
    q : (B, H, L, E), k : (B, K, S, E), v : (B, K, S, F)
        What attention got.

    Returns
    -------
    dict
        ``x`` (B, L, D) where q is known to be made from it, and of ``q_projected``, ``k_projected``, ``q_normed``, ``k_normed``
        (B, heads, L, E) those that exist and differ from q or k.
    """
    found: dict[str, torch.Tensor] = {}
    x = heard.get("x")
    parts = dict(heard)
    if "fused" in heard:
        parts |= _split_fused(heard["fused"], q, k, v)
    is_projected = _to_heads(parts.get("q"), q) is not None
    if x is not None and is_projected and x.shape[:-1] == (q.shape[0], q.shape[2]):
        found["x"] = x
    for role, wanted in (("q", q), ("k", k)):
        projected = _to_heads(parts.get(role), wanted)
        if projected is not None and not torch.equal(projected, wanted):
            found[f"{role}_projected"] = projected
        normed = _to_heads(parts.get(f"{role}_norm"), wanted)
        if normed is not None and not torch.equal(normed, wanted):
            found[f"{role}_normed"] = normed
    return found


def _to_heads(flat: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """Cut (B, L, heads·E), (B, L, heads, E) or (B, heads, L, E) into (B, heads, L, E) by size."""
    if flat is None:
        return None
    if flat.shape == like.shape:
        return flat
    n_batch, n_heads, length, width = like.shape
    if flat.shape[:2] != (n_batch, length) or flat[0, 0].numel() != n_heads * width:
        return None
    return flat.reshape(n_batch, length, n_heads, width).transpose(1, 2)


def _split_fused(
    fused: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Cut a fused projection in the one layout that gives v exactly: in blocks, or head by head."""
    n_heads, n_kv = q.shape[1], k.shape[1]
    width_q, width_k, width_v = q.shape[-1], k.shape[-1], v.shape[-1]
    sizes = (n_heads * width_q, n_kv * width_k, n_kv * width_v)
    if fused.dim() != 3 or fused.shape[-1] != sum(sizes):
        return {}
    blocks = torch.split_with_sizes(fused, sizes, dim=-1)
    layouts = [dict(zip("qkv", blocks))]
    if n_heads == n_kv:
        by_head = fused.reshape(*fused.shape[:2], n_heads, -1)
        pieces = torch.split_with_sizes(by_head, (width_q, width_k, width_v), dim=-1)
        layouts.append({name: piece.flatten(2) for name, piece in zip("qkv", pieces)})
    for layout in layouts:
        heads = _to_heads(layout["v"], v)
        if heads is not None and torch.equal(heads, v):
            return {"q": layout["q"], "k": layout["k"]}
    return {}


def find_output_weight(
    module: torch.nn.Module, parent: torch.nn.Module | None, width: int
) -> torch.Tensor | None:
    """Return W_O as (H·F, D) where the module, or BERT's neighbour of it, has one of that size."""
    places = [getattr(module, name, None) for name in _OUT]
    neighbour = getattr(getattr(parent, "output", None), "dense", None)
    for place in (*places, neighbour):
        weight = getattr(place, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
            continue
        if isinstance(place, torch.nn.Linear) and weight.shape[1] == width:
            return weight.detach().T
        if type(place).__name__ == "Conv1D" and weight.shape[0] == width:
            return weight.detach()
    return None
