"""Send a document where it was asked for: to stdout in a format, or into a file.

What lives here: choosing the format by name or by a file's ending. What does not: formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnviz import registry
from attnviz.cli import report
from attnviz.errors import UsageError
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document


def emit(
    document: Document,
    *,
    format_name: str | None,
    output: str | None,
    force: bool,
    screen: Screen,
    quiet: bool = False,
) -> None:
    """Write a document to stdout, or into a file whose ending chooses the format.

    Raises
    ------
    UsageError
        Unknown format or ending, a binary format for stdout, an existing file without force.
    """
    name, module = choose_format(format_name, output)
    if output is None:
        if module.IS_BINARY:
            suffix = module.SUFFIXES[0]
            raise UsageError(f"--format {name} is binary: write it to a file, -o NAME{suffix}")
        report.write_stdout(module.render(document, screen))
        return
    from attnviz.runs.store import write_atomic

    paper = Screen(width=screen.width if name in ("table", "plain") else None,
                   precision=screen.precision, full_vectors=True)  # fmt: skip
    content = module.render(document, paper)
    write_atomic(Path(output), content if module.IS_BINARY else content.encode(), force=force)
    if not quiet:
        report.say(f"wrote {output}")


def choose_format(name: str | None, output: str | None) -> tuple[str, Any]:
    """Return the name and module of a format."""
    if name is not None:
        return name, registry.load("formats", name)
    if output is None:
        return "table", registry.load("formats", "table")
    suffix = Path(output).suffix.lower()
    known: list[str] = []
    for candidate in _likely_first(suffix):
        module = registry.load("formats", candidate)
        if suffix in module.SUFFIXES:
            return candidate, module
        known.extend(module.SUFFIXES)
    raise UsageError(
        f"-o {output}: the ending '{suffix}' is no format; choose from {', '.join(sorted(known))}"
    )


def _likely_first(suffix: str) -> Sequence[str]:
    names = registry.names("formats")
    likely = suffix.lstrip(".")
    return (likely, *(n for n in names if n != likely)) if likely in names else names


def say_notices(notices: Sequence[str], *, quiet: bool, strict: bool) -> None:
    """Print what was not done exactly as asked; with ``strict`` that is an error."""
    if notices and strict:
        raise UsageError(f"{notices[0]} (--strict)")
    if not quiet:
        for notice in notices:
            report.say(notice)
