"""The GGUF architectures that are read: names of tensors and settings in a folder, and what differs.

One ``Kind`` per architecture says what a file's names are called in a saved folder, and in its
fields what llama.cpp takes for granted where a file does not say; ``finish`` does what a table
cannot. Reading a file by them is ``gguf_accounting``'s.

References: ggml-org/llama.cpp, ``convert_hf_to_gguf.py`` (``conversion/``), ``src/models/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.records import Array

if TYPE_CHECKING:
    from attnviz.sources.models.gguf_accounting import Reader

Change = Callable[..., Array]


@dataclass(frozen=True)
class Kind:
    """One architecture: its names in a folder, and what llama.cpp takes for granted.

    Parameters
    ----------
    model_type, architecture
        As in ``config.json``.
    block, top
        Tensor of a file without its ending (``attn_q``) → module in a layer, or in the model.
    biased
        Those of ``block`` and ``top`` that have a bias, always.
    flags
        Config setting → groups of tensors; where a file has one of a group in one layer, it must
        have the whole group in all layers. Groups that are absent beside present ones are zeros.
    settings
        More keys → config settings; those in ``required`` must be there.
    fixed
        Config settings that these files do not say.
    renamed
        Our names of common settings → this config's; None where it has none.
    """

    model_type: str
    architecture: str
    block: Mapping[str, str]
    top: Mapping[str, str]
    layers: str = "model.layers."
    biased: frozenset[str] = frozenset()
    flags: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    epsilon: str = "rms"
    is_tied: bool = False
    is_permuted: bool = False
    norms_less_one: bool = False
    has_factors: bool = False
    rotary: str = "whole"
    experts: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[Reader], None] | None = None


def change_of(reader: Reader, name: str, end: str) -> Change | None:
    """Return what undoes llama.cpp's own form of a tensor."""
    kind, config = reader.kind, reader.config
    if kind.is_permuted and name in ("attn_q", "attn_k"):
        n = config["num_attention_heads" if name == "attn_q" else "num_key_value_heads"]
        return lambda w: _halves(w, n)
    if kind.norms_less_one and end == "weight" and name.endswith(("norm", "norm_2")):
        return lambda w: w - np.float32(1)
    if kind.model_type == "gpt2" and end == "weight" and name in kind.block and "norm" not in name:
        return lambda w: w.T  # the library's Conv1D holds (in, out)
    if kind.model_type in ("bloom", "gpt_neox") and name == "attn_qkv":
        n = reader.number("attention.head_count")
        return lambda w: _by_head(w, n)
    if kind.model_type == "falcon" and name == "attn_qkv":
        n, n_kv = (
            reader.number("attention.head_count"),
            reader.n_kv_heads(config["num_attention_heads"]),
        )
        return lambda w: _by_group(w, n, n_kv)
    if name == "ffn_gate_inp_shexp":
        return lambda w: w.reshape(1, -1)
    if name == "shortconv.conv":
        return lambda w: w[:, None]
    return None


def _halves(w: Array, n_heads: int) -> Array:
    """Put neighbouring rows back into the two halves of a head: ``LlamaModel.permute``, undone."""
    pairs = w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, *w.shape[1:])
    return pairs.swapaxes(1, 2).reshape(w.shape)


def _by_head(w: Array, n_heads: int) -> Array:
    """Put q, k and v of each head side by side again: BLOOM and GPT-NeoX."""
    thirds = w.reshape(3, n_heads, w.shape[0] // n_heads // 3, *w.shape[1:])
    return thirds.swapaxes(0, 1).reshape(w.shape)


def _by_group(w: Array, n_heads: int, n_kv_heads: int) -> Array:
    """Put each key head's queries, key and value side by side again: Falcon (``jploski``)."""
    width = w.shape[0] // (n_heads + 2 * n_kv_heads)
    q, k, v = np.split(w, [n_heads * width, (n_heads + n_kv_heads) * width])
    rest = w.shape[1:]
    parts = [part.reshape(n_kv_heads, -1, width, *rest) for part in (q, k, v)]
    return np.concatenate(parts, axis=1).reshape(w.shape)


N_EXPERTS = {
    "mixtral": "num_local_experts",
    "qwen2_moe": "num_experts",
    "qwen3_moe": "num_experts",
}
SLIDING, FULL = "sliding_attention", "full_attention"


def _windows(every: int | None, *, default: int | None = None) -> Callable[[Reader], None]:
    """Read a window and which layers have it: all but each ``every``-th, where a file is silent."""

    def read(reader: Reader) -> None:
        window = reader.number("attention.sliding_window", default or 0)
        pattern = reader.get("attention.sliding_window_pattern", every)
        n_layers, config = reader.n_layers, reader.config
        if not window:
            config["sliding_window"] = None
            config["layer_types"] = [FULL] * n_layers
            return
        if isinstance(pattern, bool):  # a list that is all alike was made one value
            slides = [pattern] * n_layers
        elif isinstance(pattern, int) and pattern > 0:
            slides = [bool((layer + 1) % pattern) for layer in range(n_layers)]
        elif isinstance(pattern, list) and len(pattern) >= n_layers:
            slides = [bool(one) for one in pattern[:n_layers]]
        else:
            raise reader.refuse(
                f"has a window of {window} keys, but does not say which layers have it"
            )
        config["sliding_window"] = int(window)
        config["layer_types"] = [SLIDING if slide else FULL for slide in slides]
        if reader.kind.model_type in ("qwen2", "qwen3", "qwen3_moe", "qwen2_moe"):
            config |= {"use_sliding_window": True, "max_window_layers": 0}

    return read


def _finish_mistral(reader: Reader) -> None:
    reader.config["sliding_window"] = int(reader.number("attention.sliding_window"))


def _finish_phi3(reader: Reader) -> None:
    window = reader.number("attention.sliding_window", 0)
    reader.config["sliding_window"] = int(window) or None
    original = reader.some("rope.scaling.original_context_length")
    if original is not None:
        reader.config["original_max_position_embeddings"] = original


def _scale(large: int) -> Callable[[Reader], None]:
    """Set Gemma's scale: by the width of a head, but of the largest variant by ``d_model / heads``.

    As in llama.cpp, src/models/gemma2.cpp and gemma3.cpp, which tell it by its number of layers.
    """

    def read(reader: Reader) -> None:
        config = reader.config
        scale = reader.some("attention.scale")
        by_head = config["hidden_size"] // config["num_attention_heads"]
        wanted = by_head if config["num_hidden_layers"] == large else config["head_dim"]
        config["query_pre_attn_scalar"] = wanted if scale is None else float(scale) ** -2

    return read


def _finish_gemma2(reader: Reader) -> None:
    _scale(46)(reader)
    _windows(2, default=4096)(reader)
    for key, cap in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        reader.config[key] = float(reader.number(key, cap)) or None


def _finish_gemma3(reader: Reader) -> None:
    _scale(62)(reader)
    _windows(6)(reader)
    reader.config["attn_logit_softcapping"] = reader.get("attn_logit_softcapping") or None
    reader.config["final_logit_softcapping"] = reader.get("final_logit_softcapping") or None
    local = float(reader.number("rope.freq_base_swa", 10000.0))
    reader.config["rope_parameters"] = {
        FULL: reader.config["rope_parameters"],
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


def _finish_granite(reader: Reader) -> None:
    width = reader.config["hidden_size"] // reader.config["num_attention_heads"]
    reader.config.setdefault("attention_multiplier", width**-0.5)
    for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        reader.config[name] = reader.config.get(name) or 1.0


def _finish_smollm3(reader: Reader) -> None:
    # every fourth layer has no positions: llama.cpp, src/models/smollm3.cpp
    reader.config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(reader.n_layers)]
    reader.config |= {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _finish_cohere(reader: Reader) -> None:
    has = [reader.has(f"blk.{i}.attn_q_norm.weight") for i in range(reader.n_layers)]
    reader.config["use_qk_norm"] = any(has)
    for i in range(reader.n_layers if any(has) else 0):
        for which in "qk":
            name = f"blk.{i}.attn_{which}_norm.weight"
            reader.add(f"model.layers.{i}.self_attn.{which}_norm.weight", name)


def _finish_cohere2(reader: Reader) -> None:
    _windows(4)(reader)


def _finish_stablelm(reader: Reader) -> None:
    config, layers = reader.config, range(reader.n_layers)
    norms = [reader.has(f"blk.{i}.ffn_norm.weight") for i in layers]
    told = reader.get("use_parallel_residual", not any(norms))
    if bool(told) == any(norms):
        raise reader.refuse(
            f"says use_parallel_residual = {told}, but its tensors show the opposite"
        )
    config["use_parallel_residual"] = bool(told)
    for i in layers if any(norms) else ():
        for end in ("weight", "bias"):
            reader.add(
                f"model.layers.{i}.post_attention_layernorm.{end}", f"blk.{i}.ffn_norm.{end}"
            )
    config["qk_layernorm"] = any(reader.has(f"blk.{i}.attn_q_norm.weight") for i in layers)
    for i in layers if config["qk_layernorm"] else ():
        for which, name in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            for head in range(config[name]):
                reader.add(
                    f"model.layers.{i}.self_attn.{which}_layernorm.norms.{head}.weight",
                    f"blk.{i}.attn_{which}_norm.weight",
                    lambda w, head=head: w.reshape(-1, w.shape[-1])[head],
                )


def _finish_falcon(reader: Reader) -> None:
    config, layers = reader.config, range(reader.n_layers)
    is_new = any(reader.has(f"blk.{i}.attn_norm_2.weight") for i in layers)
    n_kv = config.pop("num_key_value_heads")
    config |= {
        "new_decoder_architecture": is_new,
        "multi_query": n_kv == 1,
        "num_kv_heads": n_kv,
        "num_ln_in_parallel_attn": 2 if is_new else None,
    }
    if not is_new and n_kv not in (1, config["num_attention_heads"]):
        raise reader.refuse(f"has {n_kv} heads for keys but one norm per layer, which is not read")
    names = [("attn_norm", "ln_mlp"), ("attn_norm_2", "ln_attn")] if is_new else [
        ("attn_norm", "input_layernorm")]  # fmt: skip
    for i in layers:
        for name, module in names:
            for end in ("weight", "bias"):
                reader.add(f"transformer.h.{i}.{module}.{end}", f"blk.{i}.{name}.{end}")


def _finish_bloom(reader: Reader) -> None:
    if reader.get("attention.max_alibi_bias", 8.0) != 8.0:
        raise reader.refuse("says another attention.max_alibi_bias than 8, which is not read")
    if reader.get("feed_forward_length") != 4 * reader.config["hidden_size"]:
        raise reader.refuse("has a feed_forward_length other than 4 times its width: not a BLOOM")


def _finish_gptneox(reader: Reader) -> None:
    reader.config["use_parallel_residual"] = bool(reader.get("use_parallel_residual", True))


def _finish_lfm2(reader: Reader) -> None:
    config, layers = reader.config, range(reader.n_layers)
    told = reader.file.setting("attention.head_count_kv")
    by_tensors = [reader.has(f"blk.{i}.attn_q.weight") for i in layers]
    attends = [n > 0 for n in told] if isinstance(told, list) else by_tensors
    if len(attends) != len(by_tensors):
        raise reader.refuse(f"says heads for keys of {len(attends)} layers, but has {len(layers)}")
    config["layer_types"] = [FULL if one else "conv" for one in attends]
    attention = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj",
                 "attn_output": "out_proj", "attn_q_norm": "q_layernorm",
                 "attn_k_norm": "k_layernorm"}  # fmt: skip
    short = {
        "shortconv.conv": "conv",
        "shortconv.in_proj": "in_proj",
        "shortconv.out_proj": "out_proj",
    }
    for i in layers:
        at, parts = ("self_attn", attention) if attends[i] else ("conv", short)
        for name, module in parts.items():
            parameter = f"model.layers.{i}.{at}.{module}.weight"
            reader.add(parameter, f"blk.{i}.{name}.weight", change_of(reader, name, "weight"))


def _finish_gpt_oss(reader: Reader) -> None:
    _windows(2)(reader)
    for i in range(reader.n_layers):
        at, blk = f"model.layers.{i}.mlp.experts.", f"blk.{i}."
        # stored (E, out, in) each; the library's gate_up is (E, in, 2·out), gate and up in turns
        reader.add(f"model.layers.{i}.self_attn.sinks", f"{blk}attn_sinks.weight")
        both = [f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight"]
        reader.add(
            f"{at}gate_up_proj", both, lambda g, u: _in_turns(g.swapaxes(1, 2), u.swapaxes(1, 2))
        )
        both = [f"{blk}ffn_gate_exps.bias", f"{blk}ffn_up_exps.bias"]
        reader.add(f"{at}gate_up_proj_bias", both, _in_turns)
        reader.add(f"{at}down_proj", f"{blk}ffn_down_exps.weight", lambda w: w.swapaxes(1, 2))
        reader.add(f"{at}down_proj_bias", f"{blk}ffn_down_exps.bias")


def _in_turns(first: Array, second: Array) -> Array:
    """Interleave along the last axis."""
    return np.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


def _finish_t5(reader: Reader) -> None:
    config = reader.config
    is_pair = reader.file.architecture == "t5"
    n_decoder = reader.number("decoder_block_count", config["num_layers"]) if is_pair else 0
    sides = {"enc": ("encoder", config["num_layers"])}
    if is_pair:
        sides["dec"] = ("decoder", n_decoder)
        config["num_decoder_layers"] = n_decoder
        config["decoder_start_token_id"] = reader.get("decoder_start_token_id", 0)
    else:
        reader.get("decoder_start_token_id")  # an encoder does not begin a text
        config["tie_word_embeddings"] = True
    gated = any(reader.has(f"enc.blk.{i}.ffn_gate.weight") for i in range(config["num_layers"]))
    config["feed_forward_proj"] = "gated-gelu" if gated else "relu"
    own_bias = reader.has("enc.blk.1.attn_rel_b.weight")
    if own_bias:
        config["model_type"] = "umt5"
    config["architectures"] = [("UMT5" if own_bias else "T5") + (
        "ForConditionalGeneration" if is_pair else "EncoderModel")]  # fmt: skip
    reader.add("shared.weight", "token_embd.weight")
    if reader.has("output.weight"):
        reader.add("lm_head.weight", "output.weight")
    up = "wi_1" if gated else "wi"
    for short, (side, n_layers) in sides.items():
        reader.add(f"{side}.final_layer_norm.weight", f"{short}.output_norm.weight")
        for i in range(n_layers):
            blk, last = f"{short}.blk.{i}.", 1 if side == "encoder" else 2
            attentions = [("attn", 0, "SelfAttention")]
            if side == "decoder":
                attentions.append(("cross_attn", 1, "EncDecAttention"))
            for name, place, module in attentions:
                at = f"{side}.block.{i}.layer.{place}."
                reader.add(f"{at}layer_norm.weight", f"{blk}{name}_norm.weight")
                for which in "qkvo":
                    reader.add(f"{at}{module}.{which}.weight", f"{blk}{name}_{which}.weight")
            if i == 0 or own_bias:
                at = f"{side}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
                # stored (buckets, heads) as the library has it
                reader.add(at, f"{blk}attn_rel_b.weight")
            at = f"{side}.block.{i}.layer.{last}."
            reader.add(f"{at}layer_norm.weight", f"{blk}ffn_norm.weight")
            reader.add(f"{at}DenseReluDense.{up}.weight", f"{blk}ffn_up.weight")
            reader.add(f"{at}DenseReluDense.wo.weight", f"{blk}ffn_down.weight")
            if gated:
                reader.add(f"{at}DenseReluDense.wi_0.weight", f"{blk}ffn_gate.weight")


_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}  # fmt: skip
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_DECODER = {**_NORMS, **_ATTENTION, **_GATED}
_FOUR_NORMS = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}  # fmt: skip
_QKV = ("attn_q", "attn_k", "attn_v")
_ATTENTION_BIAS = {"attention_bias": (_QKV, ("attn_output",))}
_MLP_BIAS = {"mlp_bias": (("ffn_gate",), ("ffn_up",), ("ffn_down",))}
_SILU, _GELU = {"hidden_act": "silu"}, {"hidden_act": "gelu_pytorch_tanh"}
_RMS, _LAYER = {"epsilon": "rms_norm_eps"}, {"epsilon": "layer_norm_eps"}
_MOE = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size"}  # fmt: skip
_NO_HEAD_DIM = {"head_dim": None}

_LLAMA = Kind(
    "llama", "LlamaForCausalLM", _DECODER, _TOP, flags={**_ATTENTION_BIAS, **_MLP_BIAS},
    fixed=_SILU, renamed=_RMS, is_permuted=True, has_factors=True,
)  # fmt: skip
_QWEN2 = Kind(
    "qwen2", "Qwen2ForCausalLM", _DECODER, _TOP, biased=frozenset(_QKV), fixed=_SILU,
    renamed={**_RMS, **_NO_HEAD_DIM}, finish=_windows(None),
)  # fmt: skip
_QWEN3 = replace(
    _QWEN2, model_type="qwen3", architecture="Qwen3ForCausalLM", block={**_DECODER, **_QK_NORMS},
    biased=frozenset(), flags=_ATTENTION_BIAS, renamed=_RMS,
)  # fmt: skip
_GEMMA = Kind(
    "gemma", "GemmaForCausalLM", _DECODER, _TOP, flags=_ATTENTION_BIAS,
    fixed={**_GELU, "hidden_activation": "gelu_pytorch_tanh"}, renamed=_RMS, norms_less_one=True,
)  # fmt: skip
_GPT2 = Kind(
    "gpt2", "GPT2LMHeadModel",
    {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
     "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    {"token_embd": "transformer.wte", "position_embd": "transformer.wpe",
     "output_norm": "transformer.ln_f", "output": "lm_head"},
    layers="transformer.h.", rotary="none", epsilon="layer",
    biased=frozenset({"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down",
                      "output_norm"}),
    renamed={"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
             "num_attention_heads": "n_head", "num_key_value_heads": None, "head_dim": None,
             "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
             "epsilon": "layer_norm_epsilon"},
    fixed={"activation_function": "gelu_new", "scale_attn_weights": True,
           "scale_attn_by_inverse_layer_idx": False},
)  # fmt: skip
_MIXTRAL = replace(
    _LLAMA, model_type="mixtral", architecture="MixtralForCausalLM", flags={},
    block={**_NORMS, **_ATTENTION, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts={"ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
             "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
             "ffn_down_exps": "block_sparse_moe.experts.{}.w2"},
    settings={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    required=frozenset({"expert_count", "expert_used_count"}),
    fixed={**_SILU, "sliding_window": None},
)  # fmt: skip
_COHERE = Kind(
    "cohere", "CohereForCausalLM", {"attn_norm": "input_layernorm", **_ATTENTION, **_GATED}, _TOP,
    flags=_ATTENTION_BIAS, epsilon="layer", renamed=_LAYER, fixed=_SILU, is_tied=True,
    settings={"logit_scale": "logit_scale"}, required=frozenset({"logit_scale"}),
    finish=_finish_cohere,
)  # fmt: skip
_T5 = Kind(
    "t5", "T5ForConditionalGeneration", {}, {}, rotary="none", epsilon="layer",
    renamed={"hidden_size": "d_model", "num_hidden_layers": "num_layers",
             "num_attention_heads": "num_heads", "num_key_value_heads": None, "head_dim": "d_kv",
             "intermediate_size": "d_ff", "max_position_embeddings": "n_positions",
             "epsilon": "layer_norm_epsilon"},
    settings={"attention.relative_buckets_count": "relative_attention_num_buckets"},
    required=frozenset({"attention.relative_buckets_count", "attention.key_length"}),
    fixed={"relative_attention_max_distance": 128}, finish=_finish_t5,
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    "llama": _LLAMA,
    "mistral": replace(
        _LLAMA, model_type="mistral", architecture="MistralForCausalLM", flags={},
        finish=_finish_mistral,
    ),
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2moe": replace(
        _QWEN2, model_type="qwen2_moe", architecture="Qwen2MoeForCausalLM",
        block={**_NORMS, **_ATTENTION, "ffn_gate_inp": "mlp.gate",
               "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
               "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
               "ffn_up_shexp": "mlp.shared_expert.up_proj",
               "ffn_down_shexp": "mlp.shared_expert.down_proj"},
        experts=_EXPERTS, required=frozenset({*_MOE, "expert_shared_feed_forward_length"}),
        settings={**_MOE, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        fixed={**_SILU, "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "qwen3moe": replace(
        _QWEN3, model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM",
        block={**_NORMS, **_ATTENTION, **_QK_NORMS, "ffn_gate_inp": "mlp.gate"}, experts=_EXPERTS,
        settings=_MOE, required=frozenset(_MOE),
        # llama.cpp runs it so: src/models/qwen3moe.cpp
        fixed={**_SILU, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "gemma": replace(_GEMMA, is_tied=True),
    "gemma2": replace(
        _GEMMA, model_type="gemma2", architecture="Gemma2ForCausalLM", is_tied=True,
        block={**_FOUR_NORMS, **_ATTENTION, **_GATED}, finish=_finish_gemma2,
    ),
    "gemma3": replace(
        _GEMMA, model_type="gemma3_text", architecture="Gemma3ForCausalLM",
        block={**_FOUR_NORMS, **_ATTENTION, **_GATED, **_QK_NORMS}, finish=_finish_gemma3,
    ),
    "phi3": Kind(
        "phi3", "Phi3ForCausalLM",
        {**_NORMS, "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
         "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
        _TOP, renamed={**_RMS, **_NO_HEAD_DIM}, fixed=_SILU, rotary="part", finish=_finish_phi3,
    ),
    "gpt2": _GPT2,
    "starcoder2": Kind(
        "starcoder2", "Starcoder2ForCausalLM",
        {**_NORMS, **_ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}, _TOP,
        biased=frozenset({*_NORMS, *_ATTENTION, "ffn_up", "ffn_down", "output_norm"}),
        epsilon="layer", renamed={"epsilon": "norm_epsilon", **_NO_HEAD_DIM},
        fixed={**_GELU, "use_bias": True}, finish=lambda reader: reader.config.update(
            sliding_window=reader.get("attention.sliding_window") or None),
    ),
    "stablelm": Kind(
        "stablelm", "StableLmForCausalLM",
        {"attn_norm": "input_layernorm", **_ATTENTION, **_GATED}, _TOP,
        biased=frozenset({"attn_norm", "output_norm"}), flags={"use_qkv_bias": (_QKV,)},
        epsilon="layer", renamed={**_LAYER, **_NO_HEAD_DIM}, fixed=_SILU, rotary="part",
        finish=_finish_stablelm,
    ),
    "falcon": Kind(
        "falcon", "FalconForCausalLM",
        {"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
         "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"},
        {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f",
         "output": "lm_head"},
        layers="transformer.h.", biased=frozenset({"output_norm"}), epsilon="layer",
        renamed={"epsilon": "layer_norm_epsilon", "intermediate_size": "ffn_hidden_size",
                 **_NO_HEAD_DIM},
        fixed={"alibi": False, "bias": False, "parallel_attn": True, "activation": "gelu"},
        finish=_finish_falcon,
    ),
    "bloom": Kind(
        "bloom", "BloomForCausalLM",
        {"attn_norm": "input_layernorm", "attn_qkv": "self_attention.query_key_value",
         "attn_output": "self_attention.dense", "ffn_norm": "post_attention_layernorm",
         "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"},
        {"token_embd": "transformer.word_embeddings",
         "token_embd_norm": "transformer.word_embeddings_layernorm",
         "output_norm": "transformer.ln_f", "output": "lm_head"},
        layers="transformer.h.", rotary="none", epsilon="layer",
        biased=frozenset({"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up",
                          "ffn_down", "token_embd_norm", "output_norm"}),
        renamed={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                 "num_key_value_heads": None, "head_dim": None, "intermediate_size": None,
                 "max_position_embeddings": "seq_length", "epsilon": "layer_norm_epsilon"},
        fixed={"apply_residual_connection_post_layernorm": False}, finish=_finish_bloom,
    ),
    "gptneox": Kind(
        "gpt_neox", "GPTNeoXForCausalLM",
        {"attn_norm": "input_layernorm", "attn_qkv": "attention.query_key_value",
         "attn_output": "attention.dense", "ffn_norm": "post_attention_layernorm",
         "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"},
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm",
         "output": "embed_out"},
        layers="gpt_neox.layers.", rotary="part", epsilon="layer",
        biased=frozenset({"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up",
                          "ffn_down", "output_norm"}),
        renamed={**_LAYER, "num_key_value_heads": None, **_NO_HEAD_DIM},
        fixed={"hidden_act": "gelu", "attention_bias": True}, finish=_finish_gptneox,
    ),
    "nemotron": Kind(
        "nemotron", "NemotronForCausalLM",
        {**_NORMS, **_ATTENTION, "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}, _TOP,
        biased=frozenset({*_NORMS, "output_norm"}), norms_less_one=True, epsilon="layer",
        flags={**_ATTENTION_BIAS, "mlp_bias": (("ffn_up",), ("ffn_down",))},
        renamed={"epsilon": "norm_eps"}, fixed={"hidden_act": "relu2"}, rotary="part",
    ),
    "gpt-oss": Kind(
        "gpt_oss", "GptOssForCausalLM",
        {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         **_ATTENTION, "ffn_gate_inp": "mlp.router"},
        _TOP, biased=frozenset({*_ATTENTION, "ffn_gate_inp"}), renamed=_RMS,
        settings={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
                  "expert_feed_forward_length": "intermediate_size"},
        required=frozenset({"expert_count", "expert_used_count"}),
        fixed={**_SILU, "attention_bias": True}, finish=_finish_gpt_oss,
    ),
    "lfm2": Kind(
        "lfm2", "Lfm2ForCausalLM",
        {"attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1",
         "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2"},
        {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm",
         "output": "lm_head"},
        settings={"shortconv.l_cache": "conv_L_cache"}, required=frozenset({"shortconv.l_cache"}),
        renamed={"epsilon": "norm_eps", **_NO_HEAD_DIM},
        fixed={"conv_bias": False, "block_auto_adjust_ff_dim": False}, finish=_finish_lfm2,
    ),
    "olmo2": Kind(
        "olmo2", "Olmo2ForCausalLM",
        {**_ATTENTION, **_GATED, **_QK_NORMS, "post_attention_norm": "post_attention_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"},
        _TOP, flags=_ATTENTION_BIAS, renamed={**_RMS, **_NO_HEAD_DIM}, fixed=_SILU,
    ),
    "granite": replace(
        _LLAMA, model_type="granite", architecture="GraniteForCausalLM", has_factors=False,
        renamed={**_RMS, **_NO_HEAD_DIM},
        settings={"attention.scale": "attention_multiplier",
                  "embedding_scale": "embedding_multiplier",
                  "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"},
        finish=lambda reader: _finish_granite(reader),
    ),
    "smollm3": replace(
        _LLAMA, model_type="smollm3", architecture="SmolLM3ForCausalLM", has_factors=False,
        renamed={**_RMS, **_NO_HEAD_DIM}, finish=_finish_smollm3,
    ),
    "command-r": _COHERE,
    "cohere2": replace(
        _COHERE, model_type="cohere2", architecture="Cohere2ForCausalLM",
        finish=_finish_cohere2,
    ),
    "t5": _T5,
    "t5encoder": replace(_T5, architecture="T5EncoderModel"),
}  # fmt: skip
"""What is read; ``mistral`` and ``mixtral`` are ``llama`` files with a window or with experts."""

ARCHITECTURES = frozenset(KINDS) - {"mistral", "mixtral"}
"""Values of ``general.architecture`` that are read."""
