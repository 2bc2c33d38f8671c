"""``attnviz summary``: a text of any length, streamed; figures per head, links, pooled map."""

from __future__ import annotations

from typing import Any

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz summary "A cute teddy bear is reading"
  attnviz summary "A cute teddy bear is reading" -o summary.npz
  attnviz summary "to be or not to be" --rows 0-2 --keys 3-5
"""


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
    from attnviz.cli.progress import streaming
    from attnviz.runs.summarize import SHOWN, summarize

    wanted = tuple(name.strip() for name in figures.split(",")) if figures else SHOWN
    for name in wanted:
        o.check_choice("figures", name, SHOWN)
    how: dict[str, Any] = {"figures": wanted, "n_links": links, "map_size": map_size}
    with streaming("streaming", quiet=talk.quiet) as told:
        found = summarize(text, **origin.settings(talk), **how, **told)
    say_notices(found.notices, talk)
    is_screen = target.output is None and target.format is None
    emit(view.view(found, pool=pool, is_screen=is_screen), target, screen, talk)
