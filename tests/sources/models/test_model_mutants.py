"""Damaged model files in numbers; with ``ATTNVIZ_MUTANTS=20000`` the slow test takes as many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

TESTS = Path(__file__).parents[2]
COUNTS = {"gguf": 1000, "tokenizer": 150, "config": 40}


def run(counts: dict[str, int], cache: Path) -> dict[str, dict]:
    """Run the mutants in a process of its own, so that a crash shows."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    done = subprocess.run(
        [sys.executable, str(TESTS / "mutants_of_models.py"), *(f"{k}:{n}" for k, n in counts.items())],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict, count: int, limit_s: float) -> None:
    assert found["faults"] == []
    assert found["opened"] + found["refused"] == count
    assert min(found["opened"], found["refused"]) > 0
    assert found["slowest_s"] < limit_s
    assert found["grown_mb"] < 512


def test_damaged_files_end_as_a_model_or_an_error(tmp_path: Path) -> None:
    """None slow, none large."""
    for kind, found in run(COUNTS, tmp_path).items():
        check(found, COUNTS[kind], 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_many_more_damaged_files(kind: str, tmp_path: Path) -> None:
    count = int(os.environ.get("ATTNVIZ_MUTANTS", "2000"))
    check(run({kind: count}, tmp_path)[kind], count, 5)
