"""``--engine ray`` on a local cluster: the bytes of every other engine, and no text lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")

from attnviz.errors import InputError  # noqa: E402
from attnviz.runs.batch.run import Request, run_batch  # noqa: E402

ROOT = Path(__file__).parents[3]
POISON = Path(__file__).parents[2] / "campaigns" / "kill" / "poison"
TINY = {"weights": "random", "d_model": 8, "d_k": 4}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A local cluster whose actors do what certain words in a text say."""
    notes = tmp_path_factory.mktemp("notes")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join((str(POISON), str(ROOT))))
    patch.setenv("ATTNVIZ_TEST_NOTES", str(notes))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield notes
    ray.shutdown()
    patch.undo()


def write_texts(path: Path, lines: list[str]) -> Request:
    path.write_text("\n".join(lines) + "\n")
    return Request((str(path),), TINY, format="jsonl", shard_size=10, engine="ray", workers=2)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_bytes_do_not_depend_on_the_engine(tmp_path: Path, cluster: Path) -> None:
    request = write_texts(tmp_path / "texts.txt", [f"a bear reads {i}" for i in range(45)])
    run_batch(request, tmp_path / "ray")
    run_batch(replace(request, engine="serial"), tmp_path / "serial")
    run_batch(replace(request, engine="local"), tmp_path / "local")
    assert tree(tmp_path / "ray") == tree(tmp_path / "serial") == tree(tmp_path / "local")


def test_deaths_and_a_poisonous_text(tmp_path: Path, cluster: Path) -> None:
    lines = [f"the bear reads page {i}" for i in range(30)]
    lines[3] += " once-run-a"
    lines[17] += " poison-run"
    outcome = run_batch(write_texts(tmp_path / "texts.txt", lines), tmp_path / "out")
    assert (outcome.done, outcome.failed) == (29, 1)
    errors = (tmp_path / "out/errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in errors] == [18]


def test_a_source_that_cannot_be_opened(tmp_path: Path, cluster: Path) -> None:
    request = write_texts(tmp_path / "texts.txt", ["a bear"])
    with pytest.raises(InputError, match=r"none\.npz"):
        run_batch(replace(request, source={"weights": "none.npz"}), tmp_path / "out")
