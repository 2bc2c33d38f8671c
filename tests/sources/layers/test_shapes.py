"""Every tuple of shapes: the right answer, or one line of ours with the shapes and the broken rule."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnviz.errors import AttnvizError, InputError, UsageError, WeightsError
from attnviz.runs.explain import explain
from attnviz.sources.files import ArrayFile, Entry
from attnviz.sources.layers.read import Loaded, load_opened

SIZES = (1, 2, 3, 7, 64, 512, 768)
TUPLES = list(itertools.product(SIZES, SIZES, SIZES))
POOL = np.random.default_rng(0).standard_normal(768 * 768) / 8
WORDS = ["a", "cute", "bear"]


def matrix(*shape: int) -> Any:
    size = int(np.prod(shape))
    return POOL[:size].reshape(shape) if size <= POOL.size else np.resize(POOL, shape)


def opened(arrays: dict[str, Any]) -> ArrayFile:
    """Return arrays as an open file, without the way over a disk."""
    entries = {n: Entry(n, a.shape, "F64", a.nbytes) for n, a in arrays.items()}
    return ArrayFile("layer.npz", "npz", entries, {}, lambda name: (arrays[name], "F64"))


def load(
    arrays: dict[str, Any], n_heads: int | None = None, n_kv_heads: int | None = None
) -> Loaded:
    return load_opened(opened(arrays), Path("layer.npz"), "0" * 64, None, n_heads, n_kv_heads)


def softmax_by_hand(q: Any, k: Any, v: Any) -> Any:
    """softmax(q·kᵀ/√d_k)·v, as it is written."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ v


@pytest.mark.parametrize("d_model", SIZES)
def test_every_layer_that_fits_is_computed_right(d_model: int, tmp_path: Path) -> None:
    """d_model, d_k and d_v of each size; files of both kinds in turn."""
    for number, (d_k, d_v) in enumerate(itertools.product(SIZES, SIZES)):
        arrays = {
            "w_q": matrix(d_model, d_k), "w_k": matrix(d_model, d_k)[::-1].copy(),
            "w_v": matrix(d_model, d_v), "embedding": matrix(3, d_model),
        }  # fmt: skip
        path = tmp_path / f"layer{number}.{('npz', 'safetensors')[number % 2]}"
        if number % 2:
            save_file(arrays, path, metadata={"vocab": json.dumps(WORDS)})
        else:
            np.savez(path, **arrays, vocab=np.array(WORDS))
        found = explain(" ".join(WORDS), weights=str(path)).stages["output"][0, 0]
        q, k, v = (arrays["embedding"] @ arrays[f"w_{name}"] for name in "qkv")
        np.testing.assert_allclose(found, softmax_by_hand(q, k, v), rtol=1e-9, atol=1e-12)


def fits(widths: tuple[int, int, int], n_heads: int | None, n_kv_heads: int | None) -> bool:
    """The rule, by itself: w_q (D, H·E), w_k (D, K·E), w_v (D, K·F), H a multiple of K."""
    q, k, v = widths
    heads = range(1, q + 1) if n_heads is None else [n_heads]
    if n_heads is None:  # one head, unless the key heads tell its width
        heads = [1] if n_kv_heads is None else [q * n_kv_heads // k] if k >= n_kv_heads else [1]
    for h in heads:
        if h < 1 or q % h or k % (q // h):
            continue
        groups = k // (q // h)
        if n_kv_heads in (None, groups) and h % groups == 0 and v % groups == 0:
            return True
    return False


@pytest.mark.parametrize("n_heads", [None, 1, 2, 3, 7, 64])
def test_widths_and_heads_fit_or_the_broken_rule_is_told(n_heads: int | None) -> None:
    for (q, k, v), n_kv_heads in itertools.product(TUPLES, (None, 1, 2)):
        arrays = {"w_q": matrix(4, q), "w_k": matrix(4, k), "w_v": matrix(4, v)}
        case = f"{q} {k} {v}, heads {n_heads}, {n_kv_heads}"
        try:
            layer = load(arrays, n_heads, n_kv_heads).layer
        except AttnvizError as fault:
            assert not fits((q, k, v), n_heads, n_kv_heads), case
            told = str(fault)
            assert f"w_q (4, {q}), w_k (4, {k}), w_v (4, {v})" in told
            assert re.search(r"do(es)? not divide|cannot share|, not \d+ heads of", told), told
            assert "give" in told
        else:
            assert fits((q, k, v), n_heads, n_kv_heads), case
            assert layer.n_heads * layer.d_k == q
            assert layer.n_kv_heads * layer.d_k == k
            assert layer.n_kv_heads * layer.d_v == v


def test_three_heights_are_one_or_are_told() -> None:
    for a, b, c in TUPLES:
        arrays = {"w_q": matrix(a, 2), "w_k": matrix(b, 2), "w_v": matrix(c, 2)}
        if a == b == c:
            assert load(arrays).layer.d_model == a
            continue
        with pytest.raises(WeightsError) as caught:
            load(arrays)
        assert f"w_q ({a}, 2), w_k ({b}, 2), w_v ({c}, 2): the first axis, d_model, differs" in str(
            caught.value
        )


BESIDE = {
    "embedding": lambda a, b, c: ((a, b), b == 6),
    "positions": lambda a, b, c: ((a, b), b == 6),
    "b_q": lambda a, b, c: ((a,), a == 4),
    "b_v": lambda a, b, c: ((a,), a == 4),
    "w_o": lambda a, b, c: ((a, b), a == 4),
}


@pytest.mark.parametrize("part", BESIDE)
def test_what_stands_beside_fits_or_its_shape_is_told(part: str) -> None:
    right = {f"w_{name}": matrix(6, 4) for name in "qkv"}
    for sizes in [*TUPLES, (6, 6, 6), (4, 4, 4)]:
        shape, is_right = BESIDE[part](*sizes)
        arrays = {**right, part: matrix(*shape)}
        if is_right:
            load(arrays)
            continue
        with pytest.raises(WeightsError) as caught:
            load(arrays)
        assert f"{part} has the shape {shape}: wanted" in str(caught.value)


def test_other_numbers_of_axes_are_told() -> None:
    """A vector, a cube, a fused matrix of any size: read right where a layout has it, or told."""
    n_read, refusals = 0, []
    for a, b, c in TUPLES:
        if a * b * c > 1_000_000:
            continue
        for arrays in (
            {"w_q": matrix(a, b, c), "w_k": matrix(a, b, c), "w_v": matrix(a, b, c)},
            {"w_q": matrix(a), "w_k": matrix(b), "w_v": matrix(c)},
            {"w_q": matrix(a, b), "w_k": matrix(b), "w_v": matrix(a, b)},
            {"c_attn.weight": matrix(a, b), "c_attn.bias": matrix(c)},
            {"in_proj_weight": matrix(a, b), "in_proj_bias": matrix(c)},
            {"q_proj.weight": matrix(a, b), "k_proj.weight": matrix(c, b), "v_proj.weight": matrix(a, b)},
            {"w_q": matrix(a, b), "w_k": matrix(a, b)},
            {"w_q": matrix(a, 0), "w_k": matrix(b, 0), "w_v": matrix(c, 0)},
            {"w_q": matrix(0, a), "w_k": matrix(0, b), "w_v": matrix(0, c)},
        ):  # fmt: skip
            try:
                load(arrays, 2 if a % 2 else None)
                n_read += 1
            except (InputError, UsageError) as fault:
                refusals.append(str(fault))
    assert n_read > 20
    assert len(refusals) > 500
    assert [told for told in refusals if not re.search("wanted|give|leave", told)] == []
