"""A file that cannot be written: every exporter says so in a line, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from every_command import CALLS, Call, write_world
from hostile import see


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def there(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)


WRITERS = [
    (call, ending)
    for call in CALLS
    for ending in (call.endings or (("",) if "{out}" in call.arguments else ()))
    if call.name != "cost"
]
_CHEAP = ("view links", "page", "weights new")
ONCE = [(call, ending) for call, ending in WRITERS if call.name in _CHEAP]
"""Every ending once."""


def asked(call: Call, path: Path, *more: str) -> list[str]:
    filled = call.fill(out=str(path))
    at = filled.index("--") if "--" in filled else len(filled)
    is_named = "{out}" in " ".join(call.arguments)
    return [*filled[:at], *(() if is_named else ("-o", str(path))), *more, *filled[at:]]


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, as a quota does."""
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)


@contextmanager
def no_override() -> Iterator[None]:
    """Let permissions hold for this thread even where it is the super-user's (capabilities(7))."""
    if os.geteuid() != 0:
        yield
        return
    version, override_and_search = 0x20080522, 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(version, 0)
    kept = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    system = ctypes.CDLL(None, use_errno=True)
    assert system.capget(header, kept) == 0
    fewer = (ctypes.c_uint32 * 6)(*kept)
    fewer[0] &= ~override_and_search
    assert system.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert system.capset(header, kept) == 0


def check_refused(call: Call, path: Path, folder: Path, code: int, *more: str) -> None:
    before = sorted(os.listdir(folder))
    seen = see(asked(call, path, *more), is_terminal=False)
    errors = [line for line in seen.err.splitlines() if "error:" in line]
    assert (seen.code, len(errors)) == (code, 1), seen
    assert seen.out == ""
    assert seen.faults() == []
    assert sorted(os.listdir(folder)) == before


def check_writer(call: Call, ending: str, folder: Path, *, is_all: bool) -> None:
    """Try what can go wrong with the disk, and with the name; then it works, and is kept."""
    path = folder / f"made{ending}"
    is_batch = call.name == "batch"  # it makes its folder, and those above it
    if not is_batch:
        with small_files(16):
            check_refused(call, path, folder, 4)
    if is_all:
        if not is_batch:
            check_refused(call, folder / f"missing/made{ending}", folder, 3)
        check_refused(call, folder / f"{'x' * 256}{ending}", folder, 3)
        (folder / "file").touch()
        check_refused(call, folder / f"file/made{ending}", folder, 3)
        (folder / "file").unlink()
    assert see(asked(call, path), is_terminal=False).code == 0
    if is_batch:
        return
    made = path.read_bytes() if path.is_file() else sorted(os.listdir(path))
    check_refused(call, path, folder, 2)
    with small_files(16):
        check_refused(call, path, folder, 4, "--force")
    assert made == (path.read_bytes() if path.is_file() else sorted(os.listdir(path)))


@pytest.mark.parametrize(("call", "ending"), ONCE, ids=lambda x: getattr(x, "name", x))
def test_what_cannot_be_written_leaves_nothing(call: Call, ending: str, tmp_path: Path) -> None:
    is_all = ending in (".json", ".html", ".npz", "")
    check_writer(call, ending, tmp_path, is_all=is_all)


@pytest.mark.slow  # every ending of every command
@pytest.mark.parametrize(("call", "ending"), WRITERS, ids=lambda x: getattr(x, "name", x))
def test_whatever_cannot_be_written_leaves_nothing(call: Call, ending: str, tmp_path: Path) -> None:
    check_writer(call, ending, tmp_path, is_all=True)


def test_a_batch_without_room_says_so_and_goes_on_when_there_is(tmp_path: Path) -> None:
    call = next(call for call in CALLS if call.name == "batch")
    with small_files(64):
        seen = see(asked(call, tmp_path / "made"), is_terminal=False)
    assert seen.code == 4
    assert "File too large" in seen.err
    assert seen.faults() == []
    assert not [n for _, _, names in os.walk(tmp_path) for n in names if n.startswith(".attnviz-")]
    assert see(asked(call, tmp_path / "made"), is_terminal=False).code == 0
    assert see(asked(call, tmp_path / "other"), is_terminal=False).code == 0
    for name in ("manifest.json", "errors.jsonl"):
        if (tmp_path / "other" / name).exists():
            assert (tmp_path / "made" / name).exists()


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with no_override():
            for call, ending in ONCE:
                check_refused(call, tmp_path / f"made{ending}", tmp_path, 3)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_the_umask_holds(mask: int, tmp_path: Path) -> None:
    kept = os.umask(mask)
    try:
        for number, (call, ending) in enumerate(ONCE[:3]):
            path = tmp_path / f"{number}{ending}"
            assert see(asked(call, path), is_terminal=False).code == 0
            whole = 0o777 if path.is_dir() else 0o666
            assert stat.S_IMODE(path.stat().st_mode) == whole & ~mask
    finally:
        os.umask(kept)
    shutil.rmtree(tmp_path)
