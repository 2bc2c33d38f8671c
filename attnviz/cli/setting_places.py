"""Where settings may be, found out at every start and so with nothing that takes time to import.

What lives here: the places, in the order they are looked at, and whether there is anything in them.
What does not: reading (``setting_files``) and meaning (``settings``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PREFIX = "ATTNVIZ_"
OWN_FILE = "attnviz.toml"
PROJECT_FILE = "pyproject.toml"
MAX_BYTES = 256 * 1024
_TABLE = rb"""^[ \t]*\[{0,2}[ \t]*["']?tool["']?[ \t]*(?:\.[ \t]*["']?attnviz|\])"""


def is_anything_set(environ: Mapping[str, str], folder: str) -> bool:
    """Tell whether a variable, a file upwards or the user's file may hold a setting."""
    if any(name.startswith(PREFIX) for name in environ):
        return True
    if (user := user_file(environ)) is not None and os.path.exists(user):
        return True
    for place in upwards(folder, environ):
        if os.path.lexists(os.path.join(place, OWN_FILE)):
            return True
        if may_have_table(os.path.join(place, PROJECT_FILE)):
            return True
    return False


def user_file(environ: Mapping[str, str]) -> str | None:
    """Return where the user's own settings are, whether or not the file exists."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "attnviz", "config.toml")


def upwards(folder: str, environ: Mapping[str, str]) -> list[str]:
    """Return a folder and those above it, as far as the home folder or the root."""
    home = environ.get("HOME", "")
    found = [folder]
    while folder != home and (above := os.path.dirname(folder)) != folder:
        folder = above
        found.append(folder)
    return found


def may_have_table(path: str) -> bool:
    """Tell whether a project's file is one that could be read and has a table for this program."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as stream:
            return re.search(_TABLE, stream.read(MAX_BYTES), re.M) is not None
    except OSError:
        return False
