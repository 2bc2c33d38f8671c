"""What commands print, as JSON on stdout: run as a child, with the kernels that its parent chose.

``python tests/printed_text.py FOLDER [--raw-errors]``: FOLDER is empty. With ``--raw-errors`` the
lines of checks of one command show the errors themselves, which not all kernels share.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIES = "to be or not to be to be or not to be"
ALL_HEADS = ("explain", "view links", "view neuron", "compare", "heads")
"""Commands that are asked for the trained sample's eight heads as well."""


def commands(folder: Path) -> dict[str, list[str]]:
    """Return golden cases and every quick command; repeated words give keys of equal weight."""
    from every_command import CALLS, write_world
    from golden.test_golden import CASES

    write_world(folder)
    made = {f"golden {name}": ["explain", *words] for name, words in CASES.items()}
    for call in CALLS:
        if call.takes_text and call.formats and not call.is_slow and call.name != "view walk":
            made[call.name] = call.fill(TIES)
            if call.name in ALL_HEADS:
                made[f"{call.name}, sample-8"] = [
                    "sample-8" if word == "layer.npz" else word for word in made[call.name]
                ]
    return made


def printed(arguments: list[str]) -> str:
    """Run the program in this process; return its exit code and what it wrote to stdout."""
    from attnviz.cli.main import run_guarded

    with tempfile.TemporaryFile() as stream:
        own = os.dup(1)
        os.dup2(stream.fileno(), 1)
        try:
            code = run_guarded(arguments)
            sys.stdout.flush()
        finally:
            os.dup2(own, 1)
            os.close(own)
        stream.seek(0)
        return f"exit code {code}\n{stream.read().decode()}"


def main(folder: str, *more: str) -> None:
    """Print {command: what it printed}."""
    import numpy  # noqa: F401  (before the program would ask it for one thread)

    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.chdir(folder)
    os.environ.update(COLUMNS="80", HOME=folder, XDG_CACHE_HOME=folder)
    if "--raw-errors" in more:
        from attnviz.render.views import walk

        walk.bound = lambda error, floor=0.0: f"{error:.16e}"
    asked = commands(Path(folder))
    if "--raw-errors" in more:
        asked = {name: words for name, words in asked.items() if name == "golden zoom"}
    found = {name: printed(words) for name, words in asked.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
