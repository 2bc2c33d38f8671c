"""``attnviz summary``: a text of any length, streamed; figures per head, links, pooled map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.api import Summary
    from attnviz.runs.summarize import Work

EXAMPLES = """\b
Examples:
  attnviz summary "A cute teddy bear is reading"
  attnviz summary "A cute teddy bear is reading" -o summary.npz
  attnviz summary "to be or not to be" --rows 0-2 --keys 3-5
"""
_SLOW_S = 3.0


@g.grouped
def summary(
    *,
    origin: g.LongOrigin,
    rows: o.RowsOption = None,
    keys: o.KeysOption = None,
    figures: o.FiguresOption = None,
    links: o.LinksOption = 8,
    map_size: o.MapSizeOption = 128,
    pool: o.PoolOption = "max",
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Say where each head looks, how widely and how far, for a text of any length.

    Nothing tokens x tokens is ever held: blocks of queries are streamed, every figure is exact.
    Time grows with the square of the length, memory with the length. With --rows (and --keys)
    the exact weights of that rectangle instead.
    """
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(picture=picture)
    choose_format(target)
    text = origin.read()

    from attnviz.render.reports import summary as view

    o.check_choice("pool", pool, view.POOLS)
    if rows is not None or keys is not None:
        from attnviz.runs.request import parse_span
        from attnviz.runs.summarize import compute_rectangle

        rectangle = compute_rectangle(
            text,
            rows=None if rows is None else parse_span("rows", rows),
            keys=None if keys is None else parse_span("keys", keys),
            **origin.settings(talk),
        )
        say_notices(rectangle.notices, talk)
        emit(view.view_rectangle(rectangle), target, screen, talk)
        return
    from attnviz.runs.summarize import SHOWN

    wanted = tuple(name.strip() for name in figures.split(",")) if figures else SHOWN
    for name in wanted:
        o.check_choice("figures", name, SHOWN)
    how = {"figures": wanted, "n_links": links, "map_size": map_size}
    found = stream_text(text, origin.settings(talk), talk, **how)
    say_notices(found.notices, talk)
    emit(view.view(found, pool=pool), target, screen, talk)


def stream_text(text: str, settings: dict[str, Any], talk: g.Talk, **how: Any) -> Summary:
    """Stream a text; say what it takes where that is more than a few seconds, and how far it is."""
    from attnviz.cli.progress import Progress
    from attnviz.runs.summarize import summarize

    progress = Progress("streaming", quiet=talk.quiet)
    try:
        return summarize(
            text,
            announce=lambda work: _announce(work, talk),
            progress=progress,
            **settings,
            **how,
        )
    finally:
        progress.close()


def _announce(work: Work, talk: g.Talk) -> None:
    from attnviz.cli import terminal
    from attnviz.render.units import say_time

    if talk.quiet or work.seconds < _SLOW_S:
        return
    heads = work.n_layers * work.n_heads
    terminal.say(
        f"{work.n_tokens:,} tokens, {heads} head{'' if heads == 1 else 's'}: "
        f"{2 * work.multiply_adds:.1e} operations, {work.memory_bytes / 1e6:,.0f} MB, "
        f"about {say_time(work.seconds)}"
    )
