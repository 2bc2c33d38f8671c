"""``attnviz compare``: the same word in two texts, two heads, two layers, two models."""

from __future__ import annotations

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz compare "the bear ate honey" "I cannot bear the noise" --token bear
  attnviz compare "A cute teddy bear is reading" -w sample-8 --head 0 --with-head 3
  attnviz compare "A cute teddy bear is reading" --with-weights sample-8 --fail-above 0.9
"""


@g.grouped
def compare(
    text: o.TextArgument = None,
    other: o.OtherArgument = None,
    *,
    token: o.TokenOption = None,
    align: o.AlignOption = "word",
    no_sinks: o.NoSinksOption = False,
    with_head: o.WithHeadOption = None,
    with_layer: o.WithLayerOption = None,
    with_weights: o.WithWeightsOption = None,
    with_model: o.WithModelOption = None,
    fail_above: o.FailAboveOption = None,
    place: g.AnyPlace,
    choice: g.Choice,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
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
        no_sinks=no_sinks,
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
