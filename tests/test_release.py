"""What a release says of itself: versions, bounds, the changelog, the targets of make."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import attnviz

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
# What transformers asks for goes beyond what attnviz does.
RAISED = {"tokenizers", "safetensors"}


def pins(name: str) -> dict[str, Version]:
    """Return the versions that a file of constraints pins."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {package: Version(version) for package, version in pairs}


def floors(*groups: list[str]) -> dict[str, Version]:
    """Return the lowest version that each requirement allows."""
    found = {}
    for text in (text for group in groups for text in group):
        one = Requirement(text)
        (bound,) = one.specifier
        assert bound.operator == ">=", text
        found[one.name] = Version(bound.version)
    return found


@pytest.mark.parametrize(("file", "extras"), [("base", ("parquet", "docs")), ("models", ("models", "parquet"))])  # fmt: skip
def test_the_lowest_versions_are_those_of_pyproject(file: str, extras: tuple[str, ...]) -> None:
    found, wanted = pins(f"tests/lowest/{file}.txt"), floors(PROJECT["dependencies"])
    wanted |= floors(*(EXTRAS[extra] for extra in extras))
    assert set(found) == set(wanted)
    for name, version in found.items():
        if name == "torch" or (file == "models" and name in RAISED):
            assert version >= wanted[name]
        else:
            assert version == wanted[name], name


def test_the_pins_are_allowed() -> None:
    found = pins("constraints.txt")
    wanted = floors(PROJECT["dependencies"], *(EXTRAS[e] for e in ("models", "parquet", "docs")))
    assert set(wanted) <= set(found)
    for name, version in wanted.items():
        assert found[name] >= version, name
    assert {"hatchling", "hatch-fancy-pypi-readme"} <= set(found)  # the wheel's bytes hang on them


def test_the_changelog_has_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, re.M)
    assert heads[0] == "[Unreleased]"
    released = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]
    ]
    assert all(released)
    versions = [Version(found[1]) for found in released if found]
    assert versions == sorted(versions, reverse=True)
    assert not versions or versions[0] <= Version(attnviz.__version__)
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= SECTIONS
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", attnviz.__version__)


def test_every_target_of_make_is_told_of() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony is not None
    told = set(re.findall(r"^([a-z-]+):.*## ", text, re.M))
    assert told == set(phony[1].split())
    shown = re.search(r"grep -hE '(.*?)'", text)
    assert shown is not None
    assert all(
        re.match(shown[1], line) for line in text.splitlines() if re.match(r"[a-z-]+:.*##", line)
    )
