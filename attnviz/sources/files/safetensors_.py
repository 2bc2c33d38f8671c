"""The .safetensors format: a JSON header, then the bytes of every tensor without gaps.

What lives here: its reader, which checks the header before a byte of data is touched and then
maps the file, and its writer. What does not: the library of the same name. Its numpy writer
shuffles column-major arrays (safetensors#825, present in 0.8.0) and orders metadata differently
in every process, so the same input would not give the same bytes; its numpy reader has no bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attnviz.errors import WeightsError
from attnviz.records import Array
from attnviz.sources.files.contract import (
    MAX_ARRAYS,
    MAX_AXES,
    ArrayFile,
    Entry,
    Writer,
    check_name,
    map_file,
    quote,
)
from attnviz.sources.files.dtypes import BITS, NUMPY, safetensors_name

MAX_HEADER_BYTES = 100_000_000
_MAX_WIDE_HEADER_BYTES = 32_000_000  # text beyond ASCII takes four times its bytes in memory
_MAX_COMMAS = 4_000_000
_METADATA = "__metadata__"


def open_arrays(path: Path) -> ArrayFile:
    """Open a .safetensors file: its header is read and checked, its data only mapped.

    Raises
    ------
    WeightsError
        Anything that the format forbids, or beyond the bounds of ``contract``.
    """
    return open_mapped(map_file(path), path.name)


def open_mapped(mapped: Array, file: str) -> ArrayFile:
    """Open safetensors bytes, (size,) uint8, already in or mapped into memory."""
    header, start = _read_header(mapped, file)
    metadata = _check_metadata(header.pop(_METADATA, {}), file)
    entries: dict[str, Entry] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, value in header.items():
        check_name(file, name, entries)
        entries[name], places[name] = _check_tensor(name, value, file)
    _check_places(places, len(mapped) - start, file)

    def stored(name: str) -> tuple[Array, str]:
        entry, (begin, end) = entries[name], places[name]
        if entry.dtype not in NUMPY:
            raise WeightsError(
                f"{file}: {quote(name)} has dtype {entry.dtype}, which is not read: "
                "save it as F32, F16 or BF16"
            )
        data = mapped[start + begin : start + end]
        return data.view(NUMPY[entry.dtype]).reshape(entry.shape), entry.dtype

    return ArrayFile(file, "safetensors", entries, metadata, stored)


def _read_header(mapped: Array, file: str) -> tuple[dict[str, Any], int]:
    """Return the header and where the data begins; nothing is allocated before it is bounded."""
    if len(mapped) < 8:
        raise WeightsError(f"{file} has {len(mapped)} bytes: a safetensors file has at least 8")
    n_bytes = int.from_bytes(mapped[:8].tobytes(), "little")
    room = len(mapped) - 8
    if n_bytes > MAX_HEADER_BYTES:
        raise WeightsError(
            f"{file}: the header is said to have {n_bytes} bytes: at most {MAX_HEADER_BYTES}; "
            "this is no safetensors file"
        )
    if n_bytes > room:
        raise WeightsError(
            f"{file}: the header is said to have {n_bytes} bytes, but {room} follow: "
            "the file is cut off or is no safetensors file; fetch it again"
        )
    text = mapped[8 : 8 + n_bytes].tobytes()
    if not text.startswith(b"{"):
        raise WeightsError(
            f"{file}: the header begins with {text[:1]!r}, wanted b'{{': no safetensors file"
        )
    is_too_rich = (
        text.count(b"{") > MAX_ARRAYS + 50_000
        or text.count(b"[") > 2 * MAX_ARRAYS + 50_000
        or text.count(b",") > _MAX_COMMAS
        or (n_bytes > _MAX_WIDE_HEADER_BYTES and not text.isascii())
    )
    if is_too_rich:
        raise WeightsError(f"{file}: the header lists more than {MAX_ARRAYS} tensors: not read")
    return _parse(text, file), 8 + n_bytes


def _parse(text: bytes, file: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: dict[str, Any] = {}
            for name, value in pairs:  # pragma: no branch  (one of the names is there twice)
                check_name(file, name, seen)
                seen[name] = value
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)[:80]
        raise WeightsError(
            f"{file}: the header is not JSON ({reason}): the file is damaged; fetch it again"
        ) from fault
    if not isinstance(header, dict):
        raise WeightsError(f"{file}: the header is no JSON object: no safetensors file")
    if len(header) > MAX_ARRAYS + 1:
        raise WeightsError(f"{file}: {len(header)} tensors: at most {MAX_ARRAYS} are read")
    return header


def _check_metadata(value: Any, file: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise WeightsError(f"{file}: {_METADATA} is not a map of strings: the file is damaged")
    return value


def _check_tensor(name: str, value: Any, file: str) -> tuple[Entry, tuple[int, int]]:
    """Return one tensor's entry and place, once its type, shape and size agree."""
    what = f"{file}: {quote(name)}"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise WeightsError(f"{what} lacks dtype, shape or data_offsets: the file is damaged")
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise WeightsError(f"{what} has dtype {str(dtype)[:20]!r}: known are {', '.join(BITS)}")
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise WeightsError(
            f"{what} has shape {str(shape)[:60]}: wanted at most {MAX_AXES} counts, each 0 or more"
        )
    if not _are_counts(place) or len(place) != 2 or place[0] > place[1]:
        raise WeightsError(f"{what} has data_offsets {str(place)[:60]}: wanted [begin, end]")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (place[1] - place[0]):
        raise WeightsError(
            f"{what} of shape {str(tuple(shape))[:60]}, {dtype}, takes {-(-bits // 8)} bytes, "
            f"but the file gives it {place[1] - place[0]}: the header is damaged"
        )
    return Entry(name, tuple(shape), dtype, place[1] - place[0]), (place[0], place[1])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 53 for n in value)


def _check_places(places: Mapping[str, tuple[int, int]], n_bytes: int, file: str) -> None:
    """Refuse holes, overlaps and data beyond the end."""
    reached = 0
    for name, (begin, end) in sorted(places.items(), key=lambda item: item[1]):
        if begin != reached:
            kind = "overlaps the tensor before it" if begin < reached else "leaves a hole before it"
            raise WeightsError(
                f"{file}: {quote(name)} begins at byte {begin}, wanted {reached}: it {kind}"
            )
        reached = end
    if reached != n_bytes:
        kind = "the file is cut off; fetch it again" if reached > n_bytes else "the rest is unknown"
        raise WeightsError(f"{file}: tensors take {reached} bytes, {n_bytes} are there: {kind}")


def writer(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], dtypes: Mapping[str, str]
) -> Writer:
    """Return what writes these arrays: contiguous, little-endian, the same bytes every time.

    Parameters
    ----------
    dtypes
        Safetensors names for arrays that hold bits (``BF16`` in uint16); others are found.

    Raises
    ------
    WeightsError
        A type that the format does not have.
    """
    if _METADATA in arrays:
        raise WeightsError(f"{_METADATA} is no name for a tensor in .safetensors: rename it")
    kinds = {name: dtypes.get(name) or _kind(name, values) for name, values in arrays.items()}
    order = sorted(arrays, key=lambda name: (-BITS[kinds[name]], name))
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = dict(sorted(metadata.items()))
    reached = 0
    for name in order:
        size_bytes = int(arrays[name].size) * BITS[kinds[name]] // 8
        place = [reached, reached := reached + size_bytes]
        shape = list(arrays[name].shape)
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            # a column-major array handed over as it lies would be read back shuffled (case W1)
            values = np.ascontiguousarray(arrays[name], dtype=NUMPY[kinds[name]])
            file.write(values.reshape(-1).view(np.uint8).data)

    return write


def _kind(name: str, values: Array) -> str:
    kind = safetensors_name(values.dtype)
    if kind is None:
        raise WeightsError(
            f"{quote(name)} has dtype {values.dtype}, which .safetensors does not have: "
            "wanted float64, float32, float16, an integer or bool"
        )
    return kind
