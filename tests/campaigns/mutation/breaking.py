"""Import one module of the package with a break in it; no file is written.

What lives here: the import hook, for this process and for those it starts. What does not: which
break, and what it should do to the tests.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from operators import broken, mutants_of

ROOT = Path(__file__).resolve().parents[3]
HOOK = Path(__file__).resolve().parent / "hook"


def module_of(file: str) -> str:
    """Return the module's name: ``attnviz/masks.py`` is ``attnviz.masks``."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a file of the package with one break."""

    def __init__(self, file: str, key: str) -> None:
        super().__init__(module_of(file), str(ROOT / file))
        self._key = key

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        mutant = next(mutant for mutant in mutants_of(source) if mutant.key == self._key)
        return compile(broken(source, mutant), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, file: str, key: str) -> None:
        self._file, self._key = file, key

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if fullname != module_of(self._file):
            return None
        return importlib.util.spec_from_file_location(
            fullname, ROOT / self._file, loader=_Loader(self._file, self._key)
        )


def install(file: str, key: str) -> None:
    """From now on the file is imported broken, here and in interpreters started from here."""
    sys.meta_path.insert(0, _Finder(file, key))
    os.environ["ATTNVIZ_MUTANT"] = json.dumps([file, key])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    )


def install_from_environment() -> None:
    """Do the same in an interpreter that was started by such a process."""
    file, key = json.loads(os.environ["ATTNVIZ_MUTANT"])
    sys.meta_path.insert(0, _Finder(file, key))
