"""What a GGUF file means: every metadata key and every tensor accounted for, or the file is refused.

A key or tensor that nobody asks for is how a wrong number comes to look right: rope factors, a
bias, a softcap that stay behind in the file change attention, and nothing says so. So there is a
table of what each architecture may hold. What the table does not know is an error that names it.

Names and permutations: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and
convert_hf_to_gguf.py; defaults where a key is absent: src/llama-model.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnviz.errors import InputError
from attnviz.records import Array
from attnviz.sources.models.gguf import Gguf


@dataclass(frozen=True, slots=True)
class Family:
    """How llama.cpp writes one architecture, and what the library calls the same things.

    Parameters
    ----------
    model_type
        The library's name of the architecture; ``head`` its class with a language head.
    settings
        Key without the architecture's prefix → field of the config.
    parts
        Name of a tensor inside a block → name of the module inside a layer.
    outside
        The same for tensors outside of blocks.
    layer
        Where layers stand in the library's model.
    permuted
        Rows of q and k are stored for rotation of neighbours, not of halves.
    adds_one
        Norms are stored with 1 added.
    transposed
        Matrices that the library holds as (in, out).
    """

    model_type: str
    head: str
    settings: Mapping[str, str]
    parts: Mapping[str, str]
    outside: Mapping[str, str]
    layer: str = "model.layers"
    permuted: bool = False
    adds_one: bool = False
    transposed: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)


_SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
_RMS = {**_SIZES, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = {
    **_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}
_EXPERT_SIZES = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_MOE_PARTS = {k: v for k, v in _PARTS.items() if k not in ("ffn_gate", "ffn_up", "ffn_down")}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", _RMS, _PARTS, _OUTSIDE, permuted=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _RMS, _PARTS, _OUTSIDE),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _RMS, {**_PARTS, **_QK_NORMS}, _OUTSIDE),
    "qwen2moe": Family(
        "qwen2_moe", "Qwen2MoeForCausalLM",
        {**_RMS, **_EXPERT_SIZES, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        {
            **_MOE_PARTS, **_EXPERTS, "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        _OUTSIDE, fixed={"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": False},
    ),
    "qwen3moe": Family(
        "qwen3_moe", "Qwen3MoeForCausalLM", {**_RMS, **_EXPERT_SIZES},
        {**_MOE_PARTS, **_QK_NORMS, **_EXPERTS}, _OUTSIDE,
        fixed={"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    ),
    "gemma2": Family(
        "gemma2", "Gemma2ForCausalLM",
        {
            **_RMS, "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        _GEMMA, _OUTSIDE, adds_one=True,
    ),
    "gemma3": Family(
        "gemma3_text", "Gemma3ForCausalLM",
        {
            **_RMS, "attention.sliding_window": "sliding_window",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        {**_GEMMA, **_QK_NORMS}, _OUTSIDE, adds_one=True,
    ),
    "phi3": Family(
        "phi3", "Phi3ForCausalLM", {**_RMS, "attention.sliding_window": "sliding_window"},
        {
            "attn_norm": "input_layernorm", "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj",
        },
        _OUTSIDE,
    ),
    "starcoder2": Family(
        "starcoder2", "Starcoder2ForCausalLM",
        {**_SIZES, "attention.layer_norm_epsilon": "norm_epsilon",
         "attention.sliding_window": "sliding_window"},
        {**{k: v for k, v in _PARTS.items() if not k.startswith("ffn_gate")},
         "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        _OUTSIDE, fixed={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "stablelm": Family(
        "stablelm", "StableLmForCausalLM",
        {**_SIZES, "attention.layer_norm_epsilon": "layer_norm_eps",
         "use_parallel_residual": "use_parallel_residual"},
        _PARTS, _OUTSIDE,
    ),
    "gpt2": Family(
        "gpt2", "GPT2LMHeadModel",
        {
            "context_length": "n_positions", "block_count": "n_layer", "embedding_length": "n_embd",
            "feed_forward_length": "n_inner", "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon", "vocab_size": "vocab_size",
        },
        {
            "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
        },
        {"token_embd": "transformer.wte", "position_embd": "transformer.wpe",
         "output_norm": "transformer.ln_f", "output": "lm_head"},
        layer="transformer.h",
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
}  # fmt: skip
"""Architectures that are read, by llama.cpp's name."""

_LEGACY_HEADS = {46: "gemma2", 62: "gemma3"}
"""Numbers of layers of the 27 B models, whose scale follows d_model / n_heads (llama-model.cpp)."""

_WITHOUT_EFFECT = re.compile(
    r"general\.(?!architecture$|alignment$).*|split\..*|tokenizer\..*|quantize\..*|imatrix\..*"
)
_OWN_WITHOUT_EFFECT = {"tensor_data_layout", "rope.scaling.finetuned"}
_ROPE_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


def config_of(file: Gguf) -> dict[str, Any]:
    """Return the config of the library's model that a file describes.

    Raises
    ------
    InputError
        An architecture that is not read, a key that is not known, or one whose number the
        library's model cannot take; names it.
    """
    name, family = file.path.name, _family(file)
    settings = _own_settings(file)
    config: dict[str, Any] = {
        "model_type": family.model_type, "architectures": [family.head], **family.fixed,
        "torch_dtype": "float32",
    }  # fmt: skip
    taken = set(_OWN_WITHOUT_EFFECT)
    for key, wanted in family.settings.items():
        taken.add(key)
        if key in settings:
            config[wanted] = _one(file, key, settings[key])
    for key, wanted in family.settings.items():
        if wanted not in config and key not in _MAY_LACK:
            raise InputError(
                f"{name} does not say {file.architecture}.{key}: its metadata is damaged"
            )
    _check_whole(file, family, int(config[family.settings["block_count"]]))
    config.setdefault("vocab_size", file.tensors["token_embd.weight"].shape[0])
    n_heads = int(config[family.settings["attention.head_count"]])
    width = int(config[family.settings["embedding_length"]])
    if "attention.head_count_kv" in family.settings:
        config.setdefault("num_key_value_heads", n_heads)
    taken |= {"attention.key_length", "attention.value_length", "attention.scale"}
    taken |= {"attention.causal"}
    head_width = int(settings.get("attention.key_length", width // n_heads))
    if settings.get("attention.value_length", head_width) != head_width:
        raise InputError(f"{name}: keys and values of different width are not read")
    if family.model_type not in ("gpt2", "starcoder2", "phi3", "stablelm", "qwen2_moe", "qwen2"):
        config["head_dim"] = head_width
    elif head_width * n_heads != width:
        raise InputError(f"{name}: {n_heads} heads of {head_width} do not make up {width}")
    if settings.get("attention.causal", True) is not True:
        raise InputError(
            f"{name} is not causal (attention.causal): it is not read as {file.architecture}"
        )
    scale = _set_scale(file, config, settings, width, n_heads, head_width)
    given = settings.get("attention.scale", 0.0) or scale
    if not math.isclose(given, scale, rel_tol=1e-5):
        raise InputError(
            f"{name} says attention.scale = {given}: {file.architecture} has {scale:.6g}"
        )
    if family.model_type != "gpt2":
        taken |= _set_rope(file, config, settings, head_width)
    _set_windows(file, config, settings)
    _set_biases(file, config)
    for word in ("bos", "eos", "pad"):  # the library's own defaults lie beyond a small vocabulary
        key = "padding" if word == "pad" else word
        config[f"{word}_token_id"] = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for key, value in settings.items():
        if key not in taken:
            raise InputError(
                f"{name} says {file.architecture}.{key[:80]} = {str(value)[:40]}: it is not known what "
                f"that means for {file.architecture}, so its attention cannot be shown exactly"
            )
    return config


_MAY_LACK = {
    "vocab_size", "attention.head_count_kv", "attention.sliding_window", "attn_logit_softcapping",
    "final_logit_softcapping", "use_parallel_residual",
}  # fmt: skip


def _check_whole(file: Gguf, family: Family, n_layers: int) -> None:
    """Refuse a file without a tensor that its architecture needs: nothing is drawn in its place."""
    wanted = [f"{part}.weight" for part in family.outside if part != "output"]
    wanted += [
        f"{part}.bias" for part in family.outside if part == "output_norm" and _has_biases(file)
    ]
    is_parallel = file.setting(
        "use_parallel_residual", not any(".ffn_norm." in n for n in file.tensors)
    )
    free = {"ffn_norm"} if family.model_type == "stablelm" and is_parallel else set()
    for i in range(n_layers):
        wanted += [f"blk.{i}.{part}.weight" for part in family.parts if part not in free]
        wanted += [f"blk.{i}.{part}.bias" for part in _biased(file, family)]
    missing = [name for name in wanted if name not in file.tensors]
    if missing:
        raise InputError(
            f"{file.path.name} lacks {len(missing)} tensors of its {n_layers} layers, first "
            f"{missing[0]!r}: nothing stands in for them"
        )


def _biased(file: Gguf, family: Family) -> list[str]:
    """Return which parts of every layer must have a bias: those that have one somewhere."""
    found = {n.split(".")[2] for n in file.tensors if n.startswith("blk.") and n.endswith(".bias")}
    if found & {"attn_q", "attn_k", "attn_v"} or family.model_type in ("qwen2", "qwen2_moe"):
        found |= {"attn_q", "attn_k", "attn_v"}
    return sorted(found & set(family.parts))


def _has_biases(file: Gguf) -> bool:
    return file.architecture in ("gpt2", "starcoder2", "stablelm")


def _family(file: Gguf) -> Family:
    if file.architecture not in FAMILIES:
        raise InputError(
            f"{file.path.name} is of the architecture {file.architecture[:40]!r}: GGUF files are read of "
            f"{', '.join(sorted(FAMILIES))}; give the model's folder instead"
        )
    return FAMILIES[file.architecture]


def _own_settings(file: Gguf) -> dict[str, Any]:
    """Return the keys of the architecture without its prefix; refuse those of nobody."""
    prefix = f"{file.architecture}."
    found = {}
    for key, value in file.metadata.items():
        if key.startswith(prefix):
            found[key.removeprefix(prefix)] = value
        elif key not in (
            "general.architecture",
            "general.alignment",
        ) and not _WITHOUT_EFFECT.fullmatch(key):
            raise InputError(f"{file.path.name} says {key[:80]}: it is not known what that means")
    return found


def _one(file: Gguf, key: str, value: Any) -> Any:
    """Return one number for all layers; a list that differs by layer is refused."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise InputError(f"{file.path.name}: {key} differs by layer, which is not read")
    return value[0]


def _set_scale(
    file: Gguf, config: dict[str, Any], settings: Mapping[str, Any],
    width: int, n_heads: int, head_width: int,
) -> float:  # fmt: skip
    """Set what Gemma divides scores by, which no key holds; return the scale of q·k."""
    if not file.architecture.startswith("gemma"):
        return float(head_width**-0.5)
    is_largest = _LEGACY_HEADS.get(int(config.get("num_hidden_layers", 0))) == file.architecture
    config["query_pre_attn_scalar"] = width // n_heads if is_largest else head_width
    if settings.get("attention.scale"):
        config["query_pre_attn_scalar"] = settings["attention.scale"] ** -2
    if file.architecture == "gemma2":
        config.setdefault("attn_logit_softcapping", 50.0)  # llama.cpp's own defaults
        config.setdefault("final_logit_softcapping", 30.0)
    return float(config["query_pre_attn_scalar"] ** -0.5)


def _set_rope(
    file: Gguf, config: dict[str, Any], settings: Mapping[str, Any], head_width: int
) -> set[str]:
    """Set base, scaling and width of the rotation; return the keys that were used."""
    name = file.path.name
    keys = {
        "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scaling.type",
        "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier", "rope.scale_linear",
    }  # fmt: skip
    rope: dict[str, Any] = {
        "rope_type": "default", "rope_theta": float(settings.get("rope.freq_base", 10000.0)),
    }  # fmt: skip
    n_rotated = int(settings.get("rope.dimension_count", head_width))
    if n_rotated != head_width:
        if file.architecture not in ("stablelm", "phi3"):
            raise InputError(
                f"{name} rotates {n_rotated} of {head_width} numbers: {file.architecture} all"
            )
        rope["partial_rotary_factor"] = n_rotated / head_width
    elif file.architecture in ("stablelm", "phi3"):
        rope["partial_rotary_factor"] = 1.0
    kind = settings.get(
        "rope.scaling.type", "linear" if "rope.scale_linear" in settings else "none"
    )
    factor = float(
        settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 1.0)) or 1.0
    )
    positions = int(config.get("max_position_embeddings", 0))
    before = int(settings.get("rope.scaling.original_context_length", 0) or 0)
    attention = float(settings.get("rope.scaling.attn_factor", 1.0) or 1.0)
    factors = {
        key: _factors(file, key, n_rotated // 2) for key in _ROPE_TENSORS & set(file.tensors)
    }
    if kind == "linear" and factor != 1.0:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        _only(name, settings, "rope.scaling.yarn_ext_factor", (1.0, -1.0))
        _only(name, settings, "rope.scaling.yarn_attn_factor", (1.0, -1.0))
        _only(name, settings, "rope.scaling.attn_factor", (1.0,))
        _only(name, settings, "rope.scaling.yarn_log_multiplier", (0.0, 1.0))
        rope |= {
            "rope_type": "yarn", "factor": factor,
            "original_max_position_embeddings": before or positions,
            "beta_fast": float(settings.get("rope.scaling.yarn_beta_fast", 32.0)),
            "beta_slow": float(settings.get("rope.scaling.yarn_beta_slow", 1.0)),
        }  # fmt: skip
    elif kind not in ("none", "linear", "longrope"):
        raise InputError(
            f"{name} says rope.scaling.type = {str(kind)[:40]}: none, linear, yarn and longrope are read"
        )
    if factors:
        if rope["rope_type"] != "default":
            raise InputError(
                f"{name} scales its rotation twice, by {kind} and by {sorted(factors)[0]}"
            )
        both = factors.get("rope_freqs.weight")
        long = both or factors.get("rope_factors_long.weight")
        short = both or factors.get("rope_factors_short.weight")
        if long is None or short is None:
            raise InputError(
                f"{name} has one of rope_factors_long and rope_factors_short: both are needed"
            )
        # Llama 3's own factors are a list here: "longrope" with one list for all lengths is the same
        rope |= {
            "rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 1.0,
            "original_max_position_embeddings": before or positions,
            "attention_factor": attention if before and not both else 1.0,
        }  # fmt: skip
        if not both and before:
            config["original_max_position_embeddings"] = before
    elif kind == "longrope":
        raise InputError(
            f"{name} says rope.scaling.type = longrope, but has no rope_factors tensors"
        )
    if file.architecture == "gemma3":
        swa = float(settings.get("rope.freq_base_swa", 10000.0))
        near = {"rope_type": "default", "rope_theta": swa}
        config["rope_parameters"] = {"full_attention": rope, "sliding_attention": near}
    else:
        config["rope_parameters"] = rope
    return keys


def _factors(file: Gguf, name: str, count: int) -> list[float]:
    values = file.read(name).ravel().tolist()
    if len(values) != count or not all(math.isfinite(v) and v > 0 for v in values):
        raise InputError(
            f"{file.path.name}: {name} holds {len(values)} factors, wanted {count} above 0"
        )
    return [float(v) for v in values]


def _only(name: str, settings: Mapping[str, Any], key: str, allowed: tuple[float, ...]) -> None:
    if key in settings and not any(math.isclose(settings[key], value) for value in allowed):
        raise InputError(
            f"{name} says {key} = {settings[key]}, which the library's yarn does not know"
        )


def _set_windows(file: Gguf, config: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Say which layers see a window; a file that says none has none."""
    n_layers = int(config.get("num_hidden_layers", 0))
    period = {"gemma2": 2, "gemma3": 6}.get(file.architecture)
    if period is None:
        config.setdefault("sliding_window", None)
        return
    if not config.get("sliding_window"):
        raise InputError(
            f"{file.path.name} does not say {file.architecture}.attention.sliding_window"
        )
    config["layer_types"] = [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(n_layers)
    ]


def _set_biases(file: Gguf, config: dict[str, Any]) -> None:
    """Say which projections have a bias: those whose tensors are there."""
    held = {
        name.split(".", 2)[2] for name in file.tensors if re.match(r"blk\.\d+\..*\.bias$", name)
    }
    of_qkv = {"attn_q.bias", "attn_k.bias", "attn_v.bias"} & held
    kind = config["model_type"]
    if kind in ("llama", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"):
        config["attention_bias"] = bool(of_qkv or "attn_output.bias" in held)
        if kind == "llama":
            config["mlp_bias"] = bool({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"} & held)
    elif kind == "stablelm":
        config["use_qkv_bias"] = bool(of_qkv)
        config.setdefault("use_parallel_residual", not any(".ffn_norm." in n for n in file.tensors))
        config["qk_layernorm"] = False
    elif kind == "starcoder2":
        config["use_bias"] = bool(held)


def parameters_of(file: Gguf) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield every parameter of the library's model: its name, shape, and the tensor it is read from.

    A bias of W_O that the library's model has and the file has not is yielded with no tensor: it is
    zero.

    Raises
    ------
    InputError
        A tensor that no part of the architecture asks for; names it.
    """
    family = _family(file)
    seen: set[str] = set()
    for name, tensor in file.tensors.items():
        if name in _ROPE_TENSORS:
            continue
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?([a-z0-9_]+)\.(weight|bias)", name)
        table = family.outside if match is None or match[1] is None else family.parts
        if match is None or match[2] not in table:
            raise InputError(
                f"{file.path.name} holds the tensor {name[:80]!r} {tensor.shape}: it is not known what "
                f"that means for {file.architecture}, so its attention cannot be shown exactly"
            )
        place = "" if match[1] is None else f"{family.layer}.{int(match[1])}."
        target, shape = f"{place}{table[match[2]]}.{match[3]}", tensor.shape
        if match[2] in family.transposed and match[3] == "weight":
            shape = shape[::-1]
        if match[2] == "ffn_gate_inp_shexp":
            shape = (1, *shape)
        if "*" in target:
            before, after = target.split("*")
            for expert in range(shape[0]):
                yield f"{before}{expert}{after}", shape[1:], name
            continue
        seen.add(target)
        yield target, shape, name
    for target in sorted(seen):
        base, _, part = target.partition(".self_attn.q_proj.")
        other = f"{base}.self_attn.o_proj.bias"
        # the library has a bias of W_O wherever q has one; llama.cpp adds none that is not there
        if part == "bias" and other not in seen and family.model_type not in _QKV_BIAS_ONLY:
            rows = file.tensors[f"blk.{int(base.rsplit('.', 1)[1])}.attn_output.weight"].shape[0]
            yield other, (rows,), ""


_QKV_BIAS_ONLY = ("qwen2", "qwen2_moe", "stablelm")


def read_parameter(file: Gguf, target: str, shape: tuple[int, ...], name: str) -> Array:
    """Read one parameter as the library holds it: float32 numpy, of its shape."""
    import numpy as np

    if not name:
        return np.zeros(shape, np.float32)
    family, values = _family(file), file.read(name)
    part = name.rsplit(".", 2)[-2]
    if "_exps." in name:
        return values[int(target.split(".experts.")[1].split(".")[0])]
    if family.permuted and part in ("attn_q", "attn_k"):
        kv = "" if part == "attn_q" else "_kv"
        n_heads = _one(
            file,
            "heads",
            file.setting(f"attention.head_count{kv}", file.setting("attention.head_count")),
        )
        # stored as pairs of neighbours: (heads, width/2, 2) back to (heads, 2, width/2)
        pairs = values.reshape(n_heads, values.shape[0] // n_heads // 2, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    if family.adds_one and part.endswith("norm") and name.endswith(".weight"):
        return values - 1
    if part in family.transposed and name.endswith(".weight"):
        return np.ascontiguousarray(values.T)
    return values.reshape(shape)
