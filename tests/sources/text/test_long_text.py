"""A long text: tokenized and projected in stretches, with the same result as in one go."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from attnviz.core import reference
from attnviz.errors import InputError
from attnviz.records import LayerHeads
from attnviz.runs.run import open_source
from attnviz.sources.layers import layer as layers
from attnviz.sources.text import long_text
from attnviz.sources.text.labels import tokens_of

TEXT = "the old man and the sea " * 40


def heads_of(source: Any, text: str) -> LayerHeads:
    found: list[LayerHeads] = []
    source.run(source.tokenize(text), (0,), found.append)
    return found[0]


@pytest.mark.parametrize("core", ["numpy", "torch"])
def test_stretches_give_the_same_q_k_v(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    from attnviz.core import attend

    project: Any = reference.project if core == "numpy" else attend.project
    source: Any = open_source(weights="sample", project=project)
    positions = np.random.default_rng(0).standard_normal((400, source.layer.d_model))
    source = dataclasses.replace(
        source, layer=dataclasses.replace(source.layer, positions=positions)
    )
    whole = heads_of(source, TEXT)
    monkeypatch.setattr(layers, "STRETCH", 37)
    parts = heads_of(source, TEXT)
    assert whole.x is not None
    assert parts.x is None
    for name in ("q", "k", "v"):
        ours, expected = (np.asarray(getattr(one, name)) for one in (parts, whole))
        assert ours.dtype == expected.dtype
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="480 tokens, but the layer has positions for 400"):
        heads_of(source, TEXT * 2)


MIXED = (
    "The old man's bear said: 'naïve café' — 1,234.5 times!\n\nA line.\nAnother,  with two blanks"
    "\tand 猫🧸 in it\x07;\r\nreading on and on; unzweifelhaft\n"
)


def byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([MIXED], trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return made


def metaspace() -> Any:
    from tokenizers import Tokenizer, models, normalizers, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator([MIXED], trainer)
    return made


def bundled() -> Any:
    source: Any = open_source(weights="sample")
    return source.vocabulary.tokenizer


@pytest.mark.parametrize(
    ("make", "is_cut"), [(bundled, True), (byte_level, True), (metaspace, False)]
)
def test_stretches_give_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, make: Any, is_cut: bool
) -> None:
    monkeypatch.setattr(long_text, "STRETCH", 1500)
    tokenizer, text = make(), MIXED * 60
    whole = tokens_of(tokenizer, text)
    found = long_text.tokens_of_any_length(tokenizer, text)
    assert isinstance(found.spans, long_text.Places) is is_cut
    for field in dataclasses.fields(whole):
        ours, expected = getattr(found, field.name), getattr(whole, field.name)
        if field.name == "notices":
            assert bool(ours) == bool(expected)
        elif field.name == "spans":
            assert list(ours) == [ours[at] for at in range(len(ours))] == list(expected)
            assert list(ours[5:9]) == list(expected[5:9])
        else:
            assert ours == expected, field.name
    places = [int(word.split(" at ")[1].rstrip(",")) for word in _unused(found.notices)]
    assert all(text[at] == "\x07" for at in places)


def _unused(notices: tuple[str, ...]) -> list[str]:
    return [
        part
        for notice in notices
        if notice.startswith("characters without")
        for part in notice.partition(": ")[2].partition(" and ")[0].split(", ")
    ]


def test_a_seam_that_changes_tokens_is_not_taken() -> None:
    from tokenizers import Tokenizer, models

    made = Tokenizer(
        models.BPE({"a": 0, "\n": 1, "a\na": 2, "a\n": 3}, [("a", "\n"), ("a\n", "a")])
    )
    assert not long_text._is_seam(made, "a\na", 2)
    assert long_text._is_seam(bundled(), "some words\nmore words", 11)
