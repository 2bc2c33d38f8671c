"""What is printed is the same on every processor: golden text, README and tutorial with other kernels.

Each setting makes OpenBLAS, numpy, torch and MKL use what an older or newer processor would, and
runs the tests of printed text again in a child. A digit of rounding in a printed line turns it red.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

ROOT = Path(__file__).parents[1]
PRINTED = ("tests/golden", "tests/test_readme.py", "tests/docs/test_pages.py")
GOLDEN = PRINTED[:1]
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


def run(setting: dict[str, str], tests: tuple[str, ...], *more: str) -> tuple[int, str]:
    """Run tests in a child with other kernels; return its status and last lines."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_KERNELS}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "ATTNVIZ_UPDATE_GOLDEN"):
        kept.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-m", "not slow", *more, *tests],
        cwd=ROOT, env={**kept, **setting}, capture_output=True, encoding="utf-8", check=False,
        timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout[-1500:]


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_text_is_the_same_with_other_kernels(name: str) -> None:
    code, told = run(SETTINGS[name], GOLDEN)
    assert code == 0, told


def test_all_printed_text_is_the_same_on_the_oldest_processor() -> None:
    code, told = run(SETTINGS["oldest"], PRINTED[1:])
    assert code == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_all_printed_text_is_the_same_with_other_kernels(name: str) -> None:
    code, told = run(SETTINGS[name], PRINTED)
    assert code == 0, told


def test_a_printed_rounding_error_would_be_seen(tmp_path: Path) -> None:
    """Print the error itself again, as before there were bounds: some setting differs."""
    plugin = tmp_path / "raw_errors.py"
    plugin.write_text(
        "from attnviz.render.views import walk\n"
        "walk.bound = lambda error, floor=0.0: f'{error:.16e}'\n",
        encoding="utf-8",
    )
    found = {
        name: run({**SETTINGS[name], "PYTHONPATH": str(tmp_path)}, GOLDEN, "-p", "raw_errors")[0]
        for name in ("as it is", "oldest")
    }
    assert set(found.values()) == {1}
