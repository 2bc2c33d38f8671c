"""Every console block of the README is run and compared.

``ATTNVIZ_UPDATE_GOLDEN=1`` writes the outputs anew.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Result

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.S)


def run_block(block: str, cli: Callable[..., Result]) -> str:
    """Run the ``$ attnviz`` lines of a block and return the block as it should be."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ attnviz"):
            done = cli(*shlex.split(line[2:])[1:])
            assert done.code == 0, (line, done.err)
            lines.append(line + "\n" + done.out)
    return "\n".join(part.rstrip("\n") for part in lines) + "\n"


def test_console_blocks(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = README.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    found = BLOCK.sub(lambda m: f"```console\n{run_block(m[1], cli)}```", text)
    if os.environ.get("ATTNVIZ_UPDATE_GOLDEN"):
        README.write_text(found, encoding="utf-8")
    assert found == README.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 2
    assert len(text.splitlines()) <= 120, "reference goes to docs"


def test_the_python_example(cli: Callable[..., Result]) -> None:
    text = README.read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(code, "README", "exec"), {})


def test_the_tree_is_true() -> None:
    """Every place that the README's tree names exists."""
    text = README.read_text(encoding="utf-8")
    tree = text.split("```text\n")[1].split("```")[0]
    for line in tree.splitlines():
        name = line.split()[0] if line.strip() else ""
        if name:
            assert (README.parent / name).exists(), name
