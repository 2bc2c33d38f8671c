"""GGUF at its bounds: what stands exactly at one is read, one more is refused; the block table."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gguf import array, gguf, text

from attnviz.errors import InputError
from attnviz.sources.models import gguf as reader
from attnviz.sources.models.gguf import read_gguf


def opened(folder: Path, data: bytes) -> Any:
    path = folder / "a.gguf"
    path.write_bytes(data)
    return read_gguf(path)


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        opened(folder, data)
    return str(caught.value)


def test_the_table_of_blocks_is_the_librarys() -> None:
    library = pytest.importorskip("gguf", reason="needs the extra 'models'")
    for kind, block in reader._BLOCKS.items():
        wanted = library.GGMLQuantizationType(kind)
        assert library.GGML_QUANT_SIZES[wanted] == block, kind
        assert reader.TYPE_NAMES[kind] == wanted.name
    assert reader.TYPE_NAMES.keys() == reader._BLOCKS.keys()
    known = library.GGUFValueType
    forms = {known.UINT8: "B", known.INT8: "b", known.UINT16: "H", known.INT16: "h", known.UINT32: "I",
             known.INT32: "i", known.FLOAT32: "f", known.BOOL: "?", known.UINT64: "Q", known.INT64: "q",
             known.FLOAT64: "d"}  # fmt: skip
    assert {kind.value: form for kind, form in forms.items()} == reader._NUMBERS
    assert (known.STRING, known.ARRAY) == (reader._STRING, reader._ARRAY)


def test_versions_and_counts(tmp_path: Path) -> None:
    for version in (2, 3):
        assert opened(tmp_path, gguf(version=version)).tensors == {}
    for version in (1, 4):
        assert f"version {version}" in refusal(tmp_path, gguf(version=version))
    for kind, most in (("n_tensors", 1_000_000), ("n_keys", 100_000)):
        assert "more than its" in refusal(tmp_path, gguf(**{kind: most}))  # type: ignore[arg-type]
        assert f"claims {most + 1} {kind[2:]}" in refusal(tmp_path, gguf(**{kind: most + 1}))  # type: ignore[arg-type]


def test_texts_as_long_as_allowed_and_as_the_file(tmp_path: Path) -> None:
    longest = gguf([("k", 8, text("a" * (16 << 20)))])
    assert len(opened(tmp_path, longest).metadata["k"]) == 16 << 20
    assert "a text of 16777217 bytes" in refusal(
        tmp_path, gguf([("k", 8, text("a" * ((16 << 20) + 1)))])
    )
    ends = gguf([("k", 8, text("a" * 19))])
    assert len(ends) % 32 == 0
    assert len(opened(tmp_path, ends).metadata["k"]) == 19
    for cut in (1, 2):
        assert "a text of 19 bytes" in refusal(tmp_path, ends[:-cut])
    odd = gguf([("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")])
    assert opened(tmp_path, odd).metadata["k"] == "\udcff\udcfe"


def test_lists_as_long_as_allowed_and_as_the_file(tmp_path: Path) -> None:
    most = 8_000_000
    data = gguf([("k", 9, array(0, most, bytes(most)))])
    assert len(opened(tmp_path, data).metadata["k"]) == most
    assert f"lists of {most + 1} values" in refusal(tmp_path, gguf([("k", 9, array(0, most + 1))]))
    two = [("k", 9, array(0, 3, bytes(3))), ("l", 9, array(0, most - 2))]
    assert f"lists of {most + 1} values" in refusal(tmp_path, gguf(two))
    for kind, one in ((10, bytes(8)), (8, text("")), (4, bytes(4)), (0, b"\0")):
        count = 64 // len(one)
        whole = gguf([("k", 9, array(kind, count, one * count))])
        exact = whole[: whole.rindex(array(kind, count)) + 12 + 64]
        aligned = exact + b"\0" * (-len(exact) % 32)
        assert len(opened(tmp_path, aligned).metadata["k"]) == count
        assert f"a list of {count} values" in refusal(tmp_path, exact[:-1])
    assert "a list of type 77" in refusal(tmp_path, gguf([("k", 9, array(77, 1))]))


@pytest.mark.parametrize("depth", [1, 3, 4, 5])
def test_lists_may_nest_four_deep(tmp_path: Path, depth: int) -> None:
    inner, wanted = array(0, 1, b"\7"), [7]
    for _ in range(depth - 1):
        inner, wanted = array(9, 1, inner), [wanted]  # type: ignore[list-item]
    data = gguf([("k", 9, inner), ("z", 8, text("x" * 99))])
    if depth > 4:
        assert "nested more than 4 deep" in refusal(tmp_path, data)
    else:
        assert opened(tmp_path, data).metadata["k"] == wanted


@pytest.mark.parametrize("alignment", [1, 2, 32, 64, 1 << 16])
def test_data_begins_at_the_alignment(tmp_path: Path, alignment: int) -> None:
    keys = [("general.alignment", 4, struct.pack("<I", alignment))]
    data = gguf(keys, [("t", (1,), 0, b"")])
    with_room = data + bytes(2 * alignment)
    file = opened(tmp_path, with_room)
    start = file.tensors["t"].start
    header = 24 + len(text("general.alignment")) + 4 + 4 + len(text("t")) + 4 + 8 + 4 + 8
    assert start % alignment == 0
    assert 0 <= start - header < alignment
    assert file.tensors["t"].n_bytes == 4
    exact = with_room[: start + 4]
    assert opened(tmp_path, exact).tensors["t"].start == start
    assert f"up to byte {start + 4} of {start + 3}" in refusal(tmp_path, exact[:-1])


@pytest.mark.parametrize("value", [0, 1 << 17, 3, 48])
def test_alignments_that_are_none(tmp_path: Path, value: int) -> None:
    data = gguf([("general.alignment", 4, struct.pack("<I", value))])
    assert f"alignment {value}" in refusal(tmp_path, data)
    assert "alignment 'x'" in refusal(tmp_path, gguf([("general.alignment", 8, text("x"))]))
    minus = gguf([("general.alignment", 5, struct.pack("<i", -1))])
    assert "alignment -1" in refusal(tmp_path, minus)


def test_axes_and_numbers_of_a_tensor(tmp_path: Path) -> None:
    for n_axes in (1, 2, 3, 4):
        shape = (2,) * n_axes
        data = gguf(tensors=[("t", shape, 0, bytes(4 << n_axes))])
        assert opened(tmp_path, data).tensors["t"].shape == shape
    for n_axes in (0, 5):
        data = gguf(tensors=[("t", (1,) * n_axes, 0, bytes(4))])
        assert f"a tensor of {n_axes} axes" in refusal(tmp_path, data)
    assert "up to byte" in refusal(tmp_path, gguf(tensors=[("t", (1 << 48,), 0, b"")]))
    assert "a tensor of (281474976710657,)" in refusal(
        tmp_path, gguf(tensors=[("t", ((1 << 48) + 1,), 0, b"")])
    )


def test_offsets_count_from_the_start_of_the_data(tmp_path: Path) -> None:
    data = gguf(tensors=[("a", (4,), 0, np.arange(4, dtype="<f4").tobytes()),
                         ("b", (2, 2), 1, np.arange(4, dtype="<f2").tobytes())])  # fmt: skip
    file = opened(tmp_path, data)
    assert file.tensors["b"].start - file.tensors["a"].start == 32
    assert (file.tensors["a"].n_bytes, file.tensors["b"].n_bytes) == (16, 8)
    assert file.read("a").tolist() == [0, 1, 2, 3]
    assert file.read("b").tolist() == [[0, 1], [2, 3]]
    assert file.read("b").dtype == np.float32


def test_settings_are_the_architectures_own(tmp_path: Path) -> None:
    keys = [("general.architecture", 8, text("llama")), ("llama.a", 0, b"\7"), ("bert.b", 0, b"\7")]
    file = opened(tmp_path, gguf(keys))
    assert (file.setting("a"), file.setting("b"), file.setting("b", 5)) == (7, None, 5)
    assert opened(tmp_path, gguf()).architecture == ""


def test_a_type_that_nobody_dequantises_is_named(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra 'models'")
    file = opened(tmp_path, gguf(tensors=[("t", (4,), 24, bytes(4))]))
    with pytest.raises(InputError, match=r"a\.gguf: t cannot be dequantised"):
        file.read("t")
    data = gguf(tensors=[("t", (64, 2), 8, bytes(4 * 34))])
    assert opened(tmp_path, data).read("t").shape == (2, 64)
