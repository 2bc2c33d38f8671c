"""Tiny models as GGUF files, written by gguf's own writer and name table, beside their originals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

TEXT_IDS = (5, 9, 7, 3, 9, 5, 6, 8)
WORDS = [f"w{i}" for i in range(99)]


@dataclass(frozen=True)
class Kind:
    """An architecture of llama.cpp: the library's classes, and the settings of a tiny one."""

    model: str
    config: str
    settings: Mapping[str, Any]
    permuted: bool = False
    adds_one: bool = False


SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
KINDS = {
    "llama": Kind("LlamaForCausalLM", "LlamaConfig", SIZES, permuted=True),
    "qwen2": Kind("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": Kind("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "head_dim": 16}),
    "gemma2": Kind(
        "Gemma2ForCausalLM", "Gemma2Config",
        {**SIZES, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16,
         "tie_word_embeddings": True}, adds_one=True,
    ),
    "gemma3": Kind(
        "Gemma3ForCausalLM", "Gemma3TextConfig",
        {**SIZES, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16,
         "num_hidden_layers": 7, "tie_word_embeddings": True}, adds_one=True,
    ),
    "phi3": Kind("Phi3ForCausalLM", "Phi3Config", {**SIZES, "sliding_window": None}),
    "starcoder2": Kind("Starcoder2ForCausalLM", "Starcoder2Config", SIZES),
    "stablelm": Kind(
        "StableLmForCausalLM", "StableLmConfig",
        {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gpt2": Kind(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True},
    ),
    "qwen3moe": Kind("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**SIZES, **MOE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen2moe": Kind(
        "Qwen2MoeForCausalLM", "Qwen2MoeConfig",
        {**SIZES, **MOE, "shared_expert_intermediate_size": 24, "norm_topk_prob": False, "sliding_window": None},
    ),
}  # fmt: skip


def make(kind: str, **changes: Any) -> Any:
    """Build the original: weights × 8, biases and norms drawn as well."""
    import transformers

    entry = KINDS[kind]
    config = getattr(transformers, entry.config)(**{**entry.settings, **changes})
    torch.manual_seed(3)
    model = (
        getattr(transformers, entry.model)._from_config(config, attn_implementation="eager").eval()
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.add_(torch.randn_like(parameter) / 8)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) / 4)
            else:
                parameter.mul_(8)
    return model


def eager(model: Any, ids: tuple[int, ...] = TEXT_IDS) -> list[np.ndarray]:
    """Return the original's own weights, layer by layer: (H, L, L)."""
    with torch.inference_mode():
        found = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
    return [layer[0].numpy() for layer in found.attentions]


def _tensors(kind: str, model: Any) -> dict[str, np.ndarray]:
    """Return the original's tensors under llama.cpp's names, laid out as its converter does."""
    import gguf

    entry, config = KINDS[kind], model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, 16)
    found: dict[str, np.ndarray] = {}
    for name, parameter in model.state_dict().items():
        values = parameter.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            at = name.split(".")[2]
            found[f"blk.{at}.ffn_gate_exps.weight"], found[f"blk.{at}.ffn_up_exps.weight"] = (
                np.split(values, 2, axis=1)
            )
            continue
        if name.endswith("experts.down_proj"):
            found[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = values
            continue
        target = names.get_name(name, (".weight", ".bias"))
        assert target is not None, name
        if entry.permuted and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if entry.adds_one and name.endswith("norm.weight"):
            values = values + 1
        if kind == "gpt2" and any(
            part in name for part in ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        ):
            values = values.T
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        found[target] = np.ascontiguousarray(values, np.float32)
    return found


def settings_of(kind: str, model: Any) -> dict[str, Any]:
    """Return the keys that llama.cpp's converter writes for the original."""
    c = model.config
    if kind == "gpt2":
        return {
            "context_length": c.n_positions, "block_count": c.n_layer, "embedding_length": c.n_embd,
            "feed_forward_length": 4 * c.n_embd, "attention.head_count": c.n_head,
            "attention.layer_norm_epsilon": c.layer_norm_epsilon,
        }  # fmt: skip
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    found = {
        "context_length": c.max_position_embeddings, "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
    }  # fmt: skip
    if kind in ("starcoder2", "stablelm"):
        found["attention.layer_norm_epsilon"] = getattr(c, "norm_epsilon", None) or c.layer_norm_eps
    else:
        found["attention.layer_norm_rms_epsilon"] = c.rms_norm_eps
    if kind in ("gemma2", "gemma3", "qwen3", "qwen3moe"):
        found |= {"attention.key_length": head, "attention.value_length": head}
    if kind in ("gemma2", "gemma3"):
        found["attention.sliding_window"] = c.sliding_window
    if kind == "gemma2":
        found |= {
            "attn_logit_softcapping": c.attn_logit_softcapping,
            "final_logit_softcapping": c.final_logit_softcapping,
        }
    if kind in ("qwen2moe", "qwen3moe"):
        found |= {"expert_count": c.num_experts, "expert_used_count": c.num_experts_per_tok,
                  "expert_feed_forward_length": c.moe_intermediate_size}  # fmt: skip
    if kind == "qwen2moe":
        found["expert_shared_feed_forward_length"] = c.shared_expert_intermediate_size
    if kind == "stablelm":
        found["use_parallel_residual"] = c.use_parallel_residual
    return found


def write(
    path: Path, kind: str, model: Any, *, without: str = "", keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None, pre: str = "gpt-2",
) -> Path:  # fmt: skip
    """Write a model as GGUF: ``without`` a tensor, with changed or more keys and tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, kind)
    for key, value in {**settings_of(kind, model), **(keys or {})}.items():
        name = (
            key
            if "." in key and key.split(".")[0] in ("general", "tokenizer", "odd")
            else f"{kind}.{key}"
        )
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float64(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_token_merges(["w 0"])
    for name, values in {**_tensors(kind, model), **(tensors or {})}.items():
        if name != without:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ours(path: Path, folder: Path, ids: tuple[int, ...] = TEXT_IDS) -> list[np.ndarray]:
    """Read a GGUF file as the product does, without a tokenizer, and return its eager weights."""
    import json

    import transformers

    from attnviz.sources.models.gguf import read_gguf
    from attnviz.sources.models.gguf_convert import write_model

    folder.mkdir(exist_ok=True)
    write_model(read_gguf(path), folder)
    kind = getattr(
        transformers, json.loads((folder / "config.json").read_text())["architectures"][0]
    )
    model, report = kind.from_pretrained(
        str(folder), attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"], report["missing_keys"]
    assert not report["unexpected_keys"], report["unexpected_keys"]
    return eager(model.eval(), ids)
