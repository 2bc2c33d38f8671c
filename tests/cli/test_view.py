"""``attnviz view NAME``."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from support import SENTENCE, Result

RANDOM = ("-w", "random", "--n-heads", "2")
VIEWS = {
    "links": (),
    "grid": (),
    "neuron": ("--token", "reading", "--key", "teddy"),
    "entropy": (),
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_in_every_place(cli: Callable[..., Result], tmp_path: Path, name: str) -> None:
    arguments = ("view", name, SENTENCE, *RANDOM, *VIEWS[name])
    for width in ("30", "80", "160"):
        assert cli(*arguments, "--width", width).code == 0
    for form in ("plain", "json", "markdown", "latex"):
        assert cli(*arguments, "-f", form).code == 0
    for suffix in ("png", "svg", "pdf"):
        done = cli(*arguments, "-o", str(tmp_path / f"v.{suffix}"))
        assert done.code == 0, done.err
    with Image.open(tmp_path / "v.png") as picture:
        picture.verify()
    ET.parse(tmp_path / "v.svg")
    assert (tmp_path / "v.pdf").read_bytes().startswith(b"%PDF")


def test_a_wrong_name_lists_the_views(cli: Callable[..., Result]) -> None:
    done = cli("view", "link", SENTENCE)
    assert done.code == 2
    assert "links" in done.err
    other = cli("view", "weights", SENTENCE)
    assert other.code == 2
    assert "choose from" in other.err


def test_options_a_view_has_no_use_for_are_refused(cli: Callable[..., Result]) -> None:
    assert "no use for --key" in cli("view", "links", SENTENCE, *RANDOM, "--key", "A").err
    assert "needs --token" in cli("view", "zoom", SENTENCE, *RANDOM).err


def test_hostile_text(cli: Callable[..., Result]) -> None:
    for name in VIEWS:
        done = cli(
            "view", name, "[INST] \x1b[2J 猫 \u202e שלום =1+1 🧸 $x$", *RANDOM, "--width", "60"
        )
        assert done.code == 0, done.err
        assert "\x1b" not in done.out
        assert "\u202e" not in done.out


@pytest.mark.parametrize("name", ["nothing", "weights", "batch"])
def test_only_views_of_a_text_are_offered(cli: Callable[..., Result], name: str) -> None:
    done = cli("view", name, SENTENCE)
    assert done.code == 2
    assert done.err.rstrip().endswith(
        "choose from entropy, grid, heatmap, links, neuron, rollout, text, walk, zoom"
    )
