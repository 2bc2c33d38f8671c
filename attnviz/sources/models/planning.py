"""What a model's forward pass does, found by one self-check against its own eager attention.

What lives here: which attention call is which layer, whether the library's interface or the tap
reads this model, and the proof. What does not: opening the model (``loading``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.rounding import worse
from attnviz.sources.models.capture.interface import NAME, Record, capture, formula_rows, register
from attnviz.sources.models.capture.lazy_bias import lazy_position_bias
from attnviz.sources.models.capture.tap import tap

KINDS = ("encoder", "self", "cross")
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest accepted difference of weights, by the precision the model runs in: eager attention
itself rounds its weights to that precision."""
_SMALL_SCORE = 16.0
"""Scaled scores up to which ``TOLERANCE`` holds; beyond, it grows in proportion."""


@dataclass(frozen=True, slots=True)
class Call:
    """One attention call of a forward pass: its place, layer, and widths."""

    call: int
    kind: str
    layer: int
    name: str
    n_heads: int
    n_kv_heads: int
    d_k: int
    d_v: int
    prescale: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is read.

    Parameters
    ----------
    route
        ``interface`` (the library's attention interface) or ``tap`` (its eager operations).
    calls
        In the order of the forward pass.
    difference
        Largest difference between our weights and the model's own, over the self-check's tokens;
        None where the model reports no weights, then ``hidden_difference`` alone was checked.
    hidden_difference
        The same for the final states, with our attention in the model.
    pads
        False where a padded batch gives other numbers than single texts, even in the model's own
        run (convolutions that see padding).
    """

    route: str
    calls: tuple[Call, ...]
    difference: float | None
    hidden_difference: float
    pads: bool = True

    def of(self, kind: str) -> dict[int, Call]:
        """Return layer → call for one kind of attention."""
        return {call.layer: call for call in self.calls if call.kind == kind}

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return asdict(self)


def from_json(value: Any) -> Plan | None:
    """Read a plan back; None where it is not one."""
    try:
        calls = tuple(Call(**call) for call in value["calls"])
        return Plan(**{**value, "calls": calls})
    except (TypeError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """A short forward pass: ``run(output_attentions=…)`` on fixed ids, and its lengths."""

    run: Callable[..., Any]
    n_batch: int
    n_encoder: int
    n_decoder: int


def make_plan(
    model: torch.nn.Module, body: torch.nn.Module, probe: Probe, *, dtype: str, name: str
) -> Plan:
    """Run a few tokens through a model three ways and find out how to read it.

    Parameters
    ----------
    model
        As the library made it; ``body`` is the part of it that ``probe`` runs.
    dtype
        The precision the model runs in, which sets the tolerance.
    name
        For messages.

    Raises
    ------
    InputError
        Neither way gives the model's own numbers; the message says which fact is missing.
    """
    switch(model, "eager")  # the oracle: the library's own formula, every weight reported
    with torch.inference_mode():
        reference = probe.run(output_attentions=True)
    theirs = reported_weights(reference)
    refusals = []
    for route in ("interface", "tap"):
        try:
            records, outputs = _run_route(model, body, probe, route)
            plan = Plan(route, _name_calls(body, records, probe), None, 0.0)
        except InputError as fault:
            refusals.append(str(fault))
            continue
        if not records:
            continue
        why_not, difference = _compare(plan, records, theirs, dtype)
        hidden = hidden_difference(reference, outputs)
        if why_not is None and not hidden <= 100 * TOLERANCE[dtype]:
            why_not = f"final states differ by {hidden:.1e} with attention recomputed"
        why_not = why_not or _differ_by_layer(plan)
        if why_not is None:
            return Plan(route, plan.calls, difference, hidden)
        refusals.append(why_not)
    if not theirs and not refusals:
        raise InputError(f"{name} has no softmax attention at all: there is nothing to show")
    reason = (
        refusals[-1]
        if refusals
        else (
            "its attention is neither passed to the library's interface nor a product, a softmax and "
            "a product, so its q and k are not known"
        )
    )
    raise InputError(f"{name} cannot be read exactly: {reason}")


def _differ_by_layer(plan: Plan) -> str | None:
    """Say why layers cannot be shown as one grid of layers × heads, where they cannot."""
    for kind in KINDS:
        counts = sorted({call.n_heads for call in plan.of(kind).values()})
        if len(counts) > 1:
            return f"its layers have different numbers of heads ({', '.join(map(str, counts))})"
    return None


def _run_route(
    model: torch.nn.Module, body: torch.nn.Module, probe: Probe, route: str
) -> tuple[list[Record], Any]:
    records: list[Record] = []
    outputs = None
    with torch.inference_mode():
        if route == "interface":
            switch(model, NAME)
            with lazy_position_bias(body), capture(records.append):
                outputs = probe.run()
        else:
            switch(model, "eager")
            with tap(body, records.append, n_batch=probe.n_batch):
                outputs = probe.run()
    return records, outputs


def switch(model: Any, implementation: str) -> None:
    """Choose a model's attention function; one that lacks the choice stays as it is."""
    if implementation == NAME:
        register()
    try:
        model.set_attn_implementation(implementation)
    except (ValueError, KeyError, ImportError):
        if implementation != "sdpa":
            raise
        model.set_attn_implementation("eager")


def reported_weights(outputs: Any) -> dict[str, list[torch.Tensor]]:
    """Return a model's own weights by kind: (B, H, L, S) each, layers without any left out."""
    found: dict[str, list[torch.Tensor]] = {}
    names = {
        "encoder": ("encoder_attentions",),
        "self": ("decoder_attentions", "attentions"),
        "cross": ("cross_attentions",),
    }
    for kind, keys in names.items():
        for key in keys:
            listed = getattr(outputs, key, None)
            kept = [w for w in listed or () if isinstance(w, torch.Tensor)]
            if kept and kind not in found:
                found[kind] = kept
    return found


def hidden_difference(reference: Any, ours: Any) -> float:
    """Return the largest difference of the final states, relative to numbers above 1.

    NaN, which no tolerance takes, where one of them has no final states.
    """
    a, b = _final(reference), _final(ours)
    if a is None or b is None or a.shape != b.shape:
        return math.nan
    largest = max(1.0, float(a.abs().max()))
    return float((a - b).abs().max()) / largest


def _final(outputs: Any) -> torch.Tensor | None:
    for name in ("last_hidden_state", "logits", "encoder_last_hidden_state"):
        value = getattr(outputs, name, None)
        if isinstance(value, torch.Tensor):
            return value.float()
    return None


def _compare(
    plan: Plan, records: Sequence[Record], theirs: Mapping[str, list[torch.Tensor]], dtype: str
) -> tuple[str | None, float | None]:
    """Return the fault, if any, and the largest difference of weights."""
    if not theirs:
        if plan.route == "tap":
            return "it reports no weights of its own to compare with", None
        return None, None
    worst, largest_score = 0.0, 0.0
    for kind, listed in theirs.items():
        calls = [call for call in plan.calls if call.kind == kind]
        if len(calls) != len(listed):
            return f"it computes {len(calls)} {kind} attentions and reports {len(listed)}", None
        for call, weights in zip(calls, listed):
            record = records[call.call]
            ours, output = formula_rows(record)
            largest_score = max(largest_score, _largest_score(record))
            if ours.shape != weights.shape:
                fault = (
                    f"{call.name} reports weights {tuple(weights.shape)}, not {tuple(ours.shape)}"
                )
                return fault, None
            if record.sinks is not None and float((weights.sum(-1) - 1).abs().max()) < 1e-3:
                ours = ours / ours.sum(-1, keepdim=True)  # reported without the sink's share
            worst = worse(worst, float((ours - weights.to(ours.dtype)).abs().max()))
            if record.output is not None:
                away = float((output - record.output).abs().max())
                size = max(1.0, float(record.output.abs().max()))
                worst = worse(worst, away / size)
    # a weight is off by as much, relatively, as rounding moves its score, which grows with the score:
    # float32 keeps a score of 16 to 1e-6, Gemma 4's scores of 90 to 1e-5
    if not worst <= TOLERANCE[dtype] * max(1.0, largest_score / _SMALL_SCORE):
        return f"its own eager weights differ from the recomputed ones by {worst:.1e}", worst
    return None, worst


def _largest_score(record: Record) -> float:
    """Return max |q·k| · scale, before any mask: what rounding of the weights grows with."""
    group = record.q.shape[1] // record.k.shape[1]
    scores = record.q @ record.k.repeat_interleave(group, 1).mT
    return float(scores.abs().max()) * abs(record.scale)


def _name_calls(body: torch.nn.Module, records: Sequence[Record], probe: Probe) -> tuple[Call, ...]:
    """Give every call its kind and its layer's number."""
    names = {id(module): name for name, module in body.named_modules()}
    kinds = [_kind(record, names.get(id(record.module), ""), probe) for record in records]
    layers = [0] * len(records)
    for kind in KINDS:
        places = [i for i, k in enumerate(kinds) if k == kind]
        numbers = [_first_number(names.get(id(records[i].module), "")) for i in places]
        rising = all(a is not None and b is not None and a < b for a, b in pairwise(numbers))
        is_named = rising and bool(numbers) and numbers[0] is not None
        for order, (i, number) in enumerate(zip(places, numbers)):
            layers[i] = number if is_named and number is not None else order
    return tuple(
        Call(
            call=record.call,
            kind=kind,
            layer=layer,
            name=names.get(id(record.module), type(record.module).__name__),
            n_heads=record.q.shape[1],
            n_kv_heads=record.k.shape[1],
            d_k=record.q.shape[-1],
            d_v=record.v.shape[-1],
            prescale=record.prescale,
        )
        for record, kind, layer in zip(records, kinds, layers)
    )


def _kind(record: Record, name: str, probe: Probe) -> str:
    lengths = (record.q.shape[2], record.k.shape[2])
    if probe.n_decoder == 0:
        if lengths != (probe.n_encoder, probe.n_encoder):
            raise InputError(
                f"{name} attends from {lengths[0]} to {lengths[1]} positions, where the text has "
                f"{probe.n_encoder} tokens: which token each stands for is not known"
            )
        return "self"
    if lengths == (probe.n_decoder, probe.n_encoder):
        return "cross"
    if lengths[0] == lengths[1] == probe.n_encoder:
        return "encoder"
    if lengths[0] == lengths[1] == probe.n_decoder:
        return "self"
    raise InputError(
        f"{name} attends from {lengths[0]} to {lengths[1]} positions, which is neither the "
        f"encoder's {probe.n_encoder} nor the decoder's {probe.n_decoder} tokens"
    )


def _first_number(name: str) -> int | None:
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None
