"""What shapes and metadata prove about a layer, and each way in which they may not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnviz.errors import AttnvizError, UsageError, WeightsError
from attnviz.sources.layers import proof


def file_of(**metadata: str) -> Any:
    return SimpleNamespace(name="f", metadata=metadata)


def parts_of(
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    *,
    q: tuple[int, int] = (6, 8),
    k: tuple[int, int] = (6, 8),
    v: tuple[int, int] = (6, 8),
    **others: tuple[int, ...],
) -> Any:
    shapes = {"w_q": q, "w_k": k, "w_v": v, **others}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return SimpleNamespace(arrays=arrays, n_heads=n_heads, n_kv_heads=n_kv_heads)


def sizes(*given: Any, **named: Any) -> tuple[int, int, int]:
    return proof.sizes_of(file_of(), parts_of(*given, **named))


@pytest.mark.parametrize(
    ("given", "named", "wanted"),
    [
        ((), {}, (1, 1, 8)),
        ((2,), {}, (2, 2, 4)),
        ((4, 2), {"k": (6, 4), "v": (6, 4)}, (4, 2, 2)),
        ((4,), {"k": (6, 4), "v": (6, 4)}, (4, 2, 2)),
        ((None, 2), {"k": (6, 4), "v": (6, 4)}, (4, 2, 2)),
        ((None, 2), {"k": (6, 4), "v": (6, 10)}, (4, 2, 2)),
        ((2,), {"v": (6, 10)}, (2, 2, 4)),
        ((8, 1), {"k": (6, 1), "v": (6, 3)}, (8, 1, 1)),
        ((2,), {"w_o": (8, 5), "b_o": (5,)}, (2, 2, 4)),
        ((2,), {"v": (6, 10), "w_o": (10, 6)}, (2, 2, 4)),
        ((4, 2), {"k": (6, 4), "v": (6, 10), "w_o": (20, 6), "b_o": (6,)}, (4, 2, 2)),
        ((2,), {"b_q": (8,), "b_k": (8,), "b_v": (8,)}, (2, 2, 4)),
    ],
)
def test_heads_and_widths_follow_from_the_shapes(given: Any, named: Any, wanted: Any) -> None:
    assert sizes(*given, **named) == wanted


@pytest.mark.parametrize(
    ("given", "named", "reason"),
    [
        ((), {"q": (5, 8)}, "the first axis, d_model, differs"),
        ((), {"k": (5, 8)}, "the first axis, d_model, differs"),
        ((), {"v": (5, 8)}, "the first axis, d_model, differs"),
        ((3,), {}, "the 8 columns of w_q do not divide into 3 heads"),
        ((2,), {"k": (6, 6)}, "w_k does not divide into heads of that width"),
        ((4, 1), {"k": (6, 4), "v": (6, 4)}, "with 4 query and 1 key/value head"),
        ((4, 3), {"k": (6, 6), "v": (6, 6)}, "4 query heads cannot share 3 key/value heads evenly"),
        ((4, 2), {"k": (6, 4), "v": (6, 5)}, "the 5 columns of w_v do not divide into 2 heads"),
        (
            (2, 4),
            {"k": (6, 16), "v": (6, 16)},
            "2 query heads cannot share 4 key/value heads evenly",
        ),
        ((None, 3), {}, "w_k has 8 columns, not 3 heads of 2"),
        ((None, 2), {"k": (6, 0)}, "w_k has 0 columns, not 2 heads of 8"),
        ((), {"b_q": (7,)}, "b_q has the shape (7,): wanted (8,)"),
        ((), {"b_k": (8, 1)}, "b_k has the shape (8, 1): wanted (8,)"),
        ((), {"b_v": (1,)}, "b_v has the shape (1,): wanted (8,)"),
        ((2,), {"w_o": (6, 8)}, "w_o has the shape (6, 8): wanted (8, D)"),
        ((2,), {"v": (6, 10), "w_o": (8, 6)}, "wanted (10, D)"),
        ((), {"b_o": (8,)}, "b_o has the shape (8,): wanted a w_o beside it"),
        ((), {"w_o": (8, 6), "b_o": (8,)}, "b_o has the shape (8,): wanted (6,)"),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(given: Any, named: Any, reason: str) -> None:
    with pytest.raises(WeightsError) as caught:
        sizes(*given, **named)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("f: ")


@pytest.mark.parametrize("empty", ["w_q", "w_k", "w_v"])
@pytest.mark.parametrize("heads", [(None, None), (2, None), (None, 2), (2, 2)])
def test_matrices_without_columns_or_rows_are_refused_by_name(
    tmp_path: Path, empty: str, heads: tuple[Any, Any]
) -> None:
    from attnviz.sources.layers.weights import load_layer

    for shape in ((6, 0), (0, 8)):
        names = ("w_q", "w_k", "w_v")
        arrays = {n: np.zeros(shape if n == empty else (6, 8)) for n in names}
        np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(AttnvizError) as caught:
            load_layer(tmp_path / "a.npz", n_heads=heads[0], n_kv_heads=heads[1])
        assert empty in str(caught.value)


@pytest.mark.parametrize(
    ("told", "asked", "wanted"),
    [(None, None, None), (None, 3, 3), ("3", None, 3), ("3", 3, 3), (" 1024 ", None, 1024), ("8.0", None, 8),
     ("1", 1, 1), (None, 1, 1), (None, 1024, 1024)],
)  # fmt: skip
def test_a_number_of_heads_from_the_file_or_the_caller(told: Any, asked: Any, wanted: Any) -> None:
    file = file_of() if told is None else file_of(n_heads=told)
    assert proof.count_of(file, "n_heads", asked) == wanted


@pytest.mark.parametrize(
    ("told", "asked", "reason"),
    [(None, 0, "--n-kv-heads 0 is out of range: 1 to 1024"), (None, 1025, "--n-kv-heads 1025 is out"),
     ("0", None, "its n_kv_heads is 0: wanted a number from 1 to 1024"), ("1025", None, "is 1025"),
     ("x", None, "is x"), ("2.5", None, "is 2.5"), ("9" * 7, None, "is 9999999"), ("-1", None, "is -1"),
     ("4", 2, "--n-kv-heads 2 contradicts f, which says 4"), ("", None, "is ''")],
)  # fmt: skip
def test_numbers_of_heads_that_cannot_be(told: Any, asked: Any, reason: str) -> None:
    file = file_of() if told is None else file_of(n_kv_heads=told)
    with pytest.raises((UsageError, WeightsError)) as caught:
        proof.count_of(file, "n_kv_heads", asked)
    assert reason in str(caught.value)


def test_the_scale_is_the_files_own_or_the_usual_one() -> None:
    assert proof.scale_of(file_of(), 16) == 0.25
    assert proof.scale_of(file_of(), 2) == 1 / math.sqrt(2)
    assert proof.scale_of(file_of(scale="0.125"), 16) == 0.125
    assert proof.scale_of(file_of(scale="1e-300"), 16) == 1e-300
    for told in ("0", "-1", "nan", "inf", "x", "-inf"):
        with pytest.raises(WeightsError, match="wanted a number above 0"):
            proof.scale_of(file_of(scale=told), 16)


def test_whether_a_layer_is_causal() -> None:
    for told, wanted in (("true", True), ("1", True), (" YES ", True), ("false", False), ("0", False), ("no", False)):  # fmt: skip
        assert proof.causal_of(file_of(causal=told), SimpleNamespace(is_causal=not wanted)) == (wanted, ())  # type: ignore[arg-type]  # fmt: skip
    is_causal, notices = proof.causal_of(file_of(), SimpleNamespace(is_causal=True))  # type: ignore[arg-type]
    assert is_causal
    assert "--no-causal" in notices[0]
    assert proof.causal_of(file_of(), SimpleNamespace(is_causal=False)) == (False, ())  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="its causal is maybe: wanted true or false"):
        proof.causal_of(file_of(causal="maybe"), SimpleNamespace(is_causal=True))  # type: ignore[arg-type]


def test_tables_are_rows_of_real_numbers_as_wide_as_the_model() -> None:
    proof.check_table(file_of(), "embedding", None, 4)
    for kind in ("f4", "f8", "i2", "u1"):
        proof.check_table(file_of(), "embedding", np.zeros((1, 4), kind), 4)
    for shape in ((4,), (2, 5), (0, 4), (2, 4, 4), (4, 2)):
        with pytest.raises(WeightsError) as caught:
            proof.check_table(file_of(), "embedding", np.zeros(shape), 4)
        assert f"has the shape {shape}: wanted (rows, 4), one row per word" in str(caught.value)
    with pytest.raises(WeightsError, match="one row per position"):
        proof.check_table(file_of(), "positions", np.zeros(4), 4)
    for kind in ("c8", "?"):
        with pytest.raises(WeightsError, match="wanted real numbers"):
            proof.check_table(file_of(), "embedding", np.zeros((2, 4), kind), 4)


def test_a_vocabulary_is_a_list_of_words() -> None:
    assert proof.vocab_of(file_of()) is None
    assert proof.vocab_of(file_of(vocab='["a", ""]')) == ("a", "")
    for told in ("x", '{"a": 1}', '["a", 1]', "3", "[" * 99_999, json.dumps("ab"), "null"):
        with pytest.raises(WeightsError, match="its vocab is no list of words"):
            proof.vocab_of(file_of(vocab=told))


def test_what_does_not_say_its_heads_is_told_so() -> None:
    def told(n_heads: int | None, layout: str) -> tuple[str, ...]:
        parts = SimpleNamespace(n_heads=n_heads, site=SimpleNamespace(layout=layout))
        return proof.heads_notice(file_of(), parts)  # type: ignore[arg-type]

    assert told(2, "linear") == told(None, "matrix") == told(1, "matrix") == ()
    assert "read as one; --n-heads N" in told(None, "linear")[0]
