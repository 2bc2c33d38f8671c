"""``attnviz cost``: what a length costs; the ×4 of quadratic attention, measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.runs.cost import Measured

EXAMPLES = """\b
Examples:
  attnviz cost --from 512 --to 1024
  attnviz cost --from 512 --to 1024 --causal -o cost.svg
"""


@g.grouped
def cost(
    *,
    first: o.FirstLengthOption = 1024,
    last: o.LastLengthOption = 16384,
    d_k: o.DkOption = 64,
    causal: o.PlainCausalOption = False,
    max_seconds: o.MaxSecondsOption = 60.0,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    bounds: g.Bounds,
    talk: g.Talk,
) -> None:
    """Measure what twice as long a text costs: time and memory at L, 2L, 4L and so on.

    Three ways side by side: the whole L x L matrix, PyTorch's fused kernel, and attnviz's own
    stream. Doubling the text makes the work four times as large; only the first also needs four
    times the memory. For exponents that say more: --from 8192 --to 65536 --max-seconds 300.
    """
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(picture=picture)
    choose_format(target)

    from attnviz.render.reports import cost as view
    from attnviz.runs.cost import cost_to_dict, measure_cost

    found = measure_cost(
        first=first,
        last=last,
        d_k=d_k,
        causal=causal,
        max_memory_bytes=None if bounds.max_memory is None else int(bounds.max_memory * 1e9),
        max_seconds=max_seconds,
        tell=lambda row: _tell(row, talk),
    )
    say_notices(found.notices, talk)
    emit(view.view(cost_to_dict(found)), target, screen, talk)


def _tell(row: Measured, talk: g.Talk) -> None:
    from attnviz.cli import terminal

    if not talk.quiet and row.seconds is not None:
        terminal.say(f"{row.length:,} tokens, {row.method}: {row.seconds:.3g} s")
