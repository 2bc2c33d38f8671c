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

from attnviz.errors import InputError, UsageError

MAX_BYTES = 256 * 1024
MAX_TEXT = 4096
MAX_KEYS = 1000
MAX_DOTS = 500
PREFIX = "ATTNVIZ_"
OWN_FILE = "attnviz.toml"
PROJECT_FILE = "pyproject.toml"
_MANY_DOTS = re.compile(rb"^(?:[^\n.]*\.){%d}" % (MAX_DOTS + 1), re.M)
_HAS_TABLE = re.compile(
    rb"""^[ \t]*\[?\[?[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?attnviz|^[ \t]*\[[ \t]*["']?tool["']?[ \t]*\]""",
    re.M,
)


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
    user = user_file(environ)
    if project is not None and user is not None and project[0] == user:
        project = None
    if project is not None:
        path, table = project
        layers.append(_layer("project", path, table))
    if user is not None and (content := _read(user)) is not None:
        layers.append(_layer("user", user, _parse(user, content)))
    return tuple(layer for layer in layers if layer.given or layer.path)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Return where the user's own settings are, whether or not the file exists."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):
        return Path(base, "attnviz", "config.toml")
    home = environ.get("HOME", "")
    return Path(home, ".config", "attnviz", "config.toml") if os.path.isabs(home) else None


def nearest(
    folder: str | os.PathLike[str], environ: Mapping[str, str]
) -> tuple[Path, dict[str, Any]] | None:
    """Return the first file with settings from a folder upwards, and its table.

    ``attnviz.toml`` counts before ``pyproject.toml`` with a ``[tool.attnviz]`` in the same folder.
    The search ends at the home folder.
    """
    home = environ.get("HOME", "")
    here = Path(folder)
    for place in (here, *here.parents):
        own = place / OWN_FILE
        if (content := _read(own)) is not None:
            return own, _parse(own, content)
        project = place / PROJECT_FILE
        if (content := _read(project, must=False)) is not None and _HAS_TABLE.search(content):
            tool = _parse(project, content).get("tool")
            table = tool.get("attnviz") if isinstance(tool, dict) else None
            if isinstance(table, dict):
                return project, table
        if home and str(place) == home:
            break
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


def _read(path: Path, *, must: bool = True) -> bytes | None:
    """Return a file's content, None where there is none; ``must`` makes an unreadable one an error."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        if not must:
            return None
        raise InputError(f"{shorten(path)}: {fault.strerror}") from fault
    if not stat.S_ISREG(found.st_mode):
        if not must or stat.S_ISDIR(found.st_mode):
            return None
        raise InputError(f"{shorten(path)} is no file: settings are read from plain files only")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as fault:
        if not must:
            return None
        raise InputError(f"{shorten(path)}: {fault.strerror}") from fault
    if len(content) > MAX_BYTES:
        if not must and not _HAS_TABLE.search(content):
            return None
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
        raise InputError(f"{shorten(path)} is not TOML: {fault}") from None


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
