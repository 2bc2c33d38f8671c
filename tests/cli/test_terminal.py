"""Screens of any width, colour and encoding; pipes; signals; bytes that are no text."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import HOSTILE, SENTENCE, Result, run_fresh
from tiny_models import write_model

Cli = Callable[..., Result]
RANDOM = ("--weights", "random")
NUMBER = re.compile(r"-?\d+\.\d{4}\b")


@pytest.mark.parametrize("width", [12, 20, 40, 80, 120, 200])
@pytest.mark.parametrize("format_name", ["table", "plain"])
def test_no_number_is_lost_on_any_width(cli: Cli, width: int, format_name: str) -> None:
    text = " ".join(f"word{i}" for i in range(30))
    done = cli("explain", text, *RANDOM, "-s", "scores", "-f", format_name, "--width", str(width))
    wide = cli("explain", text, *RANDOM, "-s", "scores", "-f", format_name)
    assert sorted(NUMBER.findall(done.out)) == sorted(NUMBER.findall(wide.out))
    assert len(NUMBER.findall(done.out)) == 900
    if width >= 40:
        assert max(map(len, done.out.splitlines())) <= width


def test_R5_a_pipe_gets_every_number_unwrapped() -> None:
    text = " ".join(f"word{i}" for i in range(30))
    done = run_fresh("explain", text, *RANDOM, "-s", "weights")
    assert done.returncode == 0
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("│ word")]
    assert sum(len(NUMBER.findall(line)) for line in lines) == 900


@pytest.mark.parametrize(
    "format_name", ["table", "plain", "markdown", "csv", "tsv", "json", "jsonl"]
)
def test_R1_R3_hostile_tokens_print_safely(cli: Cli, format_name: str) -> None:
    text = " ".join(word for word in HOSTILE if word != "\udce9")
    width = ("--width", "60") if format_name in ("table", "plain", "markdown") else ()
    started = time.monotonic()
    done = cli("explain", text, *RANDOM, "-f", format_name, *width)
    assert done.code == 0
    assert time.monotonic() - started < 10
    allowed = "\n\r" if format_name == "csv" else "\n"
    bad = {c for c in done.out if not c.isprintable() and c not in allowed and c != "\t"}
    assert bad == set()


def test_R1_square_brackets_survive(cli: Cli) -> None:
    done = cli("explain", "[INST] hi [/INST] the [red] bear [a-z] [0] [/]", *RANDOM)
    assert done.code == 0
    for word in ("INST", "red", "a", "z"):
        assert f" {word} " in done.out or f":{word} " in done.out
    missing = cli("explain", "a", "-w", "[red][x].npz")
    assert "[red]" in missing.err
    assert "[x].npz" in missing.err


def test_R3_a_narrow_terminal_ends_within_a_second(cli: Cli) -> None:
    for text in ("\0a b", "\x1ba b", "\u200d b", "\ufe0f b", "a\u2060b c"):
        started = time.monotonic()
        assert cli("explain", text, *RANDOM, "--width", "12", "-s", "weights").code == 0
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
@pytest.mark.parametrize(
    "arguments", [["explain", "猫 is cute", *RANDOM], ["--help"], ["explain", "-h"], ["doctor"]]
)
def test_R7_an_output_that_cannot_hold_the_character(encoding: str, arguments: list[str]) -> None:
    done = run_fresh(*arguments, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert "\\u2550" not in text
    assert "\\u2500" not in text
    if "猫 is cute" in arguments:
        assert "\\u732b" in text
        assert "+--" in text


def test_C3_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    done = run_fresh("explain", b"caf\xe9", *RANDOM)
    assert done.returncode == 2
    assert b"0xE9 at position 3" in done.stderr
    assert done.stderr.count(b"\n") == 1
    file = tmp_path / "latin.txt"
    file.write_bytes(b"one\ncaf\xe9")
    done = run_fresh("explain", "--file", str(file), *RANDOM)
    assert done.returncode == 3
    assert b"0xE9 at offset 7 (line 2)" in done.stderr
    done = run_fresh("explain", "-", *RANDOM, stdin=b"\xff\xfe")
    assert done.returncode == 3


C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C"}, C_LOCALE, {"LC_ALL": "POSIX"}, {"PYTHONUTF8": "1"}]
)
def test_C3_the_locale_changes_nothing(env: dict[str, str]) -> None:
    command = ("explain", "café", *RANDOM, "-f", "json")
    assert run_fresh(*command, env=env).stdout == run_fresh(*command).stdout


@pytest.mark.parametrize("text", ["-4 degrees outside", "--help me", "-x"])
def test_C1_a_text_that_starts_with_a_dash(cli: Cli, text: str) -> None:
    done = cli("explain", text, *RANDOM)
    assert done.code == 2
    if " " in text:
        assert "goes after --" in done.err
    assert cli("explain", *RANDOM, "--", text).code == 0


def test_C1_stdin_and_mistyped_options() -> None:
    done = run_fresh("explain", "-", *RANDOM, "-s", "tokens", stdin=b"-4 degrees")
    assert done.returncode == 0
    assert b"degrees" in done.stdout
    assert run_fresh("explain", "--tokn", "a", "b").returncode == 2


def test_colour_only_where_it_is_wanted() -> None:
    command = ("explain", "a b", *RANDOM)
    assert b"\x1b" not in run_fresh(*command).stdout
    assert b"\x1b" in run_fresh(*command, "--color", "always").stdout
    assert b"\x1b" in run_fresh(*command, env={"FORCE_COLOR": "1"}).stdout
    assert b"\x1b" not in run_fresh(*command, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert b"\x1b" not in run_fresh(*command, env={"FORCE_COLOR": "1", "TERM": "dumb"}).stdout


def on_terminal(command: list[str], env: dict[str, str], cwd: Path | None = None) -> str:
    """Run a command on a pseudo-terminal and return what it wrote."""
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "attnviz", *command],
        stdout=writer, stderr=writer, stdin=writer, env={**os.environ, **env},
        cwd=cwd,
    )  # fmt: skip
    os.close(writer)
    chunks = []
    while True:
        try:
            data = os.read(reader, 65536)
        except OSError:
            break
        if not data:
            break
        chunks.append(data)
    process.wait(timeout=60)
    os.close(reader)
    return b"".join(chunks).decode()


def test_a_terminal_sees_only_our_own_escapes() -> None:
    env = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "80"}
    hostile = on_terminal(["explain", "\x1b]0;x\x07 \x1b[2J \u202ea b", *RANDOM], env)
    assert "\x1b[" in hostile
    without_colour = re.sub(r"\x1b\[[0-9;]*m", "", hostile)
    assert "\x1b" not in without_colour
    assert "\x07" not in without_colour
    assert "\u202e" not in without_colour


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m attnviz explain '{SENTENCE}' -w random | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments", [f"explain '{SENTENCE}' -w random", "--help", "--version", "doctor"]
)
@pytest.mark.parametrize("target", [">&-", "> /dev/full"])
def test_a_closed_or_full_stdout_is_an_error(arguments: str, target: str) -> None:
    command = f"{sys.executable} -m attnviz {arguments} {target}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_code(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "attnviz", "explain", "-", *RANDOM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(1.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    assert b"Traceback" not in errors


def test_the_same_command_twice_with_other_threads() -> None:
    command = ("explain", SENTENCE, *RANDOM, "-f", "json")
    outputs = {
        run_fresh(*command, env={"OPENBLAS_NUM_THREADS": n, "OMP_NUM_THREADS": n}).stdout
        for n in ("1", "2")
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_bare_program_and_help(cli: Cli) -> None:
    assert cli().code == 0
    assert "explain" in cli().out
    assert cli("-h").out == cli("--help").out
    assert cli("--version").out.startswith("attnviz ")
    assert cli("explian").code == 2


def test_examples_in_help_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of every command's help, in the order of the commands, in one folder."""
    import shlex

    import torch

    from attnviz.cli.app import app

    pytest.importorskip("transformers", reason="needs the extra 'models'")
    monkeypatch.chdir(tmp_path)
    torch.save({f"w_{n}": torch.ones(4, 2) for n in "qkv"}, "model.pt")
    write_model(tmp_path / "tiny")
    Path("sentences.txt").write_text("A cute teddy bear\nis reading\n")
    groups = [g.typer_instance.registered_commands for g in app.registered_groups]
    for command in (*app.registered_commands, *(c for group in groups for c in group)):
        examples = [
            line.strip()
            for line in (command.epilog or "").splitlines()
            if line.strip().startswith("attnviz ")
        ]
        assert 2 <= len(examples) <= 3, command.name
        for line in examples:
            assert cli(*shlex.split(line)[1:]).code == 0, line
