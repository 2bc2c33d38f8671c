"""``attnviz heatmap``: a stage as colours, in the terminal or as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.render.shapes import Document

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
    from attnviz.errors import TooLong, UsageError

    screen = look.screen(picture=picture)
    choose_format(target)
    most = o.check_max(max)
    text = origin.read()

    from attnviz.render.views import heatmap as view
    from attnviz.runs import explain

    o.check_choice("stage", stage, view.STAGES)
    if no_sinks and stage != "weights":
        raise UsageError(f"--no-sinks is for weights: --stage {stage} has none to scale again")
    settings = origin.settings(talk)
    try:
        trace = explain.explain(text, **settings, token=token)
    except TooLong as fault:
        if no_sinks or stage != "weights" or token or origin.words or origin.head == "mean":
            raise
        emit(_pooled(text, settings, talk, fault, most), target, screen, talk)
        return
    if token and not trace.ranking:
        raise UsageError("a heatmap shows every query: --token only tells --head auto what to ask")
    say_notices(trace.notices, talk)
    document = view.view(trace, stage=stage, most=most)
    if no_sinks:
        document = view.without_sinks_view(document)
    emit(document, target, screen, talk)


def _pooled(
    text: str, settings: dict[str, Any], talk: g.Talk, fault: Exception, most: float | None
) -> Document:
    """Stream a text that is too long for every cell to be held, and say so."""
    from attnviz.cli.summary import stream_text
    from attnviz.cli.write import say_notices
    from attnviz.render.reports.summary import view_map

    why = str(fault).partition(":")[0]
    told = [f"{why}, too many to hold: streamed, and pooled by the largest"]
    if settings["head"] in (None, "auto"):
        settings["head"] = "0"
        if settings["model"] is not None and settings["layer"] is None:
            settings["layer"] = "0"
            told.append("no head is chosen for a text this long: L0.H0; see --layer and --head")
    say_notices(told, talk)
    found = stream_text(text, settings, talk, map_size=256, figures=("map",))
    say_notices(found.notices, talk)
    return view_map(found, most=most)
