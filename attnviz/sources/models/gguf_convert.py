"""Turn a GGUF file into a model folder once, in the local cache, keyed by the file's hash.

Every setting and tensor is placed by our own account (``gguf_accounting``): the library's conversion
drops rope scaling, biases and softcaps, and draws random numbers for tensors that are missing.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, ResourceError
from attnviz.sources.models.cache import cache_folder, new_folder, sha256_of, sweep
from attnviz.sources.models.gguf import Gguf, read_gguf
from attnviz.sources.models.gguf_accounting import Account, account
from attnviz.sources.models.gguf_words import split_as_trained
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.library import load_transformers, require, version_of

_FLOAT_BYTES = 4
_MEANING = 3
"""Raised with every change of what a file is taken to mean: older conversions are made anew."""
_LEAST_LIMIT = 1024
_ENTRY_BYTES = 256
"""At most so many hold a tensor's type, its shape (4 axes) and where it is, in a header."""
_SIZE = re.compile(r"(?<!context_)(?<!temperature_)length$|count$|size$|rank$")
_REQUIRED = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
_SHOWN_BY = {
    "feed_forward_length": re.compile(r"\.ffn_(up|gate)\.weight$"),
    "expert_feed_forward_length": re.compile(r"\.ffn_(up|gate)_exps\.weight$"),
    "attention.head_count": re.compile(r"\.attn_(q|qkv|q_b)\.weight$"),
}


def converted(path: Path, *, notify: Callable[[str], None] = lambda _: None) -> Path:
    """Return the model folder of a GGUF file, made on first use.

    Parameters
    ----------
    path
        The file; it is checked before the library sees it.
    notify
        Told, once, that and where a conversion takes place.

    Raises
    ------
    InputError
        Not a sound file, or an architecture that the library cannot read.
    ResourceError
        No room for the float32 weights.

    Notes
    -----
    The first time some seconds for 135 M parameters, most of it the library's tokenizer; afterwards
    nothing. The folder holds float32 weights: 4 bytes a parameter.
    """
    require("transformers", "accelerate", "gguf")
    file = read_gguf(path)
    version = version_of("transformers")
    target = cache_folder() / "gguf" / f"{sha256_of(path)}-{version}-{_MEANING}"
    sweep(target.parent)
    if (target / "config.json").is_file():
        return target
    check_sizes(file)
    _check_room(file, target)
    notify(f"converting {path.name} once (later runs skip this) into {target.parent}")
    try:
        with new_folder(target) as folder:
            write_model(file, folder)
            _write_tokenizer(file, folder)
    except OSError as fault:
        raise ResourceError(
            f"cannot write the converted model: {fault.strerror or fault}"
        ) from fault
    return target


def write_model(file: Gguf, folder: Path) -> None:
    """Write config and weights of the library's model into a folder.

    Raises
    ------
    InputError
        A key or tensor that is missing, or whose meaning is not known.
    """
    found = account(file)
    (folder / "config.json").write_text(json.dumps(found.config, indent=1), encoding="utf-8")
    _write_weights(found, folder / "model.safetensors")


def _write_tokenizer(file: Gguf, folder: Path) -> None:
    transformers = load_transformers()
    path = file.path

    def make_tokenizer() -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(path.parent), local_files_only=True, trust_remote_code=False, gguf_file=path.name
        )
        split_as_trained(tokenizer, file)
        tokenizer.save_pretrained(str(folder))

    with contextlib.redirect_stderr(io.StringIO()):  # the library's progress bars
        guard(f"the tokenizer in {path.name}", make_tokenizer, hush=True)


def _write_weights(found: Account, target: Path) -> None:
    """Write parameters as float32 safetensors, one in memory at a time.

    Room for the header, which comes first, is left in front; the format lets it end in spaces.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    room = 64 + sum(len(json.dumps(name)) + _ENTRY_BYTES for name in found.parameters)
    reached = 0
    with target.open("wb") as stream:
        stream.seek(8 + room)
        for name, values in found.each():
            end = reached + values.nbytes
            header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [reached, end]}
            reached = end
            stream.write(values.astype("<f4", copy=False).data)
        text = json.dumps(header).encode().ljust(room)
        stream.seek(0)
        stream.write(len(text).to_bytes(8, "little") + text)


def check_sizes(file: Gguf) -> None:
    """Refuse settings that describe a larger model than the tensors hold, before one is built.

    Raises
    ------
    InputError
        Names the setting, its number and what the tensors show.
    """
    blocks = {n.split(".")[1] for n in file.tensors if n.startswith("blk.") and n.count(".") > 1}
    largest = max((max(tensor.shape) for tensor in file.tensors.values()), default=0)
    limits = {"block_count": len(blocks)}
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        limits["embedding_length"] = embedding.shape[-1]
    for name, pattern in _SHOWN_BY.items():
        rows = [t.shape[-2] for n, t in file.tensors.items() if pattern.search(n) and t.shape[1:]]
        if rows:
            limits[name] = max(rows)
    for name in _REQUIRED if blocks else ():
        if name in limits and not isinstance(file.setting(name), int | list):
            # the library would take its own default, of a large model
            raise InputError(
                f"{file.path.name} does not say {file.architecture[:40]}.{name}, but its tensors show "
                f"{limits[name]}: its metadata is damaged"
            )
    prefix = f"{file.architecture}."
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if name == key or not _SIZE.search(name):
            continue
        limit = limits.get(name, max(largest, _LEAST_LIMIT))
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not 0 <= number <= limit:
                raise InputError(
                    f"{file.path.name} says {key[:80]} = {number}, but its tensors show at most "
                    f"{limit}: they do not belong together"
                )
    words = file.metadata.get("tokenizer.ggml.tokens")
    if embedding is not None and isinstance(words, list) and len(words) > 2 * embedding.shape[0]:
        raise InputError(
            f"{file.path.name} names {len(words)} words, but has vectors for {embedding.shape[0]}"
        )


def _check_room(file: Gguf, target: Path) -> None:
    wanted = _FLOAT_BYTES * sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    place = next(p for p in target.parents if p.exists())
    free = shutil.disk_usage(place).free
    if wanted * 1.1 > free:
        raise ResourceError(
            f"{file.path.name} takes {wanted / 1e9:.1f} GB as float32, but {place} has "
            f"{free / 1e9:.1f} GB free: set XDG_CACHE_HOME to a larger disk"
        )
