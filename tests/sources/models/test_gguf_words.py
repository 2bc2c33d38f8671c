"""A GGUF file's tokenizer cuts texts as the model was trained, or the file is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

from gguf_files import write_entry

from attnviz.errors import InputError
from attnviz.sources.models.gguf import read_gguf
from attnviz.sources.models.gguf_words import split_as_trained


@pytest.mark.parametrize("pre", ["never-heard-of", "default", ""])
def test_N40_a_way_of_splitting_that_is_not_known_is_refused(pre: str, tmp_path: Path) -> None:
    path, _ = write_entry("Llama", tmp_path, pre=pre)
    with pytest.raises(InputError, match=f"tokenizer.ggml.pre = '{pre}', which is not known"):
        split_as_trained(None, read_gguf(path))


def test_N40_smollm_splits_digits_one_by_one(smollm2: Path) -> None:
    from attnviz.sources.models.gguf_convert import converted
    from attnviz.sources.models.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(converted(smollm2))
    assert tokenizer.tokenize("a  42").ids == (81, 256, 36, 34)
    assert len(tokenizer.tokenize("x = [\n    1,\n    2]")) == 9


def own(pre: str, folder: Path, **how: Any) -> Any:
    """Return the tokenizer of a file with this way of splitting, as the product opens it."""
    from attnviz.sources.models.gguf_convert import _write_tokenizer
    from attnviz.sources.models.tokenizer import open_tokenizer

    path, _ = write_entry("Llama", folder, pre=pre, **how)
    (folder / "made").mkdir()
    (folder / "made" / "config.json").write_text('{"model_type": "llama"}')
    _write_tokenizer(read_gguf(path), folder / "made")
    return open_tokenizer(folder / "made")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "the  42", ["t", "he", "ĠĠ", "4", "2"]),
        ("gpt-2", "the  42", ["t", "he", "Ġ", "Ġ", "4", "2"]),
        ("llama-bpe", "a  bear", ["a", "Ġ", "Ġ", "bear"]),
    ],
)
def test_N40_texts_are_split_before_merges(
    pre: str, text: str, pieces: list[str], tmp_path: Path
) -> None:
    tokenizer = own(pre, tmp_path)
    assert list(tokenizer.tokenize(text).pieces) == pieces
    assert tokenizer.tokenizer.model.ignore_merges == (pre == "llama-bpe")


def with_keys(**keys: Any) -> Any:
    told = {f"tokenizer.{k.replace('__', '.')}": v for k, v in keys.items()}
    return SimpleNamespace(
        path=Path("a.gguf"), architecture="llama",
        metadata={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", **told},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [("ggml__lowercase", True), ("ggml__add_sep_token", True), ("normalizer", "nfkc"),
     ("ggml__remove_extra_whitespaces", True), ("ggml__precompiled_charsmap", [1])],
)  # fmt: skip
def test_a_key_of_the_tokenizer_that_is_not_known_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"says tokenizer.{key.replace('__', '.')} = "):
        split_as_trained(None, with_keys(**{key: value}))
