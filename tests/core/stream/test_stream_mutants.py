"""Break the torch cores one line at a time in a copy: their small tests must see every break.

torch is loaded once, in a fresh process; every mutant is a fork of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPTIONS = [
    "-x",
    "-q",
    "--assert=plain",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore",
    "--rootdir=.",
]
PACKAGE = "attnviz"
MUTANTS = {
    "attend: no scale": ("core/attend.py", 'stages["scores"] * heads.scale', 'stages["scores"]'),
    "attend: flipped mask": ("core/attend.py", "masked_fill(~visible,", "masked_fill(visible,"),
    "attend: wrong axis": (
        "core/attend.py",
        "grown_HLS.sum(-1, keepdim=True)",
        "grown_HLS.sum(-2, keepdim=True).mT[..., : grown_HLS.shape[-2], :]",
    ),
    "attend: no maximum": (
        "core/attend.py",
        "top_HL1 = top_HL1.masked_fill(~sees_HL1, 0.0)",
        "top_HL1 = torch.zeros_like(top_HL1)",
    ),
    "wrong kv head": (
        "core/placing.py",
        "head // group for head",
        "head % heads.n_kv_heads for head",
    ),
    "window off by one": ("masks.py", "return window - 1, 0", "return window, 0"),
    "stream: no scale": ("core/stream/job.py", "q_factor=head.scale * factor", "q_factor=factor"),
    "stream: flipped mask": (
        "core/stream/panels.py",
        "masked_fill_(~visible[0]",
        "masked_fill_(visible[0]",
    ),
    "stream: wrong axis": (
        "core/stream/sums.py",
        "block.sums_GS.sum(0)",
        "block.sums_GS.sum(1)[:1]",
    ),
    "stream: no maximum": (
        "core/stream/job.py",
        "needs_maximum=not is_safe",
        "needs_maximum=False",
    ),
    "stream: pieces not rescaled": ("core/stream/joined.py", "self.output_BF *= factor_B1", "pass"),
    "stream: edges never masked": (
        "core/stream/reach.py",
        "masked=not (",
        "masked=False and not (",
    ),
    "stream: seen by all off by one": (
        "core/stream/reach.py",
        "end = min(end, first + 1)",
        "end = min(end, first + 64)",
    ),
    "stream: cap forgotten": ("core/stream/panels.py", ".tanh_()", ""),
    "stream: sink forgotten": ("core/stream/joined.py", "+ torch.exp(job.sink - top_B1)", ""),
    "stream: later key wins a tie": (
        "core/stream/links.py",
        "torch.arange(last, -1, -1, device=a_BN.device)",
        "torch.arange(last + 1, device=a_BN.device)",
    ),
    "stream: distance shifted": (
        "core/stream/sums.py",
        "(rows[1] - 1) + self.n_queries",
        "rows[1] + self.n_queries",
    ),
    "stream: natural entropy": ("core/stream/joined.py", "safe_B1.log2()", "safe_B1.log()"),
    "stream: uneven cells": (
        "core/stream/sums.py",
        "-(-cell * n // n_cells) for cell",
        "cell * n // n_cells for cell",
    ),
}


def copy_project(target: Path) -> None:
    hidden = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "attnviz", target / "attnviz", ignore=hidden)
    (target / "tests").mkdir()
    for path in ("tests/core/test_attend.py", "tests/core/stream/test_stream.py"):
        shutil.copy(ROOT / path, target / "tests")


def run_tests(folder: Path) -> int:
    """Run the copy's tests in a fork of this process; return pytest's exit code."""
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.path.insert(0, str(folder))
        os._exit(pytest.main([*OPTIONS, "tests"]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_all() -> dict[str, int]:
    """Run the tests of the whole copy, then of every mutant: their exit codes by name."""
    import tempfile

    import torch

    torch.set_num_threads(1)
    codes = {}
    for name, (file, old, new) in {
        "unbroken": ("core/stream/stream.py", "", ""),
        **MUTANTS,
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            copy_project(Path(folder))
            path = Path(folder, PACKAGE, file)
            path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
            codes[name] = run_tests(Path(folder))
    return codes


def test_every_mutant_matches_one_place_in_the_code() -> None:
    for name, (file, old, _) in MUTANTS.items():
        assert (ROOT / PACKAGE / file).read_text(encoding="utf-8").count(old) == 1, name


def test_no_mutant_survives() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", __file__],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    codes = json.loads(done.stdout)
    assert codes == {"unbroken": 0, **dict.fromkeys(MUTANTS, 1)}


if __name__ == "__main__":
    print(json.dumps(run_all()))
