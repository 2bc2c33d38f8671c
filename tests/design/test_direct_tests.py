"""Every module has a test that asks it itself: named after it, or importing from it.

``UNTESTED`` holds those that have none; they are reached through commands only. It may only shrink.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNTESTED = {
    "attnviz/api.py",
    "attnviz/cli/completion.py",
    "attnviz/cli/config.py",
    "attnviz/cli/doctor.py",
    "attnviz/cli/model.py",
    "attnviz/cli/page.py",
    "attnviz/cli/signals.py",
    "attnviz/core/stream/joined.py",
    "attnviz/render/formats/_blocks.py",
    "attnviz/render/formats/npz.py",
    "attnviz/render/formats/safetensors.py",
    "attnviz/render/notebook.py",
    "attnviz/render/picture/draw.py",
    "attnviz/sources/confined/tokenizer_task.py",
    "attnviz/sources/families/verifying.py",
    "attnviz/sources/models/capture/lazy_bias.py",
    "attnviz/sources/models/capture/lengths.py",
    "attnviz/sources/models/capture/state.py",
    "attnviz/sources/models/writing.py",
    "attnviz/sources/models/written.py",
}


def imported(path: Path) -> set[str]:
    """Return every dotted name that a test imports: of ``from a.b import c`` also ``a.b.c``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def test_every_module_has_a_test_of_its_own() -> None:
    tests = list((ROOT / "tests").rglob("*.py"))
    names = {p.stem.removeprefix("test_") for p in tests if p.stem.startswith("test_")}
    asked = set().union(*(imported(p) for p in tests))
    lacking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "attnviz").rglob("*.py")
        if path.stem not in ("__init__", "__main__")
        and path.stem.strip("_") not in names
        and ".".join(path.relative_to(ROOT).with_suffix("").parts) not in asked
    }
    assert lacking <= UNTESTED, "write a test that asks these directly"
    assert lacking >= UNTESTED, "these are tested now: take them off the list"
