"""The bounds of .npy, .npz and folders: what stands exactly at one is read, one more is refused."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_file_bounds import fault_of, open_bytes
from test_file_formats import npy_bytes, save, zip_bytes

from attnviz.errors import InputError, WeightsError
from attnviz.npz import write_npy
from attnviz.sources.files import npy, npy_folder, npz, open_arrays, plan_content
from attnviz.sources.files import zip_directory as directory

# --- .npy ---------------------------------------------------------------------------------------


def header_of(data: bytes, size_bytes: int | None = None) -> Any:
    return npy.read_header(
        data, len(data) if size_bytes is None else size_bytes, file="f", name="w"
    )


def padded(n_bytes: int, *, version: int = 2) -> bytes:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }".ljust(n_bytes)
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text


def test_npy_headers_at_their_bounds() -> None:
    for version in (1, 2, 3):
        found = header_of(padded(10_000, version=version))
        assert (found.shape, found.start) == ((0,), 10_000 + (10 if version == 1 else 12))
    assert "at most 10000" in fault_of(lambda: header_of(padded(10_001)))
    for version in (0, 4):
        assert f"version {version}" in fault_of(lambda v=version: header_of(padded(99, version=v)))  # type: ignore[misc]
    assert "is empty" in fault_of(lambda: header_of(b""))
    assert "wanted a .npy" in fault_of(lambda: header_of(b"\x93NUMPY\x01\x00\x00"))
    assert "damaged .npy header" in fault_of(lambda: header_of(b"\x93NUMPY\x01\x00\x00\x00"))
    assert "within its header" in fault_of(lambda: header_of(padded(60)[:-1]))


def test_npy_shapes_at_their_bounds() -> None:
    assert header_of(npy_bytes((0, (1 << 53) - 1))).size_bytes == 0
    assert "each 0 or more" in fault_of(lambda: header_of(npy_bytes((0, 1 << 53))))
    assert len(header_of(npy_bytes((0,) * 32)).shape) == 32
    assert "at most 32" in fault_of(lambda: header_of(npy_bytes((0,) * 33)))
    assert "wanted at most" in fault_of(lambda: header_of(npy_bytes("(True,)", data=bytes(8))))
    for shape in ("[2]", "(2.0,)", "None"):
        assert "damaged .npy" in fault_of(lambda s=shape: header_of(npy_bytes(s, data=bytes(16))))  # type: ignore[misc]
    assert "damaged .npy" in fault_of(
        lambda: header_of(npy_bytes((0,)).replace(b"False", b"00000"))
    )
    assert "is cut off" in fault_of(lambda: header_of(npy_bytes((2,), data=bytes(15))))
    assert "bytes left over" in fault_of(lambda: header_of(npy_bytes((2,), data=bytes(17))))
    assert header_of(npy_bytes((2,), data=bytes(16))).size_bytes == 16


@pytest.mark.parametrize(
    "descr", ["<f2", "|b1", "=i4", ">c16", "U3", "<U0", "|S5", "f8", "?8", "<M8[s]", "|V4"]
)
def test_npy_types_that_are_read_and_that_are_not(descr: str) -> None:
    data = npy_bytes((1,), descr, bytes(np.dtype(descr).itemsize if descr != "?8" else 0))
    if descr == "?8":
        assert "damaged .npy header" in fault_of(lambda: header_of(data))
    elif descr in ("<M8[s]", "|V4"):
        assert "wanted numbers or strings" in fault_of(lambda: header_of(data))
    else:
        assert header_of(data).dtype == np.dtype(descr)


def test_headers_of_python_2_are_read_and_nothing_warns() -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2L,), }"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert header_of(head + bytes(16)).shape == (2,)
        escape = head.replace(b"'<f8'", b"'\\d' ")
        assert "damaged .npy header" in fault_of(lambda: header_of(escape + bytes(16)))


def test_records_are_refused_whatever_is_in_them() -> None:
    for kind in (np.dtype([("a", "<f4"), ("b", "O")]), np.dtype([("a", "u1", (2,))])):
        file = io.BytesIO()
        np.lib.format.write_array(file, np.zeros(1, kind))
        said = fault_of(lambda file=file: header_of(file.getvalue()))  # type: ignore[misc]
        assert ("object array" if kind.hasobject else "wanted numbers or strings") in said


def test_empty_strings_have_no_bytes_to_view() -> None:
    found = header_of(npy_bytes((0,), "<U0"))
    assert found.view(np.zeros(0, np.uint8)).shape == (0,)
    turned = npy.NpyHeader(np.dtype("u1"), (2, 3), True, 0).view(np.arange(6, dtype=np.uint8))
    assert turned.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_raw_types_of_other_widths_are_not_taken_for_bfloat16() -> None:
    assert "bfloat16" in fault_of(lambda: header_of(npy_bytes((1,), "|V2", bytes(2))))
    assert "bfloat16" not in fault_of(lambda: header_of(npy_bytes((1,), "|V4", bytes(4))))


def test_what_counts_as_metadata() -> None:
    def header(descr: str, shape: tuple[int, ...]) -> npy.NpyHeader:
        return npy.NpyHeader(np.dtype(descr), shape, False, 0)

    assert npy.is_metadata("w_q", header("U3", (2,)))
    assert npy.is_metadata("w_q", header("S3", ()))
    assert npy.is_metadata("n_heads", header("i8", ()))
    assert not npy.is_metadata("n_heads", header("i8", (1,)))
    assert not npy.is_metadata("w_q", header("i8", ()))


def test_metadata_is_text_or_json_within_64_mib() -> None:
    def text(values: Any) -> str:
        return npy.metadata_text(np.asarray(values), file="f", name="m")

    assert (text("x"), text(3), text(0.5), text(True)) == ("x", "3", "0.5", "true")
    assert text(np.array([b"a", "é".encode()])) == '["a", "\\u00e9"]'
    assert text(b"caf") == "caf"
    assert "not UTF-8" in fault_of(lambda: text(b"\xff"))
    for code in (0x110000, 0x7FFFFFFF, 0xFFFFFFFF):
        beyond = np.array([code], "<u4").view("<U1")
        assert "no valid characters" in fault_of(lambda beyond=beyond: text(beyond))  # type: ignore[misc]
    assert text(np.zeros((), f"U{16 << 20}")) == ""
    large = np.broadcast_to(np.array("x"), ((16 << 20) + 1,))
    assert "at most 67108864" in fault_of(lambda: text(large))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("n_heads", "8", "i"), ("n_heads", "123456789", "i"), ("n_heads", "1234567890", "U"), ("n_heads", "0", "U"),
     ("n_kv_heads", "2", "i"), ("n_kv_heads", "2.0", "U"), ("causal", "true", "b"), ("causal", "false", "b"),
     ("causal", "True", "U"), ("scale", "0.125", "f"), ("scale", "1", "U"), ("scale", "x", "U"),
     ("origin", "8", "U"), ("origin", '["a", "b"]', "U"), ("vocab", '["a", "b"]', "U"), ("vocab", '["a","b"]', "U"), ("vocab", "[]", "U"),
     ("vocab", '["a", 1]', "U"), ("vocab", '{"a": 1}', "U"), ("vocab", '["a\\u0000"]', "U"), ("vocab", "[" * 99999, "U")],
)  # fmt: skip
def test_metadata_reads_back_as_it_was(name: str, value: str, kind: str) -> None:
    array = npy.metadata_array(name, value)
    assert array.dtype.kind == kind
    assert npy.metadata_text(array, file="f", name=name) == value
    assert array.shape == ((2,) if (name, value) == ("vocab", '["a", "b"]') else ())
    if name == "causal" and kind == "b":
        assert bool(array) is (value == "true")


def test_metadata_that_npz_cannot_hold_is_refused() -> None:
    assert "ends in NUL" in fault_of(lambda: npy.metadata_array("origin", "a\0"))
    assert "one name" in fault_of(lambda: npy.storable({"a": np.ones(1)}, {"a": "x"}, {}))
    both = {"b": np.ones(1), "a": np.ones(1), "c": np.ones(1)}
    assert fault_of(lambda: npy.storable(both, {"c": "x", "b": "x", "a": "x"}, {})).startswith(
        "a, b, c: a tensor"
    )
    assert list(npy.storable({"b": np.ones(1)}, {"a": "x"}, {})) == ["a", "b"]
    wide = npy.storable({"w": np.array([0x3F80], "u2")}, {}, {"w": "BF16"})
    assert wide["w"].tolist() == [1.0]


# --- .npz and zip -------------------------------------------------------------------------------


def test_a_member_of_one_mebibyte_is_checked_and_a_larger_one_mapped(tmp_path: Path) -> None:
    for extra, is_mapped in ((0, False), (1, True)):
        head = len(npy_bytes((1_000_000,), "|i1"))
        data = npy_bytes(((1 << 20) - head + extra,), "|i1")
        data += bytes((1 << 20) - len(data) + extra)
        archive = bytearray(zip_bytes(("v.npy", npy_bytes((0,))), ("w.npy", data)))
        archive[archive.index(data[:40]) + len(data) - 1] = 7
        file = open_bytes(tmp_path, bytes(archive), ".npz")
        if is_mapped:
            assert file.read("w")[-1] == 7
        else:
            assert "cannot be unpacked" in fault_of(lambda file=file: file.read("w"))  # type: ignore[misc]


def test_mapped_members_begin_after_their_own_local_header(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.float64)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("another.npy", npy_bytes((3,), data=bytes(24)))
        member = zipfile.ZipInfo("w.npy")
        member.extra = b"\x99\x99\x10\x01" + bytes(272)  # an unknown field
        part = io.BytesIO()
        np.save(part, values)
        archive.writestr(member, part.getvalue())
    np.testing.assert_array_equal(open_bytes(tmp_path, file.getvalue(), ".npz").read("w"), values)


def test_a_file_that_is_cut_off_after_it_was_opened(tmp_path: Path) -> None:
    file = open_bytes(
        tmp_path, zip_bytes(("w.npy", npy_bytes((1 << 18,), data=bytes(8 << 18)))), ".npz"
    )
    with (tmp_path / "a.npz").open("r+b") as opened:
        opened.truncate(1 << 20)
    assert "no zip directory" in fault_of(lambda: file.read("w"))


def test_a_member_that_ends_before_the_size_it_claims(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(("w.npy", npy_bytes((3,), data=bytes(16)))))
    place = data.index(b"PK\x01\x02") + 24
    size_bytes = int.from_bytes(data[place : place + 4], "little")
    data[place : place + 4] = (size_bytes + 8).to_bytes(4, "little")
    file = open_bytes(tmp_path, bytes(data), ".npz")
    assert f"w.npy gives {size_bytes} bytes, wanted {size_bytes + 8}" in fault_of(
        lambda: file.read("w")
    )


def test_packed_members_are_unpacked_however_large(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {"w": np.full((160_000,), 0.5), "r": draw.random(300_000)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    file = open_arrays(tmp_path / "a.npz")
    for name, values in arrays.items():
        np.testing.assert_array_equal(file.read(name), values)


def test_headers_in_a_zip_may_be_as_long_as_their_bound(tmp_path: Path) -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }".ljust(10_000)
    longest = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    data = zip_bytes(("w.npy", longest + np.array([0.5]).tobytes()))
    assert open_bytes(tmp_path, data, ".npz").read("w").tolist() == [0.5]


def test_files_beside_the_arrays_are_left_alone(tmp_path: Path) -> None:
    data = zip_bytes(("readme.txt", b"hello"), ("w.npy", npy_bytes((1,), data=bytes(8))))
    assert list(open_bytes(tmp_path, data, ".npz").entries) == ["w"]


def test_no_more_arrays_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zip_bytes(*((f"w{n}.npy", npy_bytes((0,))) for n in range(3)))
    monkeypatch.setattr(npz, "MAX_ARRAYS", 3)
    assert len(open_bytes(tmp_path, data, ".npz").entries) == 3
    monkeypatch.setattr(npz, "MAX_ARRAYS", 2)
    assert "more than 2 arrays" in fault_of(lambda: open_bytes(tmp_path, data, ".npz"))


def test_written_members_have_a_fixed_date_and_plain_rights(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", {"w": np.ones(2), "a\\b": np.ones(1)})
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            assert member.date_time == (1980, 1, 1, 0, 0, 0)
            assert member.external_attr == 0o644 << 16
            assert member.compress_type == zipfile.ZIP_STORED
    for name in ("\\w", "a\0b", "..", "a/.."):
        with pytest.raises(WeightsError, match="no safe name"):
            plan_content("a.npz", {name: np.ones(1)}, {})
    with pytest.raises(WeightsError, match="half a character"):
        plan_content("a.npz", {"\ud800": np.ones(1)}, {})


def members(*sizes: tuple[int, int]) -> Any:
    found = [SimpleNamespace(filename=f"w{n}", file_size=size, compress_size=packed)
             for n, (size, packed) in enumerate(sizes)]  # fmt: skip
    return SimpleNamespace(infolist=lambda: found)


def test_what_unpacks_too_far_is_a_bomb_from_the_first_byte_too_many() -> None:
    mib, gib = 1 << 20, 1 << 30
    for fits in (
        members((8 * gib, 8 * gib)),
        members((64 * mib, 1), (gib, gib)),
        members((gib, gib // 100 + 1)),
        members((100 * mib, mib)),
        members((0, 0)),
        members(),
    ):
        directory.check_unpacked(fits, "f")
    for bomb in (
        members((8 * gib, 8 * gib), (1, 1)),
        members((64 * mib + 1, 1)),
        members((64 * mib, 0), (101, 1)),
        members((100 * mib + 1, mib)),
    ):
        assert "zip bomb" in fault_of(lambda bomb=bomb: directory.check_unpacked(bomb, "f"))  # type: ignore[misc]
    said = fault_of(lambda: directory.check_unpacked(members((5, 1), (64 * mib + 1, 3)), "f"))
    assert said.startswith(f"f: w1 unpacks from 3 to {64 * mib + 1} bytes, {64 * mib + 6} in all")


def test_a_directory_may_be_as_large_as_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zip_bytes(("w.npy", npy_bytes((0,))), ("v.npy", npy_bytes((0,))))
    n_bytes = int.from_bytes(data[-10:-6], "little")
    assert directory._MAX_DIRECTORY_BYTES == 8 << 20
    monkeypatch.setattr(directory, "_MAX_DIRECTORY_BYTES", n_bytes)
    assert len(open_bytes(tmp_path, data, ".npz").entries) == 2
    monkeypatch.setattr(directory, "_MAX_DIRECTORY_BYTES", n_bytes - 1)
    assert f"its directory has {n_bytes} bytes" in fault_of(
        lambda: open_bytes(tmp_path, data, ".npz")
    )


def test_a_zip_file_may_end_in_the_longest_comment(tmp_path: Path) -> None:
    data = zip_bytes(("w.npy", npy_bytes((0,))))
    whole = data[:-2] + b"\xff\xff" + b"c" * 0xFFFF
    assert list(open_bytes(tmp_path, whole, ".npz").entries) == ["w"]
    assert "no zip directory" in fault_of(lambda: open_bytes(tmp_path, data[:-1], ".npz"))
    assert "no zip directory" in fault_of(lambda: open_bytes(tmp_path, b"PK\x03\x04", ".npz"))


def zip64(directory_bytes: int, *, reached: int | None = None, inside: bytes = b"") -> bytes:
    """Make a zip whose 64-bit end record claims a directory of so many bytes."""
    plain = zip_bytes(("w.npy", npy_bytes((0,))))
    end, body = plain[-22:], plain[:-22]
    record = b"PK\x06\x06" + (44).to_bytes(8, "little") + bytes(12)
    record += (inside or (1).to_bytes(8, "little")) + (1).to_bytes(8, "little")
    record += directory_bytes.to_bytes(8, "little")
    record += int.from_bytes(end[16:20], "little").to_bytes(8, "little")
    place = len(body) if reached is None else reached
    locator = b"PK\x06\x07" + bytes(4) + place.to_bytes(8, "little") + (1).to_bytes(4, "little")
    return body + record + locator + end


def test_the_64_bit_size_of_a_directory_is_the_one_zipfile_takes(tmp_path: Path) -> None:
    honest = int.from_bytes(zip64(0)[-10:-6], "little")
    assert list(open_bytes(tmp_path, zip64(honest), ".npz").entries) == ["w"]
    unsaid = zip64(honest)[:-10] + b"\xff\xff\xff\xff" + zip64(honest)[-6:]
    assert list(open_bytes(tmp_path, unsaid, ".npz").entries) == ["w"]
    hidden = zip64(1 << 40, inside=b"PK\x06\x06\0\0\0\0", reached=5)  # the signature once more
    for data in (zip64(1 << 40), hidden):
        assert f"its directory has {1 << 40} bytes" in fault_of(
            lambda data=data: open_bytes(tmp_path, data, ".npz")  # type: ignore[misc]
        )
    elsewhere = b"PK\x06\x06" + bytes(36) + (1 << 40).to_bytes(8, "little") + bytes(8)
    # newer Pythons take the record from where the locator points
    assert f"its directory has {1 << 40} bytes" in fault_of(
        lambda: open_bytes(tmp_path, elsewhere + zip64(honest, reached=0), ".npz")
    )
    assert open_bytes(tmp_path, zip_bytes(), ".npz").entries == {}
    unmarked = zip64(1 << 40).replace(b"PK\x06\x07", b"xxxx")
    assert "its directory" not in fault_of(lambda: open_bytes(tmp_path, unmarked, ".npz"))
    lost = zip_bytes(("w.npy", npy_bytes((0,))))
    lost = lost[:-10] + b"\xff\xff\xff\xff" + lost[-6:]
    assert "its directory has 4294967295 bytes" in fault_of(
        lambda: open_bytes(tmp_path, lost, ".npz")
    )


def test_long_names_of_members_are_refused_as_doubled_ones_are(tmp_path: Path) -> None:
    fits = zip_bytes(("w" * 1020 + ".npy", npy_bytes((0,))))
    assert len(open_bytes(tmp_path, fits, ".npz").entries) == 1
    assert "is too long" in fault_of(
        lambda: open_bytes(tmp_path, zip_bytes(("w" * 1021 + ".npy", b"")), ".npz")
    )


# --- folders of .npy ----------------------------------------------------------------------------


def test_a_folder_is_read_by_its_visible_npy_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("w_q.npy", ".hidden.npy", "readme.txt", "a.npy"):
        (tmp_path / name).write_bytes(npy_bytes((1,), data=bytes(8)))
    assert list(open_arrays(tmp_path).entries) == ["a", "w_q"]
    assert npy_folder._MAX_FILES == 20_000
    monkeypatch.setattr(npy_folder, "_MAX_FILES", 3)
    assert list(open_arrays(tmp_path).entries) == ["a", "w_q"]
    monkeypatch.setattr(npy_folder, "_MAX_FILES", 2)
    assert "3 .npy files: at most 2" in fault_of(lambda: open_arrays(tmp_path))


def test_a_folder_reads_its_numbers_from_behind_headers_of_any_length(tmp_path: Path) -> None:
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(10_000)
    longest = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    (tmp_path / "w.npy").write_bytes(longest + np.array([0.5, 2.0]).tobytes())
    np.save(tmp_path / "v.npy", np.arange(6.0).reshape(2, 3))
    file = open_arrays(tmp_path)
    assert file.read("w").tolist() == [0.5, 2.0]
    assert file.read("v").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_objects_are_never_written() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        write_npy(io.BytesIO(), np.array([{}], object))


def test_a_folder_without_arrays_says_what_it_may_be(tmp_path: Path) -> None:
    assert "check the path" in fault_of(lambda: open_arrays(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "--model" in fault_of(lambda: open_arrays(tmp_path))


def test_file_names_at_their_bounds(tmp_path: Path) -> None:
    one = np.ones(1)
    longest = "é" * 100
    assert list(plan_content(tmp_path / "f", {longest: one}, {}).writers) == [f"{longest}.npy"]
    for name in ("é" * 100 + "a", "\ud800", "w ", "a*", "\x7f"):
        with pytest.raises(WeightsError, match="cannot be a file name"):
            plan_content(tmp_path / "f", {name: one}, {})
    with pytest.raises(WeightsError, match="B, b differ only in case"):
        plan_content(tmp_path / "f", {"a": one, "B": one, "b": one, "z": one}, {})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a.npy", "the folder it lies in"), ("a.gguf", "--model"), ("a.onnx", "as .safetensors"),
     ("a.h5", "as .npz"), ("a.xyz", "rename or convert"), ("a", "has the ending ''")],
)  # fmt: skip
def test_endings_that_are_not_read_have_a_hint(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=hint):
        open_arrays(tmp_path / name)
    with pytest.raises(InputError, match=r"does not exist.*check the path"):
        open_arrays(tmp_path / f"no-{name}")


def test_endings_are_read_in_capitals_too(tmp_path: Path) -> None:
    for name in ("A.SAFETENSORS", "A.NPZ"):
        path = save(tmp_path / name, {"w": np.ones(2)})
        assert open_arrays(path).read("w").tolist() == [1, 1]
    assert plan_content("a/", {}, {}).is_folder
    assert plan_content("a", {}, {}).is_folder
    assert not plan_content("a.npz", {}, {}).is_folder
    assert plan_content("a.npz/", {}, {}).is_folder is False
    assert plan_content("a.v2/", {}, {}).is_folder
