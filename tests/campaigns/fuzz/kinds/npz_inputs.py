"""NumPy files, .npz and folders of .npy: array headers, the zip directory, names, plain damage."""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

from fuzz.drawing import TEXTS, change_bytes, change_number
from fuzz.kinds import Kind
from fuzz.kinds.arrays import Array, draw_layer
from fuzz.kinds.layers import read_layer

_DESCR = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "|i1", "U8": "|u1", "BOOL": "|b1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
          "C64": "<c8"}  # fmt: skip
_ODD_DESCR = (
    ">f4", "=f4", "|O", "O", "<V2", "|V4", "<U3", "|S4", "<M8[ns]", "<m8", "f4,f4", "<f16", "<c32",
    "<U999999999", "<U536870912", "|S0", "<U0", "", "x" * 100, "<f4'", "(2,)f4", "<i3", "?", "p",
    "a10", "<f4\\x00", "object", "<e",
)  # fmt: skip
_ODD_HEADERS = (
    b"", b"{", b"{}", b"[]", b"None", b"1", b"(" * 3000, b"-" * 5000 + b"1", b"not " * 200 + b"1",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'descr': 1}",
    b"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", b"{'shape': (2,)}",
    b"__import__('os').abort()", b"{**{}}", b"'\\x41'", b"9" * 5000, b"1e999", b"{1:2}" + b"\0" * 9,
    b"[[]]" * 10, b"1 if 1 else 2", b"lambda: 0", b"b'x'", b"{'descr': [('a', '<f4')], "
    b"'fortran_order': False, 'shape': ()}", b"1+1j", b"{1, 2}", "{'é': 1}".encode("latin-1"),
)  # fmt: skip


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a layer as .npz or as a folder, with something wrong in a header or in the frame."""
    arrays, metadata = draw_layer(draw)
    members = [(array.name, _npy(array, draw)) for array in arrays]
    for name, value in metadata.items():
        members.append((name, _text_npy(name, value, draw)))
    if draw.random() < 0.15:
        place = draw.randrange(len(members)) if members else None
        if place is not None:
            name, data = members[place]
            members[place] = (name, change_bytes(data, draw))
    if draw.random() < 0.2:
        return _folder(members)
    return {"a.npz": _zip(members, draw)}


def _folder(members: list[tuple[str, bytes]]) -> Mapping[str, bytes]:
    made = {f"arrays/{name}.npy": data for name, data in members if _is_plain(name)}
    return made or {"arrays/.npy": b"", "arrays/x": b""}


def _is_plain(name: str) -> bool:
    try:
        return (
            0 < len(name.encode()) < 200 and not set(name) & set("/\0\\") and name.strip(".") != ""
        )
    except UnicodeEncodeError:
        return False


def _npy(array: Array, draw: random.Random) -> bytes:
    descr = repr(_DESCR.get(array.dtype, "<f2"))
    shape = repr(tuple(array.shape))
    order, version = draw.choice(("False", "False", "True")), 1
    change = draw.random() * draw.choice((1, 1, 5))
    if change < 0.05:
        descr = repr(draw.choice(_ODD_DESCR))
    elif change < 0.1 and array.shape:
        place = draw.randrange(len(array.shape))
        wrong = list(array.shape)
        wrong[place] = change_number(wrong[place], draw)
        shape = repr(tuple(wrong))
    elif change < 0.13:
        shape = draw.choice(("()", "(2,)", "[2]", "2", "(-1,)", "(True,)", "(2.0,)", "None",
                             "(" + "1," * 100 + ")", "(1 << 40,)", "(4294967296,)", "'a'"))  # fmt: skip
    elif change < 0.15:
        order = draw.choice(("1", "None", "'C'", "[]"))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    if 0.15 < change < 0.18:
        text = draw.choice(_ODD_HEADERS)
    if 0.18 < change < 0.2:
        version = draw.choice((0, 2, 3, 4, 255))
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = len(text)
    if 0.2 < change < 0.23:
        size = draw.choice((0, 1, size - 1, size + 1, 10_000, 65_535))
    length = size.to_bytes(2 if version < 2 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + array.data


def _text_npy(name: str, value: str, draw: random.Random) -> bytes:
    """Write metadata as ``numpy.savez`` would have: a string, a number, or a list of strings."""
    words = [value]
    shape = "()"
    if name == "vocab" and draw.random() < 0.8:
        try:
            listed = json.loads(value)
            words = [str(word) for word in listed] if isinstance(listed, list) else words
            shape = f"({len(words)},)"
        except (ValueError, RecursionError):
            pass
    width = max([1, *(len(word) for word in words)])
    data = b"".join(word.ljust(width, "\0").encode("utf-32-le", "surrogatepass") for word in words)
    if draw.random() < 0.02:
        data = data[:-4] + struct.pack("<I", draw.choice((0xD800, 0x110000, 0xFFFFFFFF)))
    text = f"{{'descr': '<U{width}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\0" + (len(text) & 0xFFFF).to_bytes(2, "little") + text + data


def _zip(members: list[tuple[str, bytes]], draw: random.Random) -> bytes:
    deflate = draw.random() < 0.3
    kind = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    change = draw.random()
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", kind) as archive:
        warnings.simplefilter("ignore")  # names twice are meant
        for name, data in members:
            shown = f"{name}.npy"
            if change < 0.03:
                shown = draw.choice((f"{draw.choice(TEXTS)}.npy", name, f"../{name}.npy", ".npy"))
            safe = shown.encode("utf-8", "replace").decode().replace("\0", "_")[:60_000]
            archive.writestr(zipfile.ZipInfo(safe), data, kind)
        if 0.03 < change < 0.05 and members:
            archive.writestr(zipfile.ZipInfo(f"{members[0][0]}.npy".replace("\0", "_")
                                             .encode("utf-8", "replace").decode()), b"", kind)  # fmt: skip
    made = bytearray(file.getvalue())
    if 0.05 < change < 0.2:
        _change_directory(made, draw)
    elif 0.2 < change < 0.3:
        return change_bytes(bytes(made), draw)
    return bytes(made)


# offsets of fields in a directory entry (PK 1 2), a local header (PK 3 4), the end (PK 5 6)
_FIELDS = {
    b"PK\x01\x02": ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)),
    b"PK\x03\x04": ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x05\x06": ((4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}


def _change_directory(made: bytearray, draw: random.Random) -> None:
    """Change a field of the zip's own structures in place: sizes, offsets, methods, flags."""
    for _ in range(draw.choice((1, 1, 2))):
        mark = draw.choice(tuple(_FIELDS))
        places = [at for at in range(len(made) - 3) if made[at : at + 4] == mark]
        if not places:
            return
        at = draw.choice(places)
        offset, width = draw.choice(_FIELDS[mark])
        old = int.from_bytes(made[at + offset : at + offset + width], "little")
        new = draw.choice((change_number(old, draw), 8, 12, 14, 93, 99, 0xFFFFFFFF))
        raw = (new & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        made[at + offset : at + offset + width] = raw


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read it as every command with ``--weights`` does."""
    return read_layer(folder / ("a.npz" if "a.npz" in files else "arrays"))


KIND = Kind(make, read)
