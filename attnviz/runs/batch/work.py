"""One worker's work: a shard's texts → tokens → figures of every head → the shard's files.

What lives here: everything between rows and bytes; it knows no folder, process or screen, so any
engine can run it anywhere. What does not: how a source is run over many texts (``passes``),
columns (``tables``), publishing (``shards``).

The bytes depend on the job alone: which texts share a forward pass is decided by their lengths and
order, never by workers or timing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from attnviz.core.measures.figures import Figures
from attnviz.errors import AttnvizError, InputError, ResourceError, UsageError
from attnviz.memory import is_exhausted
from attnviz.npz import npz_bytes
from attnviz.records import LayerHeads, Tokens, Trace
from attnviz.rounding import worse
from attnviz.runs.batch.forward import Passes, choose_passes
from attnviz.runs.batch.inputs import read_where
from attnviz.runs.batch.jobs import Job, Opened, Refused, Result, Work
from attnviz.runs.batch.rows import Row
from attnviz.runs.batch.tables import (
    HEADS,
    TEXTS,
    Measured,
    heads_columns,
    texts_columns,
    write_table,
)
from attnviz.runs.explain import gather
from attnviz.runs.request import choose_heads
from attnviz.runs.run import open_place

MAX_TOKENS = 8192
"""Longer texts go to errors.jsonl: figures of every head take time with L²."""

Announce = Callable[[Sequence[int]], None]
Painter = Callable[[Trace, str], bytes]


class Worker:
    """A source, opened, and what is done with its texts.

    Raises
    ------
    UsageError, InputError, ResourceError
        The source cannot be opened, or a layer or head does not exist.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.condition = read_where(work.where)
        given = dict(work.source)
        head = given.pop("head", None)
        if head == "mean":
            raise UsageError("--head mean has no row: keep all heads and average the table")
        self.place = open_place(**given)
        self.source = self.place.source
        self.computing = self.place.core_for(0)
        self.layers = self.place.layers
        self.heads = choose_heads("all" if head is None else head, self.source.info.n_heads)
        self.passes: Passes = choose_passes(self.source, self.layers, self._prepare)

    def facts(self) -> dict[str, Any]:
        """Return what the numbers come from, for the manifest."""
        info = self.source.info
        return {
            "kind": info.kind,
            "name": info.name,
            "sha256": info.sha256,
            "config_sha256": self.source.config_sha256,
            "tokenizer": info.tokenizer,
            "tokenizer_sha256": info.tokenizer_sha256,
            "n_layers": info.n_layers,
            "n_heads": info.n_heads,
            "layers": list(self.layers),
            "heads": list(self.heads),
            "device": self.computing.device.partition(":")[0],
            "passes": self.passes.name,
        }

    def opened(self) -> Opened:
        """Return what was found, and what the source itself has to say."""
        info = self.source.info
        return Opened(self.facts(), (*info.notices, *self.place.what_if.notices(info)))

    def run(self, job: Job, announce: Announce = lambda _: None) -> Result:
        """Work a shard off.

        Parameters
        ----------
        announce
            Told the numbers of the texts that are worked on next: whoever survives this process
            knows what killed it.
        """
        with _own_threads(self.work.threads):
            return self._run(job, announce)

    def _run(self, job: Job, announce: Announce) -> Result:
        errors: dict[int, dict[str, Any]] = {}
        cut: list[tuple[Row, Tokens]] = []
        skipped = 0
        for row in job.rows:
            why = job.lost.get(row.number) or row.error
            if why or row.text is None:
                errors[row.number] = _error(row, why or "no text")
                continue
            if not self.condition.holds("chars", len(row.text)):
                skipped += 1
                continue
            announce((row.number,))
            try:
                tokens = self.place.cut(row.text)
                if not self.condition.holds("tokens", len(tokens)):
                    skipped += 1
                    continue
                _check_length(tokens)
            except Exception as fault:
                errors[row.number] = _error(row, _say(fault))
                continue
            cut.append((row, tokens))
        found, parity = self._measure(cut, job.alone, announce, errors)
        arrays: dict[str, Any] = {}
        pictures: dict[str, bytes] = {}
        if self.work.keep or self.work.heatmap:
            for row, tokens in cut:
                if row.number in found:
                    announce((row.number,))
                    self._keep(row, tokens, arrays, pictures, errors)
        announce(())
        texts = [
            self._gather(row, tokens, found[row.number])
            for row, tokens in cut
            if row.number in found and row.number not in errors
        ]
        return Result(
            shard=job.shard,
            failed=len(errors),
            files={} if job.is_trial else self._files(job.shard, texts, arrays, pictures),
            done=len(texts),
            skipped=skipped,
            rows=len(texts) * len(self.layers) * len(self.heads),
            tokens=sum(len(text.tokens) for text in texts),
            errors=tuple(errors[number] for number in sorted(errors)),
            parity=parity,
        )

    # -- figures ----------------------------------------------------------------------------

    def _measure(
        self,
        cut: Sequence[tuple[Row, Tokens]],
        alone: frozenset[int],
        announce: Announce,
        errors: dict[int, dict[str, Any]],
    ) -> tuple[dict[int, list[Figures]], float | None]:
        """Return the figures of every text by number, layer by layer; faults go to ``errors``."""
        found: dict[int, list[Figures]] = {}
        parity: float | None = None
        apart = [one for one in cut if one[0].number in alone]
        together = [one for one in cut if one[0].number not in alone]
        groups = [[one] for one in apart]
        groups += [
            [together[i] for i in group]
            for group in self.passes.plan([len(tokens) for _, tokens in together])
        ]
        waiting = groups[::-1]
        while waiting:
            group = waiting.pop()
            announce([row.number for row, _ in group])
            try:
                measured = self.passes.run(
                    [tokens for _, tokens in group],
                    n_links=self.work.links,
                    with_parity=parity is None,
                )
            except Exception as fault:
                if len(group) > 1:
                    waiting += [[one] for one in group[::-1]]
                else:
                    row = group[0][0]
                    errors[row.number] = _error(row, _say(fault))
                continue
            for (row, _), figures in zip(group, measured, strict=True):
                found[row.number] = figures
                own = [f.parity for f in figures if f.parity is not None]
                parity = worse(*own, parity or 0.0) if own else parity
        return found, parity

    def _prepare(self, heads: LayerHeads) -> LayerHeads:
        """Put the user's what-if into a layer, and its arrays where they are computed."""
        heads = self.place.what_if.apply(heads)
        if self.computing.core != "torch" or self.source.info.is_model:
            return heads  # a model hands on float32 at least, on its own device
        from attnviz.core.device import choose_device, choose_dtype
        from attnviz.core.placing import place_heads

        dtype = choose_dtype(self.computing.dtype)
        return place_heads(heads, device=choose_device(self.computing.device), dtype=dtype)

    def _gather(self, row: Row, tokens: Tokens, figures: list[Figures]) -> Measured:
        queries, keys = self.source.sides(tokens)
        return Measured(
            text_id=row.number,
            input=row.input,
            line=row.line,
            text=tokens.text,
            tokens=queries.labels,
            key_tokens=keys.labels,
            notices=tokens.notices,
            layers=tuple(figures),
        )

    # -- arrays and pictures ----------------------------------------------------------------

    def _keep(
        self,
        row: Row,
        tokens: Tokens,
        arrays: dict[str, Any],
        pictures: dict[str, bytes],
        errors: dict[int, dict[str, Any]],
    ) -> None:
        """Compute every stage of one text densely, for arrays and pictures."""
        try:
            run = replace(self.place.take(tokens), computing=self.computing)
            trace = gather(run, self.heads)
            for stage in self.work.keep:
                values = np.asarray(trace.stages[stage])
                arrays[f"{stage}/{row.number:07d}"] = _narrow(values, self.work.keep_dtype, stage)
            if self.work.heatmap:
                digest = hashlib.sha256(tokens.text.encode()).hexdigest()[:12]
                name = f"heatmaps/{row.number:07d}-{digest}.{self.work.heatmap}"
                pictures[name] = load_painter(self.work.painter)(trace, self.work.heatmap)
        except Exception as fault:
            errors[row.number] = _error(row, _say(fault))
            for stage in self.work.keep:
                arrays.pop(f"{stage}/{row.number:07d}", None)

    # -- files ------------------------------------------------------------------------------

    def _files(
        self,
        shard: int,
        texts: Sequence[Measured],
        arrays: Mapping[str, Any],
        pictures: Mapping[str, bytes],
    ) -> dict[str, bytes]:
        kind = self.work.format
        columns = heads_columns(texts, self.layers, self.heads)
        files = {
            f"heads/{shard:06d}.{kind}": write_table(
                columns, HEADS, format=kind, schema="attnviz.batch-heads/1"
            ),
            f"texts/{shard:06d}.{kind}": write_table(
                texts_columns(texts), TEXTS, format=kind, schema="attnviz.batch-texts/1"
            ),
        }
        if self.work.keep:
            files[f"arrays/{shard:06d}.npz"] = npz_bytes(arrays)
        return {**files, **pictures}


def open_worker(work: Work) -> Worker | Refused:
    """Return a worker, or why it could not open its source."""
    try:
        return Worker(work)
    except AttnvizError as fault:
        return Refused(str(fault), fault.exit_code)
    except Exception as fault:
        if not is_exhausted(fault):
            raise
        why = "out of memory while the source was opened: try fewer --workers"
        return Refused(why, ResourceError.exit_code)


@contextmanager
def _own_threads(count: int) -> Iterator[None]:
    """Let torch work with a fixed number of threads: sums are cut by it, so digits depend on it."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_painter(name: str) -> Painter:
    """Return the function behind ``module:function``: (trace, format) → a picture's bytes."""
    module, _, function = name.partition(":")
    painter: Painter = getattr(import_module(module), function)
    return painter


def _check_length(tokens: Tokens) -> None:
    if len(tokens) > MAX_TOKENS:
        raise InputError(
            f"{len(tokens)} tokens: a batch takes texts of at most {MAX_TOKENS}; look at longer "
            "ones with attnviz summary"
        )


def _narrow(values: Any, dtype: str, stage: str) -> Any:
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    if dtype == "float16" and bool((np.isinf(narrow) & np.isfinite(values)).any()):
        raise InputError(
            f"{stage} holds {float(np.abs(values[np.isfinite(values)]).max()):.6g}, which float16 "
            "cannot: its largest number is 65504; use --keep-dtype float32"
        )
    return narrow


def _error(row: Row, message: str) -> dict[str, Any]:
    return {"text_id": row.number, "input": row.input, "line": row.line, "error": message}


def _say(fault: BaseException) -> str:
    if isinstance(fault, AttnvizError):
        return str(fault)
    if is_exhausted(fault):
        return "out of memory"
    return f"a bug of attnviz: {type(fault).__name__}: {fault}"
