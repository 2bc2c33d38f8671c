"""``attnviz page``, its refusals, and the frame in a notebook."""

from __future__ import annotations

import html
import json
import re
import time

import numpy as np
import pytest

import attnviz

SENTENCE = "A cute teddy bear is reading"


def test_a_page_is_written_whole_and_kept(cli, tmp_path):
    target = tmp_path / "teddy.html"
    done = cli("page", SENTENCE, "-w", "random", "-o", str(target))
    assert (done.code, done.out) == (0, "")
    assert "wrote" in done.err
    first = target.read_bytes()
    assert cli("page", "x", "-w", "random", "-o", str(target)).code == 2
    assert target.read_bytes() == first
    again = cli("page", SENTENCE, "-w", "random", "-o", str(target), "--force", "-q")
    assert (again.code, again.err) == (0, "")
    assert target.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((SENTENCE, "-w", "random"), "no file"),
        ((SENTENCE, "-w", "random", "-o", "x.png"), "a page is HTML"),
        ((SENTENCE, "-w", "random", "-o", "x.html", "--head", "mean"), "the mean over heads"),
        ((SENTENCE, "-w", "random", "-o", "x.html", "--head", "4"), "does not exist"),
        ((SENTENCE, "-w", "random", "-o", "x.html", "-t", "dog"), "no token"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = cli("page", *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_page_above_its_budget_is_refused_before_any_work(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = " ".join(["word"] * 2000)
    started = time.perf_counter()
    done = cli("page", text, "-w", "random", "--n-heads", "8", "--budget", "2", "-o", "x.html")
    assert time.perf_counter() - started < 5
    assert done.code == 4
    assert "--head" in done.err
    assert "tokens fit" in done.err
    assert not list(tmp_path.iterdir())


def test_what_was_asked_for_is_in_the_page(cli, tmp_path):
    target = tmp_path / "x.html"
    done = cli(
        "page", SENTENCE, "-w", "random", "--n-heads", "4", "--head", "1-2", "--window", "3",
        "--causal", "--scale", "0.5", "-t", "bear", "--compact", "-o", str(target),
    )  # fmt: skip
    assert done.code == 0, done.err
    text = target.read_text(encoding="utf-8")
    header = json.loads(re.search(r'id="page-header">(.*?)</script>', text)[1])
    assert header["heads"] == [1, 2]
    assert header["start"] == {"query": 3}
    assert header["layers"][0]["mask"] == {
        "causal": True, "before": 2, "after": 0, "chunk": None, "n_maps": 0,
    }  # fmt: skip
    assert header["layers"][0]["scale"] == 0.5
    assert header["run"]["overrides"]["source_scale"] == 0.125
    assert header["numbers"] == "int16"
    assert 0 < header["weight_error"] < 1e-3


def test_explain_writes_a_page_by_the_ending(cli, tmp_path):
    target = tmp_path / "x.html"
    done = cli("explain", SENTENCE, "-w", "random", "-o", str(target))
    assert done.code == 0, done.err
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_notebook_gets_the_page_in_a_frame_of_its_own():
    trace = attnviz.explain("</iframe><script>alert(1)</script> \"' bear", weights="random")
    frame = trace._repr_html_()
    found = re.fullmatch(
        r'<iframe sandbox="allow-scripts" [^<>]*srcdoc="([^"<>]*)"></iframe>', frame
    )
    page = html.unescape(found[1])
    assert page.startswith("<!doctype html>")
    assert "alert(1)</script>" not in page


def test_the_frame_of_a_large_trace_is_compact_or_absent():
    from dataclasses import replace

    trace = attnviz.explain("a b", weights="random")
    stages = {name: np.repeat(v, 400, axis=1) for name, v in trace.stages.items()}
    large = replace(
        trace,
        heads=tuple(range(400)),
        stages={**stages, **{n: np.repeat(stages[n], 50, axis=3) for n in ("q", "k", "v")}},
        visible=np.repeat(trace.visible, 400, axis=1),
        about=replace(trace.about, source=replace(trace.source, n_heads=400, n_kv_heads=400)),
    )
    page = html.unescape(large._repr_html_())
    assert json.loads(re.search(r'id="page-header">(.*?)</script>', page)[1])["numbers"] == "int16"
    larger = {n: np.repeat(large.stages[n], 4, axis=3) for n in ("q", "k", "v")}
    assert replace(large, stages={**large.stages, **larger})._repr_html_() is None


def test_a_notebook_that_takes_pictures_only_gets_a_heatmap():
    trace = attnviz.explain("A cute teddy bear is reading", weights="random")
    picture = trace._repr_png_()
    assert picture is not None
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")


def test_a_model_opens_at_the_head_that_tells_most(cli, minilm, tmp_path):
    path = tmp_path / "page.html"
    done = cli(
        "page", "A cute teddy bear is reading", "-m", str(minilm), "-t", "teddy", "-o", str(path)
    )
    assert done.code == 0
    header = json.loads(re.search(r'id="page-header">(.*?)</script>', path.read_text("utf-8"))[1])
    start = header["start"]
    # it opens at the very link that the head was chosen for, and offers three more
    assert (start["query"], start["layer"], start["head"]) == (3, 0, 4)
    assert header["tokens"]["labels"][start["key"]] == "bear"
    assert len(start["links"]) == 4
    assert start["links"][0]["weight"] == pytest.approx(0.928, abs=1e-3)
