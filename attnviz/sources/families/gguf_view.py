"""A GGUF file as a model of the families: its metadata as a config, its tensors by their names.

What lives here: llama.cpp's names and habits (rows of q and k in another order, norms stored with
one added, expert matrices stacked). What does not: the bounded reader (``sources.models.gguf``),
blocks of quantised numbers (``blocks``).

References: ggml-org/llama.cpp, ``convert_hf_to_gguf.py`` and ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.sources.families.blocks import SIZES
from attnviz.sources.families.parts import Floats
from attnviz.sources.families.proof import engine_version
from attnviz.sources.families.settings import FULL, SLIDING, NotOurs
from attnviz.sources.families.weights import PLAIN, Stored, Weights, mapping_of
from attnviz.sources.files.contract import map_file
from attnviz.sources.models.cache import read_entry, write_entry
from attnviz.sources.models.gguf import TYPE_NAMES, Gguf, GgufTensor, read_gguf
from attnviz.sources.models.gguf_convert import check_sizes

KINDS = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "stablelm": "stablelm", "starcoder2": "starcoder2", "gpt2": "gpt2", "gptneox": "gpt_neox",
    "olmo2": "olmo2", "granite": "granite", "smollm3": "smollm3", "command-r": "cohere",
    "cohere2": "cohere2",
}  # fmt: skip
"""``general.architecture`` → ``model_type``."""

_LARGEST = {"gemma2": 46, "gemma3_text": 62}
_PERMUTED = frozenset({"llama", "granite", "smollm3"})
_GEMMA = frozenset({"gemma", "gemma2", "gemma3"})
_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
    "logit_scale": "logit_scale",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
}
_GPT2_SIZES = {
    "block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
    "feed_forward_length": "n_inner", "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon", "vocab_size": "vocab_size",
}  # fmt: skip
_READ_ELSEWHERE = frozenset(
    ("attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
     "attention.layer_norm_epsilon", "rope.dimension_count", "expert_count", "rope.scaling.type",
     "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
     "rope.scaling.finetuned", "attention.sliding_window_pattern", "rope.freq_base_swa")
)  # fmt: skip
_EPS = {
    "stablelm": "layer_norm_eps", "starcoder2": "norm_epsilon", "gpt_neox": "layer_norm_eps",
    "cohere": "layer_norm_eps", "cohere2": "layer_norm_eps",
}  # fmt: skip

_DECODER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
}  # fmt: skip
_AROUND = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_BLOCKS: dict[str, dict[str, str]] = {
    "gemma2": {**_DECODER, **_AROUND},
    "gemma3_text": {**_DECODER, **_AROUND},
    "olmo2": {**_DECODER, **_AROUND},
    "phi3": {**_DECODER, "ffn_up": "mlp.gate_up_proj"},
    "starcoder2": {**_DECODER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "mixtral": {
        **_DECODER, "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.w1",
        "ffn_up_exps": "block_sparse_moe.experts.w3",
        "ffn_down_exps": "block_sparse_moe.experts.w2",
    },
    "gpt2": {
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    },
    "gpt_neox": {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
        "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    },
}  # fmt: skip
_TOP = {
    "gpt2": {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f",
             "output": "lm_head"},
    "gpt_neox": {"token_embd": "embed_in", "output_norm": "final_layer_norm",
                 "output": "embed_out"},
}  # fmt: skip
_TOP_DECODER = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_TENSOR = re.compile(r"^(?:blk\.(\d+)\.)?([a-z0-9_]+)\.(weight|bias)$")
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_config(file: Gguf) -> dict[str, Any]:
    """Return a file's metadata as the config of a model of the families.

    Raises
    ------
    NotOurs
        An architecture or a key that is not known here.
    InputError
        A key of the architecture that is missing.
    """
    arch = file.architecture
    if arch not in KINDS:
        raise NotOurs(f"GGUF files of the architecture {arch[:40]!r} are not known here")
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise NotOurs("a GGUF in several files")
    kind = KINDS[arch]
    n_experts = file.setting("expert_count", 0) or 0
    if kind == "llama" and n_experts:
        kind = "mixtral"
    sizes = _GPT2_SIZES if kind == "gpt2" else _SIZES
    config: dict[str, Any] = {"model_type": kind}
    for full, value in file.metadata.items():
        name = full.removeprefix(f"{arch}.")
        if name == full or name in _READ_ELSEWHERE:
            continue
        if name not in sizes:
            raise NotOurs(f"the GGUF says {full[:80]} = {str(value)[:40]}, which is not known here")
        config[sizes[name]] = _one(full, value)
    for name in ("block_count", "embedding_length", "attention.head_count"):
        if file.setting(name) is None:
            raise InputError(f"{file.path.name} does not say {arch}.{name}: it is damaged")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise InputError(f"{file.path.name} lacks the tensor 'token_embd.weight'")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["eos_token_id"] = file.metadata.get("tokenizer.ggml.eos_token_id")
    if kind == "gpt2":
        return config
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    _read_norms(file, kind, config)
    _read_heads(file, kind, config)
    _read_rope(file, kind, config)
    _read_windows(file, kind, config)
    if kind == "mixtral":
        config["num_local_experts"] = n_experts
    elif kind == "qwen3_moe":
        config["num_experts"] = n_experts
        config["norm_topk_prob"] = True  # as llama.cpp runs it: src/models/qwen3moe.cpp
    elif n_experts:
        raise NotOurs(f"experts in a model of the kind {kind}")
    if kind == "gpt_neox":
        del config["num_key_value_heads"]
    if kind in ("llama", "qwen2", "qwen3", "granite", "olmo2", "smollm3", "cohere"):
        _read_biases(file, kind, config)
    if kind == "stablelm":
        names = file.tensors
        config["use_qkv_bias"] = "blk.0.attn_q.bias" in names
        config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in names
    if kind in ("gemma", "gemma2", "gemma3_text"):
        config["hidden_activation"] = "gelu_pytorch_tanh"
    if kind in _LARGEST:
        # the file does not say it; llama.cpp knows the one model that differs by its layers
        is_largest = config["num_hidden_layers"] == _LARGEST[kind]
        width = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = width if is_largest else config["head_dim"]
    if kind == "granite" and "logit_scale" in config:
        config["logits_scaling"] = config.pop("logit_scale")
    return config


def _one(name: str, value: Any) -> Any:
    """Return a setting that is the same for every layer."""
    if isinstance(value, list):
        if not value or any(other != value[0] for other in value):
            raise NotOurs(f"the GGUF says {name[:80]} layer by layer")
        value = value[0]
    return value


def _read_norms(file: Gguf, kind: str, config: dict[str, Any]) -> None:
    rms = file.setting("attention.layer_norm_rms_epsilon")
    plain = file.setting("attention.layer_norm_epsilon")
    key = _EPS.get(kind, "rms_norm_eps")
    value = plain if kind in _EPS else rms
    if value is None:
        raise InputError(f"{file.path.name} does not say the epsilon of its norms: it is damaged")
    config[key] = value


def _read_heads(file: Gguf, kind: str, config: dict[str, Any]) -> None:
    """Read the width of a head, and how much of it is turned."""
    key, value = file.setting("attention.key_length"), file.setting("attention.value_length")
    if key is not None and value is not None and key != value:
        raise NotOurs(f"heads of {key} numbers for keys and {value} for values")
    width = config["hidden_size"] // config["num_attention_heads"]
    head = key or width
    turned = file.setting("rope.dimension_count") or head
    if kind in ("stablelm", "phi3"):
        config["partial_rotary_factor"] = turned / head
    elif kind == "gpt_neox":
        config["rotary_pct"] = turned / head
    elif key is None and kind == "llama":
        head = turned  # the library reads it so: transformers, integrations/ggml.py
    elif turned != head:
        raise NotOurs(f"rotary positions on {turned} of {head} numbers of a head")
    if kind not in ("gpt_neox", "stablelm", "starcoder2"):
        config["head_dim"] = head
    elif head != width:
        raise NotOurs(f"heads of {head} numbers, not {width}")


def _read_rope(file: Gguf, kind: str, config: dict[str, Any]) -> None:
    """Read ``rope.scaling.*`` and the tensors of factors."""
    told = file.setting("rope.scaling.type", "none")
    factor = file.setting("rope.scaling.factor")
    original = file.setting("rope.scaling.original_context_length")
    attention = file.setting("rope.scaling.attn_factor")
    if kind == "gpt_neox":
        config["rotary_emb_base"] = config.pop("rope_theta", 10000.0)
    config.setdefault("rope_theta" if kind != "gpt_neox" else "rotary_emb_base", 10000.0)
    if "rope_freqs.weight" in file.tensors:
        config["rope_freqs"] = file.read("rope_freqs.weight").tolist()
    scaling: dict[str, Any] = {}
    if "rope_factors_long.weight" in file.tensors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": file.read("rope_factors_long.weight").tolist(),
            "short_factor": file.read("rope_factors_short.weight").tolist(),
            "attention_factor": attention,
        }
        config["original_max_position_embeddings"] = original
    elif told == "yarn":
        if attention not in (None, 1.0):
            raise NotOurs(f"rope.scaling.attn_factor = {attention}")
        scaling = {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
        }  # fmt: skip
    elif told == "linear":
        scaling = {"rope_type": "linear", "factor": factor}
    elif told != "none":
        raise NotOurs(f"rope.scaling.type = {str(told)[:40]}")
    if scaling:
        config["rope_scaling"] = {k: v for k, v in scaling.items() if v is not None}
    if kind == "gemma3_text":
        local = file.setting("rope.freq_base_swa")
        config["rope_local_base_freq"] = local if local is not None else 10000.0


def _read_windows(file: Gguf, kind: str, config: dict[str, Any]) -> None:
    pattern = file.setting("attention.sliding_window_pattern")
    window = config.get("sliding_window")
    n_layers = config["num_hidden_layers"]
    if window is None or window == 0:
        config.pop("sliding_window", None)
        if kind in ("gemma2", "gemma3_text", "cohere2"):
            raise InputError(f"{file.path.name} does not say its window: it is damaged")
        return
    if kind == "llama":
        config["model_type"] = "mistral"
        return
    if kind in ("qwen2", "qwen3", "smollm3"):
        raise NotOurs("a window in a file that does not say which layers have it")
    if isinstance(pattern, list):
        if len(pattern) != n_layers or not all(isinstance(p, bool) for p in pattern):
            raise NotOurs("a pattern of windows that is no list of yes and no")
        config["layer_types"] = [SLIDING if slides else FULL for slides in pattern]
    elif isinstance(pattern, int) and pattern > 0:
        config["layer_types"] = [SLIDING if (i + 1) % pattern else FULL for i in range(n_layers)]


def _read_biases(file: Gguf, kind: str, config: dict[str, Any]) -> None:
    """Read from the tensors which matrices have biases, where the library's config says it."""
    has_q = "blk.0.attn_q.bias" in file.tensors
    if kind != "qwen2" and has_q and config["model_type"] != "mistral":
        config["attention_bias"] = True
    if "blk.0.attn_q_norm.weight" in file.tensors and kind == "cohere":
        config["use_qk_norm"] = True
    if "blk.0.ffn_gate.bias" in file.tensors:
        config["mlp_bias"] = True


@dataclass(frozen=True, slots=True)
class View:
    """A GGUF as a model: its config, and where its tensors are."""

    config: dict[str, Any]
    architecture: str
    tensors: Mapping[str, GgufTensor]


def read_view(path: Path, sha256: str) -> View:
    """Read a GGUF's metadata and tensor list, or what is kept of them by the file's hash.

    Raises
    ------
    NotOurs, InputError
        As ``read_config``; a file that is not sound.

    Notes
    -----
    A vocabulary of 150,000 words takes half a second to step over: it is done once.
    """
    facts = f"{sha256}\n{engine_version()}"
    key = hashlib.sha256(facts.encode()).hexdigest()
    kept = read_entry("gguf-view", key)
    try:
        tensors = {n: GgufTensor(tuple(t[0]), *t[1:]) for n, t in kept["tensors"].items()}
        return View(kept["config"], kept["architecture"], tensors)
    except (TypeError, KeyError):
        pass
    file = read_gguf(path)
    check_sizes(file)
    found = View(read_config(file), file.architecture, file.tensors)
    listed = {n: (t.shape, t.kind, t.start, t.n_bytes) for n, t in file.tensors.items()}
    value = {"config": found.config, "architecture": found.architecture, "tensors": listed}
    write_entry("gguf-view", key, value)
    return found


def open_view(path: Path, view: View) -> Weights:
    """Map a GGUF's tensors, by the families' names and in their order of rows.

    Raises
    ------
    NotOurs
        A tensor whose name or type is not known here.
    """
    mapped = map_file(path)
    config = view.config
    kind = str(config["model_type"])
    blocks, top = _BLOCKS.get(kind, _DECODER), _TOP.get(kind, _TOP_DECODER)
    tensors: dict[str, Stored] = {}
    for name, tensor in view.tensors.items():
        if name in _FACTORS:
            continue
        match = _TENSOR.match(name)
        known = match and (blocks if match[1] else top).get(match[2])
        if not match or known is None:
            raise NotOurs(f"it has a tensor {name[:80]!r} that is not known here")
        stored_as = TYPE_NAMES.get(tensor.kind, str(tensor.kind))
        if stored_as not in PLAIN and stored_as not in SIZES:
            raise NotOurs(f"the tensor {name[:80]!r} is of type {stored_as}")
        full = f"{_layer_prefix(kind)}{match[1]}." if match[1] else ""
        raw = mapped[tensor.start : tensor.start + tensor.n_bytes]
        fix = _fix_of(view.architecture, match[2], match[3], config)
        is_turned = kind == "gpt2" and len(tensor.shape) == 2 and match[1] is not None
        shape = tensor.shape[::-1] if is_turned else tensor.shape
        raw_shape = tensor.shape if is_turned else None
        tensors[f"{full}{known}.{match[3]}"] = Stored(shape, stored_as, raw, fix, raw_shape)
    return Weights(_without_stack_endings(tensors), (mapping_of(mapped),))


def _without_stack_endings(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Name stacked experts as the families do: without ``.weight``."""
    return {n.removesuffix(".weight") if ".experts." in n else n: t for n, t in tensors.items()}


def _layer_prefix(kind: str) -> str:
    return "h." if kind == "gpt2" else "layers."


def _fix_of(
    arch: str, block: str, part: str, config: Mapping[str, Any]
) -> Callable[[Floats], Floats] | None:
    """Return what undoes llama.cpp's own form of a tensor."""
    if arch in _PERMUTED and block in ("attn_q", "attn_k"):
        n = config["num_attention_heads" if block == "attn_q" else "num_key_value_heads"]
        return lambda w: _halves(w, n)
    if arch in _GEMMA and part == "weight" and block.endswith("norm"):
        return lambda w: w - np.float32(1)
    if arch == "gpt2" and part == "weight" and not block.endswith("norm"):
        return lambda w: w.T if block not in ("token_embd", "position_embd", "output") else w
    if arch == "gptneox" and block == "attn_qkv":
        n = config["num_attention_heads"]
        return lambda w: _by_head(w, n)
    return None


def _halves(w: Floats, n_heads: int) -> Floats:
    """Put neighbouring rows back into the two halves of a head: ``permute`` of llama.cpp, undone."""
    pairs = w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, *w.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(w.shape)


def _by_head(w: Floats, n_heads: int) -> Floats:
    """Put q, k and v of each head side by side again."""
    thirds = w.reshape(3, n_heads, w.shape[0] // n_heads // 3, *w.shape[1:])
    return np.ascontiguousarray(thirds.swapaxes(0, 1)).reshape(w.shape)
