"""Pages that are written from the program itself: its commands, and its JSON Schemas.

Run by ``conf.py`` before every build, so they cannot be out of step. ``python docs/generate.py
FOLDER`` writes them alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).resolve().parents[1] / "attnviz" / "schemas"
ENVIRONMENT = """\
Settings are read from variables (``ATTNVIZ_PRECISION`` for all commands, ``ATTNVIZ_EXPLAIN_PRECISION`` for
one), the nearest ``attnviz.toml`` or ``[tool.attnviz]`` of ``pyproject.toml`` from the working folder
upwards, and ``attnviz/config.toml`` under ``XDG_CONFIG_HOME``. The command line wins. ``attnviz config show``
says what holds and why. ``COLUMNS``, ``NO_COLOR``, ``FORCE_COLOR`` and ``TERM`` are honoured; caches are
kept under ``XDG_CACHE_HOME``.
"""
EXIT = (
    ("0", "Done."),
    ("1", "An asked-for check failed, or some texts of a batch did."),
    ("2", "The command line or a setting asks for something that cannot be."),
    ("3", "A text, file or model cannot be read."),
    ("4", "Memory, device or disk does not allow it."),
    ("70", "A bug of attnviz."),
    ("130, 143", "Interrupted, terminated."),
)


def write(folder: Path) -> None:
    """Write all generated pages into a folder, where they differ from what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("commands.rst", commands()), ("schemas.md", schemas())):
        target = folder / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def commands() -> str:
    """Return every command with its usage, text, arguments, options and examples, as reST."""
    from typer.main import get_command

    from attnviz.cli.app import app

    root = get_command(app)
    parts = [
        _heading("Synopsis", "-"),
        "``attnviz`` *COMMAND* [*OPTIONS*] [*TEXT*]\n",
        f"{root.help}\n",
    ]
    parts += [
        "``TEXT`` may be ``-`` for standard input. Results go to standard output, all else to standard error.\n"
    ]
    for path, command in leaves(root):
        parts.append(_command(path, command))
    parts += [_heading("Settings", "-"), ENVIRONMENT, _heading("Exit status", "-")]
    parts += [f"{code}\n   {meaning}" for code, meaning in EXIT]
    return "\n".join(parts) + "\n"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return the commands that do something, each with the words that call it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, child in below.items():
        yield from leaves(child, (*path, name))


def _command(path: tuple[str, ...], command: Any) -> str:
    import typer

    from attnviz.cli.command import help_of

    name = " ".join(("attnviz", *path))
    context = typer.Context(command, info_name=name)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(f"*{_escape(p.metavar or _metavar(p))}*" for p in arguments)
    lines = [_heading(name, "-"), f".. program:: {name}\n", f"``{name}`` [*OPTIONS*] {usage}\n"]
    lines.append(_prose(command.help or "") + "\n")
    for argument in arguments:
        if getattr(argument, "help", None):
            lines.append(
                f"*{_escape(_metavar(argument))}*\n   {_escape(help_of(argument, context))}\n"
            )
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            lines.append(_option(option, context))
    lines.append(".. option:: -h, --help\n\n   Show this message and exit.\n")
    examples = [e.strip() for e in (command.epilog or "").splitlines() if e.startswith("  ")]
    if examples:
        lines.append("Examples::\n\n" + "\n".join(f"   {e}" for e in examples) + "\n")
    return "\n".join(lines)


def _option(option: Any, context: Any) -> str:
    names = ", ".join((*sorted(option.opts, key=len), *option.secondary_opts))
    value = "" if option.is_flag else f" <{_metavar(option)}>"
    from attnviz.cli.command import help_of

    told = _escape(help_of(option, context))
    return f".. option:: {names}{value}\n\n   {told or 'See above.'}\n"


def _metavar(parameter: Any) -> str:
    described = getattr(parameter, "type_descriptor", None)  # from typer 0.29; before, type.name
    kind = described.annotation.__name__ if described else parameter.type.name.split()[0]
    plain = {"int": "N", "float": "X"}.get(kind, parameter.name.upper())
    return str(parameter.metavar or plain).strip("[]").replace("]...", "...")


def _prose(text: str) -> str:
    text = text.replace("\b\n", "").strip()
    return "\n\n".join(_escape(" ".join(p.split())) for p in text.split("\n\n"))


def _escape(text: str) -> str:
    return re.sub(r"([*`|\\_])", r"\\\1", text)


def _heading(text: str, mark: str) -> str:
    return f"{text}\n{mark * len(text)}\n"


def schemas() -> str:
    """Return a table of every schema's fields, as Markdown."""
    parts = []
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        told = schema.get("description") or schema.get("title", "")
        parts.append(
            f"## {schema.get('$id', path.stem)}\n\n{told}\n\nFile: `attnviz/schemas/{path.name}`\n"
        )
        rows = list(_fields(schema, schema, "", 0, set()))
        if rows:
            parts.append("| field | type | meaning |\n|---|---|---|")
            parts += [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in rows]
        parts.append("")
    return "\n".join(parts)


def _fields(
    whole: dict[str, Any], part: Any, above: str, depth: int, seen: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Return name, type and meaning of the fields below a part, through lists, maps and choices.

    What several fields share (a ``$ref``) is written out below the first of them.
    """
    reference = part.get("$ref", "")
    if depth > 6 or reference in seen:
        return
    seen.update({reference} - {""})
    part = _follow(whole, part)
    for name, field in part.get("properties", {}).items():
        shown = f"{above}{name}" + ("" if name in part.get("required", ()) else "?")
        told = _follow(whole, field)
        yield shown, _kind(whole, told), _cell(told.get("description", ""))
        yield from _fields(whole, field, f"{above}{name}.", depth + 1, seen)
    for choice in (*part.get("oneOf", ()), *part.get("anyOf", ())):
        yield from _fields(whole, choice, above, depth, seen)
    if isinstance(part.get("items"), dict):
        yield from _fields(whole, part["items"], f"{above.removesuffix('.')}[].", depth + 1, seen)
    if isinstance(part.get("additionalProperties"), dict):
        yield from _fields(whole, part["additionalProperties"], f"{above}*.", depth + 1, seen)


def _follow(whole: dict[str, Any], part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        return {}
    reference = part.get("$ref", "")
    if not reference.startswith("#/"):
        return part
    found: Any = whole
    for step in reference[2:].split("/"):
        found = found[step]
    return {**_follow(whole, found), **{k: v for k, v in part.items() if k != "$ref"}}


def _kind(whole: dict[str, Any], field: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(v)}`" for v in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(
                dict.fromkeys(_kind(whole, _follow(whole, f)) for f in field[several])
            )
    kind = field.get("type", "any")
    told = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if told == "array" and "items" in field:
        return f"array of {_kind(whole, _follow(whole, field['items']))}"
    return told


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
