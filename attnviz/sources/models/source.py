"""A trained model on disk as a source of attention: the real model runs, every layer is shown.

What lives here: joining the pieces of ``models`` into a source: text → tokens → the model →
``LayerHeads``, one layer at a time. What does not: the pieces themselves, numbers above q, k, v
(``core``), and comparing (``models.verify``).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from attnviz.errors import InputError, UsageError
from attnviz.records import Array, LayerHeads, SourceInfo, Tokens
from attnviz.registry import no_such_choice
from attnviz.rounding import bound
from attnviz.sources import Source, TextPacker, Verification
from attnviz.sources.models import cache, planning
from attnviz.sources.models.capture import steps, tap
from attnviz.sources.models.capture.interface import NAME, Record, capture
from attnviz.sources.models.capture.lazy_bias import lazy_position_bias
from attnviz.sources.models.capture.lazy_mask import Cut
from attnviz.sources.models.capture.lengths import most_tokens, shared_up_to
from attnviz.sources.models.capture.padding import check_known, pad, takes_padding
from attnviz.sources.models.capture.to_layer_heads import common_keys, share_keys, to_layer_heads
from attnviz.sources.models.files import ModelFiles, find_model
from attnviz.sources.models.library import require, version_of
from attnviz.sources.models.loading import (
    DTYPES,
    PROBE_TOKENS,
    Loaded,
    check_files,
    count_layers,
    load,
    width_of,
)
from attnviz.sources.models.tokenizer import ModelTokenizer, open_tokenizer, segment_notice
from attnviz.sources.models.writing import decoder_tokens, go_on
from attnviz.sources.text.tokenize import clean

_PLAN_VERSION = 3


def open_model(
    path: str | os.PathLike[str],
    *,
    which: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    max_tokens: int | None = None,
    target: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> TransformersSource:
    """Open a trained model: a Hugging Face folder, a place in its local cache, or a GGUF file.

    Parameters
    ----------
    which
        Of an encoder-decoder: ``encoder`` (default), ``self`` or ``cross``. Else ``self``.
    device, dtype
        Where and in what precision the model runs; its q, k, v are handed on in float32 at least.
    max_tokens
        Cut longer texts, and say so.
    target
        The decoder's text of an encoder-decoder; what the model itself would write where None.
    notify
        Told about slow first-time work.

    Raises
    ------
    UsageError
        The extra is not installed, or ``which`` does not fit the model.
    InputError
        No model there, not whole, not readable exactly, or hostile.
    ResourceError
        Not enough memory or disk.

    Notes
    -----
    The first time a model is used, a self-check on at most 32 tokens compares with its own eager
    attention; the result is kept by the model's hash.
    """
    require("transformers", "accelerate")
    given = find_model(path)
    files, sha256 = given, given.sha256()
    if given.kind == "gguf":
        from attnviz.sources.models.gguf_convert import converted

        folder = converted(given.weights[0], notify=notify)
        files = replace(find_model(folder), name=given.name)
    check_files(files)  # the library reads the config to open the tokenizer
    tokenizer = open_tokenizer(files.folder)
    loaded = load(files, device=torch.device(device), dtype=dtype)
    found = _plan(loaded, files, dtype=dtype, sha256=sha256)
    kinds = [kind for kind in planning.KINDS if found.of(kind)]
    chosen = which or kinds[0]
    if chosen not in kinds:
        raise UsageError(no_such_choice("attention", chosen, tuple(kinds)))
    return TransformersSource(
        given, files, sha256, tokenizer, loaded, found, chosen, max_tokens, target
    )


@dataclass(frozen=True)
class TransformersSource(Source):
    """A model, its tokenizer, and how its attention is read; see ``open_model``.

    Parameters
    ----------
    files
        What was given; ``folder_files`` the folder that was loaded, which differs for GGUF.
    plan
        Which attention call is which layer, and what the self-check found.
    which
        ``self``, ``cross`` or ``encoder``.
    """

    files: ModelFiles
    folder_files: ModelFiles
    sha256: str
    tokenizer: ModelTokenizer
    loaded: Loaded
    plan: planning.Plan
    which: str
    max_tokens: int | None = None
    target: str | None = None
    _written: dict[tuple[int, ...], Tokens] = field(default_factory=dict, repr=False, compare=False)

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have attention of this kind; not all of a hybrid's do."""
        return tuple(sorted(self.plan.of(self.which)))

    @property
    def device(self) -> str:
        """Where the model runs."""
        return str(self.loaded.device)

    @property
    def is_batched(self) -> bool:
        """A model takes several texts at once."""
        return True

    @property
    def config_sha256(self) -> str | None:
        """Hash of ``config.json``."""
        config = self.folder_files.folder / "config.json"
        return hashlib.sha256(config.read_bytes()).hexdigest()

    @property
    def tolerance(self) -> float:
        """How far an output may be from the model's own, relative to the largest number above 1."""
        return max(planning.TOLERANCE[self.loaded.dtype], 1e-4)  # large scores enlarge rounding

    @cached_property
    def info(self) -> SourceInfo:
        """Name, sizes, hashes and how the model is read."""
        calls = self.plan.of(self.which)
        first = calls[self.layers[0]]
        config = self.loaded.config
        return SourceInfo(
            kind="model",
            name=self.files.name,
            sha256=self.sha256,
            n_layers=count_layers(config, self.which, len(calls)),
            n_heads=first.n_heads,
            n_kv_heads=self.n_kv_heads,
            d_model=width_of(config),
            d_k=first.d_k,
            d_v=first.d_v,
            origin=f"{type(self.loaded.body).__name__}, {self._how_read()}",
            tokenizer=self.tokenizer.name,
            tokenizer_sha256=self.tokenizer.sha256,
            notices=self._notices(),
            n_vocab=int(getattr(config, "vocab_size", 0) or 0),
            n_positions=most_tokens(self.loaded),
        )

    @cached_property
    def n_kv_heads(self) -> int:
        """How many key/value heads every layer is handed on with, though layers may differ."""
        calls = self.plan.of(self.which).values()
        return common_keys([call.n_kv_heads for call in calls], next(iter(calls)).n_heads)

    @cached_property
    def shared_up_to(self) -> int | None:
        """How many tokens a forward pass of several texts may have; any number where None."""
        return shared_up_to(self.loaded.config)

    def tokenize(self, text: str) -> Tokens:
        """Cut a text with the model's own tokenizer.

        Raises
        ------
        InputError
            No tokens, or more than the model has positions for.
        """
        text, notices = clean(text)
        tokens = self.tokenizer.tokenize(text, max_tokens=self.max_tokens)
        if all(span is None for span in tokens.spans):  # none, or only what the tokenizer adds
            raise InputError(f"no tokens in {text[:40]!r}: give a text with at least one word")
        self._check_length(len(tokens))
        n_types = getattr(self.loaded.config, "type_vocab_size", None)
        notices = (*notices, *tokens.notices, *segment_notice(tokens, n_types, self.files.name))
        return replace(tokens, notices=notices) if notices else tokens

    def queries(self, tokens: Tokens) -> Tokens:
        """Return the tokens along the query axis: the text's own, or the decoder's."""
        return tokens if self.which == "encoder" or not self._is_pair else self._decoder(tokens)

    def keys(self, tokens: Tokens) -> Tokens:
        """Return the tokens along the key axis: differ from ``queries`` for cross attention."""
        return tokens if self.which == "cross" else self.queries(tokens)

    def sides(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """Return ``queries`` and ``keys``."""
        return self.queries(tokens), self.keys(tokens)

    def packer(self) -> TextPacker | None:
        """Return what runs short texts in one row, where this model's numbers stay the same."""
        from attnviz.sources.models.capture.packing import open_packer

        return open_packer(self)

    def verify(
        self, tokens: Tokens, trace_heads: Callable[[LayerHeads], Mapping[str, Array]]
    ) -> Verification:
        """Compare with the model loaded anew and run untouched, see ``models.verify``."""
        from attnviz.sources.models.verify import verify

        return verify(self, tokens, trace_heads)

    def run(
        self, tokens: Tokens, layers: Sequence[int], consume: Callable[[LayerHeads], None]
    ) -> None:
        """Run the model and hand the asked-for layers on in order, one at a time.

        The forward pass ends after the last of them. ``own_output`` is what the model's own
        attention gave per head.

        Parameters
        ----------
        tokens
            From ``tokenize``; of an encoder-decoder always the encoder's.

        Raises
        ------
        UsageError
            A layer that does not exist or has no attention.
        """
        self.run_batch([tokens], layers, lambda _, heads: consume(heads))

    def run_batch(
        self,
        texts: Sequence[Tokens],
        layers: Sequence[int],
        consume: Callable[[int, LayerHeads], None],
        *,
        side: str = "right",
    ) -> None:
        """Run several texts at once, padded; every text's numbers are those of its own run.

        Models whose numbers would change with padding run one text at a time.

        Parameters
        ----------
        texts
            From ``tokenize``; best of similar lengths, since all are padded to the longest.
        consume
            Receives the text's place in the batch and one layer of its real tokens.
        side
            ``right`` or ``left``: where the padding goes; on the right in any case where a model
            counts positions from the padding.
        """
        calls = self._calls(layers)
        if not calls:
            return
        longest = max(len(tokens) for tokens in texts)
        self._check_length(longest)
        together = self.shared_up_to
        is_too_long = together is not None and longest * len(texts) > together
        for tokens in texts:
            check_known(self.loaded, tokens)
        if self.plan.route == "tap":
            tap.check_length(longest, self.files.name)
        is_uneven = any(len(tokens) != longest for tokens in texts)
        if len(texts) > 1 and (is_too_long or (is_uneven and not self.plan.pads)):
            for place, tokens in enumerate(texts):
                self.run(tokens, layers, partial(consume, place))
            return
        pad_id = getattr(self.loaded.config, "pad_token_id", None) or 0
        batch = pad(texts, pad_id, side if self.loaded.can_pad_left else "right")
        has_decoder = self._is_pair and self.which != "encoder"
        # a decoder is padded on the right, where causal rows cannot see it, whatever its positions
        written = pad([self._decoder(t) for t in texts], pad_id, "right") if has_decoder else None
        unused = [[0]] * len(texts) if self._is_pair else None

        names = {id(module): name for name, module in self.loaded.body.named_modules()}
        n_rows = len(batch.ids[0] if written is None else written.ids[0])
        n_keys = len(batch.ids[0]) if self.which == "cross" else n_rows
        seen: set[int] = set()

        def hand_on(record: Record) -> None:
            call = calls[record.call]
            name = names.get(id(record.module), type(record.module).__name__)
            if name != call.name:
                raise self._took_another_way(f"call {call.call} came from {name}, not {call.name}")
            if (record.q.shape[2], record.k.shape[2]) != (n_rows, n_keys):
                raise self._took_another_way(
                    f"{name} attends from {record.q.shape[2]} to {record.k.shape[2]} positions, "
                    f"where there are {n_rows} and {n_keys} tokens"
                )
            seen.add(record.call)
            for place, span in enumerate(batch.real):
                rows = span if written is None else written.real[place]
                keys = span if self.which == "cross" else rows
                heads = to_layer_heads(
                    record,
                    Cut(place, rows, keys),
                    layer=call.layer,
                    name=call.name,
                    w_o=self._output_weight(record, call),
                )
                if heads.x is not None and heads.x.shape[-1] != width_of(self.loaded.config):
                    heads = replace(heads, x=None)  # of a step in between, not the layer's input
                consume(place, self.checked(share_keys(heads, self.n_kv_heads)))

        forward = partial(
            self.loaded.forward,
            batch.ids,
            real=batch.places,
            decoder_ids=unused if written is None else written.ids,
            decoder_real=None if written is None else written.places,
        )
        self._listen(forward, hand_on, frozenset(calls), n_batch=len(texts))
        if len(seen) != len(calls):
            missed = next(call.name for number, call in calls.items() if number not in seen)
            raise self._took_another_way(f"{missed} computes no softmax attention")

    def _took_another_way(self, what: str) -> InputError:
        return InputError(
            f"this text takes another way through {self.files.name} than the self-check's "
            f"{PROBE_TOKENS[0]} tokens did: {what}"
        )

    def checked(self, heads: LayerHeads) -> LayerHeads:
        """Refuse NaN and Inf, wherever they came from, before anything is computed from them.

        The one gate for every command: what passes it is finite, so that no ranking, mean or picture
        has to ask again. A weight that holds them is refused when the model is opened.
        """
        parts = {"q": heads.q, "k": heads.k, "v": heads.v, "its output": heads.own_output}
        for name, values in parts.items():
            # a sum is finite where its numbers are, and one number leaves the device, not all
            if values is None or math.isfinite(float(values.sum())):
                continue
            if not bool(torch.isfinite(values).all()):
                raise InputError(
                    f"layer {heads.layer} of {self.files.name} gives NaN or Inf in {name} for this "
                    f"text: {self.loaded.dtype} does not hold its numbers; try --dtype float32"
                )
        return heads

    def generate(self, tokens: Tokens, n_new: int, **how: Any) -> Tokens:
        """Write on: the text's tokens and ``n_new`` more, fewer where the model ends.

        Row i of a later ``run`` over the result is where token i looked when it was the last, as
        causal rows ignore what follows. ``how``: ``temperature``, ``seed``, ``tell`` of ``go_on``.

        Raises
        ------
        UsageError
            A model without a language head, or an encoder.
        """
        model = self.loaded.model
        if self._is_pair or not model.can_generate() or getattr(model, "lm_head", None) is None:
            raise UsageError(f"{self.files.name} does not write text on: it has no language head")
        self._check_length(len(tokens) + n_new)
        self._check_rows_stay(tokens, n_new)
        return go_on(self.loaded, self.tokenizer, tokens, n_new, **how)

    def _check_rows_stay(self, tokens: Tokens, n_new: int) -> None:
        """Refuse to write across a length at which earlier tokens would be computed otherwise.

        A later run over the whole text shows where each token looked when it was the last only if
        causal rows ignore what follows. Rotary factors that change with the length break that, so
        it is tried: the prompt alone, and the prompt with as many tokens behind it.
        """
        if self.shared_up_to is None or len(tokens) + n_new <= self.shared_up_to:
            return
        n = len(tokens)
        ids = (tokens.ids * (1 + -(-n_new // n)))[: n + n_new]
        blank = ("",) * len(ids)
        whole = Tokens("", ids, blank, blank, (None,) * len(ids), (False,) * len(ids))
        alone: dict[int, LayerHeads] = {}
        self.run(tokens, self.layers, lambda heads: alone.update({heads.layer: heads}))

        def compare(heads: LayerHeads) -> None:
            for name in ("q", "k", "own_output"):
                theirs, ours = getattr(alone[heads.layer], name), getattr(heads, name)[:, :n]
                size = max(1.0, float(abs(theirs).max()))
                if not float(abs(ours - theirs).max()) <= 100 * self.tolerance * size:
                    raise UsageError(
                        f"{self.files.name} computes its first {n} tokens otherwise when {n_new} more "
                        f"follow (its config changes at {self.shared_up_to} tokens), so where each "
                        "looked cannot be shown afterwards: give a shorter -n or prompt"
                    )

        self.run(whole, self.layers, compare)

    @property
    def _is_pair(self) -> bool:
        return self.loaded.is_encoder_decoder

    def _listen(
        self,
        forward: Callable[[], Any],
        consume: Callable[[Record], None],
        calls: frozenset[int],
        *,
        n_batch: int,
    ) -> None:
        body = self.loaded.body
        with torch.inference_mode():
            if self.plan.route == "tap":
                planning.switch(self.loaded.model, "eager")
                with tap.tap(body, consume, n_batch=n_batch, calls=calls):
                    forward()
                return
            planning.switch(self.loaded.model, NAME)
            names = {call.name for call in self.plan.calls if call.call in calls}
            heard = [module for name, module in body.named_modules() if name in names]
            with (
                lazy_position_bias(body),
                steps.listen(heard) as seen,
                capture(consume, calls=calls, steps=seen),
            ):
                forward()

    def _calls(self, layers: Sequence[int]) -> dict[int, planning.Call]:
        of_kind = self.plan.of(self.which)
        for layer in layers:
            if layer not in of_kind:
                listed = ", ".join(map(str, self.layers[:12])) + (" …" if len(of_kind) > 12 else "")
                raise UsageError(
                    f"layer {layer} of {self.files.name} has no {self.which} attention: "
                    f"choose from {listed}"
                )
        return {of_kind[layer].call: of_kind[layer] for layer in layers}

    def _check_length(self, n_tokens: int) -> None:
        limit = most_tokens(self.loaded)
        if limit is not None and n_tokens > limit:
            raise InputError(
                f"{n_tokens} tokens, but {self.files.name} has positions for {limit}: shorten the "
                f"text, or cut it with --max-tokens {limit}"
            )

    def _output_weight(self, record: Record, call: planning.Call) -> torch.Tensor | None:
        parent = self.loaded.body.get_submodule(call.name.rpartition(".")[0]) if call.name else None
        return steps.find_output_weight(record.module, parent, call.n_heads * call.d_v)

    def _decoder(self, tokens: Tokens) -> Tokens:
        if tokens.ids not in self._written:
            made = decoder_tokens(self.loaded, self.tokenizer, tokens, self.target)
            self._written[tokens.ids] = made
        return self._written[tokens.ids]

    def _how_read(self) -> str:
        way = {
            "interface": "read through the library's attention interface",
            "tap": "read off its eager attention",
        }[self.plan.route]
        proof, floor = self.plan.difference, planning.TOLERANCE[self.loaded.dtype]
        if proof is None:
            return (
                f"{way}; final states equal its own in the self-check "
                f"(within {bound(self.plan.hidden_difference or 0.0, floor)})"
            )
        return f"{way}; weights equal its own in the self-check (within {bound(proof, floor)})"

    def _notices(self) -> tuple[str, ...]:
        notices = [*self.loaded.notices, *self.tokenizer.notices]
        factors = {call.prescale for call in self.plan.of(self.which).values()} - {None}
        if factors:
            listed = ", ".join(f"{factor:.4g}" for factor in sorted(factors, key=str))
            notices.append(
                f"this model multiplies q by {listed} before q·k, so its scores need no scaling"
            )
        if self.loaded.dtype != "float32":
            notices.append(f"the model runs in {self.loaded.dtype}: its own numbers are rounded so")
        return tuple(notices)


def _plan(loaded: Loaded, files: ModelFiles, *, dtype: str, sha256: str) -> planning.Plan:
    """Return the self-check's result, from the cache where this model was checked before."""
    facts = [
        str(_PLAN_VERSION),
        sha256,
        hashlib.sha256((files.folder / "config.json").read_bytes()).hexdigest(),
        version_of("transformers"),
        version_of("torch"),
        dtype,
        loaded.device.type,
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    known = planning.from_json(cache.read_entry("plan", key))
    if known is not None:
        return known
    found = planning.make_plan(
        loaded.model, loaded.body, loaded.probe(), dtype=dtype, name=files.name
    )
    found = replace(found, pads=takes_padding(loaded))
    cache.write_entry("plan", key, found.to_json())
    return found


__all__ = ["DTYPES", "TransformersSource", "open_model"]
