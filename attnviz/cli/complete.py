"""What a shell may offer next: commands, options, and their values, within 150 ms.

What lives here: reading a half-written command line without running the parser (whose libraries
take longer than all of this), and the candidates. What does not: the scripts that shells load, which
are the parser's own (``attnviz --show-completion``); where values are looked up (``candidates``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnviz.cli.candidates import Candidate, Line, values_of

_VARIABLE = "_ATTNVIZ_COMPLETE"


def answer(root: Any, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return what a shell's script expects on stdout, and the exit code.

    Never fails: where nothing can be found there is nothing to offer.
    """
    shell = environ[_VARIABLE].removeprefix("complete_")
    words, incomplete = _words(shell, environ)
    try:
        found = candidates(root, words, incomplete)
    except Exception:
        found = []
    if shell == "bash":
        return "".join(f"{c.value}\n" for c in found), 0
    if shell == "zsh":
        rows = "\n".join(
            f'"{_zsh(c.value)}":"{_zsh(c.help)}"' if c.help else f'"{_zsh(c.value)}"' for c in found
        )
        return (f"_arguments '*: :(({rows}))'\n" if found else "_files\n"), 0
    if shell == "fish":
        if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            return "", 0 if found else 1
        return "".join(f"{c.value}\t{c.help}\n" if c.help else f"{c.value}\n" for c in found), 0
    return "".join(f"{c.value}:::{c.help or ' '}\n" for c in found), 0


def _words(shell: str, environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the words behind the program's name, and the one that is being written."""
    if shell == "bash":
        words = [_unquote(word) for word in environ.get("COMP_WORDS", "").split("\n")]
        if len(words) == 1:
            words = words[0].split()
        place = environ.get("COMP_CWORD", "")
        at = int(place) if place.isdecimal() and len(place) < 10 else len(words)
        return words[1:at], words[at] if at < len(words) else ""
    line = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    if shell in ("powershell", "pwsh"):
        last = environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return (words[:-1] if last else words), last
    if words and not line[-1:].isspace():
        return words[:-1], words[-1]
    return words, ""


def _split(line: str) -> list[str]:
    """Split as a shell would; a quote that is still open ends at the end."""
    import shlex

    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token or "")
    return words


def _unquote(word: str) -> str:
    return "".join(_split(word)) if word[:1] in "'\"" or "\\" in word else word


def _zsh(text: str) -> str:
    """Return a text as zsh's ``_arguments`` reads it, which evaluates what it gets."""
    for mark, safe in (
        ("\\", ""), ('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:"),
        ("(", "["), (")", "]"),
    ):  # fmt: skip
        text = text.replace(mark, safe)
    return text


@dataclass(slots=True)
class _Reader:
    """Walks over the words that are complete."""

    command: Any
    path: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    pending: Any = None
    only_arguments: bool = False

    def read(self, word: str) -> None:
        if self.pending is not None:
            if word != "=":  # bash breaks --name=value into three words
                self.given[_key(self.pending)] = word
                self.pending = None
        elif self.only_arguments or not word.startswith("-") or word == "-":
            below = getattr(self.command, "commands", {})
            if word in below and not self.only_arguments:
                self.command = below[word]
                self.path.append(word)
            else:
                self.arguments.append(word)
        elif word == "--":
            self.only_arguments = True
        else:
            name, has_value, value = word.partition("=")
            parameter = _option(self.command, name)
            if parameter is None or parameter.is_flag:
                return
            if has_value:
                self.given[_key(parameter)] = value
            else:
                self.pending = parameter


def candidates(root: Any, words: list[str], incomplete: str) -> list[Candidate]:
    """Return what can follow the words, as far as it begins with what is written already."""
    reader = _Reader(root)
    for word in words:
        reader.read(word)
    if incomplete == "=":
        incomplete = ""
    prefix = ""
    if reader.pending is None and incomplete.startswith("--") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        reader.read(name)
        prefix = f"{name}="
    line = Line(tuple(reader.path), reader.given)
    if reader.pending is not None:
        found = values_of(reader.pending, _key(reader.pending), line, incomplete)
    elif incomplete.startswith("-") and not reader.only_arguments:
        found = _option_names(reader.command, incomplete)
    elif hasattr(reader.command, "commands"):
        found = _commands(reader.command, incomplete)
    else:
        found = _argument(root, reader, line, incomplete)
    return [Candidate(prefix + c.value, c.help) for c in found]


def _argument(root: Any, reader: _Reader, line: Line, incomplete: str) -> list[Candidate]:
    arguments = [p for p in reader.command.params if p.param_type_name == "argument"]
    if not arguments:
        return []
    last = arguments[-1]
    if len(reader.arguments) >= len(arguments) and last.nargs != -1:
        return []
    parameter = arguments[min(len(reader.arguments), len(arguments) - 1)]
    if parameter.name == "command":
        for word in reader.arguments:
            root = getattr(root, "commands", {}).get(word)
        return _commands(root, incomplete)
    return values_of(parameter, f"<{parameter.name}>", line, incomplete)


def _commands(group: Any, incomplete: str) -> list[Candidate]:
    below = getattr(group, "commands", {})
    return [Candidate(n, _first(c.help)) for n, c in below.items() if n.startswith(incomplete)]


def _option_names(command: Any, incomplete: str) -> list[Candidate]:
    found = []
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.hidden:
            continue
        for name in (*parameter.opts, *parameter.secondary_opts):
            if name.startswith(incomplete) and (name.startswith("--") or incomplete == name):
                found.append(Candidate(name, _first(parameter.help)))
    if "--help".startswith(incomplete):
        found.append(Candidate("--help", "Show this message and exit."))
    return found


def _option(command: Any, name: str) -> Any:
    for parameter in command.params:
        if parameter.param_type_name == "option" and name in (
            *parameter.opts,
            *parameter.secondary_opts,
        ):
            return parameter
    return None


def _key(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-")


def _first(text: str | None) -> str:
    """Return the first sentence of a help text, on one line."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".") if line else ""


def complete() -> int:
    """Answer the shell that set the environment; print nothing else."""
    from typer.main import get_command

    from attnviz.cli.app import app
    from attnviz.cli.terminal import write_stdout

    text, code = answer(get_command(app), os.environ)
    write_stdout(text)
    return code
