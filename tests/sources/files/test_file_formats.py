"""Array files: every type, order and format reads back; what lies about its size is refused."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from attnviz.errors import InputError, UsageError, WeightsError
from attnviz.runs.store import write_atomic, write_folder_atomic
from attnviz.sources.files import open_arrays, plan_content
from attnviz.sources.files.dtypes import widen

ENDINGS = (".safetensors", ".npz", "")
DTYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
ORDERS: dict[str, Callable[[Any], Any]] = {
    "C": lambda a: np.array(a, order="C"),
    "F": lambda a: np.array(a, order="F"),
    "T": lambda a: np.array(a.T, order="C").T,
    "step": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "back": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1] if a.ndim else a,
}


def save(path: Path, arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    content = plan_content(path, arrays, metadata or {})
    if content.is_folder:
        return write_folder_atomic(path, content.writers, force=True)
    return write_atomic(path, content.writers[""], force=True)


def safetensors_bytes(header: Any, data: bytes = b"", *, n_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if n_bytes is None else n_bytes).to_bytes(8, "little") + text + data


def npy_bytes(shape: tuple[int, ...] | str, descr: Any = "<f8", data: bytes = b"") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    dtype=st.sampled_from(DTYPES),
    big=st.booleans(),
    order=st.sampled_from(sorted(ORDERS)),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    endings=st.tuples(st.sampled_from(ENDINGS), st.sampled_from(ENDINGS)),
    seed=st.integers(0, 1 << 30),
)
def test_W1_W5_every_type_order_and_format_reads_back(
    tmp_path: Path, dtype: str, big: bool, order: str, shape: tuple[int, ...],
    endings: tuple[str, str], seed: int,
) -> None:  # fmt: skip
    bits = np.random.default_rng(seed).integers(0, 2, shape, np.int64)
    plain = (bits * (1 if dtype == "?" else 100)).astype(dtype)
    lain = ORDERS[order](plain.astype(np.dtype(dtype).newbyteorder(">" if big else "<")))
    first = open_arrays(save(tmp_path / f"a{endings[0]}", {"w": lain}))
    second = open_arrays(save(tmp_path / f"b{endings[1]}", {"w": first.stored("w")[0]}))
    for file in (first, second):
        assert file.entries["w"].shape == plain.shape
        assert file.read("w").dtype == np.dtype(dtype)
        np.testing.assert_array_equal(file.read("w"), plain)


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    w = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    path = save(tmp_path / "a.safetensors", {"w": w, "t": w.T}, {"origin": "é\x1b"})
    with safe_open(path, "np") as file:
        np.testing.assert_array_equal(file.get_tensor("w"), w)
        np.testing.assert_array_equal(file.get_tensor("t"), w.T)
        assert file.metadata() == {"origin": "é\x1b"}
    np.testing.assert_array_equal(np.load(save(tmp_path / "a.npz", {"w": w}))["w"], w)


METADATA = {"n_heads": "8", "n_kv_heads": "2", "scale": "0.125", "causal": "true", "origin": "x",
            "vocab": json.dumps(["a", "bär", "", "\U0001f9f8"]), "note": "free text"}  # fmt: skip


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
@pytest.mark.parametrize("vocab", [METADATA["vocab"], json.dumps(["a\0", "b"]), "no json"])
def test_metadata_survives_every_conversion(
    tmp_path: Path, first: str, second: str, vocab: str
) -> None:
    told = {**METADATA, "vocab": vocab}
    one = open_arrays(save(tmp_path / f"a{first}", {"w": np.ones(2)}, told))
    two = open_arrays(save(tmp_path / f"b{second}", {"w": one.read("w")}, dict(one.metadata)))
    assert dict(one.metadata) == dict(two.metadata) == told
    assert set(two.entries) == {"w"}


def test_the_same_arrays_give_the_same_bytes(tmp_path: Path) -> None:
    for ending in (".safetensors", ".npz"):
        many = {f"w{i}": np.full((2, i), i / 3) for i in range(9)}
        a = save(tmp_path / f"a{ending}", many, METADATA).read_bytes()
        turned = dict(reversed(many.items())), dict(reversed(METADATA.items()))
        assert save(tmp_path / f"b{ending}", *turned).read_bytes() == a


def test_8_bit_floats_and_bfloat16_equal_torch_in_every_bit_pattern() -> None:
    torch = pytest.importorskip("torch")
    byte, word = np.arange(256, dtype=np.uint8), np.arange(1 << 16, dtype=np.uint16)
    kinds = (("F8_E4M3", byte, torch.float8_e4m3fn), ("F8_E5M2", byte, torch.float8_e5m2),
             ("BF16", word, torch.bfloat16))  # fmt: skip
    for name, bits, kind in kinds:
        expected = torch.from_numpy(bits.copy()).view(kind).float().numpy()
        np.testing.assert_array_equal(widen(bits, name), expected)


def test_one_row_of_a_large_table_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    n_rows, size_bytes = 1 << 20, 1 << 32
    header = {
        "embedding": {"dtype": "BF16", "shape": [n_rows, 2048], "data_offsets": [0, size_bytes]}
    }
    path.write_bytes(safetensors_bytes(header))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size_bytes)  # a sparse file: 4 GiB without disk
        file.seek(-4096, io.SEEK_END)
        file.write(b"\x80\x3f" * 2048)
    rows = open_arrays(path).rows("embedding")
    assert rows.shape == (n_rows, 2048)
    np.testing.assert_array_equal(rows[[n_rows - 1]], np.ones((1, 2048)))


T = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "seven bytes": (bytes(7), "at least 8"),
    "header longer than the file": (safetensors_bytes({}, n_bytes=99), "cut off"),
    "header of 2^62 bytes": (safetensors_bytes({}, n_bytes=1 << 62), "at most 100000000"),
    "no brace": (safetensors_bytes(b"[1]"), "wanted b'{'"),
    "no JSON": (safetensors_bytes(b"{oops}"), "not JSON"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "not JSON"),
    "nested": (safetensors_bytes(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "many brackets": (safetensors_bytes(b'{"a":' + b"[" * 500_000), "more than 200000"),
    "same name twice": (safetensors_bytes(
        b'{"w":%s,"w":%s}' % ((json.dumps(T).encode(),) * 2), bytes(8)), "w stands in the file twice"),
    "same key twice": (safetensors_bytes(b'{"w":{"dtype":"F32","dtype":"F32"}}'), "dtype stands"),
    "long name": (safetensors_bytes({"w" * 1025: T}, bytes(8)), "1025 characters"),
    "too little data": (safetensors_bytes({"w": T}, bytes(7)), "cut off"),
    "too much data": (safetensors_bytes({"w": T}, bytes(9)), "the rest is unknown"),
    "hole": (safetensors_bytes({"w": T | {"data_offsets": [8, 16]}}, bytes(16)), "hole"),
    "overlap": (safetensors_bytes({"w": T, "v": T}, bytes(8)), "overlaps"),
    "backwards": (safetensors_bytes({"w": T | {"data_offsets": [8, 0]}}, bytes(8)), "begin, end"),
    "size of another shape": (safetensors_bytes({"w": T | {"shape": [3]}}, bytes(8)), "takes 12"),
    "2^104 numbers": (safetensors_bytes({"w": T | {"shape": [1 << 52, 1 << 52]}}, bytes(8)), "takes"),
    "negative": (safetensors_bytes({"w": T | {"shape": [-2]}}, bytes(8)), "shape [-2]"),
    "fraction": (safetensors_bytes({"w": T | {"shape": [2.0]}}, bytes(8)), "shape [2.0]"),
    "boolean": (safetensors_bytes({"w": T | {"shape": [True, 2]}}, bytes(8)), "shape"),
    "huge number": (safetensors_bytes(b'{"w":{"shape":[%s]}}' % (b"9" * 5000)), "not JSON"),
    "100 axes": (safetensors_bytes({"w": T | {"shape": [1] * 100}}, bytes(8)), "at most 32"),
    "unknown type": (safetensors_bytes({"w": T | {"dtype": "F99"}}, bytes(8)), "'F99'"),
    "type is a list": (safetensors_bytes({"w": T | {"dtype": [1]}}, bytes(8)), "dtype"),
    "no tensor": (safetensors_bytes({"w": 1}), "lacks dtype"),
    "metadata of numbers": (safetensors_bytes({"__metadata__": {"a": 1}}), "map of strings"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_damaged_safetensors_are_refused(tmp_path: Path, name: str) -> None:
    data, reason = BAD_SAFETENSORS[name]
    refused(tmp_path / "bad.safetensors", data, reason)


def refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    with pytest.raises(WeightsError) as caught:
        open_arrays(path)
    text = str(caught.value)
    assert reason in text
    assert "\n" not in text
    assert len(text) < 400


def zip_bytes(*members: tuple[str, bytes], deflate: bool = False) -> bytes:
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, kind)
    return file.getvalue()


def doubled() -> bytes:
    return zip_bytes(("w.npy", b"1"), ("v.npy", b"2")).replace(b"v.npy", b"w.npy")


GOOD = npy_bytes((2,), data=bytes(16))
BAD_NPZ: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "noise": (bytes(range(256)) * 9, "no zip directory"),
    "cut off": (zip_bytes(("w.npy", GOOD))[:-30], "no zip directory"),
    "same member twice": (doubled(), "w.npy stands in the file twice"),
    "not an array": (zip_bytes(("w.npy", b"hello")), "wanted a .npy"),
    "no bytes": (zip_bytes(("w.npy", b"")), "w is empty"),
    "32 GiB in 80 bytes": (zip_bytes(("w.npy", npy_bytes((1 << 32,)))), "is cut off"),
    "2^106 numbers": (zip_bytes(("w.npy", npy_bytes((1 << 52, 1 << 52)))), "is cut off"),
    "bytes left over": (zip_bytes(("w.npy", GOOD + b"x")), "bytes left over"),
    "objects": (zip_bytes(("w.npy", npy_bytes((1,), "|O"))), "w is an object array"),
    "structs": (zip_bytes(("w.npy", npy_bytes((1,), [("a", "<f4")]))), "wanted numbers or strings"),
    "structs of objects": (zip_bytes(("w.npy", npy_bytes((1,), [("a", "|O")]))), "object array"),
    "nameless bfloat16": (zip_bytes(("w.npy", npy_bytes((1,), "<V2", bytes(2)))), "bfloat16"),
    "unknown type": (zip_bytes(("w.npy", npy_bytes((1,), "<f1"))), "damaged .npy header"),
    "negative": (zip_bytes(("w.npy", npy_bytes((-1,)))), "shape (-1,)"),
    "code in the header": (zip_bytes(("w.npy", npy_bytes("__import__('os').getpid()"))), "damaged"),
    "nested header": (zip_bytes(("w.npy", npy_bytes("(" * 4000))), "damaged"),
    "escapes": (zip_bytes(("w.npy", npy_bytes("'\\q'"))), "damaged"),
    "long header": (zip_bytes(("w.npy", npy_bytes("1" * 20_000))), "at most 10000"),
    "version 9": (zip_bytes(("w.npy", GOOD.replace(b"Y\x01", b"Y\x09"))), "version 9"),
    "wrong checksum": (zip_bytes(("n_heads.npy", npy_bytes((), "<i8", b"\x08" + bytes(7))))
                       .replace(b"\x08" + bytes(7), b"\x09" + bytes(7), 1), "cannot be unpacked"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NPZ)
def test_damaged_npz_are_refused(tmp_path: Path, name: str) -> None:
    data, reason = BAD_NPZ[name]
    refused(tmp_path / "bad.npz", data, reason)


def test_a_changed_byte_of_a_small_array_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", {"w": np.full(4, 3.0)})
    data = path.read_bytes()
    path.write_bytes(data.replace(np.full(4, 3.0).tobytes(), np.full(4, 5.0).tobytes()))
    with pytest.raises(WeightsError, match=r"w\.npy cannot be unpacked"):
        open_arrays(path).read("w")


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
def test_honest_arrays_that_pack_well_are_read(tmp_path: Path, compress: Any) -> None:
    compress(tmp_path / "a.npz", w=np.zeros((1000, 1000)), b=np.zeros(768, np.float32))
    file = open_arrays(tmp_path / "a.npz")
    assert file.read("w").shape == (1000, 1000)
    assert not file.read("b").any()


def test_sizes_in_the_directory_that_only_add_up_to_a_bomb(tmp_path: Path) -> None:
    zeros = npy_bytes((1 << 22,), "|i1", bytes(1 << 22))
    many = zip_bytes(*((f"w{i}.npy", zeros) for i in range(20)), deflate=True)
    refused(tmp_path / "bad.npz", many, "zip bomb")


def test_a_directory_that_claims_too_much_is_not_read(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(("w.npy", GOOD)))
    data[-10:-6] = (1 << 30).to_bytes(4, "little")
    refused(tmp_path / "bad.npz", bytes(data), "its directory has 1073741824 bytes")


def test_names_that_are_no_file_names(tmp_path: Path) -> None:
    one = np.ones(1)
    for name in ("../w", "/w", "a/b", ".w", "-w", "", "a" * 300, "a\nb", "a:b", "w."):
        with pytest.raises(WeightsError, match="cannot be a file name"):
            plan_content(tmp_path / "folder", {name: one}, {})
    with pytest.raises(WeightsError, match="differ only in case"):
        plan_content(tmp_path / "folder", {"w_q": one, "W_Q": one}, {})
    for name in ("../w", "/w", "a/../b", "a\\..\\b", ""):
        with pytest.raises(WeightsError, match="no safe name"):
            plan_content(tmp_path / "a.npz", {name: one}, {})
    with pytest.raises(WeightsError, match="one name"):
        plan_content(tmp_path / "a.npz", {"n_heads": one}, {"n_heads": "1"})
    with pytest.raises(UsageError, match=r"\.safetensors, \.npz"):
        plan_content(tmp_path / "a.pt", {"w": one}, {})
    with pytest.raises(WeightsError, match="complex128"):
        plan_content(tmp_path / "a.safetensors", {"w": one.astype(complex)}, {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.npz", "No such file"),
        ("missing", "does not exist"),
        ("w_q.npy", "single array"),
        ("model.gguf", "wanted .safetensors"),
        ("notes.txt", "wanted .safetensors"),
        ("empty", "without .npy files"),
        ("pipe.npz", "not a regular file"),
        ("nul\0.npz", "cannot read"),
        ("x" * 300 + ".npz", "cannot read"),
    ],
)
def test_paths_that_are_no_weight_files(tmp_path: Path, name: str, reason: str) -> None:
    import os

    for file in ("w_q.npy", "model.gguf", "notes.txt"):
        (tmp_path / file).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(InputError) as caught:
        open_arrays(tmp_path / name)
    assert reason in str(caught.value)
