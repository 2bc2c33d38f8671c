"""Tiny models of every family the light engine knows: config and weights drawn from a seed.

A config varies in what families differ by: groups of heads, biases, norms, rotary positions,
windows, caps, tied embeddings. Weights are drawn so that attention is peaked and every tensor
matters: norms are not 1, biases not 0.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "mpnet", "modernbert",
            "t5", "mt5", "umt5")  # fmt: skip
DECODERS = ("gpt2", "gpt_neox", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe",
            "smollm3", "olmo", "olmo2", "granite", "stablelm", "phi3", "phi", "starcoder2",
            "cohere", "cohere2", "gemma", "gemma2", "gemma3_text")  # fmt: skip
N_WORDS, N_POSITIONS = 97, 64


def draw_config(kind: str, seed: int) -> dict[str, Any]:
    """Draw the settings of one model of a kind."""
    draw = random.Random(f"{kind} {seed}")
    n_heads = draw.choice((2, 4, 6))
    n_kv = draw.choice([n for n in (1, 2, 3, n_heads) if n_heads % n == 0])
    width = 8 * n_heads
    found: dict[str, Any] = {
        "vocab_size": N_WORDS, "hidden_size": width, "num_hidden_layers": draw.choice((2, 3)),
        "num_attention_heads": n_heads, "intermediate_size": draw.choice((24, 40)),
        "max_position_embeddings": N_POSITIONS, "pad_token_id": 0,
    }  # fmt: skip
    more = _ENCODER if kind in ENCODERS else _DECODER
    return more[kind](found, draw, n_heads, n_kv) if kind in more else found


def _activation(draw: random.Random) -> str:
    return draw.choice(("gelu", "gelu_new", "silu", "relu", "gelu_pytorch_tanh"))


def _rope(draw: random.Random, d_turned: int) -> dict[str, Any]:
    """Draw one of the library's kinds; the trained length is below the probe's."""
    kind = draw.choice(("none", "linear", "dynamic", "yarn", "yarn", "longrope", "llama3"))
    theta = draw.choice((10000.0, 500.0))
    if kind == "none":
        return {"rope_theta": theta}
    half = d_turned // 2
    more: dict[str, dict[str, Any]] = {
        "linear": {"factor": 3.0},
        "dynamic": {"factor": 2.0},
        "yarn": draw.choice((
            {"factor": 4.0, "original_max_position_embeddings": 16},
            {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
             "beta_slow": 2.0, "attention_factor": 1.3},
            {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
             "mscale_all_dim": 0.4, "truncate": False},
        )),
        "longrope": {
            "short_factor": [1.0 + 0.1 * i for i in range(half)],
            "long_factor": [1.5 + 0.3 * i for i in range(half)],
            "original_max_position_embeddings": draw.choice((16, 48)),
        },
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                   "original_max_position_embeddings": 16},
    }  # fmt: skip
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more[kind]}}


def _plain(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return found | {"hidden_act": _activation(draw), "layer_norm_eps": draw.choice((1e-12, 1e-2))}


def _roberta(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _plain(found, draw, n, kv) | {"pad_token_id": draw.choice((1, 3)), "type_vocab_size": 1}


def _electra(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _plain(found, draw, n, kv) | {
        "embedding_size": draw.choice((16, found["hidden_size"])),
        "num_attention_heads": n,
    }


def _distilbert(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return {
        "vocab_size": N_WORDS, "dim": found["hidden_size"], "n_layers": 2, "n_heads": n,
        "hidden_dim": 40, "max_position_embeddings": N_POSITIONS,
        "activation": draw.choice(("gelu", "relu")),
    }  # fmt: skip


def _mpnet(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _plain(found, draw, n, kv) | {"pad_token_id": 1}


def _modernbert(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return found | {
        "num_hidden_layers": 4, "local_attention": draw.choice((8, 6)),
        "global_attn_every_n_layers": draw.choice((2, 3)), "norm_bias": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5,
        "hidden_activation": _activation(draw), "cls_token_id": 1, "sep_token_id": 2,
        "norm_eps": draw.choice((1e-5, 1e-2)),
    }  # fmt: skip


def _t5(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return {
        "vocab_size": N_WORDS, "d_model": found["hidden_size"], "d_kv": draw.choice((8, 12)),
        "d_ff": 40, "num_layers": 3, "num_decoder_layers": 1, "num_heads": n,
        "relative_attention_num_buckets": draw.choice((8, 12)),
        "relative_attention_max_distance": draw.choice((12, 20)),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu", "gated-silu")),
        "layer_norm_epsilon": draw.choice((1e-6, 1e-2)), "decoder_start_token_id": 0,
    }  # fmt: skip


_ENCODER = {
    "bert": _plain, "roberta": _roberta, "xlm-roberta": _roberta, "camembert": _roberta,
    "electra": _electra, "distilbert": _distilbert, "mpnet": _mpnet, "modernbert": _modernbert,
    "t5": _t5, "mt5": _t5, "umt5": _t5,
}  # fmt: skip


def _gpt2(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return {
        "vocab_size": N_WORDS, "n_positions": N_POSITIONS, "n_embd": found["hidden_size"],
        "n_layer": 3, "n_head": n, "n_inner": draw.choice((None, 40)),
        "activation_function": _activation(draw), "layer_norm_epsilon": draw.choice((1e-5, 1e-2)),
        "scale_attn_weights": draw.random() < 0.7,
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.5, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip


def _neox(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return found | {
        "hidden_act": _activation(draw), "use_parallel_residual": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5, "layer_norm_eps": draw.choice((1e-5, 1e-2)),
        "rotary_pct": draw.choice((0.25, 0.5, 1.0)), "eos_token_id": 2,
    }  # fmt: skip


def _decoder(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return found | {
        "num_key_value_heads": kv, "rms_norm_eps": draw.choice((1e-6, 1e-2)),
        "tie_word_embeddings": draw.random() < 0.5, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip


def _llama(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    head = draw.choice((8, 16))
    return _decoder(found, draw, n, kv) | {
        "attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5, "head_dim": head,
        "hidden_act": draw.choice(("silu", "gelu", "relu")), **_rope(draw, head),
    }  # fmt: skip


def _window(draw: random.Random) -> dict[str, Any]:
    return {"sliding_window": draw.choice((5, 8))}


def _mistral(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {
        "head_dim": draw.choice((8, 16)), "sliding_window": draw.choice((None, 5, 8))
    }  # fmt: skip


def _mixtral(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {
        "num_local_experts": 5, "num_experts_per_tok": draw.choice((1, 2, 3)),
        "sliding_window": draw.choice((None, 6)),
    }  # fmt: skip


def _qwen(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    uses = draw.random() < 0.6
    return _decoder(found, draw, n, kv) | {
        "use_sliding_window": uses, "max_window_layers": 1, **_window(draw), **_rope(draw, 8)
    }  # fmt: skip


def _qwen3(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _qwen(found, draw, n, kv) | {
        "head_dim": 8, "attention_bias": draw.random() < 0.5
    }  # fmt: skip


def _qwen3_moe(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {
        "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": draw.random() < 0.5, "decoder_sparse_step": draw.choice((1, 2)),
        "mlp_only_layers": draw.choice(([], [1])), "attention_bias": draw.random() < 0.5,
    }  # fmt: skip


def _smollm3(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    uses = draw.random() < 0.5
    return _decoder(found, draw, n, kv) | {
        "no_rope_layer_interval": 2, "use_sliding_window": uses,
        "sliding_window": 5 if uses else None, "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
    }  # fmt: skip


def _olmo(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {"attention_bias": draw.random() < 0.5}
    del made["rms_norm_eps"]
    return made


def _olmo2(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {"attention_bias": draw.random() < 0.5, **_rope(draw, 8)}


def _granite(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {
        "attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    }  # fmt: skip


def _stablelm(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {
        "use_qkv_bias": draw.random() < 0.5, "qk_layernorm": draw.random() < 0.5,
        "use_parallel_residual": draw.random() < 0.5, "layer_norm_eps": draw.choice((1e-5, 1e-2)),
        "partial_rotary_factor": draw.choice((0.25, 0.5, 1.0)),
    }  # fmt: skip
    del made["rms_norm_eps"]
    return made


def _phi3(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {"sliding_window": draw.choice((None, 6))}
    if draw.random() < 0.6:
        made |= {
            "original_max_position_embeddings": draw.choice((16, 48)),
            "rope_scaling": {"type": "longrope",
                             "short_factor": [1.0, 1.1, 1.2, 1.3],
                             "long_factor": [1.5, 2.0, 2.5, 3.0]},
        }  # fmt: skip
    return made


def _phi(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {
        "hidden_act": _activation(draw), "partial_rotary_factor": draw.choice((0.5, 1.0)),
        "qk_layernorm": draw.random() < 0.5, "layer_norm_eps": draw.choice((1e-5, 1e-2)),
    }  # fmt: skip
    del made["rms_norm_eps"]
    return made


def _starcoder2(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {
        "use_bias": draw.random() < 0.6, "sliding_window": draw.choice((None, 6)),
        "norm_epsilon": draw.choice((1e-5, 1e-2)),
    }  # fmt: skip
    del made["rms_norm_eps"]
    return made


def _cohere(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _decoder(found, draw, n, kv) | {
        "use_qk_norm": draw.random() < 0.5, "attention_bias": draw.random() < 0.5,
        "layer_norm_eps": draw.choice((1e-5, 1e-2)), "logit_scale": 0.5,
    }  # fmt: skip
    del made["rms_norm_eps"]
    return made


def _cohere2(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _cohere(found, draw, n, kv) | {"sliding_window_pattern": 2, **_window(draw)}
    del made["use_qk_norm"]
    return made


def _gemma(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _decoder(found, draw, n, kv) | {
        "head_dim": draw.choice((8, 16)), "attention_bias": draw.random() < 0.5
    }  # fmt: skip


def _gemma2(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    return _gemma(found, draw, n, kv) | {
        "query_pre_attn_scalar": draw.choice((4, 24)),
        "attn_logit_softcapping": draw.choice((2.0, 50.0, None)), **_window(draw),
    }  # fmt: skip


def _gemma3(found: dict[str, Any], draw: random.Random, n: int, kv: int) -> dict[str, Any]:
    made = _gemma(found, draw, n, kv) | {
        "query_pre_attn_scalar": draw.choice((4, 24)), "sliding_window_pattern": 2,
        "rope_local_base_freq": draw.choice((10000.0, 300.0)), **_window(draw),
    }  # fmt: skip
    if draw.random() < 0.5:
        made["rope_scaling"] = {"rope_type": "linear", "factor": 3.0}
    return made


_DECODER = {
    "gpt2": _gpt2, "gpt_neox": _neox, "llama": _llama, "mistral": _mistral, "mixtral": _mixtral,
    "qwen2": _qwen, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "smollm3": _smollm3, "olmo": _olmo,
    "olmo2": _olmo2, "granite": _granite, "stablelm": _stablelm, "phi3": _phi3, "phi": _phi,
    "starcoder2": _starcoder2, "cohere": _cohere, "cohere2": _cohere2, "gemma": _gemma,
    "gemma2": _gemma2, "gemma3_text": _gemma3,
}  # fmt: skip


def build(kind: str, seed: int, *, head: bool = False, **changes: Any) -> Any:
    """Build the library's model of a drawn config, on eager attention, its weights drawn too."""
    from attnviz.sources.models.library import load_transformers

    transformers = load_transformers()
    settings = draw_config(kind, seed) | changes
    config = transformers.AutoConfig.for_model(kind, **settings)
    maker = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    model = maker.from_config(config, attn_implementation="eager").eval()
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            shape = tuple(values.shape)
            numbers = draw.standard_normal(shape)
            if values.dim() >= 2 and "norm" not in name.lower():
                is_table = "embed" in name or "wte" in name or "wpe" in name or "shared" in name
                scale = 0.5 if is_table else 0.75 / np.sqrt(shape[-1])
                if name.endswith("Attention.q.weight"):
                    scale *= 0.4  # T5 has no scale: its q is drawn smaller, as the library does
                numbers = numbers * (scale if "relative" not in name else 1.0)
            else:
                numbers = 0.2 * numbers + (
                    1.0 if name.endswith("weight") and "gemma" not in kind else 0.0
                )
            values.copy_(torch.from_numpy(numbers))
    return model.requires_grad_(False)


def save(model: Any, folder: Path) -> dict[str, Any]:
    """Write a model as the library does, and return its config."""
    model.save_pretrained(str(folder))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def theirs(model: Any, ids: list[int]) -> tuple[list[Any], Any]:
    """Run the library's model: its weights per layer (H, L, S), and the final states (L, D)."""
    body = model.base_model if hasattr(model, "lm_head") else model
    body = body.encoder if getattr(body.config, "is_encoder_decoder", False) else body
    inputs = torch.tensor([ids])
    with torch.inference_mode():
        out = body(input_ids=inputs, attention_mask=torch.ones_like(inputs), output_attentions=True)
    return [w[0].numpy() for w in out.attentions], out.last_hidden_state[0].numpy()
