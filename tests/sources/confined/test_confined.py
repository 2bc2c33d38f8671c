"""Tasks in a child under limits: what each way of ending gives back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnviz.errors import ResourceError
from attnviz.sources.confined import parent
from attnviz.sources.confined.parent import Ending, Limits, run_confined

LIMITS = Limits(extra_bytes=64 << 20, cpu_s=0.5)
TASK = """
import os, sys
def prepare():
    {prepare}
def work(arguments, data):
    {work}
"""


def run(
    folder: Path, work: str, *, prepare: str = "return None", limits: Limits = LIMITS
) -> Ending:
    task = folder / "task.py"
    task.write_text(TASK.format(work=work, prepare=prepare))
    return run_confined(task, ["one", "two"], limits=limits, stdin=b"\x00data")


def test_arguments_and_data_arrive_and_the_answer_comes_back(tmp_path: Path) -> None:
    end = run(tmp_path, "return {'heard': [*arguments, len(data)]}")
    assert end == Ending(0, {"heard": ["one", "two", 5]})


def test_a_library_that_is_missing_is_told_before_the_work(tmp_path: Path) -> None:
    assert run(tmp_path, "1/0", prepare="return {'torch': 'none'}").answer == {"torch": "none"}


@pytest.mark.parametrize(
    ("work", "end"),
    [
        ("return {'big': len(bytearray(1 << 30))}", Ending(0, {"memory": True})),
        ("while True: pass", Ending(-27, None, is_late=True)),
        ("os.abort()", Ending(-6, None)),
        ("sys.exit(5)", Ending(5, None)),
        ("os.write(1, b'{}'); os._exit(1)", Ending(1, None)),
        ("os.write(1, b'no json'); os._exit(0)", Ending(0, None)),
        ("os.write(1, b'[' * 100_000); os._exit(0)", Ending(0, None)),
        ("os.write(1, b'[1]'); os._exit(0)", Ending(0, None)),
        ("return work(arguments, data)", Ending(0, {"refused": "nests its values too deeply"})),
        ("open('/')", Ending(0, {"disk": "Is a directory"})),
        ("raise ValueError", Ending(1, None)),
    ],
)
def test_every_ending(tmp_path: Path, work: str, end: Ending) -> None:
    assert run(tmp_path, work) == end


def test_a_child_that_sleeps_is_ended_by_the_clock(tmp_path: Path) -> None:
    began = time.monotonic()
    limits = Limits(extra_bytes=64 << 20, cpu_s=0.01, start_s=1.0)
    end = run(tmp_path, "import time; time.sleep(60)", limits=limits)
    assert end.is_late
    assert time.monotonic() - began < 30


def test_what_a_child_prints_to_stderr_stays_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "os.write(2, b'\\x1b[2J'); return {}")
    assert capfd.readouterr() == ("", "")


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(parent.subprocess, "run", fail)
    with pytest.raises(ResourceError, match="Resource temporarily unavailable"):
        run(tmp_path, "return {}")


def test_the_child_needs_nothing_of_this_package() -> None:
    """Only Python and the task's library are loaded, so that it starts soon."""
    folder = Path(parent.__file__).parent
    code = f"""
import runpy, sys
runpy.run_path({str(folder / "child.py")!r})
runpy.run_path({str(folder / "tokenizer_task.py")!r})["prepare"]()
print(sorted({{"attnviz", "numpy", "torch", "transformers", "tokenizers"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['tokenizers']"
