"""Weight files as sources, and what they hold: the face of this folder for single layers.

What lives here: the bundled samples, opening a file with its vocabulary as a source, the record of
``weights show``, everything as stored for ``weights convert``. What does not: reading one layer
(``layer_file``), file formats (``files``), random weights (``random_``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, WeightsError
from attnviz.records import Array, SourceInfo
from attnviz.sources import Project
from attnviz.sources.files import ArrayFile, Entry, open_arrays
from attnviz.sources.files.contract import MAX_TOTAL_BYTES, listed
from attnviz.sources.files.dtypes import WIDENED
from attnviz.sources.layers.layer import LayerSource, Vocabulary
from attnviz.sources.layers.layouts import recognise
from attnviz.sources.layers.names import Role
from attnviz.sources.layers.read import Loaded, digest, load_opened
from attnviz.sources.layers.read import load_layer as load_layer

_HOW = {"in_proj": "three blocks", "blocks": "three blocks", "by head": "head by head"}

SAMPLES = {"sample": "sample.safetensors", "sample-8": "sample-8.safetensors"}
SAMPLE_NOTE = "the sample pairs related words, no grammar or order: attnviz weights show sample"
SAMPLE_LIMITS = (
    "One small layer, trained on 5 million tokens of dictionary and speech text, without positions. "
    "It shows which words belong together, but not grammar, word order or meaning in context. "
    "For anything more, bring trained weights of your own: --weights FILE or --model FOLDER."
)
"""What ``weights show sample`` says of the bundled samples."""


def sample_folder() -> Path:
    """Return the folder of the bundled samples: in the wheel, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "_sample"
    return inside if inside.is_dir() else package.parent / "sample_weights"


def resolve(spec: str) -> Path:
    """Return the path behind ``sample``, ``sample-8`` or a file name."""
    return sample_folder() / SAMPLES[spec] if spec in SAMPLES else Path(spec)


def hold_arrays(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> ArrayFile:
    """Return arrays in memory as a file of arrays, so that they mean what a file of them would."""
    entries = {
        name: Entry(name, values.shape, str(values.dtype), values.nbytes)
        for name, values in arrays.items()
    }
    return ArrayFile(
        "arrays", "npz", entries, metadata, lambda name: (arrays[name], entries[name].dtype)
    )


def open_weights(
    spec: str | ArrayFile,
    *,
    layer: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    seed: int = 0,
    project: Project,
) -> LayerSource:
    """Open a bundled sample, a weight file, or arrays in memory.

    Raises
    ------
    InputError, WeightsError
        The file or its tokenizer cannot be read, or holds no layer.
    """
    if isinstance(spec, ArrayFile):
        total = hashlib.sha256()
        for name in sorted(spec.entries):
            values = spec.read(name)
            total.update(f"{name}{values.dtype}{values.shape}".encode() + values.tobytes())
        nowhere = Path(os.devnull) / spec.name  # nothing lies beside it
        loaded = load_opened(spec, nowhere, total.hexdigest(), layer, n_heads, n_kv_heads)
    else:
        loaded = load_layer(resolve(spec), layer=layer, n_heads=n_heads, n_kv_heads=n_kv_heads)
    vocabulary, about = _open_vocabulary(loaded)
    found = loaded.layer
    notices = loaded.notices
    if found.embedding is None:
        from attnviz.sources.layers.random_ import word_vectors

        width = found.d_model
        found = replace(found, embed=lambda tokens: word_vectors(tokens, seed=seed, d_model=width))
        notices = (
            *notices,
            f"{loaded.name} has no embedding: x is drawn from the word and seed {seed}",
        )
    is_sample = isinstance(spec, str) and spec in SAMPLES
    info = SourceInfo(
        kind="trained sample" if is_sample else "weight file",
        name=str(spec) if is_sample else loaded.name,
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
        n_vocab=0 if loaded.layer.embedding is None else len(loaded.layer.embedding),
        n_positions=None if found.positions is None else len(found.positions),
    )
    return LayerSource(info, found, vocabulary, project)


def _open_vocabulary(loaded: Loaded) -> tuple[Vocabulary, tuple[str, str]]:
    """Return what cuts the text, and its name and hash."""
    from attnviz.sources.text.tokenize import WordList, WordSplitter, open_tokenizer

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


def describe(path: Path) -> dict[str, Any]:
    """Return what a weight file holds: tensors, metadata, meaning, and why not where it has none.

    Returns
    -------
    dict
        Schema ``attnviz.weights/1``; ``sizes`` is None and ``problem`` says why where the file
        holds no layer.

    Raises
    ------
    InputError, WeightsError
        The file itself cannot be read.
    """
    file = open_arrays(path)
    sha256 = digest(path)
    roles = {role.tensor: role for role in recognise(file)}
    n_layers = len({role.layer for role in roles.values() if role.layer is not None})
    loaded: Loaded | None = None
    problem = ""
    try:
        loaded = load_opened(file, path, sha256)
    except InputError as fault:
        problem = str(fault)
    return {
        "schema": "attnviz.weights/1",
        "name": file.name,
        "format": file.format,
        "sha256": sha256,
        "tensors": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "bytes": entry.size_bytes,
                "role": role_text(roles.get(entry.name), entry, n_layers=n_layers),
            }
            for entry in file.entries.values()
        ],
        "metadata": {k: v if len(v) <= 400 else v[:399] + "…" for k, v in file.metadata.items()},
        "sizes": None if loaded is None else _sizes(loaded),
        "notices": [] if loaded is None else list(loaded.notices),
        "problem": problem,
    }


def _sizes(loaded: Loaded) -> dict[str, Any]:
    layer = loaded.layer
    return {
        "n_layers": loaded.n_layers,
        "n_heads": layer.n_heads,
        "n_kv_heads": layer.n_kv_heads,
        "d_model": layer.d_model,
        "d_k": layer.d_k,
        "d_v": layer.d_v,
        "scale": layer.scale,
        "causal": layer.causal,
    }


def role_text(role: Role | None, entry: Entry, *, n_layers: int) -> str:
    """Return what a tensor was recognised as, in words; empty where it means nothing here.

    Examples
    --------
    >>> entry = Entry("h.3.attn.q_proj.weight", (4, 8), "F32", 128)
    >>> role_text(Role(entry.name, "w_q", "linear", 3), entry, n_layers=12)
    'layer 3: w_q, transposed'
    """
    if role is None:
        return ""
    words = [role.part]
    is_matrix = role.part.startswith("w_")
    if is_matrix and role.part == "w_qkv" and role.layout in _HOW:
        words.append(_HOW[role.layout])
    is_pair = len(entry.shape) == 2
    is_conv = role.layout == "blocks" and is_pair and entry.shape[1] == 3 * entry.shape[0]
    is_conv_out = role.layout == "blocks" and entry.name.lower().endswith("c_proj.weight")
    if is_matrix and entry.name.lower().endswith("weight") and not (is_conv or is_conv_out):
        words.append("transposed")
    place = f"layer {role.layer}: " if n_layers > 1 and role.layer is not None else ""
    return place + ", ".join(words)


def read_all(path: Path) -> tuple[dict[str, Array], dict[str, str], dict[str, str]]:
    """Read every tensor as stored, for conversion: (arrays, metadata, dtypes of raw bits).

    Raises
    ------
    WeightsError
        More than is held at once.
    """
    file = open_arrays(path)
    _check_total(file)
    arrays: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    for name in file.entries:
        arrays[name], dtype = file.stored(name)
        if dtype in WIDENED:
            dtypes[name] = dtype
    return arrays, dict(file.metadata), dtypes


def _check_total(file: ArrayFile) -> None:
    total = sum(entry.size_bytes for entry in file.entries.values())
    if total > MAX_TOTAL_BYTES:
        raise WeightsError(
            f"{file.name}: {listed(file.entries)} hold {total} bytes: "
            f"at most {MAX_TOTAL_BYTES} are converted"
        )
