"""What the tensors of a weight file mean: common layouts turned into one layer's matrices.

What lives here: choosing a layer, proving its names by shape, transposing where the convention says
so, cutting fused matrices. What does not: names (``layout_names``), files (``files``), or joining
the result with metadata and vocabulary (``weights``).

Conventions (source → ours, (D, heads · width)): torch ``Linear`` holds (out, in): transposed. GPT-2's
``Conv1D`` holds (in, out): as it is, told from a ``Linear`` by its shape. ``in_proj_weight`` and
``c_attn`` are three blocks q, k, v; ``query_key_value`` of GPT-NeoX, BLOOM and Falcon holds, per
key/value head, its query heads, its key and its value. TransformerLens holds (H, D, E), flax (D, H, E).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnviz.errors import UsageError, WeightsError
from attnviz.records import Array
from attnviz.sources.files import ArrayFile
from attnviz.sources.files.contract import check_finite, listed, quote
from attnviz.sources.layers.names import Names, Role, Site, nearest_table, read_names

WANTED = "w_q (D, H·E), w_k (D, K·E), w_v (D, K·F)"
_CORNER = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """The matrices of one layer in our layout, with how they were found.

    Parameters
    ----------
    arrays
        ``w_q`` … ``b_o``: float32 or float64, row-major, in this machine's byte order.
    n_heads, n_kv_heads
        As the shapes or the caller tell them; None where nothing does.
    embedding, positions
        Names of the tables that belong to the layer.
    """

    arrays: Mapping[str, Array]
    roles: tuple[Role, ...]
    site: Site
    n_layers: int
    n_heads: int | None
    n_kv_heads: int | None
    is_causal: bool
    embedding: str | None
    positions: str | None
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What is known about the heads before the matrices are cut."""

    n_heads: int | None
    n_kv_heads: int | None


def recognise(file: ArrayFile) -> tuple[Role, ...]:
    """Say what each tensor is, by its name alone; tensors that mean nothing here are left out."""
    return read_names(file.entries).roles


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
        Which of several; the first, with a notice, where None.
    n_heads, n_kv_heads
        Where neither the file nor its shapes tell; contradicting them is an error.

    Raises
    ------
    WeightsError
        Names or shapes that do not make a layer: what was found, what was wanted, what to do.
    UsageError
        A layer that does not exist, or a number of heads that the shapes refute.
    """
    names = read_names(file.entries)
    site, notices = _choose_site(file, names, layer)
    if site.problem:
        raise WeightsError(f"{file.name}: {site.problem}")
    read = {part: _floats(file, name) for part, name in site.tensors.items()}
    told = _told(file, site, read, Told(n_heads, n_kv_heads))
    arrays = {
        part: _to_columns(file, site, part, values) if part.startswith("w_") else values.reshape(-1)
        for part, values in _join_heads(file, site, read).items()
    }
    if "w_qkv" in arrays:
        arrays = _cut_fused(file, site, arrays, told)
    elif "b_qkv" in arrays:  # nn.MultiheadAttention with kdim or vdim
        bias = np.array_split(arrays.pop("b_qkv"), 3)
        arrays |= {f"b_{name}": piece for name, piece in zip("qkv", bias, strict=True)}
    is_causal = site.is_causal or any(_is_triangle(file, name) for name in site.masks)
    used = {*site.tensors.values(), *site.masks}
    return Parts(
        {name: np.ascontiguousarray(values) for name, values in arrays.items()},
        names.roles,
        site,
        len(names.sites),
        told.n_heads,
        told.n_kv_heads,
        is_causal,
        nearest_table(file.name, names, "embedding", site.prefix),
        nearest_table(file.name, names, "positions", site.prefix),
        (*notices, *_unused_notice(file, names, used)),
    )


def _choose_site(file: ArrayFile, names: Names, wanted: int | None) -> tuple[Site, tuple[str, ...]]:
    sites = names.sites
    if not sites:
        raise WeightsError(_missing(file, names))
    numbers = [site.number for site in sites]
    if wanted is None:
        notice = (
            f"{file.name} has {len(sites)} layers, {numbers[0]} to {numbers[-1]}: shown is "
            f"{numbers[0]}; --layer N shows another"
        )
        return sites[0], (notice,) if len(sites) > 1 else ()
    for site in sites:
        if site.number == wanted:
            return site, ()
    if len(sites) == 1:
        raise UsageError(f"layer {wanted} does not exist: {file.name} has 1 layer; use --layer 0")
    raise UsageError(
        f"layer {wanted} does not exist: {file.name} has {len(sites)} layers, "
        f"{numbers[0]} to {numbers[-1]}; use --layer {numbers[-1]} for the last"
    )


def _missing(file: ArrayFile, names: Names) -> str:
    fullest = max(names.partial, key=lambda site: len(site.tensors), default=None)
    if fullest is None:
        return (
            f"{file.name}: w_q, w_k and w_v not found among {listed(file.entries)}: wanted {WANTED}, "
            "or names that common tools write (q_proj.weight, in_proj_weight, c_attn.weight, "
            "query_key_value.weight, …)"
        )
    there = {part.partition(".")[0] for part in fullest.tensors}
    missing = [part for part in ("w_q", "w_k", "w_v") if part not in there]
    return (
        f"{file.name}: {' and '.join(missing)} missing beside "
        f"{listed(fullest.tensors.values())}: wanted {WANTED} of one layer, named in one way"
    )


def _floats(file: ArrayFile, name: str) -> Array:
    """Read a matrix or bias whole: finite, not empty, float32 or float64."""
    values = np.asarray(file.read(name))
    if values.dtype.kind not in "fiu" or values.dtype.itemsize > 8:
        raise WeightsError(
            f"{file.name}: {quote(name)} holds {values.dtype}: wanted real numbers of at most "
            "64 bits; convert it"
        )
    if values.size == 0:
        raise WeightsError(
            f"{file.name}: {quote(name)} is empty, shape {values.shape}: wanted at least one number "
            "along every axis (d_model ≥ 1, d_k ≥ 1)"
        )
    check_finite(values, file=file.name, name=name)
    is_narrow = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return np.array(values, dtype=np.float32 if is_narrow else np.float64, order="C")


def _told(file: ArrayFile, site: Site, read: Mapping[str, Array], asked: Told) -> Told:
    """Return the numbers of heads, where shapes or names tell them or the caller does."""
    counts: dict[str, int] = {}
    for part in ("w_q", "w_k"):
        separate = [name for name in site.tensors if name.startswith(f"{part}.")]
        if separate:
            counts[part] = len(separate)
        elif part in read and read[part].ndim == 3 and site.layout in ("matrix", "kernel"):
            counts[part] = int(read[part].shape[0 if site.layout == "matrix" else 1])
    pairs = (("n-heads", asked.n_heads, "w_q"), ("n-kv-heads", asked.n_kv_heads, "w_k"))
    for option, number, part in pairs:
        if number and counts.get(part, number) != number:
            raise UsageError(
                f"--{option} {number} contradicts {file.name}: its {part} has {counts[part]} heads; "
                f"leave --{option} out"
            )
    return Told(counts.get("w_q") or asked.n_heads, counts.get("w_k") or asked.n_kv_heads)


def _join_heads(file: ArrayFile, site: Site, read: Mapping[str, Array]) -> dict[str, Array]:
    """Put separate heads (``w_q.0``, ``w_q.1``, …) side by side, as one matrix."""
    joined = {part: values for part, values in read.items() if "." not in part}
    for part in sorted({part.partition(".")[0] for part in read} - joined.keys()):
        pieces = {name: read[name] for name in sorted(read, key=_head_number) if name[:3] == part}
        pieces = {name: values for name, values in pieces.items() if "." in name}
        shapes = {values.shape for values in pieces.values()}
        first = site.tensors[next(iter(pieces))]
        numbers = [_head_number(name) for name in pieces]
        if numbers != list(range(len(numbers))):
            raise WeightsError(
                f"{file.name}: {part} is there for the heads {listed(map(str, numbers))} "
                f"({quote(first)}, …): wanted all from 0 on"
            )
        if len(shapes) > 1:
            raise WeightsError(
                f"{file.name}: the heads of {part} have the shapes "
                f"{', '.join(map(str, sorted(shapes)[:4]))} ({quote(first)}, …): wanted one shape"
            )
        axis = 0 if part[0] == "b" or _is_linear(first) else -1
        joined[part] = np.concatenate(list(pieces.values()), axis=axis)
    return joined


def _head_number(part: str) -> int:
    return int(part.partition(".")[2] or 0)


def _is_linear(tensor: str) -> bool:
    """Whether a tensor is a torch ``Linear``'s, which holds (out, in)."""
    return tensor.lower().endswith(("weight", "bias"))


def _to_columns(file: ArrayFile, site: Site, part: str, values: Array) -> Array:
    """Return (in, out), whatever the tool's convention."""
    tensor = site.tensors.get(part) or site.tensors[f"{part}.0"]
    if values.ndim == 3 and not _is_linear(tensor):
        if part == "w_o":
            return values.reshape(-1, values.shape[2])
        by_input = values if site.layout == "kernel" else values.transpose(1, 0, 2)
        return by_input.reshape(by_input.shape[0], -1)
    if values.ndim != 2:
        raise WeightsError(
            f"{file.name}: {quote(tensor)} has the shape {values.shape}: wanted a matrix for {part}"
        )
    is_block = site.layout == "blocks" and "w_qkv" in site.tensors
    if is_block and part == "w_o" and tensor.lower().endswith("c_proj.weight"):
        return values if _is_conv(file, site) else values.T
    if is_block and part == "w_qkv":
        return values if _is_conv(file, site) else values.T
    return values.T if _is_linear(tensor) else values


def _is_conv(file: ArrayFile, site: Site) -> bool:
    """Whether a fused matrix holds (in, out), by its own shape, its bias, or the output's.

    Raises
    ------
    WeightsError
        Nothing proves either.
    """
    tensor = site.tensors["w_qkv"]
    rows, columns = _shape(file, tensor)
    if not _is_linear(tensor):
        return True
    if "b_qkv" in site.tensors and rows != columns:
        bias = _shape(file, site.tensors["b_qkv"])
        if bias in ((rows,), (columns,)):
            return bias == (columns,)
    if rows == 3 * columns:
        return False
    if columns == 3 * rows:
        return True
    if "w_o" in site.tensors and rows != columns:
        inside = set(_shape(file, site.tensors["w_o"]))
        if (rows in inside) != (columns in inside):
            return rows in inside
    raise WeightsError(
        f"{file.name}: {quote(tensor)} has the shape {(rows, columns)}: wanted (3·D, D) of a Linear "
        "or (D, 3·D) of a Conv1D; give w_q, w_k and w_v instead"
    )


def _shape(file: ArrayFile, name: str) -> tuple[int, ...]:
    return file.entries[name].shape


def _cut_fused(
    file: ArrayFile, site: Site, arrays: dict[str, Array], told: Told
) -> dict[str, Array]:
    """Cut q, k, v out of one matrix (and bias), by its layout."""
    tensor = site.tensors["w_qkv"]
    d_model, width = arrays["w_qkv"].shape
    if site.layout == "in_proj" and width != 3 * d_model:
        raise WeightsError(
            f"{file.name}: {quote(tensor)} has the shape {(width, d_model)}: wanted (3·D, D), "
            f"here ({3 * d_model}, {d_model})"
        )
    bias = arrays.get("b_qkv")
    if bias is not None and bias.shape != (width,):
        raise WeightsError(
            f"{file.name}: {quote(site.tensors['b_qkv'])} has {bias.size} numbers: wanted {width}, "
            f"one for every output of {quote(tensor)}"
        )
    inner = arrays["w_o"].shape[0] if "w_o" in arrays else None
    kept = {part: values for part, values in arrays.items() if part[2:] != "qkv"}
    for part in ("w_qkv", "b_qkv"):
        if part not in arrays:
            continue
        if site.layout == "by head":
            pieces = _by_head(file, site, arrays[part], told, inner or d_model)
        else:
            cut = _query_width(file, tensor, width, d_model, told, inner)
            rest = (width - cut) // 2
            pieces = np.split(arrays[part], [cut, cut + rest], axis=-1)
        kept |= {f"{part[0]}_{name}": piece for name, piece in zip("qkv", pieces, strict=True)}
    return kept


def _query_width(
    file: ArrayFile, tensor: str, width: int, d_model: int, told: Told, inner: int | None
) -> int:
    """Return how many columns of blocks q, k, v are q's; k and v share the rest evenly."""
    cut = d_model if width == 3 * d_model else 0
    if inner is not None:
        cut = inner
    elif told.n_heads and told.n_kv_heads:
        cut = width * told.n_heads // (told.n_heads + 2 * told.n_kv_heads)
    if cut < 1 or (width - cut) < 2 or (width - cut) % 2:
        raise WeightsError(
            f"{file.name}: {quote(tensor)} has {width} columns for d_model {d_model}: wanted "
            f"{3 * d_model} (q, k, v of one width); for others give --n-heads and --n-kv-heads"
        )
    return cut


def _by_head(
    file: ArrayFile, site: Site, values: Array, told: Told, query_width: int
) -> list[Array]:
    """Cut columns that hold, per key/value head, its query heads, its key and its value."""
    tensor, width = quote(site.tensors["w_qkv"]), values.shape[-1]
    heads = told.n_heads
    if heads is None:
        raise WeightsError(
            f"{file.name}: {tensor} holds q, k, v head by head, and the file does not say how many "
            "heads: give --n-heads N"
        )
    d_head = query_width // heads
    groups = told.n_kv_heads or ((width - query_width) // (2 * d_head) if d_head else 0)
    is_cut = d_head and groups and heads % groups == 0
    if not is_cut or (heads + 2 * groups) * d_head != width or query_width % heads:
        raise WeightsError(
            f"{file.name}: {tensor} has {width} columns: they do not divide into q, k, v of {heads} "
            f"heads of d_model {query_width}; give the right --n-heads"
        )
    if groups != heads and "encoder.layers." in site.prefix:
        raise WeightsError(
            f"{file.name}: {tensor} has grouped heads, which tools with this name order in two "
            "ways: give w_q, w_k and w_v instead"
        )
    grouped = values.reshape(*values.shape[:-1], groups, heads // groups + 2, d_head)
    flat = (*values.shape[:-1], -1)
    return [
        grouped[..., :-2, :].reshape(flat),
        grouped[..., -2, :].reshape(flat),
        grouped[..., -1, :].reshape(flat),
    ]


def _is_triangle(file: ArrayFile, name: str) -> bool:
    """Whether a buffer hides later keys: ones on and below the diagonal, or only above it."""
    shape = _shape(file, name)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 2 or set(shape[:-2]) - {1}:
        return False
    corner = np.asarray(file.stored(name)[0]).reshape(shape[-2:])[:_CORNER, :_CORNER] != 0
    lower = np.tri(len(corner), dtype=bool)
    return bool((corner == lower).all() or (corner == ~lower).all())


def _unused_notice(file: ArrayFile, names: Names, used: set[str]) -> tuple[str, ...]:
    known = used | {role.tensor for role in names.roles}
    known |= {mask for site in names.sites for mask in site.masks}
    others = [name for name in file.entries if name not in known]
    if not others:
        return ()
    return (
        f"{file.name} holds more than attention ({listed(others, most=3)}): that is not applied, so x "
        "is the bare embedding, so the numbers are not the whole model's own; --model FOLDER shows those",
    )
