"""What the campaigns over architectures found, kept beside them, and its table in docs/models.md.

python keep.py SWEEP.jsonl ACCOUNTS.jsonl    keep what sweep.py and accounting.py printed
python keep.py                               write the table from what is kept
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "found.json"
DOCS = Path(__file__).parents[3] / "docs" / "models.md"
START, END = "<!-- table: written by make sweep -->", "<!-- end of the sweep's table -->"
_WAYS = {"interface": "attention interface", "tap": "tap"}


def keep(sweep: Path, accounts: Path) -> None:
    """Keep what the two campaigns printed."""
    found, accounted = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (sweep, accounts)
    )
    lines = [f' "transformers": {json.dumps(version("transformers"))}']
    for title, listed in (("architectures", found), ("accounts", accounted)):
        entries = [f"  {json.dumps(one.pop('name'))}: {_short(one)}" for one in listed]
        lines.append(f' "{title}": {{\n' + ",\n".join(entries) + "\n }")
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _short(one: dict[str, Any]) -> str:
    left = ("kinds", "refused_texts", *(("why",) if one.get("outcome") == "exact" else ()))
    kept = {key: value for key, value in one.items() if value and key not in left}
    return json.dumps(kept, ensure_ascii=False)


def kept() -> dict[str, Any]:
    """Return what is kept."""
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def table(held: dict[str, Any]) -> str:
    """Return what docs/models.md says of it."""
    found: dict[str, dict[str, Any]] = held["architectures"]
    counts = Counter(one["outcome"] for one in found.values())
    rows = ["| read through | how many | largest difference | architectures |", "|---|---|---|---|"]
    for route, way in _WAYS.items():
        names = [
            n for n, one in found.items() if one["outcome"] == "exact" and one["route"] == route
        ]
        usual = max(
            (found[n].get("weights", 0.0) for n in names if "large_score" not in found[n]),
            default=0.0,
        )
        rows.append(f"| {way} | {len(names)} | {usual:.0e} | {_listed(names)} |")
    large = {
        n: one["weights"]
        for n, one in found.items()
        if one["outcome"] == "exact" and "large_score" in one
    }
    shared = [
        one for one in found.values() if one["outcome"] == "exact" and one.get("passes") != "single"
    ]
    together = max(one.get("together", 0.0) for one in shared)
    refused: dict[str, list[str]] = {}
    for name, one in found.items():
        if one["outcome"] == "refused":
            refused.setdefault(_fact(one["why"]), []).append(name)
    no = ["| refused, as | architectures |", "|---|---|"]
    no += [f"| {fact} | {_listed(names)} |" for fact, names in sorted(refused.items())]
    accounts = Counter[str]()
    for one in held["accounts"].values():
        for kind, outcomes in one.get("counts", {}).items():
            if "unchanged" not in kind:
                accounts.update(outcomes)
    faults = sum(len(one.get("faults", ())) for one in held["accounts"].values())
    parts = [
        f"Of transformers {held['transformers']}, {len(found)} architectures and variants that read text were tried: "
        f"{counts['exact']} are exact, {counts['refused']} refused, {counts['not built']} were not built tiny, "
        f"{counts['wrong'] + counts['bug']} wrong or without an answer of ours. Texts of 3 to 60 tokens, each alone against a fresh "
        f"copy of the model in eager attention, then in the company that `batch` gives it ({len(shared)} share passes; figures "
        f"differ by at most {together:.0e}). Thresholds of their configs (windows, LongRoPE, dynamic rope, sparse keys) lie among "
        "those lengths.",
        "\n".join(rows),
        "Scores in the hundreds round more coarsely in float32: " + ", ".join(f"{n} {d:.0e}" for n, d in large.items())
        + ". There the bound is four roundings of q and k times the largest sum of |q·k|, and in float64 the same weights are "
        "equal within 1e-9." if large else "",
        "\n".join(no),
        "Not built tiny: " + _listed([n for n, one in found.items() if one["outcome"] == "not built"]) + ".",
        f"In folders of {len(held['accounts'])} of them each tensor was taken away, tensors were added to each, and each setting of "
        f"the config was changed by a step, for both engines ({sum(accounts.values()):,} changes): "
        f"{accounts['refused']:,} were refused by name, {accounts['as the original']:,} changed the answer as the library's own model of the "
        f"original tensors changes, {accounts['no effect']:,} have no effect on attention in either, {faults} gave another answer.",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _listed(names: list[str]) -> str:
    return ", ".join(re.sub(r", (.*)", r" (\1)", name) for name in sorted(names))


def _fact(why: str) -> str:
    """Return a refusal without the names and numbers of one model."""
    why = re.sub(r"^\S+ (cannot be read exactly: |does not run: |has )", "", why)
    why = why.partition(": which token")[0].partition("; its config")[0].partition(": there is")[0]
    why = re.sub(r"^\S+ (attends|passes|computes)", r"a layer \1", why)
    why = re.sub(r"\(\d[\d, ]*\)", "…", why)
    return re.sub(r"\b\d+(\.\d+)?(e[-+]\d+)?\b", "n", why).replace("|", "\\|").strip()


def write_docs() -> None:
    """Put the table between its marks."""
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{START}\n\n{table(kept())}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        keep(Path(sys.argv[1]), Path(sys.argv[2]))
    write_docs()
