"""Tensors and settings of folders accounted for, in small; and that the campaign sees what is not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("accelerate", reason="needs the extra 'models'")

import accounting
from accounting import ARCHITECTURES, account_for, additions, build, steps
from sweep import LENGTHS, VARIANTS, candidates, text_of
from tiny_models import write_tokenizer

from attnviz.records import LayerHeads
from attnviz.sources.families.attending import split_texts
from attnviz.sources.families.binding import FAMILIES, bind, read_family
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.weights import open_safetensors
from attnviz.sources.models.files import find_model, read_config
from attnviz.sources.models.library import load_transformers

pytestmark = pytest.mark.usefixtures("one_thread", "own_cache")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def kinds() -> dict[str, Any]:
    return {name: pair for name, *pair in candidates(load_transformers())}


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_each_change_changes_the_answer_as_the_original_or_is_refused(
    name: str, tmp_path: Path
) -> None:
    """Every 19th change: a fortieth of what `make sweep` does, which takes most of an hour."""
    found = account_for(name, kinds(), tmp_path / "model", every=19)
    assert found.faults == []
    assert found.counts["tensor added"]["refused"] > 0
    assert found.counts["tensor renamed"]["refused"] > 0


def test_at_least_sixty_architectures_are_accounted_for() -> None:
    assert len(set(ARCHITECTURES)) >= 60
    assert set(ARCHITECTURES) <= kinds().keys()


def test_the_campaign_sees_what_is_not_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left-over and absent tensors pass, and a setting is read as another."""
    monkeypatch.setattr("attnviz.sources.models.loading.check_left_over", lambda *_, **__: None)
    monkeypatch.setattr("attnviz.sources.models.loading.check_absent", lambda *_, **__: None)
    monkeypatch.setattr("attnviz.sources.families.binding.is_aside", lambda *_, **__: True)
    read = accounting.read_config
    monkeypatch.setattr(
        accounting, "read_config", lambda folder: {**read(folder), "rms_norm_eps": 1e-6}
    )
    found = account_for("llama", kinds(), tmp_path / "model", every=11)
    said = {fault.partition(":")[0] for fault in found.faults}
    assert said >= {"tensor added", "light tensor added", "tensor renamed"}


def test_steps_reach_nested_settings_and_additions_reach_every_matrix() -> None:
    config = {"a": 2, "b": True, "rope": {"theta": 1.0}, "model_type": "x", "c": None}
    assert [label for label, _ in steps(config)] == [
        "a 2 → 3", "a 2 → 1", "a 2 → 4", "b True → False", "rope.theta 1.0 → 1.5",
    ]  # fmt: skip
    tensors = {"l.q.weight": np.zeros((3, 2)), "l.q.bias": np.zeros(3), "norm.weight": np.zeros(2)}
    names = {name for name, _ in additions(tensors)}
    assert "l.q.lora_A.weight" in names
    assert "l.q.bias" not in names


LIGHT = [
    *FAMILIES,
    *(
        name
        for name, kind, _ in VARIANTS
        if kind in FAMILIES and ("LongRoPE" not in name or kind == "phi3")
    ),
]  # LongRoPE in other families than Phi-3 is left to the library


@pytest.mark.parametrize("name", LIGHT)
def test_a_text_has_the_same_numbers_alone_and_in_a_packed_row(name: str, tmp_path: Path) -> None:
    """Texts of 3 to 60 tokens; windows and rotary thresholds (8, 16) lie among them."""
    variants = {label: (kind, changes) for label, kind, changes in VARIANTS}
    kind, changes = variants.get(name, (name, {}))
    build(kind, kinds(), **changes).save_pretrained(str(tmp_path))
    write_tokenizer(tmp_path, bos=False)
    files = find_model(tmp_path)
    family = read_family(read_config(files.folder))
    engine = Engine(family, bind(family, open_safetensors(files.weights)))
    layers = range(family.n_layers)
    limit = family.n_positions or max(LENGTHS)
    texts = [text_of(n, shift=13 * n).ids for n in LENGTHS if n <= limit]
    if not engine.can_pack(max(map(len, texts))):
        texts = [ids for ids in texts if engine.can_pack(len(ids))]
    packed: dict[tuple[int, int], LayerHeads] = {}

    def hand_on(places: Any, heads: LayerHeads) -> None:
        for place, one in zip(places, split_texts(heads, len(places)), strict=True):
            packed[place, one.layer] = one

    engine.run_packed(texts, layers, hand_on)
    for place, ids in enumerate(texts):
        alone: list[LayerHeads] = []
        engine.run(ids, layers, lambda _, heads, to=alone: to.append(heads))
        for heads in alone:
            beside = packed[place, heads.layer]
            for part in ("q", "k", "v", "own_output"):
                a, b = np.asarray(getattr(heads, part)), np.asarray(getattr(beside, part))
                assert np.abs(a - b).max() <= 1e-5 * max(1.0, np.abs(a).max()), part
