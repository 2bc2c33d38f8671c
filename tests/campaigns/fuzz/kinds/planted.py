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


def make(draw: random.Random) -> Mapping[str, bytes]:
    return {"input": draw.randbytes(8)}


def planted(name: str) -> Kind:
    """Return a kind whose input 3 of seed 1 does what its name says."""
    numbers = {make(random.Random(f"{name} 1 {i}"))["input"]: i for i in range(10)}

    def read(folder: Path, files: Mapping[str, bytes]) -> object:
        number = numbers[files["input"]]
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
    return b"\1" * (300 << 20)


def _resource() -> None:
    raise ResourceError("asked for 32 GiB, which this machine does not have")


def _long() -> None:
    raise InputError("x" * 5000)


def _print() -> None:
    os.write(1, b"\x1b[2J a library says this past sys.stdout")


def _slow() -> None:
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


ACTS = {
    "planted-print": _print,
    "planted-slow": _slow,
    "planted-value": lambda: None,
    "planted-fault": _fault,
    "planted-hang": _hang,
    "planted-sleep": _sleep,
    "planted-abort": os.abort,
    "planted-growth": _growth,
    "planted-resource": _resource,
    "planted-long": _long,
    "planted-loss": lambda: os._exit(0),
}
