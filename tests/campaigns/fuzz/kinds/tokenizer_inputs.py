"""Files tokenizer.json of every algorithm, with damaged parts, ids, merges, patterns and settings.

Read as a single layer's vocabulary and as a model's tokenizer are.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.drawing import VALUES, change_bytes, change_json, change_number, often
from fuzz.kinds import Kind

TEXT = "hello world ! bear 🧸 é"
_WORDS = [
    "<unk>",
    "<s>",
    "</s>",
    "hello",
    "world",
    "!",
    "bear",
    "h",
    "e",
    "l",
    "o",
    "##llo",
    "he",
    "Ġ",
    "▁",
]
_LETTERS = "helowrdba!Ġ▁"


def _added(word: str, i: int) -> dict[str, Any]:
    return {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}  # fmt: skip


_BASE: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [_added(word, i) for i, word in enumerate(_WORDS[:3])],
    "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
    "decoder": None,
}  # fmt: skip
_VOCAB = {word: i for i, word in enumerate(_WORDS)}
_BPE_VOCAB = {"<unk>": 0, "<s>": 1, "</s>": 2, **{c: 3 + i for i, c in enumerate(_LETTERS)},
              "he": 15, "ll": 16, "hell": 17, "hello": 18}  # fmt: skip
_MERGES = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]]
_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}  # fmt: skip
_BPE = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": _BPE_VOCAB, "merges": _MERGES}  # fmt: skip
SOUND: tuple[dict[str, Any], ...] = (
    {**_BASE, "model": {"type": "WordLevel", "vocab": _VOCAB, "unk_token": "<unk>"},
     "post_processor": _TEMPLATE},
    {**_BASE, "model": {"type": "WordPiece", "vocab": _VOCAB, "unk_token": "<unk>",
                        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
     "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                    "strip_accents": None, "lowercase": True},
     "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##",
                                                                "cleanup": True},
     "post_processor": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}},
    {**_BASE, "model": _BPE, "post_processor": {"type": "ByteLevel", "add_prefix_space": True,
                                                "trim_offsets": True, "use_regex": True},
     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                       "use_regex": True},
     "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                 "use_regex": True}},
    {**_BASE, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                        "vocab": [[word, -float(i)] for i, word in enumerate(_WORDS)]},
     "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                       "split": True},
     "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                 "split": True}},
    {**_BASE, "model": {**_BPE, "byte_fallback": True},
     "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
         {"type": "Split", "pattern": {"Regex": "\\w+|[^\\w\\s]+"}, "behavior": "Isolated",
          "invert": False}, {"type": "Digits", "individual_digits": True}]},
     "normalizer": {"type": "Sequence", "normalizers": [
         {"type": "Prepend", "prepend": "▁"}, {"type": "NFKC"},
         {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
     "post_processor": _TEMPLATE},
)  # fmt: skip
_PATTERNS = ("(a+)+$", "(h|he|hel)*x", "(.*)*y", "", "(", "[", "\\", "(?=", "\\p{L}", ".{0,99999}", "(?<=a{1,99})b",
             "a{4294967296}", "(?:a?){50}a{50}", "$", "^", "\\b", "(((((((((x)))))))))*", ".*?" * 20)  # fmt: skip
_PARTS: dict[str, tuple[Any, ...]] = {
    "padding": ({"strategy": {"Fixed": 1 << 31}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
                {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 1 << 40,
                 "pad_id": 1 << 31, "pad_type_id": 0, "pad_token": ""},
                {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": 0,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}),
    "truncation": ({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0},
                   {"direction": "Left", "max_length": 3, "strategy": "OnlyFirst", "stride": 5},
                   {"direction": "Right", "max_length": 1 << 62, "strategy": "OnlySecond",
                    "stride": 1 << 62}),
    "normalizer": ({"type": "Precompiled", "precompiled_charsmap": "AAAA"},
                   {"type": "Precompiled", "precompiled_charsmap": "A" * 4000},
                   {"type": "Precompiled", "precompiled_charsmap": "/wAAAA" + "B" * 400},
                   {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "StripAccents"},
                   {"type": "Prepend", "prepend": "a" * 10_000}, {"type": "NFD"}, {"type": "Nmt"},
                   {"type": "ByteLevel"}, {"type": "Lowercase"},
                   {"type": "Replace", "pattern": {"String": ""}, "content": "xy" * 500}),
    "pre_tokenizer": ({"type": "FixedLength", "length": 0}, {"type": "UnicodeScripts"},
                      {"type": "Delimiter", "delimiter": "l"}, {"type": "CharDelimiterSplit", "delimiter": " "},
                      {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "WhitespaceSplit"},
                      {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "never", "split": False}),
    "post_processor": ({"type": "RobertaProcessing", "sep": ["</s>", 1 << 31], "cls": ["<s>", 1],
                        "trim_offsets": True, "add_prefix_space": True},
                       {"type": "Sequence", "processors": [_TEMPLATE] * 8}, _TEMPLATE,
                       {**_TEMPLATE, "single": [{"Sequence": {"id": "B", "type_id": 0}}]},
                       {**_TEMPLATE, "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 50},
                       {**_TEMPLATE, "special_tokens": {}},
                       {**_TEMPLATE, "special_tokens": {"<s>": {"id": "<s>", "ids": [], "tokens": []}}},
                       {**_TEMPLATE, "special_tokens": {
                           "<s>": {"id": "<s>", "ids": [1] * 9, "tokens": ["<s>"]}}}),
    "decoder": ({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "BPEDecoder", "suffix": "</w>"},
                {"type": "Strip", "content": " ", "start": 1 << 31, "stop": 0},
                {"type": "Sequence", "decoders": []}),
}  # fmt: skip


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Damage one sound tokenizer: a known part swapped in, a field changed, or bytes."""
    made: Any = json.loads(json.dumps(draw.choice(SOUND)))
    for _ in often(draw):
        change = draw.random()
        if not isinstance(made, dict):
            break
        if change < 0.25:
            part = draw.choice(tuple(_PARTS))
            made[part] = draw.choice(_PARTS[part])
        elif change < 0.35:
            pattern = draw.choice(_PATTERNS)
            made["pre_tokenizer"] = {
                "type": "Split", "pattern": {"Regex": pattern}, "invert": draw.random() < 0.3,
                "behavior": draw.choice(("Removed", "Isolated", "MergedWithNext", "Contiguous")),
            }  # fmt: skip
        elif change < 0.5:
            made["model"] = _change_model(made.get("model"), draw)
        elif change < 0.6:
            made["added_tokens"] = _change_added(made.get("added_tokens"), draw)
        else:
            made = change_json(made, draw)
    data = json.dumps(made).encode()
    if draw.random() < 0.06:
        data = change_bytes(data, draw)
    return {"tokenizer.json": data}


def _change_model(model: Any, draw: random.Random) -> Any:
    if not isinstance(model, dict):
        return draw.choice(VALUES)
    made = dict(model)
    field = draw.choice(("vocab", "merges", "unk", "settings"))
    vocab = made.get("vocab")
    if field == "vocab" and isinstance(vocab, dict) and vocab:
        words = dict(vocab)
        word = draw.choice(list(words))
        ids = (change_number(int(words[word]), draw), draw.choice(list(words.values())), 1 << 31)
        words[word] = draw.choice(ids)
        made["vocab"] = words
    elif field == "vocab" and isinstance(vocab, list) and vocab:
        listed = list(vocab)
        listed[draw.randrange(len(listed))] = draw.choice(
            (["x", 1e308], ["", 0.0], ["hello", -1e308], ["x"], [1, 2], ["a" * 5000, -1.0])
        )
        made["vocab"] = draw.choice((listed, [], listed[:1], listed * 3))
    elif field == "merges":
        merges = ("h e", "h", ["h", "zz"], ["", ""], ["h", "e", "l"], ["hello", "hello"], 5)
        made["merges"] = [*made.get("merges", [])[: draw.randint(0, 4)], draw.choice(merges)]
    elif field == "unk":
        made["unk_token"] = draw.choice(("no such", "", None, "hello", 3))
        made["unk_id"] = draw.choice((0, None, 1 << 31, 99, -1))
    else:
        name = draw.choice(("dropout", "fuse_unk", "byte_fallback", "continuing_subword_prefix",
                            "end_of_word_suffix", "max_input_chars_per_word", "ignore_merges"))  # fmt: skip
        made[name] = draw.choice(
            (0, 1, 1.0, 0.5, 2.0, True, False, None, "", "##", "é", "x" * 300, 1 << 62)
        )
    return made


def _change_added(added: Any, draw: random.Random) -> Any:
    made = list(added) if isinstance(added, list) else []
    words = (
        "",
        " ",
        "hello",
        "<s>",
        "\0",
        "\n",
        "[/INST]",
        "e",
        "a" * 5000,
        "🧸",
        "\u202e",
        "é",
        "lo",
    )
    token = _added(draw.choice(words), draw.choice((0, 3, 15, 60, 61, 1 << 20, 1 << 31, -1)))
    token[draw.choice(("single_word", "lstrip", "rstrip", "normalized", "special"))] = True
    return [*made, token] if draw.random() < 0.8 else [token] * draw.choice((1, 2, 300))


def prepare(folder: Path) -> None:
    """Import the libraries once; a fork stands for the trial's child, but for every hundredth."""
    from attnviz.sources.confined.parent import TOKENIZER_TASK
    from attnviz.sources.models.library import load_transformers
    from attnviz.sources.text import tokenizer_trial
    from fuzz import forks

    forks.install(tokenizer_trial, TOKENIZER_TASK, real=100)
    load_transformers()
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "unk_token": "<unk>"}'
    )
    for sound in SOUND:
        (folder / "tokenizer.json").write_text(json.dumps(sound))
        read(folder, {})


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read it as a layer's vocabulary, then as a model's tokenizer."""
    from attnviz.errors import InputError
    from attnviz.sources.models import tokenizer
    from attnviz.sources.text import tokenize

    why: InputError | None = None
    tokens = None
    try:
        tokens = tokenize.open_tokenizer(folder / "tokenizer.json").tokenize(TEXT)
    except InputError as fault:
        why = fault
    opened = tokenizer.open_tokenizer(folder)
    for found in (tokens, opened.tokenize(TEXT)):
        if found is not None:
            assert len(found.labels) == len(found.ids) == len(found.spans), "tokens lost"
    if why is not None:
        raise why
    return opened


KIND = Kind(make, read, prepare, room_bytes=2 << 30)
