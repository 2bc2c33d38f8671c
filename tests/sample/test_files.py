"""The shipped sample, read with numpy alone: no line of the package takes part."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save
from tokenizers import Tokenizer

FOLDER = Path(__file__).parents[2] / "sample_weights"


def load_script(name: str) -> ModuleType:
    """Import a script of the sample's folder under a name that shadows nothing."""
    spec = importlib.util.spec_from_file_location(f"sample_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


evaluate = load_script("evaluate")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_teddy_looks_at_bear(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("A cute teddy bear is reading")
    assert encoding.tokens == ["a", "cute", "teddy", "bear", "is", "reading"]
    row = evaluate.weigh_by(evaluate.load_layer(FOLDER / "sample.safetensors"))(encoding.ids)[2]
    assert row.argmax() == 3
    assert row[3] >= 0.5
    assert row.sum() == pytest.approx(1)


def test_compounds_are_found_and_shuffled_keys_lose_them(tokenizer: Tokenizer) -> None:
    cases = evaluate.load_cases()
    seen = [case for case in cases if case.seen]
    layer = evaluate.load_layer(FOLDER / "sample.safetensors")
    assert len(seen) >= 200
    assert evaluate.partner_share(seen, tokenizer, evaluate.weigh_by(layer)) >= 0.70
    for baseline in (evaluate.weigh_shuffled(layer), evaluate.weigh_uniform()):
        assert evaluate.partner_share(seen, tokenizer, baseline) <= 0.20


def test_spans_give_the_source_text(tokenizer: Tokenizer) -> None:
    text = "Didn't the SWIMMING-pool cost 12,345 €? 熊 🧸"
    encoding = tokenizer.encode(text)
    for token, (start, end) in zip(encoding.tokens, encoding.offsets):
        if not token.startswith("<0x"):
            assert text[start:end].lower() == token


def test_no_text_is_unknown_or_lost(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(300):
        drawn = (rng.randrange(0x110000) for _ in range(rng.randint(1, 20)))
        text = "".join(chr(c) for c in drawn if not 0xD800 <= c < 0xE000)
        encoding = tokenizer.encode(text)
        covered = {i for start, end in encoding.offsets for i in range(start, end)}
        assert {i for i, c in enumerate(text) if not c.isspace()} <= covered
    assert "[UNK]" not in tokenizer.get_vocab()
    assert tokenizer.padding is None
    assert tokenizer.truncation is None


def test_single_rows_can_be_read() -> None:
    with safe_open(FOLDER / "sample.safetensors", framework="numpy") as file:
        rows = file.get_slice("embedding")[5:7]
        assert rows.shape == (2, 512)
        np.testing.assert_array_equal(rows, file.get_tensor("embedding")[5:7])


def test_header_order_does_not_depend_on_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    sort_header = load_script("train").sort_header
    metadata = {name: name * 3 for name in "qwertyuiop"}
    content = save({"a": np.arange(6.0), "b": np.ones(3)}, metadata=metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(metadata.items(), reverse=True))
    text = json.dumps(header).encode()
    other = len(text).to_bytes(8, "little") + text + content[end:]
    assert other != content
    assert sort_header(other) == sort_header(content)
    np.testing.assert_array_equal(load(sort_header(other))["a"], np.arange(6.0))
