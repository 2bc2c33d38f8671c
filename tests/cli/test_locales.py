"""The same results in every locale and every encoding, whatever the terminal can show.

A fresh interpreter per locale runs commands on streams of each encoding; the whole of it, a fresh
interpreter for every locale, encoding and command, is ``slow``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from every_command import CALLS, Call, write_world

TEXT = "a café 猫 🧸 a\u0301 x\u202ey"
LOCALES = ("C", "POSIX", "C.UTF-8", "en_US.ISO-8859-1", "ja_JP.eucJP", "tr_TR.cp1254")
"""The first three are on every machine; a name that is not installed is what users have, too."""
ENCODINGS = ("utf-8", "latin-1", "ascii", "cp1252")
NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")
BARE = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CHANGING = ("doctor", "cost", "config show", "help", "batch", "batch plan")
"""What they print is about the terminal, the time, or the folder: only how they end is compared."""
QUICK = ("explain", "heatmap", "view links", "page", "weights show", "config show", "help")

DRIVER = """
import io, json, os, sys
from attnviz.cli.main import run_guarded
found = []
for arguments, encoding in json.load(open(sys.argv[1], encoding="utf-8")):
    given = [sys.argv[2] if a == "{text}" else a for a in arguments]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = run_guarded(given)
    finally:
        sys.stdout, sys.stderr = kept
    out.flush(), err.flush()
    found.append([code, out.buffer.getvalue().hex(), err.buffer.getvalue().hex()])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


def environment(locale: str, **more: str) -> dict[str, str]:
    dropped = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "LANG", "LC_CTYPE")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    root = str(Path(__file__).parents[2])
    return {**kept, **BARE, "LC_ALL": locale, "PYTHONPATH": root, **more}


def asked(call: Call, format_name: str, out: str) -> list[str]:
    ending = ".html" if call.name == "page" else (call.endings or ("",))[0]
    filled = [a.replace("{out}", f"{out}{ending}") for a in call.arguments]
    at = filled.index("--") if "--" in filled else len(filled)
    return [*filled[:at], *(("-f", format_name) if format_name else ()), *filled[at:]]


def jobs(locale: str, encodings: tuple[str, ...]) -> list[tuple[Call, list[str], str]]:
    made = []
    for number, call in enumerate(CALLS):
        if call.name not in QUICK:
            continue
        for encoding in encodings:
            out = f"{locale}-{encoding}-{number}"
            made.append((call, asked(call, (call.formats or ("",))[0], out), encoding))
    return made


def run_driver(locale: str, world: Path, work: list[tuple[list[str], str]]) -> list[list[str]]:
    plan = world / f"plan-{locale}.json"
    plan.write_text(json.dumps(work), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(plan), TEXT.encode()],
        cwd=world, env=environment(locale), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: list[list[str]] = json.loads(done.stdout)
    return found


def facts(out: bytes, encoding: str, arguments: list[str]) -> object:
    """Return what must not depend on the encoding: JSON as it is, else the numbers."""
    shown = out.decode(encoding)
    if "json" in arguments or "jsonl" in arguments:
        return shown
    bare = re.sub(r"\\u\{?[0-9a-fA-F]+\}?|\\U[0-9a-f]{8}|\\x[0-9a-f]{2}", "", shown)
    return NUMBER.findall(bare)


@pytest.fixture(scope="module")
def right(world: Path) -> dict[str, object]:
    """What a terminal of today shows, by command and format."""
    work = jobs("C.UTF-8", ("utf-8",))
    found = run_driver("C.UTF-8", world, [(arguments, e) for _, arguments, e in work])
    assert [code for code, *_ in found] == [0] * len(work)
    return {
        call.name: facts(bytes.fromhex(out), "utf-8", arguments)
        for (call, arguments, _), (_, out, _) in zip(work, found, strict=True)
    }


@pytest.mark.parametrize("locale", LOCALES)
def test_every_encoding_of_a_locale_shows_the_same(
    locale: str, world: Path, right: dict[str, object]
) -> None:
    encodings = ENCODINGS if locale == "C" else (ENCODINGS[LOCALES.index(locale) % 4],)
    work = jobs(locale, encodings)
    found = run_driver(locale, world, [(arguments, e) for _, arguments, e in work])
    for (call, arguments, encoding), (code, out, err) in zip(work, found, strict=True):
        case = f"{locale} {encoding} {arguments} {bytes.fromhex(err)!r}"
        assert code == 0, case
        assert b"Traceback" not in bytes.fromhex(err), case
        if call.name not in CHANGING:
            assert facts(bytes.fromhex(out), encoding, arguments) == right[call.name], case
        if call.name in ("explain", "view links") and encoding in ("ascii", "latin-1"):
            assert b"\\u732b" in bytes.fromhex(out), case
            assert (b"\\xe9" if encoding == "ascii" else b"\xe9") in bytes.fromhex(out), case


@pytest.mark.slow  # every locale, encoding and command in an interpreter of its own
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("locale", LOCALES)
def test_every_command_in_every_locale_and_encoding(
    locale: str, encoding: str, world: Path
) -> None:
    for number, call in enumerate(CALLS):
        if call.name == "cost" and encoding != ENCODINGS[LOCALES.index(locale) % 4]:
            continue  # half a minute each
        arguments = asked(call, (call.formats or ("",))[0], f"alone-{locale}-{encoding}-{number}")
        shown = alone(world, tuple(arguments), locale, encoding)
        if call.name not in CHANGING:
            usual = asked(call, (call.formats or ("",))[0], f"alone-usual-{number}")
            assert alone(world, tuple(usual), "C.UTF-8", "utf-8") == shown, (call.name, locale)


@cache
def alone(world: Path, arguments: tuple[str, ...], locale: str, encoding: str) -> object:
    """Run a command in an interpreter of its own; return what must be the same everywhere."""
    given = [TEXT.encode() if a == "{text}" else a for a in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", *given], cwd=world, check=False,
        env=environment(locale, PYTHONIOENCODING=encoding), capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stderr)
    assert b"Traceback" not in done.stderr
    return facts(done.stdout, encoding, list(arguments))
