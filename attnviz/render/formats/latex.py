r"""LaTeX tables (booktabs) for papers: \usepackage{booktabs}; any engine that reads UTF-8.

What lives here: escaping and the table syntax. What does not: which cells there are
(``render.text``). Wide matrices are one table: scale them with \resizebox where needed.
"""

from __future__ import annotations

import json

from attnviz.render.export import provenance
from attnviz.render.formats._blocks import Block, Paragraph, blocks
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

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
    parts = (part for shape in document.shapes for part in blocks(shape, screen))
    body = "\n\n".join(map(_write, parts))
    return f"% attnviz {facts}\n% needs \\usepackage{{booktabs}}\n\n{body}\n"


def escape(text: str) -> str:
    r"""Escape what LaTeX would read as its own, and ligatures of dashes.

    Examples
    --------
    >>> escape("50 % of $x_1$")
    '50 \\% of \\$x\\_1\\$'
    """
    return "".join(_ESCAPES.get(char, char) for char in text)


def _write(part: Paragraph | Block) -> str:
    if isinstance(part, Paragraph):
        return escape(part.text) + r"\par"
    caption = ". ".join(text for text in (part.title, part.formula, *part.notes) if text)
    columns = "".join("r" if right else "l" for right in part.grid.is_right)
    return "\n".join([
        r"\begin{table}",
        rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row(part.grid.header),
        r"\midrule",
        *map(_row, part.grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ])  # fmt: skip


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"
