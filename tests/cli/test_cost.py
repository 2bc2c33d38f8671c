"""``attnviz cost``: bounds, fits, charts and files; measurements themselves are replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from support import Result

from attnviz.errors import UsageError
from attnviz.render.screen import Screen
from attnviz.render.shapes import Series
from attnviz.render.terminal.loglog import loglog_lines
from attnviz.runs import cost
from attnviz.runs.cost import Measured, fit, measure_cost, predict

SCHEMA = json.loads(
    (resources.files("attnviz") / "schemas/cost-1.json").read_text(encoding="utf-8")
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Answer for the measuring process: time grows as L², memory as the method's."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        method, length = command[3], int(command[4])
        asked.append(command)
        peak = 8 * length**2 if method == "naive" else 300 * length
        seconds = [length**2 / 1e9, length**2 / 2e9]
        answer = {"seconds": seconds, "cpu_seconds": seconds, "peak_bytes": peak}
        return subprocess.CompletedProcess(command, 0, json.dumps(answer).encode(), b"")

    monkeypatch.setattr(cost.subprocess, "run", run)
    return asked


@pytest.mark.usefixtures("quick")
def test_exponents_with_their_errors(cli: Callable[..., Result]) -> None:
    bounds = ("--from", "1024", "--to", "32768", "--max-memory", "64")
    done = cli("cost", *bounds, "--width", "80", "-q")
    assert done.code == 0, done.err
    for line in (
        "time of naive matrix grows as L^2.00 ± 0.00 (3 lengths from 8,192)",
        "memory of our stream grows as L^1.00 ± 0.00",
    ):
        assert line in done.out
    assert "×4.0" in done.out
    assert max(map(len, done.out.splitlines())) <= 82


def test_the_error_of_a_slope_is_that_of_textbooks() -> None:
    rng = np.random.default_rng(3)
    lengths = [2**n for n in range(13, 21)]
    seconds = [n**2 * float(np.exp(rng.normal(0, 0.1))) for n in lengths]
    rows = [Measured(n, "fused", 0, 0, seconds=s) for n, s in zip(lengths, seconds, strict=True)]
    _, covariance = np.polyfit(np.log(lengths), np.log(seconds), 1, cov=True)
    found = fit(rows)[0]
    assert found.n_points == 8
    assert found.error == pytest.approx(float(np.sqrt(covariance[0, 0])))


def test_bounds_leave_out_and_say_why(quick: list[list[str]]) -> None:
    found = measure_cost(first=1024, last=65536, max_memory_bytes=2 * 10**8, max_seconds=5.9)
    naive = {row.length: row.skipped for row in found.rows if row.method == "naive"}
    assert naive[4096] == ""
    assert "it needs 0.5 GB, 0.2 are allowed" in naive[8192]
    fused = {row.length: row.skipped for row in found.rows if row.method == "fused"}
    assert fused[32768] == ""
    assert "its start included; 5.9 s are left" in fused[65536]
    assert len(found.notices) == sum(bool(row.skipped) for row in found.rows)
    assert not [command for command in quick if command[3:5] == ["naive", "8192"]]


def test_files(cli: Callable[..., Result], quick: list[list[str]], tmp_path: Path) -> None:
    data = json.loads(cli("cost", "--to", "4096", "-f", "json", "-q").out)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert cli("cost", "--to", "4096", "-f", "csv", "-q").out.startswith("length,method,operations")
    for suffix in ("png", "svg", "json"):
        assert cli("cost", "--to", "4096", "-o", str(tmp_path / f"c.{suffix}")).code == 0
    assert quick[0][5:7] == ["64", "plain"]


def test_wrong_lengths_and_bounds(cli: Callable[..., Result]) -> None:
    assert cli("cost", "--from", "64", "--to", "32").code == 2
    assert cli("cost", "--from", "8").code == 2
    with pytest.raises(UsageError, match="nothing fits the bounds"):
        measure_cost(first=65536, last=65536, max_memory_bytes=10**7)
    few = cli("cost", "--from", "64", "--to", "64", "--max-memory", "0.01")
    assert (few.code, few.out) == (2, "")
    assert "give 0.3 (GB) or more" in few.err  # the limit of every command


@pytest.mark.parametrize("method", ["naive", "stream"])
def test_a_fresh_process_measures_near_the_prediction(method: str) -> None:
    command = [sys.executable, "-m", "attnviz.runs.cost_child", method, "2048", "64", "causal", "1"]
    done = subprocess.run(command, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert min(found["seconds"]) > 0
    if found["peak_bytes"] is not None:
        expected = predict(method, 2048, 64, causal=True).predicted_bytes
        assert 0.4 * expected < found["peak_bytes"] < 2 * expected + 2**24


def test_the_naive_matrix_is_attention() -> None:
    import torch

    from attnviz.runs.cost_child import naive

    q, k, v = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(0))
    fused = torch.nn.functional.scaled_dot_product_attention
    expected = fused(q[None], k[None], v[None], is_causal=True)[0]
    torch.testing.assert_close(naive(q, k, v, causal=True), expected)


def test_the_chart_fits_a_narrow_ascii_screen() -> None:
    curves = {"one": np.array([1.0, np.nan, 16.0]), "two": np.array([2.0, 3.0, 4.0])}
    series = Series("t", np.array([1, 2, 4]), curves, "tokens", "s", log_axes=True)
    lines = list(loglog_lines(series, Screen(width=40, encoding="ascii")))
    assert max(map(len, lines)) <= 40
    assert all(line.isascii() for line in lines)
    assert sum(line.count("x") for line in lines[:-1]) == 3
    assert sum(line.count("o") for line in lines[:-3]) == 2
