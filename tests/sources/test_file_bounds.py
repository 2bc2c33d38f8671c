"""The bounds of array files: what stands exactly at one is read, one more is refused."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_file_formats import npy_bytes, save, zip_bytes
from test_file_formats import safetensors_bytes as st_bytes

from attnviz.errors import InputError, ResourceError, WeightsError
from attnviz.sources.files import contract, npy, npy_folder, npz, open_arrays, plan_content
from attnviz.sources.files import safetensors_ as st
from attnviz.sources.files import zip_directory as directory
from attnviz.sources.files.dtypes import BITS, NUMPY, WIDENED, safetensors_name


def fault_of(work: Any) -> str:
    with pytest.raises(WeightsError) as caught:
        work()
    return str(caught.value)


def open_bytes(folder: Path, data: bytes, ending: str = ".safetensors") -> Any:
    path = folder / f"a{ending}"
    path.write_bytes(data)
    return open_arrays(path)


# --- what every format shares -------------------------------------------------------------------


def test_rows_are_counted_from_where_they_start(tmp_path: Path) -> None:
    table = np.arange(12.0).reshape(4, 3)
    file = open_arrays(save(tmp_path / "a.safetensors", {"t": table}))
    rows = file.rows("t", start=1)
    assert (len(rows), rows.ndim, rows.shape) == (3, 2, (3, 3))
    assert len(file.rows("t")) == 4
    np.testing.assert_array_equal(rows[0], table[1])
    np.testing.assert_array_equal(np.asarray(rows), table[1:])
    assert np.asarray(rows, np.float32).dtype == np.float32
    rows.check_finite(step=2)


@pytest.mark.parametrize("row", [1, 2, 3])
def test_a_bad_row_is_found_wherever_it_is(tmp_path: Path, row: int) -> None:
    table = np.ones((4, 3))
    table[row, 2] = np.inf
    rows = open_arrays(save(tmp_path / "a.npz", {"t": table})).rows("t", start=1)
    assert f"t[{row}, 2] is inf" in fault_of(lambda: rows.check_finite(step=2))
    assert f"t[{row}, 2] is inf" in fault_of(lambda: rows[:])
    assert rows[[n for n in range(3) if n != row - 1]].shape == (2, 3)


def test_numbers_that_are_none_are_named_by_place_and_counted() -> None:
    values = np.array([[1.0, np.nan], [-np.inf, 2.0]])
    said = fault_of(lambda: contract.check_finite(values, file="f", name="w"))
    assert said.startswith("f: w[0, 1] is nan (2 such entries): wanted finite numbers only")
    said = fault_of(lambda: contract.check_finite(values[1], file="f", name="w", start=(5,)))
    assert said.startswith("f: w[5, 0] is -inf: wanted")
    contract.check_finite(values[:1, :1], file="f", name="w")


def test_names_in_messages_are_escaped_and_cut() -> None:
    assert contract.quote("w" * 80) == "w" * 80
    assert contract.quote("w" * 81) == repr("w" * 79 + "…")
    assert contract.quote(" " * 80) == repr(" " * 80)
    assert contract.quote("a\x1b") == "'a\\x1b'"
    assert contract.listed([]) == "none"
    assert contract.listed(map(str, range(8))) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert contract.listed("abcdefghi") == "a, b, c, d, e, f, g, h, … (9 in all)"
    assert contract.listed("abc", most=2) == "a, b, … (3 in all)"


def test_a_name_of_1024_characters_is_read_and_a_longer_one_is_not() -> None:
    contract.check_name("f", "w" * 1024, {})
    assert "1025 characters: at most 1024" in fault_of(
        lambda: contract.check_name("f", "w" * 1025, {})
    )
    assert "twice" in fault_of(lambda: contract.check_name("f", "w", {"w": 1}))


def test_what_the_system_does_not_give_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    assert "No such file" in str(contract.unreadable(path, FileNotFoundError(2, "No such file")))
    assert isinstance(contract.unreadable(path, MemoryError()), ResourceError)
    assert isinstance(contract.unreadable(path, OSError(12, "no memory")), ResourceError)
    assert isinstance(contract.unreadable(path, OSError(13, "denied")), InputError)
    assert "an odd value" in str(contract.unreadable(path, ValueError("an odd value")))
    path.write_bytes(b"x")
    assert contract.map_file(path).tolist() == [120]
    assert contract.map_file(path).flags.writeable is False
    for fault, kind in ((OSError(12, "none"), ResourceError), (PermissionError(13, "no"), InputError)):  # fmt: skip

        def fail(*_: Any, fault: Exception = fault, **__: Any) -> None:
            raise fault

        monkeypatch.setattr(contract.mmap, "mmap", fail)
        with pytest.raises(kind, match=r"cannot read a\.safetensors"):
            contract.map_file(path)


def test_a_file_that_cannot_be_opened_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending in (".npz", ".pt"):
        (tmp_path / f"a{ending}").write_bytes(zip_bytes(("w.npy", b"x")))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "w.npy").write_bytes(b"x")

    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", fail)
    for name in ("a.npz", "a.pt", "folder"):
        with pytest.raises(InputError, match="Permission denied"):
            open_arrays(tmp_path / name)
    monkeypatch.undo()
    monkeypatch.setattr(npy_folder.os, "scandir", fail)
    with pytest.raises(InputError, match="Permission denied"):
        open_arrays(folder)
    monkeypatch.undo()
    monkeypatch.setattr(directory.zipfile, "ZipFile", fail)
    with pytest.raises(InputError, match="Permission denied"):
        open_arrays(tmp_path / "a.npz")


# --- number types -------------------------------------------------------------------------------


def test_types_have_the_widths_of_the_format() -> None:
    for name, kind in NUMPY.items():
        assert np.dtype(kind).itemsize * 8 == BITS[name], name
        assert np.dtype(kind).newbyteorder("<") == np.dtype(kind)
    packed = {"F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
    assert {name: bits for name, bits in BITS.items() if name not in NUMPY} == packed
    for name, kind in NUMPY.items():
        wanted = {"BF16": "U16", "F8_E4M3": "U8", "F8_E5M2": "U8"}.get(name, name)
        assert safetensors_name(np.dtype(kind)) == wanted
    assert WIDENED == ("BF16", "F8_E4M3", "F8_E5M2")
    assert safetensors_name(np.dtype("c16")) is None


# --- .safetensors -------------------------------------------------------------------------------

T = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}


def test_the_header_may_be_as_long_as_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = st_bytes({"w": T})
    assert st.MAX_HEADER_BYTES == 100_000_000
    monkeypatch.setattr(st, "MAX_HEADER_BYTES", len(data) - 8)
    assert list(open_bytes(tmp_path, data).entries) == ["w"]
    monkeypatch.setattr(st, "MAX_HEADER_BYTES", len(data) - 9)
    assert "is said to have" in fault_of(lambda: open_bytes(tmp_path, data))
    assert "header begins with b''" in fault_of(lambda: open_bytes(tmp_path, bytes(8)))
    assert "has 7 bytes" in fault_of(lambda: open_bytes(tmp_path, bytes(7)))
    assert "cut off" in fault_of(lambda: open_bytes(tmp_path, bytes([1]) + bytes(7)))


@pytest.mark.parametrize(
    ("letter", "most"), [("{", 250_000), ("[", 450_000), (",", 4_000_000), ("é", 16_000_000)]
)
def test_a_header_may_be_as_rich_as_its_bound(tmp_path: Path, letter: str, most: int) -> None:
    frame = b'{"":1}' if letter != "{" else b'"":1}'
    wide = letter == "é"  # 32,000,000 bytes where it is not ASCII
    name = (letter * (most - len(frame) // 2 if wide else most)).encode()

    def header(name: bytes) -> bytes:
        return frame.replace(b'""', b'"' + name + b'"', 1)

    if letter == "{":
        name = b"{" * (most - 1)
        frame = b"{" + frame
    assert len(header(name)) <= 32_000_000
    if wide:
        assert len(header(name)) == 32_000_000
    assert "characters" in fault_of(lambda: open_bytes(tmp_path, st_bytes(header(name))))
    more = name + (b"x" if wide else letter.encode())
    assert "more than 200000" in fault_of(lambda: open_bytes(tmp_path, st_bytes(header(more))))


def test_as_many_tensors_as_allowed_and_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(st, "MAX_ARRAYS", 3)
    four: dict[str, Any] = {"__metadata__": {"a": "b"}} | {f"w{n}": T for n in range(3)}
    assert len(open_bytes(tmp_path, st_bytes(four)).entries) == 3
    assert "5 tensors: at most 3" in fault_of(
        lambda: open_bytes(tmp_path, st_bytes({**four, "w3": T}))
    )
    assert "no JSON object" in fault_of(lambda: st._parse(b"[]", "f"))


def test_shapes_and_places_at_their_bounds(tmp_path: Path) -> None:
    def opened(data: bytes = b"", **change: Any) -> Any:
        return open_bytes(tmp_path, st_bytes({"w": T | change}, data))

    assert opened(shape=[(1 << 53) - 1, 0]).entries["w"].shape == ((1 << 53) - 1, 0)
    assert "each 0 or more" in fault_of(lambda: opened(shape=[1 << 53, 0]))
    assert len(opened(shape=[0] * 32).entries["w"].shape) == 32
    assert "at most 32" in fault_of(lambda: opened(shape=[0] * 33))
    assert "begin, end" in fault_of(lambda: opened(data_offsets=[0, 0, 0]))
    assert "begin, end" in fault_of(lambda: opened(data_offsets=[0]))
    assert "begin, end" in fault_of(lambda: opened(data_offsets=[1, 0]))
    assert "shape {'a': 1}" in fault_of(lambda: opened(shape={"a": 1}))
    for missing in T:
        entry = {key: value for key, value in T.items() if key != missing}
        assert "lacks" in fault_of(
            lambda entry=entry: open_bytes(tmp_path, st_bytes({"w": entry}))  # type: ignore[misc]
        )
    half = opened(b"\x00", dtype="F4", shape=[2], data_offsets=[0, 1])
    assert half.entries["w"].size_bytes == 1
    assert "dtype F4, which is not read" in fault_of(lambda: half.read("w"))
    assert "takes 1 bytes" in fault_of(lambda: opened(dtype="F4", shape=[1], data_offsets=[0, 0]))
    flag = opened(b"\x01\x00", dtype="BOOL", shape=[2], data_offsets=[0, 2])
    assert flag.read("w").tolist() == [True, False]


def test_holes_and_overlaps_are_told_apart(tmp_path: Path) -> None:
    def opened(*places: tuple[int, int], data: int = 4) -> Any:
        header = {
            f"w{n}": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
            for n, (begin, end) in enumerate(places)
        }
        return open_bytes(tmp_path, st_bytes(header, bytes(data)))

    assert list(opened((2, 4), (0, 2)).entries) == ["w0", "w1"]
    assert list(opened((0, 0), (0, 4), (4, 4)).entries) == ["w0", "w1", "w2"]
    assert "w1 begins at byte 3, wanted 2: it leaves a hole" in fault_of(
        lambda: opened((0, 2), (3, 4))
    )
    assert "w1 begins at byte 1, wanted 2: it overlaps" in fault_of(lambda: opened((0, 2), (1, 4)))
    assert "tensors take 5 bytes, 4 are there: the file is cut off" in fault_of(
        lambda: opened((0, 5))
    )
    assert "tensors take 3 bytes, 4 are there: the rest is unknown" in fault_of(
        lambda: opened((0, 3))
    )


def test_what_is_written_is_aligned_wide_types_first_and_names_sorted(tmp_path: Path) -> None:
    arrays = {"b": np.ones(3, "f4"), "a": np.ones(1, "i1"), "c": np.ones(2, "f8"), "d": np.ones((), "f4"),
              "e": np.zeros((0, 2))}  # fmt: skip
    path = save(tmp_path / "a.safetensors", arrays, {"z": "1", "y": "2"})
    data = path.read_bytes()
    n_bytes = int.from_bytes(data[:8], "little")
    assert n_bytes % 8 == 0
    header = json.loads(data[8 : 8 + n_bytes])
    assert list(header) == ["__metadata__", "c", "e", "b", "d", "a"]
    assert list(header["__metadata__"]) == ["y", "z"]
    assert [header[name]["data_offsets"] for name in "cebda"] == [
        [0, 16], [16, 16], [16, 28], [28, 32], [32, 33]]  # fmt: skip
    assert len(data) == 8 + n_bytes + 33
    plain = save(tmp_path / "b.safetensors", {"a": arrays["a"]}).read_bytes()
    assert b"__metadata__" not in plain
    content = plan_content("c.safetensors", {"w": np.array([0x3F80], "u2")}, {}, {"w": "BF16"})
    file = io.BytesIO()
    content.writers[""](file)
    assert open_bytes(tmp_path, file.getvalue()).read("w").tolist() == [1.0]
    with pytest.raises(WeightsError, match="no name for a tensor"):
        plan_content("a.safetensors", {"__metadata__": np.ones(1)}, {})


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
    for shape in ("[2]", "(True,)", "(2.0,)", "None"):
        assert "wanted at most" in fault_of(lambda s=shape: header_of(npy_bytes(s, data=bytes(16))))  # type: ignore[misc]
    assert "wanted at most" in fault_of(
        lambda: header_of(npy_bytes((0,)).replace(b"False", b"00000"))
    )
    assert "is cut off" in fault_of(lambda: header_of(npy_bytes((2,), data=bytes(15))))
    assert "bytes left over" in fault_of(lambda: header_of(npy_bytes((2,), data=bytes(17))))
    assert header_of(npy_bytes((2,), data=bytes(16))).size_bytes == 16


@pytest.mark.parametrize("descr", ["<f2", "|b1", "=i4", ">c16", "U3", "<U0", "|S5", "f8", "?8"])
def test_npy_types_that_are_read_and_that_are_not(descr: str) -> None:
    data = npy_bytes((1,), descr, bytes(np.dtype(descr).itemsize if descr != "?8" else 0))
    if descr == "?8":
        assert "wanted numbers or strings" in fault_of(lambda: header_of(data))
    else:
        assert header_of(data).dtype == np.dtype(descr)


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
     ("origin", "8", "U"), ("vocab", '["a", "b"]', "U"), ("vocab", '["a","b"]', "U"), ("vocab", "[]", "U"),
     ("vocab", '["a", 1]', "U"), ("vocab", '{"a": 1}', "U"), ("vocab", '["a\\u0000"]', "U"), ("vocab", "[" * 99999, "U")],
)  # fmt: skip
def test_metadata_reads_back_as_it_was(name: str, value: str, kind: str) -> None:
    array = npy.metadata_array(name, value)
    assert array.dtype.kind == kind
    assert npy.metadata_text(array, file="f", name=name) == value
    if name == "vocab":
        assert array.shape == ((2,) if value == '["a", "b"]' else ())
    if name == "causal" and kind == "b":
        assert bool(array) is (value == "true")


def test_metadata_that_npz_cannot_hold_is_refused() -> None:
    assert "ends in NUL" in fault_of(lambda: npy.metadata_array("origin", "a\0"))
    assert "one name" in fault_of(lambda: npy.storable({"a": np.ones(1)}, {"a": "x"}, {}))
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
        member = zipfile.ZipInfo("w.npy")
        member.extra = b"\x99\x99\x10\x01" + bytes(272)  # an unknown field
        part = io.BytesIO()
        np.save(part, values)
        archive.writestr(member, part.getvalue())
    np.testing.assert_array_equal(open_bytes(tmp_path, file.getvalue(), ".npz").read("w"), values)


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
