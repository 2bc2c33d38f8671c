"""The same from outside: ``strace`` makes the N-th write, rename or fsync of the real command fatal.

A few points by default; ``ATTNVIZ_SWEEP=1`` takes every one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import count, product
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
CALLS = ("write", "rename", "fsync")
KINDS = ("signal=KILL", "error=ENOSPC", "error=EIO")
OPTIONS = ("-w", "random", "--d-model", "8", "--d-k", "4", "-f", "jsonl", "--shard-size", "1",
           "--engine", "serial", "-q")  # fmt: skip


def run(folder: Path, *before: str) -> int:
    command = [
        *before,
        sys.executable,
        "-m",
        "attnviz",
        "batch",
        "texts.txt",
        "-o",
        "out",
        *OPTIONS,
    ]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    ).returncode


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): b"" if p.name == ".lock" else p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file()
    }


def inject(folder: Path, call: str, kind: str, number: int) -> int:
    """Run the command with the N-th of its calls broken."""
    which = {"write": "write", "rename": "rename,renameat,renameat2", "fsync": "fsync"}[call]
    return run(folder, "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={which}",
               "-e", f"inject={which}:{kind}:when={number}")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("A cute teddy bear\nis reading\n")
    works = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False
    )
    if works.returncode:
        pytest.skip("this system forbids tracing")
    return tmp_path


def test_points_from_outside(folder: Path) -> None:
    assert run(folder) == 0
    clean = tree(folder / "out")
    shutil.rmtree(folder / "out")
    few = {
        ("rename", "signal=KILL"): (3,),
        ("fsync", "error=ENOSPC"): (4,),
        ("write", "error=EIO"): (5,),
    }
    broken = 0
    for call, kind in product(CALLS, KINDS):
        numbers = count(1) if os.environ.get("ATTNVIZ_SWEEP") else few.get((call, kind), ())
        for number in numbers:
            code = inject(folder, call, kind, number)
            if code == 0:  # there is no N-th call any more
                break
            assert code in (-9, 137, 3, 4), (call, kind, number)
            broken += 1
            if (folder / "out").exists():
                for name, data in tree(folder / "out").items():
                    assert ".attnviz-" in name or data == clean[name], (call, kind, number, name)
            assert run(folder) == 0, (call, kind, number)
            assert tree(folder / "out") == clean, (call, kind, number)
            shutil.rmtree(folder / "out")
        shutil.rmtree(folder / "out", ignore_errors=True)
    print(f"{broken} points")
    assert broken >= 3
