"""Find views, formats, sources and engines by name: the file's name is the registered name.

What lives here: names(kind) and load(kind, name). What does not: any list of them. To add a
view, put a file into ``render/views``; nothing else has to be told. Third parties register
through entry points of the group ``attnviz.<kind>``, looked at only when a name is not ours, or
when names are listed.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from attnviz.errors import UsageError

_PACKAGES = {
    "views": "attnviz.render.views",
    "formats": "attnviz.render.formats",
    "engines": "attnviz.runs.batch.engines",
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Return the names registered for a kind, in alphabetical order.

    Examples
    --------
    >>> "json" in names("formats")
    True
    """
    return tuple(sorted(_modules(kind)))


def offered(kind: str) -> tuple[str, ...]:
    """Return the names that can be given: ours, and those of installed packages behind them."""
    return (*names(kind), *(name for name in installed(kind) if name not in names(kind)))


def installed(kind: str) -> tuple[str, ...]:
    """Return the names that installed packages register for a kind, in alphabetical order."""
    from importlib.metadata import entry_points

    return tuple(sorted({entry.name for entry in entry_points(group=f"attnviz.{kind}")}))


@cache
def _modules(kind: str) -> dict[str, str]:
    """Map names to modules; a name that is taken elsewhere has a file with a trailing ``_``.

    A file that is called ``png_svg_pdf`` holds three objects, registered under these names.
    """
    if kind not in _PACKAGES:
        return {}
    package = import_module(_PACKAGES[kind])
    stems = (m.name for m in iter_modules(package.__path__) if not m.name.startswith("_"))
    return {
        name: f"{package.__name__}.{stem}" for stem in stems for name in stem.rstrip("_").split("_")
    }


def load(kind: str, name: str) -> ModuleType | Any:
    """Import and return what is registered as ``name``.

    Raises
    ------
    UsageError
        No such name; the message lists all of them and suggests the nearest.
    """
    if name in _modules(kind):
        module = import_module(_modules(kind)[name])
        return (
            getattr(module, name)
            if "_" in module.__name__.rpartition(".")[2].rstrip("_")
            else module
        )
    from importlib.metadata import entry_points

    for entry in entry_points(group=f"attnviz.{kind}"):
        if entry.name == name:
            return entry.load()
    raise UsageError(no_such_choice(kind.rstrip("s"), name, offered(kind)))


def no_such_choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    """Return one line that names the wrong value, the whole list and the nearest choice.

    Examples
    --------
    >>> no_such_choice("stage", "weigths", ("scores", "weights"))
    "stage 'weigths' does not exist: choose from scores, weights; did you mean 'weights'?"
    """
    near = difflib.get_close_matches(value, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{what} '{value}' does not exist: choose from {', '.join(choices)}{hint}"
