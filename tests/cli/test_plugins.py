"""What other packages bring: a view, a format and a source, installed as anybody would install them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import run_fresh

pytest.importorskip("setuptools", reason="needs the extra 'dev'")

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "attnviz-spiral"
version = "1"
[tool.setuptools]
py-modules = ["spiral"]
[project.entry-points."attnviz.views"]
diagonal = "spiral:Diagonal"
[project.entry-points."attnviz.formats"]
shout = "spiral:Shout"
[project.entry-points."attnviz.sources"]
spiral = "spiral:Spiral"
"""
MODULE = '''
import numpy as np

from attnviz.records import LayerHeads, SourceInfo, Tokens
from attnviz.render.shapes import Document, Text
from attnviz.sources import Source


class Diagonal:
    """A view: what every token keeps for itself."""

    @staticmethod
    def view(trace, queries=()):
        own = np.diagonal(trace.stages["weights"][0, 0])
        return Document((Text(" ".join(f"{w:.2f}" for w in own)),), trace, "diagonal")


class Shout:
    """A format: text in capitals."""

    IS_BINARY, SUFFIXES = False, (".shout",)

    @staticmethod
    def render(document, screen):
        return "".join(str(part) for shape in document.shapes for part in shape.parts).upper() + "\\n"


class Turning(Source):
    """Two layers that turn every token a little further."""

    config_sha256 = None

    def __init__(self, step):
        self.step = float(step or 1)

    @property
    def info(self):
        return SourceInfo("spiral", f"step {self.step:g}", "", 2, 1, 1, 2, 2, 2)

    @property
    def layers(self):
        return (0, 1)

    def tokenize(self, text):
        words, places, at = text.split(), [], 0
        for word in words:
            at = text.index(word, at)
            places.append((at, at + len(word)))
            at += len(word)
        n = len(words)
        return Tokens(text, tuple(range(n)), tuple(words), tuple(words), tuple(places), (False,) * n)

    def run(self, tokens, layers, consume):
        for layer in layers:
            turn = np.arange(len(tokens)) * self.step * (layer + 1)
            x = np.stack([np.cos(turn), np.sin(turn)], axis=-1)[None]
            consume(LayerHeads(x, x, x, 1.0, layer=layer))


class Spiral:
    """A source."""

    @staticmethod
    def open(what):
        return Turning(what)
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install a package into a folder of its own, and put that on the path."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "spiral.py").write_text(MODULE)
    place = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(place), str(folder)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}


def test_a_view_a_format_and_a_source_of_another_package(
    installed: dict[str, str], tmp_path: Path
) -> None:
    asked = ("one two three", "-w", "spiral:0.5", "--layer", "1")
    shown = run_fresh("view", "diagonal", *asked, "-f", "shout", env=installed)
    assert (shown.returncode, shown.stderr) == (0, b""), shown
    assert shown.stdout == b"0.53 0.44 0.53\n"
    path = tmp_path / "walk.shout"
    written = run_fresh("view", "diagonal", *asked, "-o", str(path), env=installed)
    assert written.returncode == 0, written
    assert path.read_text() == "0.53 0.44 0.53\n"
    data = json.loads(run_fresh("explain", *asked, "-f", "json", env=installed).stdout)
    assert (data["source"]["kind"], data["source"]["name"], data["layers"]) == (
        "spiral",
        "step 0.5",
        [1],
    )
    both = run_fresh("summary", *asked[:3], "-f", "json", env=installed)
    assert len(json.loads(both.stdout)["heads"]) == 2


def test_their_names_are_listed_and_suggested(installed: dict[str, str]) -> None:
    told = b" ".join(run_fresh("view", "--help", env=installed).stdout.split())
    assert b"diagonal" in told
    assert b"random, spiral" in told
    wrong = run_fresh("view", "diagonl", "one two", env=installed)
    assert wrong.returncode == 2
    assert b"did you mean 'diagonal'?" in wrong.stderr
    ending = run_fresh("explain", "one two", "-o", "x.sh0ut", env=installed)
    assert b".shout" in ending.stderr
    plain = run_fresh("view", "diagonal", "one two")
    assert plain.returncode == 2
