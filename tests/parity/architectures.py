"""Tiny random models of every kind of attention there is: config by config, weights × 8.

Weights are multiplied by 8 so that attention is peaked: with the default small weights every row
is nearly uniform and a wrong scale or a lost mask hardly shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Architecture:
    """One entry: the library's config class, what it is set to, and what is expected of it."""

    name: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    route: str = "interface"
    features: str = ""
    gain: float = 8.0


def sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, **more,
    }  # fmt: skip


def _grouped(**more: Any) -> dict[str, Any]:
    return sizes(num_key_value_heads=2, **more)


_GPT2 = {
    "vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_BLOOM = {
    "vocab_size": 99, "hidden_size": 32, "n_layer": 3, "n_head": 4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_FALCON = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
_T5 = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_JAMBA = {
    "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
    "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False,
    "mamba_d_state": 8, "mamba_dt_rank": 4,
}  # fmt: skip
_DEEPSEEK = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "num_key_value_heads": 4,
}  # fmt: skip
_QWEN3_NEXT = {
    "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_WINDOW = {"sliding_window": 8}

ARCHITECTURES = (
    Architecture("BERT", "BertConfig", sizes()),
    Architecture("RoBERTa", "RobertaConfig", sizes(pad_token_id=1, bos_token_id=0)),
    Architecture("XLM-RoBERTa", "XLMRobertaConfig", sizes(pad_token_id=1, bos_token_id=0)),
    Architecture(
        "DistilBERT",
        "DistilBertConfig",
        {
            "vocab_size": 99,
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    ),
    Architecture(
        "ALBERT", "AlbertConfig", sizes(embedding_size=16), features="one module for all layers"
    ),
    Architecture("ELECTRA", "ElectraConfig", sizes(embedding_size=16)),
    Architecture(
        "ModernBERT",
        "ModernBertConfig",
        sizes(
            num_hidden_layers=4,
            local_attention=8,
            global_attn_every_n_layers=3,
            cls_token_id=1,
            sep_token_id=2,
        ),
        features="local window in both directions",
    ),
    Architecture(
        "DeBERTa-v2",
        "DebertaV2Config",
        sizes(
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
            max_relative_positions=16,
        ),
        route="tap",
        features="position products as bias",
    ),
    Architecture(
        "DeBERTa",
        "DebertaConfig",
        sizes(relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16),
        route="tap",
        features="position products as bias",
    ),
    Architecture(
        "MPNet",
        "MPNetConfig",
        sizes(pad_token_id=1, bos_token_id=0),
        route="tap",
        features="relative bias",
    ),
    Architecture(
        "XLNet",
        "XLNetConfig",
        {
            "vocab_size": 99,
            "d_model": 32,
            "n_layer": 3,
            "n_head": 4,
            "d_inner": 48,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        route="tap",
        features="position products as bias",
    ),
    Architecture("GPT-2", "GPT2Config", _GPT2, features="fused c_attn"),
    Architecture(
        "GPT-2, scaled by layer",
        "GPT2Config",
        {**_GPT2, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
        features="scale by layer",
    ),
    Architecture(
        "GPT-Neo",
        "GPTNeoConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 48,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        route="tap",
        features="unscaled; local window",
    ),
    Architecture("GPT-NeoX", "GPTNeoXConfig", sizes(), features="fused by head"),
    Architecture("GPT-J", "GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    Architecture(
        "OPT",
        "OPTConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
        },
        features="q scaled before the product",
    ),
    Architecture("BLOOM", "BloomConfig", _BLOOM, route="tap", features="ALiBi as bias"),
    Architecture("Llama", "LlamaConfig", _grouped(), features="grouped heads"),
    Architecture("Mistral", "MistralConfig", _grouped(**_WINDOW), features="window"),
    Architecture(
        "Mixtral",
        "MixtralConfig",
        _grouped(num_local_experts=4, sliding_window=None),
        features="grouped heads",
    ),
    Architecture("Qwen2", "Qwen2Config", _grouped(), features="grouped heads"),
    Architecture(
        "Qwen2, window from layer 1",
        "Qwen2Config",
        _grouped(use_sliding_window=True, max_window_layers=1, **_WINDOW),
        features="window by layer",
    ),
    Architecture("Qwen3", "Qwen3Config", _grouped(head_dim=8), features="q and k normed"),
    Architecture(
        "Qwen3-MoE",
        "Qwen3MoeConfig",
        _grouped(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
        features="q and k normed",
    ),
    Architecture("Gemma", "GemmaConfig", _grouped(head_dim=8), features="grouped heads"),
    Architecture(
        "Gemma 2",
        "Gemma2Config",
        _grouped(head_dim=8, query_pre_attn_scalar=4, attn_logit_softcapping=2.0, **_WINDOW),
        features="softcap; window by layer",
    ),
    Architecture(
        "Gemma 3",
        "Gemma3TextConfig",
        _grouped(head_dim=8, query_pre_attn_scalar=8, sliding_window_pattern=2, **_WINDOW),
        features="window by layer; q and k normed",
    ),
    Architecture("Phi-3", "Phi3Config", _grouped(**_WINDOW), features="fused qkv; window"),
    Architecture("Phi", "PhiConfig", sizes(), features="partial rotary"),
    Architecture(
        "Falcon",
        "FalconConfig",
        {**_FALCON, "multi_query": True},
        route="tap",
        features="one key head",
    ),
    Architecture(
        "Falcon, ALiBi",
        "FalconConfig",
        {**_FALCON, "alibi": True, "multi_query": False},
        route="tap",
        features="ALiBi as bias",
    ),
    Architecture(
        "MPT",
        "MptConfig",
        {
            "vocab_size": 99,
            "d_model": 32,
            "n_layers": 3,
            "n_heads": 4,
            "max_seq_len": 64,
            "expansion_ratio": 2,
        },
        route="tap",
        features="ALiBi as bias",
    ),
    Architecture("StableLM", "StableLmConfig", _grouped(), features="partial rotary"),
    Architecture("Cohere", "CohereConfig", _grouped(), features="grouped heads"),
    Architecture(
        "Cohere 2",
        "Cohere2Config",
        _grouped(sliding_window_pattern=2, **_WINDOW),
        features="window by layer",
    ),
    Architecture("OLMo 2", "Olmo2Config", _grouped(), features="q and k normed"),
    Architecture(
        "Granite",
        "GraniteConfig",
        _grouped(attention_multiplier=0.3),
        features="scale from the config",
    ),
    Architecture("StarCoder 2", "Starcoder2Config", _grouped(**_WINDOW), features="window"),
    Architecture(
        "GPT-OSS",
        "GptOssConfig",
        _grouped(head_dim=8, num_local_experts=4, num_experts_per_tok=2, **_WINDOW),
        features="sinks; window by layer",
    ),
    Architecture(
        "DeepSeek-V3",
        "DeepseekV3Config",
        sizes(**_DEEPSEEK),
        features="latent q, k, v: 16 and 12 wide",
    ),
    Architecture(
        "Llama 4",
        "Llama4TextConfig",
        _grouped(
            head_dim=8,
            num_hidden_layers=4,
            intermediate_size_mlp=48,
            num_local_experts=2,
            attention_chunk_size=8,
            no_rope_layer_interval=4,
        ),
        features="chunks",
    ),
    Architecture("SmolLM3", "SmolLM3Config", _grouped(), features="rotary by layer"),
    Architecture(
        "T5", "T5Config", _T5, features="relative bias; encoder, decoder, cross", gain=1.5
    ),
    Architecture(
        "mT5", "MT5Config", _T5, features="relative bias; encoder, decoder, cross", gain=1.5
    ),
    Architecture(
        "UMT5", "UMT5Config", _T5, features="relative bias; encoder, decoder, cross", gain=1.5
    ),
    Architecture("BART", "BartConfig", BART, features="encoder, decoder, cross"),
    Architecture("mBART", "MBartConfig", BART, features="encoder, decoder, cross"),
    Architecture("Pegasus", "PegasusConfig", BART, features="encoder, decoder, cross"),
    Architecture(
        "Jamba",
        "JambaConfig",
        _grouped(num_hidden_layers=4, **_JAMBA),
        features="attention in layers 1, 3",
    ),
    Architecture(
        "Qwen3-Next",
        "Qwen3NextConfig",
        _grouped(num_hidden_layers=4, **_QWEN3_NEXT),
        features="attention in layer 3",
    ),
    Architecture(
        "Falcon-H1",
        "FalconH1Config",
        _grouped(
            mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1
        ),
        features="beside Mamba",
    ),
    Architecture(
        "LFM2",
        "Lfm2Config",
        _grouped(num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
        features="attention in layers 1, 3",
    ),
    Architecture(
        "CLIP text", "CLIPTextConfig", sizes(), features="two towers: the text one", gain=4.0
    ),
    Architecture(
        "ConvBERT",
        "ConvBertConfig",
        sizes(embedding_size=32),
        route="tap",
        features="half of its heads, the rest are convolutions; one text at a time",
    ),
)
"""Text models; ``route`` says how each is read."""


def build(entry: Architecture, *, head: bool = False) -> Any:
    """Build a tiny model from its config, every weight matrix × gain, the same on every run."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, entry.config)(**entry.settings)
    kind = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                parameter.normal_(0.0, 1.0)
            elif "relative_attention_bias" in name:
                parameter.normal_(0.0, 2.0)
            elif parameter.dim() >= 2 and "embed" not in name and "norm" not in name.lower():
                parameter.mul_(entry.gain)
    return model.requires_grad_(False)
