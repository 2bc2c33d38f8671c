"""The bundled sample has learned, for honest reasons, and is read within its budget."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from support import SENTENCE

from attnviz.runs.explain import explain
from attnviz.sources.layers.weights import load_layer, resolve, sample_folder
from attnviz.sources.text.tokenize import open_tokenizer

HELD_OUT = Path(__file__).parents[2] / "sample_weights/heldout.jsonl"
CASES = [json.loads(line) for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]


def partner_share(cases: list[dict], weigh: str = "sample") -> float:
    """Share of held-out compounds whose first word looks most, among the others, at its partner."""
    layer = load_layer(resolve("sample")).layer
    tokenizer = open_tokenizer(sample_folder() / "tokenizer.json")
    rng = np.random.default_rng(0)
    found = 0
    for case in cases:
        ids = list(tokenizer.tokenize(case["text"]).ids)
        x = np.asarray(layer.embedding[ids], np.float64)
        row = (x @ layer.w_q.astype(np.float64))[case["first"]] @ (
            x @ layer.w_k.astype(np.float64)
        ).T
        if weigh == "shuffled":
            row = row[rng.permutation(len(ids))]
        row[case["first"]] = -np.inf
        found += int(row.argmax()) == case["second"]
    return found / len(cases)


def test_teddy_looks_at_bear() -> None:
    trace = explain(SENTENCE)
    assert trace.tokens.labels == tuple(SENTENCE.split())
    row = trace.stages["weights"][0, 0, 2]
    assert row.argmax() == 3
    assert row[3] >= 0.5


def test_some_head_of_the_sibling_does_too() -> None:
    weights = explain(SENTENCE, weights="sample-8", head="all").stages["weights"]
    assert weights.shape == (1, 8, 6, 6)
    assert (weights[0, :, 2, 3] > 0.5).any()


def test_it_generalises_to_held_out_sentences() -> None:
    """The sentences were never in training; their two words stood side by side in other text."""
    cases = [case for case in CASES if case["seen"]]
    assert len(cases) >= 200
    assert partner_share(cases) >= 0.70
    assert partner_share(cases, "shuffled") <= 0.15


def test_it_does_better_than_chance_on_words_never_seen_together() -> None:
    cases = [case for case in CASES if not case["seen"]]
    assert len(cases) >= 200
    assert partner_share(cases) >= 1.5 * partner_share(cases, "shuffled")


def test_any_text_is_cut_without_unknown_tokens() -> None:
    tokenizer = open_tokenizer(sample_folder() / "tokenizer.json")
    rng = random.Random(0)
    letters = [chr(c) for c in range(32, 0x3000) if chr(c).isprintable()] + list("🧸猫💩")
    for _ in range(200):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 30)))
        tokens = tokenizer.tokenize(text)
        assert "[UNK]" not in tokens.pieces
        for label, span in zip(tokens.labels, tokens.spans, strict=True):
            assert span is not None
            assert 0 <= span[0] <= span[1] <= len(text)
            assert label


def test_words_keep_their_place() -> None:
    tokens = explain("The Swimming pool was closed.").tokens
    assert tokens.labels == ("The", "Swimming", "pool", "was", "closed", ".")
    assert tokens.spans == ((0, 3), (4, 12), (13, 17), (18, 21), (22, 28), (28, 29))


def test_only_the_rows_of_the_text_are_read() -> None:
    layer = load_layer(resolve("sample")).layer
    assert type(layer.embedding).__name__ == "Rows"
    assert layer.embedding[[1, 2]].shape == (2, 512)


def test_the_shipped_files_stay_small() -> None:
    names = ("sample.safetensors", "sample-8.safetensors", "tokenizer.json")
    assert sum((sample_folder() / name).stat().st_size for name in names) <= 12 << 20


def test_the_sentence_is_singled_out_nowhere() -> None:
    folder = Path(__file__).parents[2] / "sample_weights"
    for name in ("corpus.py", "train.py"):
        assert "teddy" not in (folder / name).read_text(encoding="utf-8")
    assert not any("teddy" in case["text"].split() for case in CASES)


@pytest.mark.parametrize("weights", ["sample", "sample-8"])
def test_the_sample_is_described(weights: str) -> None:
    source = explain("a b", weights=weights).source
    assert (source.d_model, source.d_k) == (512, 64)
    assert source.origin.startswith("the sample pairs related words")
    assert len(source.tokenizer_sha256) == 64
    assert sys.version_info >= (3, 11)
