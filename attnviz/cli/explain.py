"""``attnviz explain``: the walk from a sentence to z, every number on the way."""

from __future__ import annotations

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz explain "A cute teddy bear is reading"
  attnviz explain "A cute teddy bear is reading" --token teddy
  attnviz explain "A cute teddy bear is reading" --weights random --causal
"""


LONG = 2000
"""A walk of more lines is not poured out on a terminal."""


@g.grouped
def explain(
    *,
    origin: g.Origin,
    token: o.TokenOption = None,
    stage: o.StageOption = None,
    brief: o.BriefOption = False,
    target: g.Target,
    look: g.Look,
    full: o.FullOption = False,
    talk: g.Talk,
) -> None:
    """Show every number from a text to the output of its heads.

    The last screen is the answer. With --token: the dot products of one query, as sums.
    """
    from dataclasses import replace

    from attnviz.cli.write import choose_format, emit, say_notices
    from attnviz.errors import UsageError

    screen = look.screen(full=full)
    choose_format(target)
    if brief and (stage or token):
        raise UsageError(
            f"--brief is the answer alone: leave out {'--stage' if stage else '--token'}"
        )
    text = origin.read()

    from attnviz.render.views import walk, zoom
    from attnviz.runs import request
    from attnviz.runs.explain import explain as compute

    stages = tuple(s.strip() for s in stage.split(",") if s.strip()) if stage else ()
    for name in stages:
        o.check_choice("stage", name, walk.SHOWN)
    trace = compute(text, **origin.settings(talk), token=token)
    say_notices(trace.notices, talk)
    queries = request.find_tokens(trace.tokens, token) if token and not origin.words else ()
    is_read = screen.is_terminal and not (full or target.output or target.format)
    if brief:
        document = walk.view_answer(trace)
    elif queries and not stages:
        document = zoom.view(trace, queries=queries)
        screen = replace(screen, is_compact=is_read)
    elif stages or not is_read:
        document = walk.view(trace, stages=stages, queries=queries)
    elif walk.count_lines(trace, screen.width or 80) > LONG:
        document = walk.view_answer(trace)
        say_notices(
            ["only the answer of a long walk: --full shows all, --stage a part, -o FILE keeps it"],
            replace(talk, strict=False),
        )
    else:
        document, screen = walk.view_screen(trace), replace(screen, is_compact=True)
    emit(document, target, screen, talk)
