"""A what-if means the same, and is said the same way, in explain, page, summary and batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import write_model

from attnviz.errors import UsageError
from attnviz.records import LayerHeads, MaskRule, SourceInfo
from attnviz.runs.explain import explain, gather
from attnviz.runs.page import collect
from attnviz.runs.summarize import compute_rectangle, summarize
from attnviz.runs.what_if import NOTICE, WhatIf

CHANGES: dict[str, Any] = {"causal": True, "window": 2, "scale": 0.5}
TEXT = "hello world bear hello"


def layer(**rule: Any) -> LayerHeads:
    q = np.ones((1, 3, 4))
    return LayerHeads(q, q, q, 0.5, visible=MaskRule(**rule), own_output=q)


def test_nothing_asked_is_the_layer_itself() -> None:
    given = layer(causal=True)
    assert WhatIf().apply(given) is given
    assert WhatIf().overrides(given) == {"mask": "causal: no key after the query"}
    assert WhatIf().overrides(layer()) == {}
    assert WhatIf.read() == WhatIf.read(None, 0, None) == WhatIf()


def test_changes_take_the_place_of_the_sources_rule() -> None:
    changed = WhatIf.read(True, 2, "none").apply(layer(chunk=3))
    assert (changed.scale, changed.visible) == (1.0, MaskRule(causal=True, window=2, chunk=3))
    assert changed.own_output is None
    assert WhatIf(causal=False).apply(layer(causal=True)).visible == MaskRule()
    with pytest.raises(UsageError, match="window -1 hides every key"):
        WhatIf(window=-1).apply(layer())
    with pytest.raises(UsageError, match="--scale 0 is not a factor"):
        WhatIf.read(scale=0)


def test_what_is_said() -> None:
    assert WhatIf(True, 2, 0.25).overrides(layer(chunk=3)) == {
        "causal": True, "window": 2, "scale": 0.25, "source_scale": 0.5,
        "mask": "causal: no key after the query, window: 2 keys, itself included, chunks of 3: a query sees its own",
    }  # fmt: skip
    model = SourceInfo("model", "m", "", 1, 1, 1, 4, 4, 4)
    assert WhatIf(True).notices(model) == (NOTICE,)
    assert WhatIf().notices(model) == ()
    assert WhatIf(True).notices(SourceInfo("weight file", "w", "", 1, 1, 1, 4, 4, 4)) == ()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def test_every_run_says_the_same(tiny: Path) -> None:
    asked = {"model": str(tiny), "layer": 0, "head": 0}
    found = [
        run(TEXT, **asked, **CHANGES) for run in (explain, collect, summarize, compute_rectangle)
    ]
    wanted = {
        **CHANGES, "source_scale": pytest.approx(8**-0.5),
        "mask": "causal: no key after the query, window: 2 keys, itself included",
    }  # fmt: skip
    for result in found:
        assert dict(result.run.overrides) == wanted, type(result)
        assert NOTICE in result.notices, type(result)
    for run in (explain, collect, summarize, compute_rectangle):
        plain = run(TEXT, **asked)
        assert dict(plain.run.overrides) == {"mask": "causal: no key after the query"}
        assert NOTICE not in plain.notices


def test_a_batch_says_it_and_keeps_sinks_and_checks(tiny: Path, tmp_path: Path) -> None:
    from attnviz.runs.batch.jobs import Work
    from attnviz.runs.batch.work import Worker

    worker = Worker(Work(source={"model": str(tiny), **CHANGES}))
    assert NOTICE in worker.opened().notices
    trace = gather(worker.place.send(TEXT), worker.heads)
    assert trace.run.overrides["window"] == 2
    assert trace.run.version
    assert set(trace.checks) >= {"row_sum_error", "loop_error"}
    assert trace.x is not None


def test_a_page_of_a_pair_says_what_the_decoders_tokens_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    from attnviz.runs import page

    real = page.open_text

    def opened(text: str, **asked: Any) -> Any:
        given = real(text, **asked)
        said = replace(given.tokens, notices=("the decoder's own",))
        return replace(given, queries=said, keys=given.tokens)

    monkeypatch.setattr(page, "open_text", opened)
    assert "the decoder's own" in collect("a b", weights="random").notices
