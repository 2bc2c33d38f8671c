"""``attnviz summary``: screens, files, rectangles, plans and refusals."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support import HOSTILE, SENTENCE, Result
from tiny_models import write_model

import attnviz
from attnviz.core.stream.summary import FIGURES
from attnviz.runs import summarize

LONG = "the old man and the sea went to the river bank " * 60
SCHEMA = json.loads(
    (resources.files("attnviz") / "schemas/summary-1.json").read_text(encoding="utf-8")
)


def dense(text: str, **options: object) -> np.ndarray:
    return np.asarray(attnviz.explain(text, **options).stages["weights"])[0]


def test_the_figures_are_those_of_the_dense_weights() -> None:
    found = attnviz.summarize(LONG, n_links=3, map_size=7, dtype="float64")
    weights = dense(LONG)
    part = found.by_layer[0]
    assert part.figures == tuple(figure for figure in FIGURES if figure != "output")
    np.testing.assert_allclose(part.received_HS, weights.sum(1), atol=1e-9)
    np.testing.assert_allclose(part.link_weights_HLN[0], np.sort(weights[0])[:, :-4:-1], atol=1e-12)
    assert part.map_max_HRR.max() == pytest.approx(weights.max())
    assert found.to_numpy()["entropy"].shape == (1, 1, weights.shape[-1])


def test_screens_say_where_heads_look(cli: Callable[..., Result]) -> None:
    for width in (40, 80, 120):
        done = cli("summary", LONG, "--width", str(width), "--color", "never")
        assert done.code == 0, done.err
        words = " ".join(done.out.split())
        for part in ("strongest links", "most looked at", "how far", "pooled weights (max)"):
            assert part in words
        assert max(map(len, done.out.splitlines())) <= max(width, 58)
    assert re.search(r"\w \[(old|man|sea|river|bank|went|and|the|to)\] ?\w", done.out)


def test_fewer_figures_are_shown_alone(cli: Callable[..., Result]) -> None:
    done = cli("summary", SENTENCE, "--figures", "entropy, links", "-f", "json")
    head = json.loads(done.out)["heads"][0]
    assert set(head) == {"layer", "head", "entropy_bits", "links"}
    assert "strongest links" in cli("summary", SENTENCE, "--figures", "links").out
    assert "did you mean 'entropy'" in cli("summary", SENTENCE, "--figures", "entropie").err


def test_many_heads_are_a_table_and_thumbnails(cli: Callable[..., Result]) -> None:
    done = cli("summary", SENTENCE, "-w", "random", "--n-heads", "6", "--width", "100")
    assert done.code == 0, done.err
    assert "strongest links" not in done.out
    assert done.out.count("L0.H5") == 1
    one = cli("summary", SENTENCE, "-w", "random", "--n-heads", "6", "--head", "5", "-f", "json")
    assert [head["head"] for head in json.loads(one.out)["heads"]] == [5]


@pytest.mark.parametrize(
    "case",
    [(SENTENCE,), (LONG, "--causal", "--window", "5"), (" ".join(HOSTILE[:14]),)],
    ids=["sentence", "window", "hostile"],
)
def test_json_is_what_the_schema_says(cli: Callable[..., Result], case: tuple[str, ...]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    done = cli("summary", *case, "-f", "json", "--map", "5")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert len(data["heads"][0]["map_max"]) == min(5, data["n_tokens"])
    assert attnviz.summarize(case[0]).to_json().startswith('{"schema": "attnviz.summary/1"')


def test_files_hold_heads_or_everything(cli: Callable[..., Result], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("summary", LONG, "-f", "csv").out)))
    assert len(rows) == 1
    assert float(rows[0]["entropy_bits"]) > 0
    assert rows[0]["source"] == "sample"
    path = tmp_path / "s.npz"
    assert cli("summary", LONG, "-o", str(path)).code == 0
    with np.load(path) as arrays:
        assert arrays["received"].shape == (1, 1, len(arrays["token_ids"]))
        assert arrays["received"].sum() == pytest.approx(len(arrays["token_ids"]))
        assert json.loads(str(arrays["attnviz"]))["source"]["name"] == "sample"
    picture = tmp_path / "s.png"
    assert cli("summary", LONG, "-o", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_parquet_has_one_row_per_head(cli: Callable[..., Result], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "s.parquet"
    assert cli("summary", LONG, "-w", "random", "--n-heads", "3", "-o", str(path)).code == 0
    table = parquet.read_table(path).to_pydict()
    assert table["head"] == [0, 1, 2]
    assert {"entropy_bits", "mean_distance", "top_key_label", "source_sha256"} <= set(table)


def test_a_rectangle_is_exact(cli: Callable[..., Result]) -> None:
    done = cli("summary", LONG, "--rows", "10-12", "--keys", "7", "--dtype", "float64", "-f", "csv")
    found = [float(row["weight"]) for row in csv.DictReader(io.StringIO(done.out))]
    np.testing.assert_allclose(found, dense(LONG)[0, 10:13, 7], atol=1e-12)
    shown = cli("summary", SENTENCE, "--rows", "1-2", "--width", "80")
    assert "queries 1 to 2, keys 0 to 5" in shown.out
    for wrong in (("--rows", "5-4"), ("--rows", "4-6"), ("--keys", "x"), ("--pool", "least")):
        refused = cli("summary", SENTENCE, *wrong)
        assert refused.code == 2, wrong
    assert "the text has 0 to 5" in cli("summary", SENTENCE, "--rows", "4-6").err


def test_what_does_not_fit_is_refused_with_what_would(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.core.device.free_memory_bytes", lambda device: 4 * 10**5)
    done = cli("summary", LONG)
    assert done.code == 4
    assert "tokens would fit" in done.err


def test_slow_work_is_announced_and_its_progress_told(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnviz.cli import progress

    monkeypatch.setattr(summarize, "_USUAL_RATE", 1e6)
    monkeypatch.setattr(progress, "_FIRST_S", -1.0)
    done = cli("summary", LONG)
    n_tokens = len(attnviz.summarize(LONG).tokens)
    assert f"{n_tokens:,} tokens, 1 head: " in done.err
    assert "operations" in done.err
    assert " s left" in done.err
    assert cli("summary", LONG, "--quiet").err == ""


@pytest.mark.parametrize("wrong", [("--head", "mean"), ("--words",), ("--verify",)])
def test_what_a_summary_is_not_of(cli: Callable[..., Result], wrong: tuple[str, ...]) -> None:
    done = cli("summary", SENTENCE, *wrong)
    assert done.code == 2
    assert wrong[-1] in done.err


@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_is_streamed_layer_by_layer_with_its_parity(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    model = str(write_model(tmp_path / "tiny"))
    done = cli("summary", SENTENCE, "-m", model, "-f", "json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert len(data["heads"]) == data["source"]["n_layers"] * data["source"]["n_heads"]
    assert data["checks"]["parity"] < 5e-5  # scores of 100, outputs of 14
    trace = attnviz.explain(SENTENCE, model=model, layer="all", head="all")
    expected = np.asarray(trace.stages["weights"]).sum(-2)
    found = attnviz.summarize(SENTENCE, model=model).to_numpy()["received"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    one = cli("summary", SENTENCE, "-m", model, "-l", "1", "-H", "0", "--width", "80")
    assert "output equal to the model's own (within" in " ".join(one.out.split())


def test_a_heatmap_above_the_dense_limit_is_streamed_and_says_so(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("attnviz.runs.run.DENSE_MAX_CELLS", 10**4)
    path = tmp_path / "h.png"
    done = cli("heatmap", LONG, "-o", str(path))
    assert done.code == 0, done.err
    assert "streamed, and pooled by the largest" in done.err
    assert path.read_bytes().startswith(b"\x89PNG")
    shown = cli("heatmap", LONG, "--width", "80")
    assert "pooled weights (max) · L0.H0" in shown.out
    scores = cli("heatmap", LONG, "--stage", "scores")
    assert scores.code == 4
    assert "attnviz summary, which takes any length" in scores.err
