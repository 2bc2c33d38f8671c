"""What a batch leaves in its folder is what the JSON Schemas and the table of columns say."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import HOSTILE, Result


def schema(name: str) -> Any:
    text = (resources.files("attnviz") / f"schemas/{name}.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_a_batch_is_valid(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [word.encode(errors="surrogatepass").replace(b"\n", b" ") for word in HOSTILE]
    Path("texts.txt").write_bytes(b"\n".join(lines))
    done = cli("batch", "texts.txt", "-o", "out", "-w", "random", "-f", "jsonl", "--engine",
               "serial", "--shard-size", "5", "--keep", "q,weights", "--where", "chars < 20")  # fmt: skip
    assert done.code == 1
    for name, paths in (
        ("batch-1", [Path("out/manifest.json")]), ("shard-1", sorted(Path("out/shards").iterdir())),
    ):  # fmt: skip
        jsonschema.Draft202012Validator.check_schema(schema(name))
        for path in paths:
            jsonschema.Draft202012Validator(schema(name)).validate(json.loads(path.read_bytes()))
    error = schema("shard-1")["properties"]["errors"]["items"]
    for line in Path("out/errors.jsonl").read_bytes().splitlines():
        jsonschema.Draft202012Validator(error).validate(json.loads(line))
    types = {"int64": int, "int32": int, "float32": float, "string": str}
    columns = json.loads(Path("out/manifest.json").read_bytes())["columns"]
    for table in ("heads", "texts"):
        for path in sorted(Path("out", table).iterdir()):
            for line in path.read_bytes().splitlines():
                row = json.loads(line, parse_constant=pytest.fail)
                assert list(row) == list(columns[table])
                for name, value in row.items():
                    kind = columns[table][name].partition(":")[0]
                    values = value if kind.startswith("list<") else [value]
                    wanted = types[kind.removeprefix("list<").removesuffix(">")]
                    is_nullable = "null for" in columns[table][name]
                    assert all(isinstance(v, wanted) or (v is None and is_nullable) for v in values)
