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

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.records import LayerHeads, Tokens
from attnviz.runs import (  # fmt: skip
    explain,
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


def opened_with_keys(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    opened = run.open_text("a b c", **TINY)
    other = replace(opened, keys=run.open_text("x y", **TINY).tokens)
    monkeypatch.setattr(module, "open_text", lambda *_, **__: other)


def test_cross_attention_has_no_rollout_and_no_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with_keys(monkeypatch, rollout)
    with pytest.raises(
        UsageError, match="rollout is about self attention: queries and keys differ"
    ):
        rollout.stream_rollout("a b c", ["a"])
    wide = LayerHeads(q=np.ones((1, 2, 3)), k=np.ones((1, 4, 3)), v=np.ones((1, 4, 3)), scale=1.0)
    crossed = SimpleNamespace(each=lambda consume: consume(wide))
    with pytest.raises(UsageError, match="patterns are about self attention"):
        patterns._maps(crossed, None, {}, {})  # type: ignore[arg-type]


def test_rollout_of_a_long_text_tells_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnviz.core.measures import flow

    monkeypatch.setattr(rollout, "_ROWS", 3)
    text = "a cute teddy bear is reading"
    told: list[tuple[int, int]] = []
    asked = {**TINY, "n_heads": 2}
    found = rollout.stream_rollout(text, ["bear", "0"], progress=lambda *n: told.append(n), **asked)
    assert told == [(n, 4) for n in range(1, 5)]
    weights = explain.explain(text, head="all", **asked).stages["weights"][0]
    np.testing.assert_allclose(found.flow, flow.rollout([weights])[[3, 0]], atol=1e-6)
    assert (found.queries, found.heads, found.layers) == ((3, 0), (0, 1), (0,))


def test_no_text_and_texts_that_tell_nothing() -> None:
    with pytest.raises(UsageError, match="no text: give one or more, or --file"):
        patterns.rank_heads([])
    with pytest.raises(InputError, match="too short to tell anything"):
        patterns.rank_heads(["a"], **TINY)


def test_too_many_cells_for_head_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "AUTO_MAX_CELLS", 17)
    with pytest.raises(ResourceError, match="3 tokens, 1 layers and 2 heads make 18 cells"):
        explain.explain("a b c", **{**TINY, "n_heads": 2}, head="auto")
    monkeypatch.setattr(run, "AUTO_MAX_CELLS", 18)
    assert explain.explain("a b c", **{**TINY, "n_heads": 2}, head="auto").ranking


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
