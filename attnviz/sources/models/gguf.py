"""GGUF files: metadata and tensors through a map of the file, every length checked before use.

What lives here: the bounded reader, which looks at a file before any library does. What does not:
turning a file into a model (``gguf_convert``).

Format: ggml-org/ggml, docs/gguf.md, versions 2 and 3. Dimensions are listed fastest first: a
matrix of 4 rows and 10 columns is listed 10 × 4.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from attnviz.records import Array

_MAX_KEYS = 100_000
_MAX_TENSORS = 1_000_000
_MAX_STRING_BYTES = 16 << 20
_MAX_ITEMS = 8_000_000
_MAX_ALIGNMENT = 1 << 16
_MAX_NESTING = 4
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
# (values per block, bytes per block) by type, as in ggml.c
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's place: shape as rows first, type by number, bytes from the file's start."""

    shape: tuple[int, ...]
    kind: int
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a GGUF file says about itself; no tensor data is held."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return ``<architecture>.<name>`` of the metadata."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def read(self, name: str) -> Array:
        """Read one tensor, dequantised: float32 numpy array of its shape, rows first.

        Raises
        ------
        InputError
            No such tensor, or a type that cannot be dequantised.
        """
        import numpy as np

        if name not in self.tensors:
            raise InputError(f"{self.path.name} has no tensor {name!r}")
        tensor = self.tensors[name]
        with self.path.open("rb") as stream:
            stream.seek(tensor.start)
            raw = np.frombuffer(stream.read(tensor.n_bytes), np.uint8)
        if tensor.kind in (0, 1):
            plain = raw.view("<f4" if tensor.kind == 0 else "<f2")
            return plain.astype(np.float32).reshape(tensor.shape)
        from attnviz.sources.models.library import require

        require("gguf")
        import gguf

        per_block, block_bytes = _BLOCKS[tensor.kind]
        width = tensor.shape[-1] // per_block * block_bytes
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            numbers = gguf.quants.dequantize(raw.reshape(*tensor.shape[:-1], width), kind)
        except (ValueError, NotImplementedError, KeyError) as fault:
            raise InputError(f"{self.path.name}: {name} cannot be dequantised: {fault}") from fault
        return np.asarray(numbers, np.float32).reshape(tensor.shape)


def read_gguf(path: Path) -> Gguf:
    """Read a GGUF file's metadata and tensor list.

    Raises
    ------
    InputError
        Not a GGUF file, or one whose numbers do not fit it; nothing is allocated before a check.

    Notes
    -----
    0.1 to 1 second, most of it the vocabulary's strings; memory is about that vocabulary.
    """
    try:
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(data, path).read()
    except (ValueError, OSError) as fault:
        raise InputError(f"cannot read {path.name} as GGUF: {fault}") from fault


class _Reader:
    """A cursor over the mapped file; every step is checked against what is left."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.items = data, path, 0, 0

    def read(self) -> Gguf:
        if self.data[:4] != b"GGUF":
            raise InputError(
                f"{self.path.name} is not a GGUF file: it begins with {self.data[:4]!r}"
            )
        self.at = 4
        version = self.number("I")
        if version not in (2, 3):
            raise InputError(f"{self.path.name} is GGUF version {version}: 2 and 3 are read")
        n_tensors, n_keys = self.number("Q"), self.number("Q")
        self.check(n_tensors <= _MAX_TENSORS, f"{n_tensors} tensors")
        self.check(n_keys <= _MAX_KEYS, f"{n_keys} keys")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string()
            self.check(key not in metadata, f"the key {key[:80]!r} twice")
            metadata[key] = self.value(self.number("I"), 0)
        alignment = metadata.get("general.alignment", 32)
        is_power = isinstance(alignment, int) and 0 < alignment <= _MAX_ALIGNMENT
        self.check(is_power and alignment & (alignment - 1) == 0, f"alignment {alignment!r}")
        listed = [self.tensor() for _ in range(n_tensors)]
        start = self.at + (-self.at) % alignment
        tensors = {name: self.placed(name, entry, start) for name, entry in listed}
        self.check(len(tensors) == n_tensors, "two tensors of one name")
        return Gguf(self.path, metadata, tensors)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise InputError(f"{self.path.name} is no sound GGUF file: it claims {what}")

    def number(self, form: str) -> Any:
        size = struct.calcsize("<" + form)
        self.check(self.at + size <= len(self.data), f"more than its {len(self.data)} bytes")
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += size
        return value

    def string(self) -> str:
        size = self.number("Q")
        left = len(self.data) - self.at
        self.check(size <= min(_MAX_STRING_BYTES, left), f"a text of {size} bytes")
        raw = self.data[self.at : self.at + size]
        self.at += size
        return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(depth + 1)
        self.check(kind in _NUMBERS, f"a value of type {kind}")
        return self.number(_NUMBERS[kind])

    def array(self, depth: int) -> list[Any]:
        self.check(depth <= _MAX_NESTING, f"lists nested more than {_MAX_NESTING} deep")
        kind, count = self.number("I"), self.number("Q")
        self.items += count
        self.check(self.items <= _MAX_ITEMS, f"lists of {self.items} values")
        if kind in (_STRING, _ARRAY):
            self.check(count * 8 <= len(self.data) - self.at, f"a list of {count} values")
            return [self.value(kind, depth) for _ in range(count)]
        self.check(kind in _NUMBERS, f"a list of type {kind}")
        form = f"<{count}{_NUMBERS[kind]}"
        size = struct.calcsize(form)
        self.check(size <= len(self.data) - self.at, f"a list of {count} values")
        values = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return list(values)

    def tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, n_axes = self.string(), self.number("I")
        self.check(1 <= n_axes <= 4, f"a tensor of {n_axes} axes")
        listed = tuple(self.number("Q") for _ in range(n_axes))
        self.check(0 < math.prod(listed) <= 1 << 48, f"a tensor of {listed}")
        return name, (listed[::-1], self.number("I"), self.number("Q"))

    def placed(self, name: str, entry: tuple[tuple[int, ...], int, int], start: int) -> GgufTensor:
        shape, kind, offset = entry
        self.check(kind in _BLOCKS, f"a tensor of type {kind}")
        per_block, block_bytes = _BLOCKS[kind]
        self.check(shape[-1] % per_block == 0, f"{name[:80]!r} of {shape} in blocks of {per_block}")
        n_bytes = math.prod(shape) // per_block * block_bytes
        end = start + offset + n_bytes
        self.check(end <= len(self.data), f"{name[:80]!r} up to byte {end} of {len(self.data)}")
        return GgufTensor(shape, kind, start + offset, n_bytes)
