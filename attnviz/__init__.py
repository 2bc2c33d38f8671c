"""attnviz: a microscope for attention, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "batch": "attnviz.api",
    "compare": "attnviz.api",
    "explain": "attnviz.api",
    "generate": "attnviz.api",
    "load": "attnviz.api",
    "rank_heads": "attnviz.api",
    "show": "attnviz.api",
    "summarize": "attnviz.api",
    "watch": "attnviz.api",
    "Summary": "attnviz.api",
    "Trace": "attnviz.records",
    "Tokens": "attnviz.records",
    "LayerHeads": "attnviz.records",
    "MaskRule": "attnviz.records",
    "AttnvizError": "attnviz.errors",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from attnviz.api import Summary as Summary
    from attnviz.api import batch as batch
    from attnviz.api import compare as compare
    from attnviz.api import explain as explain
    from attnviz.api import generate as generate
    from attnviz.api import load as load
    from attnviz.api import rank_heads as rank_heads
    from attnviz.api import show as show
    from attnviz.api import summarize as summarize
    from attnviz.api import watch as watch
    from attnviz.errors import AttnvizError as AttnvizError
    from attnviz.records import LayerHeads as LayerHeads
    from attnviz.records import MaskRule as MaskRule
    from attnviz.records import Tokens as Tokens
    from attnviz.records import Trace as Trace


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use, so that ``import attnviz`` loads nothing heavy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'attnviz' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
