"""Completion: what a shell may offer for the value of an option or argument, within 150 ms.

The parser's own completion reads the line and writes for the shell; here values are looked up,
cheaply and within bounds, loading neither numpy nor torch. File names come from strangers and
shells evaluate candidates, so only names of plain characters are offered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import typer

from attnviz.cli.options import names_of

_WEIGHTS = (".safetensors", ".npz", ".pt", ".pth", ".npy")
_TEXTS = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_SAMPLES = {
    "sample": "the bundled layer",
    "sample-8": "the bundled layer of eight heads",
    "random": "drawn from --seed",
}
_FILES = {
    "weights": _WEIGHTS, "with-weights": _WEIGHTS, "model": (".gguf",), "with-model": (".gguf",),
    "FILE": _WEIGHTS, "FILE|sample": _WEIGHTS, "FROM": _WEIGHTS, "TO": _WEIGHTS,
    "DIR|FILE.gguf": (".gguf",), "[INPUT]...": _TEXTS,
}  # fmt: skip
"""Endings of the files that an option (by long name) or an argument (by its metavar) takes."""
_NAMES = {"format": "formats", "cmap": "maps", "pattern": "patterns", "figures": "figures",
          "keep": "kept", "NAME": "views"}  # fmt: skip
"""Kinds of names, likewise."""
_CHOICE = re.compile(r"[a-z][a-z0-9-]*")
_PLAIN = re.compile(r"[\w.,@%+=/~-]+")
_MAX_ENTRIES = 5000
_MAX_HEADER_BYTES = 1 << 20
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
Offer = Callable[[typer.Context, str], list[str | tuple[str, str]]]


def completer(key: str, metavar: str) -> Offer | None:
    """Return what completes an option (by long name) or an argument (by metavar); None for free text.

    A placeholder that lists choices (``auto|cpu``) or asks for a file says enough by itself.
    """
    parts = metavar.strip("[].").split("|")
    words = [part for part in parts if _CHOICE.fullmatch(part)]
    kind = _NAMES.get(key, "") if "|" not in metavar else ""
    if key == "stage":
        kind = "stages" if metavar.endswith(",...") else "picture_stages"
    is_number = key.removeprefix("with-") in ("layer", "head") and "N" in parts
    is_file = key in _FILES or bool({"PATH", "FILE", "DIR"} & set(parts))
    if not (words or kind or is_number or is_file or key == "[COMMAND]"):
        return None

    def offer(ctx: typer.Context, incomplete: str) -> list[str | tuple[str, str]]:
        if kind:
            return _listed(names_of(kind), incomplete, several=metavar.endswith(",..."))
        if key == "[COMMAND]":
            return _commands(ctx)
        found: list[str | tuple[str, str]] = [*words]
        if key in ("weights", "with-weights"):
            found += [
                (name, _SAMPLES[name]) if name in _SAMPLES else name for name in names_of("weights")
            ]
        if is_number:
            found += map(str, range(min(_count(ctx, key), 1024)))
        if is_file:
            found += files(incomplete, _FILES.get(key, ()))
        return found

    return offer


def prepare(environ: MutableMapping[str, str]) -> None:
    """Make ready for the parser's own completion: one word a value, and no library of colors.

    bash breaks ``--name=value`` into three words.
    """
    from typer import _completion_classes

    # It would load rich for the markup of a text, which ours do not have.
    vars(_completion_classes)["_sanitize_help_text"] = str
    words = environ.get("COMP_WORDS", "").split("\n")
    place = environ.get("COMP_CWORD", "")
    if environ["_ATTNVIZ_COMPLETE"] == "complete_bash" and place.isdecimal() and len(place) < 10:
        n_before = words[: int(place)].count("=")
        kept = [w for i, w in enumerate(words) if w != "=" or i >= int(place)]
        environ.update(COMP_WORDS="\n".join(kept), COMP_CWORD=str(int(place) - n_before))


def describe(text: str | None) -> str:
    """Return the first sentence of a help text, as every shell can read it beside a name."""
    line = " ".join((text or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    return re.sub(r"\{\w+\}", "…", line).translate(str.maketrans("()", "[]")) if line else ""


def _listed(names: tuple[str, ...], incomplete: str, *, several: bool) -> list[Any]:
    """Return names for the last place of a list with commas, or for the one place there is."""
    before, comma, _ = incomplete.rpartition(",") if several else ("", "", "")
    taken = set(before.split(","))
    return [before + comma + name for name in names if name not in taken]


def _commands(ctx: typer.Context) -> list[Any]:
    group: Any = ctx.find_root().command
    for word in ctx.params.get("command") or ():
        group = getattr(group, "commands", {}).get(word)
    return [*getattr(group, "commands", ())]


def _count(ctx: typer.Context, key: str) -> int:
    """Return how many layers or heads there are in what the line, or a setting, names."""
    other = "with_" if key.startswith("with") else ""
    is_layer = key.endswith("layer")
    model = ctx.params.get(f"{other}model") or ctx.params.get("model")
    if model:
        return _count_of_model(model, _LAYERS if is_layer else _HEADS)
    weights = ctx.params.get(f"{other}weights") or ctx.params.get("weights") or "sample"
    if is_layer:
        return 1
    told = ctx.params.get("n_heads") if weights not in ("sample", "sample-8") else None
    told = told or {"sample": 1, "sample-8": 8, "random": 1}.get(weights) or _n_heads_of(weights)
    return int(told) if str(told).isdecimal() and len(str(told)) < 5 else 1


def _count_of_model(path: str, keys: tuple[str, ...]) -> int:
    from attnviz.errors import InputError
    from attnviz.sources.models.files import find_model, read_json

    try:
        config = read_json(find_model(path).folder / "config.json")
    except (InputError, OSError):
        return 0
    for part in (config, config.get("text_config")):
        for key in keys:
            number = part.get(key) if isinstance(part, dict) else None
            if isinstance(number, int) and not isinstance(number, bool):
                return number
    return 0


def _n_heads_of(path: str) -> Any:
    """Return what the metadata of a safetensors file says, where its header is small."""
    if not path.endswith(".safetensors") or not os.path.isfile(path):
        return None
    with open(path, "rb") as stream:
        n_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= n_bytes <= _MAX_HEADER_BYTES:
            return None
        try:
            return json.loads(stream.read(n_bytes))["__metadata__"]["n_heads"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return None


def files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """Return the files of some endings (all where there are none), and folders with a slash.

    A folder that is the only candidate is looked into, since a shell would set a space behind it.
    """
    for _ in range(8):
        found = [*_entries(incomplete, endings)]
        if len(found) != 1 or not found[0].endswith("/"):
            return found
        inside = [*_entries(found[0], endings)]
        if not inside:
            return [found[0].rstrip("/")]
        if len(inside) > 1 or not inside[0].endswith("/"):
            return [found[0], *inside]
        incomplete = inside[0]
    return []


def _entries(incomplete: str, endings: tuple[str, ...]) -> Iterable[str]:
    start = incomplete.rpartition("/")[2]
    shown = incomplete[: len(incomplete) - len(start)]
    place = os.path.expanduser(shown) if shown else "."
    found = []
    try:
        with os.scandir(place) as entries:
            for count, entry in enumerate(entries):
                if count >= _MAX_ENTRIES:
                    break
                name = entry.name
                is_hidden = name.startswith(".") and not start.startswith(".")
                if not name.startswith(start) or is_hidden or not _PLAIN.fullmatch(name):
                    continue
                if entry.is_dir():
                    found.append(f"{shown}{name}/")
                elif not endings or name.lower().endswith(endings):
                    found.append(shown + name)
    except OSError:
        return []
    return sorted(f"./{name}" if name.startswith("-") and not shown else name for name in found)
