"""Tiny model folders, written without any library of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 60,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def write_tokenizer(folder: Path, **more: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<s>", "</s>", "hello", "world", "!", "bear"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(words[:3])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if more.get("bos", True):
        tokenizer.post_processor = processors.TemplateProcessing(
            "<s> $A", "<s> $A $B", [("<s>", 1)]
        )
    if "padding" in more:
        tokenizer.enable_padding(length=more["padding"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder: Path, **changes: Any) -> Path:
    """Write a whole tiny Llama without any library of models."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    n_q, n_kv = 8 * config["num_attention_heads"], 8 * config["num_key_value_heads"]
    draw = np.random.default_rng(0).standard_normal
    tensors = {"model.embed_tokens.weight": draw((60, 32)), "model.norm.weight": np.ones(32)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for name, shape in (
            ("q", (n_q, 32)),
            ("k", (n_kv, 32)),
            ("v", (n_kv, 32)),
            ("o", (32, n_q)),
        ):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = draw(shape)
        for name, shape in (("gate", (48, 32)), ("up", (48, 32)), ("down", (32, 48))):
            tensors[f"{at}.mlp.{name}_proj.weight"] = draw(shape) / 8
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = np.ones(32)
    made = {k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder
