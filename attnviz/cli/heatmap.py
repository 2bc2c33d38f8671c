"""``attnviz heatmap``: a stage as colours, in the terminal or as a picture."""

from __future__ import annotations

from attnviz.cli import command as g
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
    no_sinks: o.NoSinksOption = False,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Draw a token by token picture of any stage.

    Weights run from 0 to 1, scores are centred on 0, masked cells have their own colour. With
    several heads there is a panel each, all on one scale. Long texts are pooled by the largest.
    """
    from attnviz.cli.write import choose_format, emit, say_notices
    from attnviz.errors import UsageError

    screen = look.screen(picture=picture)
    choose_format(target)
    most = o.check_max(max)
    text = origin.read()

    from attnviz.cli.progress import streaming
    from attnviz.records import Trace
    from attnviz.render.reports.summary import view_map
    from attnviz.render.views import heatmap as view
    from attnviz.runs.heatmap import heatmap as compute

    o.check_choice("stage", stage, view.STAGES)
    if no_sinks and stage != "weights":
        raise UsageError(f"--no-sinks is for weights: --stage {stage} has none to scale again")
    with streaming("streaming", quiet=talk.quiet) as told:
        found = compute(
            text, **origin.settings(talk), token=token, stage=stage, no_sinks=no_sinks, **told
        )
    say_notices(found.notices, talk)
    if not isinstance(found, Trace):
        emit(view_map(found, most=most), target, screen, talk)
        return
    document = view.view(found, stage=stage, most=most)
    if no_sinks:
        document = view.without_sinks_view(document)
    emit(document, target, screen, talk)
