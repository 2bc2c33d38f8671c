"""What is printed is the same on every processor: commands, README and tutorial with other kernels.

Each setting makes OpenBLAS, numpy, torch and MKL use what an older or newer processor would. A
digit of rounding in a printed line, or an order that rounding decides, turns a test red.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

ROOT = Path(__file__).parents[1]
PRINTED = ("tests/golden", "tests/test_readme.py", "tests/docs/test_pages.py")
OF_KERNELS = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY", "MKL_CBWR",
)  # fmt: skip
BARE = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
"""Every instruction set beyond numpy's baseline that this processor has."""


def threads(count: int) -> dict[str, str]:
    return {"OPENBLAS_NUM_THREADS": str(count), "OMP_NUM_THREADS": str(count)}


SETTINGS: dict[str, dict[str, str]] = {
    "oldest": {
        "OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": BARE,
        "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", **threads(1),
    },
    "as it is": {},
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem", **threads(4)},
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2", **threads(1)},
    "Haswell, 4 threads": {"OPENBLAS_CORETYPE": "Haswell", **threads(4)},
    "Zen": {"OPENBLAS_CORETYPE": "Zen", "MKL_CBWR": "COMPATIBLE"},
    "numpy's baseline": {"NPY_DISABLE_CPU_FEATURES": BARE},
}  # fmt: skip
if __cpu_features__.get("AVX512F"):
    SETTINGS["SkylakeX"] = {"OPENBLAS_CORETYPE": "SkylakeX", **threads(1)}
    SETTINGS["SkylakeX, 4 threads"] = {"OPENBLAS_CORETYPE": "SkylakeX", **threads(4)}


def child(setting: dict[str, str], *words: str) -> tuple[int, str, str]:
    """Run Python in a child with other kernels; return its status and what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_KERNELS}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "ATTNVIZ_UPDATE_GOLDEN"):
        kept.pop(name, None)
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**kept, **setting},
        capture_output=True, encoding="utf-8", check=False, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def what_is_printed(names: Sequence[str], folder: Path, *more: str) -> list[dict[str, str]]:
    """Return for each setting what every command prints; two children at a time."""

    def ask(name: str) -> dict[str, str]:
        place = folder / name
        place.mkdir()
        code, out, err = child(SETTINGS[name], "tests/printed_text.py", str(place), *more)
        assert code == 0, err[-1500:]
        found: dict[str, str] = json.loads(out)
        return found

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, names))


def check_tests(setting: dict[str, str], *words: str) -> None:
    code, out, _ = child(setting, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                         "-p", "no:xdist", "-m", "not slow", *words)  # fmt: skip
    assert code == 0, out[-1500:]


def test_what_commands_print_is_the_same_with_other_kernels(tmp_path: Path) -> None:
    found = dict(zip(SETTINGS, what_is_printed(list(SETTINGS), tmp_path), strict=True))
    own = found.pop("as it is")
    assert all(text.startswith("exit code 0") for text in own.values())
    differ = {
        (setting, command): list(unified_diff(own[command].split("\n"), text.split("\n"), n=0))[3:9]
        for setting, texts in found.items()
        for command, text in texts.items()
        if text != own[command]
    }
    assert not differ


def test_a_printed_rounding_error_would_be_seen(tmp_path: Path) -> None:
    """Print the error itself again, as before there were bounds: the settings differ.

    OpenBLAS has other kernels from AVX2 on; an older processor has one kind, and can tell nothing.
    """
    own, oldest = what_is_printed(["as it is", "oldest"], tmp_path, "--raw-errors")
    if __cpu_features__.get("AVX2"):
        assert own != oldest


def test_readme_and_tutorial_are_the_same_on_the_oldest_processor() -> None:
    check_tests(SETTINGS["oldest"], *PRINTED[1:], "-k", "console or tutorial")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_golden_text_and_all_pages_are_the_same_with_other_kernels(name: str) -> None:
    check_tests(SETTINGS[name], *PRINTED)
