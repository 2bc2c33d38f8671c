"""What the program writes is what its JSON Schema says."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources

import jsonschema
import pytest
from support import HOSTILE, SENTENCE, Result

SCHEMA = json.loads(
    (resources.files("attnviz") / "schemas/trace-1.json").read_text(encoding="utf-8")
)
CASES = {
    "plain": (SENTENCE,),
    "causal": (SENTENCE, "--causal", "--window", "2"),
    "heads": (SENTENCE, "--n-heads", "4", "--n-kv-heads", "2", "--head", "all"),
    "mean": (SENTENCE, "--n-heads", "4", "--head", "mean"),
    "no scale": (SENTENCE, "--scale", "none"),
    "one stage": (SENTENCE, "--stage", "weights"),
    "hostile": (" ".join(w for w in HOSTILE if w != "\udce9"),),
}  # fmt: skip


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", CASES)
def test_traces_are_valid(cli: Callable[..., Result], name: str) -> None:
    done = cli("explain", *CASES[name], "-w", "random", "--format", "json")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(done.out))


@pytest.mark.parametrize("name", ["links", "entropy", "neuron"])
def test_views_are_valid_and_hold_their_own_numbers(cli: Callable[..., Result], name: str) -> None:
    text = (resources.files("attnviz") / "schemas/view-1.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    for extra in ((), ("-w", "random", "--n-heads", "2", "--head", "1")):
        data = json.loads(cli("view", name, SENTENCE, *extra, "--format", "json").out)
        jsonschema.Draft202012Validator(schema).validate(data)
        own = {"links": "weight", "entropy": "bits", "neuron": "q_times_k"}[name]
        assert all(own in record for record in data["records"])
    lines = cli("view", name, SENTENCE, "--format", "csv").out.splitlines()
    assert own in lines[0].split(",")
    assert "source_sha256" in lines[0]


def test_the_schema_can_refuse(cli: Callable[..., Result]) -> None:
    data = json.loads(cli("explain", "a b", "-w", "random", "-f", "json").out)
    data["stages"]["weights"] = data["stages"]["weights"][0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
