"""Open a weight file as a source: arrays → ``Layer``, vocabulary, sizes proved by shape.

What lives here: joining a file's arrays, metadata and tokenizer; the bundled samples. What does
not: file formats (``files``), names of tools (``layouts``), random weights (``random_``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import InputError, WeightsError
from attnviz.records import Array, SourceInfo
from attnviz.sources import Project
from attnviz.sources.files import ArrayFile, Rows, open_arrays
from attnviz.sources.files.contract import MAX_TOTAL_BYTES, listed, quote
from attnviz.sources.layer import Layer, LayerSource, Vocabulary
from attnviz.sources.layouts import WANTED, Parts, Role, read_parts, recognise

SAMPLES = {"sample": "sample.safetensors", "sample-8": "sample-8.safetensors"}
SAMPLE_NOTE = (
    "one small layer, trained on 5 million tokens of dictionary and speech text, without positions: "
    "it shows which words belong together, not grammar, order or meaning in context; for anything "
    "more, bring trained weights of your own: --weights FILE"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One layer read from a file, with where it came from."""

    layer: Layer
    name: str
    sha256: str
    metadata: Mapping[str, str]
    n_layers: int
    recognised: tuple[Role, ...]
    vocab: tuple[str, ...] | None
    tokenizer: Path | None
    notices: tuple[str, ...]


def sample_folder() -> Path:
    """Return the folder of the bundled samples: in the wheel, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_sample"
    return inside if inside.is_dir() else package.parent / "sample_weights"


def resolve(spec: str) -> Path:
    """Return the path behind ``sample``, ``sample-8`` or a file name."""
    return sample_folder() / SAMPLES[spec] if spec in SAMPLES else Path(spec)


def open_weights(
    spec: str,
    *,
    layer: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    seed: int = 0,
    project: Project,
) -> LayerSource:
    """Open a bundled sample or a weight file.

    Raises
    ------
    InputError, WeightsError
        The file or its tokenizer cannot be read, or holds no layer.
    """
    loaded = load_layer(resolve(spec), layer=layer, n_heads=n_heads, n_kv_heads=n_kv_heads)
    vocabulary, about = _open_vocabulary(loaded)
    found = loaded.layer
    notices = loaded.notices
    if found.embedding is None:
        from attnviz.sources.random_ import word_vectors

        width = found.d_model
        found = replace(found, embed=lambda tokens: word_vectors(tokens, seed=seed, d_model=width))
        notices = (
            *notices,
            f"{loaded.name} has no embedding: x is drawn from the word and seed {seed}",
        )
    is_sample = spec in SAMPLES
    info = SourceInfo(
        kind="trained sample" if is_sample else "weight file",
        name=spec if is_sample else loaded.name,
        sha256=loaded.sha256,
        n_layers=loaded.n_layers,
        n_heads=found.n_heads,
        n_kv_heads=found.n_kv_heads,
        d_model=found.d_model,
        d_k=found.d_k,
        d_v=found.d_v,
        origin=SAMPLE_NOTE if is_sample else loaded.metadata.get("origin", ""),
        seed=seed if loaded.layer.embedding is None else None,
        tokenizer=about[0],
        tokenizer_sha256=about[1],
        notices=notices,
    )
    return LayerSource(info, found, vocabulary, project)


def load_layer(
    path: Path,
    *,
    layer: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
) -> Loaded:
    """Read one layer of a weight file; its embedding stays on disk, rows are read when needed.

    Raises
    ------
    InputError, WeightsError
        One line: what was found, what was wanted, what to do.
    """
    file = open_arrays(path)
    told = file.metadata
    n_heads = n_heads or _count(file, "n_heads")
    n_kv_heads = n_kv_heads or _count(file, "n_kv_heads")
    parts = read_parts(file, layer=layer, n_heads=n_heads, n_kv_heads=n_kv_heads)
    sizes = _sizes(file, parts, n_heads, n_kv_heads)
    embedding_file, folder_file = file, path
    if "embedding_from" in told and parts.embedding is None:
        folder_file = _neighbour(path, told["embedding_from"])
        embedding_file = open_arrays(folder_file)
        other = next((r for r in recognise(embedding_file.entries) if r.part == "embedding"), None)
        if other is None:
            raise WeightsError(f"{folder_file.name}, named by {file.name}, has no embedding")
        table: Rows | None = embedding_file.rows(other.tensor)
    else:
        table = file.rows(parts.embedding) if parts.embedding else None
    d_model = int(parts.arrays["w_q"].shape[0])
    _check_table(file, "embedding", table, d_model)
    positions = file.rows(parts.positions) if parts.positions else None
    _check_table(file, "positions", positions, d_model)
    heads, groups, width = sizes
    notices: tuple[str, ...] = ()
    if n_heads is None and parts.n_heads is None and _needs_heads(parts):
        notices = (f"{file.name} does not say how many heads it has: read as one; --n-heads N",)
    found = Layer(
        **parts.arrays,
        n_heads=heads,
        n_kv_heads=groups,
        scale=_scale(file, width),
        causal=told.get("causal", "false").strip().lower() in ("true", "1", "yes"),
        embedding=table,
        positions=positions,
    )
    return Loaded(
        found,
        file.name,
        digest(path),
        told,
        parts.n_layers,
        parts.roles,
        _vocab(embedding_file),
        _tokenizer_beside(folder_file),
        notices,
    )


def _needs_heads(parts: Parts) -> bool:
    return any(role.layout != "ours" for role in parts.roles if role.part[:2] in ("w_",))


def _sizes(
    file: ArrayFile, parts: Parts, n_heads: int | None, n_kv_heads: int | None
) -> tuple[int, int, int]:
    """Prove heads and widths by the shapes; return (H, K, E)."""
    w_q, w_k, w_v = (parts.arrays[name] for name in ("w_q", "w_k", "w_v"))
    shapes = f"w_q {w_q.shape}, w_k {w_k.shape}, w_v {w_v.shape}"
    if not w_q.shape[0] == w_k.shape[0] == w_v.shape[0]:
        raise WeightsError(
            f"{file.name}: {shapes}: the first axis, d_model, differs; wanted {WANTED}"
        )
    heads = n_heads or parts.n_heads or 1
    if w_q.shape[1] % heads:
        raise WeightsError(
            f"{file.name}: w_q has {w_q.shape[1]} columns: they do not divide into {heads} heads; "
            "give the right --n-heads"
        )
    width = w_q.shape[1] // heads
    if w_k.shape[1] % width:
        raise WeightsError(
            f"{file.name}: {shapes} with {heads} head(s) of d_k {width}: w_k does not divide into "
            f"heads of that width; wanted {WANTED}"
        )
    groups = n_kv_heads or w_k.shape[1] // width
    if groups * width != w_k.shape[1] or heads % groups or w_v.shape[1] % groups:
        raise WeightsError(
            f"{file.name}: {shapes} with {heads} query and {groups} key/value head(s): the widths do "
            f"not fit; wanted {WANTED}, H a multiple of K; give --n-heads and --n-kv-heads"
        )
    widths = {"b_q": w_q.shape[1], "b_k": w_k.shape[1], "b_v": w_v.shape[1]}
    for name, wanted in widths.items():
        if name in parts.arrays and parts.arrays[name].shape != (wanted,):
            raise WeightsError(
                f"{file.name}: {name} has the shape {parts.arrays[name].shape}: wanted ({wanted},)"
            )
    w_o = parts.arrays.get("w_o")
    d_v = w_v.shape[1] // groups
    if w_o is not None and w_o.shape[0] != heads * d_v:
        raise WeightsError(
            f"{file.name}: w_o has the shape {w_o.shape}: wanted ({heads * d_v}, D), a row for every "
            "number of the joined heads"
        )
    return heads, groups, width


def _count(file: ArrayFile, name: str) -> int | None:
    told = file.metadata.get(name)
    if told is None:
        return None
    try:
        number = int(float(told))
    except (ValueError, OverflowError):
        number = 0
    if not 1 <= number <= 1024:
        raise WeightsError(f"{file.name}: its {name} is {told!r}: wanted a number from 1 to 1024")
    return number


def _scale(file: ArrayFile, d_k: int) -> float:
    told = file.metadata.get("scale")
    if told is None:
        return 1 / math.sqrt(d_k)
    try:
        number = float(told)
    except ValueError:
        number = float("nan")
    if not (np.isfinite(number) and number > 0):
        raise WeightsError(f"{file.name}: its scale is {told!r}: wanted a number above 0")
    return number


def _check_table(file: ArrayFile, what: str, table: Any, d_model: int) -> None:
    if table is None:
        return
    shape = tuple(table.shape)
    if len(shape) != 2 or shape[1] != d_model or shape[0] == 0:
        raise WeightsError(
            f"{file.name}: the {what} has the shape {shape}: wanted (rows, {d_model}), one row per "
            f"{'word' if what == 'embedding' else 'position'}, as wide as w_q is high"
        )


def _vocab(file: ArrayFile) -> tuple[str, ...] | None:
    told = file.metadata.get("vocab")
    if told is None:
        return None
    try:
        words = json.loads(told)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise WeightsError(f"{file.name}: its vocab is no list of words: wanted V strings")
    return tuple(words)


def _tokenizer_beside(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    for name in (f"{path.stem}.tokenizer.json", f"{path.name}.tokenizer.json", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    return None


def _neighbour(path: Path, name: str) -> Path:
    if name != Path(name).name or name.startswith(".") or "\0" in name or "\\" in name:
        raise WeightsError(
            f"{path.name}: its embedding_from is {quote(name)}: wanted the plain name of a file in "
            "the same folder"
        )
    return path.parent / name


def _open_vocabulary(loaded: Loaded) -> tuple[Vocabulary, tuple[str, str]]:
    """Return what cuts the text, and its name and hash."""
    from attnviz.sources.tokenize import WordList, WordSplitter, open_tokenizer

    table = loaded.layer.embedding
    if table is None:
        return WordSplitter(), ("words and punctuation", "")
    if loaded.vocab is not None:
        if len(loaded.vocab) != len(table):
            raise WeightsError(
                f"{loaded.name}: vocab has {len(loaded.vocab)} words, the embedding {len(table)} rows: "
                "wanted one row per word"
            )
        text = json.dumps(loaded.vocab).encode()
        return WordList(loaded.vocab), ("vocab", hashlib.sha256(text).hexdigest())
    if loaded.tokenizer is None:
        raise InputError(
            f"{loaded.name} has an embedding of {len(table)} rows but no vocabulary: put its "
            f"tokenizer.json beside it, or store vocab, {len(table)} words"
        )
    opened = open_tokenizer(loaded.tokenizer, n_rows=len(table))
    return opened, (opened.name, opened.sha256)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the sorted files of a folder."""
    if path.is_dir():
        total = hashlib.sha256()
        for file in sorted(path.glob("*.npy")):
            total.update(file.name.encode() + bytes.fromhex(digest(file)))
        return total.hexdigest()
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Return what a weight file holds: tensors, metadata, meaning, and why not where it has none."""
    file = open_arrays(path)
    roles = {role.tensor: role for role in recognise(file.entries)}
    try:
        loaded = load_layer(path)
        layer, problem = loaded.layer, ""
    except InputError as fault:
        layer, problem = None, str(fault)
    sizes = None
    if layer is not None:
        sizes = {
            "n_layers": loaded.n_layers,
            "n_heads": layer.n_heads,
            "n_kv_heads": layer.n_kv_heads,
            "d_model": layer.d_model,
            "d_k": layer.d_k,
            "d_v": layer.d_v,
            "scale": layer.scale,
            "causal": layer.causal,
        }
    return {
        "schema": "attnviz.weights/1",
        "name": file.name,
        "format": file.format,
        "sha256": digest(path),
        "tensors": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "bytes": entry.size_bytes,
                "role": _role_text(roles.get(entry.name)),
            }
            for entry in file.entries.values()
        ],
        "metadata": {k: v if len(v) <= 400 else v[:399] + "…" for k, v in file.metadata.items()},
        "sizes": sizes,
        "problem": problem,
    }


def _role_text(role: Role | None) -> str:
    if role is None:
        return ""
    how = {
        "linear": ", transposed",
        "conv": "",
        "heads": ", head by head",
        "blocks": ", transposed",
    }
    return role.part + how.get(role.layout, "")


def read_all(path: Path) -> tuple[dict[str, Array], dict[str, str], dict[str, str]]:
    """Read every tensor as stored, for conversion: (arrays, metadata, dtypes of raw bits).

    Raises
    ------
    WeightsError
        More than is held at once.
    """
    file = open_arrays(path)
    total = sum(entry.size_bytes for entry in file.entries.values())
    if total > MAX_TOTAL_BYTES:
        raise WeightsError(
            f"{file.name}: {listed(file.entries)} hold {total} bytes: at most {MAX_TOTAL_BYTES} are converted"
        )
    arrays, dtypes = {}, {}
    for name in file.entries:
        bits, dtype = file.stored(name)
        arrays[name] = bits
        if dtype in ("BF16", "F8_E4M3", "F8_E5M2"):
            dtypes[name] = dtype
    return arrays, dict(file.metadata), dtypes
