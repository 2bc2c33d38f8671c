"""One attention layer out of a weight file: matrices, tables, metadata and vocabulary joined.

What lives here: file → ``Layer``. What does not: file formats (``files``), names of tools
(``layouts``), what shapes prove (``proof``), or a source with its tokenizer open (``weights``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import WeightsError
from attnviz.sources.files import ArrayFile, Rows, open_arrays
from attnviz.sources.files.contract import listed, quote
from attnviz.sources.layers.layer import Layer
from attnviz.sources.layers.layouts import Parts, read_parts
from attnviz.sources.layers.names import Role, nearest_table, read_names
from attnviz.sources.layers.proof import (
    causal_of,
    check_table,
    count_of,
    heads_notice,
    scale_of,
    sizes_of,
    vocab_of,
)

_MAX_FILE_NAME_CHARS = 255


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
    return load_opened(open_arrays(path), path, digest(path), layer, n_heads, n_kv_heads)


def load_opened(
    file: ArrayFile,
    path: Path,
    sha256: str,
    layer: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
) -> Loaded:
    """Read one layer of a file that is open already."""
    told = file.metadata
    n_heads = count_of(file, "n_heads", n_heads)
    n_kv_heads = count_of(file, "n_kv_heads", n_kv_heads)
    parts = read_parts(file, layer=layer, n_heads=n_heads, n_kv_heads=n_kv_heads)
    heads, groups, width = sizes_of(file, parts)
    d_model = int(parts.arrays["w_q"].shape[0])
    folder_file, vocab_file, table = path, file, None
    if parts.embedding is not None:
        table = file.rows(parts.embedding)
    elif "embedding_from" in told:
        folder_file = _neighbour(path, told["embedding_from"])
        vocab_file = open_arrays(folder_file)
        table = _borrowed(file, vocab_file)
    check_table(file, "embedding", table, d_model)
    positions, skipped = _positions(file, parts, d_model)
    causal, causal_notice = causal_of(file, parts)
    found = Layer(
        **parts.arrays,
        n_heads=heads,
        n_kv_heads=groups,
        scale=scale_of(file, width),
        causal=causal,
        embedding=table,
        positions=positions,
    )
    vocab = vocab_of(file) or vocab_of(vocab_file)
    notices = (*parts.notices, *heads_notice(file, parts), *skipped, *causal_notice)
    return Loaded(
        found, file.name, sha256, told, parts.n_layers, parts.roles, vocab,
        _tokenizer_beside(folder_file), notices,
    )  # fmt: skip


def _borrowed(file: ArrayFile, other: ArrayFile) -> Rows:
    """Return the embedding of the file that ``embedding_from`` names."""
    name = nearest_table(other.name, read_names(other.entries), "embedding", "")
    if name is None:
        raise WeightsError(
            f"{other.name}, named by {file.name} as embedding_from, has no embedding: "
            f"it holds {listed(other.entries)}"
        )
    return other.rows(name)


def _positions(file: ArrayFile, parts: Parts, d_model: int) -> tuple[Rows | None, tuple[str, ...]]:
    """Return the table of positions; RoBERTa, BART and OPT keep two unused rows before it."""
    name = parts.positions
    if name is None:
        return None, ()
    stem = name.replace("/", ".").lower().split(".")[-2:][0]
    n_rows = (*file.entries[name].shape, 0)[0]
    is_shifted = stem in ("position_embeddings", "embed_positions") and n_rows % 64 == 2
    table = file.rows(name, start=2 if is_shifted else 0)
    check_table(file, "positions", table, d_model)
    if not is_shifted:
        return table, ()
    return table, (f"{quote(name)} has {n_rows} rows: position 0 is row 2, as RoBERTa and OPT do",)


def _neighbour(path: Path, name: str) -> Path:
    is_plain = name == Path(name).name and len(name) <= _MAX_FILE_NAME_CHARS
    if not is_plain or name.startswith(".") or "\0" in name or "\\" in name:
        raise WeightsError(
            f"{path.name}: its embedding_from is {quote(name)}: wanted the plain name of a file in "
            "the same folder"
        )
    return path.parent / name


def _tokenizer_beside(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    for name in (f"{path.stem}.tokenizer.json", f"{path.name}.tokenizer.json", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    return None


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the sorted files of a folder."""
    if path.is_dir():
        total = hashlib.sha256()
        for file in sorted(path.glob("*.npy")):
            total.update(file.name.encode() + bytes.fromhex(digest(file)))
        return total.hexdigest()
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
