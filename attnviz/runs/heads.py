"""What every head does: run many texts through a source and score each head by each pattern.

What lives here: running texts, random repeated tokens, averages. What does not: the definitions
(``core.patterns``) and intervals (``core.intervals``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np

from attnviz import __version__, memory
from attnviz.core.measures.flow import without_sinks
from attnviz.core.measures.intervals import average, bootstrap
from attnviz.core.measures.patterns import PATTERNS, Facts, HeadReport, excess, score, stability
from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.records import NO_TOKENS, About, Array, LayerHeads, RunInfo, Tokens
from attnviz.rounding import worse
from attnviz.runs.parity import parity_of
from attnviz.runs.run import DENSE_CELL_BYTES, Origin, Run, open_place
from attnviz.sources import Source

MAX_TOKENS = 512
"""Longer texts are cut: a head's habits show in far fewer."""
_MAP_CELL_BYTES = 9  # a weight and whether the key is visible
N_SEQUENCES = 8
N_REPEATED = 32
"""Random tokens of a sequence that is written twice, for the induction score."""

Progress = Callable[[int, int], None]


@dataclass
class _Samples:
    """Scores and nulls as they come: pattern → one (layers, heads) array per sample."""

    scores: dict[str, list[Array]] = field(default_factory=dict)
    nulls: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, name: str, scores: Array, nulls: Array) -> None:
        self.scores.setdefault(name, []).append(scores)
        self.nulls.setdefault(name, []).append(nulls)


def rank_heads(
    texts: Sequence[str],
    *,
    layer: str | int | None = None,
    no_sinks: bool = False,
    progress: Progress = lambda done, total: None,
    **origin: Unpack[Origin],
) -> HeadReport:
    """Score every head of a source for every pattern, averaged over texts.

    Parameters
    ----------
    texts
        One or more; intervals need several.
    layer
        ``None`` and ``all`` (of a model), a number, or a range.
    no_sinks
        Leave the first token and the special ones out, and scale the rest of each row to sum to 1:
        what a head does besides parking its weight. The report says how much is left.
    progress
        Told how many of how many runs are done.
    origin
        As in ``explain``: ``weights`` or ``model``, device, precision, sizes of random weights.
        Texts of more than ``max_tokens`` (512 by default) are cut; ``seed`` is that of random
        weights and of random sequences.

    Returns
    -------
    HeadReport

    Raises
    ------
    UsageError, InputError
        No text; a source or text that cannot be read.

    Notes
    -----
    Induction is measured on random tokens written twice where the source has a vocabulary, so that
    nothing but the copy can be known; elsewhere on the texts. Time grows with texts · heads · L².

    Examples
    --------
    >>> found = rank_heads(["A cute teddy bear is reading"], weights="sample-8")
    >>> found.score.shape == (len(found.patterns), 1, 8)
    True
    """
    if not texts:
        raise UsageError("no text: give one or more, or --file with one text per line")
    longest = origin.pop("max_tokens", None) or MAX_TOKENS
    seed = origin.get("seed", 0)
    place = open_place(layer=layer, n_tokens=longest, **origin)
    source, layers, computing = place.source, place.layers, place.core_for(longest)
    whole = [source.tokenize(text) for text in texts]
    notices = [*source.info.notices, *place.what_if.notices(source.info)]
    n_cut = sum(len(found) > longest for found in whole)
    if n_cut:
        notices.append(f"{n_cut} of {len(texts)} texts were cut to {longest} tokens (--max-tokens)")
    tokens = [cut_tokens(found, longest) for found in whole]
    _check_size(max(map(len, tokens)), len(layers), source.info.n_heads)
    rarity = _rarity(tokens)
    sequences = _repeated(source, tokens[0], seed) if source.info.n_vocab > 1 else []
    total = len(tokens) + len(sequences)
    samples = _Samples()
    checks: dict[str, float] = {}
    left: dict[int, list[Array]] = {}
    overrides: dict[str, Any] = {"no_sinks": True} if no_sinks else {}
    before: Mapping[int, tuple[Array, Array]] = {}
    # sequences, where there are any, are for induction, and texts for everything else
    of_texts = [n for n in PATTERNS if n != "positional" and not (sequences and n == "induction")]
    for number, text in enumerate([*tokens, *sequences]):
        is_text = number < len(tokens)
        facts = _facts(text, rarity)
        run = replace(place.take(text), computing=computing)
        maps, notes = _maps(run, _sinks(text) if no_sinks else None, checks, left)
        overrides.update(notes)
        found = {layer: score(*maps[layer], facts) for layer in layers}
        for name in of_texts if is_text else ("induction",):
            samples.add(name, *_stack([found[layer][name] for layer in layers]))
        if is_text and before:
            pairs = [stability(*maps[layer], *before[layer]) for layer in layers]
            samples.add("positional", *_stack(pairs))
        before = maps if is_text else {}
        progress(number + 1, total)
    if no_sinks:
        notices.append(
            "the first token and special tokens are left out; the rest of a row sums to 1"
        )
    if len(texts) == 1:
        notices.append("one text: intervals need several, and positional heads two")
    how = RunInfo(__version__, computing.device, computing.dtype, computing.core, overrides)
    rest = None
    if no_sinks:
        numbers = (
            list(left) if len(layers) == 1 else layers
        )  # a single layer may not know its number
        rest = np.stack([np.mean(left[n], axis=0) for n in numbers])
    return _report(source, how, layers, samples, tokens, tuple(notices), checks, rest)


def _check_size(n_tokens: int, n_layers: int, n_heads: int) -> None:
    """Refuse texts whose maps would not fit: one layer's stages, and two texts' maps of all layers."""
    room = memory.room_bytes()
    cell_bytes = n_heads * (DENSE_CELL_BYTES + 2 * _MAP_CELL_BYTES * n_layers)
    if room is not None and n_tokens**2 * cell_bytes > room:
        raise ResourceError(
            f"the weights of {n_tokens} tokens, {n_layers} layers and {n_heads} heads: holding them "
            f"{memory.compare(n_tokens**2 * cell_bytes, room)}; "
            f"{math.isqrt(room // cell_bytes)} tokens would fit (--max-tokens), or fewer layers "
            "(--layer)"
        )


def cut_tokens(tokens: Tokens, longest: int) -> Tokens:
    """Return the first tokens of a text, at most so many."""
    parts = ("ids", "pieces", "labels", "spans", "special")
    return replace(tokens, **{name: getattr(tokens, name)[:longest] for name in parts})


def _maps(
    run: Run,
    sinks: Array | None,
    checks: dict[str, float],
    left: dict[int, list[Array]],
) -> tuple[dict[int, tuple[Array, Array]], dict[str, Any]]:
    """Run one text: layer → (weights (H, L, L), visible (H, L, L)), without sinks where asked."""
    found: dict[int, tuple[Array, Array]] = {}

    def keep(heads: LayerHeads) -> None:
        if heads.n_queries != heads.n_keys:
            raise UsageError("patterns are about self attention: queries and keys differ here")
        stages = run.computing.trace_heads(heads)
        output = np.asarray(stages["output"], np.float64)
        for name, worst in parity_of(
            run.source, [(heads, range(heads.n_heads))], output[None]
        ).items():
            checks[name] = worse(worst, checks.get(name, 0.0))
        weights = np.asarray(stages["weights"], np.float64)
        visible = np.asarray(stages["visible"], bool)
        if sinks is not None:
            rest_HL = weights[:, :, ~sinks].sum(axis=-1)
            left.setdefault(heads.layer, []).append(rest_HL.mean(axis=-1))
            weights, visible = without_sinks(weights, sinks), visible & ~sinks
        found[heads.layer] = weights, visible

    overrides = run.each(keep)
    if len(found) == 1 and len(run.layers) == 1:  # a single layer may not know its number
        found = {run.layers[0]: next(iter(found.values()))}
    return found, overrides


def _stack(parts: Sequence[Any]) -> tuple[Array, Array]:
    return np.stack([p.scores for p in parts]), np.stack([p.nulls for p in parts])


def _sinks(tokens: Tokens) -> Array:
    is_sink = np.array(tokens.special, bool)
    is_sink[0] = True
    return is_sink


def _facts(tokens: Tokens, rarity: Mapping[int, float]) -> Facts:
    is_sign = [not any(c.isalnum() for c in label) for label in tokens.labels]
    special = np.array(tokens.special, bool) | np.array(is_sign, bool)
    return Facts(
        np.array(tokens.ids), special, np.array([rarity.get(i, np.inf) for i in tokens.ids])
    )


def _rarity(texts: Sequence[Tokens]) -> dict[int, float]:
    """Return how rare each token is: fewer uses first, later places in the vocabulary next."""
    counts = Counter(i for tokens in texts for i in tokens.ids)
    largest = max(counts) + 1
    return {i: -count + i / largest for i, count in counts.items()}


def _repeated(source: Source, like: Tokens, seed: int) -> list[Tokens]:
    """Return random tokens written twice, between the special tokens the source itself adds."""
    draw = np.random.Generator(np.random.Philox(seed))
    front = next((i for i, s in enumerate(like.special) if not s), len(like))
    back = next((i for i, s in enumerate(reversed(like.special)) if not s), 0)
    known = set(like.ids[:front]) | set(like.ids[len(like) - back :])
    choices = np.array([i for i in range(source.info.n_vocab) if i not in known])
    most = source.info.n_positions
    room = N_REPEATED if most is None else max(2, (most - front - back) // 2)
    made = []
    for _ in range(N_SEQUENCES):
        body = draw.choice(
            choices, size=min(N_REPEATED, room, len(choices)), replace=False
        ).tolist()
        ids = (*like.ids[:front], *body, *body, *like.ids[len(like) - back :])
        special = (True,) * front + (False,) * (2 * len(body)) + (True,) * back
        names = tuple("[…]" if s else f"w{i}" for i, s in zip(ids, special, strict=True))
        made.append(Tokens("", ids, names, names, (None,) * len(ids), special))
    return made


def _report(
    source: Source,
    run: RunInfo,
    layers: tuple[int, ...],
    samples: _Samples,
    texts: Sequence[Tokens],
    notices: tuple[str, ...],
    checks: Mapping[str, float],
    rest: Array | None,
) -> HeadReport:
    n_heads = source.info.n_heads
    names = tuple(PATTERNS)
    shape = (len(names), len(layers), n_heads)
    arrays = {key: np.full(shape, np.nan) for key in ("score", "low", "high", "null", "excess")}
    n_samples = []
    for place, name in enumerate(names):
        if name not in samples.scores:
            n_samples.append(0)
            continue
        scores, nulls = np.stack(samples.scores[name]), np.stack(samples.nulls[name])
        n_samples.append(int((~np.isnan(scores).all(axis=(1, 2))).sum()))
        if not n_samples[-1]:
            continue
        mean, low, high = bootstrap(scores)
        null = average(nulls)
        arrays["score"][place], arrays["null"][place] = mean, null
        arrays["low"][place], arrays["high"][place] = low, high
        arrays["excess"][place] = np.where(np.isnan(mean), np.nan, excess(mean, null))
    if rest is not None:  # a head that parks its weight does little else
        arrays["excess"] *= rest
    if not any(n_samples):
        raise InputError(
            "the texts are too short to tell anything: give some of four words or more"
        )
    return HeadReport(
        about=About(NO_TOKENS, source.info, run, checks=checks, notices=notices),
        patterns=names,
        layers=layers,
        heads=tuple(range(n_heads)),
        n_samples=tuple(n_samples),
        n_texts=len(texts),
        n_tokens=sum(len(t) for t in texts),
        rest=rest,
        **arrays,
    )
