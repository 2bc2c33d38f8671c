"""Leave a model as it was before a text, so that the next text meets the same model.

Some models keep something after a forward pass: dynamic rotary positions keep the frequencies of the
longest text so far, BigBird-Pegasus replaces its sparse attention by full attention for good at the
first short text. The next text's numbers would then depend on what ran before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
"""Dictionaries that are changed in place. Hooks are among them because the library notes in an attribute
that it has put its own: the note and the hooks must go together."""


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put every module's attributes, buffers and children back when the block ends.

    References are kept, so that nothing is copied: about a millisecond for a thousand modules. A
    tensor that is written into in place keeps what was written.
    """
    before = [(module, _snapshot(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, (plain, tables) in before:
            _restore(vars(module), plain)
            for name, table in tables.items():
                _restore(vars(module)[name], table)


def _snapshot(module: torch.nn.Module) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    state = vars(module)
    return dict(state), {name: dict(state[name]) for name in _TABLES}


def _restore(now: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Make a dictionary what it was, touching only what differs, so that order stays."""
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if now.get(name, _restore) is not value:
            now[name] = value
