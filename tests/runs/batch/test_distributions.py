"""A batch's report: every quantile is the one that its tables give, whatever the memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnviz.runs.batch import distributions
from attnviz.runs.batch.distributions import FIGURES, QUANTILES
from attnviz.runs.batch.run import Request, run_batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("batch")
    texts = ["a b", "a cute bear is reading", "to be or not to be that is it", "x", "b b b b"] * 3
    (place / "t.txt").write_text("\n".join(f"{text} {i}" for i, text in enumerate(texts)))
    run_batch(
        Request(
            (str(place / "t.txt"),), {"weights": "random", "d_model": 8, "d_k": 4, "n_heads": 2},
            format="jsonl", engine="serial", shard_size=4,
        ),
        place / "out",
    )  # fmt: skip
    return place / "out"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "heads").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("most", [1 << 30, 1000, 1])
def test_quantiles_are_those_of_the_tables(
    folder: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_ROOM_BYTES", most)
    found = distributions.distributions(str(folder))
    rows = rows_of(folder)
    assert len(found["heads"]) == 2
    for head in found["heads"]:
        own = [row for row in rows if (row["layer"], row["head"]) == (head["layer"], head["head"])]
        for name in FIGURES:
            values = np.array([row[name] for row in own if row[name] is not None], float)
            wanted = np.quantile(values, QUANTILES)
            np.testing.assert_array_equal(head[name]["quantiles"], wanted)
            assert sum(head[name]["histogram"]) == len(values)


def test_a_head_far_from_the_others_has_its_own_quantiles() -> None:
    """Nothing is rounded to bins of all heads' range: .01 to .02 stays itself beside 10."""
    assert list(distributions._groups({"a": np.array([2, 2])}, 3)) == [
        {"a": range(1)},
        {"a": range(1, 2)},
    ]
