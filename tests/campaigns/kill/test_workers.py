"""Workers die, are interrupted and compete; every text is accounted for and the bytes are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attnviz.errors import ResourceError
from attnviz.runs.batch.run import Request, run_batch

ROOT = Path(__file__).parents[3]
TINY = {"weights": "random", "d_model": 8, "d_k": 4}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture
def harmful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worker processes do what certain words in a text say; see ``poison/sitecustomize.py``."""
    notes = tmp_path / "notes"
    notes.mkdir()
    poison = Path(__file__).parent / "poison"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(poison), str(ROOT))))
    monkeypatch.setenv("ATTNVIZ_TEST_NOTES", str(notes))
    return notes


def write_texts(path: Path, lines: list[str]) -> Request:
    path.write_text("\n".join(lines) + "\n")
    return Request((str(path),), TINY, format="jsonl", shard_size=100, engine="local", workers=2)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bytes_do_not_depend_on_workers(tmp_path: Path, workers: int) -> None:
    lines = [f"a bear {'reads ' * (i % 7)}{i}" for i in range(60)]
    request = replace(write_texts(tmp_path / "texts.txt", lines), shard_size=7, keep=("weights",))
    run_batch(replace(request, engine="serial"), tmp_path / "serial")
    run_batch(replace(request, workers=workers), tmp_path / "local")
    assert tree(tmp_path / "local") == tree(tmp_path / "serial")


def test_20_deaths_in_1000_texts_lose_nothing(tmp_path: Path, harmful: Path) -> None:
    lines = [f"the bear reads page {i}" for i in range(1000)]
    for k in range(20):
        lines[50 * k + 7] += f" once-{'cut' if k % 2 else 'run'}-{k}"
    request = write_texts(tmp_path / "texts.txt", lines)
    told: list[str] = []
    outcome = run_batch(request, tmp_path / "out", notify=told.append)
    assert (outcome.done, outcome.failed) == (1000, 0)
    assert len(list(harmful.iterdir())) == 20
    assert len(told) == 20
    assert all("signal 9 SIGKILL" in line for line in told)
    run_batch(replace(request, engine="serial"), tmp_path / "clean")
    assert tree(tmp_path / "out") == tree(tmp_path / "clean")


def test_a_poisonous_text_ends_in_errors_alone(tmp_path: Path, harmful: Path) -> None:
    lines = [f"the bear reads page {i}" for i in range(40)]
    lines[11] += " poison-cut"
    lines[23] += " poison-run"
    request = replace(write_texts(tmp_path / "texts.txt", lines), shard_size=20)
    trees = []
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        outcome = run_batch(replace(request, workers=workers), folder)
        assert (outcome.done, outcome.failed) == (38, 2)
        errors = [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]
        assert [error["line"] for error in errors] == [12, 24]
        assert all("killed 3 workers (signal 9 SIGKILL)" in error["error"] for error in errors)
        trees.append(tree(folder))
    assert trees[0] == trees[1]


def test_workers_that_never_come_up_end_the_batch(
    tmp_path: Path, harmful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNVIZ_TEST_NO_START", "1")
    with pytest.raises(ResourceError, match="no worker comes up"):
        run_batch(write_texts(tmp_path / "texts.txt", ["a bear"]), tmp_path / "out")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "attnviz", "batch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            found.append(int(entry.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "code", "after"),
    [
        (signal.SIGINT, 130, 0),
        (signal.SIGTERM, 143, 0),
        (signal.SIGINT, 130, 3),
        (signal.SIGTERM, 143, 3),
        (signal.SIGKILL, -9, 1),
    ],
)
def test_a_signal_ends_it_at_once_and_it_goes_on(
    tmp_path: Path, harmful: Path, number: int, code: int, after: int
) -> None:
    """Signals after a number of complete shards: exit code, how to go on, no worker left behind."""
    lines = [f"wait page {i}" for i in range(24)]
    request = replace(write_texts(tmp_path / "texts.txt", lines), shard_size=3)
    options = ["-w", "random", "--d-model", "8", "--d-k", "4", "-f", "jsonl", "--shard-size", "3"]
    folder = tmp_path / "out"
    batch = start(*request.inputs, "-o", str(folder), *options, "-j", "2")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        n_shards = len(list((folder / "shards").glob("[0-9]*.json")))
        if (folder / "manifest.json").exists() and n_shards >= after:
            break
        time.sleep(0.01)
    workers = children_of(batch.pid)
    sent = time.monotonic()
    batch.send_signal(number)
    _, said = batch.communicate(timeout=20)
    assert time.monotonic() - sent < 2
    assert batch.returncode == code
    if number != signal.SIGKILL:
        assert b"the same command continues in" in said
    assert b"Traceback" not in said
    assert workers
    while any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers):
        assert number == signal.SIGKILL  # then they notice when they next hear or speak
        assert time.monotonic() - sent < 5
        time.sleep(0.05)
    assert len(list((folder / "shards").glob("[0-9]*.json"))) < 8
    run_batch(request, folder)
    run_batch(replace(request, engine="serial"), tmp_path / "clean")
    assert tree(folder) == tree(tmp_path / "clean")


def test_an_interrupt_while_workers_are_started_stays_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnviz.runs.batch.engines import local

    class Interrupted(local.threading.Thread):  # type: ignore[name-defined]
        def start(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(local.threading, "Thread", Interrupted)
    request = write_texts(tmp_path / "texts.txt", ["a bear reads"])
    with pytest.raises(KeyboardInterrupt):
        run_batch(request, tmp_path / "out")


def test_of_eight_at_once_one_wins(tmp_path: Path, harmful: Path) -> None:
    write_texts(tmp_path / "texts.txt", ["hold"] * 20)
    folder = tmp_path / "out"
    texts = str(tmp_path / "texts.txt")
    all_of_them = [
        start(texts, "-o", str(folder), "-w", "random", "-f", "jsonl", "-j", "1") for _ in range(8)
    ]
    deadline = time.monotonic() + 60
    while sum(one.poll() is not None for one in all_of_them) < 7 and time.monotonic() < deadline:
        time.sleep(0.05)
    (harmful / "go").touch()
    said = [one.communicate(timeout=60)[1] for one in all_of_them]
    codes = sorted(one.returncode for one in all_of_them)
    assert codes == [0, 2, 2, 2, 2, 2, 2, 2]
    assert sum(b"is being written by another attnviz batch" in text for text in said) == 7
    rows = [
        line for file in (folder / "heads").iterdir() for line in file.read_bytes().split(b"\n")
    ]
    assert len(list(filter(None, rows))) == 20
