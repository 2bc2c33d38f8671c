"""The breaks themselves: each has a name of its own, compiles, and really changes what is imported."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import breaking
import pytest
import record
from operators import broken, mutants_of
from table import TABLE

SOURCE = '''
"""Words."""
LIMIT = 3

def guard(n: int, *, most: int = 8) -> bool:
    """More words."""
    if n < 0 or n > most:
        raise ValueError(f"{n + 1} is too many")
    for i in range(n):
        if not i % 2:
            continue
        break
    return max(n, LIMIT) == n
'''
WANTED = {
    "module: 3 → 4",
    "module: 3 → 2",
    "guard: 8 → 9",
    "guard: if n < 0 or n > most → if True",
    "guard: if n < 0 or n > most → if False",
    "guard: n < 0 or n > most → n < 0 and n > most",
    "guard: n < 0 or n > most → n > most",
    "guard: n < 0 → n <= 0",
    "guard: n > most → n <= most",
    "guard: drop raise ValueError(f'{n + 1} is too many')",
    "guard: not i % 2 → i % 2",
    "guard: i % 2 → i // 2",
    "guard: continue → break",
    "guard: break → continue",
    "guard: return max(n, LIMIT) == n → return None",
    "guard: max(n, LIMIT) == n → max(n, LIMIT) != n",
    "guard: max(n, LIMIT) → min(n, LIMIT)",
}


def test_breaks_have_names_of_their_own_and_leave_words_alone() -> None:
    mutants = mutants_of(SOURCE)
    keys = [mutant.key for mutant in mutants]
    assert len(set(keys)) == len(keys)
    assert set(keys) >= WANTED
    assert not any("too many" in key and "drop" not in key for key in keys)
    made = {ast.unparse(broken(SOURCE, mutant)) for mutant in mutants}
    assert ast.unparse(ast.parse(SOURCE)) not in made
    assert len(made) >= len(mutants) - 3  # `if x → if False` and `drop raise` may read alike
    assert [m.rank("1") for m in mutants] == [m.rank("1") for m in mutants_of(SOURCE)]


def test_every_file_of_the_table_and_its_tests_are_there() -> None:
    for file, tests in TABLE.items():
        for path in (file, *tests):
            assert (breaking.ROOT / path).is_file(), path
    assert set(record.equivalents()) <= set(TABLE)


def test_every_equivalent_break_still_exists_and_has_a_reason() -> None:
    for file, reasons in record.equivalents().items():
        known = {m.key for m in mutants_of((breaking.ROOT / file).read_text(encoding="utf-8"))}
        assert set(reasons) <= known, (file, set(reasons) - known)
        assert all(len(why) > 10 for why in reasons.values())


@pytest.mark.parametrize("way", ["here", "in a child"])
def test_a_broken_file_is_what_is_imported(way: str) -> None:
    code = "from attnviz.masks import window_reach; print(window_reach(3, causal=True))"
    asked = json.dumps(["attnviz/masks.py", "window_reach: window - 1 → window + 1"])
    if way == "here":
        here = Path(breaking.__file__).parent
        code = f"import sys; sys.path.insert(0, {str(here)!r}); import breaking; breaking.install(*{asked}); {code}"
        more = {"PYTHONPATH": str(breaking.ROOT)}
    else:
        more = {
            "ATTNVIZ_MUTANT": asked,
            "PYTHONPATH": f"{breaking.HOOK}{os.pathsep}{breaking.ROOT}",
        }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(4, 0)"
