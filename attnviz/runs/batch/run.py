"""A batch from end to end: inputs → jobs → an engine → a folder that can be continued.

What lives here: the order of things, and what is told on the way. What does not: any of the parts
(``rows``, ``work``, ``engines``, ``shards``, ``manifest``) or how it is shown (``cli``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

from attnviz import registry
from attnviz.errors import InputError, UsageError
from attnviz.registry import no_such_choice
from attnviz.rounding import worse
from attnviz.runs.batch.engines import Engine, Staffing
from attnviz.runs.batch.inputs import Input, open_inputs, read_where
from attnviz.runs.batch.jobs import KEPT, KEPT_TYPES, PICTURES, Job, Result, Work
from attnviz.runs.batch.manifest import make_manifest
from attnviz.runs.batch.rows import Reading, Row, check_encoding, count_rows, read_rows
from attnviz.runs.batch.shards import Folder
from attnviz.runs.batch.tables import choose_format
from attnviz.runs.run import open_place

SHARD_SIZE = 512
_PATHS = ("weights", "model", "device", "n_tokens", "notify")
"""Options of a source that its own facts stand for: a path may change, what is there may not."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for.

    Parameters
    ----------
    inputs
        Paths, or ``-``.
    source
        Where attention comes from, by the names of ``attnviz.explain``.
    share
        (i, n): only shards i, i + n, …
    engine, workers, address
        Who does the work; the bytes do not depend on it.
    """

    inputs: tuple[str, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    input_format: str | None = None
    text_column: str | None = None
    encoding: str = "utf-8"
    where: str | None = None
    links: int = 3
    keep: tuple[str, ...] = ()
    keep_dtype: str = "float16"
    heatmap: str | None = None
    painter: str = ""
    format: str | None = None
    shard_size: int = SHARD_SIZE
    share: tuple[int, int] = (0, 1)
    engine: str = "local"
    workers: int | None = None
    threads: int = 1
    address: str | None = None

    def work(self) -> Work:
        """Return what a worker needs to know; every option is checked.

        Raises
        ------
        UsageError
            A choice that does not exist.
        """
        read_where(self.where)
        for stage in self.keep:
            _check_choice("--keep", stage, KEPT)
        _check_choice("--keep-dtype", self.keep_dtype, KEPT_TYPES)
        if self.heatmap is not None:
            _check_choice("--heatmap", self.heatmap, PICTURES)
        return Work(
            source=dict(self.source),
            where=self.where,
            links=self.links,
            keep=self.keep,
            keep_dtype=self.keep_dtype,
            heatmap=self.heatmap,
            painter=self.painter if self.heatmap else "",
            format=choose_format(self.format),
            threads=self.threads,
        )

    def reading(self) -> Reading:
        """Return how rows are read."""
        return Reading(self.text_column, check_encoding(self.encoding))

    def settings(self) -> dict[str, Any]:
        """Return the options that decide the bytes, by name, for the manifest."""
        work = asdict(self.work())
        given = {**_source_defaults(), **work.pop("source")}
        source = {name: value for name, value in given.items() if name not in _PATHS}
        del work["painter"]
        reading = self.reading()
        text = {"text_column": reading.text_column, "encoding": reading.encoding}
        return {**source, **text, **work}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is.

    Parameters
    ----------
    texts, n_texts
        Complete so far, earlier runs included, and in all of this run's share.
    rate
        Texts per second since work began; 0 before the first shard.
    left_s
        Seconds left at this rate; None where unknown.
    """

    texts: int
    n_texts: int
    failed: int
    skipped: int
    rate: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch.

    Parameters
    ----------
    done, failed, skipped
        Texts of this run's share, earlier runs included.
    rows, new_rows
        Rows of figures, in all and of this run.
    resumed
        Texts that earlier runs had completed.
    is_complete
        False where other shares of ``--shard`` are still missing.
    parity
        Largest difference from the model's own output in the passes compared; None for layers.
    """

    n_texts: int
    done: int
    failed: int
    skipped: int
    rows: int
    new_rows: int
    resumed: int
    seconds: float
    is_complete: bool
    parity: float | None

    @property
    def rows_per_s(self) -> float:
        """Rows of figures per second of this run."""
        return self.new_rows / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Tally:
    """Sums over shards."""

    done: int = 0
    failed: int = 0
    skipped: int = 0
    rows: int = 0
    new_rows: int = 0
    resumed: int = 0
    parity: float | None = None

    def add(self, record: Result, *, is_new: bool) -> None:
        self.done += record.done
        self.failed += record.failed
        self.skipped += record.skipped
        self.rows += record.rows
        if is_new:
            self.new_rows += record.rows
        else:
            self.resumed += record.texts
        if record.parity is not None:
            self.parity = worse(record.parity, self.parity or 0.0)

    @property
    def texts(self) -> int:
        return self.done + self.failed + self.skipped


def run_batch(
    request: Request,
    output: str | Path,
    *,
    notify: Callable[[str], None] = lambda _: None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Work a batch off, or go on where an earlier run was stopped.

    Parameters
    ----------
    output
        A new folder, or the one an earlier run of the same request left.
    notify
        Told one line at a time: notices of the source, deaths of workers.
    progress
        Told after every shard.

    Raises
    ------
    UsageError
        An option that cannot be, a folder in use, or one that holds another batch.
    InputError
        An input or the source cannot be read.
    ResourceError
        Disk full, no memory; the same call goes on later.

    Notes
    -----
    Memory does not grow with the number of texts.
    """
    work, reading = request.work(), request.reading()
    make_engine = registry.load("engines", request.engine).make
    inputs = open_inputs(request.inputs, format=request.input_format)
    try:
        with Folder(output, share=request.share) as folder:
            counted = count_rows(inputs, reading)
            engine: Engine = make_engine(
                work, Staffing(request.workers, request.address, notify=notify)
            )
            try:
                opened = engine.open()
                for notice in opened.notices:
                    notify(notice)
                manifest = make_manifest(
                    settings=request.settings(),
                    source=opened.facts,
                    inputs=counted,
                    shard_size=request.shard_size,
                )
                folder.settle(manifest)
                return _work_off(request, folder, engine, inputs, manifest, progress)
            finally:
                engine.close()
    finally:
        for one in inputs:
            one.close()


def _work_off(
    request: Request,
    folder: Folder,
    engine: Engine,
    inputs: Sequence[Input],
    manifest: Mapping[str, Any],
    progress: Callable[[Progress], None],
) -> Outcome:
    tally = _Tally()
    n_texts = sum(
        size for shard, size in shard_sizes(manifest) if is_mine(shard, request.share)
    )  # fmt: skip
    started = time.monotonic()

    def jobs() -> Iterator[Job]:
        for job in read_jobs(inputs, request.reading(), int(manifest["shard_size"])):
            if not is_mine(job.shard, request.share):
                continue
            record = folder.record(job.shard)
            if record is None:
                yield job
            else:
                tally.add(record, is_new=False)

    n_new = 0
    for result in engine.run(jobs()):
        record = folder.commit(result)
        tally.add(record, is_new=True)
        n_new += record.texts
        rate = n_new / max(1e-9, time.monotonic() - started)
        left_s = (n_texts - tally.texts) / rate if rate else None
        progress(Progress(tally.texts, n_texts, tally.failed, tally.skipped, rate, left_s))
    if tally.texts != n_texts:
        raise InputError(
            f"the input changed while it was read: {tally.texts} of {n_texts} texts were there at the end; "
            "give a new folder and run it again"
        )
    return Outcome(
        n_texts=n_texts,
        done=tally.done,
        failed=tally.failed,
        skipped=tally.skipped,
        rows=tally.rows,
        new_rows=tally.new_rows,
        resumed=tally.resumed,
        seconds=time.monotonic() - started,
        is_complete=folder.finish(int(manifest["n_shards"])),
        parity=tally.parity,
    )


def read_jobs(inputs: Sequence[Input], reading: Reading, shard_size: int) -> Iterator[Job]:
    """Yield every shard's job in order."""
    rows: Iterator[Row] = read_rows(inputs, reading)
    shard = 0
    while part := tuple(islice(rows, shard_size)):
        yield Job(shard, part)
        shard += 1


def shard_sizes(manifest: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield (shard, how many texts it has)."""
    left, shard = int(manifest["n_texts"]), 0
    while left > 0:
        yield shard, min(left, int(manifest["shard_size"]))
        left -= int(manifest["shard_size"])
        shard += 1


def is_mine(shard: int, share: tuple[int, int]) -> bool:
    """Tell whether a shard belongs to share i of n.

    Examples
    --------
    >>> [shard for shard in range(7) if is_mine(shard, (1, 3))]
    [1, 4]
    """
    return shard % share[1] == share[0]


def read_share(text: str | None) -> tuple[int, int]:
    """Read ``i/n``: the share of one machine among n, from 0.

    Raises
    ------
    UsageError
        Anything else.

    Examples
    --------
    >>> read_share("2/8"), read_share(None)
    ((2, 8), (0, 1))
    """
    if text is None:
        return (0, 1)
    first, slash, last = text.partition("/")
    try:
        share = int(first), int(last)
    except ValueError:
        share = (0, 0)
    if not slash or not 0 <= share[0] < share[1]:
        raise UsageError(
            f"--shard {text!r} is no share: give i/n with i from 0 to n - 1, for example --shard 0/4"
        )
    return share


def _source_defaults() -> dict[str, Any]:
    """Return what a source's options are where they are not given, for every caller alike."""
    options = signature(open_place).parameters.values()
    return {**{option.name: option.default for option in options}, "head": None}


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(no_such_choice(option, value, choices))
