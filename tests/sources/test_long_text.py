"""A long text: projected in stretches, and the same numbers as in one go."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from attnviz.core import reference
from attnviz.errors import InputError
from attnviz.records import LayerHeads
from attnviz.runs.pipeline import open_source
from attnviz.sources import layer as layers

TEXT = "the old man and the sea " * 40


def heads_of(source: Any, text: str) -> LayerHeads:
    found: list[LayerHeads] = []
    source.run(source.tokenize(text), (0,), found.append)
    return found[0]


@pytest.mark.parametrize("core", ["numpy", "torch"])
def test_stretches_give_the_same_q_k_v(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    from attnviz.core import attend

    project: Any = reference.project if core == "numpy" else attend.project
    source: Any = open_source(weights="sample", project=project)
    positions = np.random.default_rng(0).standard_normal((400, source.layer.d_model))
    source = dataclasses.replace(
        source, layer=dataclasses.replace(source.layer, positions=positions)
    )
    whole = heads_of(source, TEXT)
    monkeypatch.setattr(layers, "STRETCH", 37)
    parts = heads_of(source, TEXT)
    assert whole.x is not None
    assert parts.x is None
    for name in ("q", "k", "v"):
        ours, expected = (np.asarray(getattr(one, name)) for one in (parts, whole))
        assert ours.dtype == expected.dtype
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="480 tokens, but the layer has positions for 400"):
        heads_of(source, TEXT * 2)
