"""GGUF files of tiny models, written as llama.cpp's converter writes them, with the format's library.

Names of tensors come from that library's own map, so that nothing here repeats the tables under
test; what the converter does to numbers is done by its formulas (``conversion/*.py`` there).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

WORDS = 320


@dataclass(frozen=True)
class Written:
    """A tiny model that has a GGUF form.

    Parameters
    ----------
    arch
        The format's name of the architecture.
    config, settings
        The library's config class, and what it is set to.
    keys
        More keys of this architecture, as the converter writes them.
    """

    arch: str
    config: str
    settings: Mapping[str, Any]
    keys: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    gain: float = 8.0
    more: Mapping[str, Any] = field(default_factory=dict)


def bytes_to_letters() -> list[str]:
    """Return GPT-2's letter for each byte, printable ones standing for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


MERGES = ["Ġ t", "h e", "Ġt he", "i n", "a r", "Ġ Ġ", "b e", "be ar", "t e", "d d", "r e", "a d"]


def write_words(writer: Any, n_words: int = WORDS, *, pre: str = "smollm") -> None:
    """Write a byte-level tokenizer: 3 special words, 256 letters, a few merges, unused ones."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_letters()]
    tokens += ["".join(merge.split()) for merge in MERGES]
    tokens += [f"[unused{i}]" for i in range(n_words - len(tokens))]
    kinds = [3] * 3 + [1] * (256 + len(MERGES)) + [5] * (n_words - 259 - len(MERGES))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens[:n_words])
    writer.add_token_types(kinds[:n_words])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def _permute(w: torch.Tensor, n: int) -> torch.Tensor:
    return w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def change(arch: str, name: str, w: torch.Tensor, config: Any) -> list[tuple[str, torch.Tensor]]:
    """Return what the converter makes of one parameter: name → tensor, names as in a folder."""
    heads = config.num_attention_heads
    if arch == "bloom":
        name = name.removeprefix("transformer.")
    if arch in ("llama", "granite", "smollm3"):
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            return [(name, _permute(w, heads))]
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            return [(name, _permute(w, config.num_key_value_heads))]
    if arch in ("gemma", "gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return [(name, w + 1)]
    if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return [(name, w.T)]
    if arch in ("bloom", "gptneox") and "query_key_value" in name:
        return [(name, w.reshape(heads, 3, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape))]
    if arch == "falcon" and "query_key_value" in name:
        kv = (
            1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads
        )
        width = config.hidden_size // heads
        qkv = w.reshape(kv, heads // kv + 2, width, -1)
        parts = (qkv[:, :-2], qkv[:, [-2]], qkv[:, [-1]])
        return [(name, torch.cat([part.reshape(-1, w.shape[-1]) for part in parts]))]
    if arch == "lfm2" and "conv.conv" in name:
        return [(name, w.squeeze(1))]
    if arch == "gpt-oss":
        if "sinks" in name:
            return [(f"{name}.weight", w)]
        if "gate_up_proj" in name:
            end = ".bias" if name.endswith("_bias") else ".weight"
            w = w if end == ".bias" else w.transpose(-1, -2)
            halves = (w[..., ::2], w[..., 1::2]) if end == ".bias" else (w[:, ::2], w[:, 1::2])
            base = name.removesuffix("_bias").removesuffix("gate_up_proj")
            return [
                (f"{base}{which}{end}", half)
                for which, half in zip(("gate_proj", "up_proj"), halves)
            ]
        if "down_proj" in name:
            if name.endswith("_bias"):
                return [(f"{name.removesuffix('_bias')}.bias", w)]
            return [(f"{name}.weight", w.transpose(-1, -2))]
    return [(name, w)]


def _merged(state: Mapping[str, torch.Tensor], n_experts: int) -> dict[str, torch.Tensor]:
    """Stack the experts' matrices as the converter does, and StableLM's norms by head."""
    import re

    made: dict[str, Any] = {}
    for name, w in state.items():
        if m := re.match(r"(.*)\.experts\.(\d+)\.(.*)\.weight$", name):
            at = m[1].replace("block_sparse_moe", "feed_forward").replace("model.layers", "layers")
            if "block_sparse_moe" not in m[1]:
                at = m[1]
            made.setdefault(f"{at}.experts.{m[3]}.weight", []).append(w)
        elif m := re.match(r"(.*layernorm)\.norms\.(\d+)\.weight$", name):
            made.setdefault(f"{m[1]}.weight", []).append(w)
        else:
            made[name] = w
    return {n: torch.stack(w) if isinstance(w, list) else w for n, w in made.items()}


def saved_state(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Return a model's parameters by the names of a saved folder."""
    from safetensors.torch import load_file

    model.save_pretrained(folder)
    return {
        k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()
    }


def write_gguf(
    path: Path, model: Any, arch: str, state: Mapping[str, torch.Tensor], keys: Mapping[str, Any],
    *, pre: str = "smollm", rows: Callable[[Any], None] | None = None,
    extra: Mapping[str, np.ndarray] | None = None, drop: frozenset[str] = frozenset(),
) -> Path:  # fmt: skip
    """Write a model; ``keys`` are those of the architecture, without its name before them."""
    import gguf

    config = model.config.get_text_config()
    n_layers = max(config.num_hidden_layers, getattr(config, "num_decoder_layers", None) or 0)
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(number, n_layers)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_file_type(0)
    writer.add_quantization_version(2)
    for key, value in keys.items():
        if value is None:
            continue
        full = key if key.startswith("general.") else f"{arch}.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string, list: writer.add_array}[type(value)]  # fmt: skip
        add(full, value)
    (rows or (lambda w: write_words(w, config.vocab_size, pre=pre)))(writer)
    done = set()
    for name, w in _merged(state, 0).items():
        for changed, tensor in change(arch, name, w, config):
            new = names.get_name(changed, try_suffixes=(".weight", ".bias"))
            assert new is not None, changed
            if new in drop or new in done:
                continue
            done.add(new)
            writer.add_tensor(new, np.ascontiguousarray(tensor.float().numpy()))
    for name, array in (extra or {}).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def common_keys(config: Any) -> dict[str, Any]:
    """Return what the converter's base writes for every decoder."""
    config = config.get_text_config()
    rope = copy.deepcopy(getattr(config, "rope_parameters", None) or {})
    rope = rope.get("full_attention", rope)
    heads = config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", None) or heads
    hidden = config.hidden_size
    told: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", None)
        or getattr(config, "seq_length", None) or hidden,
        "embedding_length": hidden,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "rope.freq_base": float(rope["rope_theta"]) if "rope_theta" in rope else None,
    }  # fmt: skip
    for name, key in (
        ("rms_norm_eps", "rms_epsilon"), ("norm_eps", "rms_epsilon"), ("layer_norm_eps", "epsilon"),
        ("layer_norm_epsilon", "epsilon"), ("norm_epsilon", "epsilon"),
    ):  # fmt: skip
        if getattr(config, name, None) is not None:
            told[f"attention.layer_norm_{key}"] = float(getattr(config, name))
    if getattr(config, "head_dim", None):
        told["attention.key_length"] = told["attention.value_length"] = config.head_dim
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        told |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        told["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow", "attention_factor"):
            if rope.get(name) is not None:
                told[f"rope.scaling.yarn_{name.replace('attention', 'attn')}"] = float(rope[name])
    return told


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
        "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 2, **more,
    }  # fmt: skip


def _moe(config: Any) -> dict[str, Any]:
    return {
        "expert_count": getattr(config, "num_experts", None) or config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None)
        or config.intermediate_size,
    }


def _windowed(config: Any) -> dict[str, Any]:
    return {"attention.sliding_window": config.sliding_window}


def _part(config: Any) -> dict[str, Any]:
    width = config.hidden_size // config.num_attention_heads
    return {"rope.dimension_count": int(config.rope_parameters["partial_rotary_factor"] * width)}


_QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_NO_KV = {"num_key_value_heads": None}
_HALF = {"rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}  # fmt: skip
FILES: dict[str, Written] = {
    "Llama": Written(
        "llama", "LlamaConfig", _sizes(tie_word_embeddings=True),
        lambda c: {"vocab_size": c.vocab_size, "rope.dimension_count": 8}),
    "Llama, biases": Written(
        "llama", "LlamaConfig", _sizes(attention_bias=True, mlp_bias=True),
        lambda c: {"rope.dimension_count": 8}),
    "Llama, wide heads": Written(
        "llama", "LlamaConfig", _sizes(head_dim=16), lambda c: {"rope.dimension_count": 16}),
    "Llama, linear": Written(
        "llama", "LlamaConfig",
        _sizes(rope_parameters={"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0})),
    "Llama, yarn": Written(
        "llama", "LlamaConfig", _sizes(rope_parameters={
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
            "rope_theta": 5000.0})),
    "Mistral": Written("llama", "MistralConfig", _sizes(sliding_window=4), _windowed),
    "Mixtral": Written(
        "llama", "MixtralConfig", _sizes(num_local_experts=4, sliding_window=None),
        lambda c: {"expert_count": 4, "expert_used_count": 2}),
    "Qwen2": Written("qwen2", "Qwen2Config", _sizes()),
    "Qwen3": Written("qwen3", "Qwen3Config", _sizes(head_dim=16)),
    "Qwen2-MoE": Written(
        "qwen2moe", "Qwen2MoeConfig",
        _sizes(**_QWEN_MOE, shared_expert_intermediate_size=24, decoder_sparse_step=1),
        lambda c: {**_moe(c), "expert_shared_feed_forward_length": 24}),
    "Qwen3-MoE": Written(
        "qwen3moe", "Qwen3MoeConfig", _sizes(**_QWEN_MOE, head_dim=16, norm_topk_prob=True), _moe),
    "Gemma": Written("gemma", "GemmaConfig", _sizes(head_dim=16)),
    "Gemma 2": Written(
        "gemma2", "Gemma2Config",
        _sizes(head_dim=16, sliding_window=4, attn_logit_softcapping=2.0,
               final_logit_softcapping=9.0, query_pre_attn_scalar=16),
        lambda c: {**_windowed(c), "attn_logit_softcapping": c.attn_logit_softcapping,
                   "final_logit_softcapping": c.final_logit_softcapping}),
    "Gemma 3": Written(
        "gemma3", "Gemma3TextConfig",
        _sizes(head_dim=16, sliding_window=4, query_pre_attn_scalar=16, num_hidden_layers=7,
               rope_parameters={
                   "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e4},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}), _windowed),
    "Phi-3": Written("phi3", "Phi3Config", _sizes(sliding_window=6), lambda c: {
        **_windowed(c), "rope.dimension_count": 8, "rope.scaling.original_context_length": 64}),
    "GPT-2": Written("gpt2", "GPT2Config", {
        "vocab_size": WORDS, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
        "bos_token_id": 0, "eos_token_id": 2}),
    "StarCoder 2": Written(
        "starcoder2", "Starcoder2Config", _sizes(sliding_window=6), _windowed),
    "StableLM": Written(
        "stablelm", "StableLmConfig", _sizes(use_qkv_bias=True, **_HALF),
        lambda c: {**_part(c), "use_parallel_residual": False}),
    "StableLM, parallel": Written(
        "stablelm", "StableLmConfig", _sizes(use_parallel_residual=True, qk_layernorm=True, **_HALF),
        lambda c: {**_part(c), "use_parallel_residual": True}),
    "Falcon": Written("falcon", "FalconConfig", {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "multi_query": True, "bias": False, "max_position_embeddings": 64, "bos_token_id": 0,
        "eos_token_id": 2}, lambda c: {"attention.head_count_kv": 1, "tensor_data_layout": "jploski"}),
    "Falcon, new": Written("falcon", "FalconConfig", {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False, "bos_token_id": 0,
        "max_position_embeddings": 64, "eos_token_id": 2},
        lambda c: {"attention.head_count_kv": 2, "tensor_data_layout": "jploski"}),
    "BLOOM": Written("bloom", "BloomConfig", {
        "vocab_size": WORDS, "hidden_size": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 0,
        "eos_token_id": 2}),
    "GPT-NeoX": Written(
        "gptneox", "GPTNeoXConfig", {k: v for k, v in _sizes(**_HALF).items() if k != "num_key_value_heads"},
        lambda c: {**_part(c), "use_parallel_residual": True}),
    "Nemotron": Written("nemotron", "NemotronConfig", _sizes(head_dim=8), lambda c: {
        **_part(c), "attention.layer_norm_rms_epsilon": None,
        "attention.layer_norm_epsilon": c.norm_eps}),
    "GPT-OSS": Written(
        "gpt-oss", "GptOssConfig",
        _sizes(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
        lambda c: {**_moe(c), **_windowed(c)}),
    "LFM2": Written(
        "lfm2", "Lfm2Config",
        _sizes(layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
        lambda c: {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "vocab_size": WORDS}),
    "OLMo 2": Written("olmo2", "Olmo2Config", _sizes()),
    "Granite": Written(
        "granite", "GraniteConfig",
        _sizes(attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.5,
               logits_scaling=4.0),
        lambda c: {"attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.5,
                   "logit_scale": 4.0}),
    "SmolLM3": Written("smollm3", "SmolLM3Config", _sizes(num_hidden_layers=5)),
    "Cohere": Written(
        "command-r", "CohereConfig", _sizes(use_qk_norm=True), lambda c: {
            "logit_scale": c.logit_scale, "rope.scaling.type": "none"}),
    "Cohere 2": Written(
        "cohere2", "Cohere2Config", _sizes(sliding_window=4, num_hidden_layers=5), lambda c: {
            **_windowed(c), "logit_scale": c.logit_scale, "rope.dimension_count": 8}),
    "T5": Written("t5", "T5Config", {
        "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "num_decoder_layers": 3, "relative_attention_num_buckets": 8, "eos_token_id": 2,
        "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"}, lambda c: {
            "context_length": 512, "feed_forward_length": c.d_ff, "attention.key_length": c.d_kv,
            "attention.value_length": c.d_kv, "attention.relative_buckets_count": 8,
            "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
            "decoder_block_count": 3, "decoder_start_token_id": 0}, gain=1.5),
    "T5, encoder": Written("t5encoder", "T5Config", {
        "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "eos_token_id": 2, "architectures": ["T5EncoderModel"],
        "decoder_start_token_id": 0, "feed_forward_proj": "relu"}, lambda c: {
            "context_length": 512, "feed_forward_length": c.d_ff, "attention.key_length": c.d_kv,
            "attention.value_length": c.d_kv, "attention.relative_buckets_count": 8,
            "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
            "decoder_start_token_id": 0}, gain=1.5),
}  # fmt: skip
"""Every architecture that is read, and its variants."""


def build(name: str, **changes: Any) -> Any:
    """Build one of ``FILES`` with peaked attention and biases that are not 0, the same each time."""
    import transformers

    entry = FILES[name]
    torch.manual_seed(0)
    config = getattr(transformers, entry.config)(**{**entry.settings, **changes})
    kind = transformers.AutoModelForCausalLM
    if name == "T5":
        kind = transformers.T5ForConditionalGeneration
    elif name == "T5, encoder":
        kind = transformers.T5EncoderModel
    make = kind if entry.arch.startswith("t5") else None
    model = make(config) if make else kind.from_config(config)
    with torch.no_grad():
        for label, w in model.named_parameters():
            if "sinks" in label or "bias" in label or label.endswith("norm.weight"):
                w.add_(torch.randn_like(w) * 0.3)
            elif w.dim() >= 2 and "embed" not in label and "shared" not in label:
                w.mul_(entry.gain)
    return model.eval().requires_grad_(False)


def write_entry(
    name: str, folder: Path, *, keys: Mapping[str, Any] | None = None, **how: Any
) -> tuple[Path, Any]:
    """Write one of ``FILES`` into a folder; ``keys`` replace or, where None, drop the converter's."""
    entry = FILES[name]
    model = build(name, **how.pop("changes", {}))
    folder.mkdir(parents=True, exist_ok=True)
    state = saved_state(model, folder / "original")
    told = {
        **common_keys(model.config),
        **entry.keys(model.config.get_text_config()),
        **(keys or {}),
    }
    return write_gguf(folder / "tiny.gguf", model, entry.arch, state, told, **how), model
