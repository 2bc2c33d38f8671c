"""``attnviz show``: attention that others computed, out of a file of arrays."""

from __future__ import annotations

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz show maps.npz --tokens tokens.json
  attnviz show maps.npz --tokens tokens.json --view links --layer 1 --head 3
  attnviz show maps.npz --tokens tokens.json -o maps.html
"""


@g.grouped
def show(
    path: o.HeldArgument,
    *,
    view: o.WhichViewOption = "heatmap",
    tokens: o.TokensOption = None,
    key_tokens: o.KeyTokensOption = None,
    index: o.IndexOption = None,
    layer: o.HeldLayerOption = None,
    head: o.HeldHeadOption = None,
    token: o.TokenOption = None,
    key: o.KeyOption = None,
    causal: o.PlainCausalOption = False,
    scale: o.HeldScaleOption = None,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Show attention that you already have: maps, or q and k, saved by any framework.

    Arrays are known by their names: weights, attention, pattern, layer_N; q, k, v; and those of
    TransformerLens' cache. The numbers are shown as they are, and what is odd about them is said.
    """
    from attnviz import registry
    from attnviz.cli.view import check_taken
    from attnviz.cli.write import choose_format, emit, say_notices
    from attnviz.errors import UsageError

    screen = look.screen(picture=picture)
    choose_format(target)
    module = registry.load("views", view)

    from attnviz.runs import request
    from attnviz.runs.show import show_file
    from attnviz.sources.held import read_tokens

    trace = show_file(
        path,
        tokens=None if tokens is None else read_tokens(tokens),
        key_tokens=None if key_tokens is None else read_tokens(key_tokens),
        layer=layer,
        head=head,
        scale=scale,
        causal=causal,
        index=index,
    )
    if view == "walk" and "q" not in trace.stages:
        raise UsageError("the view walk needs q and k: here are weights alone")
    say_notices(trace.about.notices, talk)
    chosen = {}
    if token:
        chosen["queries"] = request.find_tokens(trace.tokens, token)
    if key:
        chosen["keys"] = request.find_tokens(trace.keys, key)
    check_taken(view, module, chosen)
    emit(module.view(trace, **chosen), target, screen, talk)
