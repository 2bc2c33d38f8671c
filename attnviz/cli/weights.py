"""``attnviz weights``: make, inspect and convert weight files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.cli import command as g
from attnviz.cli import options as o
from attnviz.cli.command import Command, Group

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    cls=Group,
    help="Make, inspect and convert weight files.",
    rich_markup_mode=None,
    no_args_is_help=False,
)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A weight file or folder.")]

_NEW = """\b
Examples:
  attnviz weights new mine.safetensors --d-model 32 --d-k 8 --words "a,cute,teddy,bear"
  attnviz weights new heads.npz --n-heads 8
"""
_SHOW = """\b
Examples:
  attnviz weights show sample
  attnviz weights show mine.safetensors --format json
"""
_CONVERT = """\b
Examples:
  attnviz weights convert mine.safetensors mine.npz
  attnviz weights convert model.pt model.safetensors
"""


@app.command("new", cls=Command, epilog=_NEW)
@g.grouped
def new(
    file: FileArgument,
    *,
    seed: o.SeedOption = 0,
    d_model: o.DModelOption = 512,
    d_k: o.DkOption = 64,
    n_heads: Annotated[int, typer.Option("--n-heads", help="Number of query heads.")] = 1,
    n_kv_heads: o.NKvHeadsOption = None,
    words: Annotated[
        str, typer.Option("--words", help="Words of the vocabulary, with commas between.")
    ] = "",
    causal: Annotated[bool, typer.Option("--causal", help="No query sees a later key.")] = False,
    force: o.ForceOption = False,
    talk: g.Talk,
) -> None:
    """Make a file of random weights, of any sizes: .safetensors, .npz, or a folder of .npy."""
    from attnviz.sources.layers.random_ import draw_layer

    arrays, metadata = draw_layer(
        seed=seed, d_model=d_model, d_k=d_k, n_heads=n_heads, n_kv_heads=n_kv_heads,
        words=[word.strip() for word in words.split(",") if word.strip()], causal=causal,
    )  # fmt: skip
    _publish(file, arrays, metadata, {}, force=force, quiet=talk.quiet)


@app.command("show", cls=Command, epilog=_SHOW)
@g.grouped
def show(
    file: Annotated[str, typer.Argument(metavar="FILE|sample", help="A weight file or folder.")],
    *,
    target: g.Target,
    look: g.Look,
    talk: g.Talk,
) -> None:
    """Show what a file holds: names, shapes, types, metadata, what was recognised, sha256."""
    from attnviz.cli.write import emit, say_notices
    from attnviz.render.reports.weights import view
    from attnviz.sources.layers.weights import SAMPLE_LIMITS, SAMPLES, describe, resolve

    screen = look.screen()
    facts = describe(resolve(file))
    say_notices(facts["notices"], talk)
    emit(view(facts, limits=SAMPLE_LIMITS if file in SAMPLES else ""), target, screen, talk)


@app.command("convert", cls=Command, epilog=_CONVERT)
@g.grouped
def convert(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A weight file or folder.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help=".safetensors, .npz, or a folder for .npy files.")
    ],
    *,
    force: o.ForceOption = False,
    talk: g.Talk,
) -> None:
    """Convert between .safetensors, .npz, a folder of .npy, and from .pt; every bit is kept."""
    from attnviz.sources.layers.weights import read_all, resolve

    arrays, metadata, dtypes = read_all(resolve(source))
    _publish(target, arrays, metadata, dtypes, force=force, quiet=talk.quiet)


def _publish(
    path: str,
    arrays: Mapping[str, Any],
    metadata: Mapping[str, str],
    dtypes: Mapping[str, str],
    *,
    force: bool,
    quiet: bool,
) -> None:
    from attnviz.cli.terminal import say
    from attnviz.runs.store import write_atomic, write_folder_atomic
    from attnviz.sources.files import plan_content

    content = plan_content(path, arrays, metadata, dtypes)
    if content.is_folder:
        write_folder_atomic(path, content.writers, force=force)
    else:
        write_atomic(path, content.writers[""], force=force)
    if not quiet:
        say(f"wrote {path}")
