"""The .npz format: a zip file of .npy arrays.

The directory and all headers are read first, data on demand. Uncompressed members, which ``numpy.savez`` writes, are mapped; compressed ones are unpacked whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnviz.errors import WeightsError
from attnviz.npz import write_npz
from attnviz.records import Array
from attnviz.sources.files.contract import (
    MAX_ARRAYS,
    ArrayFile,
    Entry,
    Writer,
    map_file,
    quote,
)
from attnviz.sources.files.npy import (
    MAX_HEADER_BYTES,
    NpyHeader,
    is_metadata,
    metadata_text,
    read_header,
    storable,
)
from attnviz.sources.files.zip_directory import check_unpacked, open_zip, read_member

_MAPPED_FROM_BYTES = 1 << 20


def open_arrays(path: Path) -> ArrayFile:
    """Open an .npz file: directory and headers are read and checked, no data.

    Raises
    ------
    WeightsError
        Not a zip of .npy arrays, a bomb, object arrays, or sizes that contradict each other.
    """
    entries: dict[str, Entry] = {}
    headers: dict[str, NpyHeader] = {}
    members: dict[str, zipfile.ZipInfo] = {}
    metadata: dict[str, str] = {}
    with open_zip(path) as archive:
        check_unpacked(archive, path.name)
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            name = member.filename.removesuffix(".npy")
            members[name] = member
            head = read_member(archive, member.filename, MAX_HEADER_BYTES + 12, file=path.name)
            header = read_header(head, member.file_size, file=path.name, name=name)
            if is_metadata(name, header):
                metadata[name] = metadata_text(
                    header.view(_unpacked(archive, member, header, path.name)),
                    file=path.name,
                    name=name,
                )
                continue
            headers[name] = header
            entries[name] = Entry(name, header.shape, str(header.dtype), header.size_bytes)
            if len(entries) > MAX_ARRAYS:
                raise WeightsError(f"{path.name}: more than {MAX_ARRAYS} arrays are not read")

    def stored(name: str) -> tuple[Array, str]:
        header, member = headers[name], members[name]
        if _is_mapped(member):
            start = _data_start(path, member) + header.start
            data = map_file(path)[start : start + header.size_bytes]
            if len(data) == header.size_bytes:
                return header.view(data), entries[name].dtype
        with open_zip(path) as archive:
            data = _unpacked(archive, member, header, path.name)
        return header.view(data), entries[name].dtype

    return ArrayFile(path.name, "npz", entries, metadata, stored)


def _is_mapped(member: zipfile.ZipInfo) -> bool:
    """Large uncompressed members are mapped; small ones are read, and their checksum with them."""
    is_plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
    return is_plain and member.file_size > _MAPPED_FROM_BYTES


def _unpacked(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: NpyHeader, file: str
) -> Array:
    """Return a member's data as (size,) uint8, its checksum verified by reading to the end."""
    data = read_member(archive, member.filename, member.file_size + 1, file=file)
    if len(data) != member.file_size:
        raise WeightsError(
            f"{file}: {quote(member.filename)} gives {len(data)} bytes, wanted {member.file_size}: "
            "the file is damaged"
        )
    return np.frombuffer(data, np.uint8)[header.start :]


def _data_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin: after its local header, whose lengths are its own."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        head = file.read(30)
    n_name, n_extra = (int.from_bytes(head[i : i + 2], "little") for i in (26, 28))
    return member.header_offset + 30 + n_name + n_extra


def writer(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], dtypes: Mapping[str, str]
) -> Writer:
    """Return what writes these arrays and metadata as an uncompressed .npz.

    bfloat16 and 8-bit floats, which numpy does not have, are widened to float32.

    Raises
    ------
    WeightsError
        A name that could leave the folder when someone unpacks the file.
    """
    every = storable(arrays, metadata, dtypes)
    for name in every:
        parts = name.replace("\\", "/").split("/")
        if not name or name.startswith(("/", "\\")) or ".." in parts or "\0" in name:
            raise WeightsError(f"{quote(name)} is no safe name in a zip file: use .safetensors")
        if name != name.encode("utf-8", "replace").decode("utf-8"):
            raise WeightsError(f"{quote(name)} has half a character: use .safetensors")

    return lambda file: write_npz(file, every)
