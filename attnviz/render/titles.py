"""What a screen or a picture is of, in one line: stage, head, source, what-if and sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.render.tokens import fit, visible

_SENTENCE = 44


def title_of(result: Any, what: str) -> str:
    """Return what is shown, of which head where there is one, from where, what-if, and the sentence.

    Parameters
    ----------
    result
        Anything with ``layers``, ``heads``, ``source``, ``run`` and ``tokens``.
    """
    is_one = len(result.layers) * len(result.heads) == 1
    where = f"{what} · L{result.layers[0]}.H{result.heads[0]}" if is_one else what
    return f"{where} · {tail_of(result)}"


def tail_of(result: Any) -> str:
    """Return where numbers are from, what-if, and the sentence: the end of every title."""
    parts = [name_of(result.source), *what_if(result.run.overrides)]
    return " · ".join([*parts, sentence_of(result.tokens.text)])


def name_of(source: Any) -> str:
    """Return a source's name, with the seed that its weights were drawn from."""
    return visible(source.name) + (f", seed {source.seed}" if source.seed is not None else "")


def what_if(overrides: Any) -> Iterator[str]:
    """Yield what was changed for the sake of a question, in the words of the options.

    Examples
    --------
    >>> list(what_if({"causal": True, "window": 3, "scale": 1.0, "mask": "..."}))
    ['causal', 'window 3', 'scale 1']
    """
    if "causal" in overrides:
        yield "causal" if overrides["causal"] else "not causal"
    if "window" in overrides:
        yield f"window {overrides['window']}"
    if "scale" in overrides:
        yield f"scale {overrides['scale']:.4g}"
    if "kept_weight" in overrides:
        yield f"no sinks, {100 * overrides['kept_weight']:.0f} % of weight"
    if "words" in overrides:
        yield "whole words"


def sentence_of(text: str, width: int = _SENTENCE) -> str:
    """Return a text in quotes, made visible, on one line and cut to a display width.

    Examples
    --------
    >>> sentence_of("to be\\nor not", 8)
    '"to be o…"'
    """
    return f'"{fit(visible(" ".join(text.split())), width)}"'
