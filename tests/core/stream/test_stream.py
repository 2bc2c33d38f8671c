"""The stream: cases solvable by hand, trouble cases, memory, order, progress."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from attnviz.core import reference
from attnviz.core.stream import links, panels, products
from attnviz.core.stream.plan import FIGURES, plan_stream
from attnviz.core.stream.rectangle import rectangle, weight_rows
from attnviz.core.stream.stream import stream
from attnviz.core.stream.summary import (
    distance_profile,
    first_share,
    mean_distance,
    mean_entropy,
    strongest_links,
)
from attnviz.errors import ResourceError, UsageError
from attnviz.records import LayerHeads, MaskRule


def layer(q, k=None, v=None, **rest):
    q = np.asarray(q, float)
    k = q if k is None else np.asarray(k, float)
    v = k if v is None else np.asarray(v, float)
    rest.setdefault("scale", 1 / math.sqrt(q.shape[2]))
    return LayerHeads(q=q, k=k, v=v, **rest)


def flat(n, **rest):
    """n equal keys: every visible key gets the same weight."""
    return layer(np.zeros((1, n, 2)), v=np.eye(n)[None], **rest)


def noise(n, width=16, seed=0, **rest):
    rng = np.random.default_rng(seed)
    return layer(*rng.standard_normal((3, 1, n, width)), **rest)


def test_equal_scores_by_hand():
    found = stream(flat(8), dtype=torch.float64)
    assert found.entropy_HL[0] == pytest.approx([3.0] * 8)
    assert found.received_HS[0] == pytest.approx([1.0] * 8)
    assert found.first_HL[0] == pytest.approx([0.125] * 8)
    assert found.lse_HL[0] == pytest.approx([math.log(8)] * 8)
    assert found.link_keys_HLN[0].tolist() == [list(range(8))] * 8
    # Σ over pairs of |i − j| / 8, over 8 rows: 2 · (1·7 + 2·6 + … + 7·1) / 64
    assert mean_distance(found)[0] == pytest.approx(168 / 64)


def test_two_keys_share_as_one_over_one_plus_e():
    heads = layer([[[1.0]]], [[[1.0], [0.0]]], [[[1.0], [0.0]]], scale=1.0)
    found = stream(heads, dtype=torch.float64)
    assert found.output_HLF[0, 0, 0] == pytest.approx(0.7310585786300049)
    assert found.lse_HL[0, 0] == pytest.approx(math.log(1 + math.e))
    weight = 0.7310585786300049
    expected = -weight * math.log2(weight) - (1 - weight) * math.log2(1 - weight)
    assert found.entropy_HL[0, 0] == pytest.approx(expected)


def test_causal_rows_by_hand():
    found = stream(flat(4, visible=MaskRule(causal=True)), dtype=torch.float64)
    assert found.entropy_HL[0] == pytest.approx([0, 1, math.log2(3), 2])
    assert found.first_HL[0] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert found.link_keys_HLN[0, 1, :3].tolist() == [0, 1, -1]
    assert mean_entropy(found)[0] == pytest.approx((3 + math.log2(3)) / 4)
    assert first_share(found)[0] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert found.distances.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert not found.distance_HD[0, 4:].any()
    assert found.distance_HD[0, 0] == pytest.approx(1 / 4)


def test_P5_a_window_counts_the_query_itself():
    found = stream(flat(5, visible=MaskRule(causal=True, window=3)), dtype=torch.float64)
    third = pytest.approx(1 / 3)
    assert found.output_HLF[0, 4].tolist() == [0, 0, third, third, third]
    wide = stream(flat(5, visible=MaskRule(causal=True, window=5)), dtype=torch.float64)
    plain = stream(flat(5, visible=MaskRule(causal=True)), dtype=torch.float64)
    np.testing.assert_array_equal(wide.output_HLF, plain.output_HLF)


def test_fewer_queries_than_keys_stand_at_the_end():
    q, k = np.zeros((1, 2, 1)), np.zeros((1, 5, 1))
    found = stream(layer(q, k, np.eye(5)[None], visible=MaskRule(causal=True)), dtype=torch.float64)
    assert found.output_HLF[0, 0].tolist() == [0.25] * 4 + [0]
    assert found.distance_HD[0][found.distances == 0][0] == pytest.approx(0.25 + 0.2)
    assert not found.distance_HD[0][found.distances > 0].any()


def test_M1_a_query_that_sees_nothing():
    cells = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 1]], bool)
    base = layer([[[1, 0], [0, 1], [1, 1]]], visible=MaskRule(cells=cells))
    found = stream(base, dtype=torch.float64)
    assert found.rows_without_keys == ((0, 1),)
    assert found.output_HLF[0, 1].tolist() == [0, 0]
    assert found.lse_HL[0, 1] == -math.inf
    assert found.entropy_HL[0, 1] == 0
    assert found.received_HS.sum() == pytest.approx(2)
    assert found.link_keys_HLN[0, 1].tolist() == [-1] * 8
    assert found.output_HLF[0, 2] == pytest.approx([0.7517449, 0.7517449], abs=1e-7)


@pytest.mark.parametrize("spoiled", ["key", "value"])
def test_M7_nothing_leaks_from_a_hidden_key_that_is_not_a_number(spoiled):
    x = np.array([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    k, v = x.copy(), x.copy()
    (k if spoiled == "key" else v)[0, 1, 2] = math.nan
    found = stream(layer(x, k, v, visible=MaskRule(key_visible=np.array([True, False]))))
    assert found.output_HLF[0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert found.received_HS[0].tolist() == [2, 0]
    assert found.entropy_HL[0].tolist() == [0, 0]


def test_M7_a_visible_value_that_is_not_a_number_is_shown():
    heads = flat(4, visible=MaskRule(causal=True))
    v = heads.v.copy()
    v[0, 2, 1] = math.nan
    output = stream(dataclasses.replace(heads, v=v)).output_HLF
    assert np.argwhere(np.isnan(output)).tolist() == [[0, 2, 1], [0, 3, 1]]


def test_P7_softcap_comes_after_the_scale():
    heads = layer([[[1.0]]], [[[100.0], [60.0]]], [[[1.0], [0.0]]], scale=1.0, softcap=50.0)
    found = stream(heads, dtype=torch.float64)
    assert found.output_HLF[0, 0, 0] == pytest.approx(0.9985265, abs=1e-7)
    assert found.lse_HL[0, 0] == pytest.approx(48.2013790 + math.log1p(math.exp(-6.5186486)))


@pytest.mark.parametrize("figures", [("output", "entropy"), None])
def test_large_scores_do_not_overflow(figures):
    heads = layer([[[1.0]]], [[[3000.0], [2999.0]]], [[[1.0], [0.0]]], scale=1.0)
    found = stream(heads, **({"figures": figures} if figures else {}))
    assert found.output_HLF[0, 0, 0] == pytest.approx(0.7310586, abs=1e-6)
    assert found.lse_HL[0, 0] == pytest.approx(3000.3132617)


@pytest.mark.parametrize("figures", [("output", "entropy"), ("output", "entropy", "received")])
def test_loud_scores_are_joined_over_many_pieces(figures):
    rng = np.random.default_rng(7)
    q, k, v = rng.standard_normal((3, 1, 500, 8))
    heads = layer(q * 20, k * 3, v, sinks=np.array([40.0]))
    found = stream(heads, figures=figures, tile=64, dtype=torch.float64)
    traced = reference.trace_heads(heads)
    np.testing.assert_allclose(found.output_HLF, traced["output"], atol=1e-12)
    np.testing.assert_allclose(found.lse_HL, traced["lse"], rtol=1e-13)
    expected = reference.entropy_bits(traced["weights"])
    np.testing.assert_allclose(found.entropy_HL, expected, atol=1e-12)


def test_a_sink_takes_its_share():
    sinks = np.array([math.log(2.0)])
    found = stream(layer([[[0.0]]], [[[1.0], [1.0]]], sinks=sinks), dtype=torch.float64)
    assert found.sink_share_HL[0, 0] == pytest.approx(0.5)
    assert found.first_HL[0, 0] == pytest.approx(0.25)
    assert found.entropy_HL[0, 0] == pytest.approx(1.0)


def test_heads_share_keys_in_groups():
    rng = np.random.default_rng(4)
    heads = layer(*(rng.standard_normal((n, 40, 4)) for n in (6, 2, 2)))
    found = stream(heads, dtype=torch.float64, subset=[5, 1])
    expected = reference.trace_heads(heads)["output"][[5, 1]]
    assert found.heads == (5, 1)
    np.testing.assert_allclose(found.output_HLF, expected, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("figures", [("map",), FIGURES])
def test_a_map_of_whole_windows_is_the_same_map(figures: tuple[str, ...], causal: bool):
    """Cells of 64 or 128 keys take their maxima from the windows, cells of 65 from the weights."""
    rng = np.random.default_rng(5)
    for n_keys, map_size in ((512, 8), (512, 4), (520, 8)):
        q, k, v = rng.normal(size=(3, 1, n_keys, 8)) * 2
        heads = LayerHeads(q, k, v, scale=0.5, visible=MaskRule(causal=causal))
        weights = reference.trace_heads(heads)["weights"][0]
        cell = np.arange(n_keys) * map_size // n_keys
        top = np.zeros((map_size, map_size))
        np.maximum.at(top, (cell[:, None], cell[None, :]), weights)
        found = stream(heads, dtype=torch.float64, map_size=map_size, figures=figures, n_rows=100)
        assert np.allclose(found.map_max_HRR[0], top, atol=1e-14, rtol=0)


def test_a_pool_that_does_not_divide_the_length():
    found = stream(flat(5), dtype=torch.float64, map_size=2)
    np.testing.assert_allclose(found.map_mean_HRR[0], np.full((2, 2), 0.2))
    causal = stream(flat(5, visible=MaskRule(causal=True)), dtype=torch.float64, map_size=2)
    assert causal.map_max_HRR[0] == pytest.approx(np.array([[1, 0], [0.25, 0.25]]))
    mean = [[(1 + 1 + 1) / 9, 0], [(3 / 4 + 3 / 5) / 6, (1 / 4 + 2 / 5) / 4]]
    assert causal.map_mean_HRR[0] == pytest.approx(np.array(mean))


def test_ties_go_to_the_earlier_key_across_windows():
    n = 64 * 40
    weights = torch.zeros(2, n)
    weights[:, [2500, 130, 129, 1000]] = 0.25
    shelf = links.Shelf(weights.flatten(), [weights], [links.window_tops(weights)], 0)
    keys, values = links.strongest(shelf, 3)
    assert keys.tolist() == [[129, 130, 1000]] * 2
    assert values.tolist() == [[0.25] * 3] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 64, 72, 128, 1000, 4096])
def test_the_first_largest_is_a_stable_sort(dtype, n):
    rng = torch.Generator().manual_seed(n)
    for n_values in (3, 1000):
        a = torch.randint(0, n_values, (7, n), generator=rng).to(dtype)
        ordered = a.sort(dim=-1, descending=True, stable=True)
        for k in {1, min(8, n), min(13, n)}:
            places, values = links.first_largest(a, k)
            assert torch.equal(places, ordered.indices[:, :k])
            assert torch.equal(values, ordered.values[:, :k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_equal_weights_list_the_first_keys(dtype):
    found = stream(flat(900), dtype=dtype, n_links=5)
    assert (found.link_keys_HLN[0] == np.arange(5)).all()


def test_the_single_strong_cell_stays_visible_H5():
    n = 512
    k = np.zeros((1, n, 1))
    k[0, 37] = 30.0
    q = np.zeros((1, n, 1))
    q[0, 400] = 1.0
    found = stream(layer(q, k, scale=1.0), map_size=8)
    assert found.map_max_HRR[0, 400 * 8 // n, 0] == pytest.approx(1.0, abs=1e-5)
    assert strongest_links(found, 0, 1)[0][:2] == (400, 37)


def test_rows_cells_and_rectangles():
    heads = noise(150, visible=MaskRule(causal=True))
    weights = reference.trace_heads(heads)["weights"][0]
    part = rectangle(heads, 0, rows=(70, 90), keys=(3, 99), dtype=torch.float64)
    np.testing.assert_allclose(part, weights[70:90, 3:99], atol=1e-12)
    np.testing.assert_allclose(
        weight_rows(heads, 0, dtype=torch.float64)(149, 150)[0], weights[149], atol=1e-12
    )
    one = rectangle(heads, 0, rows=(5, 6), keys=(5, 7))
    assert one[0, 0] == pytest.approx(weights[5, 5], abs=1e-6)
    assert one[0, 1] == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rows": (0, 9), "keys": (0, 4)}, "rows 0 to 8 do not exist: the text has 0 to 7"),
        ({"rows": (0, 4), "keys": (3, 3)}, "keys 3 to 2 do not exist"),
        ({"rows": (0, 4), "keys": (0, 4), "stage": "q"}, "choose from weights, masked"),
    ],
)
def test_a_rectangle_outside_the_text_is_refused(asked, message):
    with pytest.raises(UsageError, match=message):
        rectangle(flat(8), 0, **asked)


def test_a_rectangle_too_large_to_look_at_is_refused():
    heads = layer(np.zeros((1, 5000, 1)))
    with pytest.raises(ResourceError, match="25,000,000 cells"):
        rectangle(heads, 0, rows=(0, 5000), keys=(0, 5000))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"figures": ("entropie",)}, "did you mean 'entropy'"),
        ({"n_links": 0}, "1 or more expected"),
        ({"map_size": 0}, "1 or more expected"),
        ({"n_rows": 0}, "rows 0 is too small"),
        ({"subset": [1]}, "head 1 does not exist"),
    ],
)
def test_what_cannot_be_asked_for(asked, message):
    with pytest.raises(UsageError, match=message):
        stream(flat(4), **asked)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_the_same_call_gives_the_same_bytes(n_workers):
    heads = noise(1200, visible=MaskRule(causal=True))
    first, second = (stream(heads, n_workers=n_workers, n_rows=64) for _ in range(2))
    for field in dataclasses.fields(first):
        ours, again = getattr(first, field.name), getattr(second, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.tobytes() == again.tobytes(), field.name


def test_workers_leave_torchs_threads_as_they_were():
    before = torch.get_num_threads()
    stream(noise(300), n_workers=3)
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        stream(noise(300), n_workers=2, progress=lambda done, total: done / 0)
    assert torch.get_num_threads() == before


def test_progress_counts_every_row_of_every_head_once():
    told = []
    heads = layer(np.zeros((2, 100, 2)))
    stream(heads, n_rows=30, n_workers=2, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (200, 200)


def test_without_memory_blocks_are_halved_and_said(monkeypatch):
    run = panels.Panel.run

    def greedy(self, rows, *sums):
        if rows[1] - rows[0] > 32:
            raise torch.OutOfMemoryError("out of memory")
        run(self, rows, *sums)

    monkeypatch.setattr(panels.Panel, "run", greedy)
    told = []
    heads = noise(200)
    found = stream(heads, n_rows=128, progress=lambda done, _: told.append(done))
    assert found.notices == (
        "not enough memory: blocks were halved to 64 rows",
        "not enough memory: blocks were halved to 32 rows",
    )
    assert told[-1] == 200
    np.testing.assert_allclose(found.output_HLF, reference.trace_heads(heads)["output"], atol=1e-5)


def test_no_memory_at_all_is_one_line(monkeypatch):
    def greedy(self, rows, *sums):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(panels.Panel, "run", greedy)
    with pytest.raises(ResourceError, match="no memory for 16 rows of 200 keys on cpu"):
        stream(noise(200), n_rows=64)


def test_another_error_is_not_taken_for_want_of_memory(monkeypatch):
    def broken(self, rows, *sums):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(panels.Panel, "run", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        stream(noise(20))


def test_the_packed_route_and_plain_products_agree(monkeypatch):
    heads = noise(2500, width=64)
    usual = stream(heads, figures=("output",))
    monkeypatch.setattr(products, "_onednn_multiplies", lambda: False)
    assert not plan_stream(heads).packed
    plain = stream(heads, figures=("output",))
    np.testing.assert_allclose(usual.output_HLF, plain.output_HLF, atol=1e-6)


def test_the_plan_counts_half_the_work_for_a_causal_head():
    plain, causal = (
        plan_stream(noise(4096, visible=MaskRule(causal=is_causal))) for is_causal in (False, True)
    )
    assert causal.multiply_adds / plain.multiply_adds == pytest.approx(0.5, abs=0.01)
    narrow = plan_stream(noise(4096, visible=MaskRule(causal=True, window=64)))
    assert narrow.multiply_adds < plain.multiply_adds / 50


def test_the_plan_refuses_what_does_not_fit(monkeypatch):
    monkeypatch.setattr("attnviz.core.stream.plan.free_memory_bytes", lambda device: 2**20)
    with pytest.raises(ResourceError, match="1 MB can be had: ask for fewer figures"):
        plan_stream(noise(4096))


def test_half_precision_is_stored_as_such_and_summed_in_float32():
    heads = layer(np.full((1, 300, 64), 300.0))  # q·k = 5.76 million
    found = stream(heads, dtype=torch.float16)
    assert found.entropy_HL[0] == pytest.approx([math.log2(300)] * 300, abs=1e-4)
    assert found.output_HLF[0, 0] == pytest.approx([300.0] * 64, rel=1e-5)


def test_the_profile_of_distances_sums_to_one():
    found = stream(noise(700), dtype=torch.float64)
    edges, shares = distance_profile(found)
    assert edges.tolist() == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert shares.sum(-1) == pytest.approx([1.0])


def test_a_figure_that_was_not_asked_for_says_so():
    found = stream(flat(4), figures=("output",))
    assert found.figures == ("output",)
    with pytest.raises(ValueError, match="'distance' was not asked for"):
        mean_distance(found)
