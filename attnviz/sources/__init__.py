"""Places attention comes from: one file each. A source turns text into tokens and LayerHeads.

What lives here: the contract every source keeps. What does not: numbers above q, k, v (``core``)
or how anything is shown. ``runs`` opens a source, hands it the projection of the core at work,
and passes in the consumer that receives one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attnviz.records import Array, LayerHeads, SourceInfo, Tokens


class Project(Protocol):
    """x·W (+ b), cut into heads: (L, D), (D, n·width), (n·width,) → (n, L, width)."""

    def __call__(
        self, x_LD: Array, w_DX: Array, b_X: Array | None = None, *, n_heads: int
    ) -> Array: ...


class Source(Protocol):
    """One place attention comes from, opened."""

    @property
    def info(self) -> SourceInfo:
        """Name, sizes, hashes: the provenance of every number that follows."""

    def tokenize(self, text: str) -> Tokens:
        """Cut a text with the source's own tokenizer; errors name what is missing."""

    def run(
        self, tokens: Tokens, layers: Sequence[int], consume: Callable[[LayerHeads], None]
    ) -> None:
        """Compute the asked-for layers in order and hand each to ``consume``, one at a time."""
