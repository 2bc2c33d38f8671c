"""The bounds of array files: what stands exactly at one is read, one more is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_file_formats import safetensors_bytes as st_bytes
from test_file_formats import save, zip_bytes

from attnviz.errors import InputError, ResourceError, WeightsError
from attnviz.sources.files import contract, npy_folder, open_arrays, plan_content
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
    assert len(file.rows("t")) == len(contract.Rows(table, "F64", file="f", name="t")) == 4
    assert "stored" not in repr(file)
    np.testing.assert_array_equal(rows[0], table[1])
    np.testing.assert_array_equal(np.asarray(rows), table[1:])
    assert np.asarray(rows, np.float32).dtype == np.float32


@pytest.mark.parametrize("row", [1, 2, 3])
def test_a_bad_row_is_found_wherever_it_is(tmp_path: Path, row: int) -> None:
    table = np.ones((4, 3))
    table[row, 2] = np.inf
    rows = open_arrays(save(tmp_path / "a.npz", {"t": table})).rows("t", start=1)
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
    assert "shape [-1]: wanted" in fault_of(lambda: opened(shape=[-1]))
    assert "data_offsets [-1, -1]: wanted" in fault_of(lambda: opened(data_offsets=[-1, -1]))
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
    turned = save(tmp_path / "t.safetensors", {"w": np.array([1.0, 2.0], ">f8")}).read_bytes()
    assert turned.endswith(np.array([1.0, 2.0], "<f8").tobytes())
    plain = save(tmp_path / "b.safetensors", {"a": arrays["a"]}).read_bytes()
    assert b"__metadata__" not in plain
    content = plan_content("c.safetensors", {"w": np.array([0x3F80], "u2")}, {}, {"w": "BF16"})
    file = io.BytesIO()
    content.writers[""](file)
    assert open_bytes(tmp_path, file.getvalue()).read("w").tolist() == [1.0]
    with pytest.raises(WeightsError, match="no name for a tensor"):
        plan_content("a.safetensors", {"__metadata__": np.ones(1)}, {})
