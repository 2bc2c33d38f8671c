"""Write attnviz/README.md, the map of the package: one line per file, from its own docstring."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "attnviz"
HEAD = """\
# The house

One line per file, written from the docstrings by `make map`. Imports go one way:
`cli → runs, render → core, sources → records, errors`.
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def folder_lines(folder: Path) -> list[str]:
    """Return a folder's heading and its files, then those of the folders in it."""
    modules = sorted(p for p in folder.glob("*.py") if p.name != "__init__.py")
    inner = sorted(p.parent for p in folder.glob("*/__init__.py"))
    title = folder.relative_to(PACKAGE.parent).as_posix()
    lines = [f"## {title}", "", first_sentence(folder / "__init__.py") + ".", ""]
    lines += [f"- `{p.name}` {first_sentence(p)}" for p in modules]
    for place in inner:
        lines += ["", *folder_lines(place)]
    return lines


def the_map() -> str:
    """Return the whole map as Markdown."""
    return "\n".join([HEAD, *folder_lines(PACKAGE)]) + "\n"


if __name__ == "__main__":
    (PACKAGE / "README.md").write_text(the_map(), encoding="utf-8")
