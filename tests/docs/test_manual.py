"""What is written from the command tree: complete, well formed, and built without a warning."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support import Result
from typer.main import get_command

import attnviz
from attnviz import errors
from attnviz.cli.app import app
from attnviz.cli.options import SHORT_PANELS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as HTML and as a man page, from a copy; any warning is an error."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("built")
    for name in ("attnviz", "docs"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_generated")
        )
    for kind in ("html", "man"):
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", kind,
             "-d", str(folder / "trees"), "docs", str(folder / kind)],
            cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return folder


def written_by(name: str) -> Any:
    """Return one of the modules that write documentation."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return import_module(name)
    finally:
        sys.path.pop(0)


def test_the_kept_man_page_is_in_step() -> None:
    """``make man`` writes it; it is what a wheel brings, so it must be the program's own."""
    now = written_by("man").stamp(written_by("generate").commands())
    if os.environ.get("ATTNVIZ_UPDATE_GOLDEN"):
        written_by("man").KEPT.write_text(written_by("man").page(), encoding="utf-8")
    first = (ROOT / "docs/attnviz.1").read_text(encoding="utf-8").splitlines()[0]
    assert first == now, "the commands have changed: run make man"


def test_the_kept_man_page_is_what_sphinx_builds(built: Path) -> None:
    import sphinx

    if f"sphinx=={sphinx.__version__}" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another sphinx than the one of constraints.txt")
    text = (built / "man/attnviz.1").read_text(encoding="utf-8")
    kept = (ROOT / "docs/attnviz.1").read_text(encoding="utf-8")
    assert written_by("man").tidy(text) == kept.partition("\n")[2]


def test_every_command_and_option_is_there() -> None:
    generate = written_by("generate")
    root = get_command(app)
    text = generate.commands()
    for path, command in generate.leaves(root):
        head = f".. program:: attnviz {' '.join(path)}\n"
        assert head in text
        part = text.split(head)[1].split(".. program::")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                for name in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"^\.\. option::.*(^| ){name}\b", part, re.M), (path, name)


def test_the_reference_says_what_help_says(
    cli: Callable[..., Result],
) -> None:
    """The same options, with the same words, defaults and examples."""
    text = written_by("generate").commands()
    for path, _ in written_by("generate").leaves(get_command(app)):
        shown = cli(*path, "--help").out
        part = text.split(f".. program:: attnviz {' '.join(path)}\n")[1].split(".. program::")[0]
        plain = re.sub(r"\\(.)", r"\1", part)
        panels, _, examples = shown.partition("\n  Examples:")
        words = " ".join(panels.split())
        brief = "".join(re.findall(rf"^(?:{'|'.join(SHORT_PANELS)}): .*(?:\n  .*)*", panels, re.M))
        told = re.findall(r"^\.\. option:: (.*)\n\n   (.*)$", plain, re.M)
        assert len(told) > 2, path
        for name, said in told:
            names = re.findall(r"(?<![\w-])--?[a-zA-Z][a-z0-9-]*", name.partition(" <")[0])
            assert all(re.search(rf"(?<![\w-]){n}(?![\w-])", words) for n in names), (path, name)
            assert said in words or names[-1] in brief, (path, name)
        for example in re.findall(r"^ *(attnviz .*)$", examples, re.M):
            assert f"   {example.strip()}\n" in part, (path, example)


def test_every_schema_is_there() -> None:
    text = written_by("generate").schemas()
    for path in (ROOT / "attnviz/schemas").glob("*.json"):
        assert path.name in text
        for told in re.findall(r'"description": "(.*)"', path.read_text(encoding="utf-8")):
            assert told.replace("|", "\\|") in text, (path.name, told)
    for field in ("tokens[].label", "files.*.bytes", "sizes.d_k", "heads[].entropy.mean"):
        assert f"`{field}`" in text


def test_the_man_page_is_well_formed(built: Path) -> None:
    page = built / "man/attnviz.1"
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().startswith(('.\\"', '.TH "ATTNVIZ"', "'\\\""))
    for section in ("NAME", "SYNOPSIS", "ATTNVIZ EXPLAIN", "SETTINGS", "EXIT STATUS"):
        assert re.search(rf'^\.SH "?{section}"?$', text, re.M | re.I), section
    assert "attnviz \\- a microscope" in text
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: the page's macros are not checked")
    done = subprocess.run(
        ["groff", "-k", "-man", "-ww", "-Tutf8", str(page)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "--weights" in done.stdout


def test_the_pages_ask_for_nothing_from_elsewhere(built: Path) -> None:
    pages = sorted((built / "html").rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="(https?:[^"]*)"', text)
        assert not asked, (page.name, asked)
        assert str(ROOT) not in text


def test_every_public_name_is_in_the_reference() -> None:
    """``__all__``, and every class that a public function returns, with docstrings that are whole."""
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    for name in set(attnviz.__all__) - {"__version__", "AttnvizError"}:
        told = getattr(attnviz, name)
        assert re.search(rf"^\.\. auto(function|class):: (\S+\.)?{name}$", text, re.M), name
        if inspect.isfunction(told):
            whole = inspect.getdoc(told) or ""
            for part in ("Parameters", "Returns", "Raises"):
                assert f"\n{part}\n---" in whole, (name, part)
            given = str(inspect.signature(told).return_annotation)
            given = re.sub(r"^Iterator\[(.*)\]$", r"\1", given)  # of a context manager
            assert given == "Any" or f".{given}\n" in text, (name, given)
    assert ".. automodule:: attnviz.errors" in text


def test_the_exit_codes_are_the_programs_own() -> None:
    codes = {
        fault.exit_code for fault in vars(errors).values()
        if inspect.isclass(fault) and issubclass(fault, errors.AttnvizError)
    }  # fmt: skip
    for page in ("docs/reference/exit-codes.md", "README.md", "docs/attnviz.1"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for code in {0, 70, 130, 143} | codes:
            assert re.search(rf"\b{code}\b", text), (page, code)
    table = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    rows = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for n in row.split(",")}
    assert rows == {0, 70, 129, 130, 143} | codes
    for name, fault in vars(errors).items():
        if inspect.isclass(fault) and issubclass(fault, errors.AttnvizError) and name[0] != "_":
            assert f"`{name}`" in table, name
