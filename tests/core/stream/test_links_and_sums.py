"""The parts of the stream by themselves: strongest links, pooled maps, distances, sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from attnviz.core.stream import links, sums
from attnviz.core.stream.links import WINDOW, Shelf, first_largest, strongest, window_tops
from attnviz.core.stream.reach import Piece, Reach, mean_reach, seen_by_all
from attnviz.masks import visible_block
from attnviz.records import MaskRule


def brute(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :k]
    return order, np.take_along_axis(rows, order, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 8, 63, 64, 72, 130, 200, 512])
def test_the_largest_of_every_row_ties_by_place(width: int, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(width)
    for rows in (
        draw.random((5, width)),
        draw.integers(0, 3, (5, width)) / 4,
        np.zeros((5, width)),
    ):
        given = torch.tensor(rows, dtype=dtype)
        for k in sorted({1, min(3, width), min(9, width), width}):
            place, values = first_largest(given, k)
            order, best = brute(given.numpy(), k)
            np.testing.assert_array_equal(place, order)
            np.testing.assert_array_equal(values, best)


@pytest.mark.parametrize("widths", [(1,), (3,), (2, 1, 4), (1, 1, 1, 1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("first_key", [0, 3 * WINDOW])
def test_links_of_pieces_that_lie_one_behind_the_other(
    widths: tuple[int, ...], first_key: int
) -> None:
    draw = np.random.default_rng(len(widths))
    n_rows = 6
    for values in (
        draw.random((n_rows, sum(widths) * WINDOW)),
        draw.integers(0, 3, (n_rows, sum(widths) * WINDOW)) / 2,
    ):
        rows = torch.tensor(values, dtype=torch.float32)
        room = torch.cat(
            [
                rows[:, sum(widths[:n]) * WINDOW :][:, : w * WINDOW].flatten()
                for n, w in enumerate(widths)
            ]
        )
        room = torch.cat([room, torch.full((99,), 9.0)])
        pieces, start = [], 0
        for width in widths:
            size = n_rows * width * WINDOW
            pieces.append(room[start : start + size].view(n_rows, width * WINDOW))
            start += size
        shelf = Shelf(room, pieces, [window_tops(piece) for piece in pieces], first_key)
        for n_links in (1, 2, 8, 70):
            keys, weights = strongest(shelf, n_links)
            order, best = brute(rows.numpy(), n_links)
            np.testing.assert_array_equal(keys, order + first_key)
            np.testing.assert_array_equal(weights, best)


def test_cells_of_a_map_begin_and_end_where_they_should() -> None:
    for n, n_cells in ((5, 2), (7, 3), (8, 4), (3, 3), (1, 1), (100, 7)):
        edges = sums.cell_edges(n, n_cells)
        owner = [i * n_cells // n for i in range(n)]
        assert edges == [
            next((i for i in range(n) if owner[i] >= cell), n) for cell in range(n_cells)
        ] + [n]
        places = sums._cell_places(n, n_cells, torch.device("cpu"))
        for cell in range(n_cells):
            inside = [i for i in range(n) if owner[i] == cell]
            assert places[cell].tolist() == inside + [n] * (places.shape[1] - len(inside))
        sizes = sums._cell_sizes(n, n_cells, torch.zeros(1, dtype=torch.float64))
        assert sizes.tolist() == [owner.count(cell) for cell in range(n_cells)]


@pytest.mark.parametrize(
    ("n_keys", "map_keys"), [(128, 2), (128, 1), (100, 7), (128, 128), (70, 2)]
)
@pytest.mark.parametrize("map_rows", [1, 3, 10])
def test_pooled_maps_by_blocks_and_workers(n_keys: int, map_keys: int, map_rows: int) -> None:
    n_queries = 10
    weights = torch.rand(
        n_queries, n_keys, dtype=torch.float64, generator=torch.Generator().manual_seed(n_keys)
    )
    like = torch.zeros(1, dtype=torch.float64)
    workers = [sums.Pooled(n_queries, n_keys, map_rows, map_keys, like) for _ in range(2)]
    assert workers[0].step == (WINDOW if n_keys % (map_keys * WINDOW) == 0 else 1)
    padded = -(-n_keys // WINDOW) * WINDOW
    for number, start in enumerate(range(0, n_queries, 4)):
        rows = (start, min(start + 4, n_queries))
        pooled = workers[number % 2]
        cuts = pooled.cuts(rows)
        assert (cuts[0], cuts[-1]) == rows
        inner = [
            row
            for row in range(rows[0] + 1, rows[1])
            if row * map_rows // n_queries != (row - 1) * map_rows // n_queries
        ]
        assert list(cuts[1:-1]) == inner
        groups = [
            torch.nn.functional.pad(weights[a:b], (0, padded - n_keys))
            for a, b in itertools.pairwise(cuts)
        ]
        sums_GS = torch.stack([group.sum(0) for group in groups])
        tops_GW = torch.stack([group.amax(0).view(-1, pooled.step).amax(-1) for group in groups])
        pooled.add(sums.Block(rows, slice(0, padded), cuts, sums_GS, tops_GW, None))
        assert all(row >= rows[0] * map_rows // n_queries for row in pooled.open)
    workers[0].join(workers[1])
    found = workers[0].result()
    row_cell = np.arange(n_queries) * map_rows // n_queries
    key_cell = np.arange(n_keys) * map_keys // n_keys
    for i in range(map_rows):
        for j in range(map_keys):
            cell = weights.numpy()[np.ix_(row_cell == i, key_cell == j)]
            assert found["map_mean"][i, j] == pytest.approx(cell.mean(), abs=1e-14)
            assert found["map_max"][i, j] == cell.max()
    assert found["map_mean"].dtype == torch.float64


def test_sums_are_kept_in_float64_and_joined() -> None:
    cpu = torch.device("cpu")
    assert sums.wide(cpu) == torch.float64
    assert sums.wide(torch.device("mps")) == torch.float32
    one, other = (sums.Received(3, cpu) for _ in range(2))
    for received, value in ((one, 1.0), (other, 0.25)):
        block = sums.Block(
            (0, 2), slice(0, WINDOW), (0, 1, 2), torch.full((2, WINDOW), value), None, None
        )
        received.add(block)
        received.add(block)
    one.join(other)
    assert one.result()["received"].tolist() == [5.0] * 3
    assert one.result()["received"].dtype == torch.float64
    first = sums.First(torch.zeros(4))
    first.add(sums.Block((1, 3), slice(0, 64), (1, 3), None, None, torch.tensor([0.5, 0.25])))
    first.add(sums.Block((3, 4), slice(64, 128), (3, 4), None, None, None))
    first.join(sums.First(torch.ones(4)))
    assert first.result()["first"].tolist() == [0, 0.5, 0.25, 0]


def test_distances_are_counted_from_the_first_key_and_the_last_row() -> None:
    n_queries, n_keys = 5, 7
    weights = torch.arange(35.0).view(5, 7)
    one, other = (sums.Distance(n_queries, n_keys, torch.device("cpu")) for _ in range(2))
    for part, rows in ((one, (0, 2)), (other, (2, 5))):
        size = rows[1] - rows[0]
        skewed = torch.zeros(size, n_keys + size - 1)
        for row in range(size):
            skewed[row, size - 1 - row : size - 1 - row + n_keys] = weights[rows[0] + row]
        part.add_skewed(skewed, rows, 0)
    one.join(other)
    found = one.result()["distance"]
    wanted = torch.zeros(n_queries + n_keys - 1, dtype=torch.float64)
    for i in range(n_queries):
        for j in range(n_keys):
            wanted[j - i + n_queries - 1] += weights[i, j]
    assert found.tolist() == wanted.tolist()


def test_links_are_written_in_place_and_nothing_is_a_link_to_weight_0() -> None:
    keys, weights = torch.full((4, 3), -1), torch.zeros(4, 3)
    kept = sums.Links(keys, weights)
    rows = torch.zeros(2, WINDOW)
    rows[0, 5], rows[1, 7], rows[1, 2] = 2.0, 4.0, 1.0
    kept.add(
        (1, 3),
        links.Shelf(rows.flatten(), [rows], [window_tops(rows)], 64),
        torch.tensor([[0.5], [0.25]]),
    )
    assert keys.tolist() == [[-1] * 3, [69, -1, -1], [71, 66, -1], [-1] * 3]
    assert weights.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0.25, 0], [0, 0, 0]]


@pytest.mark.parametrize(("n_queries", "n_keys"), [(200, 200), (70, 200), (200, 70)])
@pytest.mark.parametrize("tile", [64, 128])
def test_pieces_cover_what_is_seen_and_are_clear_where_they_say_so(
    n_queries: int, n_keys: int, tile: int
) -> None:
    rules = [MaskRule(), MaskRule(causal=True), MaskRule(causal=True, window=66), MaskRule(window=9), MaskRule(causal=True, chunk=65),
             MaskRule(causal=True, key_visible=torch.arange(n_keys) != n_keys // 2),
             MaskRule(cells=torch.ones(n_queries, n_keys, dtype=torch.bool)), MaskRule(where=lambda h, q, k: k == k)]  # fmt: skip
    for rule in rules:
        reach = Reach(rule, n_queries=n_queries, n_keys=n_keys, tile=tile)
        for rows in ((0, 16), (16, 48), (n_queries - 5, n_queries), (0, n_queries)):
            seen = visible_block(rule, n_queries=n_queries, n_keys=n_keys, rows=rows, xp=torch)[
                0
            ].numpy()
            pieces = reach.pieces(rows)
            n_clear = 0
            for piece in pieces:
                assert piece.keys[0] % WINDOW == 0
                assert piece.keys[0] // tile == (piece.keys[1] - 1) // tile
                inside = seen[:, slice(*piece.keys)]
                n_clear += not piece.masked
                if not piece.masked:
                    assert inside.all()
                elif rule.key_visible is None and rule.cells is None and rule.where is None:
                    assert not inside.all()
            for a, b in itertools.pairwise(pieces):
                assert a.keys[1] == b.keys[0]
            covered = np.zeros(n_keys, bool)
            for piece in pieces:
                covered[slice(*piece.keys)] = True
            assert not seen[:, ~covered].any()
            if rule.cells is not None or rule.where is not None:
                assert n_clear == 0
            if seen.all():
                assert n_clear == len(pieces) or rule.cells is not None or rule.where is not None
            if rule.cells is None and rule.where is None and rule.key_visible is None:
                start, end = seen_by_all(rule, n_queries=n_queries, n_keys=n_keys, rows=rows)
                wanted = np.flatnonzero(seen.all(0))
                assert (list(range(max(0, start), end)) == wanted.tolist()) or (
                    not len(wanted) and start >= end
                )
    assert (
        Reach(MaskRule(causal=True, window=2), n_queries=200, n_keys=10, tile=64).pieces((0, 2))
        == []
    )
    assert Piece((0, 1), masked=True).masked


def test_the_mean_reach_is_that_of_spread_rows() -> None:
    assert mean_reach(MaskRule(), n_queries=10, n_keys=30) == 30
    assert mean_reach(MaskRule(causal=True, window=3), n_queries=128, n_keys=128) == pytest.approx(
        (1 + 3 * 63) / 64
    )
    rows = [n * 100 // 64 for n in range(64)]
    assert mean_reach(MaskRule(causal=True), n_queries=100, n_keys=100) == pytest.approx(
        np.mean([row + 1 for row in rows])
    )
    assert mean_reach(MaskRule(causal=True), n_queries=100, n_keys=10, samples=10) == pytest.approx(
        np.mean([max(0, row - 89) for row in range(0, 100, 10)])
    )
