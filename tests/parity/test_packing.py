"""Texts packed into one row give what each gives alone; models where they would not are left alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

import torch
from architectures import ARCHITECTURES, build

from attnviz.core.measures.figures import measure
from attnviz.records import LayerHeads
from attnviz.runs.batch.forward import Packed, Single
from attnviz.sources.models.capture import packing
from attnviz.sources.models.capture.packing import Packer, open_packer
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.loading import wrap
from attnviz.sources.models.planning import KINDS, make_plan
from attnviz.sources.models.source import TransformersSource

LENGTHS = (23, 14, 14, 5, 1)
PACKED = ("RoBERTa", "GPT-2", "Mistral", "Gemma 2", "GPT-OSS", "Llama 4")
APART = ("T5", "BLOOM", "Qwen3-Next")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def source_of(name: str) -> TransformersSource:
    load_transformers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = wrap(build(next(e for e in ARCHITECTURES if e.name == name)))
        plan = make_plan(loaded.model, loaded.body, loaded.probe(), dtype="float32", name=name)
    files = ModelFiles(Path(), (), "safetensors", name)
    which = next(kind for kind in KINDS if plan.of(kind))
    return TransformersSource(files, files, "", None, loaded, plan, which)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PACKED)
def test_packed_is_alone(name: str) -> None:
    source = source_of(name)
    packer = open_packer(source)
    assert packer is not None
    texts = [packing._probe(n, 3 * n + i, 99) for i, n in enumerate(LENGTHS)]
    alone: list[dict[int, LayerHeads]] = [{} for _ in texts]
    for kept, tokens in zip(alone, texts, strict=True):
        source.run(
            tokens, source.layers, lambda heads, kept=kept: kept.update({heads.layer: heads})
        )
    seen = []

    def consume(places: tuple[int, ...], joined: LayerHeads) -> None:
        for at, i in enumerate(places):
            own = alone[i][joined.layer]
            seen.append((i, joined.layer))
            assert (own.scale, own.softcap) == (joined.scale, joined.softcap)
            for part in ("q", "k", "v", "own_output"):
                wanted = getattr(own, part)
                found = getattr(joined, part)[at * len(wanted) : (at + 1) * len(wanted)]
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            n_heads = own.n_heads
            ours, theirs = measure(joined, with_parity=True), measure(own)
            assert (ours.parity or 0) < 1e-4
            for figure in ("entropy_H", "distance_H", "sink_H"):
                found = getattr(ours, figure)[at * n_heads : (at + 1) * n_heads]
                np.testing.assert_allclose(found, getattr(theirs, figure), atol=2e-5)

    packer.run(texts, source.layers, consume)
    assert len(set(seen)) == len(seen) == len(texts) * len(source.layers)


@pytest.mark.parametrize("name", APART)
def test_a_model_whose_texts_would_meet_is_not_packed(name: str) -> None:
    assert open_packer(source_of(name)) is None


def test_figures_come_in_the_order_of_the_texts() -> None:
    source = source_of("Mistral")
    texts = [packing._probe(n, n, 99) for n in (9, 3, 9, 6)]
    packed = Packed(open_packer(source), source.layers, lambda heads: heads, 64)
    single = Single(source, source.layers, lambda heads: heads)
    found = packed.run(texts, n_links=2, with_parity=False)
    wanted = single.run(texts, n_links=2, with_parity=False)
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.entropy_H, b.entropy_H, atol=1e-5)
            np.testing.assert_array_equal(a.link_keys_HN[:, 0], b.link_keys_HN[:, 0])


def test_the_trial_catches_texts_that_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: with running positions, or one rule lost, nothing is packed."""
    source = source_of("RoBERTa")
    monkeypatch.setattr(Packer, "_positions", lambda self, ids: list(range(len(ids))))
    assert open_packer(source) is None
    monkeypatch.undo()
    monkeypatch.setattr(packing, "_mask", lambda *_: None)
    assert open_packer(source_of("Mistral")) is None
