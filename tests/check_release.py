"""Build what a release uploads, look into it, install it in a clean environment, and run it there.

``python tests/check_release.py [FOLDER]`` (``make wheel``) builds everything twice, from copies in
different folders with another umask, other times, another time zone and junk lying about, and
leaves the files in FOLDER. Exit 1 and one line where something is not as it should be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JUNK = (
    "build/x", "dist/x.whl", "outputs/mine.png", ".venv/x", "tests/.cache/model.bin", "docs/_generated/x.md",
    "sample_weights/.cache/x", "attnviz/__pycache__/x.pyc", "attnviz/core/__pycache__/x.pyc",
    "attnviz.egg-info/PKG-INFO", ".pytest_cache/x", ".hypothesis/x", ".mypy_cache/x", ".ruff_cache/x", ".coverage",
)  # fmt: skip
LIMITS = {".whl": 13_000_000, ".gz": 13_500_000}


def check(is_right: object, told: str) -> None:
    """Stop with a line where something is wrong."""
    if not is_right:
        raise SystemExit(f"release: {told}")


def tracked() -> list[str]:
    """Return the files of the source: those git tracks, or all there are where there is no git."""
    if (ROOT / ".git").exists():
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return sorted(name for name in done.stdout.split("\0") if name and (ROOT / name).exists())
    found = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if str(p) != "PKG-INFO")


def build(source: Path, out: Path, *options: str, **environment: str) -> None:
    """Build distributions in an environment of their own, with the tools that are pinned."""
    clean = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), *options, str(source)],
        env={**clean, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    check(done.returncode == 0, f"the build failed\n{done.stdout}\n{done.stderr}")


def copy(names: list[str], target: Path, umask: int) -> Path:
    """Copy the source as someone with that umask would have it."""
    for name in names:
        made = target / name
        made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, made)
        made.chmod((0o777 if os.access(ROOT / name, os.X_OK) else 0o666) & ~umask)
    return target


def built_twice(place: Path) -> tuple[Path, Path]:
    """Return wheel and sdist; the second build, from a copy full of junk, gives the same bytes."""
    names = tracked()
    first = copy(names, place / "a", 0o022)
    second = copy(names, place / "elsewhere/quite/deep", 0o077)
    for name in JUNK:
        (second / name).parent.mkdir(parents=True, exist_ok=True)
        (second / name).write_bytes(b"junk")
    for path in second.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    build(first, place / "dist")  # the wheel from the sdist
    before = os.umask(0o077)
    try:
        build(second, place / "dist2", "--sdist", "--wheel", TZ="Asia/Kathmandu", LC_ALL="C")
    finally:
        os.umask(before)
    made = sorted((place / "dist").iterdir())
    check([p.name for p in made] == [p.name for p in sorted((place / "dist2").iterdir())], "names")
    for path in made:
        same = path.read_bytes() == (place / "dist2" / path.name).read_bytes()
        check(same, f"{path.name} has other bytes when it is built a second time")
        size = path.stat().st_size
        check(size <= LIMITS[path.suffix], f"{path.name} has {size:,} bytes")
        print(f"{path.name}: {size:,} bytes, the same when built twice")
    wheel, sdist = sorted(made, key=lambda p: p.suffix, reverse=True)
    check(wheel.suffix == ".whl", "there is no wheel")
    return wheel, sdist


def look_into(wheel: Path, sdist: Path) -> None:
    """The files are those git tracks and nothing else; the metadata are whole."""
    names = tracked()
    with tarfile.open(sdist) as archive:
        held = {m.name.partition("/")[2] for m in archive.getmembers() if not m.isdir()}
        check(all(m.isfile() for m in archive.getmembers()), "the sdist holds more than files")
    check(held == {*names, "PKG-INFO"}, f"the sdist differs: {sorted(held ^ {*names, 'PKG-INFO'})}")
    with zipfile.ZipFile(wheel) as package:
        inside = set(package.namelist())
        info = next(n for n in inside if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(package.read(info))
        points = package.read(info.replace("METADATA", "entry_points.txt")).decode()
    base, version = info.partition("/")[0], str(metadata["Version"])
    wanted = {name for name in names if name.startswith("attnviz/")}
    wanted |= {f"attnviz/_sample/{n}" for n in ("sample.safetensors", "sample-8.safetensors", "tokenizer.json")}  # fmt: skip
    wanted |= {f"attnviz-{version}.data/data/share/man/man1/attnviz.1"}
    wanted |= {f"{base}/{n}" for n in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    wanted |= {f"{base}/licenses/{n}" for n in ("LICENSE", "sample_weights/LICENSES.md")}
    check(inside == wanted, f"the wheel differs: {sorted(inside ^ wanted)}")
    check("attnviz = attnviz.cli.main:main" in points, "the entry point is missing")
    for field in ("Summary", "License-Expression", "Requires-Python", "Keywords", "Classifier"):
        check(metadata[field], f"the metadata have no {field}")
    look_at_description(metadata.get_payload())  # type: ignore[arg-type]


def look_at_description(text: str) -> None:
    """What a package index shows holds no link that leads nowhere there."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    check("](docs/" not in prose and "![" not in prose, "the description links into the source")
    dead = [t for t in re.findall(r"\]\(([^)\s]+)\)", prose) if not t.startswith("https://")]
    check(not dead, f"the description links to {dead}")
    check("(`docs/tutorial.md`)" in prose, "the description does not name the tutorial")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command as a stranger would: nothing set, nothing cached, an empty home."""
    home = cwd / "home"
    home.mkdir(exist_ok=True)
    clean = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "COLUMNS": "80"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**clean, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    check(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def try_it(wheel: Path, place: Path) -> None:
    """Install the wheel in a clean environment and use it from another folder."""
    prefix, away = place / "clean", place / "away"
    venv.create(prefix, with_pip=True)
    python, attnviz = prefix / "bin/python", prefix / "bin/attnviz"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True)
    away.mkdir()
    version = wheel.name.split("-")[1]
    check(run(attnviz, "--version", cwd=away) == f"attnviz {version}\n", "another version")
    told = run(attnviz, "explain", "A cute teddy bear is reading", cwd=away)
    check("teddy" in told and "rows sum to 1" in told, f"the walk is not whole\n{told}")
    run(attnviz, "explain", "A cute teddy bear is reading", "-o", "walk.json", cwd=away)
    run(python, "-m", "attnviz", "doctor", cwd=away)
    check(run(python, "-m", "pip", "check", cwd=away).startswith("No broken"), "pip check")
    for name in ("pytest", "transformers", "pyarrow", "sphinx"):
        probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is not None)"
        run(python, "-c", probe, cwd=away)
    if shutil.which("man"):
        page = run("man", "attnviz", cwd=away, MANPATH=str(prefix / "share/man"), MANPAGER="cat")
        check("--weights" in page, "man attnviz shows something else")
    (away / "typed.py").write_text(
        "import attnviz\ntrace: attnviz.Trace = attnviz.explain('a b')\n"
        "wrong: int = attnviz.explain('a b')\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "typed.py"],
        cwd=away, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    check("typed.py:3" in found and "Found 1 error" in found, f"the types are not seen\n{found}")
    run_what_is_written(python, pip, away)


def run_what_is_written(python: Path, pip: list[str], away: Path) -> None:
    """Run the examples of README and documentation against the installed wheel."""
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, away / name, ignore=shutil.ignore_patterns(".cache", "__pycache__"))  # fmt: skip
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml"):
        shutil.copy(ROOT / name, away / name)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, "pytest", "jsonschema", "hypothesis"], check=True)
    told = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "blocks or example or figures_of",
        "tests/test_readme.py", "tests/docs/test_pages.py", cwd=away,
    )  # fmt: skip
    print(f"README and documentation, against the wheel: {told.splitlines()[-1]}")


def main() -> None:
    """Do it all; keep the files where a folder is given."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        wheel, sdist = built_twice(place)
        look_into(wheel, sdist)
        try_it(wheel, place)
        if len(sys.argv) > 1:
            target = Path(sys.argv[1])
            target.mkdir(parents=True, exist_ok=True)
            for path in (wheel, sdist):
                shutil.copyfile(path, target / path.name)
        print(f"the wheel works: {wheel.name}")


if __name__ == "__main__":
    main()
