"""The man page: built by sphinx from the command tree, kept in ``docs/attnviz.1`` and shipped.

``make man`` writes it. It is kept, not built at installation, so that installing needs no sphinx; its
first line holds the SHA-256 of the text it was made from, and a test compares that with the program.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE / "attnviz.1"


def stamp(text: str) -> str:
    """Return the line that says what a page was made from."""
    return f'.\\" From the command tree, by make man: sha256 {hashlib.sha256(text.encode()).hexdigest()}'


def page(docs: Path = HERE) -> str:
    """Build the man page with sphinx and return it, without the name of the tool that wrote it."""
    import generate

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "man",
                   "-d", f"{folder}/trees", str(docs), folder]  # fmt: skip
        subprocess.run(command, check=True)
        text = (Path(folder) / "attnviz.1").read_text(encoding="utf-8")
    return f"{stamp(generate.commands())}\n{tidy(text)}"


def tidy(text: str) -> str:
    """Return a page without the lines about the tool that wrote it, and without trailing blanks."""
    text = re.sub(r'\A(\.\\".*\n)+', "", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    KEPT.write_text(page(), encoding="utf-8")
