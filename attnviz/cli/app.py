"""The command tree. A command is one file; it is listed here and nowhere else."""

from __future__ import annotations

from typing import Annotated

import typer

from attnviz.cli import (
    batch,
    compare,
    config,
    cost,
    doctor,
    explain,
    generate,
    heads,
    heatmap,
    model,
    page,
    summary,
    view,
    weights,
)
from attnviz.cli.command import Command, Group

app = typer.Typer(
    cls=Group,
    name="attnviz",
    help="A microscope for attention, in the terminal: every number between a text and the "
    "output of an attention head.",
    epilog='Start with: attnviz explain "A cute teddy bear is reading"',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("explain", cls=Command, epilog=explain.EXAMPLES)(explain.explain)
app.command("heatmap", cls=Command, epilog=heatmap.EXAMPLES)(heatmap.heatmap)
app.command("view", cls=Command, epilog=view.EXAMPLES)(view.view)
app.command("page", cls=Command, epilog=page.EXAMPLES)(page.page)
app.command("compare", cls=Command, epilog=compare.EXAMPLES)(compare.compare)
app.command("generate", cls=Command, epilog=generate.EXAMPLES)(generate.generate)
app.command("heads", cls=Command, epilog=heads.EXAMPLES)(heads.heads)
app.command("summary", cls=Command, epilog=summary.EXAMPLES)(summary.summary)
app.command("cost", cls=Command, epilog=cost.EXAMPLES)(cost.cost)
app.command("batch", cls=Command, epilog=batch.EXAMPLES)(batch.batch)
app.add_typer(weights.app, name="weights")
app.add_typer(model.app, name="model")
app.add_typer(config.app, name="config")
app.command("doctor", cls=Command, epilog=doctor.EXAMPLES)(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        from attnviz import __version__
        from attnviz.cli.terminal import write_stdout

        write_stdout(f"attnviz {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        from attnviz.cli.terminal import write_stdout

        write_stdout(context.get_help() + "\n")
