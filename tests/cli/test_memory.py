"""A run keeps to the memory it is allowed: refused before the work, with what would fit; never killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SENTENCE, Result, run_fresh

from attnviz import memory
from attnviz.errors import ResourceError
from attnviz.runs import run as limits

resource = pytest.importorskip("resource", reason="this system has no limits")
LONG = " ".join(["the cute teddy bear is reading a book"] * 200)


def test_the_room_is_the_smallest_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = {"_machine_room_bytes": 900, "_group_room_bytes": 500}
    for name, n_bytes in rooms.items():
        monkeypatch.setattr(memory, name, lambda n=n_bytes: n)
    assert memory.free_bytes() == 500
    assert memory.room_bytes() == 400
    for name in rooms:
        monkeypatch.setattr(memory, name, lambda: None)
    assert memory.free_bytes() is None
    assert memory.room_bytes() is None


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_count(name: str) -> None:
    code = (
        f"import resource\nresource.setrlimit(resource.{name}, (10**9, 10**9))\n"
        "from attnviz import memory\nprint(memory.free_bytes(), memory.cure())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    n_bytes, _, cure = done.stdout.partition(" ")
    assert 5 * 10**8 < int(n_bytes) < 10**9
    assert "--max-memory" in cure


def test_a_limit_is_kept_by_the_system_and_lifted_after(cli: Callable[..., Result]) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        memory.limit_own(0.6)
        assert memory.own_limit_bytes() == 600_000_000
        with pytest.raises(MemoryError):
            bytearray(700_000_000)
    finally:
        memory.lift_limit()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert cli("explain", SENTENCE, "--max-memory", "64").code == 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("amount", ["0.1", "-1", "nan", "inf", "1e300"])
def test_an_amount_that_is_none_is_a_mistake(cli: Callable[..., Result], amount: str) -> None:
    done = cli("explain", SENTENCE, "--max-memory", amount)
    assert (done.code, done.out) == (2, "")
    assert "give 0.3 (GB) or more" in done.err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("explain", LONG), "tokens; shorten the text"),
        (("heads", LONG, "-w", "sample-8"), "would fit (--max-tokens)"),
        (("summary", LONG), "ask for fewer figures"),
        (("compare", LONG, "a teddy bear"), "tokens; shorten the text"),
    ],
    ids=lambda v: v[0] if isinstance(v, tuple) else "",
)
def test_what_does_not_fit_is_refused_with_what_would(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(memory, "room_bytes", lambda: 2_000_000)
    done = cli(*command)
    assert (done.code, done.out) == (4, ""), done.err
    assert told in done.err
    assert "2 MB can be had" in done.err


def test_as_many_tokens_as_are_said_to_fit_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room_bytes", lambda: 10_000_000)
    with pytest.raises(ResourceError) as refused:
        limits.check_dense_size(1000, 1000, 2)
    n = int(str(refused.value).partition("which is ")[2].split()[0])
    limits.check_dense_size(n, n, 2)
    with pytest.raises(ResourceError):
        limits.check_dense_size(n + 1, n + 1, 2)


def test_a_plan_is_not_smaller_than_what_is_taken(tmp_path: Path) -> None:
    """Without this a plan would say yes, and the system no."""
    text = tmp_path / "long.txt"
    text.write_text(LONG)
    code = (
        "import resource, sys\nimport attnviz\n"
        "attnviz.explain('a b c')\nimport torch\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"trace = attnviz.explain(open({str(text)!r}).read(), dtype='float32')\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(1024 * (after - before), trace.stages['weights'].size)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken, cells = map(int, done.stdout.split())
    assert cells == 1600**2
    assert taken <= cells * limits.DENSE_CELL_BYTES


@pytest.mark.parametrize("gigabytes", ["0.3", "0.45"])
def test_the_real_limit_ends_as_an_answer_or_a_refusal(gigabytes: str, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(LONG)
    done = run_fresh(
        "explain", "--file", str(path), "-s", "weights", "-o", str(tmp_path / "t.npz"),
        "--max-memory", gigabytes,
    )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr
    assert b"Traceback" not in done.stderr
    assert (done.returncode == 4) == (b"error: " in done.stderr)
    assert (tmp_path / "t.npz").exists() == (done.returncode == 0)


def test_what_no_plan_foresaw_is_an_error_and_no_bug(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory: 8 bytes")

    monkeypatch.setattr("attnviz.runs.explain.explain", fail)
    done = cli("explain", SENTENCE)
    assert done.code == 4
    assert "out of memory" in done.err


def test_workers_share_what_is_allowed(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("A cute teddy bear is reading\n" * 8)
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = run_fresh(
        "batch", str(texts), "-o", str(tmp_path / "out"), "-j", "2", "--shard-size", "2",
        "-f", "jsonl", "--max-memory", "1", env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tight = run_fresh(
        "batch", str(texts), "-o", str(tmp_path / "tight"), "--shard-size", "2", "-f", "jsonl",
        "--max-memory", "0.3", env=env,
    )  # fmt: skip
    assert tight.returncode in (0, 4), tight.stderr
    assert b"Traceback" not in tight.stderr


def test_many_numbers_are_announced_before_they_are_written(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.cli.write._MANY_NUMBERS", 71)
    done = cli("explain", SENTENCE, "-s", "weights")
    assert "writing 72 numbers as text" in done.err
    assert cli("explain", SENTENCE, "-s", "weights", "--quiet").err == ""
    monkeypatch.undo()
    assert cli("explain", SENTENCE).err == ""
