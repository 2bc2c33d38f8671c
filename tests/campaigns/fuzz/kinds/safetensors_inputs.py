"""Safetensors files: header fields, offsets, types, shapes, names, metadata, and plain damage."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.drawing import VALUES, change_bytes, change_json, change_number, often
from fuzz.kinds import Kind
from fuzz.kinds.arrays import Array, draw_layer
from fuzz.kinds.layers import read_layer


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a layer, then break its header, its frame, or some bytes."""
    arrays, metadata = draw_layer(draw)
    return {"a.safetensors": damage(arrays, metadata, draw)}


def damage(arrays: list[Array], metadata: Mapping[str, str], draw: random.Random) -> bytes:
    """Return arrays as one file, its header, its frame or some bytes broken."""
    header: Any = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for array in arrays:
        place = [len(data), len(data) + len(array.data)]
        header[array.name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": place}
        data += array.data
    change = draw.random()
    if change < 0.35:
        for _ in often(draw):
            header = _change_header(header, draw)
    text = json.dumps(header, separators=draw.choice(((",", ":"), None))).encode()
    if change > 0.9:
        text = _change_text(text, draw)
    text += b" " * (-len(text) % 8)
    size = len(text)
    if 0.35 < change < 0.42:
        size = draw.choice((change_number(size, draw), size + 1, size - 1, len(text) + len(data)))
    made = (size & ((1 << 64) - 1)).to_bytes(8, "little") + text + data
    if 0.42 < change < 0.55:
        made = change_bytes(made, draw)
    elif 0.55 < change < 0.6:
        made = made[: draw.randrange(len(made) + 1)] if draw.random() < 0.7 else made + b"\0"
    return made


def _change_header(header: Any, draw: random.Random) -> Any:
    if not isinstance(header, dict) or not header:
        return header
    made = dict(header)
    name = draw.choice(list(made))
    entry = made[name]
    if name == "__metadata__" or not isinstance(entry, dict) or draw.random() < 0.25:
        return change_json(made, draw)
    entry = dict(entry)
    made[name] = entry
    field = draw.choice(("dtype", "shape", "data_offsets"))
    value = entry.get(field)
    if isinstance(value, list) and value and draw.random() < 0.8:
        value = list(value)
        place = draw.randrange(len(value))
        value[place] = (
            change_number(value[place], draw) if type(value[place]) is int else draw.choice(VALUES)
        )
        entry[field] = value
    else:
        entry[field] = draw.choice((*VALUES, "F4", "F6_E2M3", "F32", "f32", "BOOL", "C64"))
    return made


def _change_text(text: bytes, draw: random.Random) -> bytes:
    change = draw.random()
    if change < 0.2:  # every key twice
        return text[:-1] + b"," + text[1:]
    if change < 0.3:
        return b'{"a":' * draw.choice((10, 60, 1000, 30_000)) + text
    if change < 0.4:
        return text.replace(b"[", b"[" * draw.choice((2, 100, 2000)), 1)
    if change < 0.5:
        return text.replace(b"0", draw.choice((b"1e5", b"0.0", b"-0", b"0x1", b"9" * 5000)), 2)
    if change < 0.6:
        return draw.choice((b" ", b"\xef\xbb\xbf", b"\n", b"\0")) + text
    if change < 0.7:
        return text + draw.choice((b"\0" * 8, b"}", b"{}", b"\n", b" " * 4096))
    if change < 0.8:
        return text.decode().encode(draw.choice(("utf-16", "utf-32", "utf-16-be")))
    return change_bytes(text, draw, most=2)


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read it as every command with ``--weights`` does."""
    return read_layer(folder / "a.safetensors")


KIND = Kind(make, read)
