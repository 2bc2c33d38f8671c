"""The sweep over architectures in small: the kinds that were once wrong, and that it sees a wrong one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("accelerate", reason="needs the extra 'models'")

import sweep
from sweep import CHANGES, VARIANTS, candidates, open_tiny, sweep_one, text_of, tiny_models

from attnviz.errors import InputError, UsageError
from attnviz.records import LayerHeads
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.loading import wrap
from attnviz.sources.models.source import TransformersSource

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {name: (kind, changes) for name, kind, changes in VARIANTS}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def kinds() -> dict[str, Any]:
    return {name: pair for name, *pair in candidates(load_transformers())}


def found_of(name: str) -> sweep.Found:
    kind, changes = SETTINGS.get(name, (name, {}))
    return sweep_one(name, *kinds()[kind], **{**CHANGES.get(kind, {}), **changes})


def source_of(name: str, **more: Any) -> TransformersSource:
    kind, changes = SETTINGS.get(name, (name, {}))
    settings = {**CHANGES.get(kind, {}), **changes, **more}
    for _, built in tiny_models(*kinds()[kind], **settings):
        if not isinstance(built, Exception):
            return open_tiny(wrap(built), name)
    raise AssertionError(f"{name} was not built")


def heads_of(source: TransformersSource, n: int) -> list[LayerHeads]:
    got: list[LayerHeads] = []
    source.run(text_of(n), source.layers, got.append)
    return got


@pytest.mark.parametrize(
    "name",
    [
        "llama", "bert", "t5", "bamba", "clip",
        "phi3, LongRoPE", "llama, dynamic rope", "bigbird_pegasus, one random block",
        "gemma4_text, one key head in global layers", "glm_moe_dsa", "switch_transformers",
    ],
)  # fmt: skip
def test_a_text_gives_the_models_own_numbers_alone_and_in_any_company(name: str) -> None:
    found = found_of(name)
    assert found.outcome == "exact", found


@pytest.mark.parametrize("name", ["canine", "funnel", "cpmant", "longformer", "mamba"])
def test_what_cannot_be_read_is_refused(name: str) -> None:
    found = found_of(name)
    assert (found.outcome, found.weights) == ("refused", 0.0), found


def test_the_sweep_sees_a_text_changed_by_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.sources.models.source.shared_up_to", lambda config: None)
    assert found_of("phi3, LongRoPE").outcome == "wrong"


def test_the_sweep_sees_a_state_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr("attnviz.sources.models.loading.unchanged", nullcontext)
    assert found_of("llama, dynamic rope").outcome == "wrong"


def test_the_sweep_sees_a_wrong_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TransformersSource.run

    def off(self: Any, tokens: Any, layers: Any, consume: Any) -> None:
        run(self, tokens, layers, lambda heads: consume(replace(heads, scale=heads.scale * 1.01)))

    monkeypatch.setattr(TransformersSource, "run", off)
    assert found_of("llama").outcome == "wrong"


def test_N44_a_text_beyond_the_self_checks_way_is_refused_and_the_next_one_is_right() -> None:
    source = source_of("bigbird_pegasus, one random block")
    before = heads_of(source, 9)
    for _ in range(2):
        with pytest.raises(InputError, match="takes another way through"):
            heads_of(source, 40)
    for a, b in zip(before, heads_of(source, 9), strict=True):
        assert np.array_equal(a.own_output, b.own_output)


def test_F6_layers_with_different_numbers_of_key_heads_are_handed_on_alike() -> None:
    source = source_of("gemma4_text, one key head in global layers")
    counts = {call.n_kv_heads for call in source.plan.of("self").values()}
    assert counts == {1, 2}
    for heads in heads_of(source, 9):
        assert heads.n_kv_heads == source.info.n_kv_heads == 2
        for step in ("k_projected", "k_normed"):
            assert heads.inputs[step].shape == heads.k.shape


def test_writing_across_a_length_at_which_rows_change_is_refused() -> None:
    source = source_of("phi3, LongRoPE")
    source._check_rows_stay(text_of(9), 7)
    source._check_rows_stay(text_of(20), 7)
    with pytest.raises(UsageError, match="its config changes at 16 tokens"):
        source._check_rows_stay(text_of(9), 8)
    with pytest.raises(UsageError, match="its config changes at 16 tokens"):
        source_of("llama, dynamic rope")._check_rows_stay(text_of(20), 3)


def test_F13_positions_are_counted_from_behind_the_paddings_own() -> None:
    source = source_of("luke", pad_token_id=1)
    assert source.info.n_positions == 126
    assert len(heads_of(source, 126)) == len(source.layers)
    with pytest.raises(InputError, match="127 tokens, but luke has positions for 126"):
        heads_of(source, 127)


@pytest.mark.slow
def test_every_text_architecture_is_exact_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([]) == 0
