"""``attnviz compare``: the same word in two texts, two heads, two sources; for people and for CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from support import SENTENCE, Result

from attnviz.errors import UsageError
from attnviz.runs.compare import compare

Cli = Callable[..., Result]
A, B = "the bear ate honey", "I cannot bear the noise"
RANDOM: dict[str, Any] = {"weights": "random"}


def test_the_same_word_goes_in_alike_and_comes_out_different() -> None:
    found = compare(A, B, token="bear")
    assert found.rows == ((1, 2),)
    assert found.x_cosine is not None
    assert found.z_cosine is not None
    assert found.x_cosine[0, 0] == 1.0
    assert found.z_cosine[0, 0, 0] < 0.9
    assert found.blame is not None
    assert found.blame[0, 0, 0].sum() == pytest.approx(1.0)
    assert found.weights_a.sum(-1) == pytest.approx(1.0)
    assert found.weights_b.sum(-1) == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{}, RANDOM, {"weights": "sample-8", "head": "all"}])
def test_identical_texts_differ_by_exactly_0(options: dict[str, Any]) -> None:
    found = compare(SENTENCE, SENTENCE, **options)
    assert (found.bits == 0.0).all()
    assert found.largest_bits == 0.0
    assert np.array_equal(found.weights_a, found.weights_b)
    assert found.z_cosine is not None
    assert (found.z_cosine == 1.0).all()


@pytest.mark.parametrize("align", ["word", "position"])
def test_swapping_sides_changes_signs_only(align: str) -> None:
    one = compare(A, B, align=align, token="bear")
    two = compare(B, A, align=align, token="bear")
    order = [two.key_pairs.index((j, i)) for i, j in one.key_pairs]
    assert np.array_equal(one.weights_a, two.weights_b[..., order])
    change, back = (c.weights_b - c.weights_a for c in (one, two))
    assert np.array_equal(change, -back[..., order])
    assert np.allclose(one.bits, two.bits, atol=1e-15)
    assert one.z_cosine is not None
    assert np.allclose(one.z_cosine, two.z_cosine, atol=1e-15)
    assert one.blame is not None
    assert two.blame is not None
    assert np.allclose(one.blame, two.blame[..., order], atol=1e-12)


def test_heads_layers_and_weights() -> None:
    heads = compare(SENTENCE, weights="sample-8", head="0", with_head="3")
    assert heads.names == ("L0.H0", "L0.H3")
    assert heads.x_cosine is not None
    assert (heads.x_cosine == 1.0).all()
    files = compare(SENTENCE, with_weights="sample-8")
    assert files.names == ("sample", "sample-8")
    assert files.largest_bits > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((A,), "nothing to compare with"),
        ((A, B, "--with-head", "1"), "compare one thing at a time"),
        ((A, B, "--token", "honey"), "no token 'honey'"),
        ((A, B, "--align", "letter"), "choose from word, position"),
        ((A, "zebra stripes"), "no word in common"),
        ((A, "-w", "sample-8", "--head", "all", "--with-weights", "sample"), "the sides differ"),
    ],
)
def test_what_cannot_be_compared_says_why(
    cli: Cli, arguments: tuple[str, ...], reason: str
) -> None:
    done = cli("compare", *arguments)
    assert done.code == 2
    assert reason in done.err


def test_for_ci(cli: Cli) -> None:
    same = cli("compare", A, A, "--fail-above", "0")
    assert (same.code, "at most 0" in same.err) == (0, True)
    other = cli("compare", A, "-w", "sample-8", "--with-head", "3", "--fail-above", "0.01")
    assert (other.code, "above 0.01" in other.err) == (1, True)
    assert "before and after attention" in other.out


def test_json_is_valid(cli: Cli, tmp_path: Path) -> None:
    schema = json.loads((resources.files("attnviz") / "schemas/compare-1.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for arguments in ((A, B), (A, B, "--token", "bear"), (A, "--with-weights", "sample-8")):
        data = json.loads(cli("compare", *arguments, "-f", "json").out)
        jsonschema.Draft202012Validator(schema).validate(data)
    for suffix in (".csv", ".png", ".md", ".npz", ".tex"):
        assert cli("compare", A, B, "-o", str(tmp_path / f"c{suffix}")).code == 0


def test_the_screen_says_it_in_words(cli: Cli) -> None:
    out = " ".join(cli("compare", A, B, "--token", "bear").out.split())
    assert '"bear" goes in with a cosine of 1.0000 between the sides' in out
    assert "The difference of z comes from" in out
    assert "not why the model answered" in out


def test_on_models(minilm: Path, smollm2: Path) -> None:
    found = compare(A, B, token="bear", model=str(minilm))
    assert found.a.layers == found.b.layers
    assert found.a.heads == found.b.heads
    assert found.a.checks["parity"] < 1e-5
    same = compare(SENTENCE, SENTENCE, model=str(minilm), layer="all", head="all")
    assert same.bits.shape[:2] == (6, 12)
    assert (same.bits == 0.0).all()
    first = compare(A, B, token="bear", model=str(smollm2), layer="0", head="0")
    assert first.x_cosine is not None
    assert first.x_cosine[0, 0] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(UsageError, match="the sides differ"):
        compare(SENTENCE, model=str(minilm), layer="0", head="all", with_model=str(smollm2))
