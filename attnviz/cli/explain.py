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


@g.grouped
def explain(
    *,
    origin: g.Origin,
    token: o.TokenOption = None,
    stage: o.StageOption = None,
    target: g.Target,
    look: g.Look,
    full: o.FullOption = False,
    talk: g.Talk,
) -> None:
    """Show every number from a text to the output of its heads.

    Each step has its formula in real shapes and numbers. With --token the dot products of one
    query, as sums.
    """
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(full=full)
    choose_format(target)
    text = origin.read()

    from attnviz.render.views import walk, zoom
    from attnviz.runs import request
    from attnviz.runs.explain import explain as compute

    stages = tuple(s.strip() for s in stage.split(",") if s.strip()) if stage else ()
    for name in stages:
        o.check_choice("stage", name, walk.SHOWN)
    trace = compute(text, **origin.settings(talk), token=token)
    say_notices(trace.notices, talk)
    if token and not origin.words:
        document = zoom.view(trace, queries=request.find_tokens(trace.tokens, token))
    else:
        document = walk.view(trace, stages=stages)
    emit(document, target, screen, talk)
