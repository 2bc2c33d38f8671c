"""Kinds with a fault planted at input 3, to see that the harness reports each of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

from attnviz.errors import InputError, ResourceError
from fuzz.kinds import Kind

AT = 3


class Panic(BaseException):
    """Not an Exception, as the panics of native libraries are."""


def planted(name: str) -> Kind:
    """Return a kind whose input 3 does what its name says."""
    made = iter(range(1 << 30))

    def make(draw: random.Random) -> Mapping[str, bytes]:
        return {"input": draw.randbytes(8)}

    def read(folder: Path, files: Mapping[str, bytes]) -> object:
        number = next(made)
        if number % 2 == 0:
            raise InputError("refused, as half of them are")
        if number != AT:
            return (folder / "input").read_bytes()
        return ACTS[name]()

    return Kind(make, read)


def _fault() -> None:
    raise Panic("not one of ours")


def _hang() -> None:
    while True:
        pass


def _sleep() -> None:
    time.sleep(3600)


def _growth() -> bytes:
    return bytes(300 << 20).replace(b"\0", b"\1")


def _resource() -> None:
    raise ResourceError("asked for 32 GiB, which this machine does not have")


def _lines() -> None:
    raise InputError("two\nlines")


ACTS = {
    "planted-value": lambda: None,
    "planted-fault": _fault,
    "planted-hang": _hang,
    "planted-sleep": _sleep,
    "planted-abort": os.abort,
    "planted-growth": _growth,
    "planted-resource": _resource,
    "planted-lines": _lines,
    "planted-loss": lambda: os._exit(0),
}
