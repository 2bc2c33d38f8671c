"""Commands: their groups of options, the options that all of them have, their help in panels.

A command takes a group as one parameter; ``grouped`` spreads its fields over the command line and
hands the group back whole. ``Bounds`` and ``Talk`` are given to every command by ``grouped``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from attnviz.cli import options as o
from attnviz.cli.completion import completer, describe
from attnviz.cli.rules import check_effects
from attnviz.errors import AttnvizError, UsageError

if TYPE_CHECKING:
    from attnviz.render.screen import Screen


_WIDTH = 80
_COLUMN = 28


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
        if talk.quiet:
            return found
        if self.model is None:
            return {**found, "notify": say}
        from attnviz.cli.progress import Progress

        return {**found, "notify": say, "layers_done": Progress("layers")}


@dataclass(frozen=True)
class AnyPlace(Place):
    """The same with a choice of who runs a model; ``batch`` has engines of another kind."""

    engine: o.EngineOption = "auto"


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
class Origin(Choice, AnyPlace, TextInput):
    """A text, the attention it is sent through, and what of it is looked at."""


@dataclass(frozen=True, slots=True)
class LongOrigin(Origin):
    """The same for commands that stream: all heads, in float32, where nothing else is asked for."""

    head: o.EachHeadOption = None
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
    color_scale: o.ColorScaleOption = "auto"
    dpi: o.DpiOption = 150
    size: o.SizeOption = None
    title: o.TitleOption = None
    font: o.FontOption = None
    outlines: o.OutlinesOption = False


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
            A color mode, color map or size that does not exist.
        """
        from dataclasses import replace

        from attnviz.cli.screen import make_screen

        o.check_choice("color", self.color, ("auto", "always", "never"))
        screen = make_screen(
            width=self.width, color=self.color, precision=self.precision, full_vectors=full
        )
        return screen if picture is None else replace(screen, paper=o.read_paper(**asdict(picture)))


EVERYWHERE = {"bounds": Bounds, "talk": Talk}
"""What every command has, whether or not its function asks for it."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups are spread into single options, in the order written.

    The groups of ``EVERYWHERE`` are added. A group that has ``begin`` is begun before the
    command's own work. Errors of a mistaken command (two options of one name) show at import.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    asked = inspect.signature(command).parameters
    for parameter in asked.values():
        group = hints[parameter.name]
        if group is typer.Context:
            continue
        if is_dataclass(group):
            groups[parameter.name] = group
            parameters += _spread(group)
        else:
            _furnish(parameter.name, group, None)
            parameters.append(parameter.replace(annotation=group, kind=parameter.KEYWORD_ONLY))
    for name, group in EVERYWHERE.items():
        if name not in groups:
            groups[name] = group
            parameters += _spread(group)

    parameters.append(
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    )

    @wraps(command)
    def spread(context: Any, **given: Any) -> None:
        try:
            run({**given, "context": context})
        except AttnvizError as fault:
            if context.obj is not None:  # settings
                fault.args = (context.obj.blame(str(fault), context),)
            raise

    def run(given: dict[str, Any]) -> None:
        on_line = [n for n in given if _is_on_the_line(given["context"], n)]
        if on_line:
            check_effects(on_line, given)
        for prefix in ("", "with_"):
            if f"{prefix}head" in given and f"{prefix}layer" in given:
                read_head(given, prefix)
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
            if hasattr(group, "begin"):
                given[name].begin()
        command(**{name: value for name, value in given.items() if name in asked})

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    return spread


def _is_on_the_line(context: Any, name: str) -> bool:
    """True of an option that was typed, not set by a file or a variable."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _furnish(name: str, hint: Any, panel: str | None) -> None:
    """Give an option what its declaration leaves open: a panel of the help, and completion."""
    (option,) = hint.__metadata__
    option.rich_help_panel = option.rich_help_panel or panel
    names = getattr(option, "param_decls", None) or (f"--{name.replace('_', '-')}",)
    is_argument = isinstance(option, typer.models.ArgumentInfo)
    key = str(option.metavar) if is_argument else max(names, key=len).lstrip("-")
    option.autocompletion = option.autocompletion or completer(key, option.metavar or "")


def read_head(given: dict[str, Any], prefix: str = "") -> None:
    """Read a head by the name that is printed, ``L4.H9`` or ``H9``, as a layer and a number.

    Raises
    ------
    UsageError
        The name says another layer than ``--layer``.
    """
    named = re.fullmatch(r"(?:L(\d{1,9})\.)?H(\d{1,9})", given[f"{prefix}head"] or "")
    if named is None:
        return
    head, layer = (f"--{prefix}{name}".replace("_", "-") for name in ("head", "layer"))
    above = given[f"{prefix}layer"]
    if named[1] is not None and above not in (None, named[1]):
        raise UsageError(
            f"{head} {named[0]} is in layer {named[1]}, but {layer} is {above}: give one"
        )
    given[f"{prefix}head"] = named[2]
    given[f"{prefix}layer"] = named[1] or above


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    """Return a group's fields as parameters of a function; its docstring names their panel."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        _furnish(field.name, hints[field.name], re.split(r"[.,;]", group.__doc__)[0])
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )


class _Quick:
    """Options that were not given cost nothing at start-up; names are offered with a sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, the short-cut in place.

        typer builds a validator for each option, given or not, which takes a third of the start
        of ``attnviz explain``; a default needs no checking, and a string is a string.
        """
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if not parameter.required and "process_value" not in vars(parameter):
                parameter.process_value = partial(_process, parameter, parameter.process_value)
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what can follow, each with a sentence that every shell can read."""
        found: list[Any] = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        told = dict(self.described())
        for item in found:
            item.help = describe(told.get(item.value, item.help))
        return found

    def described(self) -> Iterable[tuple[str, str]]:
        """Return the commands of a group, each with what it does."""
        commands = getattr(self, "commands", {})
        return ((name, command.help or "") for name, command in commands.items())


class Command(_Quick, TyperCommand):
    """A command whose help is in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters by panel; those that every command has as one line each panel."""
        panels: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            if not getattr(parameter, "hidden", False):
                panels.setdefault(panel_of(parameter), []).append(parameter)
        order = {name: i for i, name in enumerate(o.PANELS)}
        for name in sorted(panels, key=lambda name: order.get(name, 0.5)):
            if name in o.SHORT_PANELS:
                told = ", ".join(names_and_value(p) for p in panels[name])
                formatter.write(_hanging(f"{name}: {told}"))
            else:
                formatter.write(f"{name}:\n")
                for parameter in sorted(panels[name], key=_rank):
                    formatter.write(_row(parameter, ctx))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does as one paragraph."""
        told = textwrap.indent(textwrap.fill(" ".join((self.help or "").split()), _WIDTH - 4), "  ")
        formatter.write(f"\n{told}\n\n")


class Group(_Quick, TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with its first sentence, whole."""
        rows = [(name, _first_sentence(told)) for name, told in self.described()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def panel_of(parameter: Any) -> str:
    """Return the panel of the help that a parameter stands in."""
    if parameter.name == "help":
        return o.LIMITS
    is_argument = parameter.param_type_name == "argument"
    return str(parameter.rich_help_panel or (o.LOOK if is_argument else o.OUT))


def names_and_value(parameter: Any) -> str:
    """Return how a parameter is written: ``-t, --token WORD|INDEX``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join((*sorted(parameter.opts, key=len), *parameter.secondary_opts))
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'N'}"


def help_of(parameter: Any, ctx: Any) -> str:
    """Return what a parameter does, its default and bounds; lists of names are filled in here."""
    told = " ".join((parameter.get_help_record(ctx)[1] or "").split())
    return re.sub(r"\{(\w+)\}", lambda kind: ", ".join(o.names_of(kind[1])), told)


def _rank(parameter: Any) -> tuple[bool, int]:
    """Sort a panel: what a learner needs, then what has a short name, then the rest."""
    is_first = parameter.name in o.FIRST
    return _is_rare(parameter), o.FIRST.index(parameter.name) if is_first else len(o.FIRST)


def _is_rare(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and all(len(name) > 2 for name in parameter.opts)


def _row(parameter: Any, ctx: Any) -> str:
    """Return one parameter and what it does, in lines of the help."""
    names = ("      " if _is_rare(parameter) else "  ") + names_and_value(parameter)
    told = help_of(parameter, ctx)
    if len(names) >= _COLUMN and len(names) + 2 + len(told) <= _WIDTH:
        return f"{names}  {told}\n"
    lines = textwrap.wrap(told, _WIDTH - _COLUMN)
    if len(names) >= _COLUMN:
        lines.insert(0, "")
    rows = [names.ljust(_COLUMN) + lines[0], *(" " * _COLUMN + line for line in lines[1:])]
    return "".join(f"{row.rstrip()}\n" for row in rows)


def _hanging(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _process(parameter: Any, own: Callable[..., Any], context: Any, value: Any) -> Any:
    """Stand in for a parameter's ``process_value``: defaults and plain strings pass."""
    found = getattr(parameter, "type_descriptor", None)
    info = getattr(found, "parameter_info", None)
    is_plain = getattr(info, "parser", None) is None and not getattr(parameter, "multiple", False)
    takes_text = getattr(found, "annotation", None) is str and is_plain and parameter.nargs == 1
    is_default = value is parameter.default and isinstance(value, int | float)
    if value is None or value is False or is_default or (takes_text and isinstance(value, str)):
        return (
            value if parameter.callback is None else parameter.callback(context, parameter, value)
        )
    return own(context, value)
