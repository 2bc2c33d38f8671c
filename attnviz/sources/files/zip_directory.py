"""The directory of a zip file, bounded before it is read: for .npz and .pt.

What lives here: how many members, of what size, once each. What does not: what a member holds.
Python's ``zipfile`` makes an object of every member first; this counts them before.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from attnviz.errors import WeightsError
from attnviz.sources.files.contract import (
    MAX_NAME_CHARS,
    MAX_TOTAL_BYTES,
    file_size_bytes,
    quote,
    unreadable,
)

_MAX_DIRECTORY_BYTES = 8 << 20
_MAX_RATIO = 100
_MAX_DENSE_BYTES = 64 << 20  # what members packed tighter than that may unpack to, together
_MAX_TAIL_BYTES = 66_000  # the end record and the longest comment after it
_END, _LOCATOR, _END_64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_FAULTS = (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, RuntimeError, KeyError)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip file for reading once its directory is known to be small.

    Raises
    ------
    WeightsError
        Empty, cut off, no zip file, too many members, or a name that stands there twice.
    """
    size_bytes = file_size_bytes(path)
    if size_bytes == 0:
        raise WeightsError(f"{path.name} is empty (0 bytes): wanted a weight file; save it again")
    directory_bytes = _directory_bytes(path, size_bytes)
    if directory_bytes > _MAX_DIRECTORY_BYTES:
        raise WeightsError(
            f"{path.name}: its directory has {directory_bytes} bytes: "
            f"at most {_MAX_DIRECTORY_BYTES} are read"
        )
    try:
        archive = zipfile.ZipFile(path)
    except _FAULTS as fault:
        raise WeightsError(
            f"{path.name} is no whole zip file ({str(fault)[:80]}): it is cut off or damaged; "
            "fetch it again"
        ) from fault
    except OSError as fault:
        raise unreadable(path, fault) from fault
    seen: set[str] = set()
    for member in archive.infolist():
        if member.filename in seen or len(member.filename) > MAX_NAME_CHARS:
            archive.close()
            reason = "stands in the file twice" if member.filename in seen else "is too long"
            raise WeightsError(f"{path.name}: the member {quote(member.filename)} {reason}")
        seen.add(member.filename)
    return archive


def _directory_bytes(path: Path, size_bytes: int) -> int:
    """Return the size of the directory as the end records give it, the largest where they differ.

    ``zipfile`` takes the 64-bit record from right before its locator or, in newer Pythons, from
    where the locator points: whatever stands at either place counts.
    """
    try:
        with open(path, "rb") as file:
            start = file.seek(max(0, size_bytes - _MAX_TAIL_BYTES))
            tail = file.read(_MAX_TAIL_BYTES)
            end = tail.rfind(_END)
            if end < 0 or len(tail) < end + 22:
                raise WeightsError(
                    f"{path.name} has no zip directory at its end: it is cut off or of another "
                    "format"
                )
            locator = tail[max(0, end - 20) : end]
            sizes = []
            if locator.startswith(_LOCATOR):
                for place in (start + end - 76, int.from_bytes(locator[8:16], "little")):
                    file.seek(min(max(0, place), size_bytes))
                    record = file.read(56)
                    if record.startswith(_END_64):
                        sizes.append(int.from_bytes(record[40:48], "little"))
    except OSError as fault:
        raise unreadable(path, fault) from fault
    plain = int.from_bytes(tail[end + 12 : end + 16], "little")
    return max(sizes) if sizes and plain == 0xFFFFFFFF else max(plain, *sizes, 0)


def check_unpacked(archive: zipfile.ZipFile, file: str) -> None:
    """Refuse members that would unpack to far more than the file: bombs.

    Raises
    ------
    WeightsError
        More than 8 GiB in all, or more than 64 MiB from members packed tighter than 1 : 100.
    """
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    tight = [m for m in members if m.file_size > _MAX_RATIO * max(m.compress_size, 1)]
    if total > MAX_TOTAL_BYTES or sum(m.file_size for m in tight) > _MAX_DENSE_BYTES:
        worst = max(members, key=lambda m: m.file_size)
        raise WeightsError(
            f"{file}: {quote(worst.filename)} unpacks from {worst.compress_size} to "
            f"{worst.file_size} bytes, {total} in all: refused as a zip bomb; "
            "save it uncompressed (numpy.savez)"
        )


def read_member(archive: zipfile.ZipFile, name: str, n_bytes: int, *, file: str) -> bytes:
    """Read the first bytes of a member; never more than the directory says it has."""
    try:
        with archive.open(name) as member:
            return member.read(n_bytes)
    except (*_FAULTS, OSError, zlib.error) as fault:
        raise WeightsError(
            f"{file}: {quote(name)} cannot be unpacked ({str(fault)[:80]}): the file is damaged"
        ) from fault
