"""A little of every kind of damaged input, the ones that once failed, and whether a fault shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fuzz import __main__ as program
from fuzz.campaign import Bounds, Figures, run
from fuzz.keeping import COUNTS, REGRESSIONS, add, keep_input, next_seed, read_cases, read_counts
from fuzz.kinds import NAMES, make, n_cases
from fuzz.kinds.planted import AT
from fuzz.worker import CPU_S, GROWTH_BYTES

SMOKE = {
    "safetensors": 400,
    "npz": 250,
    "pt": 5,
    "tokenizer": 40,
    "gguf": 80,
    "config": 12,
    "text": 30,
    "mapped": 300,
    "view": 150,
    "kept": 150,
    "families": 150,
}
MODELS = ("tokenizer", "gguf", "config", "view", "kept", "families")


def check(found: Figures, count: int) -> None:
    assert list(found.faults) == []
    assert found.inputs == found.opened + found.refused == count
    assert min(found.opened, found.refused) > 0
    assert found.slowest_cpu_s <= CPU_S
    assert found.growth_bytes <= GROWTH_BYTES + (2 << 20)


@pytest.mark.parametrize("kind", NAMES)
def test_what_once_failed_and_some_more_end_as_a_value_or_an_error_of_ours(kind: str) -> None:
    """Seed 0 begins with the kept inputs of ``regressions``."""
    if kind in MODELS:
        pytest.importorskip("transformers", reason="needs the extra 'models'")
    count = n_cases(kind) + SMOKE[kind]
    check(run(kind, seed=0, count=count), count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_many_more(kind: str) -> None:
    if kind in MODELS:
        pytest.importorskip("transformers", reason="needs the extra 'models'")
    count = 10 * SMOKE[kind]
    check(run(kind, seed=int(os.environ.get("ATTNVIZ_FUZZ_SEED", "999")), count=count), count)


@pytest.mark.parametrize("kind", NAMES)
def test_a_seed_and_a_number_always_make_the_same_bytes(kind: str) -> None:
    first, again, other = make(kind, 5, 7), make(kind, 5, 7), make(kind, 6, 7)
    assert first == again != other
    assert all(isinstance(data, bytes) for data in first.values())


PLANTED = {
    "planted-fault": "Panic: not one of ours",
    "planted-hang": "hangs: ",
    "planted-sleep": "hangs: ",
    "planted-abort": "ended with status -6",
    "planted-loss": "ended with status 0",
    "planted-growth": "MB more",
    "planted-resource": "exit 4: ResourceError",
    "planted-long": "a message of",
    "planted-print": "wrote to standard output or error by itself: '\\x1b[2J",
    "planted-slow": "slow: ",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_reported_by_its_number(kind: str) -> None:
    is_of_time = kind in ("planted-hang", "planted-sleep", "planted-slow")
    bounds = Bounds(cpu_s=0.3, hang_s=0.6, clock_s=2.0) if is_of_time else Bounds()
    found = run(kind, seed=1, count=6, bounds=bounds)
    assert [fault.number for fault in found.faults] == [AT]
    assert PLANTED[kind] in found.faults[0].what
    assert found.inputs == 6  # and those behind it were read
    assert found.opened + found.refused == 5


def test_without_a_plant_nothing_is_reported() -> None:
    found = run("planted-value", seed=1, count=6)
    assert (found.opened, found.refused, found.faults) == (3, 3, [])


def test_a_faulty_input_is_kept_and_read_back(tmp_path: Path) -> None:
    found = run("planted-fault", seed=1, count=5)
    kept = keep_input(found.faults[0], tmp_path)
    assert kept is not None
    files = make("planted-fault", 1, AT)
    assert read_cases("planted-fault", tmp_path) == {f"1-{AT}": files}


def test_a_seed_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    assert next_seed("gguf", path) == 1
    first = Figures("gguf", 1, inputs=10, opened=4, refused=6, slowest_cpu_s=0.5)
    assert add(first, path)
    assert not add(first, path)
    assert next_seed("gguf", path) == 2
    assert add(Figures("gguf", 2, inputs=5, opened=5, growth_bytes=3 << 20), path)
    counts = read_counts(path)["gguf"]
    assert (counts["inputs"], counts["opened"], counts["refused"], counts["faults"]) == (
        15,
        9,
        6,
        0,
    )
    assert (counts["slowest_cpu_s"], counts["growth_mb"]) == (0.5, 3)
    assert counts["seeds"] == [{"seed": 1, "inputs": 10}, {"seed": 2, "inputs": 5}]


def test_the_counts_are_sums_and_no_seed_stands_twice() -> None:
    counts = json.loads(COUNTS.read_text())
    for kind, told in counts.items():
        assert kind in NAMES
        seeds = [run["seed"] for run in told["seeds"]]
        assert len(set(seeds)) == len(seeds)
        assert 0 not in seeds
        assert told["inputs"] == sum(run["inputs"] for run in told["seeds"])
        assert told["inputs"] == told["opened"] + told["refused"] + told["faults"]


def test_the_program_prints_figures_and_fails_on_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "NAMES", ("planted-value", "planted-fault"))
    monkeypatch.setattr(program, "keep_input", lambda fault: keep_input(fault, tmp_path))
    before = COUNTS.read_bytes()
    assert program.main(["--kind", "planted-value", "--count", "4", "--no-count"]) == 0
    assert program.main(["--kind", "planted-fault", "--count", "4", "--no-count"]) == 1
    shown = capsys.readouterr().out
    assert "planted-value | 1 | 4 | 2 | 2 | " in shown
    assert f"planted-fault seed 1 input {AT}: Panic: not one of ours" in shown
    assert COUNTS.read_bytes() == before


def test_kept_inputs_are_small() -> None:
    sizes = [path.stat().st_size for path in REGRESSIONS.rglob("*") if path.is_file()]
    assert sizes
    assert max(sizes) <= 64 << 10
    assert sum(sizes) <= 512 << 10
