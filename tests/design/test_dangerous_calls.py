"""Nothing that a stranger's file holds can become code: the calls that could do it do not occur.

ruff's S rules look for the same by name; this reads the syntax tree, so an alias or a missing
argument is seen too, and each rule is shown to fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnviz.sources.confined import parent

PACKAGE = Path(__file__).parents[2] / "attnviz"
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "execfile", "os.system", "os.popen", "pty.spawn",
    "runpy.run_path", "runpy.run_module", "subprocess.getoutput", "subprocess.getstatusoutput",
    "yaml.load", "torch.jit.load", "torch.export.load", "torch.hub.load", "numpy.fromregex",
    "accelerate.load_checkpoint_in_model", "accelerate.load_checkpoint_and_dispatch",
    "tempfile.mktemp", "xml.etree.ElementTree.parse", "xml.etree.ElementTree.fromstring",
}  # fmt: skip
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib",
           "requests", "httpx", "urllib.request", "http.client", "ftplib", "telnetlib"}  # fmt: skip
ALLOWED = {"sources/confined/child.py": ["calls runpy.run_path"]}
"""The task of a child process: see the test of tasks below."""
# A call and what must be said in it.
MUST_SAY = {
    "torch.load": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
    "numpy.lib.format.read_array": ("allow_pickle", False),
}
MUST_NOT_SAY = {
    "shell": True,
    "allow_pickle": True,
    "weights_only": False,
    "trust_remote_code": True,
}


def faults(source: str) -> Iterator[str]:
    """Yield what is wrong in a file, in words."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    options = {
        ast.unparse(node.targets[0]): {
            key.value: getattr(value, "value", "?")
            for key, value in zip(node.value.keys, node.value.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
                if one.name in MODULES or one.name.partition(".")[0] in MODULES:
                    yield f"imports {one.name}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
                if {node.module, f"{node.module}.{one.name}"} & MODULES:
                    yield f"imports {node.module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        head, *rest = ast.unparse(node.func).split(".")
        called = ".".join([names.get(head, head), *rest])
        said = {k.arg: getattr(k.value, "value", "?") for k in node.keywords if k.arg}
        for spread in (ast.unparse(k.value) for k in node.keywords if k.arg is None):
            said |= options.get(spread, {})
        if called in FORBIDDEN:
            yield f"calls {called}"
        for argument, value in said.items():
            if argument in MUST_NOT_SAY and value == MUST_NOT_SAY[argument]:
                yield f"calls {called} with {argument}={value}"
        if called in MUST_SAY:
            argument, value = MUST_SAY[called]
            if said.get(argument, "missing") != value:
                yield f"calls {called} without {argument}={value}"
        if rest and rest[-1] == "from_pretrained":
            for argument, value in (("local_files_only", True), ("trust_remote_code", False)):
                if said.get(argument, "missing") != value:
                    yield f"calls {called} without {argument}={value}"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_data_becomes_code(path: Path) -> None:
    found = list(faults(path.read_text(encoding="utf-8")))
    assert found == ALLOWED.get(path.relative_to(PACKAGE).as_posix(), [])


def test_tasks_of_child_processes_are_files_of_ours() -> None:
    """What ``confined.child`` runs by its path is one of the files that ``confined.parent`` names."""
    named = [
        (place, ast.unparse(node.args[0]))
        for place in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(place.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("run_confined")
    ]
    assert len(named) == 2
    for _, task in named:
        assert re.fullmatch(r"[A-Z]+_TASK", task), task
        path = getattr(parent, task)
        assert path.is_file()
        assert path.parent == PACKAGE / "sources" / "confined"


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')", "exec(x)", "import os\nos.system('x')", "from os import system as s\ns('x')",
        "import pickle", "from pickle import loads", "import subprocess as p\np.run('x', shell=True)",
        "import torch\ntorch.load('x')", "import torch\ntorch.load('x', weights_only=False)",
        "import numpy as np\nnp.load('x')", "import numpy as np\nnp.load('x', allow_pickle=True)",
        "from torch import load\nload('x')", "import urllib.request", "from urllib import request",
        "m.AutoModel.from_pretrained('x')", "__import__('x')",
        "m.AutoModel.from_pretrained('x', local_files_only=True, trust_remote_code=True)",
        "how = {'trust_remote_code': False}\nm.AutoModel.from_pretrained('x', **how)",
    ],
)  # fmt: skip
def test_each_would_be_seen(source: str) -> None:
    assert list(faults(source))
