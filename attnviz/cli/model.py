"""``attnviz model``: what a trained model on disk is, without loading it."""

from __future__ import annotations

from typing import Annotated

import typer

from attnviz.cli import command as g
from attnviz.cli.command import Command, Group

app = typer.Typer(
    cls=Group, help="Inspect trained models on disk.", rich_markup_mode=None, no_args_is_help=False
)

_SHOW = """\b
Examples:
  attnviz model show tiny
  attnviz model show tiny --format json
"""


@app.command("show", cls=Command, epilog=_SHOW)
@g.grouped
def show(
    path: Annotated[
        str, typer.Argument(metavar="DIR|FILE.gguf", help="A Hugging Face folder or a GGUF file.")
    ],
    *,
    target: g.Target,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Show a model's architecture, sizes, layers, windows, tokenizer, sha256, and what a run holds.

    Its weights are not loaded, and neither torch nor transformers is needed.
    """
    from dataclasses import asdict

    from attnviz.cli.write import choose_format, emit
    from attnviz.render.reports.model import view
    from attnviz.sources.families.opening import held_by_a_run
    from attnviz.sources.models.card import model_card

    screen = look.screen()
    choose_format(target)
    card = model_card(path)
    run_by, held_bytes = held_by_a_run(path, card.n_parameters)
    told = {**asdict(card), "run_by": run_by, "held_bytes": held_bytes}
    emit(view(told), target, screen, talk)
