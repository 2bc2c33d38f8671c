"""``make fuzz SECONDS=60``: every kind for its share of the time, a table, the counts added."""

from __future__ import annotations

import argparse
import sys

from fuzz.campaign import Figures, run
from fuzz.keeping import add, keep_input, next_seed, read_counts
from fuzz.kinds import NAMES

GOALS = {
    "safetensors": 200_000, "npz": 50_000, "pt": 2_000, "tokenizer": 20_000, "gguf": 20_000,
    "config": 20_000, "text": 10_000, "mapped": 20_000, "view": 20_000,
    "kept": 20_000, "families": 20_000,
}  # fmt: skip
"""How many inputs of each kind are to end as a value or an error of ours, all runs together."""
PART = 10_000

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
    parser.add_argument(
        "--complete", action="store_true",
        help="as many as the counts lack of their goals, however long it takes",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    kinds = asked.kind or list(NAMES)
    print(" | ".join(HEAD), flush=True)
    every: list[Figures] = []
    for kind in kinds:
        if asked.complete:
            every += _complete(kind)
        else:
            share = 1e9 if asked.count else asked.seconds / len(kinds)
            count = asked.count or 1 << 40
            every.append(_one(kind, asked.seed, count, share, is_counted=not asked.no_count))
        if every and every[-1].is_interrupted:
            break
    faults = [fault for found in every for fault in found.faults]
    for fault in faults:
        kept = keep_input(fault) if fault.number >= 0 else None
        print(f"{fault.kind} seed {fault.seed} input {fault.number}: {fault.what}\n  kept: {kept}")
    return 1 if faults else 0


def _one(kind: str, seed: int | None, count: int, seconds: float, *, is_counted: bool) -> Figures:
    """Run one seed of a kind, print its row, add it to the counts."""
    found = run(kind, seed=seed or next_seed(kind), count=count, seconds=seconds)
    print(row(found), flush=True)
    if is_counted and found.inputs and not add(found):
        print(f"{kind}: seed {found.seed} was counted before: not added")
    return found


def _complete(kind: str) -> list[Figures]:
    """Run what is missing of a kind's goal, in parts, so that an interruption loses little."""
    every: list[Figures] = []
    while (left := GOALS[kind] - read_counts().get(kind, {}).get("inputs", 0)) > 0:
        every.append(_one(kind, None, min(left, PART), 1e9, is_counted=True))
        if every[-1].is_interrupted or not every[-1].inputs:
            break
    return every


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
