"""The stream equals the dense reference: any shape, mask, grouping, block, tile and precision."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_cases import FACTOR, FIGURES, Case, cases, check_stream

from attnviz.core import reference
from attnviz.core.stream import rectangle
from attnviz.core.stream.stream import stream
from attnviz.records import MaskRule

often = settings(max_examples=150 * FACTOR, deadline=None)
seldom = settings(max_examples=40 * FACTOR, deadline=None)


@often
@given(cases())
def test_float64_to_twelve_digits(case: Case) -> None:
    check_stream(case, dtype=torch.float64, tolerance=1e-12)


@often
@given(cases(loud=False))
def test_float32_to_five_digits(case: Case) -> None:
    check_stream(case, dtype=torch.float32, tolerance=1e-5)


@seldom
@given(cases(largest=700))
def test_several_tiles_and_windows_of_links(case: Case) -> None:
    check_stream(case, dtype=torch.float32, tolerance=3e-5)


@seldom
@given(cases(largest=60), st.sets(st.sampled_from(FIGURES)))
def test_fewer_figures_are_the_same_figures(case: Case, figures: set[str]) -> None:
    whole = stream(case.heads, dtype=torch.float64, **case.how)
    part = stream(case.heads, dtype=torch.float64, figures=tuple(figures), **case.how)
    assert set(part.figures) == figures
    for field in dataclasses.fields(part):
        ours, all_of_it = getattr(part, field.name), getattr(whole, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_allclose(ours, all_of_it, atol=1e-12, err_msg=field.name)


@seldom
@given(cases(largest=90), st.data())
def test_a_rectangle_is_the_dense_map_there(case: Case, data: st.DataObject) -> None:
    heads = case.heads
    head = data.draw(st.integers(0, heads.n_heads - 1))
    row0 = data.draw(st.integers(0, heads.n_queries - 1))
    key0 = data.draw(st.integers(0, heads.n_keys - 1))
    rows = (row0, data.draw(st.integers(row0 + 1, heads.n_queries)))
    keys = (key0, data.draw(st.integers(key0 + 1, heads.n_keys)))
    traced = reference.trace_heads(heads)
    for stage in ("weights", "masked"):
        ours = rectangle.rectangle(
            heads, head, rows=rows, keys=keys, stage=stage, dtype=torch.float64
        )
        expected = traced[stage][head, slice(*rows), slice(*keys)]
        size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12 * size)


@seldom
@given(cases(largest=120))
def test_rows_of_a_causal_head_ignore_what_follows(case: Case) -> None:
    rule = dataclasses.replace(case.heads.visible, causal=True, cells=None)
    n = min(case.heads.n_queries, case.heads.n_keys)
    bias = case.heads.bias
    heads = dataclasses.replace(
        case.heads,
        q=case.heads.q[:, :n],
        k=case.heads.k[:, :n],
        v=case.heads.v[:, :n],
        visible=dataclasses.replace(
            rule, key_visible=None if rule.key_visible is None else rule.key_visible[:n]
        ),
        bias=None if bias is None or callable(bias) else bias[:, :n, :n],
    )
    middle = n // 2
    k, v = heads.k.copy(), heads.v.copy()
    k[:, middle + 1 :], v[:, middle + 1 :] = np.nan, np.inf
    future = dataclasses.replace(heads, k=k, v=v)
    how = {"figures": ("output", "entropy", "links"), "dtype": torch.float64, **case.how}
    before, after = stream(heads, **how), stream(future, **how)
    for name in ("output_HLF", "entropy_HL", "lse_HL", "link_weights_HLN"):
        past = slice(0, middle + 1)
        ours, expected = getattr(after, name)[:, past], getattr(before, name)[:, past]
        np.testing.assert_allclose(ours, expected, atol=1e-12, err_msg=name)


@seldom
@given(cases(largest=100), st.floats(-200, 200))
def test_a_constant_added_to_all_scores_changes_nothing_but_the_logsumexp(
    case: Case, constant: float
) -> None:
    plain = dataclasses.replace(case.heads, softcap=None, bias=None, sinks=None)
    n_queries, n_keys = plain.n_queries, plain.n_keys
    shifted = dataclasses.replace(plain, bias=np.full((1, n_queries, n_keys), constant))
    ours = stream(shifted, dtype=torch.float64, **case.how)
    expected = stream(plain, dtype=torch.float64, **case.how)
    for name in ("output_HLF", "entropy_HL", "received_HS", "link_weights_HLN", "map_max_HRR"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(expected, name), atol=1e-9, err_msg=name
        )
    np.testing.assert_allclose(ours.lse_HL, expected.lse_HL + constant, atol=1e-9)


@seldom
@given(cases(largest=100), st.randoms(use_true_random=False))
def test_keys_in_another_order_give_the_same_keys_in_that_order(case: Case, random: object) -> None:
    plain = dataclasses.replace(case.heads, visible=MaskRule(), bias=None)
    order = list(range(plain.n_keys))
    random.shuffle(order)
    moved = dataclasses.replace(plain, k=plain.k[:, order], v=plain.v[:, order])
    ours = stream(moved, dtype=torch.float64, **case.how)
    expected = stream(plain, dtype=torch.float64, **case.how)
    np.testing.assert_allclose(ours.output_HLF, expected.output_HLF, atol=1e-11)
    np.testing.assert_allclose(ours.entropy_HL, expected.entropy_HL, atol=1e-11)
    np.testing.assert_allclose(ours.received_HS, expected.received_HS[:, order], atol=1e-10)
