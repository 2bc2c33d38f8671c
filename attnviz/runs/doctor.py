"""What this machine has: versions, devices, processor, fonts, and whether its arithmetic is right.

What lives here: gathering facts for ``attnviz doctor``. What does not: how they are shown.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attnviz import __version__
from attnviz.core.selftest import Case, run_cases

PACKAGES = ("numpy", "torch", "typer", "rich", "matplotlib", "safetensors", "tokenizers")
EXTRAS = {"transformers": "models", "gguf": "models", "pyarrow": "parquet", "ray": "ray"}


def versions() -> dict[str, str]:
    """Return the installed version of everything the program uses, without importing it."""
    found = {"attnviz": __version__, "python": platform.python_version()}
    for name in (*PACKAGES, *EXTRAS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            extra = EXTRAS.get(name)
            found[name] = f"missing: pip install 'attnviz[{extra}]'" if extra else "missing"
    return found


def machine() -> dict[str, str]:
    """Return processor, torch build and devices; imports torch."""
    facts = {"system": f"{platform.system()} {platform.machine()}"}
    try:
        import torch
    except ImportError as fault:
        facts["torch"] = f"cannot be imported: {fault}"
        return facts
    facts["torch build"] = (
        f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda
        else f"{torch.__version__}, no CUDA"
    )  # fmt: skip
    facts["CPU capability"] = str(torch.backends.cpu.get_cpu_capability())
    facts["threads"] = str(torch.get_num_threads())
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        facts["cuda"] = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(names))
    else:
        facts["cuda"] = "none"
    facts["mps"] = "yes" if torch.backends.mps.is_available() else "none"
    return facts


def fonts() -> dict[str, str]:
    """Return which scripts the installed fonts of the picture formats can draw."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    samples = {
        "Latin": "a",
        "Greek": "α",
        "Hebrew": "ש",
        "CJK": "猫",
        "Devanagari": "क",
        "emoji": "🧸",
    }
    found = dict.fromkeys(samples, "none: shown as U+XXXX in pictures")
    for entry in font_manager.fontManager.ttflist:
        if entry.name.startswith("Last Resort"):  # draws a box for everything
            continue
        missing = [script for script in samples if found[script].startswith("none")]
        if not missing:
            break
        try:
            charmap = FT2Font(entry.fname).get_charmap()
        except (OSError, RuntimeError):
            continue
        for script in missing:
            if ord(samples[script]) in charmap:
                found[script] = entry.name
    return found


def report() -> dict[str, Any]:
    """Gather everything: ``versions``, ``machine``, ``fonts``, ``selftest`` (a list of ``Case``)."""
    cases: list[Case] = list(run_cases())
    return {
        "versions": versions(),
        "machine": machine(),
        "fonts": fonts(),
        "selftest": cases,
        "encoding": sys.getfilesystemencoding(),
    }
