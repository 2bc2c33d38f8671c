"""Many short texts in one forward pass, one behind the other without padding, each alone.

What lives here: a third attention function registered with ``transformers``: every text of a packed
row attends within itself only, by the rule it has when run alone. What does not: which texts share
a row (``runs.passes``), padded batches (``transformers_``).

Everything between attentions works on each token by itself in most models, and positions are given
explicitly, so a text's q, k, v are those of its own run. Whether that holds is not believed but
tried: three short texts packed must give what they give alone, layer by layer, or nothing is packed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import accumulate, groupby
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.records import LayerHeads, MaskRule, Tokens
from attnviz.rounding import worse
from attnviz.sources.models import planning
from attnviz.sources.models.capture.interface import (
    Record,
    StopForward,
    fused_output,
    read_scale,
    refuse_unknown,
)
from attnviz.sources.models.capture.lazy_mask import LazyMask, make_mask
from attnviz.sources.models.capture.to_layer_heads import share_keys

NAME = "attnviz_packed"
"""The name under which the attention function is registered."""

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest accepted difference between packed and alone, relative to the largest number."""

_PROBE_LENGTHS = (7, 4, 7)
_COUNTED_LIKE_ROBERTA = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet"})

Consume = Callable[[Sequence[int], LayerHeads], None]


class NotPackable(InputError):
    """This model's texts cannot share a row: run them one at a time."""


@dataclass(slots=True)
class _Session:
    """One packed forward pass: (start, length, how many, places) of texts of equal length."""

    groups: Sequence[tuple[int, int, int, tuple[int, ...]]]
    rules: dict[int, MaskRule]
    layers: dict[int, int]
    consume: Consume
    names: dict[int, str] = field(default_factory=dict)
    seen: int = 0


_session: ContextVar[_Session | None] = ContextVar("attnviz_packed", default=None)


@dataclass(frozen=True)
class Packer:
    """A model that runs packed texts; see ``open_packer``.

    Parameters
    ----------
    rules
        Of every attention call: what a text sees when it is run alone.
    padding
        Id of the padding, for models whose positions depend on it.
    difference
        Largest difference between packed and alone in the trial, relative to the largest number.
    """

    source: Any
    rules: dict[int, MaskRule]
    padding: int | None = None
    difference: float = 0.0

    def run(self, texts: Sequence[Tokens], layers: Sequence[int], consume: Consume) -> None:
        """Run texts in one row and hand the asked-for layers on.

        Parameters
        ----------
        texts
            From ``tokenize``; best sorted by length.
        consume
            Receives the places of n texts of equal length, and one layer of them joined: n·H heads
            and n·K key/value heads, text after text.

        Raises
        ------
        NotPackable
            The model took another way than in the trial.
        """
        source = self.source
        calls = source.plan.of(source.which)
        wanted = {calls[layer].call: layer for layer in layers}
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        ids: list[int] = []
        positions: list[int] = []
        groups = []
        for length, same in groupby(order, key=lambda i: len(texts[i])):
            places = tuple(same)
            groups.append((len(ids), length, len(places), places))
            for i in places:
                ids += texts[i].ids
                positions += self._positions(texts[i].ids)

        def hand_on(places: Sequence[int], joined: LayerHeads) -> None:
            n_kv_heads = source.n_kv_heads * len(places)
            consume(places, source.checked(share_keys(joined, n_kv_heads)))

        session = _Session(groups, self.rules, wanted, hand_on)
        _run_packed(source.loaded, ids, positions, session)

    def _positions(self, ids: Sequence[int]) -> list[int]:
        """Return a text's positions; RoBERTa counts from behind its padding, and never a pad."""
        if self.padding is None:
            return list(range(len(ids)))
        counted = accumulate(int(i != self.padding) for i in ids)
        return [
            n + self.padding if i != self.padding else self.padding
            for n, i in zip(counted, ids, strict=True)
        ]


def open_packer(source: Any) -> Packer | None:
    """Try whether a model's texts can share a row; None where they cannot.

    Parameters
    ----------
    source
        A ``TransformersSource``.
    """
    loaded = source.loaded
    takes_positions = "position_ids" in inspect.signature(loaded.body.forward).parameters
    if source.plan.route != "interface" or loaded.is_encoder_decoder or not takes_positions:
        return None
    if source.shared_up_to is not None and source.shared_up_to < sum(_PROBE_LENGTHS):
        return None
    _register()
    layers = source.layers
    calls = source.plan.of(source.which)
    n_words = int(getattr(loaded.config, "vocab_size", 0) or 64)
    texts = [_probe(n, 11 * i + 5, n_words) for i, n in enumerate(_PROBE_LENGTHS)]
    alone: list[dict[int, LayerHeads]] = [{} for _ in texts]
    rules: dict[int, MaskRule] = {}
    try:
        for kept, tokens in zip(alone, texts, strict=True):
            source.run(tokens, layers, lambda heads, kept=kept: kept.update({heads.layer: heads}))
        for layer, heads in alone[0].items():
            rules[calls[layer].call] = _plain_rule(heads)
        packer = Packer(source, rules, _padding(loaded.config))
        difference = _compare(packer, texts, alone)
    except (InputError, RuntimeError, ValueError, TypeError, IndexError, KeyError):
        return None
    limit = TOLERANCE.get(loaded.dtype, 0.0)
    if not difference <= limit:
        return None
    return Packer(source, rules, packer.padding, difference)


def _probe(length: int, start: int, n_words: int) -> Tokens:
    ids = tuple((7 * i + start) % n_words for i in range(length))
    blank = ("",) * length
    return Tokens("", ids, blank, blank, ((0, 0),) * length, (False,) * length)


def _padding(config: Any) -> int | None:
    """Return the padding's id for models that count positions as RoBERTa does."""
    if getattr(config, "model_type", "") not in _COUNTED_LIKE_ROBERTA:
        return None
    padding = getattr(config, "pad_token_id", None)
    return 0 if padding is None else int(padding)


def _plain_rule(heads: LayerHeads) -> MaskRule:
    """Return a layer's rule where it holds for texts of any length."""
    rule = heads.visible
    if heads.bias is not None or rule.where is not None or rule.cells is not None:
        raise NotPackable
    if rule.key_visible is not None:
        raise NotPackable
    return rule


def _compare(
    packer: Packer, texts: Sequence[Tokens], alone: Sequence[dict[int, LayerHeads]]
) -> float:
    """Return the largest relative difference of q, k, v, output between packed and alone."""
    worst, n_seen = 0.0, 0

    def consume(places: Sequence[int], joined: LayerHeads) -> None:
        nonlocal worst, n_seen
        for at, i in enumerate(places):
            own = alone[i][joined.layer]
            n_seen += 1
            for name in ("q", "k", "v", "own_output"):
                theirs = getattr(own, name)
                rows = slice(at * len(theirs), (at + 1) * len(theirs))
                ours = getattr(joined, name)[rows]
                size = float(theirs.abs().max()) or 1.0
                worst = worse(worst, float((ours - theirs).abs().max()) / size)
            if own.scale != joined.scale or own.softcap != joined.softcap:
                raise NotPackable

    packer.run(texts, packer.source.layers, consume)
    if n_seen != len(texts) * len(packer.source.layers):
        raise NotPackable
    return worst


@cache
def _register() -> None:
    transformers: Any = import_module("transformers")
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, make_mask)


def _run_packed(loaded: Any, ids: list[int], positions: list[int], session: _Session) -> None:
    accepted = inspect.signature(loaded.body.forward).parameters
    named: dict[str, Any] = {
        "input_ids": torch.tensor([ids], device=loaded.device),
        "position_ids": torch.tensor([positions], device=loaded.device),
    }
    if "use_cache" in accepted:
        named["use_cache"] = False
    planning.switch(loaded.model, NAME)
    token = _session.set(session)
    try:
        with torch.inference_mode():
            loaded.run(named)
    except StopForward:
        pass
    finally:
        _session.reset(token)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute a packed row's attention text by text; the signature is ``AttentionInterface``'s.

    The mask is not looked at beyond its kind: each text's rule is the one it has alone.

    Returns
    -------
    (1, T, H, F) tensor, and None in place of weights
    """
    session = _session.get()
    if session is None:
        raise NotPackable
    refuse_unknown(type(module).__name__, others)
    is_dense = attention_mask is not None and not isinstance(attention_mask, LazyMask)
    held = s_aux if s_aux is not None else sinks if sinks is not None else _own_sinks(module)
    if is_dense or position_bias is not None or query.shape[0] != 1:
        raise NotPackable
    if held is not None and held.numel() != query.shape[1]:
        raise NotPackable
    call, session.seen = session.seen, session.seen + 1
    made = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
    for start, length, count, places in session.groups:
        parts = [_cut(a, start, length, count) for a in (query, key, value)]
        rule = session.rules.get(call, MaskRule())
        record = Record(
            call=call,
            module=module,
            q=parts[0],
            k=parts[1],
            v=parts[2],
            scale=read_scale(module, scaling, query.shape[-1]),
            mask=_mask(rule, count, length, query),
            softcap=None if not softcap else float(softcap),
            sinks=None if held is None else held.detach().reshape(-1),
        )
        output = fused_output(record)
        rows = slice(start, start + length * count)
        made[0, rows] = output.transpose(1, 2).flatten(0, 1)
        if call in session.layers:
            session.consume(places, _join(record, output, rule, session.layers[call]))
    if call >= max(session.layers, default=-1):
        raise StopForward
    return made, None


def _own_sinks(module: torch.nn.Module) -> torch.Tensor | None:
    own = getattr(module, "sinks", None)
    return own if isinstance(own, torch.Tensor) else None


def _cut(a: torch.Tensor, start: int, length: int, count: int) -> torch.Tensor:
    """Cut texts of one length out of a row: (1, H, T, E) → (n, H, length, E)."""
    part = a[0, :, start : start + length * count]
    return part.reshape(len(part), count, length, part.shape[-1]).transpose(0, 1)


def _mask(rule: MaskRule, count: int, length: int, like: torch.Tensor) -> LazyMask | None:
    if rule.hides_nothing:
        return None
    shape = (count, 1, length, length)
    return LazyMask(_index_rule(rule), shape, dtype=like.dtype, device=like.device)


def _index_rule(rule: MaskRule) -> Callable[..., torch.Tensor]:
    """Return a rule by index, counted from a text's own first token."""
    masking_utils: Any = import_module("transformers.masking_utils")
    if rule == MaskRule(causal=True):
        causal: Callable[..., torch.Tensor] = masking_utils.causal_mask_function
        return causal

    def seen(batch: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        found = torch.ones_like(query * key, dtype=torch.bool)
        for part in _parts(rule, query, key):
            found = found & part
        return found

    return seen


def _parts(rule: MaskRule, query: Any, key: Any) -> Iterator[torch.Tensor]:
    if rule.causal:
        yield key <= query
    if rule.window is not None:
        before = rule.window - 1 if rule.causal else rule.window // 2
        after = 0 if rule.causal else (rule.window - 1) // 2
        yield (key >= query - before) & (key <= query + after)
    if rule.chunk is not None:
        yield key // rule.chunk == query // rule.chunk


def _join(record: Record, output: torch.Tensor, rule: MaskRule, layer: int) -> LayerHeads:
    """Join n texts along the head axis: query head t·H + h reads key/value head t·K + h // (H // K)."""
    kept = torch.promote_types(record.q.dtype, torch.float32)
    count = record.q.shape[0]
    q, k, v, z = (a.detach().flatten(0, 1).to(kept) for a in (record.q, record.k, record.v, output))
    sinks = record.sinks
    return LayerHeads(
        q=q,
        k=k,
        v=v,
        scale=record.scale,
        visible=rule,
        softcap=record.softcap,
        sinks=None if sinks is None else sinks.to(kept).repeat(count),
        own_output=z,
        layer=layer,
    )
