"""Options that mean the same in every command, as annotated types.

What lives here: names, meanings, defaults, and the checks on closed choices. What does not: what
a command does with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from attnviz.errors import UsageError
from attnviz.registry import no_such_choice

if TYPE_CHECKING:
    from attnviz.render.screen import Paper

TextArgument = Annotated[
    Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
    typer.Argument(metavar="[TEXT]", help="The text; - reads standard input.", show_default=False),
]
TextsArgument = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="[TEXT]...", help="One text or several.", show_default=False),
]
LinesOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--file", metavar="PATH", help="Read one text per line from a file; - reads standard input.",
        show_default=False,
    ),
]  # fmt: skip
FileOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--file", metavar="PATH", help="Read the text from a file.", show_default=False),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "-w", "--weights", metavar="sample|sample-8|random|FILE",
        help="A single attention layer: bundled, random, or a file "
        "(.safetensors, .npz, a folder of .npy, .pt).",
    ),
]  # fmt: skip
ModelOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-m", "--model", metavar="DIR|FILE.gguf",
        help="A trained model on disk instead: a Hugging Face folder or a GGUF file.",
        show_default=False,
    ),
]  # fmt: skip
AttentionOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--attention", metavar="encoder|self|cross", help="Which one, of an encoder-decoder model.",
        show_default=False,
    ),
]  # fmt: skip
DecoderTextOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--decoder-text", metavar="TEXT",
        help="The decoder's text; by default what the model itself writes.", show_default=False,
    ),
]  # fmt: skip
MaxTokensOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--max-tokens", metavar="N", help="Cut a longer text, and say what was cut.",
        show_default=False,
    ),
]  # fmt: skip
WordsOption = Annotated[
    bool,
    typer.Option(
        "--words", help="Pool sub-words into words: rows of weights averaged, columns summed."
    ),
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Compare with the model run untouched; exit 1 if it differs."),
]
LayerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-l",
        "--layer",
        metavar="N|all|A-B",
        help="Which layers of a model; which one of a file that holds several.",
        show_default=False,
    ),
]
HeadOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-H", "--head", metavar="N|all|A-B|mean|auto",
        help="Which head: 0 by default; of a model auto, the one that tells most about the token.",
        show_default=False,
    ),
]  # fmt: skip
TokenOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "-t", "--token", metavar="WORD|INDEX", help="Follow one query; repeatable.",
        show_default=False,
    ),
]  # fmt: skip
StageOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-s", "--stage", metavar="NAME,...", help="Only these tables: tokens, x, q, k, v, scores, "
        "scaled, bias, capped, masked, weights, output.", show_default=False,
    ),
]  # fmt: skip
KeyOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "-k", "--key", metavar="WORD|INDEX", help="The key to pair the query with.",
        show_default=False,
    ),
]  # fmt: skip
ViewArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="links, grid, neuron, entropy, rollout, walk or zoom.")
]
PictureStageOption = Annotated[
    str,
    typer.Option(
        "-s", "--stage", metavar="NAME", help="scores, scaled, bias, capped, masked, weights, "
        "output, q, k or v.",
    ),
]  # fmt: skip
MaxOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--max", metavar="X", help="End of the colour scale: 1 for weights, the largest number else.",
        show_default=False,
    ),
]  # fmt: skip
CmapOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--cmap", metavar="NAME", help="Colours: cividis, viridis, magma, blues, grays; vik, rdbu, "
        "puor around 0.", show_default=False,
    ),
]  # fmt: skip
DpiOption = Annotated[
    int, typer.Option("--dpi", min=30, max=1200, help="Pixels per inch of a picture.")
]
SizeOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--size", metavar="WxH", help="Size of a picture in inches.", show_default=False
    ),
]  # fmt: skip
TitleOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--title", help="Heading of a picture; empty for none.", show_default=False),
]
FontOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--font", metavar="NAME|FILE", help="Font of a picture: a family, or a font file.",
        show_default=False,
    ),
]  # fmt: skip
CausalOption = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option("--causal/--no-causal", help="No query sees a later key.", show_default=False),
]
WindowOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--window", metavar="N", min=0, help="A query sees N keys, itself included; 0 is no window.",
        show_default=False,
    ),
]  # fmt: skip
ScaleOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--scale", metavar="X|none", help="Multiply scores by X instead of 1/sqrt(d_k); none leaves them.",
        show_default=False,
    ),
]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of random weights.")]
DModelOption = Annotated[int, typer.Option("--d-model", help="Width of x, for random weights.")]
DkOption = Annotated[int, typer.Option("--d-k", help="Width of q, k and v, for random weights.")]
NHeadsOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--n-heads", help="Number of query heads.", show_default=False),
]
NKvHeadsOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--n-kv-heads", help="Number of key/value heads.", show_default=False),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda[:N]|mps", help="Where to compute.")
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="float64|float32|bfloat16|float16", help="Precision of q, k and v."
    ),
]
FormatOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-f", "--format", metavar="NAME", help="table, plain, json, jsonl, csv, tsv, markdown, latex; "
        "with -o also npz, safetensors, parquet, html, png, svg, pdf.", show_default=False,
    ),
]  # fmt: skip
OutputOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "-o", "--output", metavar="FILE", help="Write to a file; its ending chooses the format.",
        show_default=False,
    ),
]  # fmt: skip
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
PrecisionOption = Annotated[
    int, typer.Option("--precision", min=0, max=15, help="Digits behind the point on a screen.")
]
ColorOption = Annotated[str, typer.Option("--color", metavar="auto|always|never", help="Colours.")]
WidthOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--width", min=1, help="Columns of the screen; a pipe has no limit.", show_default=False
    ),
]
FullOption = Annotated[
    bool, typer.Option("--full", help="Show vectors whole, not by their ends and length.")
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No notices on stderr.")]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Make every notice (text changed, device replaced) an error."),
]
CompactOption = Annotated[
    bool, typer.Option("--compact", help="Half the size: 16-bit q and k; the page says the error.")
]
BudgetOption = Annotated[
    float,
    typer.Option("--budget", metavar="MB", min=0.1, max=1000, help="The most a page may take."),
]
MaxMemoryOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--max-memory", metavar="GB", help="Take no more; what would need it is refused first.",
        show_default=False,
    ),
]  # fmt: skip
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def check_max(most: float | None) -> float | None:
    """Return the end of a colour scale, or refuse one that is none."""
    if most is not None and not 0 < most < float("inf"):
        raise UsageError(f"--max {most:g} is no end of a scale: give a number above 0")
    return most


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    """Return the value, or refuse it with the whole list and the nearest choice."""
    if value not in choices:
        raise UsageError(no_such_choice(f"--{option}", value, choices))
    return value


def read_input(text: str | None, file: str | None) -> str:
    """Return the text from the argument, ``-`` or ``--file``; exactly one of them."""
    from attnviz.runs.request import read_text

    if text is not None and file is not None:
        raise UsageError("both a text and --file are given: choose one")
    if file is not None:
        return read_text(file)
    if text is None:
        raise UsageError(
            "no text: give a sentence in quotes, - for standard input, or --file PATH; "
            'for example attnviz explain "A cute teddy bear is reading"'
        )
    return read_text("-") if text == "-" else text


def read_lines(texts: list[str] | None, file: str | None) -> list[str]:
    """Return the texts of the arguments and of the lines of a file, blank lines left out."""
    from attnviz.runs.request import read_text

    found = list(texts or ())
    if file is not None:
        found.extend(line for line in read_text(file).split("\n") if line.strip())
    if not found:
        raise UsageError("no text: give one or more in quotes, or --file PATH with one per line")
    return found


def read_paper(
    *, cmap: str | None, dpi: int, size: str | None, title: str | None, font: str | None
) -> Paper:
    """Return how a picture is to be made.

    Raises
    ------
    UsageError
        No such colour map, or a size that is not WIDTHxHEIGHT in inches.
    """
    from attnviz.render.colors import MAPS
    from attnviz.render.screen import Paper

    if cmap is not None:
        check_choice("cmap", cmap, MAPS)
    return Paper(dpi, None if size is None else _read_size(size), cmap, font, title)


def _read_size(size: str) -> tuple[float, float]:
    parts = size.lower().replace("×", "x").split("x")
    try:
        width, height = (float(part) for part in parts)
        is_size = 0.5 <= width <= 200 and 0.5 <= height <= 200
    except ValueError:
        is_size = False
    if not is_size:
        raise UsageError(f"--size {size} is no size: give inches from 0.5 to 200, for example 6x4")
    return width, height
