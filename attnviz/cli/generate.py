"""``attnviz generate``: while a model writes, where does it look?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.records import Tokens

EXAMPLES = """\b
Examples:
  attnviz generate "A cute teddy bear is" --model tiny -n 5
  attnviz generate "A cute teddy bear is" --model tiny -n 5 --temperature 1 -o written.png
"""


@g.grouped
def generate(
    *,
    text: g.TextInput,
    place: g.AnyPlace,
    head: o.HeadOption = None,
    n_tokens: o.CountOption = 20,
    temperature: o.TemperatureOption = 0.0,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Let a model write on; a row per new token shows where it looked.

    Needs --model. On a terminal each token appears as it is written, with where it looked; then a row
    per token with its largest weights, and the map of the whole text, prompt included.
    """
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(picture=picture)
    choose_format(target)
    prompt = text.read()

    from attnviz.render.reports import generate as view
    from attnviz.runs.generate import generate as run

    settings = place.settings(talk)
    unused = [name for name in ("attention", "decoder_text") if settings.pop(name) is not None]
    if unused:
        from attnviz.errors import UsageError

        raise UsageError(f"--{unused[0].replace('_', '-')} is for encoder-decoders: leave it out")
    live = Live(quiet=talk.quiet)
    tell = live.show if live.is_on else None
    found = run(prompt, n=n_tokens, temperature=temperature, head=head, tell=tell, **settings)
    say_notices(found.trace.notices, talk)
    document = view.view(found.trace, n_prompt=found.n_prompt, written=found.text)
    emit(document, target, screen, talk)


class Live:
    """A line per token as it is written, on stderr, where that is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        from attnviz.cli import terminal

        self.is_on = not quiet and terminal.is_terminal(terminal.stderr())

    def show(self, tokens: Tokens, weights: Any) -> None:
        """Say which token was written, and where its query looked most."""
        from attnviz.cli.terminal import write_line
        from attnviz.rounding import by_size

        best = by_size(weights, 3)
        looked = ", ".join(
            f"{tokens.labels[key]} {100 * float(weights[key]):.0f} %" for key in best
        )
        write_line(f"{tokens.labels[-1]}  ← {looked}")
