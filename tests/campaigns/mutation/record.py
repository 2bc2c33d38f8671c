"""Write down what came of the breaks: counts per file, who survived, who changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from breaking import module_of
from table import FORMULAS, GUARDS

HERE = Path(__file__).resolve().parent
EQUIVALENT = HERE / "equivalent.json"
RESULTS = HERE / "RESULTS.md"
_HEAD = """# What small breaks of the guards and the formulas do to the tests

Written by `make mutants RECORD=1`; `python tests/campaigns/mutation/run.py --help` says how. *Possible* is how
many breaks the operators of `operators.py` find in a file, *tried* how many were taken (a sample that
stays the same while the code does), *noticed* how many made a test fail, hang or crash. *Equivalent*
breaks change nothing that anybody could see; each stands below with the reason, and is left out of
the share.
"""


def counts(report: Mapping[str, Any], same: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of one file, and the breaks nobody noticed."""
    found = report["found"]
    alive = [one for one in found if one["end"] == "survived"]
    lost = [one for one in alive if one["key"] not in same]
    return {
        "possible": report["mutants"],
        "tried": len(found),
        "noticed": len(found) - len(alive),
        "equivalent": len(alive) - len(lost),
        "lost": lost,
    }


def equivalents() -> dict[str, dict[str, str]]:
    """Return the breaks that change nothing, by file and name, with the reason for each."""
    found: dict[str, dict[str, str]] = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return found


def write(folder: Path) -> None:
    """Write ``RESULTS.md`` from the reports in a folder."""
    same = equivalents()
    lines, lost, told = [_HEAD], [], []
    for title, files in (("Guards", GUARDS), ("Formulas", FORMULAS)):
        lines += [f"## {title}", "", "| file | possible | tried | noticed | equivalent | survived | share |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        total = dict.fromkeys(("possible", "tried", "noticed", "equivalent", "survived"), 0)
        for file in files:
            path = folder / f"{module_of(file)}.json"
            if not path.exists():
                continue
            found = counts(json.loads(path.read_text()), same.get(file, {}))
            found["survived"] = len(found["lost"])
            for name in total:
                total[name] += found[name]
            lines.append(_row(f"`{file.removeprefix('attnviz/')}`", found))
            lost += [f"- `{file}`: `{one['key']}`" for one in found["lost"]]
        lines += [_row("**all**", total), ""]
    for file, reasons in same.items():
        told += [f"- `{file}`: `{key}`: {why}" for key, why in reasons.items()]
    lines += ["## Not noticed", "", *(lost or ["None."]), ""]
    lines += ["## Equivalent, and why", "", *(told or ["None."]), ""]
    RESULTS.write_text("\n".join(lines), encoding="utf-8")


def _row(name: str, found: Mapping[str, Any]) -> str:
    n_real = found["tried"] - found["equivalent"]
    numbers = [found[name] for name in ("possible", "tried", "noticed", "equivalent", "survived")]
    share = f"{100 * found['noticed'] / n_real:.1f} %" if n_real else "-"
    return f"| {name} | {' | '.join(map(str, numbers))} | {share} |"
