"""Text that wants to steer a terminal, and what a terminal must not see of it."""

from __future__ import annotations

import io
import random
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import Any

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SGR = re.compile("\x1b\\[[0-9;]*m")
_PROGRESS = "\r\x1b[K"
SEQUENCES = (
    "\x1b[2J", "\x1b]0;owned\x07", "\x1b]8;;http://x\x1b\\y", "\x1bP+q\x1b\\", "\x9b31m", "\x1b[31m",
    "\x1b[999D", "\r", "\n", "\x08\x08", "\x7f", "\x0e", "\x1bc", "\x1b[?1049h", "\x1b[6n", "\t",
    "[red]", "[/red]", "[/]", "[link=http://x]", ":bear:", "{x}", "%s", "{0.__class__}", "\\",
    "<script>", "]]>", "|", "`", "$(id)", "=1+1", "@SUM(A1)", "'", '"', ",", ";", "--help",
)  # fmt: skip
_RANGES = (
    (0x00, 0x20), (0x7F, 0xA1), (0xAD, 0xAE), (0x300, 0x30A), (0x5D0, 0x5EB), (0x600, 0x606),
    (0x61C, 0x61D), (0x200B, 0x2010), (0x2028, 0x202F), (0x2060, 0x2070), (0x2400, 0x2422),
    (0x3000, 0x3001), (0x4E00, 0x4E20), (0xD800, 0xE010), (0xFDD0, 0xFDF0), (0xFE00, 0xFE10),
    (0xFEFF, 0xFF00), (0xFFF0, 0x10000), (0x1F300, 0x1F5FF), (0xE0000, 0xE0080),
    (0x10FFFE, 0x110000), (0x21, 0x7F),
)  # fmt: skip


def strings(count: int, *, seed: int) -> list[str]:
    """Return hostile strings of 1 to 12 pieces, the same for the same seed; none holds a 0."""
    draw = random.Random(seed)

    def piece() -> str:
        kind = draw.random()
        if kind < 0.25:
            return draw.choice(SEQUENCES)
        if kind < 0.9:
            first, last = draw.choice(_RANGES)
            return chr(draw.randrange(first, last))
        return chr(draw.randrange(0x110000))

    made = ("".join(piece() for _ in range(draw.randint(1, 12))) for _ in range(count))
    return [text.replace("0", "O") for text in made]


def steering(text: str, *, allowed: str = "\n") -> set[str]:
    """Return the characters of a screen that no screen may get; our own colours do not count."""
    rest = _SGR.sub("", text).replace(_PROGRESS, "")
    odd = {c for c in set(rest) if not c.isprintable() and c != " "}
    return {c for c in odd if unicodedata.category(c) in HIDDEN and c not in allowed}


class Stream(io.StringIO):
    """A stream that says of itself whether it is a terminal, and in what encoding."""

    encoding = "utf-8"

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(newline="")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass(frozen=True)
class Seen:
    """What a command left behind."""

    arguments: list[str]
    code: int
    out: str
    err: str

    def faults(self, *, allowed: str = "\n") -> list[str]:
        """Return what is wrong with it, in words; nothing for an orderly end."""
        found = [f"{c!r} on stdout" for c in steering(self.out, allowed=allowed)]
        found += [f"{c!r} on stderr" for c in steering(self.err)]
        if self.code not in (0, 1, 2, 3, 4):
            found.append(f"exit code {self.code}")
        for line in self.err.split("\n")[:-1]:
            kept = line.rpartition(_PROGRESS)[2]
            if not kept.startswith("attnviz: ") and "  ← " not in kept:
                found.append(f"stderr has {kept!r}")
        if "Traceback" in self.err and "--debug" not in self.arguments:
            found.append("a traceback")
        return [f"{ascii(self.arguments)[:300]}: {fault}" for fault in found]


def see(arguments: list[str], *, is_terminal: bool) -> Seen:
    """Run the command line in this process, on streams that keep what they are given."""
    from attnviz.cli.main import run_guarded

    kept: tuple[Any, Any] = sys.stdout, sys.stderr
    out, err = Stream(is_terminal=is_terminal), Stream(is_terminal=is_terminal)
    sys.stdout, sys.stderr = out, err
    try:
        code = run_guarded(arguments)
    finally:
        sys.stdout, sys.stderr = kept
    return Seen(arguments, code, out.getvalue(), err.getvalue())
