"""The one door to the ``transformers`` library: offline, quiet, and optional.

What lives here: the guarded import. What does not: anything that uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import Any

from attnviz.errors import UsageError

EXTRA = "models"


def require(*modules: str) -> None:
    """Refuse with one line where the extra is not installed.

    Raises
    ------
    UsageError
        Names what is missing and the command that installs it.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"trained models need {' and '.join(missing)}: not installed; "
            f"pip install 'attnviz[{EXTRA}]'"
        )


@cache
def load_transformers() -> Any:
    """Import ``transformers`` with the network switched off and its chatter silenced.

    Notes
    -----
    Takes 1 to 4 seconds the first time. ``HF_HUB_OFFLINE`` is set before the import, because the
    hub client reads it only then.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    require("transformers", "accelerate")
    transformers: Any = importlib.import_module("transformers")
    chatter = transformers.utils.logging
    chatter.set_verbosity(chatter.CRITICAL)
    chatter.disable_progress_bar()
    return transformers


def version_of(module: str) -> str:
    """Return an installed package's version, or an empty text."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module)
    except PackageNotFoundError:
        return ""
