"""What is fuzzed, one file a kind: how inputs are made, and how the program reads them."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "safetensors",
    "npz",
    "pt",
    "tokenizer",
    "gguf",
    "config",
    "text",
    "mapped",
    "view",
    "kept",
    "families",
)
PLANTED = ("planted-value", "planted-fault", "planted-hang", "planted-sleep", "planted-abort",
           "planted-growth", "planted-resource", "planted-long", "planted-loss", "planted-print",
           "planted-slow")  # fmt: skip
REGRESSIONS = Path(__file__).parents[1] / "regressions"


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    Parameters
    ----------
    make
        ``make(draw)`` returns the bytes of one input's files by their relative path; the same
        ``draw`` gives the same bytes.
    read
        ``read(folder, files)`` reads the input that lies in ``folder`` the way the program does.
        It returns, or raises one of ``attnviz.errors``; anything else is a fault.
    prepare
        Makes the sound files that inputs replace, and loads the libraries.
    room_bytes
        Address space that a worker may take beyond what it has after ``prepare``: a request for
        more fails, and is a fault.
    allowed
        Exit codes that are an answer.
    """

    make: Callable[[random.Random], Mapping[str, bytes]]
    read: Callable[[Path, Mapping[str, bytes]], object]
    prepare: Callable[[Path], None] = lambda _: None
    room_bytes: int = 768 << 20
    allowed: tuple[int, ...] = (2, 3)


def load(name: str) -> Kind:
    """Return a kind by its name."""
    if name in PLANTED:
        from fuzz.kinds.planted import planted

        return planted(name)
    kind: Kind = importlib.import_module(f"fuzz.kinds.{name}_inputs").KIND
    return kind


def make(name: str, seed: int, number: int) -> Mapping[str, bytes]:
    """Make one input: the same kind, seed and number always give the same bytes.

    Seed 0 begins with the kept inputs of ``regressions``.
    """
    cases = kept(name) if seed == 0 else ()
    if number < len(cases):
        case = cases[number]
        files = sorted(path for path in case.rglob("*") if path.is_file())
        return {str(path.relative_to(case)): path.read_bytes() for path in files}
    return load(name).make(random.Random(f"{name} {seed} {number}"))


def kept(name: str) -> list[Path]:
    """Return the folders of the kept inputs of a kind."""
    return sorted((REGRESSIONS / name).glob("*"))


def n_cases(name: str) -> int:
    """Return how many inputs of a kind are kept."""
    return len(kept(name))
