"""``attnviz doctor``: what this machine has, and whether its arithmetic is right."""

from __future__ import annotations

import typer

from attnviz.cli import command as g

EXAMPLES = """\b
Examples:
  attnviz doctor
  attnviz doctor --format json
"""


@g.grouped
def doctor(context: typer.Context, *, target: g.Target, look: g.Look, talk: g.Talk) -> None:
    """Show versions, devices, fonts and the terminal, and test the arithmetic by hand-solved cases.

    Exits with 1 if a case comes out wrong.
    """
    from attnviz.cli.write import emit, say_notices
    from attnviz.render.shapes import Column, Document, Label, Table, Text
    from attnviz.rounding import bound
    from attnviz.runs.doctor import report

    screen = look.screen()
    say_notices([f"settings are left out: {fault}" for fault in context.obj.faults], talk)
    facts = report()
    terminal = {
        "width": "no limit (not a terminal)" if screen.width is None else str(screen.width),
        "colours": screen.colors,
        "encoding": screen.encoding,
    }
    cases = facts["selftest"]
    tables = [
        Table(title, (Column("what", "text"), Column("found", "label")),
              tuple((name, Label(value)) for name, value in rows.items()))
        for title, rows in (
            ("versions", facts["versions"]),
            ("machine", facts["machine"]),
            ("fonts for pictures", facts["fonts"]),
            ("terminal", terminal),
        )
    ]  # fmt: skip
    solved = Table(
        "arithmetic, solved by hand",
        (Column("case", "text"), Column("difference", "text"), Column("", "text")),
        tuple((c.name, bound(c.error, 1e-15), "right" if c.is_right else "WRONG") for c in cases),
    )
    is_right = all(case.is_right for case in cases)
    verdict = "the arithmetic is right" if is_right else "THE ARITHMETIC IS WRONG"
    record = {
        "schema": "attnviz.doctor/1",
        **{key: facts[key] for key in ("versions", "machine", "fonts")},
        "terminal": terminal,
        "selftest": [{"name": c.name, "error": c.error, "right": c.is_right} for c in cases],
    }
    document = Document((*tables, solved, Text((verdict,), role="check")), record, title="doctor")
    emit(document, target, screen, talk)
    if not is_right:
        raise typer.Exit(1)
