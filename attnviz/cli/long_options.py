"""Options of the commands for long texts: ``summary`` and ``cost``.

What lives here: their annotations. What does not: options that several commands share
(``options``, ``groups``).
"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

EachHeadOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("-H", "--head", metavar="N|all|A-B", help="Which heads; all by default.",
                 show_default=False),
]  # fmt: skip
FirstLengthOption = Annotated[
    int, typer.Option("--from", metavar="L", min=16, help="Shortest text, in tokens.")
]
LastLengthOption = Annotated[
    int,
    typer.Option("--to", metavar="L", min=16, help="Longest text; each is twice the one before."),
]
PlainCausalOption = Annotated[bool, typer.Option("--causal", help="No query sees a later key.")]
MaxMemoryOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--max-memory", metavar="GB", min=0.01, help="Run nothing that needs more; half of what is "
        "free by default.", show_default=False,
    ),
]  # fmt: skip
MaxSecondsOption = Annotated[
    float, typer.Option("--max-seconds", metavar="S", min=1, help="For all measurements together.")
]
FiguresOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--figures", metavar="NAME,...", help="Only these, which is quicker: entropy, links, "
        "received, distance, first, map.", show_default=False,
    ),
]  # fmt: skip
RowsOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--rows", metavar="A-B", help="Exact weights of these queries, both ends included.",
        show_default=False,
    ),
]  # fmt: skip
KeysOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--keys", metavar="A-B", help="Exact weights on these keys, both ends included.",
        show_default=False,
    ),
]  # fmt: skip
LinksOption = Annotated[int, typer.Option("--links", min=1, help="Links kept for each query.")]
MapSizeOption = Annotated[
    int, typer.Option("--map", metavar="R", min=1, max=4096, help="Cells along a side of the map.")
]
PoolOption = Annotated[
    str, typer.Option("--pool", metavar="max|mean", help="What a cell of the map shows.")
]
