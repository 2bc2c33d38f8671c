"""``attnviz heads``: known heads of real models, and what the command shows and writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support import Result

from attnviz.core.measures.patterns import PATTERNS
from attnviz.runs.heads import rank_heads

Cli = Callable[..., Result]
TEXTS = (
    "the offensive football players who line up behind the linemen",
    "a recreation room in a private house, with a table and a door",
    "The teddy bear sat on the chair because it was tired.",
    "she gave the book to the man, and the man gave the book to her",
)
SAMPLE = ("-w", "sample-8")


def test_json_is_valid_and_whole(cli: Cli) -> None:
    schema = json.loads((resources.files("attnviz") / "schemas/heads-1.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(cli("heads", *TEXTS, *SAMPLE, "-f", "json").out)
    jsonschema.Draft202012Validator(schema).validate(data)
    assert len(data["records"]) == len(PATTERNS) * 8
    assert data["n_texts"] == len(TEXTS)
    told = [r for r in data["records"] if r["score"] is not None]
    assert all(r["low"] <= r["score"] + 1e-12 and r["score"] <= r["high"] + 1e-12 for r in told)


def test_texts_from_a_file_are_its_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    assert cli("heads", "--file", str(path), *SAMPLE).out == cli("heads", *TEXTS, *SAMPLE).out
    nothing = cli("heads", *SAMPLE)
    assert (nothing.code, "no text" in nothing.err) == (2, True)


def test_one_pattern_is_a_ranking_and_a_map(cli: Cli, tmp_path: Path) -> None:
    done = cli("heads", *TEXTS, *SAMPLE, "--pattern", "same", "-f", "plain")
    assert "same: excess of every head" in done.out
    path = tmp_path / "same.png"
    assert cli("heads", *TEXTS, *SAMPLE, "--pattern", "same", "-o", str(path)).code == 0
    wrong = cli("heads", *TEXTS, *SAMPLE, "--pattern", "inductoin")
    assert (wrong.code, "did you mean 'induction'" in wrong.err) == (2, True)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_files(cli: Cli, tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"heads{suffix}"
    assert cli("heads", *TEXTS, *SAMPLE, "-o", str(path)).code == 0
    if suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        assert len(rows) == len(PATTERNS) * 8
        assert rows[0]["source"] == "sample-8"


def test_one_text_says_that_it_has_no_interval(cli: Cli) -> None:
    done = cli("heads", TEXTS[0], *SAMPLE)
    assert "intervals need several" in done.err


def test_long_texts_are_cut_and_said_so() -> None:
    report = rank_heads(["bear " * 80, "a cute bear"], weights="sample-8", max_tokens=40)
    assert any("1 of 2 texts were cut to 40 tokens" in n for n in report.notices)


def test_without_sinks_nothing_looks_at_the_first_token() -> None:
    report = rank_heads(TEXTS, weights="sample-8", no_sinks=True)
    raw = rank_heads(TEXTS, weights="sample-8")
    place = report.patterns.index("first")
    assert np.isnan(report.score[place]).all()
    assert not np.isnan(raw.score[place]).any()
    near = report.patterns.index("local")
    assert not np.allclose(report.score[near], raw.score[near])


def test_known_heads_of_minilm(minilm: Path) -> None:
    report = rank_heads(TEXTS, model=str(minilm))
    score = dict(zip(report.patterns, report.score, strict=True))
    assert np.unravel_index(score["previous"].argmax(), (6, 12)) == (0, 2)
    assert score["previous"].max() > 0.99
    assert score["first"].max() > 0.7
    induction = report.patterns.index("induction")
    assert report.score[induction].max() < 3 * report.null[induction].max()


def test_induction_heads_of_smollm2_are_ten_times_the_null(smollm2: Path) -> None:
    report = rank_heads(TEXTS[:1], model=str(smollm2), layer="16-18")
    place = report.patterns.index("induction")
    best = np.argsort(-report.score[place].ravel())[:3]
    assert (report.score[place].ravel()[best] > 10 * report.null[place].ravel()[best]).all()
    assert (report.low[place].ravel()[best] > 10 * report.null[place].ravel()[best]).all()
    assert best[0] == 2 * 9 + 6  # L18.H6
    first = report.patterns.index("first")
    assert report.score[first].max() > 0.95


def test_short_positions_shorten_what_induction_is_measured_on(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source with few positions is asked for no more tokens than it has, whatever the text."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    matrices = {f"w_{n}": rng.normal(size=(8, 4)) for n in "qkv"}
    np.savez("short.npz", embedding=rng.normal(size=(50, 8)), positions=rng.normal(size=(9, 8)),
             vocab=words, **matrices)  # fmt: skip
    done = cli("heads", "w1 w2 w3", "-w", "short.npz", "--pattern", "induction", "-f", "json")
    assert done.code == 0, done.err
    found = [r for r in json.loads(done.out)["records"] if r["pattern"] == "induction"]
    assert [r["n_samples"] for r in found] == [8]
