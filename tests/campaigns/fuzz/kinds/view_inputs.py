"""GGUF files as the light engine reads them: settings, tensors and blocks of every type, damaged."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from fuzz.kinds import Kind
from fuzz.kinds.gguf_inputs import make as make_file
from fuzz.kinds.light import run_light


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a tiny Llama with something wrong, as for the reader itself."""
    return make_file(draw)


def prepare(folder: Path) -> None:
    """Load what dequantises."""
    import gguf.quants  # noqa: F401


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Run it from the file, and a second time from what was kept of it."""
    from attnviz.sources.models.cache import cache_folder

    path = folder / "a.gguf"
    key = hashlib.sha256(files.get("a.gguf", b"")).hexdigest()
    try:
        run_light(path, key)
        return run_light(path, key)
    finally:
        shutil.rmtree(cache_folder() / "gguf-view", ignore_errors=True)


KIND = Kind(make, read, prepare)
