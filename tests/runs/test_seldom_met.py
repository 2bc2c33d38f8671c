"""Faults that seldom happen: files that vanish, processes that die, texts of another kind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.runs import cost, cost_child
from attnviz.runs.batch import distributions, inputs, preview, rows, shards, work  # fmt: skip
from attnviz.runs.batch.engines import serial
from attnviz.runs.batch.jobs import Job, Work
from attnviz.runs.batch.lock import Lock
from attnviz.runs.batch.rows import Reading, Row, read_rows
from attnviz.runs.batch.run import Request, read_share, run_batch
from attnviz.runs.batch.work import Worker
from attnviz.runs.cost import Measured

TINY: dict[str, Any] = {"weights": "random", "d_model": 8, "d_k": 4}


# --- cost ---------------------------------------------------------------------------------------


def measured(**changed: Any) -> Measured:
    return replace(Measured(1024, "naive", 10, 10**9), **changed)


def run_measure(before: Any = (), *, room: int = 1 << 40, left: float = 1e6) -> Any:
    return cost._measure(measured(), list(before), 64, causal=True, room=room, left=left)


def test_measurements_that_do_not_fit_are_left_out_with_the_reason() -> None:
    assert "it needs 1.0 GB, 0.0 are allowed" in run_measure(room=1 << 20).skipped
    assert "the length before was left out already" in run_measure([measured(skipped="x")]).skipped
    late = run_measure([measured(seconds=1e9)], left=100.0)
    assert "100.0 s are left" in late.skipped
    assert "0 s are left" in run_measure(left=-5.0).skipped


def test_a_measuring_process_that_hangs_or_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("x", 1)

    monkeypatch.setattr(cost.subprocess, "run", late)
    assert "it took more than the 1000000 s that were left" in run_measure().skipped
    for stderr, told in ((b"a\nno memory\n", "no memory"), (b"", "no message")):
        done = subprocess.CompletedProcess((), 9, b"", stderr)
        monkeypatch.setattr(cost.subprocess, "run", lambda *_, d=done, **__: d)
        with pytest.raises(
            ResourceError, match=f"naive at 1024 tokens ended with 9: {told}; lower"
        ):
            run_measure()


def test_peaks_where_nobody_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "VmHWM:\t 12 kB\nVmRSS: 3 kB\n")
    assert (cost_child.memory_bytes("VmHWM"), cost_child.memory_bytes("VmRSS")) == (
        12 << 10,
        3 << 10,
    )
    assert cost_child.memory_bytes("VmNo") is None

    def gone(*_: Any) -> Any:
        raise OSError

    monkeypatch.setattr(Path, "read_text", gone)
    monkeypatch.setattr(Path, "write_text", gone)
    assert cost_child.memory_bytes("VmHWM") is None
    cost_child.forget_peak()


# --- inputs of a batch --------------------------------------------------------------------------


def given(folder: Path, data: bytes, name: str = "a.txt", **reading: Any) -> list[Row]:
    path = folder / name
    path.write_bytes(data)
    return list(read_rows(inputs.open_inputs([str(path)]), Reading(**reading)))


def test_an_input_that_goes_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n")
    opened = inputs.open_inputs([str(path)])
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: No such file"):
        list(read_rows(opened))

    def broken(*_: Any) -> Any:
        raise OSError(5, "Input/output error")
        yield

    monkeypatch.setitem(rows._READERS, "txt", broken)
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: Input/output error"):
        list(read_rows(opened))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed: give a file"):
        inputs.open_inputs(["-"], format="txt")


def test_tables_whose_first_line_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its first line is no list of columns"):
        given(tmp_path, b"\xff\xfe\xfa\nx\n", "a.csv")
    found = given(tmp_path, b"id,text\n1,a\n2\n\n\xff,b\n3,c\n", "a.csv")
    assert [(row.text, bool(row.error)) for row in found] == [("a", False), (None, True), (None, True), ("c", False)]  # fmt: skip
    assert "1 columns: wanted 2" in found[1].error


def test_parquet_without_its_library_and_of_dictionaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), path)
    opened = inputs.open_inputs([str(path)])
    assert [row.text for row in read_rows(opened)] == ["a", "b", "a"]
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(UsageError, match="column 'text' holds int64: wanted strings"):
        list(read_rows(opened))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'attnviz\[parquet\]'"):
        list(read_rows(opened))


def test_an_input_that_shrinks_under_the_batch_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\nc\n")
    request = Request((str(path),), TINY, format="jsonl", shard_size=1, engine="serial")
    real = serial.Serial.open

    def shrink(self: Any) -> Any:
        path.write_text("a\n")
        return real(self)

    monkeypatch.setattr(serial.Serial, "open", shrink)
    with pytest.raises(InputError, match="changed while it was read: 1 of 3 texts"):
        run_batch(request, tmp_path / "out")


@pytest.mark.parametrize("text", ["x", "1", "/", "1/", "/2", "2/2", "-1/2", "0/0", "a/b", "1/2/3"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no share: give i/n"):
        read_share(text)


# --- one worker's work --------------------------------------------------------------------------


def job(*texts: str) -> Job:
    return Job(0, tuple(Row(i, "a", i + 1, text, "") for i, text in enumerate(texts)))


def test_a_pass_that_fails_is_tried_text_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(Work(source=TINY, format="jsonl"))
    passes = worker.passes
    groups: list[int] = []

    class Fragile:
        name = passes.name

        def plan(self, lengths: Any) -> Any:
            return [list(range(len(lengths)))]

        def run(self, tokens: Any, **named: Any) -> Any:
            groups.append(len(tokens))
            faults = {
                "boom": ZeroDivisionError("x"),
                "full": MemoryError(),
                "told": InputError("odd text"),
            }
            for one in tokens:
                if one.text in faults:
                    raise faults[one.text]
            return [found for one in tokens for found in passes.run([one], **named)]

    worker.passes = Fragile()
    done = worker.run(job("a", "boom", "b", "full", "told"))
    assert groups == [5, 1, 1, 1, 1, 1]
    assert done.done == 2
    assert [(error["text_id"], error["error"]) for error in done.errors] == [
        (1, "a bug of attnviz: ZeroDivisionError: x"), (3, "out of memory"), (4, "odd text")]  # fmt: skip


def test_what_if_changes_reach_every_text_and_every_precision() -> None:
    plain, changed, single = (Worker(Work(source={**TINY, **more}, format="jsonl")) for more in (
        {}, {"causal": True, "window": 2, "scale": "2.0"}, {"dtype": "float32"}))  # fmt: skip
    assert changed.run(job("a b c d")).files != plain.run(job("a b c d")).files
    assert single.computing.core == "torch"
    figures = [json.loads(next(iter(w.run(job("a b c d")).files.values())).splitlines()[0]) for w in (plain, single)]  # fmt: skip
    assert figures[0]["entropy"] == pytest.approx(figures[1]["entropy"], abs=1e-5)
    with pytest.raises(UsageError, match="--head mean has no row"):
        Worker(Work(source={**TINY, "head": "mean"}))


def test_arrays_that_half_precision_cannot_hold_cost_only_their_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(
        Work(source={**TINY, "scale": "1e9"}, format="jsonl", keep=("weights", "scores"))
    )
    real = work.gather

    def loud(run: Any, heads: tuple[int, ...]) -> Any:
        trace = real(run, heads)
        if run.tokens.text == "loud":
            trace = replace(trace, stages={**trace.stages, "scores": np.full((1, 1, 1, 1), 7e4)})
        return trace

    monkeypatch.setattr(work, "gather", loud)
    done = worker.run(job("a", "loud"))
    assert done.done == 1
    assert (
        "scores holds 70000, which float16 cannot: its largest number is 65504"
        in done.errors[0]["error"]
    )
    import io

    kept = np.load(io.BytesIO(done.files["arrays/000000.npz"]))
    assert sorted(kept.files) == ["scores/0000000", "weights/0000000"]
    narrow = work._narrow(np.array([65504.0, -np.inf]), "float16", "masked")
    assert narrow.tolist() == [65504.0, -np.inf]
    assert work._narrow(np.array([7e4]), "float32", "scores").tolist() == [7e4]


def test_a_text_as_long_as_allowed_and_one_token_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_TOKENS", 2)
    worker = Worker(Work(source=TINY, format="jsonl"))
    done = worker.run(job("a b", "a b c"))
    assert done.done == 1
    assert "3 tokens: a batch takes texts of at most 2" in done.errors[0]["error"]


# --- folders of a batch -------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("a b\nc d\ne f\n")
    request = Request(
        (str(tmp_path / "a.txt"),), TINY, format="jsonl", shard_size=1, engine="serial"
    )
    run_batch(request, tmp_path / "out")
    return tmp_path / "out"


def record_of(folder: Path, change: Any) -> Any:
    path = folder / "shards/000001.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    return shards.read_record(folder, 1)


def test_records_that_do_not_hold_make_their_shard_undone(finished: Path) -> None:
    assert shards.read_record(finished, 1) == record_of(finished, lambda found: None)
    for change in (
        lambda found: found["files"].update({"heads/../../etc/passwd": {"bytes": 1}}),
        lambda found: found["files"].update({"heads/gone": {"bytes": 1}}),
        lambda found: found["files"].update({"texts/000001.jsonl": {"bytes": 1}}),
        lambda found: found.pop("files"),
        lambda found: found.update(files=[]),
        lambda found: found.update(done="x"),
        lambda found: found.update(files={"heads/000001.jsonl": {}}),
    ):
        before = (finished / "shards/000001.json").read_text()
        assert record_of(finished, change) is None
        (finished / "shards/000001.json").write_text(before)
    table = finished / "heads/000001.jsonl"
    data = table.read_bytes()
    table.unlink()
    table.symlink_to(finished / "heads/000000.jsonl")
    assert shards.read_record(finished, 1) is None
    table.unlink()
    table.write_bytes(data)
    assert shards.read_record(finished, 1) is not None
    (finished / "shards/000001.json").write_text("[" * 99_999)
    assert shards.read_record(finished, 1) is None
    held = preview.look_at(str(finished))
    assert (held["state"], held["shards"], held["done"]) == ("stopped", 2, 2)
    seen = list(distributions._tables(finished, shards.read_manifest(finished) or {}, {(0, 0): 0}))
    assert len(seen) == 2


def test_folders_that_cannot_be_read_are_of_their_kind(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="holds no batch: there is no manifest"):
        shards.read_manifest(finished / "heads")
    assert shards.read_manifest(finished / "heads", missing_ok=True) is None

    def denied(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(InputError, match="Permission denied"):
        shards.read_manifest(finished)
    monkeypatch.undo()
    monkeypatch.setattr(shards.os, "listdir", denied)
    with pytest.raises(InputError, match="Permission denied"), shards.Folder(finished):
        pass


def test_who_holds_a_folder_is_told_and_nothing_is_left_held(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished / "errors.jsonl").unlink()
    assert preview.look_at(str(finished))["state"] == "stopped"
    lock = Lock(finished / ".lock")
    assert lock.hold()
    assert preview.look_at(str(finished))["state"] == "running"
    lock.release()

    def denied(*_: Any, **__: Any) -> Any:
        raise OSError(13, "denied")

    monkeypatch.setattr(Lock, "hold", denied)
    assert preview.look_at(str(finished))["state"] == "stopped"
    with pytest.raises(InputError, match="denied"), shards.Folder(finished):
        pass
    monkeypatch.setitem(sys.modules, "resource", None)
    assert preview._peak_bytes() == 0


def test_a_dry_run_tries_more_texts_until_it_knows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n" * 50)
    request = Request(
        (str(tmp_path / "a.txt"),),
        TINY,
        format="jsonl",
        shard_size=7,
        engine="serial",
        share=(1, 2),
    )
    plan = preview.foresee(request, str(tmp_path / "no" / "such"))
    assert (plan["n_texts"], plan["n_shards"]) == (22, 4)
    assert plan["tried"]["texts"] in (8, 32, 50)
    assert plan["free_bytes"] > 0
    assert preview.foresee(replace(request, workers=3))["workers"] == 3
    assert preview.foresee(request)["free_bytes"] is None
