"""What travels between a batch and its workers: the work, jobs, results; plain values and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from attnviz.errors import AttnvizError, InputError, ResourceError, UsageError
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


@dataclass(frozen=True, slots=True)
class Opened:
    """What a worker found: facts of the source for the manifest, notices for people."""

    facts: Mapping[str, Any]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a worker could not open the source, and with which exit code."""

    why: str
    exit_code: int

    def error(self) -> AttnvizError:
        """Return the error that the worker met."""
        kinds = {kind.exit_code: kind for kind in (UsageError, InputError, ResourceError)}
        return kinds.get(self.exit_code, AttnvizError)(self.why)


@dataclass(frozen=True, slots=True)
class At:
    """The texts a worker is at: whoever survives it knows what killed it."""

    texts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a shard; kept as its record once its files are published.

    Parameters
    ----------
    files
        By relative name: bytes, or of a published shard how many and their hash.
    parity
        Largest difference from the model's own output; None where nothing was compared.
    """

    shard: int
    done: int
    failed: int
    skipped: int
    rows: int
    tokens: int
    parity: float | None = None
    files: Mapping[str, Any] = field(default_factory=dict, repr=False)
    errors: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def texts(self) -> int:
        return self.done + self.failed + self.skipped


def from_plain(kind: Any, value: Any) -> Any:
    """Return a record of a kind from what ``asdict`` and JSON made of it.

    Raises
    ------
    TypeError, ValueError
        Fields that the kind does not have, or of another type.

    Examples
    --------
    >>> from_plain(Job, {"shard": 0, "rows": [], "lost": {"7": "killed"}, "alone": [7]}).lost
    {7: 'killed'}
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = _field_kinds(kind)
        if unknown := value.keys() - kinds.keys():
            raise TypeError(f"{kind} has no {', '.join(unknown)}")
        return kind(**{name: from_plain(kinds[name], part) for name, part in value.items()})
    if origin in (tuple, frozenset):
        return origin(from_plain(inner[0], part) for part in value)
    if origin is Mapping:
        return {inner[0](name): from_plain(inner[1], part) for name, part in value.items()}
    if kind in (int, str) and type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind}")
    return value


@cache
def _field_kinds(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
