"""What the light engine keeps in the cache: a file's view, a proof, a tokenizer, each damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.drawing import VALUES, change_bytes, change_json, often
from fuzz.kinds import Kind
from fuzz.kinds.gguf_inputs import write_sound
from fuzz.kinds.light import run_light
from fuzz.kinds.tokenizer_inputs import TEXT
from fuzz.kinds.tokenizer_inputs import make as make_tokenizer

_PROOF = {"weights": 1e-7, "states": 2e-7, "n_layers": 1}
_KEY, _CONFIG = "a hash", {"model_type": "llama"}


@cache
def _view() -> dict[str, Any]:
    """Return what is kept of the sound file."""
    import tempfile

    from attnviz.sources.families.gguf_view import kept_of
    from attnviz.sources.models.gguf import read_gguf

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.gguf"
        write_sound(path)
        made: dict[str, Any] = json.loads(json.dumps(kept_of(read_gguf(path))))
    return made


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Damage one of the three."""
    which = draw.random()
    if which < 0.12:
        return {"tokenizer": make_tokenizer(draw)["tokenizer.json"]}
    name, made = ("view", _view()) if which < 0.7 else ("proof", _PROOF)
    for _ in often(draw):
        made = change_json(made, draw, VALUES)
    data = json.dumps(made).encode()
    return {name: change_bytes(data, draw) if draw.random() < 0.2 else data}


def prepare(folder: Path) -> None:
    """Write the file that the view is of, and load what reads tokenizers."""
    from fuzz.kinds import tokenizer_inputs

    (folder / "t").mkdir()
    tokenizer_inputs.KIND.prepare(folder / "t")
    write_sound(folder / "a.gguf")


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Put it where it is kept, and open what it belongs to."""
    from attnviz.sources.families import gguf_view, proof, tokenizing
    from attnviz.sources.models.cache import cache_folder

    ((name, data),) = files.items()
    if name == "tokenizer":
        made = tokenizing.read_kept(folder / name)
        tokens = made.tokenize(TEXT)
        assert len(tokens.labels) == len(tokens.ids) == len(tokens.spans), "tokens lost"
        return made
    kind = "gguf-view" if name == "view" else "proof"
    key = gguf_view.key_of(_KEY) if name == "view" else proof.key_of(_KEY, _CONFIG)
    place = cache_folder() / kind / f"{key}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    if name == "view":
        return run_light(folder / "a.gguf", _KEY)
    found = proof.kept_proof(_KEY, _CONFIG)
    return None if found is None else found.holds


KIND = Kind(make, read, prepare, room_bytes=2 << 30)
