"""``attnviz heatmap`` and its files."""

from __future__ import annotations

import csv
import io
import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from support import SENTENCE, Result, run_fresh

RANDOM = ("-w", "random")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_writes_pictures(cli: Callable[..., Result], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"h.{suffix}"
    arguments = ("heatmap", SENTENCE, *RANDOM, "--n-heads", "3", "--head", "all", "-o", str(path))
    assert cli(*arguments).code == 0
    first = path.read_bytes()
    assert cli(*arguments).code == 2
    assert cli(*arguments, "--force").code == 0
    assert path.read_bytes() == first
    if suffix == "svg":
        ET.fromstring(first)


def test_provenance_without_user_host_or_path(cli: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "h.png"
    cli("heatmap", SENTENCE, *RANDOM, "--seed", "7", "-o", str(path))
    with Image.open(path) as picture:
        facts = json.loads(picture.info["Description"])
    assert facts["source"]["seed"] == 7
    assert len(facts["source"]["sha256"]) == 64
    assert facts["device"] == "cpu"
    assert str(tmp_path).encode() not in path.read_bytes()
    assert str(Path.home()).encode() not in path.read_bytes()


def test_terminal_stages_and_refusals(cli: Callable[..., Result]) -> None:
    for stage in ("scores", "scaled", "masked", "weights", "output", "q", "k", "v"):
        done = cli("heatmap", SENTENCE, *RANDOM, "--causal", "--stage", stage, "--width", "80")
        assert done.code == 0, done.err
        assert stage in done.out
    wrong = cli("heatmap", SENTENCE, *RANDOM, "--stage", "weigths")
    assert wrong.code == 2
    assert "did you mean 'weights'" in wrong.err
    for option in (("--cmap", "jet"), ("--size", "big"), ("--stage", "bias"), ("--dpi", "3")):
        assert cli("heatmap", SENTENCE, *RANDOM, *option).code == 2
    assert cli("heatmap", SENTENCE, *RANDOM, "-f", "png").code == 2


def test_c_s1_csv_is_rfc_4180_with_safe_cells(cli: Callable[..., Result]) -> None:
    done = cli("heatmap", 'a , " =1+1 +2 @x', *RANDOM, "-f", "csv")
    rows = list(csv.reader(io.StringIO(done.out)))
    size = round((len(rows) - 1) ** 0.5)
    assert len(rows) == size**2 + 1
    assert all(len(row) == len(rows[0]) for row in rows)
    for name in ("query_label", "key_label"):
        column = rows[0].index(name)
        assert not any(row[column][:1] in "=+-@" for row in rows[1:] if row[column])
    weights = [float(row[rows[0].index("weights")]) for row in rows[1:]]
    assert abs(sum(weights) - size) < 1e-12


def test_start_up_of_a_terminal_heatmap_loads_no_matplotlib() -> None:
    import subprocess

    code = (
        "import sys\nfrom attnviz.cli.main import run_guarded\n"
        f"run_guarded(['heatmap', {SENTENCE!r}, '-w', 'random'])\n"
        "print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_h1_one_notice_and_exit_0(tmp_path: Path) -> None:
    done = run_fresh("heatmap", "猫 は cute 🧸", *RANDOM, "-o", str(tmp_path / "h.png"))
    assert done.returncode == 0
    assert done.stderr.decode().count("no installed font") == 1
    assert "🧸 as U+1F9F8" in done.stderr.decode()
