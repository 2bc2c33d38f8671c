"""Every line of an input is a row: read, or with its reason; numbers are those of ``grep -n ''``."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnviz.errors import InputError, UsageError
from attnviz.runs.batch.inputs import open_inputs
from attnviz.runs.batch.rows import (
    MAX_TEXT_BYTES,
    Reading,
    Row,
    check_encoding,
    count_rows,
    read_rows,
)


def rows_of(path: Path, **options: str) -> list[Row]:
    return list(read_rows(open_inputs([str(path)]), Reading(**options)))


HOSTILE_LINES = {
    "plain": b"one\ntwo\n",
    "no end": b"one\ntwo",
    "one line": b"one",
    "blank lines": b"\n\none\n\n",
    "crlf": b"one\r\ntwo\r\n",
    "nul": b"a\0b\nc\n",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\nnext\n".encode(),
    "latin-1": b"caf\xe9\nplain\n",
    "bom": b"\xef\xbb\xbfone\ntwo\n",
    "carriage return inside": b"a\rb\nc\n",
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_lines_are_those_of_grep(tmp_path: Path, name: str) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(HOSTILE_LINES[name])
    shown = subprocess.run(["grep", "-an", "", str(path)], capture_output=True, check=False).stdout
    wanted = [line.split(b":", 1) for line in shown.split(b"\n")[:-1]]
    rows = rows_of(path)
    assert [row.line for row in rows] == [int(line) for line, _ in wanted]
    assert [row.number for row in rows] == list(range(len(wanted)))
    for row, (_, data) in zip(rows, wanted, strict=True):
        if row.text is not None:
            assert row.text.encode() == data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")


def test_c3_a_byte_that_is_not_utf_8_costs_its_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"caf\xe9\nplain\n")
    bad, good = rows_of(path)
    assert bad.text is None
    assert "byte 0xE9 at position 3" in bad.error
    assert good.text == "plain"
    assert [row.text for row in rows_of(path, encoding="latin-1")] == ["café", "plain"]


@pytest.mark.parametrize(("encoding", "ok"), [("UTF-8", True), ("latin-1", True), ("cp1252", True),
                                              ("utf-16", False), ("cp037", False), ("no", False)])  # fmt: skip
def test_an_encoding_must_end_lines_as_the_file_does(encoding: str, ok: bool) -> None:
    if ok:
        check_encoding(encoding)
    else:
        with pytest.raises(UsageError, match=encoding):
            check_encoding(encoding)


@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv"])
def test_a_line_of_10_mb_costs_a_line_and_no_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"texts.{ending}"
    head = b"text\n" if ending == "csv" else b""
    before, after = (b'"one"\n', b'"two"\n') if ending == "jsonl" else (b"one\n", b"two\n")
    path.write_bytes(head + before + b"a" * 10_000_000 + b"\n" + after)
    rows = rows_of(path)
    assert [row.text for row in rows] == ["one", None, "two"]
    assert rows[1].error.startswith("10000000 bytes")
    first = 1 + len(head.splitlines())
    assert [row.line for row in rows] == [first, first + 1, first + 2]


def test_the_longest_line_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"a" * MAX_TEXT_BYTES + b"\r\n" + b"b" * (MAX_TEXT_BYTES + 2) + b"\nc")
    rows = rows_of(path)
    assert [row.text is not None for row in rows] == [True, False, True]
    assert len(rows[0].text or "") == MAX_TEXT_BYTES


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    lines = ['{"text": "a\\u2028b", "n": 1}', '"bare"', "{oops", '{"other": 1}', '{"text": null}',
             "[1]", "[" * 100_000, '{"text": "\\ud83d"}', ""]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = rows_of(path)
    assert [row.line for row in rows] == list(range(1, 10))
    assert [row.text for row in rows] == ["a\u2028b", "bare", *[None] * 5, "\ud83d", None]
    assert "no column 'text': there are 'other'" in rows[3].error
    assert "null" in rows[4].error
    assert [row.text for row in rows_of(path, text_column="other")][3] is None


def test_csv_records_may_span_lines(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_bytes(b'id,text\r\n1,"a\nb"\r\n2,"say ""hi"""\r\n\r\n3\r\n4,caf\xe9\r\n5,last')
    rows = rows_of(path)
    assert [(row.line, row.text) for row in rows] == [
        (2, "a\nb"), (4, 'say "hi"'), (6, None), (7, None), (8, "last"),
    ]  # fmt: skip
    assert "1 columns: wanted 2" in rows[2].error
    assert "0xE9" in rows[3].error


def test_a_quote_that_never_ends_is_one_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    path.write_bytes(b'text\tn\nfine\t1\n"open\t2\nmore\t3\n')
    rows = rows_of(path)
    assert [row.text for row in rows] == ["fine", None]
    assert rows[1].line == 3


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "texts.parquet"
    parquet.write_table(
        pyarrow.table({"n": [1, 2, 3], "text": ["a", None, "b\nc"], "word": ["x", "y", "z"]}), path
    )
    assert [(row.line, row.text) for row in rows_of(path)] == [(1, "a"), (2, None), (3, "b\nc")]
    assert [row.text for row in rows_of(path, text_column="word")] == ["x", "y", "z"]
    with pytest.raises(UsageError, match=r"'n' holds int64.*'text', 'word'"):
        rows_of(path, text_column="n")
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"not a readable \.parquet"):
        rows_of(path)


def test_a_wrong_column_lists_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("sentence,n\na,1\n")
    with pytest.raises(UsageError, match=r"no column 'text': choose .* 'sentence', 'n'"):
        rows_of(path)
    only = tmp_path / "only.csv"
    only.write_text("sentence\na\n")
    assert [row.text for row in rows_of(only)] == ["a"]


def test_what_is_no_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        open_inputs([str(tmp_path)])
    with pytest.raises(InputError, match="cannot read"):
        open_inputs([str(tmp_path / "none.txt")])
    with pytest.raises(UsageError, match=r"'.pdf' is no known format"):
        open_inputs([str(tmp_path / "a.pdf")])
    with pytest.raises(UsageError, match="--input-format"):
        open_inputs(["-"], format="xml")
    with pytest.raises(UsageError, match="only once"):
        open_inputs(["-", "-"])
    with pytest.raises(UsageError, match="no input"):
        open_inputs([])


def test_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "texts.txt").write_text(folder)
    rows = read_rows(open_inputs([str(tmp_path / f / "texts.txt") for f in "ab"]))
    assert [(r.number, r.input, r.line, r.text) for r in rows] == [
        (0, "texts.txt", 1, "a"), (1, "texts.txt (2)", 1, "b"),
    ]  # fmt: skip


def test_standard_input_and_pipes_are_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    reader, writer = os.pipe()
    os.write(writer, json.dumps({"text": "three"}).encode())
    os.close(writer)
    stdin = open_inputs(["-"])
    pipe = open_inputs([f"/dev/fd/{reader}"], format="jsonl")
    os.close(reader)
    for _ in range(2):
        assert [row.text for row in read_rows((*stdin, *pipe))] == ["one", "two", "three"]
        (counted,) = count_rows(stdin)
        assert counted.sha256 == hashlib.sha256(b"one\ntwo\n").hexdigest()
    for one in (*stdin, *pipe):
        one.close()


@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv", "tsv", "parquet"])
def test_rows_and_hash_are_found_in_one_reading(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"texts.{ending}"
    if ending == "parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"text": ["a", None]}), path)
    else:
        long = "x" * (MAX_TEXT_BYTES + 9)
        path.write_bytes(f"text\nb\xff\n{long}\nlast".encode("latin-1"))
    (counted,) = count_rows(open_inputs([str(path)]))
    assert counted.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert counted.rows == len(rows_of(path))
    assert counted.digest is None
