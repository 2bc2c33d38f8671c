"""A model's weights where they lie: mapped from safetensors or GGUF, turned into float32 on demand.

One layer's arrays at a time; rows of an embedding and single experts where no more is needed.
Nothing of the file stays in memory but what was asked for last (``release``).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.memory import room_bytes
from attnviz.sources.families.parts import Floats, Whole
from attnviz.sources.families.settings import NotOurs
from attnviz.sources.files.contract import map_file
from attnviz.sources.files.dtypes import widen
from attnviz.sources.files.safetensors_ import open_mapped
from attnviz.sources.models.accounting import is_aside

PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "F8_E4M3": "|u1", "F8_E5M2": "|u1"}  # fmt: skip
_SCALES = ("_scale_inv", "_scale")
_CHUNK_NUMBERS = 1 << 20
KEPT_SHARE = 0.25
"""Share of the free memory that layers may take which are kept for a second text."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor's place in a mapped file.

    Parameters
    ----------
    shape
        Rows first, as torch has it.
    kind
        A safetensors type, or a GGUF type's name.
    raw
        (bytes,) uint8, mapped.
    fix
        Applied to the float32 array after reading (a GGUF's order of rows, an added one).
    raw_shape
        Before ``fix``, where it changes the shape.
    """

    shape: tuple[int, ...]
    kind: str
    raw: Any
    fix: Callable[[Floats], Floats] | None = None
    raw_shape: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        return int(self.raw.size)

    def numbers(self, rows: slice | Whole | None = None) -> Floats:
        """Return the tensor, or some entries of its first axis, as float32; a view where it is F32."""
        raw, shape = self.raw, self.raw_shape or self.shape
        if rows is not None and len(shape) > 1:
            raw = raw.reshape(shape[0], -1)[rows]
            shape = (len(raw), *shape[1:])
            raw = raw.reshape(-1)
        if self.kind in PLAIN:
            bits = raw.view(PLAIN[self.kind]).reshape(shape)
            return np.asarray(widen(bits, self.kind), np.float32)
        from attnviz.sources.families.blocks import dequantize

        return dequantize(raw, self.kind).reshape(shape)


@dataclass
class Weights:
    """Tensors by the names that the family uses.

    Parameters
    ----------
    tensors
        Name → place.
    maps
        Mapped files, to let go of.
    scale_block
        Rows and columns of a matrix of 8-bit floats that share one of its scales.
    """

    tensors: Mapping[str, Stored]
    maps: Sequence[mmap.mmap] = ()
    _kept: dict[str, Floats] = field(default_factory=dict)
    keeps: bool = False
    scale_block: tuple[int, int] = (128, 128)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None where there is none of that name."""
        stored = self.tensors.get(name)
        return None if stored is None else stored.shape

    def read(self, name: str) -> Floats:
        """Return one tensor as float32."""
        if name in self._kept:
            return self._kept[name]
        stored = self._stored(name)
        numbers = stored.numbers()
        numbers = self._scale(name, numbers)
        if stored.fix is not None:
            numbers = stored.fix(numbers)
        if self.keeps:
            self._kept[name] = numbers
        return numbers

    def rows(self, name: str, ids: Sequence[int]) -> Floats:
        """Return some rows of a matrix as float32; nothing else of it is read."""
        stored = self._stored(name)
        if ids and not 0 <= min(ids) <= max(ids) < stored.shape[0]:
            raise InputError(
                f"the tokenizer gives id {max(ids)}, but {name} has {stored.shape[0]} rows: they do "
                "not belong together"
            )
        return stored.numbers(np.asarray(ids, np.int64))

    def chunks(self, name: str) -> Iterator[Floats]:
        """Return a large matrix in pieces of its rows."""
        stored = self._stored(name)
        step = max(1, _CHUNK_NUMBERS // max(1, math.prod(stored.shape[1:])))
        for start in range(0, stored.shape[0], step):
            yield stored.numbers(slice(start, start + step))

    def layer(self, prefix: str) -> Layer:
        """Return the tensors whose names begin so, by the rest of their names."""
        return Layer(self, prefix)

    def keep_if_small(self) -> None:
        """Keep layers as float32 from now on, where all of them fit well into the memory there is."""
        free = room_bytes()
        needed = 4 * sum(math.prod(stored.shape) for stored in self.tensors.values())
        self.keeps = free is not None and needed <= KEPT_SHARE * free

    def release(self) -> None:
        """Let the system have back what was mapped in; kept layers stay."""
        if self.keeps:
            return
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self.maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _stored(self, name: str) -> Stored:
        if name not in self.tensors:
            raise InputError(f"the model lacks the tensor {name[:120]!r} of its architecture")
        return self.tensors[name]

    def _scale(self, name: str, numbers: Floats) -> Floats:
        """Multiply 8-bit floats by the scales beside them: one, one per row, or one per block."""
        stored = self.tensors[name]
        if not stored.kind.startswith("F8"):
            return numbers
        found = next((name + s for s in _SCALES if name + s in self.tensors), None)
        if found is None:
            return numbers
        scale = self.tensors[found].numbers()
        if scale.size == 1:
            return numbers * scale.reshape(())
        if numbers.ndim == 2 and scale.shape == numbers.shape[:1]:
            return numbers * scale[:, None]
        sizes = tuple(-(-n // size) for n, size in zip(numbers.shape, self.scale_block))
        if numbers.ndim != 2 or scale.shape not in (sizes, (len(numbers), 1)):
            raise InputError(
                f"the scales of {name[:120]!r} have shape {scale.shape}: for {numbers.shape} read are "
                f"one, one per row, or {sizes}"
            )
        if scale.shape == sizes:
            for axis, size in enumerate(self.scale_block):
                scale = np.repeat(scale, size, axis).take(range(numbers.shape[axis]), axis)
        return numbers * scale


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's tensors by their short names."""

    weights: Weights
    prefix: str

    def __getitem__(self, name: str) -> Floats:
        return self.weights.read(self.prefix + name)

    def get(self, name: str) -> Floats | None:
        """Return a tensor that not every model of a family has."""
        full = self.prefix + name
        return self.weights.read(full) if full in self.weights.tensors else None


def open_safetensors(paths: Sequence[Path]) -> Weights:
    """Map one or several safetensors files; headers are checked before a byte of data is touched.

    Raises
    ------
    InputError
        A damaged file, or a name that stands in two of them.
    NotOurs
        A tensor of a type that is not read here.
    """
    tensors: dict[str, Stored] = {}
    maps = []
    for path in paths:
        mapped = map_file(path)
        file = open_mapped(mapped, path.name)
        maps.append(mapping_of(mapped))
        for name, entry in file.entries.items():
            if name in tensors:
                raise InputError(f"the tensor {name[:80]!r} stands in two files of the model")
            if entry.dtype not in PLAIN:
                if entry.dtype.startswith(("I", "U", "B")) and is_aside(name, entry.shape):
                    continue  # buffers: masks, position ids
                raise NotOurs(f"the tensor {name[:80]!r} is of type {entry.dtype}")
            bits, _ = file.stored(name)
            tensors[name] = Stored(entry.shape, entry.dtype, bits.reshape(-1).view(np.uint8))
    return Weights(tensors, maps)


def mapping_of(mapped: Any) -> mmap.mmap:
    """Return the map behind an array of ``map_file``."""
    base = mapped.base
    found = base.obj if isinstance(base, memoryview) else base
    assert isinstance(found, mmap.mmap)
    return found
