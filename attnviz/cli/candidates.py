"""Candidates for the value of one option or argument: names, numbers, files.

What lives here: where values are looked up, cheaply and within bounds, loading neither numpy nor
torch. What does not: reading the command line (``complete``). File names come from strangers and
shells evaluate candidates, so only names of plain characters are offered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

VIEWS = {
    "links": "lines from queries to keys",
    "grid": "all layers and heads",
    "neuron": "one score, by dimension",
    "entropy": "how widely each query looks",
    "heatmap": "weights as colours",
    "rollout": "the flow through all layers of a model",
    "walk": "every step, as explain shows it",
    "zoom": "one query, as explain --token shows it",
}
PATTERNS = (
    "previous", "next", "self", "first", "special", "same", "induction", "local", "rare", "uniform",
    "positional",
)  # fmt: skip
MAPS = ("cividis", "viridis", "magma", "blues", "grays", "vik", "rdbu", "puor")
FIGURES = ("entropy", "links", "received", "distance", "first", "map")
WEIGHT_ENDINGS = (".safetensors", ".npz", ".pt", ".pth", ".npy")
TEXT_ENDINGS = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_SAMPLES = {
    "sample": "the bundled layer",
    "sample-8": "the bundled layer of eight heads",
    "random": "drawn from --seed",
}
_PLAIN = re.compile(r"[\w.,@%+=/~-]+")
_CHOICE = re.compile(r"[a-z][a-z0-9-]*")
_MAX_ENTRIES = 5000
_MAX_HEADER_BYTES = 1 << 20
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value to offer, and a word about it."""

    value: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of the line: the command, and the options given so far by long name."""

    path: tuple[str, ...]
    given: Mapping[str, str]

    def value(self, key: str) -> str | None:
        """Return an option's value from the line, or else from settings."""
        return self.given[key] if key in self.given else _from_settings(self.path, key)


def values_of(parameter: Any, key: str, line: Line, incomplete: str) -> list[Candidate]:
    """Return values for an option (by long name) or an argument (``<name>``)."""
    if key in ("stage", "figures", "keep"):
        return _listed(_names_in_list(key, line), parameter, incomplete)
    return [c for c in _values(parameter, key, line, incomplete) if c.value.startswith(incomplete)]


def _values(parameter: Any, key: str, line: Line, incomplete: str) -> list[Candidate]:
    if key in ("weights", "with-weights"):
        return [*_described(_SAMPLES), *files(incomplete, WEIGHT_ENDINGS)]
    if key in ("model", "with-model"):
        return files(incomplete, (".gguf",))
    if key in ("layer", "with-layer", "head", "with-head"):
        return _numbers(parameter, key, line)
    if key == "format" and line.path != ("batch",):
        from attnviz.registry import names

        return [Candidate(name) for name in names("formats")]
    if key == "cmap":
        return [Candidate(name) for name in MAPS]
    if key == "pattern":
        return [Candidate(name) for name in PATTERNS]
    if key == "<name>" and line.path == ("view",):
        return _described(VIEWS)
    return _by_metavar(parameter, key, incomplete)


def _by_metavar(parameter: Any, key: str, incomplete: str) -> list[Candidate]:
    """Return the choices that a placeholder lists (``auto|cpu``), or the files that it asks for."""
    asked = str(parameter.metavar or "")
    parts = re.sub(r"\[:N\]", "", asked).strip("[].").split("|")
    found = [Candidate(part) for part in parts if _CHOICE.fullmatch(part)]
    if key == "<inputs>":
        return files(incomplete, TEXT_ENDINGS)
    if key in ("<file>", "<source>", "<target>"):
        return [*found, *files(incomplete, WEIGHT_ENDINGS)]
    if key == "<path>":
        return files(incomplete, (".gguf",))
    if {"PATH", "FILE", "DIR"} & set(parts):
        return [*found, *files(incomplete, ())]
    return found


def _described(names: Mapping[str, str]) -> list[Candidate]:
    return [Candidate(name, told) for name, told in names.items()]


def _names_in_list(key: str, line: Line) -> tuple[str, ...]:
    if key == "figures":
        return FIGURES
    from attnviz.records import STAGES

    if key == "keep":
        return ("weights", "scores", "q", "k", "v", "output")
    return ("tokens", "x", *STAGES) if line.path == ("explain",) else STAGES


def _listed(names: tuple[str, ...], parameter: Any, incomplete: str) -> list[Candidate]:
    """Return names for the last place of a list with commas, or for the one place there is."""
    before, comma, last = incomplete.rpartition(",")
    if not str(parameter.metavar).endswith(",..."):
        before, comma, last = "", "", incomplete
    taken = set(before.split(","))
    return [Candidate(before + comma + n) for n in names if n.startswith(last) and n not in taken]


def _numbers(parameter: Any, key: str, line: Line) -> list[Candidate]:
    """Return ``all``, ``mean``, … and the numbers of the layers or heads that there are."""
    words = [w for w in str(parameter.metavar).split("|") if _CHOICE.fullmatch(w)]
    is_layer = key.endswith("layer")
    model = line.value("with-model") if key.startswith("with") else None
    model = model or line.value("model")
    if model is not None:
        count = _count_of_model(model, _LAYERS if is_layer else _HEADS)
    else:
        weights = line.value("with-weights") if key.startswith("with") else None
        weights = weights or line.value("weights") or "sample"
        count = 1 if is_layer else _heads_of_weights(weights, line)
    return [*map(Candidate, words), *(Candidate(str(n)) for n in range(min(count, 1024)))]


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


def _heads_of_weights(spec: str, line: Line) -> int:
    if spec in _SAMPLES:
        number = line.given.get("n-heads", "") if spec == "random" else ""
        return int(number) if number.isdecimal() and len(number) < 5 else 8 if "8" in spec else 1
    told = line.given.get("n-heads") or _header(spec).get("n_heads")
    return int(told) if isinstance(told, str) and told.isdecimal() and len(told) < 5 else 1


def _header(path: str) -> Mapping[str, Any]:
    """Return the metadata of a safetensors file whose header is small; else nothing."""
    if not path.endswith(".safetensors") or not os.path.isfile(path):
        return {}
    with open(path, "rb") as stream:
        n_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= n_bytes <= _MAX_HEADER_BYTES:
            return {}
        try:
            told = json.loads(stream.read(n_bytes)).get("__metadata__")
        except (ValueError, RecursionError, AttributeError):
            return {}
    return told if isinstance(told, dict) else {}


def _from_settings(path: tuple[str, ...], key: str) -> str | None:
    from attnviz.cli.setting_files import read_layers
    from attnviz.errors import AttnvizError

    try:
        layers = read_layers(os.environ, os.getcwd())
    except (AttnvizError, OSError):
        return None
    names = {(*path, key), (key,), (f"ATTNVIZ_{key.upper()}",)}
    for layer in layers:
        for given in layer.given:
            if given.keys in names:
                there = os.path.join(given.folder or "", str(given.value))
                return there if os.path.exists(there) else str(given.value)
    return None


def files(incomplete: str, endings: tuple[str, ...]) -> list[Candidate]:
    """Return the files of some endings (all where there are none), and folders with a slash.

    A folder that is the only candidate is looked into, since a shell would set a space behind it.
    """
    for _ in range(8):
        found = [*_entries(incomplete, endings)]
        if len(found) != 1 or not found[0].value.endswith("/"):
            return found
        inside = [*_entries(found[0].value, endings)]
        if not inside:
            return [Candidate(found[0].value.rstrip("/"))]
        if len(inside) > 1 or not inside[0].value.endswith("/"):
            return [found[0], *inside]
        incomplete = inside[0].value
    return []


def _entries(incomplete: str, endings: tuple[str, ...]) -> Iterable[Candidate]:
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
    dash = [f"./{name}" if name.startswith("-") and not shown else name for name in found]
    return map(Candidate, sorted(dash))
