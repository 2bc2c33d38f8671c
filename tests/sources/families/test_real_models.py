"""Two real models, all layers, heads and cells: the light engine against the library's eager attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

from support import SENTENCE

from attnviz.sources.families.attending import weights_of
from attnviz.sources.families.opening import open_engine
from attnviz.sources.families.twin import library_twin
from attnviz.sources.models.files import find_model

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", ["minilm", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_a_real_model_is_the_library_s_at_six_and_at_300_tokens(
    name: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    files = find_model(path)
    engine, config, _ = open_engine(files, files.sha256())
    twin = library_twin(engine, files, config, n_layers=engine.family.n_layers)
    words = [sum(map(ord, word)) for word in SENTENCE.split()]
    for ids in (words, [1000 + (37 * i) % 20000 for i in range(300)]):
        weights, states = twin(ids)
        worst: list[float] = []
        own = engine.states(
            ids,
            range(engine.family.n_layers),
            lambda _, heads, theirs=weights, found=worst: found.append(  # type: ignore[misc]
                float(np.abs(weights_of(heads) - theirs[heads.layer]).max())
            ),
        )
        assert len(worst) == len(weights)
        assert max(worst) <= TOLERANCE
        assert np.abs(own - states).max() <= TOLERANCE * max(1, np.abs(states).max())
