"""Files of attention that others wrote: maps, or q, k, v; arrays by the names that dumps give them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import InputError, WeightsError
from attnviz.records import Array
from attnviz.sources.files import ArrayFile, open_arrays
from attnviz.sources.files.contract import listed

MAX_TOKENS_BYTES = 16 << 20
_NAMES = {
    "weights": r"weights|attentions?|attn|attention_(?:weights|probs)|attn_(?:weights|probs)|maps?|pattern|probs|layers?",
    "q": r"q|query|queries|w?q_heads",
    "k": r"k|key|keys|k_heads",
    "v": r"v|value|values|v_heads",
}
_NUMBERED = re.compile(r"(?P<name>[a-z_]+?)[._\-]?(?P<layer>\d+)?")
_HOOK = re.compile(r"blocks\.(?P<layer>\d+)\.attn\.hook_(?P<name>pattern|q|k|v)")
"""TransformerLens' cache: pattern is (B, H, L, S); q, k, v are (B, L, H, E)."""


@dataclass(frozen=True, slots=True)
class Held:
    """Layers of ``weights``, or of ``q``, ``k`` and perhaps ``v``, by number; tokens where a file has them.

    ``is_numbered`` where the arrays' names have numbers; else one array may hold all layers.
    """

    name: str
    arrays: Mapping[str, Mapping[int, Array]]
    is_numbered: bool
    tokens: tuple[str, ...] | None = None
    key_tokens: tuple[str, ...] | None = None


def open_held(path: str) -> Held:
    """Read a file or folder of attention: .npy, .npz, .safetensors, .pt, a folder of .npy.

    Known names are ``weights``, ``attention``, ``attn``, ``pattern``, ``layer_N`` and the like for
    maps, ``q``, ``k``, ``v`` for vectors, each with or without a layer's number behind it, and those
    of TransformerLens' cache. One array alone is a map, whatever its name.

    Raises
    ------
    InputError, WeightsError
        No such file, a damaged one, or none of these names.
    """
    file = _open(Path(path))
    found: dict[str, dict[int, Array]] = {}
    strange = []
    is_numbered = False
    for name in file.entries:
        read = _read_name(name)
        if read is None:
            strange.append(name)
            continue
        kind, layer = read
        values = file.read(name)
        is_hook = _HOOK.fullmatch(name) is not None
        if is_hook and kind != "weights" and values.ndim in (3, 4):
            values = values.swapaxes(-3, -2)
        is_numbered |= layer is not None
        found.setdefault(kind, {})[layer or 0] = values
    if not found and len(strange) == 1:
        found = {"weights": {0: file.read(strange[0])}}
    vectors: dict[str, dict[int, Array]] = {n: found[n] for n in ("q", "k", "v") if n in found}
    if "weights" in found:
        arrays: dict[str, dict[int, Array]] = {"weights": found["weights"]}
    elif "q" in vectors and "k" in vectors:
        arrays = vectors
    else:
        raise WeightsError(
            f"{file.name} holds {listed(tuple(file.entries))}: wanted weights, or q and k, each with or "
            "without a layer's number; see attnviz show --help"
        )
    numbers = {kind: tuple(sorted(layers)) for kind, layers in arrays.items()}
    if len(set(numbers.values())) > 1:
        raise WeightsError(f"{file.name}: q, k and v are of different layers: {numbers}")
    return Held(file.name, arrays, is_numbered, *_tokens_of(file, Path(path)))


def _open(path: Path) -> ArrayFile:
    if path.suffix.lower() == ".npy" and path.is_file():
        from attnviz.sources.files.npy_folder import open_files

        return open_files({path.stem: path}, path.name)
    return open_arrays(path)


def _read_name(name: str) -> tuple[str, int | None] | None:
    """Return what an array is, and of which layer where its name has a number."""
    if hook := _HOOK.fullmatch(name):
        kind = "weights" if hook["name"] == "pattern" else hook["name"]
        return kind, int(hook["layer"])
    plain = _NUMBERED.fullmatch(name.lower())
    if plain is None:
        return None
    for kind, known in _NAMES.items():
        if re.fullmatch(known, plain["name"]):
            return kind, None if plain["layer"] is None else int(plain["layer"])
    return None


def _tokens_of(
    file: ArrayFile, path: Path
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return tokens and key tokens: in the file's metadata, or in a file of its name beside it."""
    inside = [file.metadata.get(name) for name in ("tokens", "key_tokens")]
    first, other = (None if text is None else _words(text, file.name) for text in inside)
    if first is not None:
        return first, other
    for ending in (".json", ".txt"):
        beside = path.with_suffix(ending)
        if beside.is_file() and beside != path:
            return read_tokens(str(beside)), None
    return None, None


def read_tokens(path: str) -> tuple[str, ...]:
    """Read tokens from a file: a JSON list of strings, or text with one token per line (or blank).

    Raises
    ------
    InputError
        No such file, more than 16 MB, or neither of these.
    """
    where = Path(path)
    try:
        with where.open("rb") as opened:
            raw = opened.read(MAX_TOKENS_BYTES + 1)
    except (OSError, ValueError) as fault:
        raise InputError(f"{path} cannot be read: check the path of the tokens") from fault
    if len(raw) > MAX_TOKENS_BYTES:
        raise InputError(f"{where.name}: tokens of more than {MAX_TOKENS_BYTES >> 20} MB")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise InputError(f"{where.name} is not UTF-8 text: save the tokens as UTF-8") from fault
    if where.suffix.lower() == ".json":
        return _words(text, where.name)
    lines = [line for line in text.splitlines() if line]
    return tuple(lines if len(lines) > 1 else text.split())


def _words(text: str, name: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InputError(
            f"{name}: tokens are not valid JSON: a list of strings is wanted"
        ) from fault
    if isinstance(found, dict):
        found = found.get("tokens")
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise InputError(f"{name}: tokens are not a list of strings")
    return tuple(found)
