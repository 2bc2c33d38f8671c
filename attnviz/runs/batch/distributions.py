"""How each head's figures are spread over all texts of a batch, from its tables.

What lives here: means, quantiles and histograms per head, in few passes over the shards. What does
not: the figures themselves (``core.figures``), showing them (``render``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.memory import room_bytes
from attnviz.runs.batch import shards
from attnviz.runs.batch.preview import look_at
from attnviz.runs.batch.run import shard_sizes

FIGURES = ("entropy", "distance", "first_share", "self_share", "previous_share", "next_share",
           "special_share", "top_share", "weight")  # fmt: skip
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 16
_ROOM_SHARE, _ROOM_BYTES = 0.25, 1 << 30
_VALUE_BYTES = 40
"""A number with its head's place, and the order they are sorted into."""
Numbers = npt.NDArray[np.float64]


def distributions(folder: str) -> dict[str, Any]:
    """Return, for every layer and head, how its figures are spread.

    Returns
    -------
    dict
        Schema ``attnviz.batch-report/1``: ``status`` as ``look_at``; ``heads``, one mapping per
        layer and head with ``layer``, ``head``, ``texts`` and per figure ``mean``, ``min``,
        ``max``, ``quantiles`` (5, 25, 50, 75, 95 %, as ``numpy.quantile`` gives them) and
        ``histogram`` (16 equal bins between the smallest and the largest value of all heads).

    Raises
    ------
    InputError
        No batch there.

    Notes
    -----
    Two passes over the tables, more where their numbers take more than a quarter of the memory that
    can be had, or a gigabyte: then some heads and figures at a time.
    """
    path = Path(folder)
    status = look_at(folder)
    manifest = shards.read_manifest(path)
    assert manifest is not None
    source = manifest["source"]
    places = {
        (layer, head): place
        for place, (layer, head) in enumerate(
            (layer, head) for layer in source["layers"] for head in source["heads"]
        )
    }
    n_heads = len(places)
    counts = {name: np.zeros(n_heads, np.int64) for name in FIGURES}
    sums = {name: np.zeros(n_heads) for name in FIGURES}
    lows = {name: np.full(n_heads, np.inf) for name in FIGURES}
    highs = {name: np.full(n_heads, -np.inf) for name in FIGURES}
    for place, values in _tables(path, manifest, places):
        for name in FIGURES:
            at, kept = _finite(place, values[name])
            counts[name] += np.bincount(at, minlength=n_heads)
            sums[name] += np.bincount(at, kept, minlength=n_heads)
            np.minimum.at(lows[name], at, kept)
            np.maximum.at(highs[name], at, kept)
    ranges = {
        name: (float(lows[name].min(initial=np.inf)), float(highs[name].max(initial=-np.inf)))
        for name in FIGURES
    }
    spread = _spread(path, manifest, places, counts, ranges)
    heads = []
    for (layer, head), spot in places.items():
        row: dict[str, Any] = {"layer": layer, "head": head, "texts": int(counts["entropy"][spot])}
        for name in FIGURES:
            n = int(counts[name][spot])
            row[name] = None if not n else {
                "mean": float(sums[name][spot]) / n,
                "min": float(lows[name][spot]),
                "max": float(highs[name][spot]),
                **spread[name, spot],
            }  # fmt: skip
        heads.append(row)
    return {
        "schema": "attnviz.batch-report/1",
        "status": status,
        "ranges": {name: list(pair) for name, pair in ranges.items() if pair[0] <= pair[1]},
        "heads": heads,
    }


def _spread(
    path: Path,
    manifest: Mapping[str, Any],
    places: Mapping[tuple[int, int], int],
    counts: Mapping[str, npt.NDArray[np.int64]],
    ranges: Mapping[str, tuple[float, float]],
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return quantiles and histogram of every figure and head, as many in one pass as memory holds."""
    room = room_bytes()
    most = _ROOM_BYTES if room is None else min(_ROOM_BYTES, int(_ROOM_SHARE * room))
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for group in _groups(counts, most // _VALUE_BYTES):
        held: dict[str, list[tuple[npt.NDArray[np.int64], Numbers]]] = {name: [] for name in group}
        for place, values in _tables(path, manifest, places):
            for name, spots in group.items():
                at, kept = _finite(place, values[name])
                is_in = (at >= spots.start) & (at < spots.stop)
                held[name].append((at[is_in], kept[is_in]))
        for name, spots in group.items():
            at, kept = (np.concatenate(parts) for parts in zip(*held.pop(name), strict=True))
            order = np.lexsort((kept, at))
            ends = np.searchsorted(at[order], np.arange(spots.start, spots.stop + 1))
            for spot, start, stop in zip(spots, ends, ends[1:]):
                own = kept[order[start:stop]]
                if len(own):
                    low, high = ranges[name]
                    step = (high - low) / _BINS or 1.0
                    bins = np.clip(((own - low) / step).astype(np.int64), 0, _BINS - 1)
                    found[name, spot] = {
                        "quantiles": np.quantile(own, QUANTILES).tolist(),
                        "histogram": np.bincount(bins, minlength=_BINS).tolist(),
                    }
    return found


def _groups(counts: Mapping[str, npt.NDArray[np.int64]], most: int) -> Iterator[dict[str, range]]:
    """Yield figures, each with a range of heads' places, that together have at most so many numbers.

    Examples
    --------
    >>> list(_groups({"a": np.array([3, 3]), "b": np.array([3, 3])}, 9))
    [{'a': range(0, 2), 'b': range(0, 1)}, {'b': range(1, 2)}]
    """
    group: dict[str, range] = {}
    n = 0
    for name, of_heads in counts.items():
        for spot, count in enumerate(of_heads.tolist()):
            if group and n + count > most:
                yield group
                group, n = {}, 0
            group[name] = range(group[name].start if name in group else spot, spot + 1)
            n += count
    if group:
        yield group


def _finite(place: npt.NDArray[np.int64], values: Numbers) -> tuple[npt.NDArray[np.int64], Numbers]:
    is_there = np.isfinite(values)
    return place[is_there], values[is_there]


def _tables(
    folder: Path, manifest: Mapping[str, Any], places: Mapping[tuple[int, int], int]
) -> Iterator[tuple[npt.NDArray[np.int64], Mapping[str, Numbers]]]:
    """Yield every complete shard's rows: the place of their head, and their figures."""
    kind = manifest["settings"]["format"]
    for shard, _ in shard_sizes(manifest):
        if shards.read_record(folder, shard) is None:
            continue
        columns = read_columns(folder / f"heads/{shard:06d}.{kind}", ("layer", "head", *FIGURES))
        pairs = zip(columns["layer"].astype(int), columns["head"].astype(int), strict=True)
        yield np.array([places[pair] for pair in pairs], np.int64), columns


def read_columns(path: Path, names: Sequence[str]) -> dict[str, Numbers]:
    """Read columns of numbers of one table, null as NaN."""
    if path.suffix == ".jsonl":
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return {name: np.array([row[name] for row in rows], np.float64) for name in names}
    import pyarrow.parquet as parquet

    table = parquet.read_table(path, columns=list(names))
    return {
        name: np.asarray(table.column(name).to_numpy(zero_copy_only=False), np.float64)
        for name in names
    }
