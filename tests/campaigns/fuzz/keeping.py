"""What the fuzzing keeps on disk: counts of what was tried, and inputs that must never fail again.

What lives here: ``counts.json`` and ``regressions/``. What does not: running anything.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz.campaign import Fault, Figures
from fuzz.kinds import NAMES, REGRESSIONS, make

HERE = Path(__file__).parent
COUNTS = HERE / "counts.json"
_MAX_KEPT_BYTES = 1 << 20


def read_counts(path: Path = COUNTS) -> dict[str, dict[str, Any]]:
    """Return what was tried, by kind."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def next_seed(kind: str, path: Path = COUNTS) -> int:
    """Return a seed that was not used yet."""
    return max((run["seed"] for run in _runs(read_counts(path), kind)), default=0) + 1


def _runs(counts: Mapping[str, Any], kind: str) -> list[dict[str, int]]:
    return list(counts.get(kind, {}).get("seeds", []))


def add(found: Figures, path: Path = COUNTS) -> bool:
    """Add figures to the counts, once per seed; return False where the seed was counted already."""
    with _alone(path):
        counts = read_counts(path)
        runs = _runs(counts, found.kind)
        if any(run["seed"] == found.seed for run in runs):
            return False
        old = counts.get(found.kind, {})
        counts[found.kind] = {
            "inputs": old.get("inputs", 0) + found.inputs,
            "opened": old.get("opened", 0) + found.opened,
            "refused": old.get("refused", 0) + found.refused,
            "faults": old.get("faults", 0) + len(found.faults),
            "slowest_cpu_s": max(old.get("slowest_cpu_s", 0.0), round(found.slowest_cpu_s, 3)),
            "slowest_s": max(old.get("slowest_s", 0.0), round(found.slowest_s, 3)),
            "growth_mb": max(old.get("growth_mb", 0), round(found.growth_bytes / (1 << 20))),
            "seeds": [*runs, {"seed": found.seed, "inputs": found.inputs}],
        }
        order = [kind for kind in NAMES if kind in counts]
        text = json.dumps({kind: counts[kind] for kind in order}, indent=2)
        new = path.with_suffix(".new")
        new.write_text(text + "\n")
        os.replace(new, path)
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def keep_input(fault: Fault, folder: Path = REGRESSIONS) -> Path | None:
    """Write the files of a faulty input, to be read again by the tests; None where too large."""
    files = make(fault.kind, fault.seed, fault.number)
    if sum(map(len, files.values())) > _MAX_KEPT_BYTES:
        return None
    return write_case(folder / fault.kind / f"{fault.seed}-{fault.number}", files)


def write_case(case: Path, files: Mapping[str, bytes]) -> Path:
    """Write the files of one input below a folder."""
    for name, data in files.items():
        path = case / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return case


def read_cases(kind: str, folder: Path = REGRESSIONS) -> dict[str, dict[str, bytes]]:
    """Return every kept input of a kind by its name."""
    found: dict[str, dict[str, bytes]] = {}
    for case in sorted((folder / kind).glob("*")):
        files = sorted(path for path in case.rglob("*") if path.is_file())
        found[case.name] = {str(path.relative_to(case)): path.read_bytes() for path in files}
    return found
