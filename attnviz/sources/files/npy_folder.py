"""A folder of .npy files: one array per file, named after it.

What lives here: its reader (headers first, data mapped) and its writer. What does not: .npy
headers (``npy``). Names from strangers become file names only where they can do no harm.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from attnviz.errors import WeightsError
from attnviz.npz import write_npy
from attnviz.records import Array
from attnviz.sources.files.contract import (
    ArrayFile,
    Entry,
    Writer,
    file_size_bytes,
    listed,
    map_file,
    quote,
    unreadable,
)
from attnviz.sources.files.npy import (
    MAX_HEADER_BYTES,
    NpyHeader,
    is_metadata,
    metadata_text,
    read_header,
    storable,
)

_MAX_FILES = 20_000
_UNSAFE = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|]|^[.\-]|^$|[. ]$')
_MAX_FILE_NAME_BYTES = 200


def list_arrays(path: Path) -> dict[str, Path]:
    """Return the .npy files of a folder by array name, sorted."""
    try:
        with os.scandir(path) as found:
            files = sorted(entry.name for entry in found if entry.name.endswith(".npy"))
    except OSError as fault:
        raise unreadable(path, fault) from fault
    if len(files) > _MAX_FILES:
        raise WeightsError(f"{path.name}: {len(files)} .npy files: at most {_MAX_FILES} are read")
    return {file.removesuffix(".npy"): path / file for file in files if not file.startswith(".")}


def open_arrays(path: Path) -> ArrayFile:
    """Open a folder: every header is read and checked, no data.

    Raises
    ------
    WeightsError
        No .npy files, object arrays, or sizes that contradict each other.
    """
    files = list_arrays(path)
    if not files:
        is_model = (path / "config.json").is_file()
        hint = "it is a model's folder: give it with --model" if is_model else "check the path"
        raise WeightsError(
            f"{path.resolve().name} is a folder without .npy files: wanted w_q.npy, w_k.npy, "
            f"w_v.npy; {hint}"
        )
    return open_files(files, path.name)


def open_files(files: Mapping[str, Path], title: str) -> ArrayFile:
    """Open .npy files by the names of their arrays: every header is read and checked, no data."""
    entries: dict[str, Entry] = {}
    headers: dict[str, NpyHeader] = {}
    metadata: dict[str, str] = {}
    for name, file in files.items():
        header = headers[name] = _header(file, title, name)
        if is_metadata(name, header):
            values = header.view(map_file(file)[header.start :])
            metadata[name] = metadata_text(values, file=title, name=name)
        else:
            entries[name] = Entry(name, header.shape, str(header.dtype), header.size_bytes)

    def stored(name: str) -> tuple[Array, str]:
        data = map_file(files[name])[headers[name].start :]
        return headers[name].view(data[: headers[name].size_bytes]), entries[name].dtype

    return ArrayFile(title, "npy", entries, metadata, stored)


def _header(file: Path, folder: str, name: str) -> NpyHeader:
    size_bytes = file_size_bytes(file)
    try:
        with open(file, "rb") as opened:
            head = opened.read(MAX_HEADER_BYTES + 12)
    except OSError as fault:
        raise unreadable(file, fault) from fault
    return read_header(head, size_bytes, file=folder, name=name)


def writers(
    arrays: Mapping[str, Array], metadata: Mapping[str, str], dtypes: Mapping[str, str]
) -> dict[str, Writer]:
    """Return what writes each file of the folder, by file name.

    Raises
    ------
    WeightsError
        A name that cannot be a file's, or two that differ only in case.
    """
    every = storable(arrays, metadata, dtypes)
    for name in every:
        size_bytes = len(name.encode("utf-8", "surrogatepass"))
        if _UNSAFE.search(name) or size_bytes > _MAX_FILE_NAME_BYTES:
            raise WeightsError(
                f"{quote(name)} cannot be a file name: choose .safetensors or .npz instead"
            )
    folded = sorted((name.casefold(), name) for name in every)
    for (fold, name), (next_fold, next_name) in itertools.pairwise(folded):
        if fold == next_fold:
            raise WeightsError(
                f"{listed((name, next_name))} differ only in case and would be one file on some "
                "disks: choose .safetensors or .npz instead"
            )
    return {f"{name}.npy": _writer(values) for name, values in every.items()}


def _writer(values: Array) -> Writer:
    def write(file: BinaryIO) -> None:
        write_npy(file, values)

    return write
