"""``attnviz batch`` as a user meets it: exit codes, what is said, what is left behind."""

from __future__ import annotations

import errno
import html.parser
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import HOSTILE, Result, run_fresh

from attnviz.runs import store

Cli = Callable[..., Result]
TINY = ("-w", "random", "--d-model", "8", "--d-k", "4", "--n-heads", "2", "--engine", "serial")


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "texts.txt"
    path.write_text("A cute teddy bear\nis reading\nthe river bank\n")
    return path


def test_done_and_nothing_left(cli: Cli, texts: Path) -> None:
    done = cli("batch", "texts.txt", "-o", "out", *TINY)
    assert (done.code, done.out) == (0, "")
    assert "3 done, 0 failed, 0 skipped of 3 texts: 6 rows in out" in done.err
    assert re.search(r"[\d.]+ s: [\d,]+ texts/s, [\d,]+ rows/s", done.err)
    again = cli("batch", "texts.txt", "-o", "out", *TINY)
    assert (again.code, "nothing was left to do" in again.err) == (0, True)
    assert cli("batch", "texts.txt", "-o", "out2", *TINY, "-q").err == ""


def test_a_bad_line_is_exit_1_and_named(cli: Cli, texts: Path) -> None:
    texts.write_bytes(b"one two\ncaf\xe9\n\nlast one\n")
    done = cli("batch", "texts.txt", "-o", "out", *TINY)
    assert done.code == 1
    assert "2 done, 2 failed" in done.err
    assert "what failed and why: out/errors.jsonl" in done.err
    errors = Path("out/errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in errors] == [2, 3]


def test_hostile_texts_reach_no_terminal(cli: Cli, texts: Path) -> None:
    lines = [word.encode(errors="surrogatepass").replace(b"\n", b" ") for word in HOSTILE]
    texts.write_bytes(b"\n".join(lines))
    done = cli("batch", "texts.txt", "-o", "out", *TINY, "-f", "jsonl", "--report", "r.md")
    assert done.code in (0, 1)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.err)
    rows = Path("out/texts/000000.jsonl").read_bytes().count(b"\n")
    failed = Path("out/errors.jsonl").read_bytes().count(b"\n")
    assert rows + failed == len(HOSTILE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_full_disk_is_exit_4_and_it_goes_on(
    cli: Cli, texts: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plain, calls = os.fsync, []

    def fail(file: int) -> None:
        calls.append(file)
        if len(calls) > 12:
            raise OSError(number, os.strerror(number))
        plain(file)

    monkeypatch.setattr(store.os, "fsync", fail)
    broken = cli("batch", "texts.txt", "-o", "out", *TINY)
    assert broken.code == 4
    assert broken.err.count("\n") == 1
    assert "cannot write out/" in broken.err
    monkeypatch.undo()
    assert cli("batch", str(texts), "-o", str(texts.parent / "out"), *TINY).code == 0


def test_names_that_cannot_be_are_exit_3(cli: Cli, texts: Path) -> None:
    for name in ("texts.txt", "texts.txt/out", "a" * 300, "nul\0name"):
        broken = cli("batch", "texts.txt", "-o", name, *TINY)
        assert (broken.code, broken.err.count("\n")) == (3, 1), name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("batch",), "give -o DIR"),
        (("batch", "-o", "out"), "no input"),
        (("batch", "texts.pdf", "-o", "out"), "no known format"),
        (("batch", "texts.txt", "-o", "out", "--where", "words > 3"), "is no comparison"),
        (("batch", "texts.txt", "-o", "out", "--shard", "3/3"), "is no share"),
        (("batch", "texts.txt", "-o", "out", "--engine", "locl"), "did you mean 'local'"),
        (("batch", "texts.txt", "-o", "out", "--report", "a.pdf"), "is no report"),
        (("batch", "texts.txt", "-o", "out", "--keep", "weigths"), "did you mean 'weights'"),
        (("batch", "texts.txt", "--status", "out"), "nothing else"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    cli: Cli, texts: Path, wrong: tuple[str, ...], said: str
) -> None:
    done = cli(*wrong)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err


def test_dry_run_writes_nothing(cli: Cli, texts: Path) -> None:
    before = sorted(os.listdir())
    done = cli("batch", "texts.txt", "-o", "out", *TINY, "--dry-run", "--shard-size", "2")
    assert done.code == 0
    for said in ("texts", "2 of 2 texts", "about 6", "workers", "free"):
        assert said in done.out
    assert sorted(os.listdir()) == before


def test_status(cli: Cli, texts: Path) -> None:
    cli("batch", "texts.txt", "-o", "out", *TINY, "--shard-size", "2", "--shard", "0/2")
    stopped = cli("batch", "--status", "out")
    assert stopped.code == 0
    assert "batch stopped" in stopped.out
    assert "2 of 3" in stopped.out
    cli("batch", "texts.txt", "-o", "out", *TINY, "--shard-size", "2", "--shard", "1/2")
    assert "batch complete" in cli("batch", "--status", "out").out
    none = cli("batch", "--status", "nowhere")
    assert (none.code, "holds no batch" in none.err) == (3, True)
    assert max(map(len, cli("batch", "--status", "out", "--width", "40").out.splitlines())) <= 40


def test_reports(cli: Cli, texts: Path) -> None:
    for ending in ("md", "html", "json"):
        assert cli("batch", "texts.txt", "-o", "out", *TINY, "--report", f"r.{ending}").code == 0
    found = json.loads(Path("r.json").read_text())
    assert found["schema"] == "attnviz.batch-report/1"
    assert [(row["layer"], row["head"], row["texts"]) for row in found["heads"]] == [
        (0, 0, 3), (0, 1, 3),
    ]  # fmt: skip
    entropy = found["heads"][0]["entropy"]
    assert sum(entropy["histogram"]) == 3
    assert entropy["min"] <= entropy["quantiles"][2] <= entropy["max"]
    assert "L0.H1" in Path("r.md").read_text()
    page = Path("r.html").read_text()
    tags: list[str] = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)  # type: ignore[method-assign, assignment]
    parser.feed(page)
    assert "script" not in tags
    assert tags.count("table") == 2
    assert "default-src 'none'" in page


def test_pictures_of_every_text(cli: Cli, texts: Path) -> None:
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        done = cli("batch", "texts.txt", "-o", kind, *TINY, "--heatmap", kind)
        assert done.code == 0
        names = sorted(os.listdir(f"{kind}/heatmaps"))
        assert len(names) == 3
        for name in names:
            assert re.fullmatch(rf"000000[012]-[0-9a-f]{{12}}\.{kind}", name)
            assert Path(kind, "heatmaps", name).read_bytes().startswith(start)


def test_standard_input(texts: Path) -> None:
    done = run_fresh("batch", "-", "-o", "out", *TINY, "-f", "jsonl", stdin=b"one two\nthree\n",
                     cwd=texts.parent)  # fmt: skip
    assert done.returncode == 0
    rows = [json.loads(line) for line in Path("out/heads/000000.jsonl").read_text().splitlines()]
    assert {(row["input"], row["line"]) for row in rows} == {("-", 1), ("-", 2)}


def test_pandas_or_polars_or_pyarrow_opens_the_folder(cli: Cli, texts: Path) -> None:
    """The example of the documentation: mean entropy of every head over all texts."""
    pytest.importorskip("pyarrow")
    cli("batch", "texts.txt", "-o", "out", *TINY, "--shard-size", "1")
    try:
        import pandas

        table: Any = pandas.read_parquet("out/heads")
        means = table.groupby(["layer", "head"])["entropy"].mean().to_list()
    except ImportError:
        import pyarrow.parquet as parquet

        found = parquet.read_table("out/heads").group_by(["layer", "head"])
        means = found.aggregate([("entropy", "mean")]).column("entropy_mean").to_pylist()
    assert len(means) == 2
    assert all(0 < mean < 2 for mean in means)
    if "polars" in sys.modules or __import__("importlib.util").util.find_spec("polars"):
        import polars

        assert polars.read_parquet("out/heads/*.parquet").height == 6
