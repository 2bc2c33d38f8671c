"""Open a trained model with whoever runs it: the light engine where it is proved, or the library."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, UsageError
from attnviz.registry import no_such_choice
from attnviz.sources.families.binding import bind, read_family
from attnviz.sources.families.engine import Engine, Tell
from attnviz.sources.families.proof import Proof, kept_proof, prove
from attnviz.sources.families.settings import Lacks, NotOurs, read_scale_block
from attnviz.sources.families.source import LightSource
from attnviz.sources.families.tokenizing import open_kept
from attnviz.sources.families.weights import open_safetensors
from attnviz.sources.models.files import ModelFiles, find_model, read_config, read_json

ENGINES = ("auto", "light", "library")
"""Who runs a model."""

_PAIRS = frozenset({"t5", "mt5", "umt5"})
_PLAIN_WRITING = frozenset(
    ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "do_sample",
     "temperature", "top_k", "top_p", "transformers_version", "max_length", "max_new_tokens",
     "_from_model_config", "cache_implementation", "use_cache", "typical_p", "min_p")
)  # fmt: skip


def try_light(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    which: str | None = None,
    max_tokens: int | None = None,
    target: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
    tell: Tell | None = None,
) -> LightSource | None:
    """Open a model with the light engine, or leave it to the library.

    Parameters
    ----------
    engine
        ``light``: our own engine, proved on this model or not. ``library``: ``transformers``.
        ``auto``: the light engine on a CPU in float32 where it was compared with the library on
        this very model and agrees, or where the library is not installed; else the library.
    device, dtype
        Where and in what precision the model runs; ``auto`` is a GPU where there is one.
    which, max_tokens, target, notify
        As of ``sources.models.source.open_model``.
    tell
        Told how many layers of how many are done.

    Returns
    -------
    LightSource, or None: the library is to run it

    Raises
    ------
    UsageError
        No such engine.
    InputError
        The light engine was asked for by name and does not run this model; or no model there, not
        whole, or hostile.
    """
    if engine not in ENGINES:
        raise UsageError(no_such_choice("engine", engine, ENGINES))
    if engine == "library":
        return None
    is_asked_for = engine == "light"
    why = _why_not(device, dtype, target, is_asked_for=is_asked_for)
    if why is None:
        try:
            return open_light(
                path,
                is_asked_for=is_asked_for,
                which=which,
                max_tokens=max_tokens,
                notify=notify,
                tell=tell,
            )
        except NotOurs as fault:
            why = str(fault)
    if is_asked_for:
        raise InputError(f"the light engine does not run this model: {why}; use --engine auto")
    return None


def _why_not(device: str, dtype: str, target: str | None, *, is_asked_for: bool) -> str | None:
    """Return why the light engine cannot do what is asked, or None."""
    if dtype != "float32":
        return f"it works in float32, not in {dtype}"
    if target is not None:
        return "it does not run decoders behind an encoder"
    if device not in ("auto", "cpu"):
        return f"it works on the CPU, not on {device}"
    if device == "auto" and not is_asked_for and may_have_gpu():
        return "there is a GPU"
    return None


def may_have_gpu() -> bool:
    """True where torch might find a GPU; found out without importing it."""
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    return any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def open_light(
    path: str | os.PathLike[str],
    *,
    is_asked_for: bool = False,
    which: str | None = None,
    max_tokens: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
    tell: Tell | None = None,
) -> LightSource:
    """Open a model with the light engine, compared with the library where it is installed.

    Parameters
    ----------
    is_asked_for
        Open it also where the comparison found it to differ.

    Raises
    ------
    NotOurs
        A model, config or tensor that no family here knows, or one it was found to differ on.
    """
    files = find_model(path)
    sha256 = files.sha256()
    engine, config, config_sha256 = open_engine(files, sha256, which=which)
    is_pair = config.get("model_type") in _PAIRS
    tokenizer = open_kept(files, notify=notify)  # before the comparison, which takes seconds
    proof = kept_proof(sha256, config)
    has_library = all(importlib.util.find_spec(m) for m in ("transformers", "torch"))
    if proof is None and has_library:
        try:
            proof = prove(engine, files, config, sha256, notify=notify)
        except InputError as fault:
            if not is_asked_for:
                raise NotOurs(f"the library could not be compared with: {fault}") from fault
        engine = Engine(engine.family, engine.weights)
    engine.tell = tell
    if proof is not None and not proof.holds and not is_asked_for:
        raise NotOurs(
            f"its weights differ from the library's by {proof.weights:.0e}, its final states by "
            f"{proof.states:.0e}"
        )
    return LightSource(
        files=files,
        sha256=sha256,
        config_sha256=config_sha256,
        config=config,
        tokenizer=tokenizer,
        engine=engine,
        proof=proof,
        which="encoder" if is_pair else "self",
        max_tokens=max_tokens,
        notices=_notices(proof),
        writing=_writing_keys(files) - _PLAIN_WRITING,
    )


def open_engine(
    files: ModelFiles, sha256: str, *, which: str | None = None
) -> tuple[Engine, dict[str, Any], str]:
    """Map a model's weights and bind them to its family: the engine, the config, the config's hash.

    Raises
    ------
    NotOurs
        A model, config or tensor that no family here knows.
    InputError
        A GGUF that lacks a tensor, or a file that is not sound.
    """
    if files.kind == "gguf":
        from attnviz.sources.families.gguf_view import open_view, read_view

        view = read_view(files.weights[0], sha256)
        config, config_sha256, stored = dict(view.config), sha256, open_view(view)
    else:
        config, config_sha256 = _read_folder(files)
        stored = open_safetensors(files.weights)
    kind = str(config.get("model_type"))
    if which not in (None, "encoder" if kind in _PAIRS else "self"):
        raise NotOurs(f"it does not run {which} attention of a model of the kind {kind[:40]}")
    family = read_family(config)
    stored.scale_block = read_scale_block(config)
    try:
        return Engine(family, bind(family, stored)), config, config_sha256
    except Lacks as fault:
        if files.kind == "gguf":  # the library would fill it with random numbers
            raise InputError(f"{files.name}: {fault}") from fault
        raise


def held_by_a_run(path: str | os.PathLike[str], n_parameters: int) -> tuple[str, int]:
    """Return who would run a model on a CPU, and about how many bytes of weights are in memory at a time.

    The light engine holds two layers in float32, one in use and one that is being read; the library
    holds all ``n_parameters``. What a text itself needs comes on top. No weights are read.
    """
    files = find_model(path)
    try:
        engine, _, _ = open_engine(files, files.sha256())
    except NotOurs as fault:
        return f"the library: {fault}", 4 * n_parameters
    except InputError as fault:
        return f"nothing: {fault}", 0
    return "the light engine", min(2 * engine.layer_bytes(), 4 * n_parameters)


def _notices(proof: Proof | None) -> tuple[str, ...]:
    if proof is None:
        return ("not proved on this model: no comparison with the library was possible here",)
    if not proof.holds:
        return (
            f"the light engine was asked for, but differs from the library on this model: weights "
            f"by {proof.weights:.0e}, final states by {proof.states:.0e}",
        )
    return ()


def _read_folder(files: ModelFiles) -> tuple[dict[str, Any], str]:
    """Return a folder's config, and the hash of the file that says it."""
    config = read_config(files.folder)
    digest = hashlib.sha256((files.folder / "config.json").read_bytes()).hexdigest()
    more = files.folder / "generation_config.json"
    if more.is_file():
        ends = read_json(more).get("eos_token_id")
        config["eos_token_id"] = ends if ends is not None else config.get("eos_token_id")
    return config, digest


def _writing_keys(files: ModelFiles) -> frozenset[str]:
    path = files.folder / "generation_config.json"
    if files.kind == "gguf" or not path.is_file():
        return frozenset()
    return frozenset(key for key, value in read_json(path).items() if value is not None)
