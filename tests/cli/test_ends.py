"""How a run ends when its output has nowhere to go, or when it is told to stop: every command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from every_command import CALLS, Call, write_world
from hostile import Stream

QUICK = [call for call in CALLS if call.name != "cost"]
SIGNALS = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = write_world(tmp_path_factory.mktemp("world"))
    (world / "long.txt").write_text(" ".join(f"w{i % 997}" for i in range(60_000)))
    (world / "many.txt").write_text("".join(f"a cute bear {i}\n" for i in range(200_000)))
    lines = (" ".join(f"w{i * j % 97}" for j in range(300)) for i in range(2000))
    (world / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    return world


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    return world


@contextmanager
def nowhere(kind: str) -> Iterator[Any]:
    """Yield a stream of results that is closed, full, or that nobody reads any more."""
    if kind == "closed":
        yield None
        return
    if kind == "full":
        place = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, place = os.pipe()
        os.close(reader)
    with os.fdopen(place, "w", encoding="utf-8") as stream:  # the program points it at nothing
        yield stream


def run_to(stdout: Any, arguments: list[str]) -> tuple[int, str]:
    """Run the command line in this process with its results going to a stream."""
    from attnviz.cli.main import run_guarded

    kept: tuple[Any, Any] = sys.stdout, sys.stderr
    errors = Stream(is_terminal=False)
    sys.stdout, sys.stderr = stdout, errors
    try:
        code = run_guarded(arguments)
    finally:
        sys.stdout, sys.stderr = kept
    return code, errors.getvalue()


def with_format(call: Call, format_name: str, out: Path) -> list[str]:
    ending = ".html" if call.name == "page" else (call.endings or ("",))[0]
    arguments = call.fill(out=f"{out}{ending}")
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at], *(("-f", format_name) if format_name else ()), *arguments[at:]]


@pytest.mark.parametrize(("kind", "code"), [("closed", 4), ("full", 4), ("left", 0)])
@pytest.mark.parametrize("call", QUICK, ids=lambda call: call.name)
def test_a_result_that_goes_nowhere(
    call: Call, kind: str, code: int, here: Path, tmp_path: Path
) -> None:
    for number, format_name in enumerate(call.formats[-1:] or ("",)):
        arguments = with_format(call, format_name, tmp_path / f"{kind}{number}")
        with nowhere(kind) as stream:
            found, said = run_to(stream, arguments)
        errors = [line for line in said.splitlines() if line.startswith("attnviz: error: ")]
        is_written = "{out}" in " ".join(call.arguments)
        if is_written and kind != "closed":
            assert (found, errors) == (0, []), arguments  # the result is a file
            continue
        assert found == code, arguments
        assert len(errors) == (code != 0)
        assert "Traceback" not in said


@pytest.mark.slow  # the same in processes of their own, by a shell
@pytest.mark.parametrize("call", QUICK, ids=lambda call: call.name)
def test_a_result_that_goes_nowhere_in_a_shell(call: Call, here: Path, tmp_path: Path) -> None:
    kept = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for number, (tail, code) in enumerate((
        (">&-", 4), ("> /dev/full", 4), ("| head -1 > /dev/null; exit ${PIPESTATUS[0]}", 0),
        ("| true; exit ${PIPESTATUS[0]}", 0),
    )):  # fmt: skip
        for buffering in ("", "1"):
            arguments = with_format(call, "", tmp_path / f"{number}{buffering}")
            done = subprocess.run(
                ["bash", "-c", f'"$@" {tail}', "x", sys.executable, "-m", "attnviz", *arguments],
                capture_output=True, text=True, check=False,
                env={**kept, "PYTHONUNBUFFERED": buffering},
            )  # fmt: skip
            is_written = "{out}" in " ".join(call.arguments) and number
            assert done.returncode == (0 if is_written else code), (tail, done.stderr)
            assert "Traceback" not in done.stderr
            assert "Exception ignored" not in done.stderr
            assert done.stderr.count("error:") == (0 if is_written else code != 0)


LONG = {
    "summary": ["summary", "--file", "long.txt", "-w", "layer.npz", "-o", "made.json"],
    "heatmap": ["heatmap", "--file", "long.txt", "-w", "layer.npz", "-o", "made.png"],
    "heads": ["heads", "--file", "lines.txt", "-w", "layer.npz", "-o", "made.json"],
    "cost": ["cost", "--from", "4096", "--to", "65536", "-o", "made.json"],
    "batch": ["batch", "many.txt", "-w", "layer.npz", "-o", "made", "-f", "jsonl", "-j", "2"],
    "serial": ["batch", "many.txt", "-w", "layer.npz", "-o", "made", "-f", "jsonl",
               "--engine", "serial"],
    "explain": ["explain", "-w", "layer.npz", *[" ".join(f"w{i}" for i in range(600))]],
    "stdin": ["explain", "-w", "layer.npz", "-"],
}  # fmt: skip


def wait_until_it_listens(pid: int) -> None:
    """Wait until the program has taken SIGTERM into its own hands, however busy the machine is."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(600):
        found = (
            re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.M) if status.exists() else None
        )
        if found is None or int(found[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.05)


def stop(name: str, number: signal.Signals, here: Path, after_s: float) -> tuple[int, str, float]:
    """Start a long command, stop it, and return its exit code, what it said, and how long it took."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-m", "attnviz", *LONG[name]], cwd=here, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        wait_until_it_listens(process.pid)
        time.sleep(after_s)
        assert process.poll() is None, process.stderr and process.stderr.read()
        started = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        took_s = time.monotonic() - started
    left = subprocess.run(
        ["ps", "-s", str(process.pid), "-o", "stat="], capture_output=True, text=True
    )
    assert all(state.startswith("Z") for state in left.stdout.split())
    return process.returncode, said, took_s


def check_stopped(name: str, number: signal.Signals, code: int, here: Path, after_s: float) -> None:
    found, said, took_s = stop(name, number, here, after_s)
    assert (found, "Traceback" in said) == (code, False), said
    assert re.search(r"attnviz: error: (interrupted|ended by SIG)", said.splitlines()[-1])
    assert took_s < 10
    made = here / "made"
    if made.exists():
        assert "the same command continues in made" in said
        subprocess.run(["rm", "-r", str(made)], check=True)
    assert not [entry for entry in os.listdir(here) if entry.startswith((".attnviz", "made"))]


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [("summary", *SIGNALS[0]), ("heads", *SIGNALS[1]), ("batch", *SIGNALS[2])],
)
def test_a_signal_ends_a_long_run(name: str, number: signal.Signals, code: int, here: Path) -> None:
    check_stopped(name, number, code, here, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.2, 3.0, 6.0])
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("name", LONG)
def test_every_signal_ends_every_long_run(
    name: str, number: signal.Signals, code: int, after_s: float, here: Path
) -> None:
    check_stopped(name, number, code, here, after_s)


STUBBORN = """
import sys, time
from attnviz.cli.main import run_guarded
import attnviz.runs.explain as pipeline
def explain(*given, **more):
    print("ready", flush=True)
    while True:
        try:
            {work}
        except BaseException:
            print("caught", flush=True)
pipeline.explain = explain
sys.exit(run_guarded(["explain", "a", "-w", "random"]))
"""
NATIVE = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"


@pytest.mark.parametrize(("work", "number", "code"), [
    ("time.sleep(60)", *SIGNALS[0]), (NATIVE, *SIGNALS[1]),
])  # fmt: skip
def test_the_second_signal_ends_it_at_once(work: str, number: signal.Signals, code: int) -> None:
    """Even if clean-up hangs, or native code never looks."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN.format(work=work)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(number)
    process.send_signal(number)  # an echo, as timeout(1) sends it, is not a second one
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    started = time.monotonic()
    process.send_signal(number)
    assert process.wait(timeout=10) == code
    assert time.monotonic() - started < 2
    process.stdout.close()


def test_what_was_ignored_stays_ignored(here: Path) -> None:
    """As under nohup: the terminal may go, the work goes on."""
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "x", sys.executable, "-m", "attnviz", "explain", "-",
         "-w", "layer.npz", "--stage", "tokens"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    time.sleep(1.5)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(b"a bear", timeout=60)
    assert process.returncode == 0
    assert b"bear" in out


def test_an_input_that_is_closed_or_never_ends_is_told(here: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for tail, code, reason in (
        ("- <&-", 3, "standard input is closed"),
        ("--file /dev/zero --max-memory 1", 4, "/dev/zero is longer than"),
        ("- --max-memory 1 < /dev/zero", 4, "standard input is longer than"),
    ):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -m attnviz explain -w random {tail}', sys.executable],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert (done.returncode, reason in done.stderr) == (code, True), done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(closed: str) -> None:
    """Else a library's complaint to descriptor 2 would be written into the user's file."""
    code = (
        "import os\nfrom attnviz.cli import terminal\nwith terminal.guarded():\n"
        "    os._exit(0 if os.open('/dev/null', os.O_RDONLY) > 2 else 1)"
    )
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0
