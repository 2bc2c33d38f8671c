"""Watch a model that its owner runs, and show what its attention did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.core.measures.choose import Ranking
from attnviz.errors import UsageError
from attnviz.records import HeadChoice, Tokens, Trace
from attnviz.runs.request import choose_heads, choose_layers, find_tokens
from attnviz.runs.show import trace_of_layers

if TYPE_CHECKING:
    from attnviz.sources.models.watching import Calls


@dataclass
class Seen:
    """What ``watch`` saw: the calls of every layer, in order."""

    name: str
    _calls: Calls | None = field(default=None, repr=False)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that were seen, numbered in the order in which they are first called."""
        return tuple(sorted({call.layer for call in self._found}))

    @property
    def n_runs(self) -> int:
        """How often the first of them was called: the forward passes."""
        return sum(call.layer == self.layers[0] for call in self._found) if self._found else 0

    @property
    def _found(self) -> list[Any]:
        return [] if self._calls is None else self._calls.found

    def show(
        self,
        tokens: Any = None,
        *,
        key_tokens: Any = None,
        tokenizer: Any = None,
        run: int = -1,
        index: int = 0,
        layers: Sequence[int] | None = None,
    ) -> Trace:
        """Return one text of one forward pass as a Trace.

        Parameters
        ----------
        tokens, key_tokens, tokenizer
            As of ``attnviz.show``.
        run
            Which forward pass; the last by default.
        index
            Which text of the batch.
        layers
            Which of the layers seen; all by default.

        Raises
        ------
        UsageError
            Nothing was seen, or numbers that do not exist.
        """
        if not self._found:
            raise UsageError(f"no attention of {self.name} was seen: run it inside the block")
        wanted = self.layers if layers is None else tuple(layers)
        found = []
        for layer in wanted:
            calls = [call for call in self._found if call.layer == layer]
            if not calls:
                raise UsageError(f"layer {layer} was not seen: there are {self.layers}")
            if not -len(calls) <= run < len(calls):
                raise UsageError(f"run {run} does not exist: layer {layer} ran {len(calls)} times")
            call = calls[run]
            if not 0 <= index < len(call.q):
                raise UsageError(
                    f"index {index} does not exist: the batch has 0 to {len(call.q) - 1}"
                )
            found.append(call.heads(index))
        batched = None if tokens is None or np.ndim(_first(tokens)) == 0 else index
        return trace_of_layers(
            found, tokens, key_tokens=key_tokens, tokenizer=tokenizer, index=batched, name=self.name
        )


def _first(tokens: Any) -> Any:
    parts = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    return parts[0] if len(parts) else 0


@contextmanager
def watch(model: Any, layers: Sequence[int] | None = None) -> Iterator[Seen]:
    """See q, k and v of whatever a model runs inside the block: a step, a pipeline, ``generate``.

    Parameters
    ----------
    model
        A loaded model of ``transformers``, or any module with ``torch.nn.MultiheadAttention``. It is
        left as it was found, and what it computes is bit for bit its own, gradients too.
    layers
        Keep only these, numbered in the order in which they are first called.

    Returns
    -------
    Seen, for the block
        ``seen.show(tokens)`` is a Trace; ``checks["parity"]`` compares with the model's own output.

    Raises
    ------
    UsageError
        A model that cannot be watched.

    Notes
    -----
    q, k, v of every kept layer and pass stay in memory, on the model's device, until ``seen`` goes.
    """
    from attnviz.sources.models.watching import watching

    seen = Seen(type(model).__name__)
    with watching(model, layers) as calls:
        seen._calls = calls
        yield seen


def explain_model(
    text: str,
    tokenizer: Any,
    *,
    model: Any,
    layer: str | int | None = None,
    head: str | int | None = None,
    token: str | Sequence[str] | None = None,
    **others: Any,
) -> Trace:
    """Run a model in memory once, without gradients and dropout, and show its attention.

    Parameters
    ----------
    tokenizer
        The model's own, of ``transformers``.
    layer, head, token
        As of ``explain``: of a model the head that tells most about ``token``.

    Raises
    ------
    UsageError
        No tokenizer, an option that a model in memory has no use for, or numbers that do not exist.
    """
    import torch

    unused = [name for name, value in others.items() if value not in (None, False)]
    if unused:
        raise UsageError(f"{unused[0]} is for models and weights on disk: leave it out")
    if not callable(tokenizer):
        raise UsageError("a model in memory needs its tokenizer: tokenizer=AutoTokenizer…")
    encoded = tokenizer(text, return_tensors="pt")
    ids = encoded["input_ids"][0]
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with watch(model) as seen, torch.no_grad():
            model(**{name: part.to(model.device) for name, part in encoded.items()})
    finally:
        for module in training:
            module.training = True
    trace = seen.show(ids, tokenizer=tokenizer)
    trace = replace(
        trace, about=replace(trace.about, tokens=_spelled(text, tokenizer, trace.tokens))
    )
    return _chosen(trace, layer, head, token)


def _spelled(text: str, tokenizer: Any, tokens: Tokens) -> Tokens:
    """Give tokens the pieces of the text they stand for, where the tokenizer knows the places."""
    if not getattr(tokenizer, "is_fast", False):
        return replace(tokens, text=text)
    places = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    spans = tuple(None if start == end else (start, end) for start, end in places)
    labels = tuple(
        label if span is None else text[span[0] : span[1]].strip() or label
        for label, span in zip(tokens.labels, spans, strict=True)
    )
    return replace(tokens, text=text, labels=labels, spans=spans)


def _chosen(
    trace: Trace, layer: str | int | None, head: str | int | None, token: str | Sequence[str] | None
) -> Trace:
    """Return the layers and heads that are asked for, or those of the head that tells most."""
    layers = choose_layers(layer, trace.layers, trace.layers[-1] + 1)
    wanted = [token] if isinstance(token, str) else list(token or ())
    query = find_tokens(trace.tokens, wanted)[0] if wanted else None
    weights = np.asarray(trace.stages["weights"])
    ranked: tuple[HeadChoice, ...] = ()
    if head in (None, "auto"):
        ranking = Ranking(trace.keys.special, query, n_queries=len(trace.tokens))
        for number in layers:
            ranking.add(number, range(weights.shape[1]), weights[trace.layers.index(number)])
        ranked = ranking.ranked()
        layers = (ranked[0].layer,)
        heads: tuple[int, ...] = (ranked[0].head,)
    else:
        heads = tuple(choose_heads(head, weights.shape[1]))
    at = np.ix_([trace.layers.index(number) for number in layers], heads)
    places = at[0].ravel().tolist()
    return replace(
        trace,
        layers=tuple(layers),
        heads=heads,
        stages={name: np.asarray(values)[at] for name, values in trace.stages.items()},
        visible=np.asarray(trace.visible)[at],
        scale=tuple(trace.scale[place] for place in places),
        softcap=tuple(trace.softcap[place] for place in places),
        sink_share=None if trace.sink_share is None else np.asarray(trace.sink_share)[at],
        ranking=ranked,
        asked=query,
    )
