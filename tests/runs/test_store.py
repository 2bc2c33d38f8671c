"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
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
    write_folder_atomic(target, {"a": b"1", "b": b"2"})
    with pytest.raises(UsageError):
        write_folder_atomic(target, {"a": b"3"})
    write_folder_atomic(target, {"c": b"3"}, force=True)
    assert os.listdir(target) == ["c"]
    assert os.listdir(tmp_path) == ["layer"]
