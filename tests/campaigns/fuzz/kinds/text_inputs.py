"""Texts: single ones given to ``explain``, and files of them as ``batch`` reads them.

An ``explain`` runs the command line in this process and looks at what it would have shown: its
exit code, one line of error at most, and not one control character of the text.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fuzz.drawing import change_bytes, change_text
from fuzz.kinds import Kind

_WORDS = ("A", "cute", "teddy", "bear", "is", "reading", "猫は", "שלום", "مرحبا", "हिन्दी", "🧸", "👩‍👩‍👧", "é", "e\u0301",
          "don't", "3.14", "…", "--help", "-4", "@file", "ﬁ", "Ⅳ", "\u00a0", "\u3000", "İ", "ß", "[MASK]")  # fmt: skip
_CONTROLS = (*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), "\u200b", "\u200d", "\u200e", "\u202a",
             "\u202e", "\u2066", "\u2069", "\ufeff", "\u2028", "\u2029", "\ufff9", "\U000e0041", "\ud800", "\udfff",
             "\ufe0f", "\u0301" * 20)  # fmt: skip
_FORMATS = ("plain", "table", "json", "csv", "tsv", "markdown", "latex")
# a table of every pair of tokens takes its time: that is no hang
_MOST_CHARS = {**dict.fromkeys(_FORMATS, 80), "table": 24}
_BAD = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_ALLOWED_ON_SCREEN = frozenset("\n")


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Write a text, or a file of texts in one of the formats of ``batch``."""
    lines = [_text(draw) for _ in range(draw.choice((1, 1, 2, 5)))]
    kind = draw.choice(("one", "one", "one", "txt", "jsonl", "csv", "tsv"))
    if kind == "one":
        form = draw.choice(_FORMATS)
        return {f"one.{form}": lines[0][: _MOST_CHARS[form]].encode("utf-8", "surrogatepass")}
    if kind == "txt":
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
    elif kind == "jsonl":
        data = "\n".join(json.dumps(_row(line, draw)) for line in lines).encode()
    else:
        mark = "," if kind == "csv" else "\t"
        rows = [
            f"text{mark}n",
            *(f"{_quoted(line, draw)}{mark}{i}" for i, line in enumerate(lines)),
        ]
        data = draw.choice(("\n", "\r\n", "\r")).join(rows).encode("utf-8", "surrogatepass")
    change = draw.random()
    if change < 0.3:
        data = change_bytes(data, draw)
    elif change < 0.35:
        data = data.decode("utf-8", "replace").encode(
            draw.choice(("utf-16", "latin-1", "utf-32")), "replace"
        )
    elif change < 0.4:
        data = b"\xef\xbb\xbf" + data
    elif change < 0.42:
        data += b"x" * draw.choice((1 << 16, 1 << 20, (1 << 20) + 1))
    return {f"texts.{kind}": data}


def _text(draw: random.Random) -> str:
    words = [draw.choice(_WORDS) for _ in range(draw.choice((0, 1, 1, 2, 3, 5, 8, 30)))]
    made = draw.choice((" ", " ", " ", "", "  ", "\n")).join(words)
    for _ in range(draw.choice((0, 1, 1, 2, 5))):
        place = draw.randrange(len(made) + 1)
        made = made[:place] + draw.choice(_CONTROLS) + made[place:]
    if draw.random() < 0.2:
        made = change_text(made, draw)
    if draw.random() < 0.1:
        made = "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randint(1, 20)))
    return made


def _row(line: str, draw: random.Random) -> object:
    return draw.choice(
        (line, {"text": line}, {"text": line, "n": 1}, {"text": None}, [line], {}, 5)
    )


def _quoted(line: str, draw: random.Random) -> str:
    quoted = '"' + line.replace('"', '""') + '"'
    return draw.choice((quoted, quoted, line, '"' + line))


def prepare(folder: Path) -> None:
    """Load what the command line loads."""
    read(folder, {"one.plain": b"a bear"})


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Explain a text, or read a file's rows and cut each."""
    name, data = next(iter(files.items()))
    if name.startswith("one."):
        from attnviz.errors import AttnvizError
        from attnviz.runs.explain import explain as call

        text = data.decode("utf-8", "surrogatepass")
        with contextlib.suppress(AttnvizError):  # as a library: half surrogates are possible here
            call(text)
        # as an argument, bytes that are not UTF-8 arrive as the system hands them on
        return explain(data.decode("utf-8", "surrogateescape"), name.partition(".")[2])
    return read_file(folder / name)


def explain(text: str, form: str) -> object:
    """Run ``attnviz explain -- TEXT`` here; check what would have reached the terminal."""
    from attnviz.cli.main import run_guarded
    from attnviz.errors import InputError

    out, err = _Stream(), _Stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_guarded(["explain", "-f", form, "-w", "sample", "--", text])
    shown, told = out.text(), err.text()
    assert code in (0, 2, 3), f"exit {code}: {told[:300]!r}"
    assert "Traceback" not in told, told[-500:]
    lines = told.splitlines()
    assert code == 0 or (not shown and len(lines) >= 1), (
        f"exit {code} with {shown[:100]!r}, {told!r}"
    )
    screen = told if form in ("json", "csv", "tsv", "latex", "markdown") else shown + told
    for char in screen:
        bad = unicodedata.category(char) in _BAD and char not in _ALLOWED_ON_SCREEN
        assert not bad, f"U+{ord(char):04X} reaches the terminal"
    if code == 0 and form == "json":
        json.loads(shown, parse_constant=_refuse)
    if code:
        raise InputError(lines[0])
    return shown


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} in JSON")


class _Stream(io.TextIOWrapper):
    """A strict UTF-8 stream, as a terminal's is."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="strict", newline="")

    def text(self) -> str:
        self.flush()
        held: io.BytesIO = self.buffer  # type: ignore[assignment]
        return held.getvalue().decode("utf-8")


@cache
def _sample() -> object:
    from attnviz.core.reference import project
    from attnviz.sources.layers.weights import open_weights

    return open_weights("sample", project=project)


def read_file(path: Path) -> object:
    """Read the rows as ``batch`` does, and cut each row's text."""
    from attnviz.errors import InputError
    from attnviz.runs.batch.inputs import open_inputs
    from attnviz.runs.batch.rows import read_rows

    source = _sample()
    rows = []
    inputs = open_inputs([str(path)])
    try:
        for row in read_rows(inputs):
            assert (row.text is None) == bool(row.error), "a row with neither text nor error"
            assert "\n" not in row.error
            rows.append(row)
            if row.text is not None and len(row.text) < 10_000:
                with contextlib.suppress(InputError):  # no tokens
                    source.tokenize(row.text)  # type: ignore[attr-defined]
    finally:
        for one in inputs:
            one.close()
    assert [row.number for row in rows] == list(range(len(rows)))
    return rows


KIND = Kind(make, read, prepare)
