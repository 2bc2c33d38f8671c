"""The tokenizer of a GGUF file, cut as the model was trained: ``tokenizer.ggml.pre`` and special tokens.

The library rebuilds vocabulary and merges, but not how a text is split before them.
"""

from __future__ import annotations

from typing import Any

from attnviz.errors import InputError
from attnviz.sources.models.gguf import Gguf

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2_DIGITS = "gpt-2 after single digits"
SPLITS = {
    "gpt-2": "gpt-2", "gpt2": "gpt-2", "phi-2": "gpt-2", "jina-es": "gpt-2", "jina-de": "gpt-2",
    "mpt": "gpt-2", "olmo": "gpt-2", "gigachat": "gpt-2", "roberta-bpe": "gpt-2",
    "smollm": _GPT2_DIGITS, "starcoder": _GPT2_DIGITS, "refact": _GPT2_DIGITS,
    "command-r": _GPT2_DIGITS, "codeshell": _GPT2_DIGITS, "exaone": _GPT2_DIGITS,
    "minerva-7b": _GPT2_DIGITS,
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "falcon3": _LLAMA3,
    "pixtral": _LLAMA3, "dbrx": _LLAMA3, "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "stablelm2": _QWEN2, "megrez": _QWEN2,
}  # fmt: skip
"""``tokenizer.ggml.pre`` → how a text is split before byte-level merges (src/llama-vocab.cpp)."""


def split_as_trained(tokenizer: Any, file: Gguf) -> None:
    """Make a tokenizer of the library split and frame texts as the file says.

    Raises
    ------
    InputError
        A way of splitting that is not known; the message names it.
    """
    meta = file.metadata
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "")
    if kind == "gpt2":
        tokenizer.backend_tokenizer.pre_tokenizer = _pre_tokenizer(file, str(pre))
    elif kind != "llama":
        raise InputError(
            f"{file.path.name} has a tokenizer of the kind {str(kind)[:40]!r}: gpt2 and llama are read"
        )
    adds = meta.get(
        "tokenizer.ggml.add_bos_token", kind == "llama" or SPLITS.get(str(pre)) == _LLAMA3
    )
    adds_end = meta.get("tokenizer.ggml.add_eos_token", False)
    _frame(tokenizer, file, bool(adds), bool(adds_end))


def _pre_tokenizer(file: Gguf, pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if not pre or pre == "default":
        pre = "gpt-2" if file.architecture in ("gpt2", "starcoder2") else pre
    way = SPLITS.get(pre)
    if way is None:
        raise InputError(
            f"{file.path.name} splits texts by tokenizer.ggml.pre = {pre[:40]!r}, which is not known: "
            "its tokens would not be the model's"
        )
    parts: list[Any] = []
    if way == _GPT2_DIGITS:
        parts.append(pre_tokenizers.Digits(individual_digits=True))
    elif way != "gpt-2":
        parts.append(pre_tokenizers.Split(Regex(way), "isolated"))
    use_regex = way in ("gpt-2", _GPT2_DIGITS)
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex))
    return pre_tokenizers.Sequence(parts)


def _frame(tokenizer: Any, file: Gguf, adds_start: bool, adds_end: bool) -> None:
    """Add the first and last token where the file says so, and nowhere else."""
    from tokenizers import processors

    words = file.metadata.get("tokenizer.ggml.tokens") or []
    tokens: list[tuple[str, int] | None] = []
    for wanted, key in ((adds_start, "bos"), (adds_end, "eos")):
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if not wanted:
            tokens.append(None)
        elif isinstance(number, int) and 0 <= number < len(words):
            tokens.append((words[number], number))
        else:
            raise InputError(
                f"{file.path.name} adds a token to every text, but {key}_token_id is {number}"
            )
    start, end = tokens
    single = [f"{t[0]}:0" if "$" not in t[0] else "" for t in (start,) if t]
    template = [*single, "$A:0", *[f"{t[0]}:0" for t in (end,) if t]]
    special = [t for t in (start, end) if t]
    if special:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=[*template, *[part.replace("$A:0", "$B:0") for part in template]],
            special_tokens=special,
        )  # fmt: skip
    elif _ids(tokenizer) != _ids(tokenizer, special=False):
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)


def _ids(tokenizer: Any, *, special: bool = True) -> list[int]:
    return list(tokenizer.backend_tokenizer.encode("a", add_special_tokens=special).ids)
