"""What a person sees on a terminal: ``explain`` ends in its answer, and that fits on the last screen."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support import SENTENCE, Result

from attnviz import explain

pty = pytest.importorskip("pty", reason="children are forked")

TWELVE = "the old man and the sea is a book about a fish"
SIXTEEN = f"{TWELVE} and two small boys"
SIZES = [(24, 80), (40, 120)]


@dataclass(frozen=True)
class Shown:
    lines: list[str]

    def last_screen(self, rows: int) -> str:
        """Return what is left on a terminal of so many lines, one of them the prompt."""
        return "\n".join(self.lines[-(rows - 1) :])


def seen(rows: int, columns: int, *arguments: str, colour: bool = False) -> Shown:
    """Run the command line on a terminal of its own."""
    import fcntl
    import struct
    import termios

    child, fd = pty.fork()
    if not child:  # the terminal is ours to size before anything asks for it
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        dropped = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")
        env = {k: v for k, v in os.environ.items() if k not in dropped}
        env |= {"TERM": "xterm-256color"} | ({} if colour else {"NO_COLOR": "1"})
        os.execve(sys.executable, [sys.executable, "-m", "attnviz", *arguments], env)
    out = b""
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:  # what Linux says when the other end is gone
            break
        if not part:
            break
        out += part
    os.close(fd)
    assert os.waitpid(child, 0)[1] == 0
    text = out.decode().replace("\r\n", "\n")
    return Shown(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines())


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("text", [SENTENCE, TWELVE, SIXTEEN])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_the_last_screen_holds_the_whole_answer(
    rows: int, columns: int, text: str, colour: bool
) -> None:
    shown = seen(rows, columns, "explain", text, colour=colour)
    last = shown.last_screen(rows)
    assert max(map(len, shown.lines)) <= columns
    assert "sample · scores / 8 · checked: row sums ±1e-" in last
    words = text.split()
    head = last[last.rindex("query") :].splitlines()
    names = head[: next(n for n, line in enumerate(head) if line.split()[:2] == ["0", words[0]])]
    assert sorted(" ".join(names).split()) == sorted(["query", *words]), "every key has its name"
    weights = explain(text).stages["weights"][0, 0]
    for row, word in enumerate(words):
        line = re.search(
            rf"^ *{row} {word} +(.*?)  +{word} → (\S+) ([\d.]+) %$", last, re.MULTILINE
        )
        assert line, f"{row} {word}"
        numbers = [int(n) for n in line[1].split()]
        assert len(numbers) == len(words)
        assert all(abs(n - 100 * weights[row, k]) <= 0.51 for k, n in enumerate(numbers))
        best = max(range(len(words)), key=lambda k: weights[row, k])
        assert line[2] == ("itself" if best == row else words[best])
        assert abs(float(line[3]) - 100 * weights[row, best]) <= 0.051


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_the_walk_stands_above_it_each_table_once_and_in_few_lines(rows: int, columns: int) -> None:
    shown = seen(rows, columns, "explain", SENTENCE)
    assert len(shown.lines) <= 110
    starts = [
        [n for n, line in enumerate(shown.lines) if line.startswith(title)]
        for title in ("Tokens", "x: ", "q, ", "k, ", "v, ", "scores = ", "scaled = ", "weights = ",
                      "output z", "sample · ")
    ]  # fmt: skip
    assert all(len(found) == 1 for found in starts)
    assert starts == sorted(starts), "in the order they are computed"
    assert "part 1 of" not in "\n".join(shown.lines)


def test_a_pipe_a_format_a_file_and_full_keep_the_whole_walk(
    cli: Callable[..., Result], tmp_path: object
) -> None:
    whole = cli("explain", SENTENCE, "--width", "80").out.splitlines()
    assert "weights in per cent" in whole
    assert whole[-1].endswith('5 "reading" looks most at "is" (64.5 %).')
    assert seen(24, 80, "explain", SENTENCE, "-f", "table").lines == whole
    full = seen(24, 80, "explain", SENTENCE, "--full").lines
    assert len(full) > len(whole)


def test_brief_is_the_end_of_the_walk_alone_in_a_pipe_too(cli: Callable[..., Result]) -> None:
    brief = cli("explain", SENTENCE, "--brief", "--width", "80").out.splitlines()
    assert seen(24, 80, "explain", SENTENCE).lines[-len(brief) :] == brief
    refused = cli("explain", SENTENCE, "--brief", "--token", "teddy")
    assert refused.code == 2
    assert "leave out --token" in refused.err


def test_stage_and_token_choose_together(cli: Callable[..., Result]) -> None:
    both = cli("explain", SENTENCE, "-s", "q,k,weights", "-t", "teddy", "--precision", "2").out
    rows = [line.split()[1] for line in both.splitlines() if line.startswith("│")]
    assert rows == [
        "token", "teddy", "token", *SENTENCE.split(), "query", "teddy", "query", "teddy",
    ]  # fmt: skip


def test_a_walk_without_end_is_not_poured_out() -> None:
    text = " ".join(f"{TWELVE} {word}" for word in ("red", "green", "blue", "cute", "teddy") * 9)
    shown = seen(24, 80, "explain", text)
    assert len(shown.lines) <= 24
    assert "--full shows all" in shown.lines[0]
    last = shown.last_screen(24)
    assert "each cell is the largest of 49 × 49 cells" in last
    assert re.search(r"\d+:red → sea \d\.\d %", last)


@pytest.mark.parametrize("columns", [40, 60])
def test_narrow_terminals_have_the_sentences_below(columns: int) -> None:
    shown = seen(24, columns, "explain", SENTENCE, "--brief")
    assert max(map(len, shown.lines)) <= columns
    assert len(shown.lines) <= 23
    assert any("teddy → bear 99.8 %" in line for line in shown.lines)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("explain", "A", "cute", "bear"), 'put the text in quotes, attnviz explain "A cute bear"'),
        (("view", "links", "A", "bear"), 'put the text in quotes, attnviz view links "A bear"'),
        (("compare", "A", "cute", "bear"), "put each text in quotes"),
        (("a bear",), 'attnviz explain "a bear"'),
        (("A", "cute", "bear", "--causal"), 'attnviz explain "A cute bear"'),
        (("explian", "x"), "Did you mean 'explain'"),
    ],
)
def test_a_text_without_quotes_or_command_is_told_what_to_type(
    cli: Callable[..., Result], typed: tuple[str, ...], told: str
) -> None:
    done = cli(*typed)
    assert done.code == 2
    assert told in done.err
    assert done.err.count("\n") == 1


def test_links_on_a_terminal_are_lines_and_no_table(cli: Callable[..., Result]) -> None:
    lines = seen(24, 80, "view", "links", SENTENCE).lines
    assert "2 teddy   → bear     99.8 % █████" in lines
    assert not any(line.startswith("│") for line in lines)
    assert max(map(len, lines)) <= 80
    piped = cli("view", "links", SENTENCE, "--width", "80").out
    assert "2 teddy   → bear     99.8 % █████" in piped
    assert "│ 0.9984 │" in piped


def test_a_grid_has_a_line_of_thumbnails_per_layer_and_names_heads_once(
    cli: Callable[..., Result],
) -> None:
    heads = ("-w", "random", "--n-heads", "12", "--head", "all", "--d-model", "48", "--d-k", "4")
    lines = cli("view", "grid", "A cute teddy bear is", *heads, "--width", "80").out.splitlines()
    names = [line for line in lines if "H11" in line]
    assert names == ["   " + " ".join(f"H{n}".ljust(5) for n in range(12)).rstrip()]
    (row,) = [line for line in lines if line.startswith("L0 ")]
    assert all(row[names[0].index(f"H{n} ") - 1] == " " for n in range(11))
    narrow = cli("view", "grid", "A cute teddy bear is", *heads, "--width", "40").out.splitlines()
    assert [line.split() for line in narrow if "H0 " in line or "H11" in line] == [
        [f"H{n}" for n in range(6)], [f"H{n}" for n in range(6, 12)],
    ]  # fmt: skip


@pytest.mark.parametrize("view", ["entropy", "links", "grid", "heatmap"])
@pytest.mark.parametrize("columns", [32, 80])
def test_views_stay_within_the_width(cli: Callable[..., Result], view: str, columns: int) -> None:
    for more in ((), ("-w", "sample-8", "--head", "all")):
        done = cli("view", view, f"{TWELVE} newspaper", *more, "--width", str(columns))
        assert max(map(len, done.out.splitlines())) <= columns


def test_a_summary_of_many_heads_is_one_screen_or_two_by_layer(cli: Callable[..., Result]) -> None:
    heads = ("-w", "random", "--n-heads", "270", "--d-model", "16", "--d-k", "4", "--causal")
    shown = cli("summary", SENTENCE, *heads, "--width", "80").out.splitlines()
    assert len(shown) <= 60
    assert any("each of the 270 heads" in line for line in shown)
    rows = cli("summary", SENTENCE, *heads, "-f", "csv").out.splitlines()
    assert len([row for row in rows if row.startswith("0,")]) == 270
