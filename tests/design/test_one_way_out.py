"""One module writes to the terminal: no other file of the package knows how."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "attnviz"
HOME = "cli/terminal.py"
CHILDREN = {
    "sources/confined/child.py", "runs/cost_child.py", "runs/batch/engines/_worker.py",
}  # fmt: skip
"""Programs of their own, whose standard output is a pipe that the parent reads as data."""
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
CALLS = {
    "print", "input", "echo", "secho", "confirm", "prompt", "style", "progressbar", "pause",
    "getpass", "basicConfig", "StreamHandler", "print_exc", "print_exception", "print_stack",
    "dump_traceback", "excepthook", "displayhook", "print_json", "inspect", "breakpoint",
}  # fmt: skip
DESCRIPTORS = {"write", "writev", "dup2", "fdopen", "pwrite"}
MODULES = {
    "logging",
    "rich.prompt",
    "rich.progress",
    "rich.live",
    "rich.traceback",
    "curses",
    "tty",
}


def ways_out(source: str) -> Iterator[str]:
    """Yield what a file does that could reach a terminal, with its line."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and node.attr in STREAMS:
            if isinstance(node.value, ast.Name) and node.value.id == "sys":
                yield f"{line}: sys.{node.attr}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            if last in CALLS and not name.startswith(("self.", "console.")):
                yield f"{line}: {name}()"
            elif last == "Console" and "file" not in {k.arg for k in node.keywords}:
                yield f"{line}: a console without a file"
            elif name.startswith("os.") and last in DESCRIPTORS and _is_standard(node):
                yield f"{line}: {name} of a standard descriptor"
            elif name.endswith("warnings.warn"):
                yield f"{line}: {name}()"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                names = {node.module or "", *(f"{node.module}.{name}" for name in names)}
                if node.module == "sys" and names & {f"sys.{name}" for name in STREAMS}:
                    yield f"{line}: a stream imported from sys"
            if names & MODULES or "rich.print" in names or "typer.echo" in names:
                yield f"{line}: import of {', '.join(sorted(names))}"


def _is_standard(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Constant) and a.value in (1, 2) for a in call.args[:2])


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_nothing_else_writes_to_a_terminal(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    found = [] if place in (HOME, *CHILDREN) else list(ways_out(path.read_text(encoding="utf-8")))
    if (
        place == "sources/confined/silence.py"
    ):  # it closes the descriptors to native code, and opens them again
        found = [way for way in found if "os.dup2" not in way]
    assert found == []


def test_the_home_and_the_children_are_still_there() -> None:
    for place in (HOME, *CHILDREN):
        assert list(ways_out((PACKAGE / place).read_text(encoding="utf-8"))), place


@pytest.mark.parametrize(
    "code",
    [
        "print('x')", "import sys\nsys.stdout.write('x')", "import sys\nfile = sys.stderr",
        "import typer\ntyper.echo('x')", "from typer import echo", "from rich import print",
        "from rich.console import Console\nConsole().print('x')", "import os\nos.write(2, b'x')",
        "import logging", "from sys import stdout", "import warnings\nwarnings.warn('x')",
        "import traceback\ntraceback.print_exc()", "from rich.progress import track", "input('x')",
    ],
)  # fmt: skip
def test_the_test_can_fail(code: str) -> None:
    assert list(ways_out(code))


DISK = {
    "runs/store.py": "what the user gets", "runs/batch/lock.py": "the lock of a batch",
    "sources/models/cache.py": "the user's cache", "sources/models/gguf_convert.py": "the same",
    "sources/families/tokenizing.py": "the same", "sources/confined/pt_task.py": "a copy, in a child",
    "runs/cost_child.py": "/proc",
}  # fmt: skip
"""The only files that write to a disk; everything else hands its bytes to them."""
MAKERS = {
    "savez",
    "savez_compressed",
    "savefig",
    "mkdir",
    "makedirs",
    "rename",
    "replace",
    "symlink",
}


def writes(source: str) -> Iterator[str]:
    """Yield what a file does that could write to a disk, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        if last == "open":
            if any(
                isinstance(m, str) and set(m) <= set("rwaxb+t") and set(m) & set("wax+")
                for m in modes
            ):
                yield f"{node.lineno}: {name}"
        elif (
            last in ("write_bytes", "save_file", "imsave", "tofile")
            or name == "np.save"
            or (last == "write_text" and isinstance(node.func, ast.Attribute))
            or (last in MAKERS and name.startswith(("os.", "shutil.", "np.", "target.", "path.")))
        ):
            yield f"{node.lineno}: {name}"


def test_nothing_else_writes_to_a_disk() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        ways = [w for w in writes(path.read_text(encoding="utf-8")) if "archive.open" not in w]
        if ways and place not in DISK:
            found[place] = ways
    assert found == {}
    for code in ("open('a', 'w')", "path.write_bytes(b'')", "np.savez(a)", "os.rename(a, b)"):
        assert list(writes(code))
