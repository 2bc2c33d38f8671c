"""Batches over a trained model: rows of every layer and head, the model's own numbers, same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

from tiny_models import write_model

import attnviz
from attnviz.core.reference import entropy_bits
from attnviz.errors import UsageError
from attnviz.runs.batch.run import Request, run_batch

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.filterwarnings("ignore")]
LINES = ["hello world !", "hello bear", "bear bear bear hello world", "world", "hello hello bear !"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "llama"))


@pytest.fixture
def ask(tmp_path: Path, model: str) -> Request:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    return Request((str(tmp_path / "texts.txt"),), {"model": model, "device": "cpu"},
                   format="jsonl", shard_size=3, engine="serial")  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, float]]:
    files = sorted((folder / "heads").iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_rows_of_every_layer_and_head(ask: Request, tmp_path: Path, model: str) -> None:
    outcome = run_batch(ask, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert (outcome.rows, len(rows)) == (40, 5 * 2 * 4)
    assert outcome.parity is not None
    assert outcome.parity < 1e-5
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["source"]["passes"] == "packed"
    for text_id in (0, 2):
        trace = attnviz.explain(LINES[text_id], model=model, layer="all", head="all", device="cpu")
        wanted = entropy_bits(np.asarray(trace.stages["weights"])).mean(-1)
        for row in (row for row in rows if row["text_id"] == text_id):
            own = wanted[int(row["layer"]), int(row["head"])]
            assert row["entropy"] == pytest.approx(own, abs=1e-5)
            special = trace.stages["weights"][int(row["layer"]), int(row["head"]), :, 0].mean()
            assert row["special_share"] == pytest.approx(special, abs=1e-5)


def test_bytes_do_not_depend_on_the_process(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "serial")
    run_batch(replace(ask, engine="local", workers=1), tmp_path / "local")
    trees = [
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
        for f in (tmp_path / "serial", tmp_path / "local")
    ]
    assert trees[0] == trees[1]


def test_some_layers_and_heads(ask: Request, tmp_path: Path) -> None:
    source = {**ask.source, "layer": "1", "head": "1-2"}
    run_batch(replace(ask, source=source, keep=("weights",)), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert {(row["layer"], row["head"]) for row in rows} == {(1, 1), (1, 2)}
    with np.load(tmp_path / "out/arrays/000000.npz") as arrays:
        assert arrays["weights/0000000"].shape == (1, 2, 4, 4)
    with pytest.raises(UsageError, match="layer 7 does not exist"):
        run_batch(replace(ask, source={**ask.source, "layer": "7"}), tmp_path / "none")


def test_another_model_is_refused_and_a_renamed_one_is_not(
    ask: Request, tmp_path: Path, model: str
) -> None:
    run_batch(ask, tmp_path / "out")
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in Path(model).iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    again = replace(ask, source={**ask.source, "model": str(moved)})
    assert run_batch(again, tmp_path / "out").resumed == 5
    other = write_model(tmp_path / "other", rope_theta=100.0)
    with pytest.raises(UsageError, match="source config_sha256"):
        run_batch(replace(ask, source={**ask.source, "model": str(other)}), tmp_path / "out")
