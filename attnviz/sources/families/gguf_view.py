"""A GGUF file as a model of the families: nothing is converted, tensors stay where they lie.

What lives here: each parameter's place in the file, and keeping what the file says of itself without
its words. What does not: the bounded reader (``sources.models.gguf``), what settings and tensors mean
(``sources.models.gguf_accounting``), blocks of quantised numbers (``blocks``).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.sources.families.binding import EXPERT
from attnviz.sources.families.blocks import SIZES
from attnviz.sources.families.proof import engine_version
from attnviz.sources.families.settings import NotOurs
from attnviz.sources.families.weights import PLAIN, Stored, Weights, mapping_of
from attnviz.sources.files.contract import map_file
from attnviz.sources.models.cache import read_entry, write_entry
from attnviz.sources.models.gguf import TYPE_NAMES, Gguf, GgufTensor, read_gguf
from attnviz.sources.models.gguf_accounting import Account, Part, account
from attnviz.sources.models.gguf_convert import check_sizes

_AS_IT_IS = Part(()).change


def read_view(path: Path, sha256: str) -> Account:
    """Account for a GGUF's settings and tensors, by what is kept of it under the file's hash.

    Raises
    ------
    InputError
        A file that is not sound, a setting or tensor that is not known, a tensor that is missing.

    Notes
    -----
    A vocabulary of 150,000 words takes half a second to step over: it is done once.
    """
    key = key_of(sha256)
    file = _kept(path, read_entry("gguf-view", key))
    if file is None:
        file = read_gguf(path)
        write_entry("gguf-view", key, kept_of(file))
    check_sizes(file)
    return account(file)


def key_of(sha256: str) -> str:
    """Return under which name a file's view is kept."""
    return hashlib.sha256(f"{sha256}\n{engine_version()}".encode()).hexdigest()


def kept_of(file: Gguf) -> dict[str, Any]:
    """Return what is kept of a file: all but its words."""
    metadata = {
        name: value
        for name, value in file.metadata.items()
        if not (name.startswith("tokenizer.") and isinstance(value, list))
    }
    tensors = {n: (t.shape, t.kind, t.start, t.n_bytes) for n, t in file.tensors.items()}
    return {"metadata": metadata, "tensors": tensors}


def _kept(path: Path, kept: Any) -> Gguf | None:
    """Return what was kept of a file, or None where it is not what was written."""
    try:
        size = path.stat().st_size
        tensors = {n: GgufTensor(tuple(t[0]), *t[1:]) for n, t in kept["tensors"].items()}
        for one in tensors.values():
            numbers = [*one.shape, one.kind, one.start, one.n_bytes]
            if not all(type(n) is int and n >= 0 for n in numbers):
                return None
            if not 1 <= len(one.shape) <= 4 or 0 in one.shape:
                return None
            if one.kind not in TYPE_NAMES or one.start + one.n_bytes > size:
                return None
        return Gguf(path, {**kept["metadata"]}, tensors)
    except (TypeError, KeyError, AttributeError, IndexError):
        return None


def open_view(view: Account) -> Weights:
    """Map a GGUF's parameters, by the names that a saved folder gives them.

    Raises
    ------
    NotOurs
        A tensor of a type that is not read here, or a parameter made of several.
    InputError
        A tensor of a shape that the settings do not give.
    """
    mapped = map_file(view.file.path)
    found: dict[str, Stored] = {}
    for name, part in view.parameters.items():
        if len(part.tensors) != 1:
            raise NotOurs(f"{name[:80]} is made of several tensors")
        tensor = view.file.tensors[part.tensors[0]]
        kind = TYPE_NAMES.get(tensor.kind, str(tensor.kind))
        raw = mapped[tensor.start : tensor.start + tensor.n_bytes]
        if kind in PLAIN:
            n_bytes = math.prod(tensor.shape) * np.dtype(PLAIN[kind]).itemsize
        elif kind in SIZES:
            n_bytes = math.prod(tensor.shape) // SIZES[kind][0] * SIZES[kind][1]
        else:
            raise NotOurs(f"the tensor {part.tensors[0][:80]!r} is of type {kind}")
        if raw.size != n_bytes:
            raise InputError(f"{view.file.path.name}: {part.tensors[0][:80]} is not whole")
        expert = EXPERT.match(name)
        if expert and len(tensor.shape) == 3 and int(expert[2]) < tensor.shape[0]:
            one = raw.reshape(tensor.shape[0], -1)[int(expert[2])]
            found[name] = Stored(tensor.shape[1:], kind, one)
            continue
        change = None if part.change is _AS_IT_IS else part.change
        shape = tensor.shape if change is None else _shape_of(view, part, tensor)
        found[name] = Stored(shape, kind, raw, change, tensor.shape)
    return Weights(found, (mapping_of(mapped),))


def _shape_of(view: Account, part: Part, tensor: GgufTensor) -> tuple[int, ...]:
    """Return a parameter's shape, by numbers that take no room."""
    try:
        return tuple(part.change(np.broadcast_to(np.float32(0), tensor.shape)).shape)
    except (ValueError, IndexError) as fault:
        raise InputError(
            f"{view.file.path.name}: {part.tensors[0][:80]} has a shape that its settings do not "
            f"give: {fault}"
        ) from fault
