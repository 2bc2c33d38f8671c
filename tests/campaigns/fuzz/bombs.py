"""Small files that claim, or unpack to, far more than they hold: the ones known by name.

Each is written without the library it is aimed at, in a few milliseconds; no bomb goes off here.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.kinds.gguf_inputs import _text
from fuzz.kinds.pt_inputs import _Pickle, _spec, _zip
from fuzz.kinds.tokenizer_inputs import SOUND

_CHUNK_BYTES = 16 << 20


def deflated_zeros(head: bytes, n_chunks: int) -> tuple[bytes, int]:
    """Deflate ``head`` and then 16 MiB of zeros ``n_chunks`` times; return it and its true size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    one = packer.compress(bytes(_CHUNK_BYTES)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + one * n_chunks + b"\x03\x00", len(head) + n_chunks * _CHUNK_BYTES


def zip_of(*members: tuple[str, int, bytes, int]) -> bytes:
    """Return a zip file of ready members: name, method (0 or 8), packed bytes, unpacked size."""
    made, directory = b"", b""
    for name, method, packed, size in members:
        crc = 0 if method else zlib.crc32(packed)
        fields = struct.pack(
            "<HHHHHIIIHH", 20, 0, method, 0, 0x21, crc, len(packed), size, len(name), 0
        )
        place = struct.pack("<HHHII", 0, 0, 0, 0, len(made))
        directory += b"PK\x01\x02\x14\0" + fields + place + name.encode()
        made += b"PK\x03\x04" + fields + name.encode() + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(made), 0)
    return made + directory + b"PK\x05\x06" + end


def npy(shape: str, *, descr: str = "<f4", data: bytes = b"") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + data


def pt_deflated(path: Path) -> None:
    """2 MB that unpack to 2 GB."""
    packed, size = deflated_zeros(b"", 127)
    path.write_bytes(zip_of(("a/data.pkl", 0, b"\x80\x02}.", 4), ("a/data/0", 8, packed, size)))


def _pt(path: Path, write: Callable[[_Pickle], None]) -> None:
    import random

    out = _Pickle()
    out.code(b"}", b"(")
    out.text("w_q")
    write(out)
    out.code(b"u.")
    draw = random.Random(0)
    draw.random = lambda: 0.5  # type: ignore[method-assign]  # nothing is to go wrong with the zip
    path.write_bytes(_zip(out.out.getvalue(), {"0": bytes(4)}, draw))


def pt_expanded(path: Path) -> None:
    """1.5 kB that claim 2^34 numbers, all the same one."""
    from fuzz.kinds.arrays import Array

    spec = {**_spec("0", Array("w_q", "F32", [1], b"")), "shape": [1 << 34], "stride": [0]}
    _pt(path, lambda out: out.tensor(spec))


def pt_laughs(path: Path) -> None:
    """Lists in lists that share their parts: 10^30 values in 1 kB."""

    def write(out: _Pickle) -> None:
        value = b"]"
        for i in range(30):  # a list that holds the one before ten times
            value = b"](" + value + b"q" + bytes([i]) + (b"h" + bytes([i])) * 9 + b"e"
        out.code(value)

    _pt(path, write)


def npz_deflated(path: Path) -> None:
    """2 MB that unpack to 2 GB."""
    packed, size = deflated_zeros(npy(f"({127 * _CHUNK_BYTES // 4},)"), 127)
    path.write_bytes(zip_of(("w_q.npy", 8, packed, size)))


def npz_huge(path: Path) -> None:
    """80 bytes that claim 32 GiB."""
    data = npy("(4294967296,)", descr="<f8")
    path.write_bytes(zip_of(("w_q.npy", 0, data, len(data))))


def npy_huge(path: Path) -> None:
    """The same as a folder of .npy files."""
    path.mkdir()
    (path / "w_q.npy").write_bytes(npy("(4294967296,)", descr="<f8"))


def safetensors_header(path: Path) -> None:
    """100 MB of header: one long name."""
    text = b'{"' + b"a" * 99_000_000 + b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def safetensors_claim(path: Path) -> None:
    """A header of 2^62 bytes."""
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def safetensors_many(path: Path) -> None:
    """A million empty tensors."""
    one = '"%06d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    text = ("{" + ",".join(one % i for i in range(1_000_000)) + "}").encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def gguf_list(path: Path) -> None:
    """51 bytes that claim a list of 2^33 values."""
    value = struct.pack("<IIQ", 9, 0, 1 << 33)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _text("abc") + value)


def gguf_nested(path: Path) -> None:
    """Lists in lists, 50,000 deep."""
    value = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50_000 + struct.pack("<IQ", 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _text("abc") + value)


def _tokenizer(**parts: Any) -> bytes:
    return json.dumps({**SOUND[0], **parts}).encode()


TOKENIZERS: dict[str, bytes] = {
    # pads every text to 2^31 tokens: 48 GiB, and the process is aborted
    "padding": _tokenizer(padding={
        "strategy": {"Fixed": 1 << 31}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
    # an a becomes ten, thirty times over
    "growth": _tokenizer(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 30}),
    # twenty thousand steps before every text
    "time": _tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}] * 20_000}),
    # a panic of the library, which is no Exception
    "panic": _tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "A" * 4000}),
}  # fmt: skip
