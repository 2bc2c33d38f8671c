"""``attnviz weights``: make, inspect and convert weight files."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Make, inspect and convert weight files.",
    rich_markup_mode=None,
    no_args_is_help=False,
)
