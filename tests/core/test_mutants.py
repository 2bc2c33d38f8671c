"""Break the formulas one by one in a copy: the tests of the core must see every break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = "attnviz/core/reference.py"
MASKS = "attnviz/masks.py"
MUTANTS = {
    "no scale": (REFERENCE, 'stages["scores"] * heads.scale', 'stages["scores"]'),
    "no scale in the loop": (REFERENCE, "q_E * k_SE[j]) * heads.scale", "q_E * k_SE[j])"),
    "flipped mask": (
        REFERENCE,
        "np.where(visible_HLS, scores_HLS, -np.inf)",
        "np.where(~visible_HLS, scores_HLS, -np.inf)",
    ),
    "wrong axis": (
        REFERENCE,
        "total_HL1 = grown_HLS.sum(axis=-1, keepdims=True)",
        "total_HL1 = grown_HLS.sum(axis=-2, keepdims=True).swapaxes(-1, -2)"
        "[..., : grown_HLS.shape[-2], :]",
    ),
    "window off by one": (MASKS, "return window - 1, 0", "return window, 0"),
    "causal off by one": (MASKS, "(key <= position)\n    if rule.window", "(key < position + 2)\n    if rule.window"),
    "wrong kv head": (REFERENCE, "np.arange(n_heads) // group", "np.arange(n_heads) % a_KSX.shape[0]"),
    "no max-subtraction": (
        REFERENCE,
        "top_HL1 = np.where(sees_HL1, top_HL1, 0.0)",
        "top_HL1 = np.zeros_like(top_HL1)",
    ),
    "cap forgotten": (REFERENCE, "return softcap * np.tanh(scores_HLS / softcap)", "return scores_HLS"),
    "unseen values leak": (REFERENCE, "np.where(unseen_HS[..., None], 0.0, v_HSF)", "v_HSF"),
    "natural logarithm": (REFERENCE, "weights * np.log2(safe)", "weights * np.log(safe)"),
}  # fmt: skip


def copy_project(target: Path) -> None:
    hidden = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "attnviz", target / "attnviz", ignore=hidden)
    (target / "tests").mkdir()
    shutil.copy(ROOT / "tests/core/test_reference.py", target / "tests/test_reference.py")


def run_tests(folder: Path) -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "tests",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def test_the_copy_passes_before_it_is_broken(tmp_path: Path) -> None:
    copy_project(tmp_path)
    assert run_tests(tmp_path) == 0


@pytest.mark.parametrize("name", MUTANTS)
def test_no_mutant_survives(name: str, tmp_path: Path) -> None:
    file, old, new = MUTANTS[name]
    copy_project(tmp_path)
    source = (tmp_path / file).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"the mutant {name!r} no longer matches the code"
    (tmp_path / file).write_text(source.replace(old, new), encoding="utf-8")
    assert run_tests(tmp_path) == 1
