"""Files of ``torch.save``: the pickle's opcodes, tensors that lie, other objects, the zip around.

Written without torch, opcode by opcode, so that the bytes do not depend on its version.
"""

from __future__ import annotations

import io
import pickle
import random
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.drawing import TEXTS, VALUES, change_bytes, change_number, often
from fuzz.kinds import Kind
from fuzz.kinds.arrays import WIDTHS, Array, draw_layer
from fuzz.kinds.layers import read_layer

_STORAGES = {"F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage",
             "BF16": "BFloat16Storage", "I64": "LongStorage", "I32": "IntStorage",
             "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage",
             "BOOL": "BoolStorage", "C64": "ComplexFloatStorage"}  # fmt: skip
_BY_WIDTH = {1: "ByteStorage", 2: "ShortStorage", 4: "IntStorage", 8: "LongStorage"}
_GLOBALS = (
    "os system", "builtins eval", "builtins exec", "posix system", "subprocess Popen", "nt system",
    "torch.nn.modules.linear Linear", "torch load", "torch.storage _load_from_bytes", "torch device",
    "collections OrderedDict", "torch Size", "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_parameter", "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_meta_tensor_no_storage", "torch._utils _rebuild_device_tensor_from_numpy",
    "torch._utils _rebuild_wrapper_subclass", "torch._tensor _rebuild_from_type_v2", "torch FloatStorage",
    "torch UntypedStorage", "torch float32", "torch QInt8Storage", "torch.serialization _get_layout",
    "numpy._core.multiarray _reconstruct", "builtins getattr", "__builtin__ set", "builtins bytearray",
    "_codecs encode", "torch.jit._pickle build_intlist", "torch Tensor", "torch.nested nested_tensor",
    "\x1b[2J x", "a.b c", " ",
)  # fmt: skip
_ODD_VALUES = tuple(v for v in VALUES if not (isinstance(v, str) and "\ud83d" in v))


class _Pickle:
    """Writes pickle opcodes, protocol 2."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.out.write(b"\x80\x02")

    def code(self, *parts: bytes) -> None:
        for part in parts:
            self.out.write(part)

    def name(self, module: str, name: str) -> None:
        self.code(b"c", module.encode(), b"\n", name.encode(), b"\n")

    def value(self, value: Any) -> None:
        """Write a plain value, as Python's own pickler would within one of protocol 2."""
        self.code(pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b""))

    def number(self, value: int) -> None:
        if -(1 << 31) <= value < 1 << 31:
            self.code(b"J", struct.pack("<i", value))
        else:
            raw = value.to_bytes(max(1, value.bit_length() // 8 + 1), "little", signed=True)
            self.code(b"\x8a", bytes([min(255, len(raw))]), raw[:255])

    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.code(b"X", struct.pack("<I", len(raw)), raw)

    def numbers(self, values: list[int]) -> None:
        self.code(b"(")
        for value in values:
            self.number(value)
        self.code(b"t")

    def tensor(self, spec: dict[str, Any]) -> None:
        """Write a call of the rebuilding function with a storage by reference."""
        self.name(*spec["build"])
        self.code(b"(", b"(")
        self.text("storage")
        self.name("torch", spec["storage"])
        self.text(spec["key"])
        self.text(spec["device"])
        self.number(spec["numel"])
        self.code(b"t", b"Q")
        self.number(spec["offset"])
        self.numbers(spec["shape"])
        self.numbers(spec["stride"])
        self.code(b"\x89")
        self.name("collections", "OrderedDict")
        self.code(b")", b"R", b"t", b"R")

    def call(self, name: str, argument: str) -> None:
        module, _, function = name.partition(" ")
        self.name(module, function)
        self.code(b"(")
        self.text(argument)
        self.code(b"t", b"R")


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a layer as ``torch.save`` would, with one or more lies in it."""
    arrays, metadata = draw_layer(draw)
    specs = [_spec(str(place), array) for place, array in enumerate(arrays)]
    for _ in often(draw) if draw.random() < 0.5 else ():
        if specs:
            _change_spec(draw.choice(specs), draw)
    out = _Pickle()
    depth = draw.choice((0, 0, 0, 0, 0, 1, 5, 14, 15, 16, 17, 500)) if draw.random() < 0.2 else 0
    for _ in range(depth):
        out.code(b"}", b"(")
        out.text("a")
    out.code(b"}", b"(")
    for array, spec in zip(arrays, specs):
        out.text(array.name)
        if draw.random() < 0.02:
            out.call(draw.choice(_GLOBALS), "touch pwned")
        elif draw.random() < 0.02:
            _odd_value(out, draw)
        else:
            out.tensor(spec)
    for name, value in metadata.items():
        out.text(name)
        out.text(value)
    if draw.random() < 0.2:
        out.text(draw.choice(TEXTS))
        _odd_value(out, draw)
    out.code(b"u" * (depth + 1), b".")
    data = out.out.getvalue()
    if draw.random() < 0.15:
        data = change_bytes(data, draw)
    storages = {spec["key"]: array.data for array, spec in zip(arrays, specs)}
    return {"a.pt": _zip(data, storages, draw)}


def _spec(key: str, array: Array) -> dict[str, Any]:
    stride, step = [], 1
    for n in reversed(array.shape):
        stride.insert(0, step)
        step *= max(n, 1)
    numel = 1
    for n in array.shape:
        numel *= n
    return {
        "build": ("torch._utils", "_rebuild_tensor_v2"), "key": key, "device": "cpu",
        "storage": _STORAGES.get(array.dtype, _BY_WIDTH[WIDTHS[array.dtype]]), "numel": numel, "offset": 0,
        "shape": list(array.shape), "stride": stride,
    }  # fmt: skip


def _change_spec(spec: dict[str, Any], draw: random.Random) -> None:
    field = draw.choice(("numel", "offset", "shape", "stride", "device", "storage", "key", "build"))
    if field in ("numel", "offset"):
        spec[field] = change_number(spec[field], draw)
    elif field in ("shape", "stride"):
        listed = spec[field]
        if draw.random() < 0.3:
            listed.append(draw.choice((0, 1, 1 << 34, -1)))
        elif listed:
            listed[draw.randrange(len(listed))] = draw.choice(
                (0, 1, 2, -1, 1 << 20, 1 << 34, 1 << 62)
            )
    elif field == "device":
        spec[field] = draw.choice(("cuda:0", "cuda", "meta", "mps", "xla", "", "cpu:7", "a\x1bb"))
    elif field == "storage":
        spec[field] = draw.choice((*_STORAGES.values(), "QInt8Storage", "UntypedStorage", "Tensor"))
    elif field == "key":
        spec[field] = draw.choice(("0", "1", "99", "../0", "", "data.pkl", "-1"))
    else:
        spec[field] = tuple(draw.choice(_GLOBALS[11:20]).split(" "))


def _odd_value(out: _Pickle, draw: random.Random) -> None:
    change = draw.random()
    if change < 0.5:
        out.value(draw.choice(_ODD_VALUES))
    elif change < 0.6:  # a list that holds itself ten times, thirty deep
        out.code(b"]")
        for _ in range(30):
            out.code(b"q\x05", b"]", b"(", b"h\x05" * 10, b"e")
    elif change < 0.7:
        out.code(b"(" * 2000, b"t" * 2000)
    elif change < 0.8:
        out.call(draw.choice(_GLOBALS), draw.choice(("id", "touch pwned", "1")))
    elif change < 0.9:
        out.code(b"\x8b", struct.pack("<i", draw.choice((-1, 1 << 30, (1 << 31) - 1))))
    else:
        out.code(b"r", struct.pack("<I", draw.choice((1 << 20, (1 << 32) - 1))), b"N")


def _zip(data: bytes, storages: Mapping[str, bytes], draw: random.Random) -> bytes:
    change = draw.random()
    kind = zipfile.ZIP_DEFLATED if change < 0.02 else zipfile.ZIP_STORED
    root = draw.choice(("a", "archive", "..", "")) if change > 0.95 else "a"
    members = [("data.pkl", data), ("byteorder", b"little"), ("version", b"3\n")]
    members += [
        (f"data/{key}".replace("\0", ""), raw) for key, raw in storages.items() if key != "data.pkl"
    ]
    if 0.02 < change < 0.06:
        members[1] = ("byteorder", draw.choice((b"big", b"", b"middle", b"\xff")))
    elif 0.06 < change < 0.1:
        members[2] = ("version", draw.choice((b"", b"9\n", b"-1", b"x", b"9" * 5000)))
    elif 0.1 < change < 0.14 and len(members) > 3:
        members.pop(draw.randrange(len(members)))
    elif 0.14 < change < 0.16:
        members.append(("code/a.py", b"1"))
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", kind) as archive:
        warnings.simplefilter("ignore")
        for name, raw in members:
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}"), raw, kind)
    made = file.getvalue()
    return change_bytes(made, draw) if 0.2 < change < 0.3 else made


def prepare(folder: Path) -> None:
    """Import torch once; from here on a fork stands for the child, but for every fiftieth."""
    from attnviz.sources.confined.parent import PT_TASK
    from attnviz.sources.files import pt
    from fuzz import forks

    forks.install(pt, PT_TASK, real=50)


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read it as every command with ``--weights`` does; nothing in it may have run."""
    found = read_layer(folder / "a.pt")
    assert not Path("pwned").exists()
    return found


KIND = Kind(make, read, prepare, room_bytes=2 << 30)
