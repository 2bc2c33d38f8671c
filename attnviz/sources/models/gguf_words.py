"""The tokenizer of a GGUF file, cut as the model was trained: ``tokenizer.ggml.pre`` and special tokens.

The library rebuilds vocabulary and merges, but not how a text is split before them. Every key of
the tokenizer is used, known not to change a text's ids, or refused.

References: ggml-org/llama.cpp, ``src/llama-vocab.cpp`` (ways of splitting, and what is added where
a file does not say); the regular expressions are those of the models' own ``tokenizer.json``.
"""

from __future__ import annotations

import re
from typing import Any

from attnviz.errors import InputError
from attnviz.sources.models.gguf import Gguf

_GPT2, _DIGITS, _FALCON = "gpt-2", "gpt-2 after single digits", "falcon"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
_GPT4O = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORT}|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}{_REST}"
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_WAYS = {
    _GPT2: "gpt-2 gpt2 phi-2 jina-es jina-de mpt olmo gigachat roberta-bpe",
    _DIGITS: "smollm starcoder refact command-r codeshell exaone minerva-7b",
    _LLAMA3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 dbrx smaug-bpe",
    _QWEN2: "qwen2 deepseek-r1-qwen stablelm2 megrez",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2",
    _BLOOM: "bloom",
    _FALCON: "falcon",
}
SPLITS = {name: way for way, names in _WAYS.items() for name in names.split()}
"""``tokenizer.ggml.pre`` → how a text is split before byte-level merges."""
_WHOLE_WORDS = frozenset(
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"]
)
"""Those that take a word of the vocabulary as it is, before any merge, and begin with bos."""

_KNOWN = re.compile(
    r"tokenizer\.(chat_template(\..*)?|chat_templates|huggingface\.json|ggml\.("
    r"model|pre|tokens|scores|token_type|merges|add_(bos|eos)_token|add_space_prefix|"
    r"token_type_count|(bos|eos|eot|eom|unknown|padding|separator|seperator|mask|cls|prefix|suffix|"
    r"middle|fim_\w+|fsep)_token_id|(eot|eos|eog)_token_ids?))"
)
"""Keys that are used here or by the library, or name words for other programs."""
_NEUTRAL = {
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
    "tokenizer.ggml.add_sep_token": (False,),
}


def split_as_trained(tokenizer: Any, file: Gguf) -> None:
    """Make a tokenizer of the library split and frame texts as the file says.

    Raises
    ------
    InputError
        A way of splitting, or a key, that is not known; the message names it.
    """
    meta = file.metadata
    kind, pre = meta.get("tokenizer.ggml.model"), str(meta.get("tokenizer.ggml.pre", ""))
    for key, value in meta.items():
        is_known = _KNOWN.fullmatch(key) or value in _NEUTRAL.get(key, ())
        if key.startswith("tokenizer.") and not is_known:
            raise InputError(
                f"{file.path.name} says {key[:80]} = {str(value)[:40]}: it is not known what that "
                "does to tokens, which may not be the model's"
            )
    if kind == "gpt2":
        split = _pre_tokenizer(file, pre)
        tokenizer.backend_tokenizer.pre_tokenizer = split
        tokenizer.backend_tokenizer.model.ignore_merges = pre in _WHOLE_WORDS
    elif kind == "llama":
        _prefix(tokenizer.backend_tokenizer, file)
    else:
        raise InputError(
            f"{file.path.name} has a tokenizer of the kind {str(kind)[:40]!r}: gpt2 and llama are read"
        )
    adds = meta.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in _WHOLE_WORDS)
    adds_end = meta.get("tokenizer.ggml.add_eos_token", False)
    _frame(tokenizer, file, bool(adds), bool(adds_end))


def _pre_tokenizer(file: Gguf, pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if pre in ("", "default") and file.architecture in ("gpt2", "starcoder2"):
        pre = _GPT2
    way = SPLITS.get(pre)
    if way is None:
        raise InputError(
            f"{file.path.name} splits texts by tokenizer.ggml.pre = {pre[:40]!r}, which is not known: "
            "its tokens would not be the model's"
        )
    by_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    parts: list[Any] = [by_gpt2]
    if way == _DIGITS:
        parts = [pre_tokenizers.Digits(individual_digits=True), by_gpt2]
    elif way == _FALCON:
        three = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
        digits = pre_tokenizers.Digits(individual_digits=False)
        parts = [pre_tokenizers.Punctuation("contiguous"), by_gpt2, digits, three]
    elif way != _GPT2:
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        parts = [pre_tokenizers.Split(Regex(way), "isolated"), plain]
    return pre_tokenizers.Sequence(parts)


def _prefix(tokenizer: Any, file: Gguf) -> None:
    """Put a space before a text, or none, where the file says so and the library does otherwise."""
    from tokenizers import pre_tokenizers

    wanted = file.metadata.get("tokenizer.ggml.add_space_prefix")
    first = tokenizer.encode("a", add_special_tokens=False).tokens[:1]
    has = bool(first) and first[0].startswith("\u2581")
    if wanted is None or bool(wanted) == has:
        return
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        "\u2581", prepend_scheme="first" if wanted else "never", split=False
    )


def _frame(tokenizer: Any, file: Gguf, adds_start: bool, adds_end: bool) -> None:
    """Add the first and last token where the file says so, and nowhere else."""
    from tokenizers import processors

    words = file.metadata.get("tokenizer.ggml.tokens") or []
    ends: list[tuple[str, int]] = []
    template, pair = ["$A:0"], ["$A:0", "$B:1"]
    for wanted, key in ((adds_start, "bos"), (adds_end, "eos")):
        if not wanted:
            continue
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if not (isinstance(number, int) and 0 <= number < len(words)):
            raise InputError(
                f"{file.path.name} adds a token to every text, but {key}_token_id is {number}"
            )
        ends.append((words[number], number))
        own = [[f"{words[number]}:0"], [f"{words[number]}:1"]]
        template = [*own[0], *template] if key == "bos" else [*template, *own[0]]
        first, second = pair[: len(pair) // 2], pair[len(pair) // 2 :]
        pair = (
            [*own[0], *first, *own[1], *second]
            if key == "bos"
            else [*first, *own[0], *second, *own[1]]
        )
    backend = tokenizer.backend_tokenizer
    if ends:
        backend.post_processor = processors.TemplateProcessing(
            single=template, pair=pair, special_tokens=ends
        )
    elif backend.encode("a").ids != backend.encode("a", add_special_tokens=False).ids:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
