"""The shape of the house: who may import whom, what start-up may load, what names are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "attnviz"
MAY_IMPORT = {
    "errors": set(),
    "rounding": set(),
    "records": {"errors", "registry"},
    "masks": {"records", "errors"},
    "registry": {"errors"},
    "memory": {"errors"},
    "npz": set(),
    "core": {"rounding", "records", "masks", "errors", "registry", "memory"},
    "sources": {"npz", "rounding", "records", "masks", "errors", "registry", "memory"},
    "runs": {
        "npz",
        "rounding",
        "core",
        "masks",
        "sources",
        "records",
        "errors",
        "registry",
        "memory",
        "root",
    },
    "render": {"npz", "rounding", "core", "masks", "records", "errors", "registry", "root"},
    "api": {"runs", "render", "core", "records", "errors", "registry", "root"},
    "cli": {
        "rounding",
        "runs",
        "render",
        "api",
        "records",
        "errors",
        "registry",
        "memory",
        "root",
        "sources",
    },
    "root": {"api", "records", "errors", "cli"},
}
HEAVY = ("torch", "transformers", "matplotlib", "pandas", "pyarrow", "ray")


def layer_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return "root" if part in ("__init__.py", "__main__.py") else part.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Layers of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = (
                [f"attnviz.{name.name}" for name in node.names]
                if node.module == "attnviz"
                else [node.module]
            )
        for module in modules:
            if module.startswith("attnviz."):
                layer = module.split(".")[1]
                known = (PACKAGE / layer).is_dir() or (PACKAGE / f"{layer}.py").exists()
                found.add(layer if known else "root")
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert imports_of(path) - {layer} <= MAY_IMPORT[layer]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 700


def loaded_after(code: str) -> set[str]:
    """Return which heavy libraries a fresh interpreter has loaded after running code."""
    probe = f"{code}\nimport sys\nprint(','.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(filter(None, done.stdout.splitlines()[-1].split(",")))


COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a command": ["explain", "--help"],
    "usage error": ["explain", "--hed", "3"],
    "no text": ["explain"],
    "random": ["explain", "A cute teddy bear is reading", "--weights", "random"],
    "zoom": ["explain", "A cute teddy bear is reading", "-w", "random", "--token", "teddy"],
    "json": ["explain", "A cute teddy bear is reading", "-w", "random", "-f", "json"],
    "default": ["explain", "A cute teddy bear is reading"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_start_up_loads_nothing_heavy(name: str) -> None:
    code = f"from attnviz.cli.main import run_guarded\nrun_guarded({COMMANDS[name]!r})"
    assert loaded_after(code) == set()


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import os\nos.environ.update(_ATTNVIZ_COMPLETE='complete_bash', "
        "COMP_WORDS='attnviz explain --to', COMP_CWORD='2')\n"
        "from attnviz.cli.main import run_guarded\nrun_guarded([])"
    )
    assert loaded_after(code) == set()


def test_the_start_up_test_can_fail() -> None:
    code = (
        "from attnviz.cli.main import run_guarded\n"
        "run_guarded(['explain', 'a b', '-w', 'random', '--dtype', 'float32'])"
    )
    assert "torch" in loaded_after(code)


def test_importing_the_package_is_cheap() -> None:
    probe = "import attnviz, sys; print('numpy' in sys.modules or 'typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names_resolve() -> None:
    import attnviz

    for name in attnviz.__all__:
        assert getattr(attnviz, name) is not None
    with pytest.raises(AttributeError):
        attnviz.nothing_of_that_name  # noqa: B018


def test_nothing_is_unpickled() -> None:
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        for word in (
            "weights_only=False",
            "pickle.load",
            "allow_pickle=True",
            "trust_remote_code=True",
        ):
            assert word not in source, f"{word} in {path.name}"


def test_where_attention_comes_from_has_the_same_options_everywhere() -> None:
    """The command line's, the library's and those of ``open_place``, which has the defaults."""
    from dataclasses import fields
    from inspect import signature

    from attnviz.cli.command import AnyPlace
    from attnviz.runs.run import Origin, open_place

    taken = signature(open_place).parameters
    named = {*Origin.__annotations__, "layer"}
    changes = {"causal", "window", "scale"}
    assert named == set(taken) - {"n_tokens"}
    options = {field.name: field.default for field in fields(AnyPlace)}
    assert set(options) == named - {"notify", "layers_done"} - changes
    assert options == {name: taken[name].default for name in options}


OF_THE_SYSTEM = ("/proc/", "/sys/", "Path(limit)", "Path(used)")
"""Files of the kernel hold ASCII, whatever the locale is."""


def implicit_encodings(source: str) -> list[int]:
    """Return the lines that open text in whatever encoding the locale has."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        given = {keyword.arg for keyword in node.keywords}
        constants = [a.value for a in node.args if isinstance(a, ast.Constant)]
        if name in ("read_text", "write_text") and "." in called:
            is_text = len(constants) < (1 if name == "read_text" else 2)
        elif called in ("open", "io.open", "os.fdopen"):
            is_text = not any(isinstance(c, str) and "b" in c for c in constants[-1:])
        elif name in ("run", "Popen", "check_output"):
            is_text = bool(given & {"text", "universal_newlines"})
        else:
            is_text = name == "TextIOWrapper"
        of_system = any(place in ast.unparse(node) for place in OF_THE_SYSTEM)
        if is_text and not of_system and "encoding" not in given:
            found.append(node.lineno)
    return found


def test_no_text_is_opened_in_the_locale_s_encoding() -> None:
    found = {path.name: implicit_encodings(path.read_text(encoding="utf-8")) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}
    made = "open(a)\nopen(a, 'rb')\nPath(a).read_text()\nopen(a, 'w')\nrun(a, text=True)\n"
    assert implicit_encodings(made) == [1, 3, 4, 5]
