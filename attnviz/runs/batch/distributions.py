"""How each head's figures are spread over all texts of a batch, from its tables.

What lives here: means, quantiles and histograms per head, in two passes over the shards. What does
not: the figures themselves (``core.figures``), showing them (``render``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.runs.batch import shards
from attnviz.runs.batch.preview import look_at
from attnviz.runs.batch.run import shard_sizes

FIGURES = ("entropy", "distance", "first_share", "self_share", "previous_share", "next_share",
           "special_share", "top_share", "weight")  # fmt: skip
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FINE = 1024
_COARSE = 16
Numbers = npt.NDArray[np.float64]


def distributions(folder: str) -> dict[str, Any]:
    """Return, for every layer and head, how its figures are spread.

    Returns
    -------
    dict
        Schema ``attnviz.batch-report/1``: ``status`` as ``look_at``; ``heads``, one mapping per
        layer and head with ``layer``, ``head``, ``texts`` and per figure ``mean``, ``min``,
        ``max``, ``quantiles`` (5, 25, 50, 75, 95 %; to 1/1024 of the range) and ``histogram``
        (16 equal bins between the smallest and the largest value of all heads).

    Raises
    ------
    InputError
        No batch there.

    Notes
    -----
    Two passes over the tables; memory does not grow with the number of texts.
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
    bins = {name: np.zeros((n_heads, _FINE), np.int64) for name in FIGURES}
    for place, values in _tables(path, manifest, places):
        for name in FIGURES:
            at, kept = _finite(place, values[name])
            low, high = ranges[name]
            step = (high - low) / _FINE or 1.0
            fine = np.clip(((kept - low) / step).astype(np.int64), 0, _FINE - 1)
            np.add.at(bins[name], (at, fine), 1)
    heads = []
    for (layer, head), spot in places.items():
        row: dict[str, Any] = {"layer": layer, "head": head, "texts": int(counts["entropy"][spot])}
        for name in FIGURES:
            n = int(counts[name][spot])
            row[name] = None if not n else {
                "mean": float(sums[name][spot]) / n,
                "min": float(lows[name][spot]),
                "max": float(highs[name][spot]),
                "quantiles": quantiles(bins[name][spot], ranges[name]),
                "histogram": bins[name][spot].reshape(_COARSE, -1).sum(-1).tolist(),
            }  # fmt: skip
        heads.append(row)
    return {
        "schema": "attnviz.batch-report/1",
        "status": status,
        "ranges": {name: list(pair) for name, pair in ranges.items() if pair[0] <= pair[1]},
        "heads": heads,
    }


def quantiles(bins: npt.NDArray[np.int64], limits: tuple[float, float]) -> list[float]:
    """Return the quantiles of a histogram: the middle of the bin that holds each.

    Examples
    --------
    >>> quantiles(np.array([1, 0, 0, 1]), (0.0, 4.0))
    [0.5, 0.5, 0.5, 3.5, 3.5]
    """
    low, high = limits
    total = np.cumsum(bins)
    step = (high - low) / len(bins)
    at = [int(np.searchsorted(total, share * total[-1])) for share in QUANTILES]
    return [low + (place + 0.5) * step for place in at]


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
