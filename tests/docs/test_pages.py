"""The documentation: every console and Python block runs, every link leads somewhere.

A block may leave lines out: ``[…]`` alone on a line stands for any number of them. A ``toml`` block
is the settings file of the blocks behind it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Result

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(console|python|toml)\n(.*?)^```$", re.M | re.S)
GAP = "[…]"
TESTED_ELSEWHERE = ("batch.md", "heads.md", "length.md", "models.md")
PAGES = sorted(
    p for p in DOCS.rglob("*.md")
    if BLOCK.search(p.read_text(encoding="utf-8")) and p.name not in TESTED_ELSEWHERE
)  # fmt: skip


def fits(shown: str, output: str) -> bool:
    """Tell whether an output is what a page shows, its gaps filled."""
    at, lines = 0, output.rstrip("\n").split("\n") if output else []
    parts = [
        p.strip("\n").split("\n") if p.strip("\n") else []
        for p in f"\n{shown}\n".split(f"\n{GAP}\n")
    ]
    for number, part in enumerate(parts):
        last = len(lines) - len(part)
        places = [0] if number == 0 else range(at, last + 1)
        if number == len(parts) - 1:
            places = [last] if number == 0 or last >= at else []
            places = [p for p in places if number or p == 0]
        found = next((p for p in places if lines[p : p + len(part)] == part), None)
        if found is None:
            return False
        at = found + len(part)
    return True


def test_fits() -> None:
    assert fits("a\nb", "a\nb\n")
    assert not fits("a", "a\nb\n")
    assert not fits("b", "a\nb\n")
    assert fits("a\n[…]", "a\nb\nc\n")
    assert fits("[…]\nc", "a\nb\nc\n")
    assert fits("[…]\nb\n[…]", "a\nb\nc\n")
    assert not fits("[…]\nc\nb\n[…]", "a\nb\nc\n")
    assert not fits("[…]\nb", "a\nb\nc\n")
    assert fits("", "")
    assert not fits("", "a\n")


def run_console(block: str, cli: Callable[..., Result]) -> None:
    commands = re.split(r"^\$ ", block, flags=re.M)[1:]
    assert commands
    for text in commands:
        line, _, shown = text.partition("\n")
        words = shlex.split(line)
        assert words[0] == "attnviz", line
        done = cli(*words[1:])
        assert done.code == 0, (line, done.err)
        assert fits(shown, done.out), f"$ {line}\n{done.out}"


@pytest.mark.slow
def test_the_examples_with_real_models(
    cli: Callable[..., Result],
    minilm: Path,
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their printed digits are those of one kind of processor: not in the default run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copytree(minilm, "all-MiniLM-L6-v2", symlinks=False)
    shutil.copy(smollm2, smollm2.name)
    found = BLOCK.findall((DOCS / "models.md").read_text(encoding="utf-8"))
    assert [kind for kind, _ in found] == ["console"]
    run_console(found[0][1], cli)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_blocks_run(
    page: Path, cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {"__name__": page.stem}
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "console":
            run_console(block, cli)
        elif kind == "toml":
            (tmp_path / "attnviz.toml").write_text(block, encoding="utf-8")
        else:
            exec(compile(block, str(page), "exec"), names)


def test_there_are_pages() -> None:
    assert len(PAGES) >= 6


@pytest.mark.parametrize(
    "page",
    sorted(
        [*DOCS.rglob("*.md"), ROOT / "SECURITY.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    ),
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    if "_generated" in page.parts:
        return
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_figures_of_the_tutorial() -> None:
    """What the text says about its numbers, beside the blocks."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for length, n_scores, size in re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (.*?) \|$", text, re.M):
        n, cells = int(length.replace(",", "")), int(n_scores.replace(",", ""))
        assert cells == n * n
        number, unit = size.split()
        scale = {"bytes": 1, "MB": 1e6, "GB": 1e9}[unit]
        assert round(4 * cells / scale) == int(number)
