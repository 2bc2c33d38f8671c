r"""LaTeX tables (booktabs) for papers: \usepackage{booktabs}; any engine that reads UTF-8.

What lives here: escaping and the table syntax. What does not: which cells there are
(``render.text``). Wide matrices are one table: scale them with \resizebox where needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from attnviz.render.export import provenance
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series, Shape, Text
from attnviz.render.text import (
    links_table,
    matrix_grid,
    panels_of,
    series_table,
    table_grid,
    write_text,
)

SUFFIXES = (".tex",)
IS_BINARY = False

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}", "'": r"\textquotesingle{}", "-": "{-}", "[": "{[}", "]": "{]}",
    "√": r"\ensuremath{\surd}", "·": r"\ensuremath{\cdot}", "×": r"\ensuremath{\times}",
    "−": r"\ensuremath{-}", "Σ": r"\ensuremath{\Sigma}", "∞": r"\ensuremath{\infty}",
    "ᵀ": r"\textsuperscript{T}", "∘": r"\ensuremath{\circ}", "₂": r"\textsubscript{2}",
    "…": r"\dots{}", "→": r"\ensuremath{\to}", "÷": r"\ensuremath{\div}",
    "≤": r"\ensuremath{\le}", "≥": r"\ensuremath{\ge}", "‖": r"\ensuremath{\Vert}",
    "ⱼ": r"\textsubscript{j}", "ᵢ": r"\textsubscript{i}", "²": r"\textsuperscript{2}",
    "█": r"\rule{0.5em}{1.2ex}", "▌": r"\rule{0.25em}{1.2ex}",
}  # fmt: skip


def render(document: Document, screen: Screen) -> str:
    """Write a document as LaTeX tables, provenance in a comment above them."""
    facts = json.dumps(provenance(document), ensure_ascii=True, sort_keys=True)
    blocks = ("\n".join(_lines(shape, screen)) for shape in document.shapes)
    return f"% attnviz {facts}\n% needs \\usepackage{{booktabs}}\n\n" + "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    r"""Escape what LaTeX would read as its own, and ligatures of dashes.

    Examples
    --------
    >>> escape("50 % of $x_1$")
    '50 \\% of \\$x\\_1\\$'
    """
    return "".join(_ESCAPES.get(char, char) for char in text)


def _lines(shape: Shape, screen: Screen) -> Iterator[str]:
    if isinstance(shape, Text):
        yield escape(write_text(shape, screen)) + r"\par"
        return
    if isinstance(shape, Heatmap):
        for number, panel in enumerate(panels_of(shape)):
            if number:
                yield ""
            yield from _lines(panel, screen)
        return
    if isinstance(shape, Links):
        shape = links_table(shape)
    elif isinstance(shape, Series):
        shape = series_table(shape)
    grid = matrix_grid(shape, screen) if isinstance(shape, Matrix) else table_grid(shape, screen)
    caption = ". ".join(
        text for text in (shape.title, *([shape.formula] if shape.formula else ()), *shape.notes)
    )
    yield r"\begin{table}"
    yield rf"\caption{{{escape(caption)}}}"
    yield rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in grid.is_right)}}}"
    yield r"\toprule"
    yield _row(grid.header)
    yield r"\midrule"
    for row in grid.rows:
        yield _row(row)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"
