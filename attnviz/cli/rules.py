"""Options that mean something only beside others: given alone they are refused, never ignored.

One table. A rule names options and asks the values of a command whether they can have an effect; it
is asked only of options that stand on the command line, so that settings may hold for all commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import UsageError

Values = Mapping[str, Any]

_PICTURES = (".png", ".svg", ".pdf")
_DATA = ("json", "jsonl", "csv", "tsv", "npz", "parquet", "safetensors")
_PAGES = ("explain", "heatmap", "view", "show", "page")
_OF_FACTS = ("doctor", "weights show", "model show", "config show")
_COLUMNS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True, slots=True)
class Rule:
    """Options, by the names of their values; when they have an effect; and what they are for."""

    options: tuple[str, ...]
    holds: Callable[[Values], bool]
    words: str


def _ending(values: Values) -> str:
    return Path(values.get("output") or "").suffix.lower()


def _is_picture(values: Values) -> bool:
    return _ending(values) in _PICTURES


def _is_text(values: Values) -> bool:
    """True where a person reads the numbers: tables in a terminal, a file, a page of tables."""
    if "workers" in values:  # a batch writes tables for programs, and shows plans and reports
        return bool(values["dry_run"] or values["status"] or values["report"])
    format_ = values.get("format") or _ending(values).removeprefix(".")
    if format_ in ("html", "htm"):
        return _command(values) not in _PAGES
    return format_ not in _DATA and not _is_picture(values)


def _has_decimals(values: Values) -> bool:
    """True where numbers with decimal places are shown; a heatmap's cells have two, or per cent."""
    command = _command(values)
    is_heatmap = command == "heatmap" or values.get("view") == "heatmap"
    if is_heatmap and values.get("output") is None and values.get("format") in (None, "table"):
        return False
    return command not in _OF_FACTS and _is_text(values)


def _command(values: Values) -> str:
    """Return the command's name, ``model show`` as a whole."""
    path: str = getattr(values.get("context"), "command_path", "")
    return path.partition(" ")[2]


def _is_colored(values: Values) -> bool:
    if values.get("name", values.get("view")) == "links":  # lines have no scale of colors
        return False
    on_screen = values.get("output") is None and values.get("format") in (None, "table")
    return on_screen or _is_picture(values)


def _has_columns(values: Values) -> bool:
    named = values.get("input_format")
    paths = [str(path).lower() for path in values.get("inputs") or ()]
    return named not in (None, "txt") or any(path.endswith(_COLUMNS) for path in paths)


def _draws(values: Values) -> bool:
    """True where numbers are drawn: random weights, vectors for words, or words to write."""
    if values.get("model") is not None:
        return bool(values.get("temperature"))
    return values.get("weights") not in ("sample", "sample-8")


RULES = (
    Rule(("engine",), lambda v: v.get("model") is not None or "workers" in v,
         "chooses who runs a trained model: give one with --model"),
    Rule(("d_model", "d_k"), lambda v: v.get("weights", "random") == "random" and v.get("model") is None,
         "is a size of random weights: use --weights random"),
    Rule(("seed",), _draws, "is for random numbers, and this run draws none: leave it out"),
    Rule(("force",), lambda v: "output" not in v or v["output"] is not None,
         "replaces a file: give one with -o"),
    Rule(("dpi", "size", "title", "font"), _is_picture,
         "is for pictures: give -o a name that ends in .png, .svg or .pdf"),
    Rule(("outlines",), lambda v: _ending(v) == ".svg", "is for SVG: give -o a name that ends in .svg"),
    Rule(("cmap", "color_scale"), _is_colored, "is for colors, and this output has none: leave it out"),
    Rule(("precision",), _has_decimals,
         "is for tables with decimal places, and this has none: leave it out"),
    Rule(("width", "color"), _is_text,
         "is for text that people read; numbers for programs are written whole: leave it out"),
    Rule(("text_column",), _has_columns, "names a column, and the inputs have none: leave it out"),
    Rule(("keep_dtype",), lambda v: bool(v.get("keep")), "is for arrays that are kept: give --keep"),
    Rule(("ray_address",), lambda v: v.get("engine") == "ray", "is for a Ray cluster: use --engine ray"),
    Rule(("workers",), lambda v: v.get("engine") != "serial", "is for engines with workers: leave --engine serial out"),
    Rule(("key_tokens",), lambda v: v.get("tokens") is not None, "goes with --tokens"),
)  # fmt: skip
"""In the order in which they are asked."""


def check_effects(given: Iterable[str], values: Values) -> None:
    """Refuse the first option that would change nothing.

    Parameters
    ----------
    given
        Names of the options that stand on the command line.
    values
        What every option of the command is.

    Raises
    ------
    UsageError
        One line: the option, what it is for, and what to do.

    Examples
    --------
    >>> check_effects(["dpi"], {"output": "a.png"})
    >>> check_effects(["dpi"], {"output": None})
    Traceback (most recent call last):
    attnviz.errors.UsageError: --dpi is for pictures: give -o a name that ends in .png, .svg or .pdf
    """
    asked = set(given)
    for rule in RULES:
        for name in rule.options:
            if name in asked and not rule.holds(values):
                raise UsageError(f"--{name.replace('_', '-')} {rule.words}")
