"""What the names and shapes of a weight file mean: common layouts turned into one ``Layer``.

What lives here: recognising tensors by name, proving it by shape, transposing where the
convention says so. What does not: reading files (``files``), or choosing among files.

Conventions (source → ours): torch ``Linear`` holds (out, in), so it is transposed; GPT-2's
``Conv1D`` holds (in, out), so it is not; ``in_proj_weight`` of ``nn.MultiheadAttention`` and
``c_attn`` are three blocks q, k, v; ``query_key_value`` of GPT-NeoX, BLOOM and Falcon holds q, k, v
head by head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnviz.errors import WeightsError
from attnviz.records import Array
from attnviz.sources.files import ArrayFile, Entry
from attnviz.sources.files.contract import check_finite, listed, quote

WANTED = "w_q (D, H·E), w_k (D, K·E), w_v (D, K·F)"
_PREFIX = re.compile(
    r"^(?:(?:module|model|base_model|transformer|encoder|decoder|bert|roberta|gpt_neox|"
    r"_orig_mod|state_dict)\.)+"
)
_LAYER = re.compile(r"^(?:(?:layers|layer|h|blocks|block)\.)(\d+)\.(.*)$")
_WRAPPER = re.compile(
    r"^(?:(?:self_attn|self_attention|attention|attn|self|mha|multihead_attn|mixer|output)\.)+"
)
_SEPARATOR = re.compile(r"[._\-]")

_OWN = {"w_q": "w_q", "w_k": "w_k", "w_v": "w_v", "w_o": "w_o",
        "b_q": "b_q", "b_k": "b_k", "b_v": "b_v", "b_o": "b_o"}  # fmt: skip
_LINEAR = {
    **dict.fromkeys(("q_proj", "query", "q_lin", "wq", "q", "to_q", "query_proj"), "q"),
    **dict.fromkeys(("k_proj", "key", "k_lin", "wk", "k", "to_k", "key_proj"), "k"),
    **dict.fromkeys(("v_proj", "value", "v_lin", "wv", "v", "to_v", "value_proj"), "v"),
    **dict.fromkeys(("o_proj", "out_proj", "dense", "out_lin", "wo", "o", "to_out"), "o"),
}
_FUSED = {
    "in_proj": "blocks",
    "c_attn": "conv",
    "query_key_value": "heads",
    "qkv_proj": "blocks",
    "wqkv": "blocks",
    "qkv": "blocks",
}
_EMBEDDINGS = (
    "embedding", "embed", "wte.weight", "embed_tokens.weight", "word_embeddings.weight",
    "embeddings.word_embeddings.weight", "tok_embeddings.weight", "embed_in.weight",
    "embedding.weight", "token_embedding.weight", "shared.weight", "w_e",
)  # fmt: skip
_POSITIONS = (
    "positions", "wpe.weight", "position_embeddings.weight", "embeddings.position_embeddings.weight",
    "w_pos", "pos_embed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Role:
    """What one tensor was recognised as."""

    tensor: str
    part: str
    layout: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class Parts:
    """The matrices of one layer in our layout, with how they were found."""

    arrays: Mapping[str, Array]
    roles: tuple[Role, ...]
    n_layers: int
    n_heads: int | None
    n_kv_heads: int | None
    embedding: str | None
    positions: str | None


def recognise(entries: Mapping[str, Entry]) -> tuple[Role, ...]:
    """Say what each tensor is, by its name alone; tensors that mean nothing here are left out."""
    return tuple(role for name in entries if (role := _role_of(name)) is not None)


def _role_of(name: str) -> Role | None:
    short = _PREFIX.sub("", name)
    layer = None
    found = _LAYER.match(short)
    if found:
        layer, short = int(found[1]), found[2]
    lowered = short.lower()
    if lowered in _EMBEDDINGS:
        return Role(name, "embedding", "rows", None)
    if lowered in _POSITIONS:
        return Role(name, "positions", "rows", None)
    inner = _WRAPPER.sub("", short)
    lowered = inner.lower()
    if lowered in _OWN:
        return Role(name, _OWN[lowered], "ours", layer)
    stem, _, kind = lowered.rpartition(".") if "." in lowered else (lowered, "", "weight")
    if lowered.startswith("in_proj_"):
        stem, kind = "in_proj", lowered.removeprefix("in_proj_")
    if kind not in ("weight", "bias"):
        return None
    letter = "w" if kind == "weight" else "b"
    if stem in _FUSED:
        return Role(name, f"{letter}_qkv", _FUSED[stem], layer)
    if stem == "c_proj":
        is_inner = inner != short
        return Role(name, f"{letter}_o", "conv", layer) if is_inner else None
    if stem in _LINEAR:
        if _LINEAR[stem] == "o" and stem == "dense" and inner == short:
            return None
        return Role(name, f"{letter}_{_LINEAR[stem]}", "linear", layer)
    return None


def read_parts(
    file: ArrayFile,
    *,
    layer: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
) -> Parts:
    """Read the matrices of one layer.

    Parameters
    ----------
    layer
        Which of several; the first where None.
    n_heads, n_kv_heads
        Where neither the file nor its shapes tell.

    Raises
    ------
    WeightsError
        Names or shapes that do not make a layer: what was found, what was wanted, what to do.
    """
    roles = recognise(file.entries)
    layers = sorted({role.layer for role in roles if role.layer is not None})
    chosen = _choose_layer(file, layers, layer)
    mine: dict[str, Role] = {}
    for role in roles:
        if role.part in ("embedding", "positions") or role.layer != chosen:
            continue
        if role.part in mine:
            raise WeightsError(
                f"{file.name}: both {quote(mine[role.part].tensor)} and {quote(role.tensor)} could be "
                f"{role.part}: wanted one; rename or remove the other"
            )
        mine[role.part] = role
    if not {"w_qkv"} & mine.keys() and not {"w_q", "w_k", "w_v"} <= mine.keys():
        missing = [part for part in ("w_q", "w_k", "w_v") if part not in mine]
        raise WeightsError(
            f"{file.name}: {' and '.join(missing)} not found among {listed(file.entries)}: wanted "
            f"{WANTED}, or names that common tools write; see attnviz weights show"
        )
    arrays: dict[str, Array] = {}
    heads_found: int | None = None
    for part, role in mine.items():
        values = _floats(file, role.tensor)
        if part.startswith("w_"):
            values, heads_found = _to_columns(file, role, values, heads_found)
        elif values.ndim > 1:
            values = values.reshape(-1)
        arrays[part] = values
    count = n_heads or heads_found
    groups = n_kv_heads or count
    arrays = _cut_fused(file, mine, arrays, count, groups)
    named = {role.part: role.tensor for role in roles}
    kept = tuple(
        role for role in roles if role.layer == chosen or role.part in ("embedding", "positions")
    )
    return Parts(
        arrays,
        kept,
        max(1, len(layers)),
        count,
        groups,
        named.get("embedding"),
        named.get("positions"),
    )


def _choose_layer(file: ArrayFile, layers: list[int], wanted: int | None) -> int | None:
    if not layers:
        if wanted:
            raise WeightsError(f"{file.name} holds one layer: layer {wanted} does not exist; use 0")
        return None
    if wanted is None:
        return layers[0]
    if wanted not in layers:
        raise WeightsError(
            f"layer {wanted} does not exist: {file.name} has {len(layers)} layers, "
            f"{layers[0]} to {layers[-1]}; use --layer {layers[-1]} for the last"
        )
    return wanted


def _floats(file: ArrayFile, name: str) -> Array:
    values = np.asarray(file.read(name))
    if values.dtype.kind not in "fiub":
        raise WeightsError(
            f"{file.name}: {quote(name)} holds {values.dtype}: wanted real numbers; convert it"
        )
    values = values.astype(np.float64) if values.dtype.kind != "f" else values
    check_finite(values, file=file.name, name=name)
    if values.size == 0:
        raise WeightsError(
            f"{file.name}: {quote(name)} is empty, shape {values.shape}: wanted at least one number "
            "along every axis (d_k ≥ 1)"
        )
    return values


def _to_columns(
    file: ArrayFile, role: Role, values: Array, n_heads: int | None
) -> tuple[Array, int | None]:
    """Return (in, out) columns, whatever the tool's convention; separate heads are joined."""
    if values.ndim == 3 and role.layout in ("ours", "linear"):
        heads = int(values.shape[0])
        if role.part == "w_o":
            return values.reshape(-1, values.shape[2]), n_heads or heads
        joined = values.transpose(1, 0, 2).reshape(values.shape[1], -1)
        return joined, heads if role.part == "w_q" else n_heads
    if values.ndim != 2:
        raise WeightsError(
            f"{file.name}: {quote(role.tensor)} has the shape {values.shape}: wanted a matrix "
            f"for {role.part}"
        )
    if role.layout in ("ours", "conv"):
        return values, n_heads
    return values.T, n_heads


def _cut_fused(
    file: ArrayFile,
    roles: Mapping[str, Role],
    arrays: dict[str, Array],
    n_heads: int | None,
    n_kv_heads: int | None,
) -> dict[str, Array]:
    """Cut a fused q, k, v matrix (and bias) by its layout: three blocks, or head by head."""
    for letter in ("w", "b"):
        fused = f"{letter}_qkv"
        if fused not in arrays:
            continue
        values = arrays.pop(fused)
        role = roles[fused]
        width = values.shape[-1]
        if role.layout == "heads":
            if n_heads is None:
                raise WeightsError(
                    f"{file.name}: {quote(role.tensor)} holds q, k, v head by head, and the file does "
                    "not say how many heads: give --n-heads N"
                )
            pieces = _by_head(file, role, values, n_heads, n_kv_heads or n_heads)
        else:
            d_model = width // 3
            heads, groups = n_heads or 1, n_kv_heads or n_heads or 1
            if groups != heads and width % (heads + 2 * groups) == 0:
                unit = width // (heads + 2 * groups)
                cuts = [heads * unit, (heads + groups) * unit]
            elif width % 3 == 0:
                cuts = [d_model, 2 * d_model]
            else:
                raise WeightsError(
                    f"{file.name}: {quote(role.tensor)} has {width} columns: wanted a multiple of 3 "
                    "for q, k, v of one width; for grouped heads give --n-heads and --n-kv-heads"
                )
            pieces = np.split(values, cuts, axis=-1)
        for name, piece in zip("qkv", pieces, strict=True):
            arrays[f"{letter}_{name}"] = np.ascontiguousarray(piece)
    return arrays


def _by_head(
    file: ArrayFile, role: Role, values: Array, n_heads: int, n_kv_heads: int
) -> list[Array]:
    """Cut columns that hold, per key/value head, its query heads, its key and its value."""
    per_group = n_heads // n_kv_heads + 2
    width = values.shape[-1]
    if n_heads % n_kv_heads or width % (n_kv_heads * per_group):
        raise WeightsError(
            f"{file.name}: {quote(role.tensor)} has {width} columns: they do not divide into q, k, v "
            f"of {n_heads} heads; give the right --n-heads and --n-kv-heads"
        )
    grouped = values.reshape(*values.shape[:-1], n_kv_heads, per_group, -1)
    flat = (*values.shape[:-1], -1)
    return [
        grouped[..., :-2, :].reshape(flat),
        grouped[..., -2, :].reshape(flat),
        grouped[..., -1, :].reshape(flat),
    ]
