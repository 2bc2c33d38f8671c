"""Find a model on disk and read its small files within bounds, before any library sees them.

What lives here: folder layouts (plain, hub cache), ``config.json``, safetensors headers, shard
indexes. What does not: GGUF (``gguf``), tokenizers (``tokenizer``), building the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from attnviz.sources.models.cache import sha256_of

_MAX_JSON_BYTES = 16 << 20
_MAX_JSON_DEPTH = 64
_LIMITS = (
    (re.compile(r"(^|_)(n|num|encoder|decoder)_?(\w*_)?layers?$|^depth$"), 1024),
    (re.compile(r"(^|_)heads?$"), 1024),
    (re.compile(r"^(hidden_size|d_model|n_embd|dim|head_dim|d_kv|embedding_size)$"), 1 << 17),
    (re.compile(r"intermediate_size$|^(d_ff|n_inner|ffn_dim)$|_ffn_dim$"), 1 << 21),
    (re.compile(r"experts"), 1 << 14),
    (re.compile(r"^vocab_size$"), 1 << 24),
    (re.compile(r"labels$"), 1 << 16),  # the library makes a name for each
    (re.compile(r"positions?$|position_embeddings$"), 1 << 28),
)
# a string that never ends runs to the end, or every quote in it would be tried again
_MARKS = re.compile(r'"(?:[^"\\]|\\(?:.|\Z))*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What one model consists of on disk.

    Parameters
    ----------
    folder
        Where config and tokenizer are; for GGUF the folder of the file.
    weights
        The safetensors files in order, or the one GGUF file.
    kind
        ``safetensors`` or ``gguf``.
    name
        For people: a folder's or file's own name, or ``org/name`` in a hub cache.
    """

    folder: Path
    weights: tuple[Path, ...]
    kind: str
    name: str

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.weights)

    def sha256(self) -> str:
        """Hash the weights: the file's own SHA-256, or that of the shards' digests in order."""
        digests = [sha256_of(path) for path in self.weights]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def find_model(path: str | os.PathLike[str]) -> ModelFiles:
    """Find a model: a folder, a GGUF file, a place in a hub cache, or ``org/name`` in the local one.

    Raises
    ------
    InputError
        Nothing there, or nothing that can be read; the message names what was looked for.
    """
    given = Path(path)
    if not given.exists():
        found = _in_hub_cache(os.fspath(path))
        if found is None:
            raise InputError(
                f"no model at {os.fspath(path)}: give a folder with config.json and safetensors, "
                "or a .gguf file; nothing is downloaded"
            )
        given = found
    if given.is_file():
        if given.suffix.lower() != ".gguf":
            is_inside = (given.parent / "config.json").is_file()
            hint = (
                "give the folder it is in"
                if is_inside
                else (
                    "give a folder with config.json, or a .gguf file; single layers go to --weights"
                )
            )
            raise InputError(f"{given.name} alone is not a model: {hint}")
        return ModelFiles(given.parent, (given,), "gguf", given.stem)
    folder, name = _snapshot(given)
    if not (folder / "config.json").is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; it holds {ggufs[0]}: give that file" if ggufs else ""
        raise InputError(
            f"{given.resolve().name} has no config.json, so it is not a model folder{hint}"
        )
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{name} holds an adapter (adapter_config.json) beside or instead of a model: merge it into "
            "the weights first (merge_and_unload of peft), and give that folder"
        )
    return ModelFiles(folder, _weight_files(folder), "safetensors", name)


def _in_hub_cache(name: str) -> Path | None:
    """Return the folder of ``org/name`` in the local hub cache, without asking anyone."""
    if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name) or ".." in name:
        return None
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")
    folder = Path(hub) / f"models--{name.replace('/', '--')}"
    return folder if folder.is_dir() else None


def _snapshot(folder: Path) -> tuple[Path, str]:
    """Go from ``models--org--name``, or its ``snapshots``, to the revision that is in use."""
    inside = folder.resolve()
    repo = next(
        (place for place in (inside, *inside.parents[:2]) if place.name.startswith("models--")),
        None,
    )
    named = folder.name if folder.name not in ("", "..") else inside.name  # a link keeps its name
    name = repo.name.removeprefix("models--").replace("--", "/") if repo else named
    if (folder / "config.json").exists() or repo is None or repo not in (inside, inside.parent):
        return folder, name
    revisions = sorted(place for place in (repo / "snapshots").glob("*") if place.is_dir())
    main = repo / "refs" / "main"
    if main.is_file() and main.stat().st_size < 256:
        wanted = main.read_text("utf-8", "replace").strip()
        revisions = [place for place in revisions if place.name == wanted] or revisions
    if not revisions:
        raise InputError(f"the hub cache has no snapshot of {name}: it was not downloaded whole")
    if len(revisions) > 1:
        listed = ", ".join(place.name[:12] for place in revisions)
        raise InputError(f"the hub cache has several snapshots of {name}: give one of {listed}")
    return revisions[0], name


def _weight_files(folder: Path) -> tuple[Path, ...]:
    if (folder / "model.safetensors").is_file():  # the library takes it, whatever an index says
        return (_inside(folder, "model.safetensors"),)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        entries = read_json(index).get("weight_map")
        if not isinstance(entries, dict) or not entries:
            raise InputError(f"{index.name} has no weight_map: it does not say where tensors are")
        names = sorted({str(name) for name in entries.values()})
        for name in names:
            if not re.fullmatch(r"[\w][\w.-]*\.safetensors", name):
                raise InputError(f"{index.name} names the shard {name!r}: only plain file names")
        return tuple(_inside(folder, name) for name in names)
    others = sorted(
        f.name for ending in ("*.safetensors", "*.bin", "*.pt*") for f in folder.glob(ending)
    )
    found = f"it holds {', '.join(others[:4])}" if others else "it holds no weights"
    raise InputError(
        f"{folder.name} has no model.safetensors: {found}; pickled weights are not opened, "
        "convert them to safetensors"
    )


def _inside(folder: Path, name: str) -> Path:
    """Return a file that really lies in the folder, or among the blobs of the same hub cache."""
    path = folder / name
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as fault:
        raise InputError(f"{folder.name} lacks {name}: the model is not whole") from fault
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots" and home.parents[1].name.startswith("models--"):
        allowed.append(home.parents[1] / "blobs")
    if not any(real.is_relative_to(place) for place in allowed):
        raise InputError(f"{name} points out of the model's folder: it is not read")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object: at most 16 MiB, 64 levels, no key twice.

    Raises
    ------
    InputError
        Names the file and what is wrong with it.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_JSON_BYTES:
            raise InputError(f"{path.name} has {size_bytes} bytes: at most {_MAX_JSON_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except OSError as fault:
        raise InputError(f"cannot read {path.name}: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise InputError(f"{path.name} is not UTF-8 at byte {fault.start}") from fault
    return parse_json(text, path.name)


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object within the same bounds as ``read_json``.

    Examples
    --------
    >>> parse_json('{"a": 1}', "config.json")
    {'a': 1}
    """
    depth = deepest = 0
    for mark in _MARKS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark.group(), 0)
        deepest = max(deepest, depth)
    if deepest > _MAX_JSON_DEPTH:
        raise InputError(f"{name} is nested {deepest} levels deep: at most {_MAX_JSON_DEPTH}")
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise InputError(f"{name} is not JSON: {fault}") from fault
    if not isinstance(value, dict):
        raise InputError(f"{name} holds a {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} stands twice")
        found[key] = value
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` and refuse what would run code or could not be a real model.

    Raises
    ------
    InputError
        Custom code (``auto_map``), or a size out of all bounds.
    """
    config = read_json(folder / "config.json")
    if "auto_map" in config:
        raise InputError(
            f"{folder.name} brings its own code (auto_map in config.json): code from a model "
            "folder is never run"
        )
    check_config(config)
    return config


def check_config(config: Mapping[str, Any], *, where: str = "config.json") -> None:
    """Refuse numbers that no model has, in nested parts too."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if "auto_map" in value:
                raise InputError(f"{where} brings its own code (auto_map): it is never run")
            check_config(value, where=where)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            raise InputError(f"{where} has {key} = {value}: not a number")
        limit = next((limit for name, limit in _LIMITS if name.search(key)), 1 << 62)
        if not -(1 << 62) <= value <= limit:
            raise InputError(f"{where} has {key} = {value}: at most {limit} is believed")


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Read the names, types and shapes of a safetensors file: name → (dtype, shape).

    Raises
    ------
    InputError
        A header that does not fit its file.
    """
    from attnviz.sources.files import safetensors_  # numpy: completion does without

    entries = safetensors_.open_arrays(path).entries
    return {name: (entry.dtype, entry.shape) for name, entry in entries.items()}
