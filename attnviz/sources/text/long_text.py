"""Cut a text of many megabytes into tokens within bounded memory: stretch by stretch.

What lives here: where a text may be cut so that its tokens stay exactly the same, and a compact
list of places. What does not: labels (``labels``), opening tokenizers (``tokenize``, ``models``).

A cut is tried out before it is used: the text around it, encoded whole, must give the tokens of its
two halves. Where no such cut is found (a tokenizer that puts a blank before every text), the text
is encoded whole: the same tokens, at several hundred bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from attnviz.records import Span, Tokens
from attnviz.sources.text.labels import Family, label_tokens, read_family, tokens_of

STRETCH = 1 << 18
"""Characters encoded at once."""

_AROUND = 400
_CANDIDATES = 60
_MOST_NOTICES = 4


class Places(Sequence[Span | None]):
    """The spans of many tokens in 8 bytes each; None for a token that the tokenizer added."""

    __slots__ = ("_places",)

    def __init__(self, places: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Span | None: ...
    @overload
    def __getitem__(self, at: slice) -> Places: ...
    def __getitem__(self, at: int | slice) -> Span | Places | None:
        if isinstance(at, slice):
            return Places(self._places[at])
        start, end = self._places[at].tolist()
        return None if start < 0 else (start, end)

    def __iter__(self) -> Iterator[Span | None]:
        for at in range(0, len(self), 4096):
            for start, end in self._places[at : at + 4096].tolist():
                yield None if start < 0 else (start, end)


def tokens_of_any_length(tokenizer: Any, text: str, *, family: Family | None = None) -> Tokens:
    """Cut a text as ``labels.tokens_of`` does; a long one in stretches.

    Notes
    -----
    About 50 bytes per token stay, and a stretch at work takes some 50 MB, where cuts are found.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> cutter = Tokenizer(models.WordLevel({"bear": 0, "[UNK]": 1}, unk_token="[UNK]"))
    >>> cutter.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> len(tokens_of_any_length(cutter, "bear " * 100_000))
    100000
    """
    found = family or read_family(tokenizer)
    edges = _edges(tokenizer, text) if len(text) > STRETCH else None
    if edges is None:
        return tokens_of(tokenizer, text, family=found)
    before, after, cuts = edges
    seen: dict[Any, Any] = {}
    ids: list[int] = []
    pieces: list[str] = []
    labels: list[str] = []
    special: list[bool] = []
    places: list[np.ndarray[Any, np.dtype[np.int32]]] = []
    notices: list[str] = []

    def keep(part: Tokens) -> None:
        # equal strings and numbers once: a text has many tokens and few different ones
        ids.extend(seen.setdefault(one, one) for one in part.ids)
        pieces.extend(seen.setdefault(one, one) for one in part.pieces)
        labels.extend(seen.setdefault(one, one) for one in part.labels)
        special.extend(part.special)
        spans = [(-1, -1) if span is None else span for span in part.spans]
        places.append(np.array(spans, np.int32).reshape(-1, 2))
        notices.extend(part.notices)

    keep(before)
    for start, end in pairwise(cuts):
        encoding = tokenizer.encode(text[start:end], add_special_tokens=False)
        keep(label_tokens(encoding, text[start:end], found, tokenizer=tokenizer, start=start))
    keep(after)
    return Tokens(
        text=text,
        ids=tuple(ids),
        pieces=tuple(pieces),
        labels=tuple(labels),
        spans=Places(np.concatenate(places)),
        special=tuple(special),
        notices=tuple(_fewer(notices)),
    )


def _edges(tokenizer: Any, text: str) -> tuple[Tokens, Tokens, list[int]] | None:
    """Return the tokens added before and after a text, and where to cut it; None if nowhere."""
    added = _added(tokenizer, text[:_AROUND])
    if added is None:
        return None
    cuts = [0]
    while len(text) - cuts[-1] > STRETCH * 3 // 2:
        cut = _find_cut(tokenizer, text, cuts[-1] + STRETCH)
        if cut is None:
            return None
        cuts.append(cut)
    return (*added, [*cuts, len(text)])


def _added(tokenizer: Any, sample: str) -> tuple[Tokens, Tokens] | None:
    """Return what the tokenizer puts before and after; None if it does not stand at the ends."""
    whole = tokenizer.encode(sample)
    bare = tokenizer.encode(sample, add_special_tokens=False)
    n_added = len(whole.ids) - len(bare.ids)
    mask = list(whole.special_tokens_mask)
    n_before = next((n for n, flag in enumerate(mask) if not flag), 0) if n_added else 0
    for before in (min(n_before, n_added), 0, n_added):
        middle = slice(before, before + len(bare.ids))
        if whole.ids[middle] == bare.ids and whole.offsets[middle] == bare.offsets:
            ends = (slice(0, before), slice(before + len(bare.ids), None))
            first, last = (_special(whole.ids[end], whole.tokens[end]) for end in ends)
            return first, last
    return None


def _special(ids: list[int], pieces: list[str]) -> Tokens:
    n, shown = len(ids), tuple(pieces)
    return Tokens("", tuple(ids), shown, shown, (None,) * n, (True,) * n)


def _find_cut(tokenizer: Any, text: str, near: int) -> int | None:
    """Return a place near ``near`` where two texts have the tokens of one: line ends first."""
    window = range(near, min(near + STRETCH // 4, len(text) - 1))
    lines = [at for at in window if text[at - 1] == "\n" and not text[at].isspace()]
    blanks = [at for at in window if text[at] == " " and text[at - 1].isalnum()]
    candidates = [*lines[: _CANDIDATES // 2], *blanks[: _CANDIDATES // 2]]
    return next((at for at in candidates if _is_seam(tokenizer, text, at)), None)


def _is_seam(tokenizer: Any, text: str, at: int) -> bool:
    def encode(start: int, end: int) -> tuple[list[int], list[Span]]:
        found = tokenizer.encode(text[start:end], add_special_tokens=False)
        return found.ids, [(a + start, b + start) for a, b in found.offsets]

    first, last = max(0, at - _AROUND), min(len(text), at + _AROUND)
    whole, left, right = encode(first, last), encode(first, at), encode(at, last)
    return whole == (left[0] + right[0], left[1] + right[1])


def _fewer(notices: list[str]) -> list[str]:
    kept = list(dict.fromkeys(notices))
    if len(kept) <= _MOST_NOTICES:
        return kept
    return [*kept[:_MOST_NOTICES], f"and {len(kept) - _MOST_NOTICES} more notices of these kinds"]
