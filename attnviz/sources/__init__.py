"""Places attention comes from: one file each. A source turns text into tokens and LayerHeads.

What lives here: the contract every source keeps. What does not: numbers above q, k, v (``core``)
or how anything is shown. ``runs`` opens a source, hands it the projection of the core at work,
and passes in the consumer that receives one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from attnviz.errors import UsageError
from attnviz.records import Array, LayerHeads, SourceInfo, Tokens

TOLERANCE = 1e-4
"""Of a source that does not say its own, relative to the largest number above 1: scores of some
hundreds, which models have, make 1e-5 of the rounding of float32."""


class Project(Protocol):
    """x·W (+ b), cut into heads: (L, D), (D, n·width), (n·width,) → (n, L, width)."""

    def __call__(
        self, x_LD: Array, w_DX: Array, b_X: Array | None = None, *, n_heads: int
    ) -> Array: ...


@dataclass(frozen=True, slots=True)
class Verification:
    """How far our numbers are from those of the model run untouched.

    Parameters
    ----------
    weights
        Layer → largest difference from the weights that its eager attention reports.
    hidden
        Largest difference of the final states from its fused attention, relative to their
        largest number.
    tolerance
        For both; depends on the precision the model runs in.
    file
        Largest difference of any parameter that was run from the file's own, read by another
        reader than the one that loaded it: 0 where the model that was run is the file's.
    """

    weights: Mapping[int, float]
    hidden: float
    tolerance: float
    file: float = 0.0

    @property
    def holds(self) -> bool:
        """True where every difference is within the tolerance (NaN is not)."""
        return all(d <= self.tolerance for d in (*self.weights.values(), self.hidden, self.file))


class TextPacker(Protocol):
    """Several texts of a source in one row, each seeing only itself."""

    @property
    def source(self) -> Source:
        """Whose texts they are."""

    def run(
        self,
        texts: Sequence[Tokens],
        layers: Sequence[int],
        consume: Callable[[Sequence[int], LayerHeads], None],
    ) -> None:
        """Hand on the places of n texts of equal length, and one layer of n · H heads."""


class Source(Protocol):
    """One place attention comes from, opened.

    ``info``, ``tokenize`` and ``run`` are a source's own; a class that derives from this one has an
    answer for the rest.
    """

    if TYPE_CHECKING:  # a dataclass would take these for the defaults of its fields

        @property
        def info(self) -> SourceInfo:
            """Name, sizes, hashes: the provenance of every number that follows."""

        @property
        def config_sha256(self) -> str | None:
            """Hash of a model's config, which the hash of its weights does not cover."""

    def tokenize(self, text: str) -> Tokens:
        """Cut a text with the source's own tokenizer; errors name what is missing."""
        raise NotImplementedError

    def run(
        self, tokens: Tokens, layers: Sequence[int], consume: Callable[[LayerHeads], None]
    ) -> None:
        """Compute the asked-for layers in order and hand each to ``consume``, one at a time."""
        raise NotImplementedError

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have attention."""
        return (0,)

    @property
    def device(self) -> str:
        """Where q, k and v are handed on: ``cpu``, ``cuda:0``, …"""
        return "cpu"

    @property
    def tolerance(self) -> float:
        """How far an output may be from the source's own, relative to the largest number above 1."""
        return TOLERANCE

    @property
    def shared_up_to(self) -> int | None:
        """How many tokens a pass of several texts may have; any number where None."""
        return None

    @property
    def is_batched(self) -> bool:
        """True where ``run_batch`` is quicker than one text after the other."""
        return False

    def sides(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """Return the tokens along queries and keys: the same record but for encoder-decoders."""
        return tokens, tokens

    def run_batch(
        self,
        texts: Sequence[Tokens],
        layers: Sequence[int],
        consume: Callable[[int, LayerHeads], None],
    ) -> None:
        """Run several texts; ``consume`` receives a text's place and one layer of it."""
        for place, tokens in enumerate(texts):
            self.run(tokens, layers, lambda heads, place=place: consume(place, heads))  # type: ignore[misc]

    def packer(self) -> TextPacker | None:
        """Return what runs texts in one row; None where their numbers would not be their own."""
        return None

    def verify(
        self, tokens: Tokens, trace_heads: Callable[[LayerHeads], Mapping[str, Array]]
    ) -> Verification:
        """Compare with the model run untouched.

        Raises
        ------
        UsageError
            Not a trained model.
        """
        raise UsageError("--verify compares with a model run untouched: give one with --model")

    def generate(
        self,
        tokens: Tokens,
        n_new: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        tell: Callable[[Tokens], None] | None = None,
    ) -> Tokens:
        """Write on: the text's tokens and ``n_new`` more, fewer where the model ends.

        Raises
        ------
        UsageError
            Not a trained model that writes.
        """
        raise UsageError("only a trained model writes: give one with --model DIR or FILE.gguf")
