"""config.json as the families of the light engine read it: their keys, kinds and numbers, damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzz.kinds import Kind
from fuzz.kinds.config_inputs import CONFIG_VALUES, FAMILIES, MORE_FIELDS, change_config, encode
from fuzz.kinds.light import run_light

_SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
_LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
         "original_max_position_embeddings": 16, "rope_theta": 1e4}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "gpt_neox": {**_SMALL, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]},
    "modernbert": {**_SMALL, "model_type": "modernbert", "architectures": ["ModernBertModel"],
                   "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    "qwen3_moe": {**_GROUPED, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
                  "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1,
                  "moe_intermediate_size": 16, "decoder_sparse_step": 2},
    "cohere2": {**_SMALL, "num_key_value_heads": 2, "model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"],
                "sliding_window": 4, "sliding_window_pattern": 2},
    "phi3": {**_GROUPED, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
             "original_max_position_embeddings": 16, "rope_parameters": _LONG},
    "gemma3_text": {**_GROUPED, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
                    "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "mpnet": {**_SMALL, "model_type": "mpnet", "architectures": ["MPNetModel"]},
}  # fmt: skip
SOUND = {**{n: FAMILIES[n] for n in FAMILIES if n != "bloom"}, **_OWN}
_FIELDS = (*MORE_FIELDS, "no_rope_layers", "no_rope_layer_interval", "local_attention", "rotary_pct",
           "query_pre_attn_scalar", "norm_eps", "norm_bias", "moe_intermediate_size", "embedding_size",
           "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "num_local_experts", "n_positions",
           "original_max_position_embeddings", "relative_attention_num_buckets", "logit_scale",
           "scale_attn_by_inverse_layer_idx", "num_layers", "n_layer", "type_vocab_size")  # fmt: skip


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Damage the config of one family's folder."""
    family = draw.choice(tuple(SOUND))
    config = change_config(SOUND[family], draw, _FIELDS, (*CONFIG_VALUES, _LONG, *SOUND))
    return {f"{family}/config.json": encode(config, draw)}


def prepare(folder: Path) -> None:
    """Make a whole tiny model of every family."""
    import torch

    from attnviz.sources.models.library import load_transformers

    torch.set_num_threads(1)
    transformers = load_transformers()
    for name, settings in SOUND.items():
        kind = getattr(transformers, settings["architectures"][0])
        kind(transformers.AutoConfig.for_model(**settings)).save_pretrained(folder / name)
        (folder / name / "config.json").write_text(json.dumps(settings))
        run_light(folder / name)


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Run the folder that the config lies in."""
    return run_light(folder / next(iter(files)).partition("/")[0], "the same weights")


KIND = Kind(make, read, prepare)
