"""Every way a run can end, what each stream can show, and lines that are drawn over themselves."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from attnviz import registry
from attnviz.cli import main, progress, screen, terminal, write
from attnviz.cli.command import Talk, Target
from attnviz.errors import CheckFailed, InputError, ResourceError, UsageError
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Matrix, Text
from attnviz.runs.batch.run import Progress


class PanicException(BaseException):
    """Named as those of native libraries."""


class Stream(io.StringIO):
    """A stream that is a terminal or not, and may fail."""

    def __init__(self, *, is_terminal: bool = False, encoding: str | None = "utf-8") -> None:
        super().__init__()
        self.is_terminal, self.named, self.fails = is_terminal, encoding, False
        self.fault: OSError = OSError(errno.EIO, "gone")

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self.named

    def isatty(self) -> bool:
        return self.is_terminal

    def fileno(self) -> int:
        raise OSError("no file")

    def write(self, text: str, /) -> int:
        if self.fails:
            raise self.fault
        return super().write(text)


def stderr_of(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = False) -> Stream:
    """Put a stream in the place of stderr; pytest's own is back there when a test begins."""
    stream = Stream(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


ENDS: dict[str, tuple[BaseException, int, str]] = {
    "check": (CheckFailed("it differs"), 1, "error: it differs"),
    "usage": (UsageError("no such head"), 2, "error: no such head"),
    "input": (InputError("no file"), 3, "error: no file"),
    "resource": (ResourceError("no room"), 4, "error: no room"),
    "interrupt": (KeyboardInterrupt(), 130, "error: interrupted"),
    "memory": (MemoryError(), 4, "error: out of memory"),
    "panic": (PanicException("x"), 70, "error: a bug of attnviz: PanicException: x"),
    "bug": (ZeroDivisionError("x\x1b[2J"), 70, "error: a bug of attnviz: ZeroDivisionError: x␛[2J"),
    "full disk": (OSError(errno.ENOSPC, "x"), 4, "error: cannot write: No space left on device"),
    "quota": (OSError(errno.EDQUOT, "x"), 4, "error: cannot write: Disk quota exceeded"),
    "io": (OSError(errno.EIO, "x"), 4, "error: cannot write: Input/output error"),
    "too big": (OSError(errno.EFBIG, "x"), 4, "error: cannot write: File too large"),
    "denied": (PermissionError(13, "Permission denied", "a.txt"), 3, "error: Permission denied: a.txt"),
    "odd": (OSError("odd"), 3, "error: odd: a file"),
    "pipe": (terminal.ReaderLeft(), 0, ""),
    "leave": (SystemExit(5), 5, ""),
    "leave plainly": (SystemExit(), 0, ""),
    "leave with words": (SystemExit("why"), 1, ""),
    "told to end": (SystemExit(143), 143, "error: ended by SIGTERM"),
    "hung up": (SystemExit(129), 129, "error: ended by SIGHUP"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("debug", ["", "--debug", "ATTNVIZ_DEBUG"])
def test_every_end_has_its_code_and_its_line(
    name: str, debug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stderr_of(monkeypatch)
    fault, code, line = ENDS[name]

    def run(_: list[str]) -> int:
        raise fault

    monkeypatch.setattr(main, "_run", run)
    monkeypatch.setattr(terminal, "drop_stdout", lambda: None)
    monkeypatch.setenv("ATTNVIZ_DEBUG", "Yes" if debug == "ATTNVIZ_DEBUG" else "no")
    assert main.run_guarded([debug] if debug == "--debug" else []) == code
    told = stderr.getvalue().splitlines()
    assert told[:1] == ([] if not line else [told[0]])
    if line:
        assert told[0].startswith(f"attnviz: {line}")
    is_told = debug and name not in ("interrupt", "memory", "pipe", "leave", "leave plainly", "leave with words", "told to end", "hung up")  # fmt: skip
    assert (len(told) > 1) == bool(is_told)
    assert any("Traceback" in one for one in told) == bool(is_told)
    assert "\x1b" not in stderr.getvalue()


def test_a_run_sets_what_must_be_set_and_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(main, "_run", lambda _: 7)
    monkeypatch.setattr(terminal, "flush_stdout", lambda: flushed.append("x"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "9")
    assert main.run_guarded([]) == 7
    assert flushed == ["x"]
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["OPENBLAS_NUM_THREADS"]) == ("1", "1")


def test_a_closed_stderr_or_stdout_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = stderr_of(monkeypatch, is_terminal=True)
    says = (terminal.say, terminal.say_error, terminal.write_line, terminal.draw)
    assert terminal.draw("x")
    stderr.fails = True
    for say in says:
        say("x")
    assert not terminal.draw("x")
    terminal.erase()
    closed = io.StringIO()
    closed.close()
    assert not terminal.is_terminal(closed)
    monkeypatch.setattr(sys, "stderr", None)
    for say in says:
        say("x")
    monkeypatch.setattr(sys, "stdout", None)
    terminal.flush_stdout()
    terminal.write_stdout("x")
    terminal.drop_stdout()
    assert terminal.stdout() is terminal.stderr() is None
    with pytest.raises(ResourceError, match="standard output is closed"):
        main._run([])


def test_a_reader_who_left_is_told_apart_from_other_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.write_stdout("a\x1b[2J")
    assert stream.getvalue() == "a\x1b[2J"  # what formats made is only seen to on a terminal
    stream.is_terminal = True
    terminal.write_stdout("\x1b[2J\x1b[1m\r\n")
    assert stream.getvalue().endswith("\\u{1b}[2J\x1b[1m\r\n")
    stream.fault = BrokenPipeError()
    stream.fails = True
    with pytest.raises(terminal.ReaderLeft):
        terminal.write_stdout("x")
    stream.fault = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        terminal.write_stdout("x")


def test_libraries_are_made_visible_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    out, err = Stream(), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with terminal.guarded():
        print("a\x1b[2J\nb\r")
        sys.stderr.write("c\x07")
        sys.stdout.flush()
        assert (sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.writable()) == (
            "utf-8",
            False,
            True,
        )
        assert sys.stdout.errors == out.errors
        with pytest.raises(OSError, match="no file"):
            sys.stdout.fileno()
        assert (terminal.stdout(), terminal.stderr()) == (out, err)
        warnings.showwarning("odd\x1b", UserWarning, "f", 1)
        err.fails = True
        sys.stderr.write("lost")
        out.fails, out.fault = True, BrokenPipeError()
        with pytest.raises(terminal.ReaderLeft):
            sys.stdout.write("x")
    assert (sys.stdout, sys.stderr) == (out, err)
    assert out.getvalue() == "a␛[2J\nb␍\n"
    assert err.getvalue() == "c␇attnviz: UserWarning of a library: odd␛\n"


def test_a_folder_that_is_gone_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert screen.working_folder() == os.sep


def test_arguments_are_utf_8_whatever_the_locale() -> None:
    assert main.decode_argument("bear", 1) == "bear"
    assert main.decode_argument(os.fsdecode("bär".encode()), 1) == "bär"
    with pytest.raises(UsageError, match="argument 2 is not UTF-8: byte 0xE4 at position 1"):
        main.decode_argument(os.fsdecode(b"b\xe4r"), 2)


@pytest.mark.parametrize(
    ("columns", "is_terminal", "size", "wanted"),
    [("33", False, 99, 33), ("²", False, 99, None), ("9" * 5000, False, 99, 999_999_999), ("0", False, 99, None), ("x", True, 99, 99), ("", True, 0, 80),
     ("", True, None, 80), ("", False, 99, None)],
)  # fmt: skip
def test_how_wide_a_screen_is(
    monkeypatch: pytest.MonkeyPatch, columns: str, is_terminal: bool, size: Any, wanted: Any
) -> None:
    def sized(_: int) -> Any:
        if size is None:
            raise OSError
        return SimpleNamespace(columns=size)

    stream = Stream(is_terminal=is_terminal)
    stream.fileno = lambda: 1  # type: ignore[method-assign]
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", sized)
    assert screen.make_screen(stream=stream).width == wanted
    assert screen.make_screen(stream=stream, width=7).width == 7


@pytest.mark.parametrize(
    ("choice", "is_terminal", "environment", "wanted"),
    [
        ("never", True, {"FORCE_COLOR": "1"}, "none"),
        ("auto", True, {"TERM": "xterm"}, "standard"),
        ("auto", True, {"TERM": "xterm-256color"}, "256"),
        ("auto", True, {"COLORTERM": "TrueColor"}, "truecolor"),
        ("auto", True, {"COLORTERM": "24bit"}, "truecolor"),
        ("auto", False, {"TERM": "xterm"}, "none"),
        ("auto", False, {"FORCE_COLOR": "1", "TERM": "xterm"}, "standard"),
        ("auto", True, {"NO_COLOR": "1"}, "none"),
        ("auto", True, {"TERM": "dumb", "FORCE_COLOR": "1"}, "none"),
        ("always", False, {"NO_COLOR": "1", "TERM": "dumb"}, "standard"),
    ],
)
def test_which_colours_a_screen_has(
    monkeypatch: pytest.MonkeyPatch, choice: str, is_terminal: bool, environment: Any, wanted: str
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = screen.make_screen(stream=Stream(is_terminal=is_terminal), color=choice)
    assert made.colors == wanted


def test_an_unknown_encoding_is_taken_for_ascii() -> None:
    named = [(terminal.encoding_of(Stream(encoding=name))) for name in ("UTF8", "Latin-1", None, "odd")]  # fmt: skip
    assert named == ["utf-8", "iso8859-1", "ascii", "ascii"]


# --- progress -----------------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: at[0])
    return at


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_says_how_long_it_will_still_take(
    is_terminal: bool, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stderr_of(monkeypatch, is_terminal=is_terminal)
    monkeypatch.setenv("COLUMNS", "80")
    tell = progress.Progress("rows")
    for seconds, done in ((100.0, 10), (101.9, 20), (102.0, 30), (102.1, 31), (102.2, 40), (112.0, 110), (130.0, 210)):  # fmt: skip
        now[0] = seconds
        tell(done, 210)
    tell.close()
    tell.close()
    lines = ["rows: 14 %, 18 s left", "rows: 19 %, 12 s left", "rows: 52 %, 12 s left"]
    if is_terminal:
        assert stderr.getvalue() == "".join(f"\r\x1b[K{one}" for one in lines) + "\r\x1b[K"
    else:
        assert stderr.getvalue().splitlines() == [f"attnviz: {lines[n]}" for n in (0, 2)]


def test_a_line_is_cut_to_the_terminal_and_notices_do_not_tear_it(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stderr_of(monkeypatch, is_terminal=True)
    monkeypatch.setenv("COLUMNS", "31")
    meter = progress.Meter()
    assert meter.so_far() == "no shard of this run is complete yet"
    state = Progress(500, 2000, 1, 0, rate=250.0, left_s=6.0)
    meter(state)
    assert stderr.getvalue() == ""
    now[0] += 2
    assert meter.is_due
    meter(state)
    assert stderr.getvalue() == "\r\x1b[K25 %, 6.0 s left, 1 failed, 25"
    meter.say("a worker died")
    assert stderr.getvalue().endswith("25\r\x1b[Kattnviz: a worker died\n")
    now[0] += 9
    meter(Progress(2000, 2000, 1, 0, rate=250.0, left_s=0.0))
    meter.close()
    assert stderr.getvalue().endswith("died\n")
    assert meter.so_far() == "2,000 of 2,000 texts are complete"
    stderr.fails = True
    meter(state)
    stderr.fails = False
    meter.close()
    assert stderr.getvalue().endswith("died\n")


def test_a_meter_speaks_now_and_then_where_nobody_looks(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stderr_of(monkeypatch)
    meter = progress.Meter()
    for seconds, texts in ((101.9, 1), (102.0, 2), (111.9, 3), (112.0, 4), (140.0, 10)):
        now[0] = seconds
        meter(Progress(texts, 10, 0, 0, 0.25, None))
    assert stderr.getvalue().splitlines() == [
        "attnviz: 20 %, 0.25 texts/s, 2 of 10",
        "attnviz: 40 %, 0.25 texts/s, 4 of 10",
    ]
    quiet = progress.Meter(quiet=True)
    now[0] += 99
    quiet(Progress(1, 10, 0, 0, 1.0, None))
    quiet.say("x")
    monkeypatch.setattr(sys, "stderr", None)
    meter(Progress(1, 10, 0, 0, 1.0, None))
    assert len(stderr.getvalue().splitlines()) == 2


# --- where a result goes ------------------------------------------------------------------------

DOCUMENT = Document((Text(("hello",)),), record=None)


def test_formats_are_chosen_by_name_or_by_ending() -> None:
    choose = write.choose_format
    assert choose(Target())[0] == "table"
    assert choose(Target(format="csv", output="a.json"))[0] == "csv"
    for output, name in (("a.JSON", "json"), ("b.md", "markdown"), ("c.ndjson", "jsonl"), ("d.htm", "html"), ("e.txt", "table")):  # fmt: skip
        assert choose(Target(output=output))[0] == name
    assert write._likely_first(".svg")[0] == "svg"
    assert sorted(write._likely_first(".svg")) == sorted(registry.names("formats"))
    assert write._likely_first(".xyz") == registry.names("formats")
    with pytest.raises(UsageError) as caught:
        choose(Target(output="a.xyz"))
    assert str(caught.value).startswith("-o a.xyz: the ending '.xyz' is no format; choose from .csv, .htm, ")  # fmt: skip
    assert ".tex, .tsv, .txt" in str(caught.value)


def test_documents_go_to_stdout_or_a_file(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write.emit(DOCUMENT, Target(), Screen(), Talk())
    assert "hello" in capsys.readouterr().out
    with pytest.raises(
        UsageError, match=r"--format npz is binary: write it to a file, -o NAME\.npz"
    ):
        write.emit(DOCUMENT, Target(format="npz"), Screen(), Talk())
    path = tmp_path / "a.txt"
    write.emit(DOCUMENT, Target(output=str(path)), Screen(), Talk())
    assert capsys.readouterr().err == f"attnviz: wrote {path}\n"
    with pytest.raises(UsageError, match="--force"):
        write.emit(DOCUMENT, Target(output=str(path)), Screen(), Talk())
    write.emit(DOCUMENT, Target(output=str(path), force=True), Screen(), Talk(quiet=True))
    assert capsys.readouterr().err == ""
    assert "hello" in path.read_text()


def test_many_numbers_as_text_are_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write._MANY_NUMBERS == 10**6
    square = Document((Matrix("m", [[0.5] * 3] * 4, (), ()), Matrix("e", [], (), ())), record=None)
    for most, quiet, is_told in ((12, False, False), (11, False, True), (11, True, False)):
        monkeypatch.setattr(write, "_MANY_NUMBERS", most)
        write.emit(square, Target(format="csv"), Screen(), Talk(quiet=quiet))
        assert ("writing 12 numbers as text" in capsys.readouterr().err) is is_told
    row = Document((Matrix("m", [[0.5] * 13], (), ()),), record=None)
    write.emit(row, Target(format="csv"), Screen(), Talk())
    assert "writing 13 numbers" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is binary"):
        write.emit(row, Target(format="npz"), Screen(), Talk())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("name", ["table", "plain", "picture"])
def test_a_file_has_no_width_but_that_of_text(
    name: str, tells: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Screen] = []

    def render(document: Document, screen: Screen, *say: Any) -> bytes:
        seen.append(screen)
        for one in say:
            one("cut")
        return b"x"

    module = SimpleNamespace(render=render, IS_BINARY=True, SUFFIXES=(".x",), **({"TELLS_NOTICES": True} if tells else {}))  # fmt: skip
    monkeypatch.setattr(write, "choose_format", lambda _: (name, module))
    told: list[str] = []
    monkeypatch.setattr(terminal, "say", told.append)
    output = tmp_path / "a"
    write.emit(DOCUMENT, Target(output=str(output)), Screen(width=33, precision=7), Talk())
    assert (seen[0].width, seen[0].precision, seen[0].full_vectors) == (33 if name != "picture" else None, 7, True)  # fmt: skip
    assert told == [*(["cut"] if tells else []), f"wrote {output}"]
    if tells:
        with pytest.raises(UsageError, match=r"cut \(--strict\)"):
            write.emit(
                DOCUMENT, Target(output=str(output), force=True), Screen(), Talk(strict=True)
            )


def test_notices_are_said_counted_as_errors_or_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(terminal, "say", told.append)
    write.say_notices(["a", "b"], Talk())
    write.say_notices(["c"], Talk(quiet=True))
    write.say_notices([], Talk(strict=True))
    assert told == ["a", "b"]
    with pytest.raises(UsageError, match=r"^a \(--strict\)$"):
        write.say_notices(["a", "b"], Talk(strict=True, quiet=True))


def test_third_parties_register_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"attnviz.views": [SimpleNamespace(name="mine", load=lambda: "loaded")]}
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries.get(group, []))
    assert registry.load("views", "mine") == "loaded"
    with pytest.raises(UsageError, match="view 'mines' does not exist"):
        registry.load("views", "mines")
    with pytest.raises(UsageError, match="format 'mine' does not exist"):
        registry.load("formats", "mine")
