"""``attnviz batch``: many sentences through every head, into tables that can be continued."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from attnviz.cli import command as g
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.runs.batch.run import Outcome, Request

EXAMPLES = """\b
Examples:
  attnviz batch sentences.txt -o results
  attnviz batch sentences.txt --where "3 <= tokens <= 64" --dry-run
  attnviz batch --status results
"""

InputsArgument = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[INPUT]...", show_default=False,
        help="Files of texts: .txt (one per line), .jsonl, .csv, .tsv, .parquet; - reads stdin.",
    ),
]  # fmt: skip
FolderOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-o", "--output", metavar="DIR", show_default=False,
        help="Folder of the results; the same command continues a stopped run.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Texts:
    """Which texts are taken from the inputs."""

    input_format: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="txt|jsonl|csv|tsv|parquet", show_default=False,
                     help="What the inputs are, where their ending does not say it."),
    ] = None  # fmt: skip
    text_column: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", show_default="text, or the only one",
                     help="The column that holds the texts."),
    ] = None  # fmt: skip
    encoding: Annotated[str, typer.Option(metavar="NAME", help="Of .txt, .jsonl and .csv.")] = (
        "utf-8"
    )
    where: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CONDITION", show_default=False,
                     help='Only texts of some length: "3 <= tokens <= 64 and chars < 400".'),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class Products:
    """What is written."""

    format: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-f", "--format", metavar="parquet|jsonl", help="Of the tables.",
                     show_default="parquet, jsonl without pyarrow"),
    ] = None  # fmt: skip
    links: Annotated[int, typer.Option(min=1, help="Strongest links kept per head.")] = 3
    keep: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="STAGE,...", show_default=False,
                     help="Also write arrays, as .npz: weights, scores, q, k, v, output."),
    ] = None  # fmt: skip
    keep_dtype: Annotated[str, typer.Option(metavar="float16|float32")] = "float16"
    heatmap: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="png|svg", help="Also draw a picture of every text.",
                     show_default=False),
    ] = None  # fmt: skip
    report: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", show_default=False,
                     help="Afterwards write how each head's figures are spread: .md, .html, .json."),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class Labour:
    """Who does the work; the results do not depend on it."""

    engine: Annotated[str, typer.Option(metavar="local|ray|serial")] = "local"
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("-j", "--workers", min=1, help="How many processes.",
                     show_default="as cores and memory allow"),
    ] = None  # fmt: skip
    threads: Annotated[int, typer.Option(min=1, help="Threads of one worker.")] = 1
    shard_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Texts per file: what a kill may cost.")
    ] = 512
    shard: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="I/N", show_default=False,
                     help="Only every N-th shard, from I: several machines, one folder."),
    ] = None  # fmt: skip
    ray_address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="auto|HOST:PORT|local", help="The Ray cluster.", show_default=False),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heads:
    """Which heads are measured, and what is changed to see the difference."""

    head: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-H", "--head", metavar="N|A-B|all", help="Which heads.", show_default="all"),
    ] = None  # fmt: skip
    causal: o.CausalOption = None
    window: o.WindowOption = None
    scale: o.ScaleOption = None


@g.grouped
def batch(
    *,
    inputs: InputsArgument = None,
    output: FolderOption = None,
    texts: Texts,
    place: g.Place,
    heads: Heads,
    products: Products,
    labour: Labour,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, try a few texts, write nothing.")
    ] = False,
    status: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIR", help="How far a batch is.", show_default=False),
    ] = None,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Send many texts through every head and write figures: Parquet or JSON lines.

    One row per text, layer and head: entropy, distance, shares, strongest links. A bad line goes to
    errors.jsonl and the rest goes on; exits with 1 if there was one. A run that was stopped, killed
    or ran out of disk is continued by the same command, and ends with the same bytes.
    """
    from attnviz.errors import UsageError

    screen = look.screen()
    if status is not None:
        if inputs or output:
            raise UsageError("--status takes a folder and nothing else: attnviz batch --status DIR")
        from attnviz.render.reports import batch as view
        from attnviz.runs.batch.preview import look_at

        _show(view.status(look_at(status)), screen)
        return
    if output is None and not dry_run:
        raise UsageError("no folder for the results: give -o DIR")
    from attnviz.runs.batch.run import Request, read_share

    request = Request(
        inputs=tuple(inputs or ()),
        source={**asdict(place), **asdict(heads)},
        **asdict(texts),
        format=products.format,
        links=products.links,
        keep=tuple(s.strip() for s in (products.keep or "").split(",") if s.strip()),
        keep_dtype=products.keep_dtype,
        heatmap=products.heatmap,
        painter="attnviz.render.picture.pictures:heatmap",
        engine=labour.engine,
        workers=labour.workers,
        threads=labour.threads,
        shard_size=labour.shard_size,
        share=read_share(labour.shard),
        address=labour.ray_address,
    )
    if dry_run:
        from attnviz.render.reports import batch as view
        from attnviz.runs.batch.preview import foresee

        _show(view.plan(foresee(request, output)), screen)
        return
    assert output is not None
    if products.report is not None:
        choose_report(products.report)
    outcome = _run(request, output, talk)
    if products.report is not None:
        write_report(output, products.report, talk)
    if outcome.failed:
        raise typer.Exit(1)


def _run(request: Request, output: str, talk: g.Talk) -> Outcome:
    """Work it off, with progress; an interruption says how to go on."""
    from attnviz.cli import terminal
    from attnviz.cli.progress import Meter
    from attnviz.errors import UsageError
    from attnviz.runs.batch.run import run_batch

    meter = Meter(quiet=talk.quiet)

    def notify(notice: str) -> None:
        if talk.strict:
            raise UsageError(f"{notice} (--strict)")
        meter.say(notice)

    try:
        outcome = run_batch(request, output, notify=notify, progress=meter)
    except (KeyboardInterrupt, SystemExit):
        meter.close()
        terminal.say(f"stopped: {meter.so_far()}; the same command continues in {output}")
        raise
    finally:
        meter.close()
    if not talk.quiet:
        for line in closing_lines(outcome, output):
            terminal.say(line)
    return outcome


def closing_lines(outcome: Outcome, output: str) -> list[str]:
    """Return what a run says at its end."""
    rate = outcome.n_texts - outcome.resumed
    speed = f"{rate / outcome.seconds:,.0f} texts/s, " if outcome.seconds > 0 else ""
    lines = [
        f"{outcome.done:,} done, {outcome.failed:,} failed, {outcome.skipped:,} skipped of "
        f"{outcome.n_texts:,} {_plural('text', outcome.n_texts)}: {outcome.rows:,} "
        f"{_plural('row', outcome.rows)} in {output}"
    ]
    if outcome.resumed == outcome.n_texts:
        lines.append("nothing was left to do")
    else:
        before = f", {outcome.resumed:,} texts were there already" if outcome.resumed else ""
        lines.append(
            f"{outcome.seconds:.1f} s: {speed}{outcome.rows_per_s:,.0f} rows/s{before}"
        )  # fmt: skip
    if outcome.parity is not None:
        from attnviz.rounding import bound

        lines.append(f"outputs equal the model's own (within {bound(outcome.parity, 1e-5)})")
    if outcome.failed:
        where = f"{output}/errors.jsonl" if outcome.is_complete else f"{output}/shards"
        lines.append(f"what failed and why: {where}")
    if not outcome.is_complete:
        lines.append("other shards are still missing: see attnviz batch --status " + output)
    return lines


def _plural(what: str, count: int) -> str:
    return what if count == 1 else f"{what}s"


def choose_report(path: str) -> str:
    """Return the kind of report a file's ending asks for."""
    from pathlib import Path

    from attnviz.errors import UsageError

    kinds = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html",
             ".json": "json"}  # fmt: skip
    ending = Path(path).suffix.lower()
    if ending not in kinds:
        raise UsageError(f"--report {path}: the ending '{ending}' is no report; choose from "
                         f"{', '.join(kinds)}")  # fmt: skip
    return kinds[ending]


def write_report(folder: str, path: str, talk: g.Talk) -> None:
    """Write how each head's figures are spread over the texts of a batch; replaces a file."""
    from attnviz import registry
    from attnviz.cli import terminal
    from attnviz.render.reports import batch as view
    from attnviz.render.screen import Screen
    from attnviz.runs.batch.distributions import distributions
    from attnviz.runs.store import write_atomic

    kind = choose_report(path)
    document = view.report(distributions(folder))
    module = registry.load("formats", kind)
    write_atomic(path, module.render(document, Screen()).encode(), force=True)
    if not talk.quiet:
        terminal.say(f"wrote {path}")


def _show(document: Any, screen: Any) -> None:
    from attnviz import registry
    from attnviz.cli.terminal import write_stdout

    write_stdout(registry.load("formats", "table").render(document, screen))
