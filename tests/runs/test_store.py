"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.runs import store
from attnviz.runs.store import write_atomic, write_folder_atomic


def test_a_new_file_and_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"one")
    with pytest.raises(UsageError, match="--force"):
        write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    write_atomic(path, lambda file: file.write(b"two") and None, force=True)
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_bytes(b"mine")
    link.symlink_to(victim)
    with pytest.raises(UsageError):
        write_atomic(link, b"x")
    write_atomic(link, b"x", force=True)
    assert victim.read_bytes() == b"mine"
    assert not link.is_symlink()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "link", "open"])
def test_every_failing_call_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.os, call, fail)
    with pytest.raises(ResourceError, match="cannot write"):
        write_atomic(tmp_path / "a", b"x")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def half(file: BinaryIO) -> None:
        file.write(b"ne")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_atomic(path, half, force=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_impossible_names(tmp_path: Path) -> None:
    for name in ("x" * 300, "no/such/folder", "nul\0byte"):
        with pytest.raises(InputError):
            write_atomic(tmp_path / name, b"x")
    with pytest.raises(InputError, match="folder"):
        write_atomic(tmp_path, b"x")


def test_a_folder_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "layer"
    write_folder_atomic(target, {"a.npy": b"1", "b.npy": b"2"})
    with pytest.raises(UsageError):
        write_folder_atomic(target, {"a.npy": b"3"})
    write_folder_atomic(target, {"c.npy": b"3"}, force=True)
    assert os.listdir(target) == ["c.npy"]
    assert os.listdir(tmp_path) == ["layer"]


def test_a_folder_of_other_files_is_kept_even_with_force(tmp_path: Path) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "w_q.npy").write_bytes(b"1")
    (target / "thesis.txt").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"thesis\.txt"):
        write_folder_atomic(target, {"w_q.npy": b"2"}, force=True)
    assert (target / "w_q.npy").read_bytes() == b"1"
    for other in ("file", "link"):
        path = tmp_path / other
        path.write_bytes(b"x") if other == "file" else path.symlink_to(target)
        with pytest.raises(UsageError, match="is no folder"):
            write_folder_atomic(path, {"w_q.npy": b"2"}, force=True)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_comes_back_when_its_successor_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    target = tmp_path / "layer"
    write_folder_atomic(target, {"a.npy": b"old"})
    rename, calls = os.rename, []

    def fail(*names: object) -> None:
        calls.append(names)
        if len(calls) == failing:
            raise OSError(errno.EIO, "broken")
        rename(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(store.os, "rename", fail)
    with pytest.raises(ResourceError, match="cannot write"):
        write_folder_atomic(target, {"a.npy": b"new"}, force=True)
    monkeypatch.undo()
    assert (target / "a.npy").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["layer"]


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for force in (False, True):
        with pytest.raises((InputError, UsageError)):
            write_atomic(pipe, b"x", force=force)
    assert os.listdir(tmp_path) == ["pipe"]


def test_of_writers_that_race_exactly_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def slow(file: BinaryIO) -> None:
        file.write(b"late")
        path.write_bytes(b"first")

    with pytest.raises(UsageError, match="--force"):
        write_atomic(path, slow)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from attnviz.runs import store
wanted, count = int(sys.argv[2]), 0
def hooked(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global count
        count += 1
        if count == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
class Hooked:
    def __getattr__(self, name):
        return getattr(os, name)
for name in ("open", "fsync", "link", "replace", "unlink", "close"):
    setattr(Hooked, name, staticmethod(hooked(name)))
store.os = Hooked()
store.write_atomic(Path(sys.argv[1]), b"new" * 100_000, force=True)
"""


def test_killed_at_any_call_the_name_holds_old_or_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for nth in range(1, 30):
        path.write_bytes(b"old")
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(nth)], check=False)
        assert path.read_bytes() in (b"old", b"new" * 100_000)
        if done.returncode == 0:
            assert nth > 4
            return
        assert done.returncode == -signal.SIGKILL
    raise AssertionError("the run never came to its end")
