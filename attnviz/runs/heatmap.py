"""What a heatmap shows: every cell where a text fits, else the pooled map of its streamed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from attnviz.core.stream.summary import Summary
from attnviz.errors import UsageError
from attnviz.records import Trace
from attnviz.runs.explain import ask, trace_of
from attnviz.runs.run import Origin
from attnviz.runs.summarize import Work, stream_run


def heatmap(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    token: str | Sequence[str] | None = None,
    words: bool = False,
    verify: bool = False,
    stage: str = "weights",
    no_sinks: bool = False,
    map_size: int = 256,
    announce: Callable[[Work], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **origin: Unpack[Origin],
) -> Trace | Summary:
    """Compute what is drawn of a text of any length: its cells, or a map pooled by the largest.

    Parameters
    ----------
    text, layer, head, token, words, verify
        As of ``explain``; ``auto`` finds its head at any length.
    stage, no_sinks
        What is to be drawn. Only the weights of tokens, sinks included, can be streamed.
    map_size
        R of the pooled R × R map.
    announce, progress
        As of ``summarize``, where the text is streamed.

    Returns
    -------
    Trace
        Where every cell fits; or else a ``Summary`` with the map, and a notice that says so.

    Raises
    ------
    InputError, UsageError, ResourceError, CheckFailed
        As of ``explain``; ``TooLong`` where what is asked for cannot be streamed.

    Notes
    -----
    The source is opened and the text cut once. Time grows with heads · L² either way.

    Examples
    --------
    >>> type(heatmap("A cute teddy bear is reading")).__name__
    'Trace'
    """
    run, chosen = ask(
        text, layer=layer, head=head, token=token, words=words, verify=verify, **origin
    )
    if token and not chosen.ranking:
        raise UsageError("a heatmap shows every query: --token only tells --head auto what to ask")
    why = run.too_long_for(len(chosen.layers) * len(chosen.heads))
    if why is None or words or head == "mean" or stage != "weights" or no_sinks:
        return trace_of(run, chosen, head=head, words=words)
    found = stream_run(
        run,
        chosen.heads,
        figures=("map",),
        map_size=map_size,
        announce=announce,
        progress=progress,
        notices=(f"{why}, too many to hold: streamed, and pooled by the largest",),
    )
    return replace(found, ranking=chosen.ranking, asked=chosen.query)
