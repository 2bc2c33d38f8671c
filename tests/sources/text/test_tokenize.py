"""Text and tokens: nothing is lost without a word, every span is exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from attnviz.errors import InputError
from attnviz.sources.text.tokenize import WordList, WordSplitter, open_tokenizer


def wordpiece(folder: Path, words: str) -> Path:
    """Write an uncased WordPiece tokenizer like BERT's, with padding and truncation left on."""
    vocab = {w: i for i, w in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", *words.split()])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_padding(length=128, pad_id=3, pad_token="[PAD]")
    tokenizer.enable_truncation(128)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


SENTENCE = "great breakfasts in a nice furnished cafè, slightly bohemian."
PIECES = "great breakfast ##s in a nice furnished cafe , slightly bo ##hem ##ian ."


def test_T5_accents_case_and_unknown_words_keep_their_source(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(wordpiece(tmp_path, PIECES))
    tokens = tokenizer.tokenize(SENTENCE)
    assert tokens.pieces == ("[CLS]", *PIECES.split(), "[SEP]")
    place = tokens.pieces.index("cafe")
    span = tokens.spans[place]
    assert span is not None
    assert SENTENCE[span[0] : span[1]] == "cafè"
    assert tokens.labels[place] == "cafè"
    assert tokens.special == (True, *[False] * 14, True)
    assert (tokens.spans[0], tokens.spans[-1]) == (None, None)


def test_T5_unknown_and_vanished_characters_are_said(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(wordpiece(tmp_path, "ewww in viaggio —"))
    unknown = tokenizer.tokenize("💩💩")
    assert unknown.pieces[1] == "[UNK]"
    assert unknown.labels[1] == "💩💩"
    assert any("💩" in notice for notice in unknown.notices)
    vanished = tokenizer.tokenize("ewww \U000fe4fa — in viaggio")
    assert "".join(vanished.pieces[1:-1]) == "ewww—inviaggio"
    assert vanished.notices


def test_padding_and_truncation_of_a_file_are_switched_off(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(wordpiece(tmp_path, "a"))
    assert len(tokenizer.tokenize("a a a")) == 5
    assert len(tokenizer.tokenize("a " * 300)) == 302


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "BPE"}}']
)
def test_files_that_are_no_tokenizer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_tokenizer(path)


def test_words_and_punctuation() -> None:
    tokens = WordSplitter().tokenize("Don't stop, Bear!")
    assert tokens.labels == ("Don", "'", "t", "stop", ",", "Bear", "!")
    assert [tokens.text[a:b] for a, b in tokens.spans] == list(tokens.labels)  # type: ignore[misc]
    assert tokens.ids[5] == WordSplitter().tokenize("bear").ids[0]


def test_half_surrogates_are_replaced_and_said() -> None:
    tokens = WordSplitter().tokenize("caf\udce9")
    assert tokens.text == "caf\ufffd"
    assert tokens.notices == ("1 half surrogate replaced by U+FFFD",)


def test_a_word_list_looks_exactly_first() -> None:
    words = WordList(["Bear", "bear", "ice-cream", "[UNK]"])
    assert words.tokenize("Bear BEAR ice-cream x").ids == (0, 1, 2, 3)
    with pytest.raises(InputError, match="'x'"):
        WordList(["bear"]).tokenize("x")
