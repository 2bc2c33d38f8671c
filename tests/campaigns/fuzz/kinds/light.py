"""How the light engine reads a model, whatever its form: opened, bound to its family, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnviz.errors import InputError

IDS = [3, 1, 2]


def run_light(path: Path, sha256: str | None = None) -> object:
    """Open and run a model as ``--engine light`` does, tokenizer and comparison left out."""
    from attnviz.sources.families.opening import open_engine
    from attnviz.sources.families.settings import NotOurs
    from attnviz.sources.models.files import find_model

    files = find_model(path)
    try:
        engine, _, _ = open_engine(files, files.sha256() if sha256 is None else sha256)
    except NotOurs as why:
        raise InputError(f"the light engine does not run this model: {why}") from why
    layers = range(engine.family.n_layers)
    seen: list[Any] = []
    ids = IDS[: engine.family.n_positions]
    states = engine.states(ids, layers, lambda _, heads: seen.append(heads))
    assert states.shape == (len(ids), engine.family.d_model), "states lost"
    assert len(seen) == len(layers), "a layer was lost"
    if engine.can_write():
        engine.next_scores(ids, {})
    return seen
