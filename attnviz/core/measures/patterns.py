"""What kind of head is this: how much of its weight goes where a named pattern says.

What lives here: the definitions. A pattern names, for each query, the keys it is about (its
*targets*); the score is the weight on them, averaged over queries. Beside it stands the *null*,
what the same weights would give if the visible keys of each row were shuffled: the share of the
visible keys that are targets. The *excess* (score − null) / (1 − null) is 1 for a head that does
only this and 0 for one that knows nothing of it. Rows without a target, or whose visible keys are
all targets, say nothing and are left out.

What does not: averages over texts and intervals (``core.intervals``), running a model (``runs``).

Sources: previous and next token, first token, delimiters: Clark, Khandelwal, Levy, Manning, "What
Does BERT Look At?" (2019). Rare token and positional heads: Voita, Talbot, Moiseev, Sennrich,
Titov, "Analyzing Multi-Head Self-Attention" (2019). Induction, same token: Elhage et al., "A
Mathematical Framework for Transformer Circuits" (2021); Olsson et al., "In-context Learning and
Induction Heads" (2022). First-token sinks: Xiao et al., "Efficient Streaming Language Models with
Attention Sinks" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attnviz.core.reference import entropy_bits
from attnviz.records import About, Array, HasAbout

LOCAL_WIDTH = 4
"""A local head looks at keys at most this far from its query."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a text's tokens are, as far as patterns ask.

    Parameters
    ----------
    ids : (L,) int, the tokens of queries and keys alike
    special : (L,) bool; added by the tokenizer, or nothing but punctuation
    rarity : (L,) float; larger is rarer in the texts that are looked at
    """

    ids: Array
    special: Array
    rarity: Array

    def __len__(self) -> int:
        return len(self.ids)


Targets = Callable[[Facts, Array], Array]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name, its formula in words and signs, and the keys it is about.

    ``targets(facts, visible_LS) -> (L, S) bool`` is None for the two that are no set of keys.
    """

    name: str
    formula: str
    targets: Targets | None = None


def _offset(step: int) -> Targets:
    return lambda facts, visible: np.eye(len(facts), k=step, dtype=bool)


def _first(facts: Facts, visible: Array) -> Array:
    found = np.zeros((len(facts), len(facts)), bool)
    found[1:, 0] = True
    return found


def _special(facts: Facts, visible: Array) -> Array:
    found = np.broadcast_to(np.asarray(facts.special, bool), (len(facts),) * 2).copy()
    np.fill_diagonal(found, False)
    return found


def _same(facts: Facts, visible: Array) -> Array:
    ids = np.asarray(facts.ids)
    found: Array = ids[:, None] == ids[None, :]
    np.fill_diagonal(found, False)
    return found


def _induction(facts: Facts, visible: Array) -> Array:
    ids = np.asarray(facts.ids)
    found = np.zeros((len(facts), len(facts)), bool)
    found[:, 1:] = ids[:, None] == ids[None, :-1]
    return found & np.tri(len(facts), k=-1, dtype=bool)


def _local(facts: Facts, visible: Array) -> Array:
    places = np.arange(len(facts))
    distance = abs(places[:, None] - places[None, :])
    return (distance > 0) & (distance <= LOCAL_WIDTH)


def _rare(facts: Facts, visible: Array) -> Array:
    rarity = np.where(visible, np.asarray(facts.rarity, np.float64), -np.inf)
    rarest = rarity.max(axis=-1, keepdims=True)
    found = (rarity == rarest) & np.isfinite(rarity)
    places = np.arange(found.shape[1])
    only = np.zeros_like(found)
    only[np.arange(len(found)), np.where(found, places, -1).max(axis=-1)] = True
    return only & found


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("previous", "Σ w[i, i−1]", _offset(-1)),
        Pattern("next", "Σ w[i, i+1]", _offset(1)),
        Pattern("self", "Σ w[i, i]", _offset(0)),
        Pattern("first", "Σ w[i, 0], i > 0", _first),
        Pattern("special", "Σ w[i, j], j ≠ i special or punctuation", _special),
        Pattern("same", "Σ w[i, j], j ≠ i, token j = token i", _same),
        Pattern("induction", "Σ w[i, j], j < i, token j−1 = token i", _induction),
        Pattern("local", f"Σ w[i, j], 0 < |i − j| ≤ {LOCAL_WIDTH}", _local),
        Pattern("rare", "Σ w[i, j], j the rarest visible token", _rare),
        Pattern("uniform", "H(w[i]) / log2(number of visible keys)"),
        Pattern("positional", "correlation of w[i] with w[i] of another text"),
    )
}
"""Every pattern by name. ``uniform`` cannot be shuffled: its null is the score itself."""


@dataclass(frozen=True, slots=True)
class Found:
    """One pattern in one text: a score and a null per head, and how many rows speak of it.

    ``scores`` and ``nulls`` are (H,) float64, NaN where ``n_rows`` is 0.
    """

    scores: Array
    nulls: Array
    n_rows: int


def score(weights: Array, visible: Array, facts: Facts) -> Mapping[str, Found]:
    """Score every head for every pattern that one text can show (all but ``positional``).

    Parameters
    ----------
    weights : (H, L, L) float, softmax rows
    visible : (H or 1, L, L) bool
    facts : L tokens

    Examples
    --------
    >>> facts = Facts(np.array([5, 6, 5, 6]), np.zeros(4, bool), np.zeros(4))
    >>> found = score(np.eye(4, k=-1)[None], np.tri(4, dtype=bool)[None], facts)
    >>> float(found["previous"].scores[0]), round(float(found["previous"].nulls[0]), 3)
    (1.0, 0.361)
    """
    weights_HLS = np.asarray(weights, np.float64)
    visible_1LS = np.asarray(visible, bool)
    if len(visible_1LS) > 1 and not (visible_1LS == visible_1LS[:1]).all():
        parts = [score(w[None], s[None], facts) for w, s in zip(weights_HLS, visible_1LS)]
        return {name: _join([part[name] for part in parts]) for name in parts[0]}
    seen_LS = visible_1LS[0]
    n_seen_L = seen_LS.sum(axis=-1)
    found = {}
    for name, pattern in PATTERNS.items():
        if pattern.targets is not None:
            found[name] = _on_targets(
                weights_HLS, pattern.targets(facts, seen_LS) & seen_LS, n_seen_L
            )
    found["uniform"] = _uniform(weights_HLS, n_seen_L)
    return found


def _on_targets(weights_HLS: Array, targets_LS: Array, n_seen_L: Array) -> Found:
    n_targets_L = targets_LS.sum(axis=-1)
    tells_L = (n_targets_L > 0) & (n_targets_L < n_seen_L)
    n_rows = int(tells_L.sum())
    if not n_rows:
        return _nothing(len(weights_HLS))
    shares_HL = np.where(targets_LS, weights_HLS, 0.0).sum(axis=-1)[:, tells_L]
    null = float((n_targets_L[tells_L] / n_seen_L[tells_L]).mean())
    return Found(shares_HL.mean(axis=-1), np.full(len(weights_HLS), null), n_rows)


def _uniform(weights_HLS: Array, n_seen_L: Array) -> Found:
    tells_L = n_seen_L > 1
    if not tells_L.any():
        return _nothing(len(weights_HLS))
    bits_HL = entropy_bits(weights_HLS)[:, tells_L]
    scores = (bits_HL / np.log2(n_seen_L[tells_L])).mean(axis=-1)
    return Found(scores, scores, int(tells_L.sum()))


def _nothing(n_heads: int) -> Found:
    return Found(np.full(n_heads, np.nan), np.full(n_heads, np.nan), 0)


def _join(parts: list[Found]) -> Found:
    return Found(
        np.concatenate([p.scores for p in parts]),
        np.concatenate([p.nulls for p in parts]),
        max(p.n_rows for p in parts),
    )


def stability(
    weights: Array, visible: Array, other: Array, other_visible: Array, *, n_least: int = 3
) -> Found:
    """Compare a head with itself in another text: is its pattern one of positions?

    The rows both texts have are compared over the keys both see, by Pearson's correlation; a
    row without variation counts 0. Under shuffled keys the expected correlation is 0.

    Parameters
    ----------
    weights, other : (H, L, S) and (H, L', S') float
    visible, other_visible : (H or 1, L, S) bool
    n_least
        Rows with fewer common keys say nothing.
    """
    n = min(np.shape(weights)[-1], np.shape(other)[-1])
    a, b = (np.asarray(w, np.float64)[:, :n, :n] for w in (weights, other))
    both = np.asarray(visible, bool)[:, :n, :n] & np.asarray(other_visible, bool)[:, :n, :n]
    both = np.broadcast_to(both, a.shape)
    count = both.sum(axis=-1, keepdims=True)
    a, b = (_centred(w, both, count) for w in (a, b))
    size = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    product = (a * b).sum(axis=-1)
    correlation = np.divide(product, size, out=np.zeros_like(product), where=size > 1e-12)
    tells_HL = count[..., 0] >= n_least
    n_rows = int(tells_HL[0].sum())
    if not n_rows:
        return _nothing(len(a))
    scores = np.where(tells_HL, correlation, 0.0).sum(axis=-1) / tells_HL.sum(axis=-1)
    return Found(scores, np.zeros(len(a)), n_rows)


def _centred(w: Array, both: Array, count: Array) -> Array:
    inside = np.where(both, w, 0.0)
    return np.where(both, inside - inside.sum(axis=-1, keepdims=True) / np.maximum(count, 1), 0.0)


def excess(scores: Array, nulls: Array) -> Array:
    """Return (score − null) / (1 − null): 1 does only this, 0 knows nothing of it.

    Examples
    --------
    >>> float(excess(np.array(0.625), np.array(0.25)))
    0.5
    """
    scores, nulls = np.asarray(scores, np.float64), np.asarray(nulls, np.float64)
    room = 1.0 - nulls
    return np.divide(scores - nulls, room, out=np.zeros_like(scores), where=room > 1e-12)


def ideal(name: str, visible: Array, facts: Facts) -> Array:
    """Return the weights of a head that does only this: (1, L, S), uniform where it has no target.

    Parameters
    ----------
    visible : (L, S) bool, each row with at least one True
    """
    seen = np.asarray(visible, bool)
    targets = PATTERNS[name].targets
    if name == "positional":
        targets = _offset(0)
    wanted = seen if targets is None else targets(facts, seen) & seen
    wanted = np.where(wanted.any(axis=-1, keepdims=True), wanted, seen)
    rows: Array = wanted / wanted.sum(axis=-1, keepdims=True)
    return rows[None]


@dataclass(frozen=True, slots=True)
class HeadReport(HasAbout):
    """What every head does, averaged over texts (``core.patterns`` has the definitions).

    Parameters
    ----------
    patterns
        Names, P of them.
    score, low, high, null : (P, layers, heads) float64
        Weight on the pattern's keys, the ends of its 95 % interval over texts, and what shuffled
        keys would give; NaN where no text can tell.
    excess : (P, layers, heads)
        (score − null) / (1 − null).
    n_samples
        How many texts, pairs of texts or random sequences speak of each pattern.
    n_tokens
        Of all texts together.
    rest : (layers, heads) or None
        Where sinks were left out: the mean weight that remained in a row before it was scaled up to
        1. Scores are of that rest, and ``excess`` is multiplied by it.
    """

    about: About
    patterns: tuple[str, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    score: Array
    low: Array
    high: Array
    null: Array
    excess: Array
    n_samples: tuple[int, ...]
    n_texts: int
    n_tokens: int
    rest: Array | None = None

    def to_numpy(self) -> dict[str, Array]:
        """Return ``score``, ``low``, ``high``, ``null`` and ``excess``, each (P, layers, heads)."""
        return {n: getattr(self, n) for n in ("score", "low", "high", "null", "excess")}
