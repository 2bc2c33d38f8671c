"""Settings: options set in variables and files, handed to the parser as its defaults, with who set each.

Names are those of options. Values become the parser's ``default_map``, so an option checks them as
if they came from the command line. Looked for at every start: nothing is imported that takes time.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attnviz.errors import AttnvizError, InputError, UsageError

Path: TypeAlias = tuple[str, ...]
"""A command: its words."""

PREFIX = "ATTNVIZ_"
OWN_FILE = "attnviz.toml"
PROJECT_FILE = "pyproject.toml"
MAX_BYTES = 256 * 1024
MAX_TEXT = 4096
MAX_KEYS = 1000
MAX_DOTS = 500
# What writes, reads another text or reaches out is said on the command line, where it is seen: a
# folder with a file of settings may come from a stranger.
NEVER = (
    "dry-run", "file", "force", "help", "key-tokens", "output", "ray-address", "report", "status", "tokens",
    "version",
)  # fmt: skip
TOLERANT = (("doctor",), ("config", "show"))
"""Commands that look for what is wrong: faults in settings are said there, and stop nothing."""
_PATHS = ("font", "model", "weights", "with-model", "with-weights")
_WORDS = ("random", "sample", "sample-8")
_TABLE = rb"""^[ \t]*\[{0,2}[ \t]*["']?tool["']?[ \t]*(?:\.[ \t]*["']?attnviz|\])"""
_MANY_DOTS = rb"^(?:[^\n.]*\.){%d}" % (MAX_DOTS + 1)
_TWICE = '; an option and a table of one name exclude each other: write ["weights new"]'


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


@dataclass(frozen=True, slots=True)
class Resolved:
    """Defaults for the parser, by command and parameter, who set each, and what is wrong."""

    default_map: dict[str, Any] = field(default_factory=dict)
    set_by: dict[tuple[Path, str], Given] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()
    unknown: tuple[str, ...] = ()
    faults: tuple[AttnvizError, ...] = ()

    def blame(self, message: str, context: Any) -> str:
        """Return an error's message, and where a setting that it names was made."""
        path = tuple(context.command_path.split()[1:])
        for parameter in context.command.params:
            given = self.set_by.get((path, key_of(parameter)))
            source = context.get_parameter_source(parameter.name)
            if given is None or getattr(source, "name", "") != "DEFAULT_MAP":
                continue
            words = re.split(r"[\s',]+", message)
            named = f"--{key_of(parameter)}"
            is_said = named in words or str(given.value) in words
            if is_said and given.origin not in message:
                return f"{message}; {named[2:]} is set in {given.origin}"
        return message


def resolve(root: Any, environ: Mapping[str, str], folder: str) -> Resolved:
    """Read all settings and find the options of a command tree that they are about.

    Parameters
    ----------
    root
        The parser's command tree.
    environ, folder
        Variables, and where the search for a file starts.

    Returns
    -------
    Resolved
        ``faults`` are files that cannot be read and keys that mean nothing; the rest holds.
    """
    faults: list[AttnvizError] = []
    layers = tuple(_layers(environ, folder, faults))
    if not layers:
        return Resolved(faults=tuple(faults))
    options = options_of(root)
    reached = _reached(options)
    default_map: dict[str, Any] = {}
    set_by: dict[tuple[Path, str], Given] = {}
    unknown: list[str] = []
    for layer in layers:
        placed: list[tuple[Path, str, Given]] = []
        for given in layer.given:
            try:
                place = _find(given, options)
            except AttnvizError as fault:
                faults.append(fault)
                continue
            if place is None:
                unknown.append(given.keys[0])
            else:
                placed.append((*place, given))
        here = {}
        for path, key, given in sorted(placed, key=lambda row: bool(row[0])):  # a command's own win
            here.update({(target, key): given for target in ((path,) if path else reached[key])})
        for (path, key), given in here.items():
            if (path, key) in set_by:
                continue
            option = options[path][key]
            try:
                value = _shape(option, given, key)
            except AttnvizError as fault:
                faults.append(fault)
                continue
            set_by[path, key] = given
            inner = default_map
            for step in path:
                inner = inner.setdefault(step, {})
            inner[option.name] = value
    return Resolved(default_map, set_by, layers, tuple(unknown), tuple(faults))


def check_values(root: Any, resolved: Resolved) -> Iterator[str]:
    """Yield what is wrong with the values of settings, as their options would say it."""
    import typer

    for (path, key), given in resolved.set_by.items():
        command, inner = root, resolved.default_map
        for step in path:
            command, inner = command.commands[step], inner[step]
        option = options_of(command)[()][key]
        try:
            option.process_value(typer.Context(command, info_name=path[-1]), inner[option.name])
        except typer.TyperException as fault:
            told = getattr(fault, "message", None) or fault.format_message()
            yield f"{given.origin}: {key} = {given.value}: {str(told).rstrip('.').lower()}"


def options_of(root: Any) -> dict[Path, dict[str, Any]]:
    """Return the options that can be set, by command and by their long names without dashes."""
    found: dict[Path, dict[str, Any]] = {}

    def walk(command: Any, path: Path) -> None:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                walk(below, (*path, name))
        elif path != ("config", "show"):
            named = {key_of(p): p for p in command.params if p.param_type_name == "option"}
            found[path] = {key: p for key, p in named.items() if key not in NEVER}

    walk(root, ())
    return found


def key_of(parameter: Any) -> str:
    """Return an option's long name without dashes."""
    return str(max(parameter.opts, key=len)).lstrip("-")


def variable(path: Path, key: str) -> str:
    """Return the name of the variable for an option, of one command or (empty path) of all.

    Examples
    --------
    >>> variable(("explain",), "max-tokens")
    'ATTNVIZ_EXPLAIN_MAX_TOKENS'
    """
    return PREFIX + "_".join((*path, key)).upper().replace("-", "_")


def _reached(options: dict[Path, dict[str, Any]]) -> dict[str, tuple[Path, ...]]:
    """Say which commands a setting without a command reaches: those where it means the same."""
    kinds: dict[str, list[tuple[Path, Any]]] = {}
    for path, named in options.items():
        for key, p in named.items():
            kind = (p.metavar, tuple(p.secondary_opts), p.is_flag, p.multiple)
            kinds.setdefault(key, []).append((path, kind))
    common = {key: Counter(k for _, k in rows).most_common(1)[0][0] for key, rows in kinds.items()}
    return {key: tuple(p for p, k in rows if k == common[key]) for key, rows in kinds.items()}


def _find(given: Given, options: dict[Path, dict[str, Any]]) -> tuple[Path, str] | None:
    """Return the command (empty for all) and the option that a setting is about."""
    keys = {key for named in options.values() for key in named}
    if given.folder is None:
        return _find_variable(given, options, keys)
    *above, last = given.keys
    path, key = tuple(" ".join(above).split()), last.replace("_", "-")
    _refuse_never(key, given.origin, (*NEVER, "debug"))
    shown = ".".join(given.keys)
    if path and path not in options:
        raise UsageError(
            f"{given.origin}: '{shown}' is no setting: there is no command "
            f"'{' '.join(path)}'{_near('.'.join(path), ['.'.join(p) for p in options])}"
        )
    names = sorted(options[path] if path else keys)
    if key not in names:
        of = f" of {' '.join(path)}" if path else ""
        raise UsageError(
            f"{given.origin}: '{shown}' is no setting{of}: keys are option names"
            f"{_near(key, names)}; see attnviz {' '.join(path) or 'explain'} --help"
        )
    return path, key


def _find_variable(
    given: Given, options: dict[Path, dict[str, Any]], keys: set[str]
) -> tuple[Path, str] | None:
    name = given.keys[0]
    known = {variable(path, key): (path, key) for path, named in options.items() for key in named}
    known.update({variable((), key): ((), key) for key in keys})
    if name in known:
        return known[name]
    _refuse_never(name[len(PREFIX) :].lower().replace("_", "-"), given.origin, NEVER)
    short = [n[len(PREFIX) :] for n in known]
    near = _near(name[len(PREFIX) :], short, cutoff=0.75, prefix=PREFIX)
    if near:
        raise UsageError(f"{name} is no setting{near}")
    return None


def _refuse_never(key: str, origin: str, never: tuple[str, ...]) -> None:
    if key in never:
        raise UsageError(
            f"{origin}: '{key}' cannot be set: give --{key} on the command line, where it is seen"
        )


def _near(name: str, names: list[str], *, cutoff: float = 0.6, prefix: str | None = None) -> str:
    """Return a question for the nearest name; with its prefix, or else in quotes."""
    import difflib

    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=cutoff)
    shown = [f"'{n}'" if prefix is None else prefix + n for n in near]
    return f"; did you mean {shown[0]}?" if near else ""


def _shape(parameter: Any, given: Given, key: str) -> Any:
    """Turn TOML's kinds of values, or a variable's text, into what the parser expects."""
    value = given.value
    if given.folder is None:
        return [v for v in value.split(",") if v] if parameter.multiple else value
    where = f"{given.origin}: {'.'.join(given.keys)}"
    if parameter.is_flag != isinstance(value, bool):
        wanted = "true or false" if parameter.is_flag else "a number or a text"
        raise UsageError(f"{where} = {str(value).lower()}: give {wanted}")
    if isinstance(value, bool):
        return value
    if parameter.multiple:
        return [str(v) for v in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        if not str(parameter.metavar).endswith(",..."):
            raise UsageError(f"{where} takes one value, not a list")
        return ",".join(str(v) for v in value)
    if key in _PATHS and value not in _WORDS:  # a path in a file starts at that file's folder
        there = os.path.join(given.folder, str(value))
        return os.path.relpath(there) if os.path.exists(there) else str(value)
    return str(value)


def _layers(environ: Mapping[str, str], folder: str, faults: list[AttnvizError]) -> Iterator[Layer]:
    """Yield what the environment, the nearest file upwards and the user's file say, in that order."""
    variables = tuple(
        Given((name,), environ[name], name)
        for name in sorted(environ)
        if name.startswith(PREFIX) and environ[name]
    )
    if variables:
        yield from _checked(lambda: Layer("environment", variables), faults)
    yield from _checked(lambda: _nearest(folder, environ), faults)
    user = _user_file(environ)
    if user is not None:
        yield from _checked(lambda: _from_file("user", user, ()), faults)


def _checked(read: Any, faults: list[AttnvizError]) -> Iterator[Layer]:
    """Yield the layer that a function reads, if there is one; a fault is kept instead."""
    try:
        layer = read()
        if layer is not None:
            for given in layer.given:
                where = (
                    given.origin
                    if given.folder is None
                    else f"{given.origin}: {'.'.join(given.keys)}"
                )
                _check_plain(given.value, where)
            yield layer
    except AttnvizError as fault:
        faults.append(fault)


def _user_file(environ: Mapping[str, str]) -> str | None:
    """Return where the user's own settings are, whether or not the file exists."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "attnviz", "config.toml")


def _nearest(folder: str, environ: Mapping[str, str]) -> Layer | None:
    """Return the first file with settings from a folder upwards, as far as the home folder.

    ``attnviz.toml`` counts before ``pyproject.toml`` with a ``[tool.attnviz]`` in the same folder.
    """
    home = environ.get("HOME", "")
    while True:
        for name, table in ((OWN_FILE, ()), (PROJECT_FILE, ("tool", "attnviz"))):
            found = _from_file("project", os.path.join(folder, name), table)
            if found is not None:
                return found
        above = os.path.dirname(folder)
        if folder in (home, above):
            return None
        folder = above


def _from_file(kind: str, path: str, below: tuple[str, ...]) -> Layer | None:
    """Return the settings of a file, of those of one table of it; None where there are none."""
    content = _read(path, is_ours=not below)
    if content is None:
        return None
    table: Any = _parse(path, content)
    shown = shorten(path)
    if kind == "project" and not below and isinstance(table.get("tool"), dict):
        raise UsageError(
            f"{shown}: [tool.attnviz] is for {PROJECT_FILE}; here keys stand at the top, and a "
            "command's in [explain]"
        )
    for step in below:
        table = table.get(step) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        return None
    given = tuple(_flatten(table, (), shown, os.path.dirname(path)))
    if len(given) > MAX_KEYS:
        raise UsageError(f"{shown} holds {len(given):,} settings, more than {MAX_KEYS:,}")
    return Layer(kind, given, shown)


def _read(path: str, *, is_ours: bool) -> bytes | None:
    """Return a file's content, None where there is none, or where another's has no table for us."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode) or not (is_ours or stat.S_ISREG(mode)):
            return None
        if not stat.S_ISREG(mode):
            raise InputError(f"{shorten(path)} is no file: settings are read from plain files only")
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        if not is_ours:
            return None
        raise InputError(f"{shorten(path)}: {fault.strerror}") from fault
    if not is_ours and not re.search(_TABLE, content[:MAX_BYTES], re.M):
        return None
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{shorten(path)} is larger than {MAX_BYTES // 1024} kB: a file with settings is a page long"
        )
    return content


def _parse(path: str, content: bytes) -> dict[str, Any]:
    import tomllib

    shown = shorten(path)
    if re.search(_MANY_DOTS, content, re.M):  # tomllib takes the square of a key's length
        raise InputError(f"{shown}: a line with more than {MAX_DOTS} dots is no setting")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise InputError(
            f"{shown} is not UTF-8 (byte {fault.start}): TOML is always UTF-8"
        ) from None
    except RecursionError:
        raise InputError(f"{shown}: tables or lists are nested too deeply") from None
    except ValueError as fault:
        hint = _TWICE if "overwrite" in str(fault) else ""
        raise InputError(f"{shown} is not TOML: {fault}{hint}") from None


def _flatten(
    table: dict[str, Any], above: tuple[str, ...], origin: str, folder: str
) -> Iterator[Given]:
    for key, value in table.items():
        keys = (*above, key)
        if not isinstance(value, dict):
            yield Given(keys, value, origin, folder)
        elif len(keys) > 2:
            raise UsageError(f"{origin}: [{'.'.join(keys)}] is nested too deeply")
        else:
            yield from _flatten(value, keys, origin, folder)


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


def shorten(path: str) -> str:
    """Return a path as a person would write it: from here, or from home."""
    home = os.path.expanduser("~")
    try:
        here = os.path.relpath(path)
    except (OSError, ValueError):
        here = path
    from_home = "~" + path[len(home) :] if home != "/" and path.startswith(home + "/") else path
    return min(here, from_home, key=lambda shown: (len(shown), shown))
