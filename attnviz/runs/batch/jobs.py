"""What travels between a batch and its workers: the work, jobs, results; plain values and bytes.

What lives here: three records. What does not: doing the work (``work``), carrying it (``engines``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attnviz.runs.batch.rows import Row

KEPT = ("weights", "scores", "q", "k", "v", "output")
KEPT_TYPES = ("float16", "float32")
PICTURES = ("png", "svg")


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with every text; JSON all through, so that it travels to any worker.

    Parameters
    ----------
    source
        Where attention comes from, by the names of ``attnviz.explain``.
    where
        A condition on the length, see ``where``.
    links
        How many of the strongest links are kept per head.
    keep, keep_dtype
        Stages written as arrays, and their type.
    heatmap
        A picture format, or None.
    painter
        ``module:function`` that draws a trace, see ``load_painter``; how pictures look is not
        known here.
    format
        Of the tables.
    threads
        Of one worker.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    where: str | None = None
    links: int = 3
    keep: tuple[str, ...] = ()
    keep_dtype: str = "float16"
    heatmap: str | None = None
    painter: str = ""
    format: str = "parquet"
    threads: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "source": dict(self.source), "keep": list(self.keep)}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Work:
        """Read what ``to_json`` wrote."""
        return Work(**{**found, "keep": tuple(found["keep"])})


@dataclass(frozen=True, slots=True)
class Job:
    """One shard's rows.

    Parameters
    ----------
    lost
        Texts that are not tried any more, and why.
    alone
        Texts that get a forward pass of their own.
    is_trial
        Only find out whether the texts can be worked on: the result is thrown away.
    """

    shard: int
    rows: tuple[Row, ...]
    lost: Mapping[int, str] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()
    is_trial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "shard": self.shard,
            "rows": [[row.number, row.input, row.line, row.text, row.error] for row in self.rows],
            "lost": [[number, why] for number, why in self.lost.items()],
            "alone": sorted(self.alone),
            "is_trial": self.is_trial,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Job:
        """Read what ``to_json`` wrote."""
        return Job(
            shard=found["shard"],
            rows=tuple(Row(*parts) for parts in found["rows"]),
            lost=dict(found["lost"]),
            alone=frozenset(found["alone"]),
            is_trial=found["is_trial"],
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One shard, computed: its files by relative name, and what became of its texts."""

    shard: int
    files: Mapping[str, bytes]
    done: int
    skipped: int
    rows: int
    tokens: int
    errors: tuple[Mapping[str, Any], ...] = ()
    parity: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return everything but the files' bytes as plain values."""
        return {
            "shard": self.shard,
            "done": self.done,
            "skipped": self.skipped,
            "rows": self.rows,
            "tokens": self.tokens,
            "errors": [dict(error) for error in self.errors],
            "parity": self.parity,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any], files: Mapping[str, bytes]) -> Result:
        """Read what ``to_json`` wrote, with the files beside it."""
        return Result(**{**found, "errors": tuple(found["errors"])}, files=files)
