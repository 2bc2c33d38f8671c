"""Random weights: every number from the seed alone, sizes at their bounds, files that say the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from attnviz.core import reference
from attnviz.errors import UsageError
from attnviz.records import Tokens
from attnviz.sources.layers import random_
from attnviz.sources.layers.random_ import (
    check_sizes,
    digest,
    draw_layer,
    draw_matrices,
    open_random,
    word_vectors,
)

SOUND = {"seed": 0, "d_model": 4, "d_k": 2, "n_heads": 2, "n_kv_heads": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"d_model": 0}, "--d-model 0 is out of range: 1 to 65536"),
        ({"d_model": 65537}, "--d-model 65537 is out of range"),
        ({"d_k": 0}, "--d-k 0 is out of range: 1 to 65536"),
        ({"d_k": 65537}, "--d-k 65537 is out of range"),
        ({"n_heads": 0}, "--n-heads 0 is out of range: 1 to 1024"),
        ({"n_heads": 1025, "n_kv_heads": 1}, "--n-heads 1025 is out of range"),
        ({"n_kv_heads": 0}, "--n-kv-heads 0 does not divide --n-heads 2: choose from 1, 2"),
        ({"n_kv_heads": -1}, "--n-kv-heads -1 does not divide"),
        ({"n_heads": 12, "n_kv_heads": 5}, "choose from 1, 2, 3, 4, 6, 12"),
        ({"n_kv_heads": 4}, "--n-kv-heads 4 does not divide --n-heads 2"),
        ({"d_model": 65536, "d_k": 2049}, "w_q of 65536 × 4098 is too large to draw: at most 268435456"),
        ({"seed": -1}, "--seed -1 is out of range: 0 to 18446744073709551615"),
        ({"seed": 1 << 64}, "--seed 18446744073709551616 is out of range"),
    ],
)  # fmt: skip
def test_sizes_beyond_their_bounds_are_refused(change: Any, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_sizes(**{**SOUND, **change})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"d_model": 1}, {"d_model": 65536}, {"d_k": 1}, {"d_k": 65536}, {"n_heads": 1}, {"n_heads": 1024}, {"n_kv_heads": 2},
     {"d_model": 65536, "d_k": 2048}, {"seed": (1 << 64) - 1}],
)  # fmt: skip
def test_sizes_at_their_bounds_are_not(change: Any) -> None:
    check_sizes(**{**SOUND, **change})


def test_matrices_are_drawn_in_order_from_one_generator() -> None:
    found = draw_matrices(seed=7, d_model=4, d_k=3, n_heads=4, n_kv_heads=2)
    draw = np.random.Generator(np.random.Philox(7)).standard_normal
    for name, width in (("w_q", 12), ("w_k", 6), ("w_v", 6)):
        np.testing.assert_array_equal(found[name], draw((4, width)) / 2)
    alone = draw_matrices(seed=7, d_model=4, d_k=3)
    assert [alone[name].shape for name in ("w_q", "w_k", "w_v")] == [(4, 3)] * 3
    same = draw_matrices(seed=7, d_model=4, d_k=3, n_heads=4)
    assert same["w_k"].shape == (4, 12)


def test_the_hash_is_of_names_shapes_and_little_endian_numbers() -> None:
    arrays = {"a": np.array([[1.0, 2.0]]), "b": np.arange(3.0)}
    said = (
        b"a(1, 2)"
        + np.array([1, 2], "<f8").tobytes()
        + b"b(3,)"
        + np.array([0, 1, 2], "<f8").tobytes()
    )
    assert digest(arrays) == hashlib.sha256(said).hexdigest()
    turned = {"a": np.asfortranarray(arrays["a"]).astype(">f8"), "b": arrays["b"][::-1][::-1]}
    assert digest(turned) == digest(arrays)


def vector(word: str, seed: int, n: int) -> np.ndarray:
    first = int.from_bytes(
        hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()[:8], "little"
    )
    key = np.array([seed, first], np.uint64)
    found: np.ndarray = np.random.Generator(np.random.Philox(key=key)).standard_normal(n)
    return found


def test_a_word_has_one_vector_for_each_seed() -> None:
    pieces = ("bear", "reads", "bear", "\udce9")
    tokens = Tokens("", (0,) * 4, pieces, pieces, (None,) * 4, (False,) * 4)
    for seed in (0, 5, (1 << 64) - 1):
        found = word_vectors(tokens, seed=seed, d_model=6)
        np.testing.assert_array_equal(found, [vector(piece, seed, 6) for piece in pieces])


def test_an_opened_layer_says_what_it_is() -> None:
    source = open_random(
        seed=3, d_model=6, d_k=4, n_heads=4, n_kv_heads=2, project=reference.project
    )
    info = source.info
    assert (info.kind, info.name, info.seed) == ("random weights", "philox-3", 3)
    assert (info.n_layers, info.n_heads, info.n_kv_heads, info.d_model, info.d_k, info.d_v) == (1, 4, 2, 6, 4, 4)  # fmt: skip
    assert info.sha256 == digest(draw_matrices(seed=3, d_model=6, d_k=4, n_heads=4, n_kv_heads=2))
    assert info.tokenizer.startswith("words and punctuation")
    assert source.layer.scale == 0.5
    assert (source.layer.n_heads, source.layer.n_kv_heads) == (4, 2)
    tokens = source.tokenize("Bear bear")
    assert source.layer.embed is not None
    np.testing.assert_array_equal(source.layer.embed(tokens), [vector("bear", 3, 6)] * 2)
    default = open_random(project=reference.project)
    assert (default.info.d_model, default.info.d_k, default.info.n_heads, default.info.seed) == (
        512,
        64,
        1,
        0,
    )
    assert default.layer.n_kv_heads == 1


def test_a_drawn_file_says_the_same_as_the_seed() -> None:
    arrays, metadata = draw_layer(
        seed=3, d_model=6, d_k=4, n_heads=4, n_kv_heads=2, words=("Bear", "a"), causal=True
    )
    np.testing.assert_array_equal(
        arrays["w_q"], draw_matrices(seed=3, d_model=6, d_k=4, n_heads=4, n_kv_heads=2)["w_q"]
    )
    np.testing.assert_array_equal(arrays["embedding"], [vector("bear", 3, 6), vector("a", 3, 6)])
    assert metadata == {"n_heads": "4", "n_kv_heads": "2", "scale": "0.5", "causal": "true", "origin": "attnviz weights new, seed 3",
                        "vocab": json.dumps(["Bear", "a"])}  # fmt: skip
    bare, told = draw_layer(seed=3, d_model=6, d_k=4, n_heads=2, n_kv_heads=None)
    assert "embedding" not in bare
    assert "vocab" not in told
    assert (told["n_kv_heads"], told["causal"]) == ("2", "false")
    assert random_._MAX_ENTRIES == 1 << 28
