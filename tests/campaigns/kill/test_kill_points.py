"""The N-th call that changes the disk is fatal, or fails, for every N: nothing lost, doubled or torn.

After each, what stands under a final name is what an undisturbed run puts there, and the same
command finishes to a folder that is byte for byte the same. Children are forked with a source
that is open already, so that hundreds of points take seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from injector import KINDS, Injector

from attnviz.errors import AttnvizError
from attnviz.runs.batch.engines import serial
from attnviz.runs.batch.run import Request, run_batch
from attnviz.runs.batch.shards import _LOCK, _TEMPORARY
from attnviz.runs.batch.work import Worker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
TEXTS = b"A cute teddy bear\nis reading\n\ncaf\xe9\nthe river\n"
KILLED, FAILED, DONE, WRONG = -9, 40, 0, 41


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory where there is one: what is tested is the order of calls."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def request_of(place: Path) -> Iterator[Request]:
    texts = place / "texts.txt"
    texts.write_bytes(TEXTS)
    request = Request((str(texts),), {"weights": "random", "d_model": 8, "d_k": 4}, format="jsonl",
                      shard_size=2, engine="serial")  # fmt: skip
    opened = Worker(request.work())
    patch = pytest.MonkeyPatch()
    patch.setattr(serial, "Worker", lambda _: opened)
    yield request
    patch.undo()


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; return its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = WRONG
        try:
            work()
            code = DONE
        except AttnvizError as fault:
            code = FAILED if fault.exit_code in (3, 4) and "\n" not in str(fault) else WRONG
        except BaseException as fault:
            sys.stderr.write(f"{type(fault).__name__}: {fault}\n")
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file by relative name; lock files say who holds them, if somebody died over it."""
    return {
        str(path.relative_to(folder)): b"" if path.name.startswith(_LOCK) else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def clean(place: Path, request_of: Request) -> dict[str, bytes]:
    run_batch(request_of, place / "clean")
    return tree(place / "clean")


@pytest.fixture(scope="module")
def n_calls(place: Path, request_of: Request, clean: dict[str, bytes]) -> int:
    """How many calls there are: counted in a child, which puts the number into a file."""

    def count() -> None:
        injector = Injector()
        injector.install()
        run_batch(request_of, place / "counted")
        (place / "calls").write_text(" ".join(injector.calls))

    assert in_child(count) == DONE
    calls = (place / "calls").read_text().split()
    assert {"open", "write", "fsync", "replace", "unlink", "mkdir"} <= set(calls)
    return len(calls)


def test_there_are_at_least_300_points(n_calls: int) -> None:
    assert n_calls * len(KINDS) >= 300


@pytest.mark.parametrize("kind", KINDS)
def test_every_third_point(
    place: Path, request_of: Request, clean: dict[str, bytes], n_calls: int, kind: str
) -> None:
    check_points(
        range(1 + list(KINDS).index(kind) % 3, n_calls + 1, 3), place, request_of, clean, kind
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_point(
    place: Path, request_of: Request, clean: dict[str, bytes], n_calls: int, kind: str
) -> None:
    check_points(range(1, n_calls + 1), place, request_of, clean, kind)


def check_points(
    points: range, place: Path, request_of: Request, clean: dict[str, bytes], kind: str
) -> None:
    outcomes: dict[int, int] = {}
    for at in points:
        folder = place / "broken"

        def broken(at: int = at, folder: Path = folder) -> None:
            Injector(at, kind).install()
            run_batch(request_of, folder)

        code = in_child(broken)
        assert code == KILLED if kind.startswith("kill") else code in (FAILED, DONE), (kind, at)
        outcomes[code] = outcomes.get(code, 0) + 1
        for name, data in tree(folder).items():
            assert Path(name).name.startswith(_TEMPORARY) or data == clean[name], (kind, at, name)
        assert in_child(lambda folder=folder: run_batch(request_of, folder)) == DONE, (kind, at)  # type: ignore[misc]
        assert tree(folder) == clean, (kind, at)
        shutil.rmtree(folder)
    if not kind.startswith("kill"):  # a failing unlink of a temporary name may pass unseen
        assert outcomes[FAILED] > outcomes.get(DONE, 0)


def test_a_naive_writer_would_be_caught(
    place: Path, request_of: Request, clean: dict[str, bytes], n_calls: int
) -> None:
    """The test can fail: files written under their final names are seen as torn."""

    def naive(target: Path, content: object, *, force: bool = False) -> None:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)  # type: ignore[operator]

    def broken(at: int) -> None:
        from attnviz.runs.batch import shards

        shards.write_atomic = naive  # type: ignore[assignment]
        Injector(at, "kill before").install()
        run_batch(request_of, place / "naive")

    torn = 0
    for at in range(1, n_calls // 2):
        in_child(lambda at=at: broken(at))  # type: ignore[misc]
        torn += any(data != clean[name] for name, data in tree(place / "naive").items())
        shutil.rmtree(place / "naive", ignore_errors=True)
    assert torn > 3
