"""What a killed run left half-written in the cache, the next one sweeps; what lives stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnviz.sources.models.cache import cache_folder, new_folder, sweep, write_entry

WRITE = """
import sys, time
from pathlib import Path
from attnviz.sources.models.cache import new_folder
with new_folder(Path(sys.argv[1])) as made:
    (made / "model.safetensors").write_bytes(b"half")
    print(made.name, flush=True)
    time.sleep(60)
"""


def start(target: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", WRITE, str(target)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout as told:
        return writer, told.readline().strip()


def test_what_a_killed_conversion_left_is_swept_by_the_next_run(tmp_path: Path) -> None:
    killed, left = start(tmp_path / "a")
    running, kept = start(tmp_path / "b")
    try:
        assert (tmp_path / left / "model.safetensors").exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        with new_folder(tmp_path / "c") as made:
            (made / "config.json").write_text("{}")
        assert sorted(os.listdir(tmp_path)) == sorted([kept, "c"])
    finally:
        for one in (killed, running):
            one.kill()
            one.wait(10)
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["c"]


def test_names_that_say_no_process_stay_for_a_day(tmp_path: Path) -> None:
    """Those of earlier versions, and of other machines that share the folder."""
    names = (".new-x8k2", ".new-0badc0de-12-abc", ".new-file.json")
    for name in names[:2]:
        (tmp_path / name).mkdir()
    (tmp_path / names[2]).write_text("{}")
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    for name in names:
        os.utime(tmp_path / name, (time.time() - 90_000,) * 2)
    sweep(tmp_path)
    assert os.listdir(tmp_path) == []
    sweep(tmp_path / "gone")


def test_an_entry_that_was_half_written_is_swept_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_entry("plan", "a", 1)
    left = cache_folder() / "plan" / ".new-file.json"
    left.write_text("{")
    os.utime(left, (time.time() - 90_000,) * 2)
    write_entry("plan", "b", 2)
    assert sorted(os.listdir(left.parent)) == ["a.json", "b.json"]
