"""What is asked for and cannot be: tokens, layers and scales that are none, texts of another kind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnviz.core.measures.flow import RolloutRows
from attnviz.core.stream.summary import Summary
from attnviz.errors import InputError, TooLong, UsageError
from attnviz.records import LayerHeads, Tokens, Trace
from attnviz.runs import (  # fmt: skip
    explain,
    heatmap,
    pool_words,
    request,
    rollout,
    run,
    summarize,
)
from attnviz.runs import heads as patterns
from attnviz.runs.batch.jobs import Result

TINY: dict[str, Any] = {"weights": "random", "d_model": 8, "d_k": 4}


# --- requests -----------------------------------------------------------------------------------


def tokens_of(text: str, *spans: tuple[int, int] | None) -> Tokens:
    labels = tuple("·" if span is None else text[slice(*span)] for span in spans)
    n = len(spans)
    return Tokens(
        text, tuple(range(n)), labels, labels, spans, tuple(span is None for span in spans)
    )


def test_tokens_that_do_not_exist_or_are_cut() -> None:
    tokens = tokens_of("unbearable bears", (0, 2), (2, 6), (6, 10), (11, 16))
    with pytest.raises(UsageError, match="token 4 does not exist: the text has 0 to 3"):
        request.find_tokens(tokens, ["4"])
    with pytest.raises(UsageError, match="token -5 does not exist"):
        request.find_tokens(tokens, ["-5"])
    assert request.find_tokens(tokens, ["-4", "3"]) == (0, 3)
    with pytest.raises(UsageError, match="'unbearable' is cut into 3 tokens, 0:un, 1:bear, 2:able"):
        request.find_tokens(tokens, ["unbearable"])
    with pytest.raises(
        UsageError, match="'ear' is a part of the token 1:bear: choose it by its number"
    ):
        request.find_tokens(tokens, ["ear"])
    with pytest.raises(UsageError, match="no token ' ' in this text: there are 0:un"):
        request.find_tokens(tokens, [" "])


def test_layers_without_attention_are_refused_with_those_that_have_it() -> None:
    with pytest.raises(
        UsageError,
        match=r"layer 0 has no attention: choose from 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, …",
    ):
        request.choose_layers("0", tuple(range(1, 40, 2)), 40)
    with pytest.raises(UsageError, match=r"layer 2 has no attention: choose from 1$"):
        request.choose_layers("2", (1,), 3)
    for scale in ("0", "-1", "x", "nan", "inf"):
        with pytest.raises(UsageError, match="is not a factor: give a number above 0, or none"):
            request.parse_scale(scale)


# --- long texts, two texts, many heads ----------------------------------------------------------


def test_cross_attention_has_no_rollout_and_no_patterns() -> None:
    opened = run.open_text("a b c", **TINY)
    crossed = replace(opened, keys=run.open_text("x y", **TINY).tokens)
    with pytest.raises(
        UsageError, match="rollout is about self attention: queries and keys differ"
    ):
        rollout.stream_rollout(crossed, ["a"])
    wide = LayerHeads(q=np.ones((1, 2, 3)), k=np.ones((1, 4, 3)), v=np.ones((1, 4, 3)), scale=1.0)
    other = SimpleNamespace(each=lambda consume: consume(wide))
    with pytest.raises(UsageError, match="patterns are about self attention"):
        patterns._maps(other, None, {}, {})  # type: ignore[arg-type]


def test_rollout_of_a_long_text_tells_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnviz.core.measures import flow

    monkeypatch.setattr(rollout, "_ROWS", 3)
    text = "a cute teddy bear is reading"
    told: list[tuple[int, int]] = []
    asked = {**TINY, "n_heads": 2}
    monkeypatch.setattr(run, "DENSE_MAX_CELLS", 36)
    found = rollout.rollout(text, token=["bear", "0"], progress=lambda *n: told.append(n), **asked)
    assert isinstance(found, RolloutRows)
    assert "only the rows of --token are computed" in found.notices[-1]
    with pytest.raises(TooLong, match="6 tokens and 2 heads make 72 cells"):
        rollout.rollout(text, **asked)
    monkeypatch.undo()
    assert told == [(n, 4) for n in range(1, 5)]
    weights = explain.explain(text, head="all", **asked).stages["weights"][0]
    np.testing.assert_allclose(found.flow, flow.rollout([weights])[[3, 0]], atol=1e-6)
    assert (found.queries, found.heads, found.layers) == ((3, 0), (0, 1), (0,))


def test_no_text_and_texts_that_tell_nothing() -> None:
    with pytest.raises(UsageError, match="no text: give one or more, or --file"):
        patterns.rank_heads([])
    with pytest.raises(InputError, match="too short to tell anything"):
        patterns.rank_heads(["a"], **TINY)


@pytest.mark.parametrize("token", [None, "teddy"])
def test_head_auto_chooses_the_same_streamed(monkeypatch: pytest.MonkeyPatch, token: Any) -> None:
    asked: dict[str, Any] = {**TINY, "n_heads": 5, "head": "auto", "token": token}
    text = "a cute teddy bear is reading to a small bear"
    dense = explain.explain(text, **asked).ranking
    said: list[str] = []
    monkeypatch.setattr(run, "AUTO_MAX_CELLS", 17)
    streamed = explain.explain(text, notify=said.append, **asked).ranking
    assert said[0].startswith("looking for the most telling of 5 heads over 10 tokens")
    assert [(c.head, c.query, c.key) for c in streamed] == [(c.head, c.query, c.key) for c in dense]
    for ours, theirs in zip(streamed, dense, strict=True):
        assert ours.telling == pytest.approx(theirs.telling, abs=1e-5)
    monkeypatch.setattr(run, "DENSE_MAX_CELLS", 99)
    with pytest.raises(TooLong):  # words are pooled from a head held whole
        explain.explain(text, words=True, **asked)


def test_a_heatmap_falls_back_to_the_streamed_map_alike_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {**TINY, "n_heads": 5, "head": "auto"}
    text = "a cute teddy bear is reading to a small bear"
    dense = heatmap.heatmap(text, **asked)
    assert isinstance(dense, Trace)
    monkeypatch.setattr(run, "DENSE_MAX_CELLS", 99)
    opened: list[str] = []
    real = run.open_source
    monkeypatch.setattr(run, "open_source", lambda **how: opened.append("once") or real(**how))
    found = heatmap.heatmap(text, **asked)
    assert opened == ["once"]
    assert isinstance(found, Summary)
    assert (found.heads, found.asked) == (dense.heads, None)
    assert found.ranking[0].head == dense.heads[0]
    assert found.notices[-1] == (
        "10 tokens and 1 heads make 100 cells, too many to hold: streamed, and pooled by the largest"
    )
    np.testing.assert_allclose(
        found.by_layer[0].map_max_HRR[0], dense.stages["weights"][0, 0], atol=1e-6
    )
    for more in ({"stage": "scores"}, {"no_sinks": True}, {"head": "mean"}):
        with pytest.raises(TooLong, match="cells: at most 99 are held"):
            heatmap.heatmap(text, **{**asked, **more})
    with pytest.raises(UsageError, match="a heatmap shows every query"):
        heatmap.heatmap(text, **{**asked, "head": 1}, token="cute")


def test_summaries_refuse_what_is_of_dense_traces_and_say_when_they_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for more, told in (({"head": "mean"}, "has no head 'mean'"), ({"head": "auto"}, "has no head 'auto'"),
                       ({"words": True}, "leave --words out")):  # fmt: skip
        with pytest.raises(UsageError, match=told):
            summarize.summarize("a b c", **TINY, **more)
    said: list[str] = []
    monkeypatch.setattr(summarize, "_SLOWLY_CUT", 4)
    summarize.summarize("a b c", **TINY, notify=said.append)
    assert said[0] == "cutting 5 characters into tokens"
    with pytest.raises(UsageError, match="--words pools weights, which this result does not have"):
        pool_words.pool_words(SimpleNamespace(stages={}))  # type: ignore[arg-type]


def test_a_python_module_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    import attnviz

    assert set(attnviz.__all__) <= set(dir(attnviz))
    assert attnviz.load("random", d_model=8, d_k=4).info.kind
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "--version"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.decode().strip().split()[-1]) == (0, attnviz.__version__)
    assert os.environ["XDG_CONFIG_HOME"]
    assert Result(0, 0, 0, 0, 0, 0).parity is None
