"""What files of a view hold: its own numbers, and where they come from."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import HOSTILE, SENTENCE, Result

from attnviz.core.reference import entropy_bits
from attnviz.render.formats import latex
from attnviz.runs.explain import explain

Cli = Callable[..., Result]
VIEWS = ("links", "entropy", "neuron", "grid")
SOURCE = re.compile(r"[0-9a-f]{64}")


def test_parquet_holds_the_same_numbers_as_the_trace(cli: Cli, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "w.parquet"
    assert cli("heatmap", SENTENCE, "-o", str(path), "--causal").code == 0
    table = pq.read_table(path)
    trace = explain(SENTENCE, causal=True)
    weights = np.array(table["weights"].to_pylist()).reshape(6, 6)
    assert np.array_equal(weights, trace.stages["weights"][0, 0])
    assert table["key_label"].to_pylist()[:6] == list(trace.tokens.labels)
    facts = json.loads(table.schema.metadata[b"attnviz"])
    assert facts["source"]["sha256"] == trace.source.sha256
    first = path.read_bytes()
    cli("heatmap", SENTENCE, "-o", str(path), "--causal", "--force")
    assert path.read_bytes() == first


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".tsv", ".parquet", ".npz", ".md", ".tex"])
def test_every_file_says_where_its_numbers_are_from(
    cli: Cli, tmp_path: Path, view: str, suffix: str
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"v{suffix}"
    assert cli("view", view, SENTENCE, "-o", str(path)).code == 0
    content = path.read_bytes().replace(b"\0", b"")  # numpy keeps text in four bytes a character
    sha256 = explain(SENTENCE).source.sha256.encode()
    assert sha256 in content
    for private in (str(Path.home()), str(tmp_path), str(Path.cwd())):
        assert private.encode() not in content


def test_the_numbers_of_entropy_are_entropies(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("view", "entropy", SENTENCE, "-f", "csv").out)))
    weights = explain(SENTENCE).stages["weights"][0, 0]
    assert [float(row["bits"]) for row in rows] == pytest.approx(list(entropy_bits(weights)))


def test_the_numbers_of_a_pair_sum_to_its_score(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pair.npz"
    cli("view", "neuron", SENTENCE, "--token", "teddy", "--key", "bear", "-o", str(path))
    with np.load(path) as found:
        assert found["q_times_k"].sum() == pytest.approx(75.1557, abs=1e-4)
        assert (found["q"] * found["k"] == found["q_times_k"]).all()


def test_a_comment_of_markdown_cannot_be_ended_by_a_name(cli: Cli) -> None:
    out = cli("view", "links", SENTENCE, "-f", "markdown").out
    comment = re.fullmatch(r"<!-- attnviz (\{.*\}) -->", out.splitlines()[0])[1]  # type: ignore[index]
    assert json.loads(comment)["view"] == "links"
    assert not re.search("[<>-]", comment)


@pytest.mark.parametrize("label", HOSTILE)
def test_latex_escapes_every_label(label: str) -> None:
    escaped = latex.escape(label)
    bare = re.sub(r"\\[a-z]+\{\}|\\[{}$&#%_]|\{-\}|\{\[\}|\{\]\}", "", escaped)
    assert not re.search(r"[\\{}$&#%_^~<>|\"`'-]", bare)


def test_latex_is_a_booktabs_table(cli: Cli) -> None:
    out = cli("explain", SENTENCE, "--stage", "weights", "-f", "latex").out
    assert out.count(r"\toprule") == out.count(r"\bottomrule") == 2
    body = out[out.index(r"\midrule") : out.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 6
    assert all(row.count("&") == 6 for row in rows)


def test_the_end_of_the_scale(cli: Cli, tmp_path: Path) -> None:
    words = " ".join(f"w{i}" for i in range(120))
    spread = cli("heatmap", words, "-w", "random", "--width", "60")
    suggested = re.search(r"--max (\S+) spreads", spread.out)
    assert suggested
    asked = cli("heatmap", words, "-w", "random", "--width", "60", "--max", suggested[1])
    assert "spreads" not in asked.out
    assert len(set(asked.out)) >= len(set(spread.out)) - 20
    assert "▓" in asked.out
    assert "what is beyond" in cli("heatmap", SENTENCE, "--max", "0.5").out
    refused = cli("heatmap", SENTENCE, "--max", "-1")
    assert (refused.code, "above 0" in refused.err) == (2, True)
