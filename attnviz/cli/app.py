"""The command tree. A command is one file; it is listed here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command, get_group

from attnviz.cli.command import Command, Group

COMMANDS = (
    "explain", "heatmap", "view", "page", "show", "compare", "generate", "heads", "summary", "cost", "batch",
    "doctor", "weights", "model", "config",
)  # fmt: skip
"""Modules of this folder, in the order of the help: a function of that name, or an ``app``."""


class _Commands(Mapping[str, Any]):
    """The commands by name; one is imported and built when it is asked for, the others never."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _build(name: str) -> Any:
    module = import_module(f"attnviz.cli.{name}")
    if hasattr(module, "app"):
        return get_group(module.app)
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command(name, cls=Command, epilog=module.EXAMPLES)(getattr(module, name))
    return get_command(one)


class _Root(Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Commands()})

    def described(self) -> Iterator[tuple[str, str]]:
        """Return each command with what it does, none of them built."""
        for name in COMMANDS:
            module = import_module(f"attnviz.cli.{name}")
            told = module.app.info.help if hasattr(module, "app") else getattr(module, name).__doc__
            yield name, told


app = typer.Typer(
    cls=_Root,
    name="attnviz",
    help="A microscope for attention, in the terminal: every number between a text and the "
    "output of an attention head.",
    epilog='Start with: attnviz explain "A cute teddy bear is reading"',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
