"""A model's tokenizer without the library of models: built by it once, kept, then read directly.

What ``AutoTokenizer`` makes of a folder or a GGUF file is written to the cache as one
``tokenizer.json``, keyed by the files' hashes and both libraries' versions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, UsageError
from attnviz.sources.models.cache import cache_folder, sha256_of
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.library import version_of
from attnviz.sources.models.tokenizer import (
    ModelTokenizer,
    added_by,
    check_files,
    family_name,
    open_raw,
)
from attnviz.sources.text.labels import read_family, tokens_of
from attnviz.sources.text.tokenizer_trial import try_out

_VERSION = "2"
_PATTERNS = ("*token*", "vocab*", "merges.txt", "*.model", "config.json")


def open_kept(files: ModelFiles, *, notify: Callable[[str], None]) -> ModelTokenizer:
    """Open a model's tokenizer; the first time the library builds it, where it is installed.

    Parameters
    ----------
    files
        Of a folder, or of a GGUF file.
    notify
        Told about slow first-time work.

    Raises
    ------
    InputError
        None there, damaged, or without source offsets.
    UsageError
        A GGUF file's, where the library is not installed.
    """
    place = _place(files)
    if place.is_file():
        with suppress(InputError):  # not what was written: it is built anew
            return read_kept(place)
    made = _make(files, notify=notify)
    _keep(made.tokenizer.to_str(), place)
    return made


def read_kept(place: Path) -> ModelTokenizer:
    """Open a tokenizer that was kept; one that was not seen before is tried out as any other.

    Raises
    ------
    InputError
        It is damaged.
    """
    tokenizer = open_raw(place)
    return _describe(tokenizer, try_out(place.read_bytes(), name=place.name))


def _describe(tokenizer: Any, digest: str) -> ModelTokenizer:
    def read() -> tuple[Any, str]:
        family = read_family(tokenizer)
        probe = tokens_of(tokenizer, "a", family=family)
        return family, f"{family_name(family)}, adds {added_by(probe)}"

    family, name = guard("the tokenizer", read, hush=True)
    return ModelTokenizer(tokenizer, family, name, digest)


def _place(files: ModelFiles) -> Path:
    if files.kind == "gguf":
        facts = [sha256_of(path) for path in files.weights]
    else:
        found = {path for pattern in _PATTERNS for path in files.folder.glob(pattern)}
        facts = [f"{path.name} {sha256_of(path)}" for path in sorted(found) if path.is_file()]
    facts += [_VERSION, version_of("transformers"), version_of("tokenizers")]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return cache_folder() / "tokenizers" / f"{key}.json"


def _make(files: ModelFiles, *, notify: Callable[[str], None]) -> ModelTokenizer:
    if importlib.util.find_spec("transformers") is None:
        if files.kind == "gguf":
            raise UsageError(
                "the tokenizer of a GGUF file needs transformers the first time: not installed; "
                "pip install 'attnviz[models]'"
            )
        check_files(files.folder)
        path = files.folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(f"{files.name} has no tokenizer.json: save its tokenizer as one")
        made = read_kept(path)
        told = "tokenizer.json is used as it is: transformers is not installed"
        return replace(made, notices=(told,))
    from attnviz.sources.models.tokenizer import open_tokenizer

    if files.kind != "gguf":
        return open_tokenizer(files.folder)
    return _from_gguf(files.weights[0], notify=notify)


def _from_gguf(path: Path, *, notify: Callable[[str], None]) -> ModelTokenizer:
    from attnviz.sources.models.gguf import read_gguf
    from attnviz.sources.models.gguf_words import split_as_trained
    from attnviz.sources.models.library import load_transformers
    from attnviz.sources.models.tokenizer import check_ids, describe

    notify(f"building the tokenizer of {path.name} once (later runs skip this)")
    transformers = load_transformers()

    def load() -> Any:
        made = transformers.AutoTokenizer.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
        split_as_trained(made, read_gguf(path))
        return getattr(made, "backend_tokenizer", None)

    tokenizer = guard(f"the tokenizer in {path.name}", load, hush=True)
    if tokenizer is None or not hasattr(tokenizer, "no_padding"):
        raise InputError(f"{path.name} has a tokenizer without source offsets")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_ids(path.name, tokenizer)
    return describe(tokenizer)


def _keep(text: str, place: Path) -> None:
    """Write a tokenizer into the cache in one step; a cache that cannot be written is left alone."""
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(name, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
