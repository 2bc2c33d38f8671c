"""Options of the commands, as annotated types: names, meanings, panels of the help, and closed choices.

A name that a user may give stands in ``CHOICES`` or in the registry, and nowhere else in this
folder: help, man page and completion are made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz.errors import UsageError
from attnviz.registry import no_such_choice

if TYPE_CHECKING:
    from attnviz.render.screen import Paper

LOOK, WHENCE, IF = "What to look at", "Where attention comes from", "What if"
OUT, PICTURE = "Output", "Pictures"
RANDOM, COMPUTING, SCREEN, LIMITS = "Random weights", "Computing", "Screen", "Limits"
PANELS = (LOOK, WHENCE, RANDOM, COMPUTING, IF, OUT, PICTURE, SCREEN, LIMITS)
"""Panels of a help, in this order; those of a single command come behind the first."""
SHORT_PANELS = (RANDOM, COMPUTING, SCREEN, LIMITS)
"""Panels that the help of a command writes as one line; the man page explains every option."""

FIRST = ("text", "token", "key", "head", "stage", "model", "weights")
"""What a learner needs stands at the top of its panel."""

CHOICES = {
    "stages": ("tokens", "x", "q_projected", "q_normed", "q", "k_projected", "k_normed", "k", "v",
               "scores", "scaled", "bias", "capped", "masked", "weights", "output"),
    "picture_stages": ("scores", "scaled", "bias", "capped", "masked", "weights", "output",
                       "q", "k", "v"),
    "figures": ("entropy", "links", "received", "distance", "first", "map"),
    "patterns": ("previous", "next", "self", "first", "special", "same", "induction", "local",
                 "rare", "uniform", "positional"),
    "maps": ("ink", "tide", "cividis", "viridis", "magma", "blues", "grays", "vik", "rdbu", "puor"),
    "file_formats": ("npz", "parquet", "pdf", "png", "safetensors", "svg"),
    "kept": ("weights", "scores", "q", "k", "v", "output"),
}  # fmt: skip
"""Names that the parser may not import, since numpy would come along; a test holds them equal."""


def names_of(kind: str) -> tuple[str, ...]:
    """Return the names that an option takes: of ``CHOICES``, or of a kind of the registry."""
    if kind in CHOICES:
        return CHOICES[kind]
    from attnviz import registry

    if kind == "screen_formats":
        return tuple(n for n in registry.offered("formats") if n not in CHOICES["file_formats"])
    if kind == "weights":
        return ("sample", "sample-8", "random", *registry.installed("sources"))
    return registry.offered(kind)


def _option(panel: str, *names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **more)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, rich_help_panel=LOOK)


def _listed(kind: str) -> str:
    return ", ".join(CHOICES[kind])


# What to look at
TextArgument = Annotated[str | None, _argument("TEXT", "The text; - reads standard input.")]
TextsArgument = Annotated[list[str] | None, _argument("TEXT...", "One text or several.")]
OtherArgument = Annotated[str | None, _argument("TEXT_B", "A second text.")]
ViewArgument = Annotated[str, _argument("NAME", "{views}.")]
FileOption = Annotated[
    str | None, _option(LOOK, "--file", metavar="PATH", help="Read the text from a file.")
]
LinesOption = Annotated[
    str | None,
    _option(LOOK, "--file", metavar="PATH",
            help="Read one text per line from a file; - reads standard input."),
]  # fmt: skip
HeldArgument = Annotated[
    str, _argument("FILE", ".npy, .npz, .safetensors, .pt, or a folder of .npy."),
]  # fmt: skip
WhichViewOption = Annotated[
    str, _option(LOOK, "--view", metavar="NAME", help="Which view: {views}.")
]
TokensOption = Annotated[
    str | None,
    _option(LOOK, "--tokens", metavar="FILE", help="A JSON list, or text with a token per line."),
]
KeyTokensOption = Annotated[
    str | None,
    _option(LOOK, "--key-tokens", metavar="FILE", help="Those along the keys, where they differ."),
]
IndexOption = Annotated[
    int | None, _option(LOOK, "--index", metavar="N", help="Which text of a batch.")
]
HeldLayerOption = Annotated[
    str | None, _option(LOOK, "-l", "--layer", metavar="N|A-B|all", help="Layers; all by default.")
]
HeldHeadOption = Annotated[
    str | None, _option(LOOK, "-H", "--head", metavar="N|A-B|all", help="Heads; all by default.")
]
HeldScaleOption = Annotated[
    float | None,
    _option(IF, "--scale", metavar="X", help="Factor on q·k; 1/sqrt(d_k) by default."),
]
TokenOption = Annotated[
    list[str] | None,
    _option(LOOK, "-t", "--token", metavar="WORD|INDEX", help="Follow one query; repeatable."),
]
KeyOption = Annotated[
    list[str] | None,
    _option(LOOK, "-k", "--key", metavar="WORD|INDEX", help="The key to pair the query with."),
]
HeadOption = Annotated[
    str | None,
    _option(LOOK, "-H", "--head", metavar="N|L4.H9|A-B|all|mean|auto",
            help="Which head: 0; of a model, auto."),
]  # fmt: skip
EachHeadOption = Annotated[
    str | None,
    _option(LOOK, "-H", "--head", metavar="N|L4.H9|A-B|all", help="Which heads; all by default."),
]
LayerOption = Annotated[
    str | None,
    _option(LOOK, "-l", "--layer", metavar="N|A-B|all",
            help="Layers of a model; one of a file with several."),
]  # fmt: skip
StageOption = Annotated[
    str | None,
    _option(LOOK, "-s", "--stage", metavar="NAME,...",
            help=f"Only these tables: {_listed('stages')}."),
]  # fmt: skip
PictureStageOption = Annotated[
    str, _option(LOOK, "-s", "--stage", metavar="NAME", help=f"{_listed('picture_stages')}.")
]
WordsOption = Annotated[
    bool, _option(LOOK, "--words", help="Pool sub-words: average rows, sum columns.")
]
BriefOption = Annotated[
    bool, _option(LOOK, "--brief", help="Show the answer alone: who looks where.")
]
FullOption = Annotated[
    bool, _option(LOOK, "--full", help="Show everything: all tables, vectors whole.")
]
NoSinksOption = Annotated[
    bool,
    _option(LOOK, "--no-sinks", help="Leave out the first token and special tokens; rescale the rest."),
]  # fmt: skip
RowsOption = Annotated[
    str | None,
    _option(LOOK, "--rows", metavar="A-B", help="Exact weights of these queries, ends included."),
]
KeysOption = Annotated[
    str | None,
    _option(LOOK, "--keys", metavar="A-B", help="Exact weights on these keys, ends included."),
]
FiguresOption = Annotated[
    str | None,
    _option(LOOK, "--figures", metavar="NAME,...",
            help=f"Only these, which is quicker: {_listed('figures')}."),
]  # fmt: skip
LinksOption = Annotated[int, _option(LOOK, "--links", min=1, help="Links kept for each query.")]
MapSizeOption = Annotated[
    int, _option(LOOK, "--map", metavar="R", min=1, max=4096, help="Cells along a side of the map.")
]
PoolOption = Annotated[
    str, _option(LOOK, "--pool", metavar="max|mean", help="What a cell of the map shows.")
]
PatternOption = Annotated[
    str | None,
    _option(LOOK, "--pattern", metavar="NAME",
            help=f"Rank and map by one pattern: {_listed('patterns')}."),
]  # fmt: skip
TopOption = Annotated[
    int | None,
    _option(
        LOOK, "--top", min=1, metavar="N", help="Heads listed per pattern: 3; 20 with --pattern."
    ),
]
AlignOption = Annotated[
    str,
    _option(LOOK, "--align", metavar="word|position",
            help="Which keys of two texts are set side by side."),
]  # fmt: skip
CountOption = Annotated[int, _option(LOOK, "-n", "--n-tokens", help="New tokens, at most.")]
TemperatureOption = Annotated[
    float,
    _option(LOOK, "--temperature", help="0 takes the likeliest token; above, tokens are drawn."),
]
FirstLengthOption = Annotated[
    int, _option(LOOK, "--from", metavar="L", min=16, help="Shortest text, in tokens.")
]
LastLengthOption = Annotated[
    int,
    _option(LOOK, "--to", metavar="L", min=16,
            help="Longest text; each is twice the one before."),
]  # fmt: skip

# Where attention comes from
WeightsOption = Annotated[
    str,
    _option(WHENCE, "-w", "--weights", metavar="NAME|FILE",
            show_default=False,
            help="One layer (default: sample): {weights}, or a file (.safetensors, .npz, .pt, .npy)."),
]  # fmt: skip
ModelOption = Annotated[
    str | None,
    _option(WHENCE, "-m", "--model", metavar="DIR|FILE.gguf",
            help="A trained model: Hugging Face folder or GGUF file."),
]  # fmt: skip
EngineOption = Annotated[
    str, _option(COMPUTING, "--engine", metavar="auto|light|library", help="Who runs a model.")
]
AttentionOption = Annotated[
    str | None,
    _option(WHENCE, "--attention", metavar="encoder|self|cross",
            help="Which one, in an encoder-decoder model."),
]  # fmt: skip
DecoderTextOption = Annotated[
    str | None,
    _option(WHENCE, "--decoder-text", metavar="TEXT",
            help="The decoder's text; the model writes one by default."),
]  # fmt: skip
MaxTokensOption = Annotated[
    int | None,
    _option(WHENCE, "--max-tokens", metavar="N", help="Cut a longer text, and say what was cut."),
]
VerifyOption = Annotated[
    bool,
    _option(WHENCE, "--verify", help="Compare with the untouched model; exit 1 if unequal."),
]
WithHeadOption = Annotated[
    str | None,
    _option(WHENCE, "--with-head", metavar="N|L4.H9", help="Compare with this head."),
]
WithLayerOption = Annotated[
    str | None, _option(WHENCE, "--with-layer", metavar="N", help="Compare with this layer.")
]
WithWeightsOption = Annotated[
    str | None,
    _option(WHENCE, "--with-weights", metavar="FILE", help="Compare with this layer's weights."),
]
WithModelOption = Annotated[
    str | None,
    _option(WHENCE, "--with-model", metavar="DIR|FILE.gguf", help="Compare with this model."),
]
SeedOption = Annotated[int, _option(RANDOM, "--seed", metavar="N", help="Seed of random weights.")]
DModelOption = Annotated[
    int, _option(RANDOM, "--d-model", metavar="N", help="Width of x, for random weights.")
]
DkOption = Annotated[
    int, _option(RANDOM, "--d-k", metavar="N", help="Width of q, k and v, for random weights.")
]
NHeadsOption = Annotated[
    int | None,
    _option(RANDOM, "--n-heads", metavar="N",
            help="Number of query heads, of random weights or of a file that does not say it."),
]  # fmt: skip
NKvHeadsOption = Annotated[
    int | None,
    _option(RANDOM, "--n-kv-heads", metavar="N",
            help="Number of key and value heads, of random weights or of a file that does not say it."),
]  # fmt: skip
DeviceOption = Annotated[
    str,
    _option(
        COMPUTING,
        "--device",
        metavar="auto|cpu|cuda|mps",
        help="Where to compute; cuda:1 is the second GPU.",
    ),
]
DtypeOption = Annotated[
    str,
    _option(COMPUTING, "--dtype", metavar="float64|float32|bfloat16|float16",
            help="Precision of q, k and v."),
]  # fmt: skip

# What if
CausalOption = Annotated[
    bool | None, _option(IF, "--causal/--no-causal", help="No query sees a later key.")
]
PlainCausalOption = Annotated[bool, _option(IF, "--causal", help="No query sees a later key.")]
WindowOption = Annotated[
    int | None,
    _option(IF, "--window", metavar="N", min=0,
            help="A query sees N keys, itself included; 0: all."),
]  # fmt: skip
ScaleOption = Annotated[
    str | None,
    _option(IF, "--scale", metavar="X|none",
            help="Factor on scores instead of 1/sqrt(d_k); none: 1."),
]  # fmt: skip

# Output, pictures, screen
FormatOption = Annotated[
    str | None,
    _option(OUT, "-f", "--format", metavar="NAME",
            help="{screen_formats}; with -o also {file_formats}."),
]  # fmt: skip
OutputOption = Annotated[
    str | None,
    _option(OUT, "-o", "--output", metavar="FILE",
            help="Write to a file; its ending chooses the format."),
]  # fmt: skip
ForceOption = Annotated[bool, _option(OUT, "--force", help="Replace an existing file.")]
FailAboveOption = Annotated[
    float | None,
    _option(OUT, "--fail-above", metavar="BITS",
            help="Exit 1 if a head's mean divergence is larger."),
]  # fmt: skip
CompactOption = Annotated[
    bool, _option(OUT, "--compact", help="Half the size: 16-bit q and k; the page says the error.")
]
BudgetOption = Annotated[
    float,
    _option(OUT, "--budget", metavar="MB", min=0.1, max=1000, help="The most a page may take."),
]
MaxOption = Annotated[
    float | None,
    _option(PICTURE, "--max", metavar="X",
            help="End of the color scale: 1 for weights, the largest number otherwise."),
]  # fmt: skip
CmapOption = Annotated[
    str | None, _option(PICTURE, "--cmap", metavar="NAME", help=f"Colors: {_listed('maps')}.")
]
ColorScaleOption = Annotated[
    str,
    _option(PICTURE, "--color-scale", metavar="auto|linear|sqrt|log",
            help="How values become colors; auto: log for weights on more than 64 keys."),
]  # fmt: skip
OutlinesOption = Annotated[
    bool, _option(PICTURE, "--outlines", help="SVG text as outlines: no font is needed.")
]
DpiOption = Annotated[
    int, _option(PICTURE, "--dpi", metavar="N", min=30, max=1200, help="Pixels per inch.")
]
SizeOption = Annotated[
    str | None, _option(PICTURE, "--size", metavar="WxH", help="Size in inches.")
]
TitleOption = Annotated[
    str | None, _option(PICTURE, "--title", metavar="TEXT", help="Heading; empty for none.")
]
FontOption = Annotated[
    str | None,
    _option(PICTURE, "--font", metavar="NAME|FILE", help="Font: a family, or a font file."),
]
PrecisionOption = Annotated[
    int, _option(SCREEN, "--precision", metavar="N", min=0, max=15, help="Digits after the point.")
]
ColorOption = Annotated[
    str, _option(SCREEN, "--color", metavar="auto|always|never", help="When to use colors.")
]
WidthOption = Annotated[
    int | None,
    _option(SCREEN, "--width", metavar="N", min=1,
            help="Columns of the screen; a pipe has no limit."),
]  # fmt: skip

# Limits
MaxMemoryOption = Annotated[
    float | None,
    _option(LIMITS, "--max-memory", metavar="GB",
            help="Take no more memory; refuse what needs more before it runs."),
]  # fmt: skip
MaxSecondsOption = Annotated[
    float,
    _option(LIMITS, "--max-seconds", metavar="S", min=1, help="For all measurements together."),
]
QuietOption = Annotated[bool, _option(LIMITS, "-q", "--quiet", help="No notices on stderr.")]
StrictOption = Annotated[
    bool,
    _option(LIMITS, "--strict", help="Make every notice (text changed, device replaced) an error."),
]
DebugOption = Annotated[bool, _option(LIMITS, "--debug", help="Show tracebacks.")]


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
    *,
    cmap: str | None,
    color_scale: str,
    dpi: int,
    size: str | None,
    title: str | None,
    font: str | None,
    outlines: bool,
) -> Paper:
    """Return how a picture is to be made.

    Raises
    ------
    UsageError
        No such colour map or colour scale, or a size that is not WIDTHxHEIGHT in inches.
    """
    from attnviz.render.colors import MAPS
    from attnviz.render.screen import Paper

    if cmap is not None:
        check_choice("cmap", cmap, MAPS)
    check_choice("color-scale", color_scale, ("auto", "linear", "sqrt", "log"))
    inches = None if size is None else _read_size(size)
    return Paper(dpi, inches, cmap, font, title, color_scale, outlines)


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
