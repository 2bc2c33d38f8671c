"""What a model is, without loading it: from config, file headers and the tokenizer file alone.

What lives here: ``model_card``. What does not: torch or transformers, which are never imported
here; what a config leaves to the library's defaults is therefore unknown (None), not guessed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.sources.models.cache import sha256_of
from attnviz.sources.models.card_layers import (
    LayerCard,
    gguf_layers,
    read_int,
    read_layers,
    with_tensors,
)
from attnviz.sources.models.files import ModelFiles, find_model, read_config, read_header
from attnviz.sources.models.gguf import TYPE_NAMES, Gguf, read_gguf
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.tokenizer import added_by, family_name, open_raw
from attnviz.sources.text.labels import read_family, tokens_of

_GGUF_TOKENIZERS = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece BPE",
    "bert": "WordPiece",
    "t5": "SentencePiece Unigram",
    "gemma4": "SentencePiece BPE",
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What ``attnviz model show`` shows; None where the files do not say.

    Parameters
    ----------
    kind
        ``safetensors`` or ``gguf``.
    architecture
        The class or family the files name.
    d_model, d_k, d_v
        Widths of the stream, of q and k, and of v per head.
    layers
        One card per layer (the decoder's, of an encoder-decoder).
    n_parameters
        Numbers held in the files, whole ones (positions, flags) left out.
    dtypes
        Type → how many of the numbers are stored so, the most frequent first.
    tokenizer, tokenizer_adds
        Its kind, and what it puts around a text (``nothing``, ``[CLS] … [SEP]``).
    sha256
        Of the one weight file, or of the shards' digests in order.
    """

    name: str
    kind: str
    architecture: str
    n_layers: int | None
    n_heads: int | None
    n_kv_heads: int | None
    d_model: int | None
    d_k: int | None
    d_v: int | None
    vocab_size: int | None
    max_positions: int | None
    softcap: float | None
    layers: tuple[LayerCard, ...]
    n_encoder_layers: int | None
    n_parameters: int
    dtypes: Mapping[str, int]
    size_bytes: int
    sha256: str
    files: tuple[str, ...]
    tokenizer: str
    tokenizer_adds: str | None
    tokenizer_sha256: str
    notices: tuple[str, ...] = ()

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have attention."""
        return tuple(layer.layer for layer in self.layers if layer.has_attention)


def model_card(path: str | os.PathLike[str]) -> ModelCard:
    """Read what a model is: a Hugging Face folder, a place in its cache, or a GGUF file.

    Raises
    ------
    InputError
        No model there, or files that cannot be read.

    Notes
    -----
    Well under a second, plus one second per gigabyte for the hash the first time a file is seen.
    """
    files = find_model(path)
    return _gguf_card(files) if files.kind == "gguf" else _folder_card(files)


def _folder_card(files: ModelFiles) -> ModelCard:
    whole = read_config(files.folder)
    nested = whole.get("text_config")
    config: dict[str, Any] = {**whole, **nested} if isinstance(nested, dict) else whole
    numbers: dict[str, int] = {}
    names: list[str] = []
    for file in files.weights:
        for name, (dtype, shape) in read_header(file).items():
            numbers[dtype] = numbers.get(dtype, 0) + math.prod(shape)
            names.append(name)
    n_heads = read_int(config, "num_attention_heads", "n_head", "num_heads", "n_heads",
                       "decoder_attention_heads")  # fmt: skip
    d_model = read_int(config, "hidden_size", "n_embd", "d_model", "dim")
    d_k = read_int(config, "head_dim", "d_kv", "attention_head_size")
    if d_k is None and config.get("qk_nope_head_dim") is not None:
        d_k = (read_int(config, "qk_nope_head_dim") or 0) + (
            read_int(config, "qk_rope_head_dim") or 0
        )
    if d_k is None and d_model and n_heads:
        d_k = d_model // n_heads
    n_kv = read_int(config, "num_key_value_heads", "num_kv_heads", "n_head_kv")
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        n_kv = 1
    tokenizer, adds, digest, notices = _folder_tokenizer(files.folder)
    layers = with_tensors(read_layers(config), names)
    listed = whole.get("architectures")
    return ModelCard(
        name=files.name,
        kind=files.kind,
        architecture=str(listed[0]) if isinstance(listed, list) and listed
        else str(whole.get("model_type", "")),
        n_layers=len(layers) or None,
        n_heads=n_heads,
        n_kv_heads=n_kv if n_kv is not None else n_heads,
        d_model=d_model,
        d_k=d_k,
        d_v=read_int(config, "v_head_dim") or d_k,
        vocab_size=read_int(config, "vocab_size"),
        max_positions=read_int(config, "max_position_embeddings", "n_positions", "n_ctx",
                               "max_seq_len", "seq_length"),
        softcap=_number(config, "attn_logit_softcapping"),
        layers=layers,
        n_encoder_layers=read_int(config, "encoder_layers", "num_layers")
        if config.get("is_encoder_decoder") else None,
        n_parameters=sum(n for kind, n in numbers.items() if kind[0] not in "IU" or kind[:2] == "IQ"),
        dtypes=_by_count(numbers),
        size_bytes=files.size_bytes,
        sha256=files.sha256(),
        files=tuple(file.name for file in files.weights),
        tokenizer=tokenizer,
        tokenizer_adds=adds,
        tokenizer_sha256=digest,
        notices=notices,
    )  # fmt: skip


def _folder_tokenizer(folder: Path) -> tuple[str, str | None, str, tuple[str, ...]]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [n for n in ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
                  if (folder / n).is_file()]  # fmt: skip
        told = f"no tokenizer.json; it has {', '.join(others)}" if others else "no tokenizer file"
        return others[0] if others else "", None, "", (told,)
    tokenizer = open_raw(path)
    family = guard(path.name, lambda: read_family(tokenizer), hush=True)
    probe = guard(path.name, lambda: tokens_of(tokenizer, "a", family=family), hush=True)
    return family_name(family), added_by(probe), sha256_of(path), ()


def _gguf_card(files: ModelFiles) -> ModelCard:
    file = read_gguf(files.weights[0])
    numbers: dict[str, int] = {}
    for tensor in file.tensors.values():
        kind = TYPE_NAMES.get(tensor.kind, str(tensor.kind))
        numbers[kind] = numbers.get(kind, 0) + math.prod(tensor.shape)
    n_heads = _setting(file, "attention.head_count")
    d_model = _setting(file, "embedding_length")
    d_k = _setting(file, "attention.key_length")
    if d_k is None and d_model and n_heads:
        d_k = d_model // n_heads
    words = file.metadata.get("tokenizer.ggml.tokens")
    layers = gguf_layers(file)
    softcap = file.setting("attn_logit_softcapping")
    return ModelCard(
        name=files.name,
        kind=files.kind,
        architecture=file.architecture,
        n_layers=len(layers) or None,
        n_heads=n_heads,
        n_kv_heads=_setting(file, "attention.head_count_kv") or n_heads,
        d_model=d_model,
        d_k=d_k,
        d_v=_setting(file, "attention.value_length") or d_k,
        vocab_size=len(words) if isinstance(words, list) else None,
        max_positions=_setting(file, "context_length"),
        softcap=float(softcap) if isinstance(softcap, int | float) else None,
        layers=layers,
        n_encoder_layers=None,
        n_parameters=sum(
            n for kind, n in numbers.items() if kind[0] not in "IU" or kind[:2] == "IQ"
        ),
        dtypes=_by_count(numbers),
        size_bytes=files.size_bytes,
        sha256=files.sha256(),
        files=tuple(path.name for path in files.weights),
        tokenizer=_GGUF_TOKENIZERS.get(str(file.metadata.get("tokenizer.ggml.model")), ""),
        tokenizer_adds=_gguf_adds(file),
        tokenizer_sha256="",
    )


def _gguf_adds(file: Gguf) -> str | None:
    """Return what a GGUF file says is added; None where it leaves it to its reader."""
    words = file.metadata.get("tokenizer.ggml.tokens")
    flags = [file.metadata.get(f"tokenizer.ggml.add_{end}_token") for end in ("bos", "eos")]
    if flags == [None, None] or not isinstance(words, list):
        return None
    around = ["", ""]
    for side, (flag, end) in enumerate(zip(flags, ("bos", "eos"))):
        place = file.metadata.get(f"tokenizer.ggml.{end}_token_id")
        if flag and isinstance(place, int) and 0 <= place < len(words):
            around[side] = str(words[place])
    if not any(around):
        return "nothing"
    return " ".join(part for part in (around[0], "…", around[1]) if part)


def _setting(file: Gguf, name: str) -> int | None:
    value = file.setting(name)
    if isinstance(value, list):  # by layer
        value = max((v for v in value if isinstance(v, int)), default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(config: Mapping[str, Any], name: str) -> float | None:
    value = config.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _by_count(numbers: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0])))
