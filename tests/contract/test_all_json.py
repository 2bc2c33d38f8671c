"""Every command that writes JSON follows a schema, and every field of every schema is described."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import SENTENCE, Result
from typer.main import get_command

from attnviz.cli.app import app

SCHEMAS = {
    path.name.removesuffix(".json"): json.loads(path.read_text(encoding="utf-8"))
    for path in (resources.files("attnviz") / "schemas").iterdir()
    if path.name.endswith(".json")
}
TWO = ("the bear ate honey", "I cannot bear the noise")
# Command → arguments and the schema of what it writes. {model} is a tiny one.
WRITES: dict[str, tuple[tuple[str, ...], str]] = {
    "explain": ((SENTENCE, "-f", "json"), "trace-1"),
    "explain of a model": ((SENTENCE, "-m", "{model}", "-f", "json"), "trace-1"),
    "heatmap": ((SENTENCE, "-o", "out.json"), "trace-1"),
    "view links": ((SENTENCE, "-f", "json"), "view-1"),
    "view entropy": ((SENTENCE, "-f", "json"), "view-1"),
    "view neuron": ((SENTENCE, "-f", "json"), "view-1"),
    "view grid": ((SENTENCE, "-w", "sample-8", "-f", "json"), "trace-1"),
    "view rollout": ((SENTENCE, "-m", "{model}", "-f", "json"), "view-1"),
    "show": (("maps.npz", "-f", "json"), "trace-1"),
    "compare": ((*TWO, "--token", "bear", "-f", "json"), "compare-1"),
    "generate": (("A cute teddy bear", "-m", "{model}", "-n", "3", "-f", "json"), "view-1"),
    "heads": ((*TWO, "-f", "json"), "heads-1"),
    "heads of a model": ((*TWO, "-m", "{model}", "-f", "json"), "heads-1"),
    "summary": ((SENTENCE, "-f", "json"), "summary-1"),
    "summary of a model": ((SENTENCE, "-m", "{model}", "-f", "json"), "summary-1"),
    "batch": (("texts.txt", "-o", "out", "--engine", "serial", "--report", "out.json"), "batch-report-1"),
    "weights show": (("sample", "-f", "json"), "weights-1"),
    "weights show of no layer": (("stranger.npz", "-f", "json"), "weights-1"),
    "model show": (("{model}", "-f", "json"), "model-1"),
    "config show": (("explain", "-f", "json"), "config-1"),
    "doctor": (("-f", "json"), "doctor-1"),
}  # fmt: skip
WRITE_NONE = {"page", "weights new", "weights convert"}
ELSEWHERE = {"cost"}  # tests/cli/test_cost.py, which measures


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path)
        return
    for name, child in below.items():
        yield from leaves(child, (*path, name))


def test_no_command_is_forgotten() -> None:
    here = {name.partition(" of ")[0] for name in WRITES}
    here = {"view" if name.startswith("view ") else name for name in here}
    assert here | WRITE_NONE | ELSEWHERE == set(leaves(get_command(app)))
    views = {
        path.stem for path in Path(import_module("attnviz.render.views").__path__[0]).iterdir()
    }
    for name in (n.removeprefix("view ") for n in WRITES if n.startswith("view ")):
        assert name in views
    parts = {"batch-1", "shard-1"}  # test_batch_schema.py
    assert {schema for _, schema in WRITES.values()} | parts | {"cost-1"} == set(SCHEMAS)


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_follows_its_schema(
    name: str, cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy

    arguments, schema = WRITES[name]
    monkeypatch.chdir(tmp_path)
    if "{model}" in arguments:
        pytest.importorskip("transformers", reason="needs the extra 'models'")
        from tiny_models import write_model

        write_model(tmp_path / "tiny")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    numpy.savez("stranger.npz", nothing=numpy.zeros(2))
    numpy.savez("maps.npz", weights=numpy.full((2, 3, 3), 1 / 3))
    Path("texts.txt").write_text("A cute teddy bear\nis reading\n")
    words = [word.format(model="tiny") for word in arguments]
    done = cli(*name.partition(" of ")[0].split(), *words, "-q")
    assert done.code == 0, done.err
    told = Path("out.json").read_text() if Path("out.json").exists() else done.out
    data = json.loads(told, parse_constant=pytest.fail)
    assert data["schema"] == SCHEMAS[schema]["$id"]
    jsonschema.Draft202012Validator(SCHEMAS[schema]).validate(data)
    assert str(tmp_path) not in told


COLUMNS = re.compile(r"^\| `([a-z]+[^`]*)` \| (`layer`.*|`pattern`.*) \|$", re.M)


def test_the_columns_of_records_are_documented(cli: Callable[..., Result]) -> None:
    text = (Path(__file__).parents[2] / "docs/reference/json.md").read_text(encoding="utf-8")
    told = re.search(r"where it comes from: (.*)\.$", text, re.M)
    assert told is not None
    origin = re.findall(r"`(\w+)`", told[1])
    rows = COLUMNS.findall(text)
    assert len(rows) == 10
    for command, columns in rows:
        given = TWO if command == "compare" else (SENTENCE,)
        out = cli(*command.split(), *given, "-q", "-f", "csv").out
        assert out.splitlines()[0].split(",") == re.findall(r"`(\w+)`", columns) + origin, command


def fields(whole: Any, part: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every named field of a schema with its path, through references, items and choices."""
    if "$ref" in part:
        found = whole
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = {**found, **part}
    for name, field in part.get("properties", {}).items():
        yield f"{above}{name}", field
        yield from fields(whole, field, f"{above}{name}.")
    for below in (part.get("items"), part.get("additionalProperties")):
        if isinstance(below, dict):
            yield from fields(whole, below, f"{above}[].")
    for choice in (*part.get("oneOf", ()), *part.get("anyOf", ())):
        yield from fields(whole, choice, above)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_is_described(name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"attnviz.{name.replace('-1', '/1')}"
    found = list(fields(schema, schema))
    assert len(found) > 4
    silent = [path for path, field in found if len(field.get("description", "")) < 8]
    assert not silent
