"""Rollout, value-aware links and maps without sinks, on the screen and in files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import SENTENCE, Result

from attnviz.core.measures.flow import rollout
from attnviz.runs.explain import explain

Cli = Callable[..., Result]


def test_rollout_of_a_model_is_the_product_of_its_layers(cli: Cli, minilm: Path) -> None:
    done = cli("view", "rollout", SENTENCE, "-m", str(minilm), "-f", "json")
    data = json.loads(done.out)
    trace = explain(SENTENCE, model=str(minilm), layer="all", head="all")
    flow = np.eye(len(trace.tokens))
    for weights in trace.stages["weights"]:
        flow = (0.5 * weights.mean(axis=0) + 0.5 * np.eye(len(flow))) @ flow
    shown = np.array([r["flow"] for r in data["records"]]).reshape(flow.shape)
    assert np.abs(shown - flow).max() < 1e-12
    assert np.allclose(rollout(list(trace.stages["weights"])), flow)
    asked = cli("view", "rollout", SENTENCE, "-m", str(minilm), "--token", "teddy")
    assert "what flowed into" in asked.out
    assert "not why the model answered" in asked.out
    part = cli("view", "rollout", SENTENCE, "-m", str(minilm), "--layer", "1")
    assert (part.code, "multiplies the attention of all 6 layers" in part.err) == (2, True)


def test_links_carry_the_length_of_what_they_bring(cli: Cli, minilm: Path) -> None:
    arguments = ("view", "links", SENTENCE, "-m", str(minilm), "-l", "0", "-H", "4", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(cli(*arguments).out)))
    trace = explain(SENTENCE, model=str(minilm), layer="0", head="4")
    assert trace.value_norms is not None
    row = next(r for r in rows if (r["query_label"], r["key_label"]) == ("teddy", "bear"))
    expected = float(row["weight"]) * trace.value_norms[0, 0, int(row["key"])]
    assert float(row["value_norm"]) == pytest.approx(expected)
    zoom = cli("explain", SENTENCE, "-m", str(minilm), "--token", "teddy")
    assert "‖weight·v·W_O‖" in zoom.out
    # a layer without an output projection says nothing about it
    plain = cli("explain", SENTENCE, "-w", "random", "--token", "teddy")
    assert "W_O" not in plain.out


def test_the_map_without_sinks_stands_below_the_raw_one(cli: Cli, minilm: Path) -> None:
    done = cli("heatmap", SENTENCE, "-m", str(minilm), "-l", "2", "-H", "9", "--no-sinks")
    assert done.out.count("weights · L2.H9") == 2
    assert "scaled to sum to 1" in done.out
    wrong = cli("heatmap", SENTENCE, "--stage", "scores", "--no-sinks")
    assert (wrong.code, "--no-sinks is for weights" in wrong.err) == (2, True)


def test_a_rollout_of_a_long_text_is_the_same_rows(
    cli: Cli, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        "view",
        "rollout",
        SENTENCE,
        "-m",
        str(minilm),
        "-t",
        "bear",
        "-t",
        "0",
        "-f",
        "json",
    )
    dense = json.loads(cli(*arguments).out)
    monkeypatch.setattr("attnviz.runs.run.DENSE_MAX_CELLS", 100)
    done = cli(*arguments)
    assert "only the rows of --token are computed" in done.err
    streamed = json.loads(done.out)
    assert streamed["source"]["sha256"] == dense["source"]["sha256"]
    whole = {(r["query"], r["key"]): r["flow"] for r in dense["records"]}
    assert len(streamed["records"]) == 2 * 8
    for record in streamed["records"]:
        assert record["flow"] == pytest.approx(whole[record["query"], record["key"]], abs=1e-6)
    whole_map = cli("view", "rollout", SENTENCE, "-m", str(minilm))
    assert whole_map.code == 4


def test_summary_and_page_carry_the_length_of_what_a_link_brings(
    cli: Cli, minilm: Path, tmp_path: Path
) -> None:
    done = cli("summary", SENTENCE, "-m", str(minilm), "-l", "0", "-H", "4")
    assert "‖w·v·W_O‖" in done.out
    assert "not why the model answered" in " ".join(done.out.split())
    trace = explain(SENTENCE, model=str(minilm), layer="0", head="4")
    assert trace.value_norms is not None
    weight = trace.stages["weights"][0, 0, 3, 4]
    assert f"{weight * trace.value_norms[0, 0, 4]:.4f}" in done.out
    assert "W_O" not in cli("summary", SENTENCE).out
    from attnviz.runs.page import collect

    stack = collect(SENTENCE, model=str(minilm), layer="0", head="4")
    assert np.allclose(stack.value_norms[0], trace.value_norms[0], rtol=1e-5)
    path = tmp_path / "p.html"
    assert cli("page", SENTENCE, "-m", str(minilm), "-o", str(path)).code == 0
    assert '"reach"' in path.read_text(encoding="utf-8")
