"""The neutral shapes between views and formats: Text, Table, Matrix, Heatmap, Links, Series, Shaded.

What lives here: data, without width, colour, escape or file. What does not: how any of it is
drawn. Strings of a stranger (tokens, names, metadata) are always a ``Label``; a format makes it
safe by its own rules. All other strings are ours and may use the notation of the field (√ · ᵀ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from attnviz.records import Array

ColumnKind: TypeAlias = Literal["text", "label", "int", "number", "percent", "bar"]
Unit: TypeAlias = Literal["number", "percent"]
ColorScale: TypeAlias = Literal["weights", "diverging", "plain"]


class Label(str):
    """Text from outside: a token, a file name, a tensor name. Never markup, never trusted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph of our own words and of labels, in order."""

    parts: tuple[str | Label, ...]
    role: Literal["title", "plain", "note", "check", "notice"] = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; ``kind`` says how its cells are written.

    ``bar`` holds a share between 0 and 1 and is drawn where a format can draw.
    """

    name: str | Label
    kind: ColumnKind = "number"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under named columns; the first ``n_keys`` columns name the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    formula: str = ""
    notes: tuple[str, ...] = ()
    n_keys: int = 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """Numbers with a label on every row and column: token × token, or token × dimension.

    Parameters
    ----------
    values : (R, C) float; ``hidden`` (R, C) bool marks cells a query may not look at
    row_labels, column_labels
        One per row and column; ``column_labels`` is empty for dimensions 0, 1, 2, …
    unit
        ``percent`` shows a share as per cent.
    scale
        Colours: ``weights`` runs from 0 to 1, ``diverging`` is centred on 0.
    is_vectors
        Rows are vectors: a screen shows the first and last entries and the length.
    """

    title: str
    values: Array
    row_labels: tuple[Label, ...]
    column_labels: tuple[Label, ...] = ()
    formula: str = ""
    notes: tuple[str, ...] = ()
    hidden: Array | None = None
    unit: Unit = "number"
    scale: ColorScale = "plain"
    is_vectors: bool = False
    row_axis: str = "query"
    column_axis: str = "key"


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One or several matrices over the same axes, to be drawn as colours on one shared scale.

    Parameters
    ----------
    panels
        Matrices of one shape; the first one's labels and axes hold for all. Panel titles are
        short: ``L5.H3``. A format that cannot draw shows the panels as matrices.
    limits
        Values of the colour map's two ends; on a diverging map the middle is 0.
    value_name, unit
        What a cell is (``weight``), and in which unit (``bits``), for the colour bar.
    scale
        Which kind of colour map.
    n_columns
        Panels side by side; 0 lets the format choose.
    is_thumbnails
        Small panels without token labels, for a view over many heads.
    pooled
        Each cell already is the largest of ``pooled`` × ``pooled`` cells (1: nothing pooled).
    remarks
        What is said beside the rows, one remark each, or below where there are more or fewer.
    """

    title: str
    panels: tuple[Matrix, ...]
    limits: tuple[float, float]
    value_name: str = "weight"
    unit: str = ""
    scale: ColorScale = "weights"
    notes: tuple[str, ...] = ()
    n_columns: int = 0
    is_thumbnails: bool = False
    pooled: int = 1
    remarks: tuple[Text, ...] = ()

    @property
    def is_pairwise(self) -> bool:
        """True for token × token, whose cells are square."""
        return bool(self.panels[0].column_labels)


@dataclass(frozen=True, slots=True)
class Links:
    """Lines from queries to keys, each with a strength between 0 and 1.

    ``links`` holds (query, key, strength), strongest first.
    """

    title: str
    query_labels: tuple[Label, ...]
    key_labels: tuple[Label, ...]
    links: tuple[tuple[int, int, float], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """One or several curves over a common axis.

    ``x_labels`` names the places of ``x`` where they are tokens. ``bar`` draws one curve as
    bars from 0. A curve named in ``references`` is a bound, drawn dashed behind the others.
    """

    title: str
    x: Array
    curves: Mapping[str, Array]
    x_name: str
    y_name: str
    notes: tuple[str, ...] = ()
    log_axes: bool = False
    x_labels: tuple[Label, ...] = ()
    style: Literal["line", "bar"] = "line"
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shaded:
    """The text itself, every token shaded by a share between 0 and 1.

    Parameters
    ----------
    shares : (S,) float, one per token
    marked
        The place of the token that is asked about; None for none.
    top
        The share that gets the last colour.
    """

    title: str
    tokens: tuple[Label, ...]
    shares: Array
    marked: int | None = None
    notes: tuple[str, ...] = ()
    top: float = 1.0


Shape: TypeAlias = Text | Table | Matrix | Heatmap | Links | Series | Shaded


@dataclass(frozen=True, slots=True)
class Document:
    """What a view yields: shapes for people, and the record behind them for machines.

    ``record`` is a ``Trace``, a ``Summary``, or a mapping that is JSON as it stands. ``stages``
    are the stages it was restricted to; empty for all. ``data`` holds a view's own numbers where
    they are no stage of the record, one row per number, columns named as a program would.
    """

    shapes: tuple[Shape, ...]
    record: Any = field(default_factory=dict)
    title: str = ""
    stages: tuple[str, ...] = ()
    data: Table | None = None
