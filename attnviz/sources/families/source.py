"""A model of the families as a source of attention: the light engine behind the contract of sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from attnviz.errors import InputError, UsageError
from attnviz.records import Array, LayerHeads, SourceInfo, Tokens
from attnviz.rounding import bound
from attnviz.sources import Source, Verification
from attnviz.sources.families.attending import split_texts
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.proof import Proof
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.tokenizer import ModelTokenizer, segment_notice
from attnviz.sources.text.tokenize import clean


@dataclass(frozen=True)
class LightSource(Source):
    """A model run by the light engine; see ``opening.open_light``.

    Parameters
    ----------
    files
        What was given.
    config
        As read from ``config.json`` or from a GGUF's metadata.
    proof
        What the comparison with the library found; None where there was none.
    which
        ``self``, or ``encoder`` of an encoder-decoder.
    writing
        What its ``generation_config.json`` asks for beyond the likeliest word.
    """

    files: ModelFiles
    sha256: str
    config_sha256: str
    config: dict[str, Any]
    tokenizer: ModelTokenizer
    engine: Engine
    proof: Proof | None
    which: str
    max_tokens: int | None = None
    notices: tuple[str, ...] = ()
    writing: frozenset[str] = frozenset()

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers: all have attention."""
        return tuple(range(self.engine.family.n_layers))

    @property
    def is_batched(self) -> bool:
        """Texts share a row."""
        return True

    @cached_property
    def info(self) -> SourceInfo:
        """Name, sizes, hashes and who ran the model."""
        family = self.engine.family
        return SourceInfo(
            kind="model",
            name=self.files.name,
            sha256=self.sha256,
            n_layers=family.n_layers,
            n_heads=family.n_heads,
            n_kv_heads=family.n_kv_heads,
            d_model=family.d_model,
            d_k=family.d_k,
            d_v=family.d_v,
            origin=f"{self.config['model_type']}, run by attnviz's light engine; {self._how_proved()}",
            tokenizer=self.tokenizer.name,
            tokenizer_sha256=self.tokenizer.sha256,
            notices=(*self.notices, *self.tokenizer.notices),
            n_vocab=family.n_vocab,
            n_positions=family.n_positions,
        )

    def _how_proved(self) -> str:
        if self.proof is None:
            return "not proved on this model"
        n_layers = self.engine.family.n_layers
        some = (
            "" if self.proof.n_layers == n_layers else f" in its first {self.proof.n_layers} layers"
        )
        return f"weights equal the library's (within {bound(self.proof.weights, 1e-5)}){some}"

    def tokenize(self, text: str) -> Tokens:
        """Cut a text with the model's own tokenizer.

        Raises
        ------
        InputError
            No tokens, or more than the model has positions for.
        """
        text, notices = clean(text)
        tokens = self.tokenizer.tokenize(text, max_tokens=self.max_tokens)
        if all(span is None for span in tokens.spans):
            raise InputError(f"no tokens in {text[:40]!r}: give a text with at least one word")
        self._check(tokens)
        n_types = getattr(self.engine.family.s, "type_vocab_size", None)
        notices = (*notices, *tokens.notices, *segment_notice(tokens, n_types, self.files.name))
        return replace(tokens, notices=notices) if notices else tokens

    def run(
        self, tokens: Tokens, layers: Sequence[int], consume: Callable[[LayerHeads], None]
    ) -> None:
        """Run the model and hand the asked-for layers on in order, one at a time.

        Raises
        ------
        UsageError
            A layer that does not exist.
        """
        self._check_layers(layers)
        self._check(tokens)
        self.engine.run(tokens.ids, layers, lambda _, heads: consume(heads))

    def run_batch(
        self,
        texts: Sequence[Tokens],
        layers: Sequence[int],
        consume: Callable[[int, LayerHeads], None],
    ) -> None:
        """Run several texts in one row, each seeing only itself.

        Parameters
        ----------
        consume
            Receives the text's place and one layer of it.
        """
        self._check_layers(layers)
        for tokens in texts:
            self._check(tokens)
        if not self.engine.can_pack(max(len(tokens) for tokens in texts)):
            for place, tokens in enumerate(texts):
                self.run(tokens, layers, partial(consume, place))
            return

        def hand_on(places: Sequence[int], heads: LayerHeads) -> None:
            for place, one in zip(places, split_texts(heads, len(places)), strict=True):
                consume(place, one)

        self.engine.run_packed([tokens.ids for tokens in texts], layers, hand_on)

    def packer(self) -> LightPacker:
        """Run texts packed into one row, equal lengths joined: what a batch asks for."""
        return LightPacker(self)

    def verify(
        self, tokens: Tokens, trace_heads: Callable[[LayerHeads], Mapping[str, Array]]
    ) -> Verification:
        """Compare with the library's model, layer by layer, see ``families.verifying``."""
        from attnviz.sources.families.verifying import verify_light

        return verify_light(self, tokens, trace_heads)

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

        Parameters
        ----------
        temperature
            0 takes the likeliest token each time; above 0 tokens are drawn, the same for one seed.
        tell
            Told the text so far after every new token.

        Raises
        ------
        UsageError
            A model without a language head, or an encoder.
        """
        from attnviz.sources.models.written import append

        family = self.engine.family
        if not family.is_causal or not self.engine.can_write():
            raise UsageError(f"{self.files.name} does not write text on: it has no language head")
        if self.writing:
            raise UsageError(
                f"{self.files.name} is to write with {', '.join(sorted(self.writing)[:3])} "
                "(generation_config.json), which the light engine does not do: use --engine library"
            )
        self._check_length(len(tokens) + n_new)
        draw = np.random.Generator(np.random.Philox(seed))
        past: dict[int, Any] = {}
        ids = list(tokens.ids)
        for _ in range(n_new):
            scores = self.engine.next_scores(ids, past)
            assert scores is not None
            if not np.isfinite(scores).all():
                raise InputError(
                    f"{self.files.name} gives NaN or Inf as a word's score after {len(ids)} tokens: what "
                    "it would write next is not known"
                )
            new = int(scores.argmax()) if temperature == 0 else _draw(scores, temperature, draw)
            ids.append(new)
            if tell is not None:
                tell(append(self.tokenizer, tokens, ids[len(tokens) :]))
            if new in family.eos_ids:
                break
        return append(self.tokenizer, tokens, ids[len(tokens) :])

    def _check_layers(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if layer not in self.layers:
                raise UsageError(
                    f"layer {layer} of {self.files.name} does not exist: it has {len(self.layers)}, "
                    f"0 to {len(self.layers) - 1}"
                )

    def _check(self, tokens: Tokens) -> None:
        self._check_length(len(tokens))
        n_words = self.engine.n_rows()
        if max(tokens.ids, default=0) >= n_words:
            raise InputError(
                f"the tokenizer gives id {max(tokens.ids)}, but {self.files.name} has vectors for "
                f"{n_words} words: they do not belong together"
            )

    def _check_length(self, n_tokens: int) -> None:
        limit = self.engine.family.n_positions
        if limit is not None and n_tokens > limit:
            raise InputError(
                f"{n_tokens} tokens, but {self.files.name} has positions for {limit}: shorten the "
                f"text, or cut it with --max-tokens {limit}"
            )


@dataclass(frozen=True, slots=True)
class LightPacker:
    """Packed texts of a light source."""

    source: LightSource

    def run(
        self,
        texts: Sequence[Tokens],
        layers: Sequence[int],
        consume: Callable[[Sequence[int], LayerHeads], None],
    ) -> None:
        """Run texts in one row; ``consume`` receives the places of n texts of equal length, joined."""
        source = self.source
        if source.engine.can_pack(max(len(tokens) for tokens in texts)):
            source.engine.run_packed([tokens.ids for tokens in texts], layers, consume)
            return
        for place, tokens in enumerate(texts):
            source.run(tokens, layers, partial(consume, (place,)))


def _draw(scores: Any, temperature: float, draw: np.random.Generator) -> int:
    shares = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return int(np.searchsorted(np.cumsum(shares), draw.random() * shares.sum(), "right"))
