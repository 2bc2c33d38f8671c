"""Groups of options that several commands share, each a dataclass that typer sees as options.

A command takes a group as one parameter; ``grouped`` spreads its fields over the command line and
hands the group back whole. An option that all commands should have is added here, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from attnviz.cli import long_options as long
from attnviz.cli import options as o

if TYPE_CHECKING:
    from attnviz.render.screen import Screen


@dataclass(frozen=True)
class TextInput:
    """The text."""

    text: o.TextArgument = None
    file: o.FileOption = None

    def read(self) -> str:
        """Return the text from the argument, ``-`` or ``--file``; exactly one of them."""
        return o.read_input(self.text, self.file)


@dataclass(frozen=True)
class Place:
    """Where attention comes from, and where it is computed."""

    weights: o.WeightsOption = "sample"
    model: o.ModelOption = None
    attention: o.AttentionOption = None
    decoder_text: o.DecoderTextOption = None
    max_tokens: o.MaxTokensOption = None
    layer: o.LayerOption = None
    seed: o.SeedOption = 0
    d_model: o.DModelOption = 512
    d_k: o.DkOption = 64
    n_heads: o.NHeadsOption = None
    n_kv_heads: o.NKvHeadsOption = None
    device: o.DeviceOption = "auto"
    dtype: o.DtypeOption = "float64"

    def settings(self, talk: Talk) -> dict[str, Any]:
        """Return everything but the text, by the names that ``runs`` takes."""
        from attnviz.cli.terminal import say

        own = {f.name for f in fields(TextInput)}
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        return found if talk.quiet else {**found, "notify": say}


@dataclass(frozen=True)
class Choice:
    """Which head is shown, how, and what is changed to see the difference."""

    head: o.HeadOption = None
    words: o.WordsOption = False
    verify: o.VerifyOption = False
    causal: o.CausalOption = None
    window: o.WindowOption = None
    scale: o.ScaleOption = None

    def changes(self) -> dict[str, Any]:
        """Return the choices, by the names that ``runs`` takes."""
        return {f.name: getattr(self, f.name) for f in fields(Choice)}


@dataclass(frozen=True)
class Origin(Choice, Place, TextInput):
    """A text, the attention it is sent through, and what of it is looked at."""


@dataclass(frozen=True, slots=True)
class LongOrigin(Origin):
    """The same for commands that stream: all heads, in float32, where nothing else is asked for."""

    head: long.EachHeadOption = None
    dtype: o.DtypeOption = "float32"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result goes, and in what format."""

    format: o.FormatOption = None
    output: o.OutputOption = None
    force: o.ForceOption = False


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said on stderr."""

    quiet: o.QuietOption = False
    strict: o.StrictOption = False
    debug: o.DebugOption = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run may take."""

    max_memory: o.MaxMemoryOption = None

    def begin(self) -> None:
        """Have the operating system keep this process, and its children, within the bounds."""
        if self.max_memory is not None:
            from attnviz.memory import limit_own

            limit_own(self.max_memory)


@dataclass(frozen=True, slots=True)
class Picture:
    """How a picture is made."""

    cmap: o.CmapOption = None
    dpi: o.DpiOption = 150
    size: o.SizeOption = None
    title: o.TitleOption = None
    font: o.FontOption = None


@dataclass(frozen=True, slots=True)
class Look:
    """How a screen is written."""

    precision: o.PrecisionOption = 4
    color: o.ColorOption = "auto"
    width: o.WidthOption = None

    def screen(self, *, full: bool = False, picture: Picture | None = None) -> Screen:
        """Return what stdout can show, and how a picture would be made.

        Raises
        ------
        UsageError
            A colour mode, colour map or size that does not exist.
        """
        from dataclasses import replace

        from attnviz.cli.screen import make_screen

        o.check_choice("color", self.color, ("auto", "always", "never"))
        screen = make_screen(
            width=self.width, color=self.color, precision=self.precision, full_vectors=full
        )
        return screen if picture is None else replace(screen, paper=o.read_paper(**asdict(picture)))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups are spread into single options, in the order written.

    A group that has ``begin`` is begun before the command's own work. Errors of a mistaken command (two options of one name) show at import.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            parameters.append(parameter.replace(annotation=group, kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        inner = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name,
                    parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=inner[field.name],
                )
            )

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
            if hasattr(group, "begin"):
                given[name].begin()
        command(**given)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    return spread
