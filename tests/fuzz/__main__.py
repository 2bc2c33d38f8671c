"""``make fuzz SECONDS=60``: every kind for its share of the time, a table, the counts added."""

from __future__ import annotations

import argparse
import sys

from fuzz.campaign import Figures, run
from fuzz.keeping import add, keep_input, next_seed
from fuzz.kinds import NAMES

HEAD = ("kind", "seed", "inputs", "opened", "refused", "per s", "slowest s (cpu)", "(clock)",
        "growth MB", "faults")  # fmt: skip


def main(arguments: list[str]) -> int:
    """Fuzz; return 1 where anything but a value or one of our errors came out."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all kinds together")
    parser.add_argument("--kind", action="append", choices=NAMES, help="only these; repeatable")
    parser.add_argument("--count", type=int, help="inputs per kind, however long it takes")
    parser.add_argument("--seed", type=int, help="default: the next that was not used")
    parser.add_argument("--no-count", action="store_true", help="leave counts.json alone")
    asked = parser.parse_args(arguments)
    kinds = asked.kind or list(NAMES)
    share = 1e9 if asked.count else asked.seconds / len(kinds)
    print(" | ".join(HEAD), flush=True)
    every: list[Figures] = []
    for kind in kinds:
        seed = asked.seed or next_seed(kind)
        found = run(kind, seed=seed, count=asked.count or 1 << 40, seconds=share)
        every.append(found)
        print(row(found), flush=True)
        if not asked.no_count and not add(found):
            print(f"{kind}: seed {seed} was counted before: not added")
    faults = [fault for found in every for fault in found.faults]
    for fault in faults:
        kept = keep_input(fault)
        print(f"{fault.kind} seed {fault.seed} input {fault.number}: {fault.what}\n  kept: {kept}")
    return 1 if faults else 0


def row(found: Figures) -> str:
    """Return one line of the table.

    >>> row(Figures("gguf", 1, inputs=100, opened=40, refused=60, took_s=2.0))
    'gguf | 1 | 100 | 40 | 60 | 50 | 0.000 | 0.000 | 0 | 0'
    """
    cells = (
        found.kind, found.seed, found.inputs, found.opened, found.refused,
        f"{found.inputs / max(found.took_s, 1e-9):.0f}", f"{found.slowest_cpu_s:.3f}",
        f"{found.slowest_s:.3f}", round(found.growth_bytes / (1 << 20)), len(found.faults),
    )  # fmt: skip
    return " | ".join(map(str, cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
