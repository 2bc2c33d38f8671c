"""Every family against the library's own eager attention: all weights, final states, ≤ 2e-6."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

from drawn_models import DECODERS, ENCODERS, N_WORDS, build, save, theirs

from attnviz.records import LayerHeads
from attnviz.sources.families.attending import weights_of
from attnviz.sources.families.binding import FAMILIES, bind, read_family
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.weights import open_safetensors

KINDS = (*ENCODERS, *DECODERS)
TOLERANCE = 2e-6
IDS = [3 + (11 * i) % (N_WORDS - 3) for i in range(27)]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def open_engine(folder: Path, config: dict[str, Any]) -> Engine:
    family = read_family(config)
    return Engine(family, bind(family, open_safetensors(sorted(folder.glob("*.safetensors")))))


def ours(engine: Engine, ids: list[int]) -> tuple[dict[int, LayerHeads], Any]:
    found: dict[int, LayerHeads] = {}
    layers = range(engine.family.n_layers)
    states = engine.states(ids, layers, lambda _, heads: found.update({heads.layer: heads}))
    return found, states


def differences(engine: Engine, model: Any, ids: list[int]) -> tuple[float, float]:
    """Largest difference of all weights, and of the final states relative to their largest."""
    weights, states = theirs(model, ids)
    found, own = ours(engine, ids)
    assert sorted(found) == list(range(len(weights)))
    of_weights = max(float(np.abs(weights_of(found[i]) - w).max()) for i, w in enumerate(weights))
    return of_weights, float(np.abs(own - states).max() / max(1, np.abs(states).max()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_model_agrees_with_the_library(kind: str, seed: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(kind, seed)
        engine = open_engine(tmp_path, save(model, tmp_path))
        for ids in (IDS, IDS[:6]):
            of_weights, of_states = differences(engine, model, ids)
            assert of_weights <= TOLERANCE, (kind, seed, of_weights)
            assert of_states <= TOLERANCE, (kind, seed, of_states)


def test_every_kind_is_drawn() -> None:
    assert set(KINDS) == set(FAMILIES)
