"""The class of every command: options that were not given cost nothing at start-up.

What lives here: one short-cut. typer builds a validator for each option of a command, given or not,
which takes a third of the start of ``attnviz explain``; a default needs no checking, and a string
is a string.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose parameters pass their own defaults, and plain strings, through."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, the short-cut in place."""
        _shorten(self.get_params(ctx))
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The same for a group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, the short-cut in place."""
        _shorten(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _shorten(parameters: list[Any]) -> None:
    for parameter in parameters:
        if not parameter.required and not isinstance(parameter.process_value, _Process):
            parameter.process_value = _Process(parameter)


class _Process:
    """In place of a parameter's ``process_value``."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter
        self.own = parameter.process_value
        self.is_text = _takes_any_text(parameter)

    def __call__(self, context: Any, value: Any) -> Any:
        is_default = value is self.parameter.default and isinstance(value, int | float)
        is_default = is_default or value is False
        if not (value is None or is_default or (self.is_text and isinstance(value, str))):
            return self.own(context, value)
        callback = self.parameter.callback
        return value if callback is None else callback(context, self.parameter, value)


def _takes_any_text(parameter: Any) -> bool:
    found = getattr(parameter, "type_descriptor", None)
    info = getattr(found, "parameter_info", None)
    is_plain = getattr(info, "parser", None) is None and not getattr(parameter, "multiple", False)
    return getattr(found, "annotation", None) is str and is_plain and parameter.nargs == 1
