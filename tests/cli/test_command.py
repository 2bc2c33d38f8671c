"""Options that were not given are not validated, and those that were still are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import Result
from typer.main import get_command

from attnviz.cli import options
from attnviz.cli.app import app

LOADED = (
    "import sys; from attnviz.cli.main import run_guarded; "
    "run_guarded(['explain', 'a b', '-f', 'json']); sys.exit('pydantic' in sys.modules)"
)


def test_a_plain_command_builds_no_validator() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments", [("--precision", "99"), ("--d-k", "x"), ("--seed", "1.5"), ("--window", "-1")]
)
def test_what_is_given_is_checked(cli: Callable[..., Result], arguments: tuple[str, str]) -> None:
    done = cli("explain", "a b", "-w", "random", *arguments)
    assert (done.code, arguments[0] in done.err) == (2, True)


@pytest.mark.parametrize("name", ["L0.H3", "H3", "3"])
def test_a_head_is_read_by_the_name_that_is_printed(cli: Callable[..., Result], name: str) -> None:
    given = ("explain", "a bear", "-w", "sample-8", "-s", "weights", "-f", "plain")
    assert "\nweights L0.H3\n" in cli(*given, "--head", name).out
    pair = cli("compare", "a bear", "-w", "sample-8", "--head", "H1", "--with-head", name).out
    assert "L0.H1" in pair
    assert "L0.H3" in pair


def test_a_name_with_a_layer_is_checked_like_a_layer(cli: Callable[..., Result]) -> None:
    none = cli("explain", "a bear", "-w", "sample-8", "--head", "L1.H3")
    assert (none.code, "layer 1 does not exist" in none.err) == (2, True)
    two = cli("explain", "a bear", "-w", "sample-8", "--head", "L0.H3", "--layer", "2")
    assert (two.code, "is in layer 0, but --layer is 2" in two.err) == (2, True)
    for layer in ("7", "x"):
        assert cli("explain", "a bear", "-w", "random", "--layer", layer).code == 2
    assert cli("explain", "a bear", "-w", "random", "--layer", "0").code == 0


def test_the_help_of_a_command_fits_a_screen_of_a_page(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("explain", "--help").out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    panels = [line.partition(":")[0] for line in lines if line[:1].isalpha()][1:]
    assert panels == [p for p in options.PANELS if p != options.PICTURE]


def test_every_command_has_the_options_of_all() -> None:
    for path, command in leaves(get_command(app)):
        names = {name for p in command.params for name in p.opts}
        assert {"--quiet", "--strict", "--debug", "--max-memory"} <= names, path


def test_the_list_of_commands_is_not_cut(cli: Callable[..., Result]) -> None:
    shown = " ".join(cli("--help").out.split())
    for path, command in leaves(get_command(app)):
        if len(path) == 1:
            assert f"{path[0]} {' '.join(command.help.split(chr(10) * 2)[0].split())}" in shown


def test_names_of_the_help_are_the_program_s_own(cli: Callable[..., Result]) -> None:
    from attnviz import registry
    from attnviz.render.colors import MAPS
    from attnviz.render.reports import heads
    from attnviz.render.views import heatmap, walk
    from attnviz.runs.batch.jobs import KEPT
    from attnviz.runs.summarize import SHOWN

    formats = registry.names("formats")
    binary = tuple(n for n in formats if registry.load("formats", n).IS_BINARY)
    assert {
        "file_formats": binary,
        "stages": walk.SHOWN, "picture_stages": heatmap.STAGES, "figures": SHOWN,
        "patterns": heads.NAMES, "maps": MAPS, "kept": KEPT,
    } == options.CHOICES  # fmt: skip
    shown = " ".join(cli("view", "--help").out.split())
    assert f"{', '.join(registry.names('views'))}." in shown
    shown = " ".join(cli("explain", "--help").out.split())
    assert all(re.search(rf"\b{name}\b", shown) for name in formats)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command
