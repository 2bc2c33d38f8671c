"""What a batch was asked to do, as a file: two runs of one manifest make the same bytes.

What lives here: the manifest, comparing two of them, and refusing a folder that holds another run.
What does not: writing shards (``shards``) or doing the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnviz import __version__
from attnviz.errors import InputError, UsageError
from attnviz.runs.batch.inputs import Input
from attnviz.runs.batch.tables import HEADS, TEXTS

SCHEMA = "attnviz.batch/1"
NAME = "manifest.json"
_SHOWN = 3
_FREE = (("source", "name"),)
"""What may differ: a model's folder may be renamed, its content may not change."""


def make_manifest(
    *,
    settings: Mapping[str, Any],
    source: Mapping[str, Any],
    inputs: Sequence[Input],
    shard_size: int,
) -> dict[str, Any]:
    """Return everything that decides the bytes of a batch.

    Parameters
    ----------
    settings
        Options by name, as the user gave them; None where not given.
    source
        What attention came from: name, hash, sizes, device, precision.
    """
    n_texts = sum(one.rows for one in inputs)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "settings": {name: value for name, value in sorted(settings.items()) if value is not None},
        "source": dict(source),
        "inputs": [
            {"name": one.name, "format": one.format, "sha256": one.sha256, "rows": one.rows}
            for one in inputs
        ],
        "n_texts": n_texts,
        "shard_size": shard_size,
        "n_shards": -(-n_texts // shard_size),
        "columns": {
            name: {column.name: f"{column.type}: {column.meaning}" for column in columns}
            for name, columns in (("heads", HEADS), ("texts", TEXTS))
        },
    }


def dump(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest's bytes."""
    return (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()


def load(data: bytes, *, folder: str) -> dict[str, Any]:
    """Read a manifest.

    Raises
    ------
    InputError
        Not a manifest, or one of another version of the schema.
    """
    try:
        found = json.loads(data)
        schema = found["schema"]
        complete = isinstance(found["n_shards"], int) and isinstance(found["settings"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{folder}/{NAME} is no manifest of a batch: choose another folder"
        ) from None
    if schema != SCHEMA or not complete:
        raise InputError(f"{folder}/{NAME} has schema {schema!r}: {SCHEMA!r} is known")
    return dict(found)


def refuse_other(held: Mapping[str, Any], wanted: Mapping[str, Any], *, folder: str) -> None:
    """Refuse a folder that holds a run of other settings, inputs or another source.

    Raises
    ------
    UsageError
        Naming what differs: the value held and the value asked for.
    """
    found = list(differences(held, wanted))
    if not found:
        return
    shown = "; ".join(f"{name} {_show(a)} there, {_show(b)} here" for name, a, b in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise UsageError(
        f"{folder} holds another batch: {shown}{more}; choose another folder, or give the same "
        "command to continue it"
    )


def differences(
    held: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, held, wanted) of everything that differs, options by their names.

    Examples
    --------
    >>> a = {"settings": {"head": "all", "n_links": 3}, "shard_size": 10}
    >>> b = {"settings": {"head": "all", "n_links": 5}, "shard_size": 20}
    >>> list(differences(a, b))
    [('--n-links', 3, 5), ('--shard-size', 10, 20)]
    """
    for place in ("version", "settings", "source", "inputs", "shard_size", "columns"):
        a, b = held.get(place), wanted.get(place)
        if a == b:
            continue
        if place == "inputs" and isinstance(a, list) and isinstance(b, list):
            yield from _differing_inputs(a, b)
        elif isinstance(a, dict) and isinstance(b, dict):
            for name in dict.fromkeys((*a, *b)):
                is_told = (place, name) not in _FREE
                if is_told and a.get(name) != b.get(name):
                    shown = _option(name) if place == "settings" else f"{place} {name}"
                    yield shown, a.get(name), b.get(name)
        else:
            yield (_option(place) if place == "shard_size" else place), a, b


def _differing_inputs(a: list[Any], b: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    if len(a) != len(b):
        yield "inputs", len(a), len(b)
        return
    for one, other in zip(a, b, strict=True):
        for name in ("name", "format", "rows", "sha256"):
            if one.get(name) != other.get(name):
                what = {"sha256": "content of", "rows": "lines of"}.get(name, name + " of")
                yield f"{what} input {one.get('name')}", one.get(name), other.get(name)
                break


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _show(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
