"""A batch from end to end: what is written, what is refused, what is continued."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.core import reference
from attnviz.errors import AttnvizError, InputError, UsageError
from attnviz.runs.batch import manifest as manifests
from attnviz.runs.batch.inputs import read_where
from attnviz.runs.batch.run import Outcome, Request, run_batch
from attnviz.runs.batch.shards import Folder, read_manifest
from attnviz.runs.batch.tables import HEADS, TEXTS

LINES = [
    "A cute teddy bear",
    "is reading",
    "",
    "caf\udce9",
    "the river bank",
    "a b c d e f",
    "bear",
]
TINY = {"weights": "random", "d_model": 8, "d_k": 4, "n_heads": 2}


@pytest.fixture
def ask(tmp_path: Path) -> Request:
    path = tmp_path / "texts.txt"
    path.write_bytes("\n".join(LINES).encode(errors="surrogateescape"))
    return Request((str(path),), TINY, format="jsonl", shard_size=3, engine="serial")


def rows_of(folder: Path, table: str = "heads") -> list[dict[str, Any]]:
    files = sorted((folder / table).iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }  # fmt: skip


def test_a_row_for_every_text_and_head(ask: Request, tmp_path: Path) -> None:
    outcome = run_batch(ask, tmp_path / "out")
    assert (outcome.n_texts, outcome.done, outcome.failed, outcome.rows) == (7, 5, 2, 10)
    assert outcome.is_complete
    rows = rows_of(tmp_path / "out")
    assert [(r["text_id"], r["line"], r["head"]) for r in rows] == [
        (i, i + 1, head) for i in (0, 1, 4, 5, 6) for head in (0, 1)
    ]
    assert list(rows[0]) == [column.name for column in HEADS]
    texts = rows_of(tmp_path / "out", "texts")
    assert list(texts[0]) == [column.name for column in TEXTS]
    assert texts[2] | {"notices": []} == {
        "text_id": 4, "input": "texts.txt", "line": 5, "n_tokens": 3, "text": "the river bank",
        "tokens": ["the", "river", "bank"], "notices": [],
    }  # fmt: skip
    errors = [json.loads(x) for x in (tmp_path / "out/errors.jsonl").read_text().splitlines()]
    assert [error["line"] for error in errors] == [3, 4]
    assert "no tokens" in errors[0]["error"]
    assert "0xE9" in errors[1]["error"]


def test_figures_are_those_of_explain(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    for text_id, line in ((0, LINES[0]), (5, LINES[5])):
        trace = attnviz.explain(line, head="all", **TINY)  # type: ignore[arg-type]
        weights = trace.stages["weights"][0]
        for row in (row for row in rows if row["text_id"] == text_id):
            own = weights[row["head"]]
            assert row["entropy"] == pytest.approx(reference.entropy_bits(own).mean(), rel=1e-6)
            assert row["first_share"] == pytest.approx(own[:, 0].mean(), rel=1e-6)
            assert row["weight"] == pytest.approx(own.max(), rel=1e-6)
            assert own[row["query"], row["key"]] == own.max()
            assert row["query_token"] == trace.tokens.labels[row["query"]]
            assert row["link_keys"][0] == row["key"]
            assert len(row["link_weights"]) == 3


def test_one_token_has_no_neighbour_and_one_link(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    row = rows_of(tmp_path / "out")[-1]
    assert (row["previous_share"], row["next_share"]) == (None, None)
    assert row["link_keys"] == [0]


def test_parquet_holds_what_jsonl_holds(ask: Request, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run_batch(ask, tmp_path / "a")
    run_batch(replace(ask, format="parquet"), tmp_path / "b")
    for name in ("heads", "texts"):
        table = parquet.read_table(tmp_path / "b" / name)
        assert table.to_pylist() == [
            {k: _as_float32(v) for k, v in row.items()} for row in rows_of(tmp_path / "a", name)
        ]
        field = table.schema.field("n_tokens")
        assert field.metadata[b"meaning"]
        assert str(field.type) == "int32"


def _as_float32(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_float32(v) for v in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def test_settings_that_differ_are_named(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    held = tree(tmp_path / "out")
    other = tmp_path / "other" / "texts.txt"
    other.parent.mkdir()
    other.write_text("one\ntwo\n")
    for changed, named in (
        (replace(ask, links=5), "--links 3 there, 5 here"),
        (replace(ask, shard_size=2), "--shard-size 3 there, 2 here"),
        (replace(ask, source={**TINY, "causal": True}), "--causal not given there, true here"),
        (replace(ask, source={**TINY, "seed": 1}), "source sha256"),
        (replace(ask, source={**TINY, "n_heads": 1}), "--n-heads 2 there, 1 here"),
        (replace(ask, where="tokens > 1"), '--where not given there, "tokens > 1" here'),
        (replace(ask, keep=("q",)), "--keep"),
        (replace(ask, encoding="latin-1"), "--encoding"),
        (replace(ask, inputs=(str(other),)), "lines of input texts.txt 7 there, 2 here"),
        (replace(ask, inputs=(*ask.inputs, str(other))), "inputs 1 there, 2 here"),
    ):
        with pytest.raises(UsageError, match="holds another batch") as fault:
            run_batch(changed, tmp_path / "out")
        assert named in str(fault.value)
    assert tree(tmp_path / "out") == held


def test_a_path_may_change_where_its_content_does_not(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    moved = tmp_path / "moved" / "texts.txt"
    moved.parent.mkdir()
    moved.write_bytes(Path(ask.inputs[0]).read_bytes())
    assert run_batch(replace(ask, inputs=(str(moved),)), tmp_path / "out").resumed == 7


def test_what_was_deleted_is_done_again(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    clean = tree(tmp_path / "out")
    for victim in (
        "heads/000001.jsonl",
        "shards/000000.json",
        "errors.jsonl",
        "texts/000002.jsonl",
    ):
        (tmp_path / "out" / victim).unlink()
        run_batch(ask, tmp_path / "out")
        assert tree(tmp_path / "out") == clean
    (tmp_path / "out/heads/000000.jsonl").write_bytes(b"torn")
    (tmp_path / "out/shards/000001.json").write_bytes(b"{")
    (tmp_path / "out/heads/.attnviz-1-abc").write_bytes(b"left over")
    assert run_batch(ask, tmp_path / "out").resumed == 1
    assert tree(tmp_path / "out") == clean


def test_shares_make_what_one_run_makes(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "whole")
    outcomes = [
        run_batch(replace(ask, share=(i, 2)), tmp_path / "shared") for i in (1, 0)
    ]  # fmt: skip
    assert [outcome.is_complete for outcome in outcomes] == [False, True]
    assert [outcome.n_texts for outcome in outcomes] == [3, 4]
    shared = {name: data for name, data in tree(tmp_path / "shared").items() if "lock" not in name}
    assert shared == {n: d for n, d in tree(tmp_path / "whole").items() if "lock" not in n}


def test_shares_share_a_folder_and_nobody_else_does(ask: Request, tmp_path: Path) -> None:
    with Folder(tmp_path / "out", share=(0, 2)):
        with Folder(tmp_path / "out", share=(1, 2)):
            pass
        with pytest.raises(UsageError, match=r"--shard 0/2 .*process \d+"):
            run_batch(replace(ask, share=(0, 2)), tmp_path / "out")
        with pytest.raises(UsageError, match="written by another"):
            run_batch(ask, tmp_path / "out")
    with (
        Folder(tmp_path / "out"),
        pytest.raises(UsageError, match=r"another attnviz batch \(process \d+\)"),
    ):
        run_batch(replace(ask, share=(0, 2)), tmp_path / "out")


def test_a_folder_of_other_things_is_left_alone(ask: Request, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("x")
    with pytest.raises(UsageError, match=r"other files \('chapter.tex'\)"):
        run_batch(ask, folder)
    assert [path.name for path in folder.iterdir()] == ["chapter.tex"]
    (folder / "manifest.json").write_text('{"name": "something else"}')
    with pytest.raises(InputError, match="no manifest of a batch"):
        run_batch(ask, folder)
    with pytest.raises(AttnvizError, match="cannot write"):
        run_batch(ask, folder / "chapter.tex")


def test_where_skips_by_length(ask: Request, tmp_path: Path) -> None:
    outcome = run_batch(replace(ask, where="2 <= tokens <= 3 and chars > 0"), tmp_path / "out")
    assert {row["text_id"] for row in rows_of(tmp_path / "out")} == {1, 4}
    assert (outcome.done, outcome.skipped, outcome.failed) == (2, 4, 1)


@pytest.mark.parametrize("text", ["tokens", "tokens < x", "words > 3", "tokens < 3 or chars > 1",
                                  "__import__('os')", "tokens < -1", "3 < tokens < 5 < 7"])  # fmt: skip
def test_where_takes_nothing_else(text: str) -> None:
    with pytest.raises(UsageError, match="is no comparison"):
        read_where(text)


def test_arrays_are_those_of_explain(ask: Request, tmp_path: Path) -> None:
    kept = replace(ask, keep=("weights", "q"), keep_dtype="float32")
    run_batch(kept, tmp_path / "out")
    trace = attnviz.explain(LINES[4], head="all", **TINY)  # type: ignore[arg-type]
    with np.load(tmp_path / "out/arrays/000001.npz") as arrays:
        assert sorted(arrays) == sorted(f"{s}/{i:07d}" for s in ("weights", "q") for i in (4, 5))
        for stage in ("weights", "q"):
            wanted = trace.stages[stage].astype(np.float32)
            np.testing.assert_array_equal(arrays[f"{stage}/0000004"], wanted)
    again = tmp_path / "again"
    run_batch(kept, again)
    assert tree(again) == tree(tmp_path / "out")


def test_a_text_that_is_too_long_costs_itself(
    ask: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnviz.runs.batch import work

    monkeypatch.setattr(work, "MAX_TOKENS", 5)
    outcome = run_batch(ask, tmp_path / "out")
    assert outcome.failed == 3
    assert "6 tokens" in (tmp_path / "out/errors.jsonl").read_text()


def test_an_input_without_lines(ask: Request, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match=r"no text in .*empty\.txt"):
        run_batch(replace(ask, inputs=(str(empty),)), tmp_path / "out")
    two = replace(ask, inputs=(str(empty), *ask.inputs))
    assert run_batch(two, tmp_path / "two").n_texts == 7


def test_the_manifest_says_what_was_asked_and_names_no_path(ask: Request, tmp_path: Path) -> None:
    run_batch(ask, tmp_path / "out")
    data = (tmp_path / "out/manifest.json").read_text()
    assert str(tmp_path) not in data
    found = read_manifest(tmp_path / "out")
    assert found is not None
    assert found["schema"] == manifests.SCHEMA
    assert (found["n_texts"], found["n_shards"], found["source"]["n_heads"]) == (7, 3, 2)


def test_choices_that_do_not_exist(ask: Request, tmp_path: Path) -> None:
    for wrong in (
        {"keep": ("weight",)}, {"keep_dtype": "int8"}, {"heatmap": "gif"}, {"format": "csv"},
        {"engine": "dask"}, {"source": {**TINY, "head": "mean"}}, {"encoding": "utf-16"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            run_batch(replace(ask, **wrong), tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out/manifest.json").exists()


def test_progress_tells_every_shard(ask: Request, tmp_path: Path) -> None:
    told: list[Any] = []
    outcome: Outcome = run_batch(ask, tmp_path / "out", progress=told.append)
    assert [step.texts for step in told] == [3, 6, 7]
    assert told[-1].left_s == 0
    assert outcome.rows_per_s > 0
