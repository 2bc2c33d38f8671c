"""Break the guards and the formulas, one small break at a time, and see who notices.

``python tests/campaigns/mutation/run.py [--count N] [--again] [--jobs N] [FILE…]`` prints a line per file and
every survivor; with ``--record`` it writes the counts into ``RESULTS.md``.

One process loads the heavy libraries once. Each file gets a fork that loads the parts of the
package that do not depend on it, then runs its tests once to learn which test passes which line.
Each break is a fork of that: it imports the file broken and runs the tests that pass the line, the
quickest first, then the rest of their files. A break that makes a test fail, hang or crash is
noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import breaking
import record
from operators import Mutant, mutants_of
from table import TABLE

ROOT = breaking.ROOT
HEAVY = (
    "numpy", "torch", "torch._dynamo", "pytest", "hypothesis", "rich.console", "typer", "safetensors.numpy",
    "tokenizers", "matplotlib.pyplot", "transformers", "transformers.models.llama", "gguf", "pyarrow.parquet",
    "coverage", "jsonschema", "unittest.mock",
)  # fmt: skip
OPTIONS = ("-x", "-q", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider",
           "-p", "no:logging", "--assert=plain", "-m", "not slow")  # fmt: skip
MEMORY_BYTES = 12 << 30
TESTS_S = 12.0  # the tests for one break take at most so long, by what they took before
KILLED, SURVIVED = "killed", "survived"


@dataclass
class Baseline:
    """What the tests did before anything was broken."""

    code: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[int, list[str]] = field(default_factory=dict)


class Watch:
    """A plug-in for pytest: what each test takes, which lines it passes, which one fails."""

    def __init__(self, coverage: Any = None, order: Callable[[list[Any]], list[Any]] | None = None):
        self.coverage, self.order = coverage, order
        self.seconds: dict[str, float] = {}
        self.failed = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"import of {report.nodeid}"

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.order is not None:
            items[:] = self.order(items)


def in_fork(work: Callable[[], Any], limit_s: float) -> Any:
    """Do work in a forked child and return its answer; its death or delay as text."""
    with tempfile.TemporaryDirectory(prefix="attnviz-mutant-") as folder:
        answer = Path(folder, "answer")
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1) if os.environ.get("SHOW") else (0, 1, 2):
                os.dup2(null, stream)
            os.environ["ATTNVIZ_MUTATION_TMP"] = folder
            try:
                answer.write_text(json.dumps(work()))
            finally:
                os._exit(0)
        end = time.monotonic() + limit_s
        status = None
        while status is None and time.monotonic() < end:
            done, code = os.waitpid(child, os.WNOHANG)
            status = code if done else None
            if not done:
                time.sleep(0.005)
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hung"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what it started
        text = answer.read_text() if answer.exists() else ""
        return json.loads(text) if text else f"crashed ({os.waitstatus_to_exitcode(status)})"


def pytest_main(files: Iterable[str], watch: Watch) -> int:
    import pytest

    folder = os.environ["ATTNVIZ_MUTATION_TMP"]
    arguments = [*OPTIONS, f"--basetemp={folder}/tmp", *files]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = int(pytest.main(arguments, plugins=[watch]))
    if os.environ.get("SHOW"):
        sys.stderr.write(said.getvalue())
    return code


def learn(file: str, tests: tuple[str, ...]) -> dict[str, Any]:
    """Run a file's tests unbroken; say what each takes and which lines of the file it passes."""
    import coverage

    measured = coverage.Coverage(
        data_file=None, include=[str(ROOT / file)], config_file=False, messages=False
    )
    measured.start()
    watch = Watch(measured)
    code = pytest_main(tests, watch)
    measured.stop()
    lines = measured.get_data().contexts_by_lineno(str(ROOT / file))
    found = {line: [name for name in names if name] for line, names in lines.items()}
    return asdict(Baseline(code, watch.seconds, found))


def tests_for(mutant: Mutant, base: Baseline) -> list[str]:
    """Return the tests that pass the break, the quickest first, then the rest of their files."""
    names = set[str]()
    if mutant.in_function:
        for line in range(mutant.first_line, mutant.last_line + 1):
            names.update(base.lines.get(line, ()))
    near = sorted(names, key=lambda name: base.seconds.get(name, 0.0))
    files = {name.partition("::")[0] for name in near}
    rest = [name for name in base.seconds if name not in names]
    rest = [name for name in rest if not files or name.partition("::")[0] in files]
    chosen, total = [], 0.0
    for name in [*near, *sorted(rest, key=lambda name: base.seconds[name])]:
        total += base.seconds.get(name, 0.0)
        if total > TESTS_S and chosen:
            break
        chosen.append(name)
    return chosen


def judge(file: str, mutant: Mutant, base: Baseline) -> dict[str, Any]:
    """Say whether a break is noticed, and by which test."""
    chosen = tests_for(mutant, base)
    place = {name: number for number, name in enumerate(chosen)}

    def order(items: list[Any]) -> list[Any]:
        return sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])

    def work() -> list[Any]:
        breaking.install(file, mutant.key)
        watch = Watch(order=order)
        code = pytest_main(dict.fromkeys(name.partition("::")[0] for name in chosen), watch)
        return [code, watch.failed]

    start = time.monotonic()
    expected = sum(base.seconds.get(name, 0.0) for name in chosen)
    found = in_fork(work, limit_s=20 + 4 * expected) if chosen else [5, ""]
    took = round(time.monotonic() - start, 2)
    if isinstance(found, str):
        return {"key": mutant.key, "line": mutant.first_line, "end": KILLED, "by": found, "s": took}
    end = SURVIVED if found[0] in (0, 5) else KILLED
    return {"key": mutant.key, "line": mutant.first_line, "end": end, "by": found[1], "s": took}


def dependents_of(file: str) -> set[str]:
    """Return the modules that import a file, directly or not, the file's own included."""
    imports: dict[str, set[str]] = {}
    for path in sorted((ROOT / "attnviz").rglob("*.py")):
        name = breaking.module_of(str(path.relative_to(ROOT)))
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        imports[name] = found
    grown = {breaking.module_of(file)}
    while True:
        more = {name for name, found in imports.items() if found & grown} - grown
        if not more:
            return grown
        grown |= more


def load_the_rest(file: str) -> None:
    """Import every part of the package that does not depend on the file."""
    outside = dependents_of(file)
    for path in sorted((ROOT / "attnviz").rglob("*.py")):
        name = breaking.module_of(str(path.relative_to(ROOT)))
        parents = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
        if name in outside or parents & outside or name.endswith(("__main__", "pt_child")):
            continue
        importlib.import_module(name)


def examine(file: str, count: int, seed: str, keys: set[str] | None) -> dict[str, Any]:
    """Run the breaks of one file; every answer goes into ``build/mutants`` as well."""
    import hypothesis

    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, print_blob=False
    )
    hypothesis.settings.load_profile("mutants")
    load_the_rest(file)
    everything = mutants_of((ROOT / file).read_text(encoding="utf-8"))
    chosen = sorted(everything, key=lambda mutant: mutant.rank(seed))[: count or None]
    if keys is not None:
        chosen = [mutant for mutant in everything if mutant.key in keys]
    tests = TABLE[file]
    found = in_fork(lambda: learn(file, tests), limit_s=600)
    if isinstance(found, str) or found["code"] != 0:
        raise SystemExit(
            f"{file}: its tests fail unbroken: {found if isinstance(found, str) else found['code']}"
        )
    gc.collect()
    gc.freeze()  # forks do not copy what nobody collects
    base = Baseline(0, found["seconds"], {int(k): v for k, v in found["lines"].items()})
    report = {
        "file": file,
        "mutants": len(everything),
        "tests_s": round(sum(base.seconds.values()), 1),
        "found": [judge(file, mutant, base) for mutant in chosen],
    }
    out = ROOT / "build/mutants"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{breaking.module_of(file)}.json").write_text(json.dumps(report, indent=1))
    return report


def examine_all(
    files: list[str], count: int, seed: str, jobs: int, again: bool
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Examine files in forks, so many at once; yield each report as it comes."""
    waiting, running = list(files), dict[int, str]()
    while waiting or running:
        while waiting and len(running) < jobs:
            file = waiting.pop(0)
            keys = None
            kept = ROOT / "build/mutants" / f"{breaking.module_of(file)}.json"
            if again:
                before = json.loads(kept.read_text())
                keys = {one["key"] for one in before["found"] if one["end"] == SURVIVED}
            child = os.fork()
            if not child:
                code = 1
                try:
                    report = examine(file, count, seed, keys)
                    if again:
                        merge(kept, before, report)
                    code = 0
                except SystemExit as fault:
                    print(fault, file=sys.stderr, flush=True)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    os._exit(code)
            running[child] = file
        done, status = os.wait()
        file = running.pop(done)
        kept = ROOT / "build/mutants" / f"{breaking.module_of(file)}.json"
        yield file, json.loads(kept.read_text()) if not status else "failed"


def merge(kept: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put new answers into an older report; what no longer exists in the code goes."""
    new = {one["key"]: one for one in after["found"]}
    source = (ROOT / after["file"]).read_text(encoding="utf-8")
    alive = {mutant.key for mutant in mutants_of(source)}
    after["found"] = [new.get(one["key"], one) for one in before["found"] if one["key"] in alive]
    kept.write_text(json.dumps(after, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="files of the package; without any, all")
    parser.add_argument("--count", type=int, default=60, help="breaks per file; 0 for all")
    parser.add_argument("--seed", default="1", help="which breaks are taken")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    parser.add_argument("--record", action="store_true", help="write RESULTS.md")
    asked = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
                      PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", MPLBACKEND="agg", HF_HUB_OFFLINE="1")  # fmt: skip
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    files = asked.files or list(TABLE)
    for name in HEAVY:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    same, n_bad = record.equivalents(), 0
    for file, report in examine_all(files, asked.count, asked.seed, asked.jobs, asked.again):
        if isinstance(report, str):
            n_bad += 1
            continue
        found = record.counts(report, same.get(file, {}))
        took = sum(one["s"] for one in report["found"])
        print(
            f"{file}: {found['noticed']} of {found['tried'] - found['equivalent']} noticed, "
            f"{found['equivalent']} equivalent, {found['possible']} possible, {took:.0f} s",
            flush=True,
        )
        for one in found["lost"]:
            print(f"  {one['line']}: {one['key']}", flush=True)
    if asked.record:
        record.write(ROOT / "build/mutants")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
