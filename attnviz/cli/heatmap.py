"""``attnviz heatmap``: a stage as colours, in the terminal or as a picture."""

from __future__ import annotations

from attnviz.cli import groups as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz heatmap "A cute teddy bear is reading"
  attnviz heatmap "A cute teddy bear is reading" --stage scores -o scores.svg
  attnviz heatmap "A cute teddy bear is reading" --head all --causal -o heads.png
"""


@g.grouped
def heatmap(
    *,
    origin: g.Origin,
    token: o.TokenOption = None,
    stage: o.PictureStageOption = "weights",
    max: o.MaxOption = None,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Draw a token by token picture of any stage.

    Weights run from 0 to 1, scores are centred on 0, masked cells have their own colour. With
    several heads there is a panel each, all on one scale. Long texts are pooled by the largest.
    """
    from attnviz.cli.emit import choose_format, emit, say_notices
    from attnviz.errors import UsageError

    screen = look.screen(picture=picture)
    choose_format(target)
    most = o.check_max(max)
    text = origin.read()

    from attnviz.render.views import heatmap as view
    from attnviz.runs import pipeline

    o.check_choice("stage", stage, view.STAGES)
    trace = pipeline.explain(text, **origin.settings(talk), token=token)
    if token and not trace.ranking:
        raise UsageError("a heatmap shows every query: --token only tells --head auto what to ask")
    say_notices(trace.notices, talk)
    emit(view.view(trace, stage=stage, most=most), target, screen, talk)
