"""One .npy array: its header, checked before anything is allocated, and which arrays are metadata."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as _format

from attnviz.errors import WeightsError
from attnviz.records import Array
from attnviz.sources.files.contract import MAX_AXES, METADATA_NAMES, listed, quote
from attnviz.sources.files.dtypes import widen

MAX_HEADER_BYTES = 10_000
_MAGIC = b"\x93NUMPY"
_MAX_METADATA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a .npy header says: where the data starts and how to read it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_column_major: bool
    start: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, data: Array) -> Array:
        """Return the array over its bytes, (size_bytes,) uint8, without a copy."""
        flat = data.view(self.dtype) if self.dtype.itemsize else np.zeros(0, self.dtype)
        return flat.reshape(self.shape, order="F" if self.is_column_major else "C")


def read_header(head: bytes, size_bytes: int, *, file: str, name: str) -> NpyHeader:
    """Read a .npy header and compare it with the bytes that are there.

    Parameters
    ----------
    head
        The first bytes, up to ``MAX_HEADER_BYTES + 12``.
    size_bytes
        Size of the whole .npy.

    Raises
    ------
    WeightsError
        No .npy, an object array, an unknown type, or another size than the shape needs.
    """
    what = f"{file}: {quote(name)}"
    if not head.startswith(_MAGIC) or len(head) < 10:
        found = "is empty" if not head else f"begins with {head[:6]!r}"
        raise WeightsError(f"{what} {found}: wanted a .npy array (b'\\x93NUMPY'); save it again")
    width = 2 if head[6] == 1 else 4
    n_bytes = int.from_bytes(head[8 : 8 + width], "little")
    if head[6] not in (1, 2, 3) or n_bytes > MAX_HEADER_BYTES:
        raise WeightsError(
            f"{what} has a .npy header of version {head[6]} and {n_bytes} bytes: "
            f"wanted version 1 to 3 and at most {MAX_HEADER_BYTES}"
        )
    start = 8 + width + n_bytes
    if start > len(head):
        raise WeightsError(f"{what} ends within its header: the file is cut off")
    dtype, shape, is_column_major = _parse(head[:start], what)
    header = NpyHeader(dtype, shape, is_column_major, start)
    if header.size_bytes != size_bytes - start:
        relation = "is cut off" if header.size_bytes > size_bytes - start else "has bytes left over"
        raise WeightsError(
            f"{what} of shape {str(shape)[:60]}, {dtype}, takes {header.size_bytes} bytes, but "
            f"{size_bytes - start} are there: the array {relation}; save it again"
        )
    return header


def _parse(head: bytes, what: str) -> tuple[Any, tuple[int, ...], bool]:
    """Let numpy read a header that is bounded; refuse what is no array of numbers or strings."""
    # version 3 differs from 2 in the names of fields only, and records are refused
    read = _format.read_array_header_1_0 if head[6] == 1 else _format.read_array_header_2_0
    stream = io.BytesIO(head)
    stream.seek(len(_MAGIC) + 2)
    try:
        if b"\\" in head:
            raise ValueError("an escape")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old types, and of headers that Python 2 wrote
            shape, is_column_major, dtype = read(stream, max_header_size=MAX_HEADER_BYTES)
    except Exception as fault:  # whatever Python's parser and numpy's types say to a stranger's
        raise WeightsError(f"{what} has a damaged .npy header: save it again") from fault
    if dtype.hasobject:
        raise WeightsError(
            f"{what} is an object array (ragged lists, or pickled Python objects): "
            "not loaded for safety; save a rectangular array of numbers"
        )
    if dtype.str[1:] == "V2" and dtype.names is None:
        raise WeightsError(
            f"{what} has the raw type {dtype.str} (bfloat16 saved by numpy loses its name): "
            "save it as float32, or use .safetensors"
        )
    if dtype.kind not in "fiubcSU":
        raise WeightsError(f"{what} has dtype {str(dtype)[:40]!r}: wanted numbers or strings")
    if len(shape) > MAX_AXES or not all(type(n) is int and 0 <= n < 1 << 53 for n in shape):
        raise WeightsError(
            f"{what} has shape {str(shape)[:60]}: wanted at most {MAX_AXES} counts, each 0 or more"
        )
    return dtype, shape, is_column_major


def is_metadata(name: str, header: NpyHeader) -> bool:
    """Return whether an array holds metadata: a string, or one of the names that are."""
    return header.dtype.kind in "US" or (name in METADATA_NAMES and len(header.shape) == 0)


def metadata_text(values: Array, *, file: str, name: str) -> str:
    """Return a metadata array as a string: one value as text, a list of strings as JSON.

    Examples
    --------
    >>> metadata_text(np.array(["a", "b"]), file="x.npz", name="vocab")
    '["a", "b"]'
    """
    if values.nbytes > _MAX_METADATA_BYTES:
        raise WeightsError(
            f"{file}: {quote(name)} has {values.nbytes} bytes of text: "
            f"at most {_MAX_METADATA_BYTES} are read"
        )
    if values.dtype.kind == "U" and _highest_character(values) > sys.maxunicode:
        # numpy makes such strings without a look, and Python fails on them past ``except``
        raise WeightsError(f"{file}: {quote(name)} holds no valid characters")
    try:
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        plain = values.tolist()
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=True)
    except UnicodeDecodeError as fault:
        raise WeightsError(f"{file}: {quote(name)} is not UTF-8 text: save it as str") from fault
    except (ValueError, SystemError) as fault:  # numpy: which of them depends on the code point
        raise WeightsError(f"{file}: {quote(name)} holds no valid characters") from fault


def _highest_character(values: Array) -> int:
    codes = np.dtype(np.uint32).newbyteorder(values.dtype.byteorder)
    flat = np.ascontiguousarray(values).reshape(-1)
    return int(flat.view(codes).max(initial=0)) if values.nbytes else 0


def metadata_array(name: str, value: str) -> Array:
    """Return a metadata string as the array that ``metadata_text`` reads back.

    Counts and numbers become numbers; a JSON list of words becomes an array of strings, unless
    a word ends in NUL, which numpy strips from strings: then the JSON itself is kept.
    """
    if name in ("n_heads", "n_kv_heads") and re.fullmatch(r"[1-9]\d{0,8}", value):
        return np.array(int(value))
    if name == "causal" and value in ("true", "false"):
        return np.array(value == "true")
    if name == "scale" and _is_exact_number(value):
        return np.array(float(value))
    if name == "vocab":
        words = _json_words(value)
        if words and not any(word.endswith("\0") for word in words):
            array = np.array(words)
            if json.dumps(array.tolist(), ensure_ascii=True) == value:
                return array
    if value.endswith("\0"):
        raise WeightsError(f"the metadata {quote(name)} ends in NUL, which .npz cannot hold")
    return np.array(value)


def _is_exact_number(value: str) -> bool:
    try:
        return json.dumps(float(value)) == value
    except ValueError:
        return False


def _json_words(value: str) -> list[str]:
    try:
        words = json.loads(value)
    except (ValueError, RecursionError):
        return []
    is_words = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return words if is_words else []


def storable(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], dtypes: Mapping[str, str]
) -> dict[str, Array]:
    """Return everything as numpy arrays by name, metadata included, sorted.

    Raises
    ------
    WeightsError
        A metadata name that is also an array's.
    """
    both = sorted(set(arrays) & set(metadata))
    if both:
        raise WeightsError(
            f"{listed(both)}: a tensor and a metadata entry of one name; .npz has room for one, "
            "use .safetensors"
        )
    every = {name: metadata_array(name, value) for name, value in metadata.items()}
    for name, values in arrays.items():
        every[name] = widen(values, dtypes.get(name, ""))
    return dict(sorted(every.items()))
