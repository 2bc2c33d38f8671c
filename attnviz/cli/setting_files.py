"""Files and variables that hold settings: where they are, what they say, and nothing about meaning.

What lives here: the search upwards, bounds on a stranger's file, TOML, ``ATTNVIZ_*``. What does
not: which settings exist and what values they take (``settings``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.cli import setting_places as places
from attnviz.cli.setting_places import MAX_BYTES, PREFIX
from attnviz.errors import InputError, UsageError

MAX_TEXT = 4096
MAX_KEYS = 1000
MAX_DOTS = 500
_TWICE = '; an option and a table of one name exclude each other: write ["weights new"]'
_MANY_DOTS = re.compile(rb"^(?:[^\n.]*\.){%d}" % (MAX_DOTS + 1), re.M)


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as it was given.

    ``keys`` is its place in a file (``("explain", "head")``), or the name of a variable in one
    piece; ``origin`` says for people where it is from; ``folder`` is what relative paths start at.
    """

    keys: tuple[str, ...]
    value: Any
    origin: str
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """All settings of one place; ``kind`` is environment, project or user."""

    kind: str
    given: tuple[Given, ...]
    path: str | None = None


def read_layers(environ: Mapping[str, str], folder: str | os.PathLike[str]) -> tuple[Layer, ...]:
    """Return what the environment, the nearest file upwards and the user's file say, in that order.

    Places that say nothing are left out.

    Raises
    ------
    InputError
        A file is not a file, too large, not UTF-8 or not TOML.
    UsageError
        A value that no option could have.
    """
    layers = [Layer("environment", tuple(_from_environment(environ)))]
    project = nearest(folder, environ)
    name = places.user_file(environ)
    user = None if name is None else Path(name)
    if project is not None:
        path, table = project
        layers.append(_layer("project", path, table))
    if user is not None and (content := _read(user)) is not None:
        layers.append(_layer("user", user, _parse(user, content)))
    return tuple(layer for layer in layers if layer.given or layer.path)


def nearest(
    folder: str | os.PathLike[str], environ: Mapping[str, str]
) -> tuple[Path, dict[str, Any]] | None:
    """Return the first file with settings from a folder upwards, and its table.

    ``attnviz.toml`` counts before ``pyproject.toml`` with a ``[tool.attnviz]`` in the same folder.
    The search ends at the home folder.
    """
    for place in map(Path, places.upwards(os.fspath(folder), environ)):
        own = place / places.OWN_FILE
        if (content := _read(own)) is not None:
            table = _parse(own, content)
            if isinstance(table.get("tool"), dict):
                raise UsageError(
                    f"{shorten(own)}: [tool.attnviz] is for {places.PROJECT_FILE}; here keys stand at "
                    "the top, and a command's in [explain]"
                )
            return own, table
        project = place / places.PROJECT_FILE
        if places.may_have_table(str(project)) and (content := _read(project)) is not None:
            tool = _parse(project, content).get("tool")
            found = tool.get("attnviz") if isinstance(tool, dict) else None
            if isinstance(found, dict):
                return project, found
    return None


def shorten(path: Path) -> str:
    """Return a path as a person would write it: from here, or from home."""
    full = str(path)
    home = os.path.expanduser("~")
    try:
        here = os.path.relpath(full)
    except (OSError, ValueError):
        here = full
    from_home = "~" + full[len(home) :] if home != "/" and full.startswith(home + "/") else full
    return min(here, from_home, key=lambda shown: (len(shown), shown))


def _read(path: Path) -> bytes | None:
    """Return a file's content, None where there is none."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{shorten(path)} is no file: settings are read from plain files only")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise InputError(f"{shorten(path)}: {fault.strerror}") from fault
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{shorten(path)} is larger than {MAX_BYTES // 1024} kB: a file with settings is a page long"
        )
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib

    if _MANY_DOTS.search(content):  # a key of many parts takes tomllib the square of its length
        raise InputError(f"{shorten(path)}: a line with more than {MAX_DOTS} dots is no setting")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise InputError(
            f"{shorten(path)} is not UTF-8 (byte {fault.start}): TOML is always UTF-8"
        ) from None
    except RecursionError:
        raise InputError(f"{shorten(path)}: tables or lists are nested too deeply") from None
    except ValueError as fault:
        hint = _TWICE if "overwrite" in str(fault) else ""
        raise InputError(f"{shorten(path)} is not TOML: {fault}{hint}") from None


def _layer(kind: str, path: Path, table: dict[str, Any]) -> Layer:
    shown = shorten(path)
    given = tuple(_flatten(table, (), shown, str(path.parent)))
    if len(given) > MAX_KEYS:
        raise UsageError(f"{shown} holds {len(given):,} settings, more than {MAX_KEYS:,}")
    return Layer(kind, given, shown)


def _flatten(
    table: dict[str, Any], above: tuple[str, ...], origin: str, folder: str
) -> Iterator[Given]:
    for key, value in table.items():
        keys = (*above, key)
        if isinstance(value, dict):
            if len(keys) > 2:
                raise UsageError(f"{origin}: [{'.'.join(keys)}] is nested too deeply")
            yield from _flatten(value, keys, origin, folder)
        else:
            _check_plain(value, f"{origin}: {'.'.join(keys)}")
            yield Given(keys, value, origin, folder)


def _check_plain(value: Any, where: str) -> None:
    """Refuse values that no option takes: dates, lists of lists, control characters."""
    for one in value if isinstance(value, list) else (value,):
        if not isinstance(one, bool | int | float | str):
            raise UsageError(
                f"{where} is a {type(one).__name__}: give a number, true, false or a text"
            )
        if isinstance(one, str):
            if len(one) > MAX_TEXT:
                raise UsageError(f"{where} has {len(one):,} characters, more than {MAX_TEXT:,}")
            if not one.isprintable():
                raise UsageError(f"{where} holds a character that cannot be seen: {one!a}")
    if isinstance(value, list) and len(value) > MAX_KEYS:
        raise UsageError(f"{where} has {len(value):,} entries, more than {MAX_KEYS:,}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    for name in sorted(environ):
        if name.startswith(PREFIX) and environ[name]:
            _check_plain(environ[name], name)
            yield Given((name,), environ[name], name)
