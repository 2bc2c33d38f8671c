"""docs/batch.md: its columns are those written, its examples run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnviz.runs.batch.tables import HEADS, TEXTS, Column

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "batch.md"


def table_of(columns: tuple[Column, ...]) -> str:
    rows = (f"| `{c.name}` | `{c.type}` | {c.meaning} |" for c in columns)
    return "\n".join(("| column | type | meaning |", "|---|---|---|", *rows))


@pytest.mark.parametrize(("name", "columns"), [("heads", HEADS), ("texts", TEXTS)])
def test_columns_are_those_written(name: str, columns: tuple[Column, ...]) -> None:
    """``ATTNVIZ_UPDATE_GOLDEN=1`` writes the tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    mark = f"<!-- columns: {name} -->\n\n"
    before, _, rest = text.partition(mark)
    held, _, after = rest.partition("\n\n## " if name == "texts" else "\n\n### ")
    if os.environ.get("ATTNVIZ_UPDATE_GOLDEN"):
        end = "\n\n## " if name == "texts" else "\n\n### "
        PAGE.write_text(before + mark + table_of(columns) + end + after, encoding="utf-8")
    else:
        assert held == table_of(columns)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder with what the examples need, and the command on the path."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "attnviz"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m attnviz "$@"\n')
    command.chmod(0o755)
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        (tmp_path / "corpus" / f"{name}.txt").write_text("A cute teddy bear\nis reading\n")
    shutil.copy(tmp_path / "corpus/a.txt", tmp_path / "sentences.txt")
    return tmp_path


def run_in(folder: Path, command: list[str], **more: str) -> str:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shell_examples_run(shell: Path) -> None:
    first, shares, slurm, loop, parallel = blocks("sh")
    run_in(shell, ["sh", "-c", first.splitlines()[0]])
    shutil.move(shell / "results", shell / "whole")
    run_in(shell, ["sh", "-c", shares])
    assert same(shell / "results", shell / "whole")
    shutil.rmtree(shell / "results")
    for task in ("0", "1"):
        run_in(shell, ["sh", "-c", slurm], SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="2")
    assert same(shell / "results", shell / "whole")
    shutil.rmtree(shell / "results")
    run_in(shell, ["sh", "-c", loop])
    run_in(shell, ["sh", "-c", parallel])
    for name in ("results/a", "results/b", "corpus/a.txt.results", "corpus/b.txt.results"):
        assert (shell / name / "errors.jsonl").exists()


def same(folder: Path, other: Path) -> bool:
    names = [
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file() and ".lock" not in p.name}
        for f in (folder, other)
    ]  # fmt: skip
    return names[0] == names[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_rule_for_make_runs(shell: Path) -> None:
    (rule,) = blocks("make")
    (shell / "Makefile").write_text(rule)
    run_in(shell, ["make", "results/a.md"])
    assert "L0.H0" in (shell / "results/a.md").read_text()


def test_python_examples_run(shell: Path) -> None:
    pytest.importorskip("pyarrow")
    run_in(shell, ["attnviz", "batch", "sentences.txt", "-o", "results", "--keep", "weights", "-q"])
    with_pandas, with_numpy = blocks("python")
    assert run_in(shell, [sys.executable, "-c", with_numpy]).startswith("(1, 1, ")
    pytest.importorskip("pandas", reason="needs pandas")
    assert "entropy" in run_in(shell, [sys.executable, "-c", with_pandas])
