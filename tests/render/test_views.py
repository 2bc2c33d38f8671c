"""Views in the terminal: they fit any width, lose no strong cell, survive hostile tokens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from support import HOSTILE, SENTENCE

from attnviz.errors import UsageError
from attnviz.render.formats import latex, markdown, plain, table
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Label, Matrix
from attnviz.render.views import entropy, grid, heatmap, links, neuron
from attnviz.runs.explain import explain

SGR = re.compile(r"\x1b\[[0-9;]*m")


def drawn(values: Any, names: tuple[str, ...] = (), hidden: Any = None, **screen: Any) -> str:
    values = np.asarray(values)
    shown = tuple(Label(n) for n in names) or tuple(Label(f"w{i}") for i in range(len(values)))
    matrix = Matrix("m", values, shown, shown, hidden=hidden)
    return table.render(Document((Heatmap("weights", (matrix,), (0.0, 1.0)),)), Screen(**screen))


@pytest.mark.parametrize("colors", ["none", "standard", "256", "truecolor"])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("n", [1, 6, 24, 60, 300, 2048])
def test_a_heatmap_always_fits(n: int, width: int, colors: str) -> None:
    lines = SGR.sub("", drawn(np.eye(n), width=width, colors=colors)).splitlines()
    cells = [line for line in lines if not line.startswith(("each cell", "every", "in ", "weight"))]
    assert max(cell_len(line) for line in cells) <= width
    assert len(lines) < 2 * width + 80


@pytest.mark.parametrize("n", [300, 2048])
def test_pooling_is_said_and_keeps_one_strong_cell(n: int) -> None:
    values = np.zeros((n, n))
    values[n // 2, 3] = 1.0
    out = drawn(values, width=80)
    assert out.split("weight 0")[0].count("█") == 1
    assert "each cell is the largest of" in out
    assert "8;38;68" in drawn(values, width=80, colors="truecolor").rsplit("weight 0", 1)[0]


def test_a_hundred_thousand_tokens_already_pooled_fit_and_say_so() -> None:
    names = tuple(Label(f"w{1000 * i}") for i in range(100))
    matrix = Matrix("m", np.eye(100), names, names)
    shape = Heatmap("weights", (matrix,), (0.0, 1.0), pooled=1000)
    out = table.render(Document((shape,)), Screen(width=80))
    assert "2000 × 2000 cells" in out


def test_numbers_are_all_there_in_a_pipe() -> None:
    values = np.arange(900.0).reshape(30, 30) / 900
    out = drawn(values)
    assert len(re.findall(r"\b[01]\.\d\d\b", out)) == 900


def test_masked_cells_are_told_from_zero() -> None:
    hidden = np.array([[False, True], [False, False]])
    out = drawn(np.array([[1.0, 0.0], [0.0, 1.0]]), hidden=hidden)
    assert "·" in out.splitlines()[2]
    assert "masked" in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
@pytest.mark.parametrize("colors", ["none", "truecolor"])
def test_hostile_tokens_reach_no_terminal(colors: str, encoding: str) -> None:
    n = len(HOSTILE)
    for width in (None, 30, 80):
        out = SGR.sub("", drawn(np.eye(n), HOSTILE, width=width, colors=colors, encoding=encoding))
        out.encode(encoding)
        assert not {c for c in out if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)}
        assert "\u202e" not in out
        assert "\u200d" not in out


def test_plain_reads_the_strongest_cells() -> None:
    values = np.array([[0.1, 0.9], [0.5, 0.5]])
    matrix = Matrix("m", values, (Label("a"), Label("b")), (Label("a"), Label("b")))
    shown = Document((Heatmap("weights", (matrix,), (0.0, 1.0)),))
    lines = plain.render(shown, Screen()).splitlines()
    assert lines[3] == 'query 0 "a", key 1 "b": weight 0.9000.'


@pytest.fixture(scope="module")
def trace() -> Any:
    return explain(SENTENCE, weights="random", n_heads=4, head="all", causal=True)


@pytest.mark.parametrize("stage", heatmap.STAGES)
def test_every_stage_is_a_picture_or_says_why_not(trace: Any, stage: str) -> None:
    if stage not in trace.stages:
        with pytest.raises(UsageError, match="there is no stage"):
            heatmap.view(trace, stage=stage)
        return
    shape = heatmap.view(trace, stage=stage).shapes[1]
    assert isinstance(shape, Heatmap)
    assert len(shape.panels) == 4
    low, high = shape.limits
    assert (low, high) == (0.0, 1.0) if stage == "weights" else low == -high
    if stage == "masked":
        assert np.isfinite(high)


def test_links_are_the_strongest_of_each_query(trace: Any) -> None:
    weights = np.asarray(trace.stages["weights"][0, 0])
    found = links.view(trace).shapes[1].links  # type: ignore[union-attr]
    assert [w for _, _, w in found] == sorted((w for _, _, w in found), reverse=True)
    for query, key, weight in found:
        assert weight == weights[query, key]
        assert weight >= links.LEAST
    assert {(q, int(weights[q].argmax())) for q in range(len(weights))} <= {
        (q, k) for q, k, _ in found
    }


def test_the_neuron_view_adds_up_to_the_score(trace: Any) -> None:
    shown = neuron.view(trace, queries=(5,), keys=(2,))
    score = trace.stages["scores"][0, 0, 5, 2]
    bars = next(s for s in shown.shapes if hasattr(s, "curves"))
    assert np.isclose(sum(bars.curves["q[e]·k[e]"]), score)
    with pytest.raises(UsageError, match="one pair"):
        neuron.view(trace, queries=(1, 2))


def test_entropy_of_one_key_is_zero_and_of_equal_keys_log2(trace: Any) -> None:
    shape = entropy.view(trace).shapes[1]
    assert isinstance(shape, Heatmap)
    assert np.allclose(shape.panels[0].values[:, 0], 0.0)
    assert shape.limits == (0.0, np.log2(6))
    assert float(shape.panels[0].values.max()) <= np.log2(6)


def test_the_grid_has_a_thumbnail_for_every_head(trace: Any) -> None:
    out = table.render(grid.view(trace), Screen(width=60))
    assert all(f"H{h}" in out for h in range(4))
    assert max(cell_len(line) for line in out.splitlines()) <= 80


def test_latex_and_markdown_escape_every_token() -> None:
    n = len(HOSTILE)
    names = tuple(Label(w) for w in HOSTILE)
    shown = Document((Heatmap("t", (Matrix("m", np.eye(n), names, names),), (0.0, 1.0)),))
    tex = latex.render(shown, Screen())
    body = tex[tex.index(r"\toprule") : tex.index(r"\bottomrule")]
    assert re.search(r"(?<!\\)[$#%]", body) is None
    assert all(line.count(" & ") == n for line in body.splitlines() if line.endswith(r"\\"))
    assert "<script" not in body
    assert re.search(r"(?<!\\)<script", markdown.render(shown, Screen())) is None
