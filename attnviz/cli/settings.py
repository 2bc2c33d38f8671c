"""What settings mean: their names are those of options, their values are checked as options are.

What lives here: which options can be set, which commands a setting reaches, what the parser takes as
defaults, where each came from. What does not: files and variables (``setting_files``).
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attnviz.cli.setting_files import Given, Layer, read_layers
from attnviz.cli.setting_places import PREFIX
from attnviz.errors import UsageError

Path: TypeAlias = tuple[str, ...]

# What writes, reads another text or reaches out is said on the command line, where it is seen: a
# folder with a file of settings may come from a stranger.
NEVER = ("dry-run", "file", "force", "help", "output", "ray-address", "report", "status", "version")
_PATHS = ("font", "model", "weights", "with-model", "with-weights")
_NEAR = 0.75


@dataclass(frozen=True, slots=True)
class Resolved:
    """Defaults for the parser, by command and parameter, and who set each."""

    default_map: dict[str, Any] = field(default_factory=dict)
    set_by: dict[tuple[Path, str], Given] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()
    unknown: tuple[str, ...] = ()

    def blame(self, message: str, arguments: list[str]) -> str:
        """Return an error's message, and where a setting that it names was made."""
        for (path, key), given in self.set_by.items():
            is_meant = tuple(arguments[: len(path)]) == path and not any(
                a.split("=")[0] == f"--{key}" for a in arguments
            )
            said = f"--{key}" in message or str(given.value) in message.replace("'", " ").split()
            if is_meant and said and given.origin not in message:
                return f"{message}; {key} is set in {given.origin}"
        return message


def resolve(root: Any, environ: Mapping[str, str], folder: str) -> Resolved:
    """Read all settings and check them against the options of a command tree.

    Parameters
    ----------
    root
        The parser's command tree.
    environ, folder
        Variables, and where the search for a file starts.

    Raises
    ------
    InputError, UsageError
        A file that cannot be read; a key that is no option; a value that its option would refuse.
    """
    layers = read_layers(environ, folder)
    if not layers:
        return Resolved()
    options = options_of(root)
    reached = _reached(options)
    found = Resolved(layers=layers)
    unknown: list[str] = []
    for layer in layers:
        here: dict[tuple[Path, str], Given] = {}
        own: set[tuple[Path, str]] = set()
        for given in layer.given:
            place = _find(given, options, layer.kind)
            if place is None:
                unknown.append(given.keys[0])
                continue
            path, key = place
            for target in (path,) if path else reached[key]:
                if path or (target, key) not in own:
                    here[target, key] = given
                if path:
                    own.add((target, key))
        for (path, key), given in here.items():
            parameter = options[path][key]
            value = _value(root, path, parameter, given, key)
            if (path, key) not in found.set_by:
                found.set_by[path, key] = given
                _put(found.default_map, path, parameter.name, value)
    return Resolved(found.default_map, found.set_by, layers, tuple(unknown))


def options_of(root: Any) -> dict[Path, dict[str, Any]]:
    """Return the options that can be set, by command and by their long names without dashes."""
    found: dict[Path, dict[str, Any]] = {}

    def walk(command: Any, path: Path) -> None:
        for name, below in getattr(command, "commands", {}).items():
            walk(below, (*path, name))
        if path and not hasattr(command, "commands"):
            named = {_key(p): p for p in command.params if p.param_type_name == "option"}
            found[path] = {key: p for key, p in named.items() if key not in NEVER}

    walk(root, ())
    found.pop(("config", "show"), None)
    return found


def variable(path: Path, key: str) -> str:
    """Return the name of the variable for an option, of one command or (empty path) of all.

    Examples
    --------
    >>> variable(("explain",), "max-tokens")
    'ATTNVIZ_EXPLAIN_MAX_TOKENS'
    """
    return PREFIX + "_".join((*path, key)).upper().replace("-", "_")


def _key(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-")


def _reached(options: dict[Path, dict[str, Any]]) -> dict[str, tuple[Path, ...]]:
    """Say which commands a setting without a command reaches: those where it means the same."""
    kinds: dict[str, list[tuple[Path, Any]]] = {}
    for path, named in options.items():
        for key, p in named.items():
            kind = (p.metavar, tuple(p.secondary_opts), p.is_flag, p.multiple)
            kinds.setdefault(key, []).append((path, kind))
    common = {key: Counter(k for _, k in rows).most_common(1)[0][0] for key, rows in kinds.items()}
    return {key: tuple(p for p, k in rows if k == common[key]) for key, rows in kinds.items()}


def _find(given: Given, options: dict[Path, dict[str, Any]], kind: str) -> tuple[Path, str] | None:
    """Return the command (empty for all) and the option that a setting is about."""
    if kind == "environment":
        return _find_variable(given, options)
    *above, last = given.keys
    path, key = tuple(" ".join(above).split()), last.replace("_", "-")
    _refuse_never(key, given.origin, (*NEVER, "debug"))
    shown = ".".join(given.keys)
    if path and path not in options:
        names = sorted({".".join(p) for p in options})
        raise UsageError(
            f"{given.origin}: '{shown}' is no setting: there is no command "
            f"'{' '.join(path)}'{_suggest('.'.join(path), names)}"
        )
    names = sorted(options[path] if path else {k for named in options.values() for k in named})
    if key not in names:
        of = f" of {' '.join(path)}" if path else ""
        raise UsageError(
            f"{given.origin}: '{shown}' is no setting{of}: keys are option names"
            f"{_suggest(key, names)}; see attnviz {' '.join(path) or 'explain'} --help"
        )
    return path, key


def _find_variable(given: Given, options: dict[Path, dict[str, Any]]) -> tuple[Path, str] | None:
    name = given.keys[0]
    known = {variable(path, key): (path, key) for path, named in options.items() for key in named}
    known.update({variable((), key): ((), key) for named in options.values() for key in named})
    if name in known:
        return known[name]
    _refuse_never(name[len(PREFIX) :].lower().replace("_", "-"), given.origin, NEVER)
    short = {n[len(PREFIX) :]: n for n in known}
    near = difflib.get_close_matches(name[len(PREFIX) :], short, n=1, cutoff=_NEAR)
    if near:
        raise UsageError(f"{name} is no setting: did you mean {short[near[0]]}?")
    return None


def _refuse_never(key: str, origin: str, never: tuple[str, ...]) -> None:
    if key in never:
        raise UsageError(
            f"{origin}: '{key}' cannot be set: give --{key} on the command line, where it is seen"
        )


def _suggest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _value(root: Any, path: Path, parameter: Any, given: Given, key: str) -> Any:
    """Return a setting as its option would take it from the command line, checked by the option."""
    import typer

    where = given.origin if given.folder is None else f"{given.origin}: {'.'.join(given.keys)}"
    value = _shape(parameter, given, where)
    if (
        given.folder is not None
        and key in _PATHS
        and value not in str(parameter.metavar).split("|")
    ):
        value = _from_folder(str(value), given.folder)
    command = root
    for name in path:
        command = command.commands[name]
    context = typer.Context(command, info_name=path[-1])
    try:
        parameter.process_value(context, value)
    except typer.TyperException as fault:
        told = getattr(fault, "message", None) or fault.format_message()
        raise UsageError(f"{where} = {given.value}: {str(told).rstrip('.').lower()}") from None
    return value


def _shape(parameter: Any, given: Given, where: str) -> Any:
    """Turn TOML's kinds of values, or a variable's text, into what the parser expects."""
    value = given.value
    if given.folder is None:
        return [v for v in value.split(",") if v] if parameter.multiple else value
    if parameter.is_flag != isinstance(value, bool):
        wanted = "true or false" if parameter.is_flag else "a number or a text"
        raise UsageError(f"{where} = {str(value).lower()}: give {wanted}")
    if parameter.multiple:
        return [str(v) for v in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        if not str(parameter.metavar).endswith(",..."):
            raise UsageError(f"{where} takes one value, not a list")
        return ",".join(str(v) for v in value)
    return str(value) if not isinstance(value, bool) else value


def _from_folder(value: str, folder: str) -> str:
    """Return a path that a file names, seen from the working folder; other names as they are."""
    there = os.path.join(folder, value)
    if os.path.isabs(value) or not os.path.exists(there):
        return value
    return os.path.relpath(there)


def _put(target: dict[str, Any], path: Path, name: str, value: Any) -> None:
    for step in path:
        target = target.setdefault(step, {})
    target[name] = value
