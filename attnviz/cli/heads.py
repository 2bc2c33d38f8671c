"""``attnviz heads``: every head ranked by what it does, over one text or many."""

from __future__ import annotations

from attnviz.cli import command as g
from attnviz.cli import options as o

EXAMPLES = """\b
Examples:
  attnviz heads "the cat saw the dog and the dog saw the cat" "to be or not to be" -w sample-8
  attnviz heads "a teddy bear and a toy bear" -w sample-8 --pattern same
"""


@g.grouped
def heads(
    texts: o.TextsArgument = None,
    *,
    file: o.LinesOption = None,
    place: g.AnyPlace,
    pattern: o.PatternOption = None,
    top: o.TopOption = None,
    no_sinks: o.NoSinksOption = False,
    target: g.Target,
    picture: g.Picture,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Rank every head by patterns: previous token, first token, induction, rare token, and more.

    A score is the weight on the keys a pattern is about, averaged over texts, beside what shuffled
    keys would give. Several texts give intervals. Induction is measured on random tokens written
    twice.
    """
    from attnviz.cli.progress import Progress
    from attnviz.cli.write import choose_format, emit, say_notices

    screen = look.screen(picture=picture)
    choose_format(target)
    lines = o.read_lines(texts, file)

    from attnviz.render.reports import heads as view
    from attnviz.runs.heads import rank_heads

    if pattern is not None:
        o.check_choice("pattern", pattern, view.NAMES)
    tell = Progress("texts", quiet=talk.quiet)
    try:
        report = rank_heads(lines, **place.settings(talk), no_sinks=no_sinks, progress=tell)
    finally:
        tell.close()
    say_notices(report.notices, talk)
    emit(view.view(report, pattern=pattern, top=top), target, screen, talk)
