"""``attnviz compare``: the same word in two texts, two heads, two layers, two models."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from attnviz.cli import groups as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz compare "the bear ate honey" "I cannot bear the noise" --token bear
  attnviz compare "A cute teddy bear is reading" -w sample-8 --head 0 --with-head 3
  attnviz compare "A cute teddy bear is reading" --with-weights sample-8 --fail-above 0.9
"""

OtherArgument = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="[TEXT_B]", help="A second text.", show_default=False),
]
AlignOption = Annotated[
    str,
    typer.Option(
        "--align", metavar="word|position", help="Which keys of two texts stand side by side."
    ),
]
WithHeadOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--with-head", metavar="N", help="Compare with this head.", show_default=False),
]
WithLayerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--with-layer", metavar="N", help="Compare with this layer.", show_default=False),
]
WithWeightsOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--with-weights", metavar="FILE", help="Compare with this layer's weights.",
        show_default=False,
    ),
]  # fmt: skip
WithModelOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--with-model", metavar="DIR|FILE.gguf", help="Compare with this model.", show_default=False
    ),
]  # fmt: skip
FailAboveOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--fail-above", metavar="BITS", help="Exit 1 if a head's mean divergence is larger.",
        show_default=False,
    ),
]  # fmt: skip


@g.grouped
def compare(
    text: o.TextArgument = None,
    other: OtherArgument = None,
    *,
    token: o.TokenOption = None,
    align: AlignOption = "word",
    with_head: WithHeadOption = None,
    with_layer: WithLayerOption = None,
    with_weights: WithWeightsOption = None,
    with_model: WithModelOption = None,
    fail_above: FailAboveOption = None,
    place: g.Place,
    choice: g.Choice,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    bounds: g.Bounds,
    talk: g.Talk,
) -> None:
    """Compare the same word in two texts, or two heads, layers, models or files on one text.

    Shows the cosine of what goes in and of what comes out, the weights side by side, which tokens
    made the difference, and the divergence of the rows in bits (0 equal, 1 nothing in common).
    """
    from attnviz.cli.terminal import say
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(picture=picture)
    choose_format(target)
    given = o.read_input(text, None)

    from attnviz.errors import CheckFailed
    from attnviz.render.reports import compare as view
    from attnviz.runs.compare import compare as run

    found = run(
        given,
        other,
        token=token,
        align=align,
        with_head=with_head,
        with_layer=with_layer,
        with_weights=with_weights,
        with_model=with_model,
        **place.settings(talk),
        **choice.changes(),
    )
    say_notices(found.notices, talk)
    emit(view.view(found), target, screen, talk)
    if fail_above is not None:
        if found.largest_bits > fail_above:
            raise CheckFailed(
                f"the largest mean divergence is {found.largest_bits:.6g} bits, above {fail_above:g}"
            )
        if not talk.quiet:
            say(
                f"the largest mean divergence is {found.largest_bits:.6g} bits, at most {fail_above:g}"
            )
