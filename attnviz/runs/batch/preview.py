"""What a batch will cost, and how far one is: ``--dry-run`` and ``--status``.

What lives here: counting, trying a few texts, adding up records. What does not: working a batch
off (``batch``), showing any of it (``render``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnviz.rounding import worse
from attnviz.runs.batch import shards
from attnviz.runs.batch.engines.local import usable_cores
from attnviz.runs.batch.inputs import open_inputs
from attnviz.runs.batch.jobs import Job
from attnviz.runs.batch.lock import Lock
from attnviz.runs.batch.manifest import make_manifest
from attnviz.runs.batch.rows import Row, count_rows, read_rows
from attnviz.runs.batch.run import Request, is_mine, shard_sizes
from attnviz.runs.batch.work import Worker

_TRIED_S = 2.0
_TRIED_TEXTS = 256


def foresee(request: Request, output: str | None = None) -> dict[str, Any]:
    """Count everything, work on a few texts, and say what the whole would take; writes nothing.

    Returns
    -------
    dict
        Schema ``attnviz.batch-plan/1``; times in seconds, sizes in bytes.

    Raises
    ------
    UsageError, InputError, ResourceError
        As ``run_batch``.
    """
    work, reading = request.work(), request.reading()
    inputs = open_inputs(request.inputs, format=request.input_format)
    try:
        counted = count_rows(inputs, reading)
        n_texts = sum(one.rows for one in counted)
        worker = Worker(work)
        stride = max(1, n_texts // _TRIED_TEXTS)
        picked = (row for row in read_rows(inputs, reading) if row.number % stride == 0)
        tried = _try(worker, picked)
    finally:
        for one in inputs:
            one.close()
    manifest = make_manifest(
        settings=request.settings(),
        source=worker.facts(),
        inputs=counted,
        shard_size=request.shard_size,
    )
    mine = [size for shard, size in shard_sizes(manifest) if is_mine(shard, request.share)]
    n_workers = request.workers or (usable_cores() if worker.computing.device == "cpu" else 1)
    share = sum(mine) / max(1, tried["texts"])
    return {
        "schema": "attnviz.batch-plan/1",
        "source": manifest["source"],
        "inputs": manifest["inputs"],
        "n_texts": sum(mine),
        "n_shards": len(mine),
        "shard_size": request.shard_size,
        "format": work.format,
        "workers": n_workers,
        "tried": tried,
        "rows": round(tried["rows"] * share),
        "seconds": tried["seconds"] * share / max(1, min(n_workers, len(mine))),
        "bytes": round(tried["bytes"] * share),
        "free_bytes": None if output is None else shards.free_bytes(Path(output)),
        "memory_bytes": n_workers * _peak_bytes(),
    }


def _try(worker: Worker, rows: Iterator[Row]) -> dict[str, Any]:
    """Work on more and more texts until it took long enough; return what the last round took."""
    held = list(rows)[:_TRIED_TEXTS]
    worker.run(Job(0, tuple(held[:2])))  # warm
    count = 8
    while True:
        part = tuple(held[:count])
        started = time.perf_counter()
        result = worker.run(Job(0, part))
        seconds = time.perf_counter() - started
        if count >= len(held) or seconds * 4 > _TRIED_S:
            break
        count *= 4
    return {
        "texts": len(part),
        "tokens": result.tokens,
        "rows": result.rows,
        "failed": len(result.errors),
        "skipped": result.skipped,
        "seconds": seconds,
        "bytes": sum(map(len, result.files.values())),
    }


def look_at(folder: str) -> dict[str, Any]:
    """Return how far the batch in a folder is; changes nothing.

    Returns
    -------
    dict
        Schema ``attnviz.batch-status/1``.

    Raises
    ------
    InputError
        No batch there.
    """
    path = Path(folder)
    manifest = shards.read_manifest(path)
    assert manifest is not None
    found: dict[str, Any] = dict.fromkeys(("shards", "done", "failed", "skipped", "rows"), 0)
    parities: list[float] = []
    for shard, _ in shard_sizes(manifest):
        record = shards.read_record(path, shard)
        if record is not None:
            found["shards"] += 1
            for name in ("done", "failed", "skipped", "rows"):
                found[name] += getattr(record, name)
            parities += [] if record.parity is None else [record.parity]
    is_complete = found["shards"] == manifest["n_shards"] and (path / shards.ERRORS).exists()
    return {
        "schema": "attnviz.batch-status/1",
        "folder": path.name,
        "state": "complete" if is_complete else "running" if _is_held(path) else "stopped",
        "n_texts": manifest["n_texts"],
        "n_shards": manifest["n_shards"],
        **found,
        "parity": worse(*parities) if parities else None,
        "source": manifest["source"],
        "settings": {k: v for k, v in manifest["settings"].items() if v not in (None, [], "")},
    }


def _is_held(folder: Path) -> bool:
    for path in folder.glob(".lock*"):
        lock = Lock(path)
        try:
            if not lock.hold():
                return True
        except OSError:
            return False
        lock.release()
    return False


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:  # not everywhere
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
