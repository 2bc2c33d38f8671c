"""A model writes on, and every new token says where it looked.

What lives here: writing, then one pass over the whole text for its rows. What does not: the
library's generation (``sources.models.writing``), or attention (``core``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Array, LayerHeads, Tokens, Trace
from attnviz.runs.explain import gather
from attnviz.runs.heads import cut_tokens
from attnviz.runs.run import Origin, Run, choose, narrow, open_place

MAX_NEW = 4096


@dataclass(frozen=True, slots=True)
class Generated:
    """A prompt, what a model wrote behind it, and the attention over both.

    Parameters
    ----------
    trace
        One layer and head over the whole text, the prompt's rows included. The row of the query at
        position i is where the model looked when it wrote token i + 1.
    n_prompt
        How many tokens the prompt has.
    """

    trace: Trace
    n_prompt: int

    @property
    def text(self) -> str:
        """What the model wrote."""
        spans = [s for s in self.trace.tokens.spans[self.n_prompt :] if s is not None]
        return self.trace.tokens.text[spans[0][0] :] if spans else ""


def generate(
    text: str,
    *,
    n: int = 20,
    temperature: float = 0.0,
    layer: str | int | None = None,
    head: str | int | None = None,
    tell: Callable[[Tokens, Array], None] | None = None,
    **origin: Unpack[Origin],
) -> Generated:
    """Let a model write on, and trace where each new token looked.

    Parameters
    ----------
    n
        At most so many new tokens.
    temperature
        0 takes the likeliest token each time, as the library's own greedy ``generate``; above 0
        tokens are drawn from ``seed``.
    layer, head
        One of each; by default the head that tells most about the prompt's last token.
    tell
        Told, after every new token, the text so far and the weights (S,) of the query that wrote it;
        this runs the model once more per token, up to the layer.
    origin
        As in ``explain``, ``model`` among them: a decoder on disk, a Hugging Face folder or a GGUF
        file.

    Returns
    -------
    Generated

    Raises
    ------
    UsageError
        No model, one that cannot write, or more than one head.
    InputError
        A model or text that cannot be read, or a text too long for the model.
    """
    if origin.get("model") is None:
        raise UsageError("only a trained model writes: give one with --model DIR or FILE.gguf")
    if not 1 <= n <= MAX_NEW:
        raise UsageError(f"-n {n} is out of range: 1 to {MAX_NEW}")
    if not 0 <= temperature <= 100:
        raise UsageError(f"--temperature {temperature:g} is out of range: 0 (greedy) to 100")
    place, seed = open_place(layer=layer, **origin), origin.get("seed", 0)
    run = place.send(text)
    chosen = choose(run, layer=layer, head=head, query=len(run.tokens) - 1)
    if len(chosen.layers) * len(chosen.heads) != 1:
        raise UsageError("one head is followed while a model writes: give --layer N --head N")
    at = replace(place, layers=chosen.layers)

    def told(tokens: Tokens) -> None:
        if tell is not None:
            before = at.take(cut_tokens(tokens, len(tokens) - 1))
            tell(tokens, _last_row(before, chosen.heads[0]))

    whole = run.source.generate(
        run.tokens, n, temperature=temperature, seed=seed, tell=None if tell is None else told
    )
    return Generated(gather(at.take(whole), chosen.heads), len(run.tokens))


def _last_row(run: Run, head: int) -> Array:
    """Return the weights of the last query of a text: (S,) float64."""
    found: list[LayerHeads] = []
    run.each(found.append)
    narrowed, places = narrow(found[0], (head,))
    last = replace(narrowed, q=narrowed.q[:, -1:], x=None, own_output=None)
    weights_HLS = np.asarray(run.computing.trace_heads(last)["weights"])
    row: Array = weights_HLS[places[0], -1]
    return row
