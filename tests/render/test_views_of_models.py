"""What views say about traces as only models make them: caps, biases, sinks, steps, two texts, damage."""

from __future__ import annotations

from dataclasses import asdict, replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnviz.core.measures.compare import align_positions, compare_traces
from attnviz.errors import UsageError
from attnviz.records import HeadChoice, Trace
from attnviz.render import export, formulas, overview
from attnviz.render.formats import html, jsonl, parquet, plain
from attnviz.render.formats import json as json_format
from attnviz.render.picture.figure import heatmap_of
from attnviz.render.reports import compare, model
from attnviz.render.reports.batch import say_bytes
from attnviz.render.reports.heads import view as view_heads
from attnviz.render.screen import Screen
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Table, Text
from attnviz.render.terminal.reading import heatmap_sentences
from attnviz.render.text import number_writer
from attnviz.render.views import heatmap, neuron, rollout, walk
from attnviz.runs.explain import explain
from attnviz.sources.models.card_layers import LayerCard


@pytest.fixture(scope="module")
def trace() -> Trace:
    return explain("a cute bear", weights="random", n_heads=2, head="all", d_k=4, d_model=6)


def say(document: Document) -> str:
    return str(plain.render(document, Screen()))


def test_the_walk_of_a_capped_biased_head_with_a_sink(trace: Trace) -> None:
    shape = trace.stages["scores"].shape
    stages = {**trace.stages, "bias": np.ones(shape), "capped": np.ones(shape)}
    odd = replace(
        trace,
        stages=stages,
        softcap=(50.0,),
        sink_share=np.full(shape[:3], 0.25),
        about=replace(trace.about, key_tokens=trace.tokens),
    )
    out = say(walk.view(odd))
    assert "capped = 50 · tanh(scaled / 50)" in out
    assert "bias: a score for the distance, added before the softmax" in out
    assert "weights = softmax(capped)" in out
    assert "rows sum to 1 − the share of a learned sink: 25.0 %, 25.0 %, 25.0 %" in out
    assert "Tokens along the keys" in out
    assert "itself" not in out
    hidden = np.array(trace.visible)
    hidden[..., 2] = False
    assert "weights = softmax(masked)" in say(walk.view(replace(odd, visible=hidden)))


def test_a_query_that_sees_nothing_is_said_and_many_queries_are_cut(trace: Trace) -> None:
    weights = np.array(trace.stages["weights"])
    weights[:, :, 1] = 0
    blind = replace(trace, stages={**trace.stages, "weights": weights})
    assert '1 "cute" may look at no key: its weights and output are 0.' in say(walk.view(blind))
    n = walk._MAX_SENTENCES + 2
    long = explain(" ".join(["bear"] * n), weights="random", d_k=4, d_model=6)
    assert "… and 2 more queries." in say(walk.view(long))


def test_titles_of_numbered_labels_and_the_mean(trace: Trace) -> None:
    twice = replace(trace.tokens, labels=("a", "a", "b"))
    assert [str(label) for label in walk.labels_of(twice)] == ["0:a", "1:a", "2:b"]
    mean = explain("a b", weights="random", n_heads=2, head="mean", d_k=4, d_model=6)
    assert "the mean over all heads, each softmax(scaled)" in walk.formula_of(mean, 0, "weights")
    assert walk.scale_formula(1.0, 2).startswith("scaled = scores, not divided (√d_k would be √2")
    assert walk.scale_formula(0.3, 4) == "scaled = scores · 0.3 (√d_k would divide by √4 = 2)"
    assert (
        walk.scale_formula(2**-0.5, 2) == "scaled = scores / √d_k = scores / √2 = scores / 1.41421"
    )
    with pytest.raises(UsageError, match="choose --head N instead of mean"):
        neuron.view(replace(mean, stages={"weights": mean.stages["weights"]}))


# --- the steps before q and k -------------------------------------------------------------------

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])
BEFORE = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (BEFORE * 0.25, " · 0.25"),
        (BEFORE @ TURN, ", turned by rotary positions: lengths stay"),
        (2 * BEFORE @ TURN, ", turned by rotary positions: lengths grow by 2"),
        (BEFORE + np.array([[9.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), ", changed by the model's own next step"),
        (BEFORE[:2], ", changed by the model's own next step"),
        (BEFORE * 0, " · 0"),
    ],
)  # fmt: skip
def test_what_turns_one_step_into_the_next(after: Any, told: str) -> None:
    assert formulas._change(BEFORE, after) == told


def test_where_q_and_k_come_from(trace: Trace) -> None:
    shape = (1, 2, 3, 4)
    source = replace(trace.source, kind="model", d_model=6)
    inputs = {
        "q_projected": np.ones(shape),
        "k_projected": np.ones(shape),
        "k_normed": np.ones(shape),
    }
    odd = replace(
        trace,
        about=replace(trace.about, source=source),
        inputs=inputs,
        stages={**trace.stages, "q": np.ones(shape) / 2},
    )
    assert formulas.vector_formula(odd, 0, 0, "q") == "q = q_projected · 0.5"
    assert formulas.vector_formula(odd, 0, 0, "k").startswith("k = k_normed")
    assert formulas.vector_formula(odd, 0, 0, "v") == "v = x·W_V: (3 × 6)·(6 × 4) = 3 × 4"
    assert (
        formulas.step_formula(odd, "q_projected") == "q_projected = x·W_Q: (3 × 6)·(6 × 4) = 3 × 4"
    )
    assert "the model's own norm of k_projected" in formulas.step_formula(odd, "k_normed")
    hidden = replace(odd, x=None)
    assert (
        formulas.vector_formula(hidden, 0, 0, "v")
        == "v, as the model hands it to its attention: 3 × 4"
    )
    assert "as the model's own projection gives it: 3 × 4" in formulas.step_formula(
        hidden, "q_projected"
    )
    cross = replace(odd, about=replace(odd.about, key_tokens=odd.tokens))
    assert "y·W_V, y what the encoder gives" in formulas.vector_formula(cross, 0, 0, "v")
    assert "x·W_Q" in formulas.step_formula(cross, "q_projected")


# --- two sides ----------------------------------------------------------------------------------


def test_sides_with_several_heads_are_ranked_by_head(trace: Trace) -> None:
    other = explain(
        "a cute bear", weights="random", n_heads=2, head="all", d_k=4, d_model=6, seed=1
    )
    rows, keys = [(1, 1), (2, 2)], align_positions(3, 3)
    found = compare_traces(trace, other, rows, keys, names=("one", "two"))
    out = say(compare.view(found))
    assert "heads that differ most" in out
    means = found.bits.mean(-1)[0]
    first, second = ("L0.H0", "L0.H1") if means[0] > means[1] else ("L0.H1", "L0.H0")
    table = next(s for s in compare.view(found).shapes if isinstance(s, Table) and "differ most" in str(s.title))  # fmt: skip
    assert [row[0] for row in table.rows] == [first, second]
    assert table.rows[0][1] == pytest.approx(float(means.max()))
    assert f"{other.source.seed}" in out


def test_words_that_stand_side_by_side_by_place_are_both_named() -> None:
    sides = [
        explain(text, weights="random", d_k=4, d_model=6)
        for text in ("a cute bear", "a small bear old")
    ]
    found = compare_traces(
        sides[0], sides[1], [(2, 2)], align_positions(3, 4), names=("one", "two")
    )
    out = say(compare.view(found))
    assert "cute | small" in out
    assert "old" in out
    nothing = replace(found, blame=None, x_cosine=None, z_cosine=None)
    assert "The difference of z comes from" in out
    assert "The difference of z comes from" not in say(compare.view(nothing))
    same = compare_traces(sides[0], sides[0], [(2, 2)], align_positions(3, 3), names=("one", "two"))
    assert "The difference of z comes from" not in say(compare.view(same))


# --- cards, heads, overview ---------------------------------------------------------------------


def test_a_card_with_hybrid_layers_and_without_some_numbers() -> None:
    layers = [
        LayerCard(0, "full_attention", True),
        LayerCard(1, "sliding_attention", True, 8, 1e4),
        LayerCard(2, "mamba", False),
    ]
    card: dict[str, Any] = dict.fromkeys([name for _, name in model._SIZES])
    card |= {"name": "m", "kind": "gguf", "sha256": "0", "architecture": "x", "dtypes": {"F32": 10}, "tokenizer": "",
             "tokenizer_adds": None, "files": ("a",), "layers": [asdict(layer) for layer in layers], "notices": ("odd",),
             "n_layers": 3, "softcap": 50.5, "size_bytes": 40, "run_by": "nobody", "held_bytes": 20}  # fmt: skip
    out = say(model.view(card))
    for words in (
        "no attention",
        "8 keys",
        "all it may",
        "10000",
        "2 of 3 have attention",
        "odd",
        "50.5",
        "none",
    ):
        assert words in out
    assert "encoder layers" not in out
    assert (
        "layers" not in say(model.view({**card, "layers": [], "n_layers": None})).split("sizes")[1]
    )


def test_a_pattern_that_does_not_exist_is_named() -> None:
    report = SimpleNamespace(patterns=("first", "previous"))
    with pytest.raises(UsageError, match=r"pattern 'frist' does not exist.*did you mean 'first'"):
        view_heads(report, pattern="frist")  # type: ignore[arg-type]


def test_one_head_has_no_table_of_heads(trace: Trace) -> None:
    only = replace(trace, ranking=(HeadChoice(0, 1, 1, 0, 0.5, 0.1, 0.1, 0.4),), asked=1)
    assert list(overview.heads_table(only)) == []
    assert len(list(overview.heads_table(replace(only, ranking=only.ranking * 2)))) == 1


def test_rollout_of_some_heads_or_two_texts_is_refused(trace: Trace) -> None:
    for odd in (
        replace(trace, about=replace(trace.about, key_tokens=trace.tokens)),
        replace(trace, heads=(0,)),
        replace(trace, heads=("mean",)),
    ):
        with pytest.raises(UsageError, match="leave out --head"):
            rollout.view(odd)
    deep = replace(
        trace, about=replace(trace.about, source=replace(trace.source, kind="model", n_layers=2))
    )
    with pytest.raises(UsageError, match="of all 2 layers, 1 are here: leave out --layer"):
        rollout.view(deep)


# --- numbers, files, reading --------------------------------------------------------------------


def test_numbers_that_are_none_and_sizes_beyond_a_terabyte() -> None:
    write = number_writer([1.0, np.nan], 2)
    assert [write(x) for x in (np.nan, np.inf, -np.inf, -0.001, 1.5)] == [
        "nan",
        "∞",
        "−∞",
        "0.00",
        "1.50",
    ]
    assert (say_bytes(999), say_bytes(1000), say_bytes(3.2e12)) == ("999 B", "1.0 kB", "3.2 TB")
    assert heatmap._round_up(0) == 1.0
    assert heatmap._round_up(0.0213) == pytest.approx(0.03)


def test_maps_are_read_out_with_what_is_hidden_and_left_out() -> None:
    names = tuple(Label(f"w{i}") for i in range(4))
    hidden = np.zeros((4, 4), bool)
    hidden[0, 1:] = True
    values = np.arange(16.0).reshape(4, 4) - 12
    panels = (
        Matrix("p", values, names, names, hidden=hidden),
        Matrix("q", values, names, names, hidden=np.ones((4, 4), bool)),
    )
    shape = Heatmap(
        "t", panels, (-12.0, 12.0), scale="diverging", value_name="score", notes=("a note",)
    )
    lines = list(heatmap_sentences(shape, Screen()))
    assert lines[1] == "score, 4 rows (query) by 4 columns (key), scale -12 to 12."
    assert lines[2] == "p:"
    assert lines[3].startswith('query 0 "w0", key 0 "w0": score -12')
    assert "3 cells are masked: the query may not look there." in lines
    assert "1 weaker cells are left out; --format csv has every number." in lines
    assert lines[-3:] == ["q:", "Every cell is masked.", "a note"]
    assert heatmap_of(Matrix("m", values, names, names)).limits == (-12.0, 12.0)
    assert heatmap_of(Matrix("m", values, names, names, scale="weights")).limits == (0.0, 1.0)


TABLE = Table("t", (Column("a", "int"), Column("")), ((1, 0.5), (2, 0.25)))


def test_results_that_are_no_trace_have_the_rows_of_their_tables() -> None:
    document = Document((Text(("x",)), TABLE), {"schema": "x"})
    assert list(export.records(document)) == [
        {"table": "t", "a": 1, "share": 0.5},
        {"table": "t", "a": 2, "share": 0.25},
    ]
    assert len(jsonl.render(document, Screen()).splitlines()) == 2
    with pytest.raises(UsageError, match="no arrays: choose"):
        export.arrays(document)


def test_a_result_without_q_and_k_is_a_quiet_page_of_its_tables() -> None:
    said = Text(("said ", Label("<script>alert(1)</script>\x1b")), "note")
    matrix = Matrix(
        "m & n", np.eye(2), (Label("<b>"), Label("=1+1")), formula="f < g", notes=("n",)
    )
    page = html.render(
        Document((Text(("T",), "title"), said, TABLE, matrix), {}, title="a<b"), Screen()
    )
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)  # type: ignore[method-assign, assignment]
    parser.feed(page)
    assert {"h1", "h2", "table", "th", "td", "p"} <= set(tags)
    assert not {"script", "b", "img", "link"} & set(tags)
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert tags.count("tr") == 3 + 3
    assert "<title>a&lt;b</title>" in page
    assert "<p>f &lt; g</p>" in page
    assert '<p class="note">n</p>' in page


def test_parquet_wants_one_table_and_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    other = Table("u", (Column("b"),), ((1.0,),))
    with pytest.raises(UsageError, match="tables of different columns"):
        parquet.render(Document((TABLE, other), {}), Screen())
    with pytest.raises(UsageError, match="has no records"):
        parquet.render(Document((Text(("x",)),), {}), Screen())
    assert parquet._plain("a\ud800") == "a\\ud800"
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'attnviz\[parquet\]'"):
        parquet.render(Document((TABLE,), {}), Screen())


def test_steps_of_a_model_are_arrays_too(trace: Trace) -> None:
    odd = replace(trace, inputs={"q_projected": np.ones((1, 2, 3, 4), np.float32)})
    found, _ = export.arrays(Document((), odd))
    assert found["q_projected"].dtype == np.float64
    assert {"x", "visible", "weights"} <= set(found)
    chosen, _ = export.arrays(Document((), odd, stages=("q_projected",)))
    assert set(chosen) == {"q_projected", "visible"}


def test_json_of_numpy_numbers_and_what_is_not_finite() -> None:
    record = {"a": np.float32(0.5), "b": np.int64(3), "c": np.array([1.0, np.nan]), "d": np.array([1, 2]),
              "e": (np.inf, {"f": None}), "g": np.array([True])}  # fmt: skip
    wanted = {
        "a": 0.5,
        "b": 3,
        "c": [1.0, None],
        "d": [1, 2],
        "e": [None, {"f": None}],
        "g": [True],
    }
    assert export.json_ready(record) == wanted
    assert '"b": 3' in json_format.render(Document((), record), Screen()).replace('"b":3', '"b": 3')


def test_a_stage_that_is_not_there_lists_those_that_are(trace: Trace) -> None:
    with pytest.raises(UsageError, match="stage 'wieghts' does not exist"):
        heatmap.stage_panels(trace, "wieghts")
    with pytest.raises(UsageError, match="there is no stage 'capped' here: this result has"):
        heatmap.stage_panels(trace, "capped")
    assert trace.to_numpy().keys() == trace.stages.keys()
