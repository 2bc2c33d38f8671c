"""Shrink any config of the library to a model of a few thousand numbers, by the names of its settings.

A setting is recognised by its name, as far as one name means one thing in all of the library's
configs. Where heads of one width do not fit a model, the next of ``SHAPES`` is tried.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch

N_WORDS, N_POSITIONS = 99, 128

_RULES: tuple[tuple[str, Any], ...] = (
    (r"vocab_size|vocab_size_per_layer_input|n_vocab|vocabulary_size|num_tokens", N_WORDS),
    (r"max_position_embeddings|n_positions|max_seq_len|seq_length|n_ctx|max_source_positions"
     r"|max_target_positions|max_seq_length|max_sequence_length|max_text_len|max_length"
     r"|max_(encoder|decoder)_position_embeddings|max_2d_position_embeddings|context_length", N_POSITIONS),
    (r"original_max_position_embeddings", 16),
    (r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers"
     r"|(en|de)coder_num_(hidden_)?layers|depth|attention_layers", "layers"),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|word_embed_proj_dim|model_dim|width|emb_dim"
     r"|embedding_dim|encoder_hidden_size|decoder_hidden_size|hidden_dim_size|projection_dim|d_embed", "hidden"),
    (r"num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads|attention_heads|num_(en|de)coder_attention_heads"
     r"|encoder_num_attention_heads|decoder_num_attention_heads", "heads"),
    (r"num_key_value_heads|num_kv_heads|(en|de)coder_num_key_value_heads|n_kv_heads|num_global_key_value_heads", "kv"),
    (r"intermediate_size|ffn_dim|d_ff|n_inner|d_inner|hidden_dim|(en|de)coder_ffn_dim|ffn_hidden_size"
     r"|(en|de)coder_intermediate_size|intermediate_size_mlp|dense_intermediate_size|mlp_hidden_size|feed_forward_size|dim_feedforward", 48),
    (r"head_dim|d_kv|attention_head_size|kv_channels|d_head|attention_head_dim|qk_head_dim|global_head_dim|index_head_dim|(en|de)coder_head_dim|head_size", "head_dim"),
    (r".*(moe|expert).*intermediate_size.*|intermediate_size_moe|moe_hidden_size", 16),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|num_routed_experts|n_experts|num_total_experts", 4),
    (r"num_experts_per_tok(en)?|moe_k|moe_top_?k|experts_per_token|top_k_experts", 2),
    (r"n_group|topk_group|num_expert_group|n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|.*_lora_rank|.*lora_dim", 16),
    (r"qk_rope_head_dim|qk_nope_head_dim", 8),
    (r"v_head_dim|value_head_dim", 8),
    (r"sliding_window|attention_window|local_attention|attention_chunk_size|local_window_size|window_size|local_attention_window", 8),
    (r"index_topk", 4),
    (r"index_n_heads|index_num_heads", 4),
    (r"linear_num_(key|value)_heads|mamba_n_heads|mamba_num_heads|ssm_num_heads|lightning_num_heads|linear_num_heads|lin_num_heads", 4),
    (r"linear_(key|value)_head_dim|mamba_d_head|mamba_head_dim|ssm_head_dim|lin_head_dim|linear_head_dim", 8),
    (r"mamba_d_ssm|mamba_d_inner|lru_width|mamba_intermediate_size|conv_dim|linear_width", 32),
    (r"mamba_d_state|ssm_state_size|state_size|mamba_state_size|mamba2_d_state", 8),
    (r"mamba_n_groups|n_groups|mamba_ngroups|num_groups", 1),
    (r"mamba_dt_rank|time_step_rank", 4),
    (r"block_size", 4),
    (r"relative_attention_num_buckets|position_buckets|position_bucket_size", 8),
    (r"relative_attention_max_distance|max_relative_positions", 16),
    (r"(vision|image)_size|image_size", 32),
    (r"rotary_dim|rope_dim", 4),
    (r"pad_token_id|pad_idx", 0),
    (r"bos_token_id|cls_token_id", 1),
    (r"eos_token_id|sep_token_id", 2),
    (r"decoder_start_token_id", 2),
    (r"hidden_size_per_layer_input|per_layer_hidden_size", 8),
    (r"num_kv_shared_layers", 1),
    (r"use_mamba_kernels|use_kernels", False),
    (r".*(dropout|drop_prob|dropout_rate|jitter_noise|layerdrop|pdrop)", 0.0),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), value) for pattern, value in _RULES)

SHAPES: tuple[dict[str, int], ...] = (
    {"layers": 2, "hidden": 32, "heads": 4, "kv": 2, "head_dim": 8},
    {"layers": 2, "hidden": 32, "heads": 4, "kv": 4, "head_dim": 8},
    {"layers": 4, "hidden": 32, "heads": 4, "kv": 2, "head_dim": 8},
    {"layers": 4, "hidden": 32, "heads": 4, "kv": 4, "head_dim": 16},
    {"layers": 6, "hidden": 64, "heads": 4, "kv": 1, "head_dim": 16},
    {"layers": 4, "hidden": 64, "heads": 2, "kv": 2, "head_dim": 32},
    {"layers": 2, "hidden": 128, "heads": 2, "kv": 2, "head_dim": 64},
)


def shrink(kind: Any, shape: dict[str, int], **changes: Any) -> Any:
    """Return a tiny config of a class, its own sub-configs shrunk likewise, with some settings as given."""
    given = copy.deepcopy(changes)  # the library writes into what it is given
    return kind(**_merged(_small(kind(), shape), given))


def _merged(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those of ``changes`` in their place, inside of sub-configs too."""
    both = {
        k: v for k, v in changes.items() if isinstance(v, dict) and "model_type" in given.get(k, ())
    }
    return {**given, **changes, **{k: _merged(given[k], v) for k, v in both.items()}}


def _small(config: Any, shape: dict[str, int]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    parts = getattr(type(config), "sub_configs", {})
    for name, value in config.to_dict().items():
        if name in parts:
            part = getattr(config, name, None)
            if part is not None:
                given[name] = _small(part, shape)
                given[name]["model_type"] = part.model_type
            continue
        if isinstance(value, list | dict) or (value is None and name not in _WANTED):
            continue
        for pattern, small in _COMPILED:
            if pattern.fullmatch(name):
                number = shape[small] if isinstance(small, str) else small
                if type(value) is bool and type(number) is not bool:
                    break
                given[name] = number
                break
    return given


_WANTED = frozenset(
    [
        "head_dim",
        "num_key_value_heads",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    ]
)


def strengthen(model: Any, gain: float = 4.0) -> Any:
    """Multiply weight matrices so that attention is peaked, and draw what begins as a constant.

    T5's kin neither scale their scores nor draw small weights: theirs are peaked as they are.
    """
    if any("relative_attention_bias" in name for name, _ in model.named_parameters()):
        gain = 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if not bool(torch.isfinite(parameter).all()):
                parameter.nan_to_num_(0.0, 0.0, 0.0)  # left uninitialised by the library
            if "sinks" in name:
                parameter.normal_(0.0, 1.0)
            elif "relative_attention_bias" in name:
                parameter.normal_(0.0, 2.0)
            elif parameter.dim() >= 2 and "embed" not in name and "norm" not in name.lower():
                parameter.mul_(gain)
            elif parameter.dim() == 1 and "bias" in name and not bool(parameter.any()):
                parameter.normal_(0.0, 0.1)
    return model.eval().requires_grad_(False)


def tiny_models(
    config_kind: Any, model_kind: Any, **changes: Any
) -> Iterator[tuple[dict[str, int], Any]]:
    """Build a model in every shape that its own code takes."""
    for shape in SHAPES:
        try:
            config = shrink(config_kind, shape, **changes)
            torch.manual_seed(0)
            with torch.device("meta"):
                skeleton = model_kind._from_config(config, attn_implementation="eager")
            if sum(p.numel() for p in skeleton.parameters()) > 100_000_000:
                continue
            torch.manual_seed(0)
            model = model_kind._from_config(config, attn_implementation="eager")
            yield shape, strengthen(model)
        except Exception as fault:
            yield shape, fault
