"""Is the light engine right about this very model? Compared with the library's own attention, once.

What lives here: the comparison, and keeping its result by the hashes of model and engine and by
the library's version. What does not: the engine (``engine``), opening models (``opening``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.memory import room_bytes
from attnviz.records import LayerHeads
from attnviz.rounding import worse
from attnviz.sources.families.attending import weights_of
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.parts import Floats
from attnviz.sources.models.cache import read_entry, write_entry
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.library import version_of

TOLERANCE = 1e-5
"""Largest accepted difference of a weight, and of a final state relative to the largest of them."""

_PROBE_TOKENS = 12
_LONGEST_WINDOW = 1024
_SHARE = 0.6
_WHOLE_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Proof:
    """What a comparison found.

    Parameters
    ----------
    weights, states
        Largest differences over all layers, heads and cells, and over the final states.
    n_layers
        How many layers were compared: fewer than the model has where they do not fit into memory.
    """

    weights: float
    states: float
    n_layers: int

    @property
    def holds(self) -> bool:
        """True within the tolerance (NaN is not)."""
        return self.weights <= TOLERANCE and self.states <= TOLERANCE


@cache
def engine_version() -> str:
    """Hash of this folder's files: any change of the engine asks for a new proof."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def key_of(sha256: str, config: Mapping[str, Any]) -> str:
    """Return under which name a model's proof is kept."""
    facts = [sha256, repr(sorted(config.items(), key=str)), engine_version()]
    facts += [version_of("transformers"), version_of("torch")]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def kept_proof(sha256: str, config: Mapping[str, Any]) -> Proof | None:
    """Return the result of an earlier comparison with this model and these versions."""
    kept = read_entry("proof", key_of(sha256, config))
    kinds = {"weights": float, "states": float, "n_layers": int}
    if not isinstance(kept, dict) or {name: type(one) for name, one in kept.items()} != kinds:
        return None
    return Proof(**kept)


def prove(
    engine: Engine,
    files: ModelFiles,
    config: Mapping[str, Any],
    sha256: str,
    *,
    notify: Callable[[str], None],
) -> Proof | None:
    """Compare the engine with the library on fixed tokens, and keep the result.

    Returns
    -------
    Proof, or None where not even one layer fits into memory beside the embedding.

    Raises
    ------
    InputError
        The library does not take this model.
    """
    n_layers, is_whole = _fitting_layers(engine)
    if n_layers == 0:
        return None
    notify(f"comparing {files.name} with the library once (later runs skip this)")
    from attnviz.sources.families.twin import library_twin

    probes = _probes(engine)
    words = None
    if not is_whole:  # encoders may count positions by the padding's id: they get all words
        few = sorted({i for ids in probes for i in ids})
        words = few if engine.family.is_causal else list(range(engine.n_rows()))
    twin = library_twin(engine, files, config, n_layers=n_layers, words=words)
    worst = [0.0, 0.0]
    for ids in probes:
        with np.errstate(all="ignore"):  # numbers that are none end as NaN, which proves nothing
            found = compare(engine, twin, ids, n_layers)
        worst = [worse(a, b) for a, b in zip(worst, found)]
    proof = Proof(worst[0], worst[1], n_layers)
    write_entry("proof", key_of(sha256, config), asdict(proof))
    return proof


def compare(
    engine: Engine,
    twin: Callable[[Sequence[int]], tuple[list[Floats], Floats]],
    ids: Sequence[int],
    n_layers: int,
) -> tuple[float, float]:
    """Return the largest differences of all weights, and of the final states.

    Parameters
    ----------
    twin
        The library's model: ids → its weights per layer (H, L, S), and its final states (L, D).
    """
    theirs, states = twin(ids)
    if len(theirs) != n_layers:
        raise InputError(f"the library reports {len(theirs)} attentions, not {n_layers}")
    found: list[float] = []

    def consume(_: Sequence[int], heads: LayerHeads) -> None:
        found.append(float(np.abs(weights_of(heads) - theirs[heads.layer]).max()))

    ours = engine.states(ids, range(n_layers), consume, n_layers=n_layers)
    away = np.abs(ours - states).max() / max(1.0, float(np.abs(states).max()))
    return worse(*found), worse(float(away))


def _probes(engine: Engine) -> list[list[int]]:
    """Return a dozen tokens, and some more than the shortest window where there is one."""
    family = engine.family
    limit = family.n_positions or 1 << 20
    windows = [w for w in family.windows if w is not None and w <= _LONGEST_WINDOW]
    lengths = {min(_PROBE_TOKENS, limit)}
    if windows:
        lengths.add(min(max(windows) + _PROBE_TOKENS, limit))
    return [[(7 * i + 11) % family.n_vocab for i in range(n)] for n in sorted(lengths)]


def _fitting_layers(engine: Engine) -> tuple[int, bool]:
    """Return how many layers the library is given, and whether that is the model as it is.

    A large model's first layers do, as far as one of every kind: what a question takes of memory
    is not to depend on whether the model was used before.
    """
    family = engine.family
    room = room_bytes()
    per_layer = engine.layer_bytes()
    whole = engine.top_bytes() + family.n_layers * per_layer
    if whole <= min(_WHOLE_BYTES, _SHARE * (room or whole)):
        return family.n_layers, True
    kinds = [family.windows[layer] for layer in range(family.n_layers)]
    n_layers = min(family.n_layers, max(2, *(kinds.index(kind) + 1 for kind in kinds)))
    fits = room is None or n_layers * per_layer <= _SHARE * room
    return (n_layers if fits else 0), False
