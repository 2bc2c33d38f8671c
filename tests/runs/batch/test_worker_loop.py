"""What a worker process says and hears, message by message; and locks, file by file."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnviz.errors import AttnvizError, InputError, ResourceError, UsageError
from attnviz.runs.batch import lock as locks
from attnviz.runs.batch import work as work_module
from attnviz.runs.batch.engines import Staffing, _frames, _worker, local
from attnviz.runs.batch.jobs import At, Job, Opened, Refused, Result, Work, from_plain
from attnviz.runs.batch.lock import Lock
from attnviz.runs.batch.rows import Row
from attnviz.runs.batch.work import Worker

TINY = {"weights": "random", "d_model": 8, "d_k": 4}


def served(*messages: Work | Job) -> list[Any]:
    source, target = io.BytesIO(), io.BytesIO()
    for message in messages:
        _frames.send(source, message)
    source.seek(0)
    _worker.serve(source, target)
    target.seek(0)
    found = []
    while (answer := _frames.receive(target)) is not None:
        found.append(answer)
    return found


def test_a_worker_opens_its_source_announces_texts_and_returns_files() -> None:
    work = Work(source=TINY, format="jsonl")
    job = Job(3, (Row(7, "a.txt", 8, "a bear", ""), Row(8, "a.txt", 9, "", "")))
    opened, *between, done = served(work, job)
    assert opened == Worker(work).opened()
    assert {type(message) for message in between} == {At}
    assert At((7,)) in between
    assert between[-1] == At(())
    assert done == Worker(work).run(job)
    assert done.files
    assert served() == []


def test_a_worker_that_cannot_open_its_source_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    (refused,) = served(Work(source={"weights": "none.npz"}))
    assert (type(refused), refused.exit_code) == (Refused, 3)
    assert "none.npz" in refused.why

    def full(_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(work_module, "Worker", full)
    (refused,) = served(Work())
    assert refused.exit_code == 4
    assert "try fewer --workers" in refused.why


@pytest.mark.parametrize(
    "record",
    [
        Work(source={"weights": "a", "layer": 3, "scale": None}, keep=("q", "k"), threads=2),
        Job(1, (Row(7, "a", 8, "\ud800 \n\0", ""), Row(8, "b", 9, None, "bad")), lost={7: "why"},
            alone=frozenset({7, 8}), is_trial=True),
        Opened({"layers": [0, 1], "sha256": None}, ("a notice",)),
        Refused("no", 3),
        At((3, 4)),
        Result(1, 2, 1, 0, 4, 9, 0.1, {"heads/000001.jsonl": b"\n\0\xff", "b": b""}, ({"text_id": 7},)),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_every_record_arrives_as_it_was_sent(record: Any) -> None:
    pipe = io.BytesIO()
    for _ in range(2):
        _frames.send(pipe, record)
    pipe.seek(0)
    assert _frames.receive(pipe) == record
    found = _frames.receive(pipe)
    assert found == record
    assert repr(found) == repr(record)
    assert _frames.receive(pipe) is None


def test_what_no_record_has_is_refused() -> None:
    for kind, value in ((At, {"texts": ["3"]}), (At, {"numbers": [3]}), (Refused, {"why": 3, "exit_code": 3}),
                        (Refused, {"why": "no"})):  # fmt: skip
        with pytest.raises(TypeError):
            from_plain(kind, value)


def test_what_libraries_print_does_not_reach_the_batch() -> None:
    root = Path(_worker.__file__).parents[4]
    code = (f"import sys; sys.path.insert(0, {str(root)!r})\n"
            "from attnviz.runs.batch.engines import _worker\n"
            "def serve(source, target):\n"
            "    import os\n"
            "    os.write(1, b'noise')\n"
            "    target.write(source.read()); target.flush()\n"
            "    if source.closed is False and len(sys.argv) > 1: raise BrokenPipeError\n"
            "_worker.serve = serve\n_worker.main()\nsys.exit(9)\n")  # fmt: skip
    for more, wanted in (([], 9), (["x"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, *more], input=b"hello", capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (wanted, b"hello", b"noise")


def test_a_message_cut_off_anywhere_is_the_end() -> None:
    whole = io.BytesIO()
    result = Result(0, 1, 0, 0, 1, 3, files={"a": b"123", "b": b""})
    _frames.send(whole, result)
    data = whole.getvalue()
    assert _frames.receive(io.BytesIO(data)) == result
    for cut in range(len(data)):
        assert _frames.receive(io.BytesIO(data[:cut])) is None
    closed = io.BytesIO(data)
    closed.close()
    assert _frames.receive(closed) is None


# --- the pool -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "kind"),
    [({"weights": "none.npz"}, InputError), ({**TINY, "head": "77"}, UsageError)],
)
def test_a_refused_source_keeps_its_kind_of_error(source: Any, kind: type[AttnvizError]) -> None:
    engine = local.make(Work(source=source), Staffing(workers=1))
    with pytest.raises(kind):
        engine.open()
    engine.close()
    assert type(Refused("x", 4).error()) is ResourceError
    assert type(Refused("x", 99).error()) is AttnvizError


def test_workers_that_never_come_up_end_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PROGRAM", "import sys; sys.exit('no such thing')")
    engine = local.make(Work(source=TINY), Staffing(workers=1))
    with pytest.raises(ResourceError, match=r"no worker comes up \(exit code 1: no such thing\)"):
        engine.open()
    engine._workers[0]._process = None
    with pytest.raises(ResourceError, match="no worker comes up"):
        list(engine.run(iter([Job(0, ())])))
    engine.close()
    assert engine._workers[0].start() == local._Died((), "the batch is over", was_ready=False)


def test_how_a_worker_ended_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, wanted in (
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 SIGKILL"),
    ):
        monkeypatch.setattr(local, "_PROGRAM", program)
        died = local._Process(Work(source=TINY)).start()
        assert died == local._Died((), wanted, was_ready=False)
    process = local._Process(Work())
    assert process.bury() == ""


def test_a_worker_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = local._Process(Work())
    process._complaints = io.BytesIO(b"")

    class Stuck:
        stdin = stdout = None
        killed = False

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                raise subprocess.TimeoutExpired("worker", timeout)
            return -9

        def kill(self) -> None:
            self.killed = True

    process._process = stuck = Stuck()  # type: ignore[assignment]
    assert process.bury() == "signal 9 SIGKILL"
    assert stuck.killed  # type: ignore[attr-defined]


def test_as_many_workers_as_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    process = local._Process(Work(threads=2))
    monkeypatch.setattr(local, "usable_cores", lambda: 9)
    page = os.sysconf("SC_PAGE_SIZE")
    told: list[object] = ["99 1000 5"]

    def read_text(path: Path) -> str:
        assert path == Path("/proc/1/statm")
        return str(told[0])

    monkeypatch.setattr(Path, "read_text", read_text)
    process._process = type("P", (), {"pid": 1})()
    for room, limit, wanted in ((3, None, 4), (1, None, 2), (0, None, 1), (9, None, 4), (3, 2, 2), (2, 3, 2),
                                (0, 0, 1), (None, None, 4)):  # fmt: skip
        for name, pages in (("room_bytes", room), ("own_limit_bytes", limit)):
            n_bytes = None if pages is None else pages * 1000 * page
            monkeypatch.setattr(local.memory, name, lambda n=n_bytes: n)
        assert process.how_many_fit() == wanted, (room, limit)
    told[0] = "odd"
    assert process.how_many_fit() == 4
    monkeypatch.setattr(local, "usable_cores", lambda: 1)
    assert process.how_many_fit() == 1


# --- locks --------------------------------------------------------------------------------------


def test_a_lock_says_who_holds_it_and_is_empty_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = Lock(path), Lock(path)
    assert first.holder() == ""
    assert first.hold()
    assert path.read_bytes() == str(os.getpid()).encode()
    assert second.holder() == f" (process {os.getpid()})"
    assert second.hold() is False
    assert second.hold(shared=True) is False
    first.release()
    first.release()
    assert path.read_bytes() == b""
    assert second.hold(shared=True)
    assert path.read_bytes() == b""
    assert first.hold(shared=True)
    assert not Lock(path).hold()
    first.release()
    second.release()
    path.write_bytes(b"rm -rf")
    assert first.holder() == ""
    path.write_bytes(b"\xff")
    assert first.holder() == ""
    path.write_bytes(b"1234567890" * 3)  # another's file: no more of it is shown than a number has
    assert first.holder() == " (process 12345678901234567890)"


def test_a_lock_is_for_everyone_the_mask_allows(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        lock = Lock(tmp_path / "lock")
        assert lock.hold()
        lock.release()
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664


def test_a_lock_that_fails_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    real = os.close
    monkeypatch.setattr(locks.os, "close", lambda file: (closed.append(file), real(file))[1])
    for fault in (OSError(errno.EIO, "broken"), KeyboardInterrupt()):

        def fail(*_: Any, fault: BaseException = fault, **__: Any) -> None:
            raise fault

        monkeypatch.setattr(locks, "_lock", fail)
        with pytest.raises(type(fault)):
            Lock(tmp_path / "lock").hold()
    assert len(closed) == 2
    with pytest.raises(OSError, match="No such file"):
        Lock(tmp_path / "no" / "lock").hold()


def test_a_full_disk_does_not_matter_to_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(locks.os, "ftruncate", full)
    lock = Lock(tmp_path / "lock")
    assert lock.hold()
    lock.release()
