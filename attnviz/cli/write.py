"""Send a document where it was asked for: to stdout in a format, or into a file.

What lives here: choosing the format by name or by a file's ending. What does not: formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from attnviz import registry
from attnviz.cli import terminal
from attnviz.cli.command import Talk, Target
from attnviz.errors import UsageError
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Matrix

_MANY_NUMBERS = 1_000_000


def emit(document: Document, target: Target, screen: Screen, talk: Talk) -> None:
    """Write a document to stdout, or into a file whose ending chooses the format.

    Raises
    ------
    UsageError
        Unknown format or ending, a binary format for stdout, an existing file without force.
    """
    name, module = choose_format(target)
    n_numbers = _count_numbers(document)
    if not (module.IS_BINARY or talk.quiet) and n_numbers > _MANY_NUMBERS:
        terminal.say(f"writing {n_numbers:,} numbers as text; -o NAME.npz is quicker and smaller")
    if target.output is None:
        if module.IS_BINARY:
            suffix = module.SUFFIXES[0]
            raise UsageError(f"--format {name} is binary: write it to a file, -o NAME{suffix}")
        terminal.write_stdout(module.render(document, screen))
        return
    from attnviz.runs.store import write_atomic

    paper = Screen(width=screen.width if name in ("table", "plain") else None,
                   precision=screen.precision, full_vectors=True, paper=screen.paper)  # fmt: skip
    if getattr(module, "TELLS_NOTICES", False):
        notices: list[str] = []
        content = module.render(document, paper, notices.append)
        say_notices(notices, talk)
    else:
        content = module.render(document, paper)
    data = content if module.IS_BINARY else content.encode()
    write_atomic(Path(target.output), data, force=target.force)
    if not talk.quiet:
        terminal.say(f"wrote {target.output}")


def _count_numbers(document: Document) -> int:
    matrices = [shape.values for shape in document.shapes if isinstance(shape, Matrix)]
    return sum(len(rows) * len(rows[0]) for rows in matrices if len(rows))


def choose_format(target: Target) -> tuple[str, Any]:
    """Return the name and module of a format."""
    if target.format is not None:
        return target.format, registry.load("formats", target.format)
    if target.output is None:
        return "table", registry.load("formats", "table")
    suffix = Path(target.output).suffix.lower()
    known: list[str] = []
    for candidate in chain(_likely_first(suffix), _installed()):
        module = registry.load("formats", candidate)
        if suffix in module.SUFFIXES:
            return candidate, module
        known.extend(module.SUFFIXES)
    raise UsageError(
        f"-o {target.output}: the ending '{suffix}' is no format; "
        f"choose from {', '.join(sorted(known))}"
    )


def _likely_first(suffix: str) -> Sequence[str]:
    names = registry.names("formats")
    likely = suffix.lstrip(".")
    return (likely, *(n for n in names if n != likely)) if likely in names else names


def _installed() -> Iterator[str]:
    yield from registry.installed("formats")  # looked for where none of ours fits


def say_notices(notices: Sequence[str], talk: Talk) -> None:
    """Print what was not done exactly as asked; with ``--strict`` that is an error."""
    if notices and talk.strict:
        raise UsageError(f"{notices[0]} (--strict)")
    if not talk.quiet:
        for notice in notices:
            terminal.say(notice)
