"""``attnviz view NAME``: every other way to look at a text's attention."""

from __future__ import annotations

from types import ModuleType

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz view links "A cute teddy bear is reading"
  attnviz view neuron "A cute teddy bear is reading" --token reading --key teddy -o pair.svg
  attnviz view entropy "A cute teddy bear is reading" --head 0
"""


_OF_WEIGHTS = ("entropy", "grid", "heatmap", "links", "text")


@g.grouped
def view(
    name: o.ViewArgument,
    *,
    origin: g.Origin,
    token: o.TokenOption = None,
    key: o.KeyOption = None,
    no_sinks: o.NoSinksOption = False,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Show a text's attention in another way: as links, a grid of heads, entropy and more.

    links: each query's strongest keys. grid: all layers and heads. neuron: the dimensions behind
    the score of --token and --key. entropy: how widely each query looks. rollout: what flowed
    through all layers. text: the sentence, shaded. heatmap, walk, zoom: as the other commands.
    """
    from attnviz import registry
    from attnviz.cli.write import choose_format, emit, say_notices
    from attnviz.errors import UsageError

    screen = look.screen(picture=picture)
    choose_format(target)
    module = registry.load("views", name)
    if no_sinks and name not in _OF_WEIGHTS:
        raise UsageError(
            f"--no-sinks is for views of weights ({', '.join(_OF_WEIGHTS)}): the view {name} has "
            "other numbers, leave it out"
        )
    text = origin.read()

    from attnviz.runs import explain, request

    settings = origin.settings(talk)
    if origin.head is None:
        settings["head"] = getattr(module, "HEADS", None)
    if origin.layer is None and origin.model is not None:
        settings["layer"] = getattr(module, "LAYERS", None)
    if name == "rollout" and not origin.words:
        from attnviz.cli.progress import streaming
        from attnviz.records import Trace
        from attnviz.render.views.rollout import view_rows
        from attnviz.runs.rollout import rollout

        del settings["words"]
        with streaming("rollout", quiet=talk.quiet) as told:
            found = rollout(text, **settings, token=token, progress=told["progress"])
        if not isinstance(found, Trace):
            say_notices(found.notices, talk)
            emit(view_rows(found), target, screen, talk)
            return
        trace = found
    else:
        trace = explain.explain(text, **settings, token=token)
    say_notices(trace.notices, talk)
    if no_sinks:
        from attnviz.runs.drop_sinks import drop_sinks

        trace = drop_sinks(trace)
    chosen = {}
    if token:
        chosen["queries"] = request.find_tokens(trace.tokens, token)
    if key:
        chosen["keys"] = request.find_tokens(trace.keys, key)
    check_taken(name, module, chosen)
    emit(module.view(trace, **chosen), target, screen, talk)


def check_taken(name: str, module: ModuleType, chosen: dict[str, tuple[int, ...]]) -> None:
    """Refuse ``--token`` or ``--key`` for a view that has no use for it, and the lack of a must."""
    from inspect import Parameter, signature

    from attnviz.errors import UsageError

    taken = signature(module.view).parameters
    options = {"queries": "--token", "keys": "--key"}
    for wanted in chosen:
        if wanted not in taken:
            raise UsageError(f"the view {name} has no use for {options[wanted]}: leave it out")
    for wanted, parameter in list(taken.items())[1:]:
        if parameter.default is Parameter.empty and wanted not in chosen:
            raise UsageError(f"the view {name} needs {options.get(wanted, '--' + wanted)}")
