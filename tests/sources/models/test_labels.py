"""Labels: every family of tokenizers reads as its source (cases T1, T3, T5), with exact spans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from attnviz.sources.text.labels import Family, label_tokens, read_family, tokens_of

CORPUS = [
    "A cute teddy bear is reading a book about bears",
    "the naive reader reads many books",
    "unbelievable stories about teddy bears",
] * 20
TEXT = "A cute  teddy bear\nis reading naïve ÉCOLE 🧸👩‍👧 日本語 unbelievably\ttab"


def byte_level(*, trim: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    import json

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special[:3], show_progress=False)
    tokenizer.train_from_iterator([line.replace(" ", "▁") for line in CORPUS], trainer)
    state = tokenizer.get_vocab()
    vocab = {**state, **{name: len(state) + n for n, name in enumerate(special[3:])}}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    rebuilt = models.BPE(
        vocab, [tuple(m) for m in merges], byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    tokenizer.model = rebuilt
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.normalizer = normalizers.NFKC()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "[CLS]", "[SEP]", "a", "cute", "teddy", "bear", "cafe", "un", "##kind", "##s"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


FAMILIES = {
    "byte-level": byte_level,
    "byte-level, trimmed": lambda: byte_level(trim=True),
    "byte fallback": byte_fallback,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_T1_a_label_is_never_empty_and_never_shows_the_tokenizers_marks(name):
    tokens = tokens_of(FAMILIES[name](), TEXT)
    assert all(tokens.labels)
    assert len(tokens.labels) == len(tokens.ids) == len(tokens.spans) == len(tokens.special)
    for mark in ("Ġ", "Ċ", "▁", "##", "Ã", "<0x"):
        assert not any(mark in label for label in tokens.labels), tokens.labels


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_the_tokenizers_own(name):
    tokenizer = FAMILIES[name]()
    assert list(tokens_of(tokenizer, TEXT).ids) == tokenizer.encode(TEXT).ids


@pytest.mark.parametrize("name", ["byte-level", "byte-level, trimmed", "byte fallback"])
def test_T1_labels_put_together_are_the_text(name):
    text = "Seán got it\nbear"
    tokens = tokens_of(FAMILIES[name](), text)
    words = [
        text[slice(*span)] if "[" in label else label.replace("␣", " ")
        for label, span, special in zip(tokens.labels, tokens.spans, tokens.special)
        if not special and not label.startswith("á[2")
    ]
    assert "".join(words).strip() == text


def test_a_leading_space_and_a_newline_stay_visible():
    tokens = tokens_of(byte_level(), "A cute\nbear")
    assert tokens.labels[:2] == ("A", "␣cute")
    assert "\n" in tokens.labels  # a format draws it; here it stays what it is


def test_trimmed_offsets_do_not_lose_the_space():
    tokens = tokens_of(byte_level(trim=True), "A cute  teddy")
    assert tokens.labels == ("A", "␣cute", "␣", "␣teddy")
    assert all(span[0] < span[1] for span in tokens.spans)


def test_T1_text_that_contains_the_marks_keeps_them():
    tokens = tokens_of(byte_level(), "Ġ▁")
    assert [label[0] for label in tokens.labels] == ["Ġ", "Ġ", "▁", "▁", "▁"]


def test_half_a_character_is_shown_as_its_bytes():
    tokens = tokens_of(byte_level(), "🧸")
    assert tokens.labels == (
        "🧸[1/4:f0]",
        "🧸[2/4:9f]",
        "🧸[3/4:a7]",
        "🧸[4/4:b8]",
    )
    assert set(tokens.spans) == {(0, 1)}
    twice = tokens_of(byte_level(), "🧸🧸")
    assert [label[2:5] for label in twice.labels] == ["1/4", "2/4", "3/4", "4/4"] * 2


def test_byte_fallback_shows_half_characters_and_the_newline():
    tokens = tokens_of(byte_fallback(), "bear 🧸\n")
    assert (tokens.special[0], tokens.spans[0], tokens.labels[0]) == (True, None, "<s>")
    assert "🧸[1/4:f0]" in tokens.labels
    assert tokens.labels[-1] == "\n"


def test_T1_the_blank_before_the_first_word_is_shown_as_a_blank():
    encoding = SimpleNamespace(
        ids=[29871, 306, 3082],
        tokens=["▁", "I", "▁like"],
        offsets=[(0, 1), (0, 1), (1, 6)],
        special_tokens_mask=[0, 0, 0],
    )
    tokens = label_tokens(encoding, "I like", Family("metaspace", "BPE"))
    assert tokens.labels == ("␣", "I", "␣like")


@pytest.mark.parametrize("trim", [True, False])
def test_N17_the_blank_that_a_byte_level_tokenizer_puts_first_is_shown_as_a_blank(trim: bool):
    tokenizer = byte_level(trim=trim)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    blank = tokenizer.token_to_id("Ġ")
    for text in ("(a  b", "  (", "x\u200dy", "(", "( "):
        tokens = tokens_of(tokenizer, text)
        assert not any("Ġ" in label or "[1/2" in label for label in tokens.labels), tokens.labels
        shown = [label for i, label in zip(tokens.ids, tokens.labels) if i == blank]
        assert set(shown) <= {"␣"}
    assert tokens_of(tokenizer, "(a  b").labels[0] == "␣"
    assert tokens_of(tokenizer, "(a  b").labels[1] == "("


def test_a_character_of_byte_tokens_has_tokens():
    for text in ("a\u200db", "a\tb", "a\x00b", "\u200d"):
        assert tokens_of(byte_fallback(), text).notices == ()


def test_one_character_in_several_pieces_is_counted():
    tokens = tokens_of(unigram(), "㎜")
    assert tokens.labels[-2:] == ("㎜[1/2]", "㎜[2/2]")


def test_unigram_names_its_unknown_piece():
    tokens = tokens_of(unigram(), "bear 日")
    assert "<unk>" in tokens.pieces
    assert any("read as <unk>" in notice for notice in tokens.notices)


def test_wordpiece_marks_continued_words_and_keeps_the_source():
    tokens = tokens_of(wordpiece(), "unkind CAFÈ bears 💩💩")
    assert tokens.labels == ("[CLS]", "un", "·kind", "CAFÈ", "bear", "·s", "💩💩", "[SEP]")
    assert tokens.pieces[3] == "cafe"
    assert tokens.spans[1:3] == ((0, 2), (2, 6))
    assert tokens.special == (True, *(False,) * 6, True)
    assert tokens.notices == ("not in the vocabulary, read as [UNK]: '💩💩'",)


def test_characters_without_a_token_are_mentioned():
    tokens = tokens_of(wordpiece(), "bear \U000fe4fa cu\0te")
    assert tokens.notices == ("characters without a token: U+FE4FA at 5, U+0000 at 9",)
    assert tokens_of(byte_level(trim=True), "a b  c").notices == ()


def test_control_tokens_spelled_out_are_marked_and_told():
    tokens = tokens_of(byte_fallback(), "<s>bear")
    assert tokens.special[:2] == (True, True)
    assert tokens.spans[:2] == (None, (0, 3))
    assert tokens.notices == (
        "the text spells out control tokens, read as such: <s>",
        "<s> stands twice at the start: the tokenizer adds it to the text's own",
    )


def test_families_are_told_apart():
    families = {name: read_family(make()) for name, make in FAMILIES.items()}
    kinds = {name: (family.kind, family.algorithm) for name, family in families.items()}
    assert kinds == {
        "byte-level": ("byte-level", "BPE"),
        "byte-level, trimmed": ("byte-level", "BPE"),
        "byte fallback": ("metaspace", "BPE"),
        "unigram": ("metaspace", "Unigram"),
        "wordpiece": ("wordpiece", "WordPiece"),
    }


@pytest.fixture(scope="module")
def built():
    return {name: make() for name, make in FAMILIES.items()}


@given(text=st.text(st.characters(codec="utf-8"), max_size=24), name=st.sampled_from([*FAMILIES]))
@settings(max_examples=300, deadline=None)
def test_any_text_is_labelled(built, text, name):
    tokens = tokens_of(built[name], text)
    assert all(tokens.labels)
    for span in tokens.spans:
        assert span is None or 0 <= span[0] <= span[1] <= len(text)
