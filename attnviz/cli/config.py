"""``attnviz config``: which settings hold, and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import command as g
from attnviz.cli.command import Command, Group

if TYPE_CHECKING:
    from attnviz.cli.settings import Resolved
    from attnviz.render.shapes import Document

app = typer.Typer(
    cls=Group,
    help="Show which settings hold, and where each came from.",
    rich_markup_mode=None,
    no_args_is_help=False,
)

_SHOW = """\b
Examples:
  attnviz config show
  attnviz config show explain
  attnviz config show --format json
"""


@app.command("show", cls=Command, epilog=_SHOW)
@g.grouped
def show(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]", help="All options of one command.", show_default=False),
    ] = None,
    *,
    target: g.Target,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Show every setting with its value and where it was made; of one command, defaults too.

    The command line comes first, then variables (ATTNVIZ_PRECISION, ATTNVIZ_EXPLAIN_PRECISION),
    then attnviz.toml or [tool.attnviz] of pyproject.toml, the nearest upwards from the working
    folder, then attnviz/config.toml under XDG_CONFIG_HOME. Keys are option names.
    """
    from attnviz.cli.settings import check_values, options_of
    from attnviz.cli.write import choose_format, emit

    screen = look.screen()
    choose_format(target)
    root = context.find_root().command
    resolved = context.obj
    options = options_of(root)
    path = tuple(command or ())
    if path and path not in options:
        from attnviz.errors import UsageError
        from attnviz.registry import no_such_choice

        raise UsageError(
            no_such_choice("command", " ".join(path), tuple(" ".join(p) for p in options))
        )
    faults = (*dict.fromkeys((*map(str, resolved.faults), *check_values(root, resolved))),)
    emit(_document(resolved, options, path, faults), target, screen, talk)


def _document(
    resolved: Resolved,
    options: dict[tuple[str, ...], dict[str, Any]],
    path: tuple[str, ...],
    faults: tuple[str, ...],
) -> Document:
    from attnviz.render.shapes import Column, Document, Label, Shape, Table, Text

    rows = _all_of(resolved, options[path], path) if path else _set(resolved)
    shapes: list[Shape] = []
    if rows:
        names = ("option", "value", "from") if path else ("option", "value", "from", "commands")
        cells = tuple(
            (row["option"], Label(_shown(row["value"])), Label(row["from"]))
            + (() if path else (_commands(row["commands"]),))
            for row in rows
        )
        kinds = ("text", "label", "label", "text")
        columns = tuple(Column(n, k) for n, k in zip(names, kinds))  # type: ignore[arg-type]
        title = f"settings of {' '.join(path)}" if path else "settings"
        shapes.append(Table(title, columns, cells))
    else:
        shapes.append(Text(("nothing is set: every option has its own default",)))
    files = [{"kind": x.kind, "path": x.path} for x in resolved.layers if x.path]
    if files:
        told = tuple((f["kind"], Label(f["path"] or "")) for f in files)
        shapes.append(Table("files", (Column("kind", "text"), Column("path", "label")), told))
    if resolved.unknown:
        shapes.append(Text(("no settings: ", Label(", ".join(resolved.unknown))), role="notice"))
    shapes += [Text(("wrong: ", Label(fault)), role="notice") for fault in faults]
    record = {
        "schema": "attnviz.config/1",
        "command": " ".join(path) or None,
        "settings": rows,
        "files": files,
        "unknown": list(resolved.unknown),
        "faults": list(faults),
    }
    return Document(tuple(shapes), record, title="config")


def _set(resolved: Resolved) -> list[dict[str, Any]]:
    """Return the settings that were made, each with the commands it reaches."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (path, key), given in resolved.set_by.items():
        row = {"option": key, "value": given.value, "from": given.origin, "commands": []}
        found.setdefault((key, f"{given.origin}: {given.keys}"), row)["commands"].append(
            " ".join(path)
        )
    return sorted(found.values(), key=lambda row: (row["option"], row["from"]))


def _all_of(
    resolved: Resolved, options: dict[str, Any], path: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return every option of a command with the value it has without a command line."""
    rows = []
    for key, parameter in sorted(options.items()):
        given = resolved.set_by.get((path, key))
        value = parameter.default if given is None else given.value
        rows.append(
            {"option": key, "value": value, "from": "default" if given is None else given.origin}
        )
    return rows


def _commands(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} that have it"


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
