"""``attnviz page``: one interactive file, to open anywhere and explore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.records import Tokens
    from attnviz.sources import Source

EXAMPLES = """\b
Examples:
  attnviz page "A cute teddy bear is reading" -o teddy.html
  attnviz page "A cute teddy bear is reading" -o causal.html --token teddy --causal
  attnviz page "A cute teddy bear is reading" --weights sample-8 -o small.html --compact
"""


@g.grouped
def page(
    *,
    origin: g.Origin,
    token: o.TokenOption = None,
    no_sinks: o.NoSinksOption = False,
    output: o.OutputOption = None,
    force: o.ForceOption = False,
    compact: o.CompactOption = False,
    budget: o.BudgetOption = 64.0,
    talk: g.Talk,
) -> None:
    """Write one self-contained page with all layers and heads: heatmap, links, grid, neurons.

    The file asks for nothing from anywhere and opens from disk. It carries q and k; the page
    computes scores, mask and softmax itself, so it grows with the text, not with its square.
    """
    from attnviz.cli import terminal
    from attnviz.cli.write import say_notices
    from attnviz.errors import UsageError

    if output is None:
        raise UsageError("no file: say where the page goes, -o NAME.html")
    if not output.lower().endswith((".html", ".htm")):
        raise UsageError(f"-o {output}: a page is HTML; give a name that ends in .html")
    text = origin.read()

    from pathlib import Path

    from attnviz.render.page.build import build_page
    from attnviz.render.page.numbers import check_budget, sizes_before
    from attnviz.rounding import bound
    from attnviz.runs import page as gathering
    from attnviz.runs import request
    from attnviz.runs.store import write_atomic

    def check_size(
        source: Source, tokens: Tokens, layers: Sequence[int], heads: Sequence[int]
    ) -> None:
        sizes = sizes_before(source.info, layers=layers, heads=heads, n_tokens=len(tokens))
        check_budget(sizes, compact=compact, budget_mb=budget)

    stack = gathering.collect(text, **origin.settings(talk), check_size=check_size)
    say_notices(stack.notices, talk)
    chosen = request.find_tokens(stack.tokens, token) if token else ()
    query = chosen[0] if chosen else None
    links = gathering.most_telling(stack, query)
    content = build_page(
        stack, compact=compact, query=query, links=links, no_sinks=no_sinks, budget_mb=budget
    )
    write_atomic(Path(output), content.encode("utf-8"), force=force)
    if not talk.quiet:
        parity = stack.checks.get("parity")
        told = (
            ""
            if parity is None
            else f"; equal to the model's own output (within {bound(parity, 1e-5)})"
        )
        terminal.say(f"wrote {output} ({len(content) / 1e6:.1f} MB){told}")
