"""``attnviz explain`` from outside: numbers, options, errors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import SENTENCE, Result

Cli = Callable[..., Result]
RANDOM = ("--weights", "random")


def read_json(text: str) -> dict:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_can_be_recomputed(cli: Cli) -> None:
    done = cli("explain", SENTENCE, *RANDOM, "--seed", "0", "--format", "json")
    assert (done.code, done.err) == (0, "")
    data = read_json(done.out)
    assert data["schema"] == "attnviz.trace/1"
    assert [t["label"] for t in data["tokens"]] == SENTENCE.split()
    assert [SENTENCE[t["start"] : t["end"]] for t in data["tokens"]] == SENTENCE.split()
    stages = {name: np.array(values)[0, 0] for name, values in data["stages"].items()}
    assert stages["q"].shape == (6, 64)
    scores = stages["q"] @ stages["k"].T
    np.testing.assert_allclose(stages["scores"], scores, atol=1e-12)
    np.testing.assert_allclose(stages["scaled"], scores / 8, atol=1e-12)
    grown = np.exp(scores / 8 - (scores / 8).max(axis=1, keepdims=True))
    weights = grown / grown.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stages["weights"], weights, atol=1e-12)
    np.testing.assert_allclose(stages["output"], weights @ stages["v"], atol=1e-12)
    assert max(data["checks"].values()) < 1e-12


def test_x_times_w_q_is_q(cli: Cli) -> None:
    from attnviz.sources.layers.random_ import draw_matrices

    data = read_json(cli("explain", SENTENCE, *RANDOM, "-f", "json").out)
    w_q = draw_matrices(seed=0, d_model=512, d_k=64)["w_q"]
    np.testing.assert_allclose(
        np.array(data["x"])[0] @ w_q, np.array(data["stages"]["q"])[0, 0], atol=1e-12
    )


def test_M9_the_seed_gives_these_numbers_everywhere() -> None:
    from attnviz.sources.layers.random_ import digest, draw_matrices

    found = {
        seed: digest(draw_matrices(seed=seed, d_model=512, d_k=64))[:16] for seed in (0, 1, 10)
    }
    assert found == {0: "cdfa19da8639f16b", 1: "d8316cc660f2774c", 10: "0c30d0dd4f64531d"}


def test_the_same_word_has_the_same_vector(cli: Cli) -> None:
    data = read_json(cli("explain", "Bear bear honey", *RANDOM, "-f", "json").out)
    x = np.array(data["x"])[0]
    np.testing.assert_array_equal(x[0], x[1])
    assert not np.array_equal(x[0], x[2])


def test_C5_masked_scores_are_null(cli: Cli) -> None:
    data = read_json(cli("explain", "a b c", *RANDOM, "--causal", "-f", "json").out)
    masked = data["stages"]["masked"][0][0]
    assert masked[0][1] is None
    assert masked[2][0] is not None
    assert data["visible"][0][0] == [[True, False, False], [True, True, False], [True] * 3]
    assert data["stages"]["weights"][0][0][0] == [1.0, 0.0, 0.0]


def test_M3_M5_the_divisor_and_the_visible_keys_are_printed(cli: Cli) -> None:
    done = cli("explain", "a b c", *RANDOM, "--causal", "--n-heads", "8", "--width", "100")
    assert "scores / √64 = scores / 8" in done.out
    assert "Keys each query may see: 1, 2, 3" in done.out


def test_scale_none_shows_what_the_division_is_for(cli: Cli) -> None:
    done = cli("explain", SENTENCE, *RANDOM, "--scale", "none", "--width", "120")
    assert done.code == 0
    assert "What the division is for" in done.out
    assert "entropy ÷ 8" in done.out
    assert "‖J‖ · 1" in done.out
    assert "not divided" in done.out


def test_token_zoom_by_word_and_index(cli: Cli) -> None:
    by_word = cli("explain", SENTENCE, *RANDOM, "--token", "teddy")
    by_index = cli("explain", SENTENCE, *RANDOM, "--token", "2")
    assert by_word.out == by_index.out
    assert "the dot product as a sum" in by_word.out
    assert "z as the blend" in by_word.out


def test_the_zoom_adds_up(cli: Cli) -> None:
    from attnviz.render.views import zoom
    from attnviz.runs.explain import explain

    trace = explain(SENTENCE, weights="random")
    tables = {s.title: s for s in zoom.view(trace, queries=[2]).shapes if hasattr(s, "title")}
    blend = next(t for name, t in tables.items() if name.startswith("z as"))
    z = trace.stages["output"][0, 0, 2]
    assert sum(row[5] for row in blend.rows) == pytest.approx(np.linalg.norm(z))
    assert sum(row[6] for row in blend.rows) == pytest.approx(1)
    dots = next(t for name, t in tables.items() if name.startswith("q·k"))
    for row in dots.rows:
        terms = sum(float(cell.split()[0]) for cell in row[2:5])
        assert terms + row[5] == pytest.approx(row[6], abs=2e-3)


def test_an_ambiguous_word_lists_its_positions(cli: Cli) -> None:
    done = cli("explain", "the bear saw the dog", *RANDOM, "--token", "the")
    assert done.code == 2
    assert "0:the, 3:the" in done.err
    wrong = cli("explain", "the bear", *RANDOM, "--token", "dog")
    assert wrong.code == 2
    assert "0:the, 1:bear" in wrong.err


def test_heads_groups_and_mean(cli: Cli) -> None:
    every = read_json(
        cli(
            "explain",
            "a b",
            *RANDOM,
            "--n-heads",
            "4",
            "--n-kv-heads",
            "2",
            "--head",
            "all",
            "-f",
            "json",
        ).out
    )
    assert every["heads"] == [0, 1, 2, 3]
    k = np.array(every["stages"]["k"])[0]
    np.testing.assert_array_equal(k[0], k[1])
    assert not np.array_equal(k[1], k[2])
    mean = read_json(
        cli(
            "explain",
            "a b",
            *RANDOM,
            "--n-heads",
            "4",
            "--n-kv-heads",
            "2",
            "--head",
            "mean",
            "-f",
            "json",
        ).out
    )
    assert mean["heads"] == ["mean"]
    np.testing.assert_allclose(
        mean["stages"]["weights"][0][0], np.array(every["stages"]["weights"])[0].mean(axis=0)
    )
    assert cli("explain", "a b", *RANDOM, "--n-heads", "4", "--head", "mean", "-t", "a").code == 2


def test_torch_agrees_with_numpy(cli: Cli) -> None:
    numpy = read_json(cli("explain", SENTENCE, *RANDOM, "-f", "json").out)
    torch = read_json(cli("explain", SENTENCE, *RANDOM, "--dtype", "float32", "-f", "json").out)
    assert (numpy["core"], torch["core"]) == ("numpy", "torch")
    for name, values in numpy["stages"].items():
        np.testing.assert_allclose(torch["stages"][name], values, atol=2e-4)


def test_csv_is_one_record_per_pair(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("explain", SENTENCE, *RANDOM, "-f", "csv").out)))
    assert len(rows) == 36
    assert (rows[8]["query_label"], rows[8]["key_label"]) == ("cute", "teddy")
    assert sum(float(r["weights"]) for r in rows[:6]) == pytest.approx(1, abs=1e-12)
    vectors = list(
        csv.DictReader(io.StringIO(cli("explain", "a b", *RANDOM, "-s", "q", "-f", "csv").out))
    )
    assert len(vectors) == 2 * 64


@pytest.mark.parametrize(
    "ending", [".json", ".csv", ".tsv", ".jsonl", ".md", ".npz", ".safetensors", ".txt"]
)
def test_files_of_every_kind(cli: Cli, tmp_path: Path, ending: str) -> None:
    target, again = tmp_path / f"one{ending}", tmp_path / f"two{ending}"
    for path in (target, again):
        done = cli("explain", SENTENCE, *RANDOM, "--causal", "-o", str(path))
        assert (done.code, done.out) == (0, "")
    assert target.read_bytes() == again.read_bytes()
    assert b"root" not in target.read_bytes()
    kept = cli("explain", SENTENCE, *RANDOM, "-o", str(target))
    assert kept.code == 2
    assert "--force" in kept.err
    assert cli("explain", SENTENCE, *RANDOM, "-o", str(target), "--force").code == 0


def test_arrays_read_back(cli: Cli, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    one, two = tmp_path / "a.npz", tmp_path / "a.safetensors"
    for path in (one, two):
        cli("explain", SENTENCE, *RANDOM, "--causal", "-o", str(path))
    arrays = load_file(two)
    with np.load(one) as file:
        for name in ("x", "q", "k", "v", "scores", "masked", "weights", "output", "visible"):
            np.testing.assert_array_equal(file[name], arrays[name])
        about = json.loads(str(file["attnviz"]))
    assert about["source"]["seed"] == 0
    assert arrays["masked"][0, 0, 0, 1] == -np.inf


ERRORS = {
    "no text": ([], 2, "no text"),
    "two texts": (["a", "--file", "x"], 2, "choose one"),
    "empty": ([""], 3, "no tokens"),
    "blanks": (["  "], 3, "no tokens"),
    "missing file": (["--file", "/nowhere/x.txt"], 3, "cannot read"),
    "missing weights": (["a", "-w", "/nowhere/w.npz"], 3, "w.npz"),
    "head": (["a", "--head", "1"], 2, "head 1 does not exist"),
    "head word": (["a", "--head", "two"], 2, "no number"),
    "scale": (["a", "--scale", "0"], 2, "--scale 0"),
    "scale word": (["a", "--scale", "big"], 2, "--scale big"),
    "kv heads": (["a", "--n-heads", "6", "--n-kv-heads", "4"], 2, "1, 2, 3, 6"),
    "d_k": (["a", "--d-k", "0"], 2, "--d-k 0"),
    "seed": (["a", "--seed", "-1"], 2, "--seed -1"),
    "huge": (["a", "--d-model", "65536", "--d-k", "65536"], 2, "too large"),
    "stage": (["a", "-s", "weigths"], 2, "did you mean 'weights'"),
    "format": (["a", "-f", "jason"], 2, "did you mean 'json'"),
    "color": (["a", "--color", "sometimes"], 2, "auto, always, never"),
    "ending": (["a", "-o", "x.doc"], 2, ".json"),
    "binary": (["a", "-f", "npz"], 2, "-o NAME.npz"),
    "option": (["a", "--toke", "b"], 2, "--token"),
    "device": (["a", "--device", "gpu"], 2, "cuda"),
    "dtype": (["a", "--dtype", "float8"], 2, "float32"),
    "no folder": (["a", "-o", "/nowhere/x.json"], 3, "/nowhere"),
    "too long": (["w " * 5000], 4, "shorten the text"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line_with_the_cure(cli: Cli, name: str) -> None:
    arguments, code, words = ERRORS[name]
    weights = [] if "-w" in arguments else list(RANDOM)
    done = cli("explain", *arguments, *weights)
    assert done.code == code
    assert done.out == ""
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err


def test_a_missing_gpu_is_said(cli: Cli) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = cli("explain", "a", *RANDOM, "--device", "cuda")
    assert done.code == 4
    assert "cuda" in done.err


def test_strict_makes_a_notice_an_error(cli: Cli) -> None:
    assert (
        cli(
            "explain",
            "a \udc80".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
            *RANDOM,
        ).code
        == 0
    )
    mean = ("explain", "a", *RANDOM, "--n-heads", "2", "--head", "mean")
    assert cli(*mean).code == 0
    assert cli(*mean, "--strict").code == 2
    assert cli(*mean, "-q").err == ""


def test_a_bug_is_said_as_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnviz.runs import explain

    def broken(*_: object, **__: object) -> None:
        raise ValueError("boom\x1b[2J")

    monkeypatch.setattr(explain, "explain", broken)
    done = cli("explain", "a", *RANDOM)
    assert done.code == 70
    assert "boom␛[2J" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in cli("explain", "a", *RANDOM, "--debug").err


def test_doctor_finds_the_arithmetic_right(cli: Cli) -> None:
    data = read_json(cli("doctor", "-f", "json").out)
    assert all(case["right"] for case in data["selftest"])
    assert cli("doctor").code == 0


def test_doctor_fails_on_wrong_arithmetic(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnviz.core import reference

    monkeypatch.setattr(
        reference, "softmax", lambda s, sinks=None: (np.full_like(s, 0.3), s[..., 0])
    )
    assert cli("doctor", "-f", "json").code == 1
