"""GGUF files read as they are: written here as llama.cpp writes them, held to the library's model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

import gguf
from drawn_models import build
from test_parity import IDS, TOLERANCE, differences, one_thread

from attnviz.errors import InputError
from attnviz.sources.families.binding import bind, read_family
from attnviz.sources.families.blocks import SIZES, dequantize
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.gguf_view import open_view, read_view
from attnviz.sources.families.settings import NotOurs
from attnviz.sources.models.gguf import read_gguf

__all__ = ["one_thread"]

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("alone")]

ARCHS = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "phi3": "phi3", "stablelm": "stablelm", "starcoder2": "starcoder2", "gpt2": "gpt2",
    "gpt_neox": "gptneox", "olmo2": "olmo2", "granite": "granite", "cohere": "command-r",
}  # fmt: skip
NAMES = [
    ("embed_tokens", "token_embd"), ("wte", "token_embd"), ("wpe", "position_embd"),
    ("embed_in", "token_embd"), ("final_layer_norm", "output_norm"), ("ln_f", "output_norm"),
    ("norm", "output_norm"),
]  # fmt: skip
IN_BLOCKS = {
    "input_layernorm": "attn_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def to_gguf_name(kind: str, name: str) -> str:
    place, _, part = name.rpartition(".")
    pieces = place.split(".")
    if pieces[0] not in ("layers", "h"):
        return f"{dict(NAMES)[place]}.{part}"
    inner = ".".join(pieces[2:])
    around = kind in ("gemma2", "gemma3_text", "olmo2")
    if inner == "post_attention_layernorm":
        return f"blk.{pieces[1]}.{'post_attention_norm' if around else 'ffn_norm'}.{part}"
    return f"blk.{pieces[1]}.{IN_BLOCKS[inner]}.{part}"


def permute(w: Any, n: int) -> Any:
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    return w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def arrays_of(kind: str, model: Any) -> dict[str, Any]:
    """Return a model's tensors as llama.cpp's converter stores them."""
    config, found = model.config, {}
    for name, values in model.state_dict().items():
        w = values.numpy()
        if ".experts." in name:
            at = f"blk.{name.split('.')[1]}."
            if name.endswith("gate_up_proj"):
                half = w.shape[1] // 2
                found[f"{at}ffn_gate_exps.weight"] = w[:, :half]
                found[f"{at}ffn_up_exps.weight"] = w[:, half:]
            else:
                found[f"{at}ffn_down_exps.weight"] = w
            continue
        full = to_gguf_name(kind, name)
        if ARCHS[kind] in ("llama", "granite") and "self_attn.q_proj" in name:
            w = permute(w, config.num_attention_heads)
        if ARCHS[kind] in ("llama", "granite") and "self_attn.k_proj" in name:
            w = permute(w, config.num_key_value_heads)
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            w = w + 1
        if kind == "gpt2" and w.ndim == 2 and full.startswith("blk."):
            w = w.T
        if kind == "gpt_neox" and "query_key_value" in name:
            n = config.num_attention_heads
            w = w.reshape(n, 3, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
        found[full] = np.ascontiguousarray(w, np.float32)
    return found


def write(
    path: Path,
    kind: str,
    model: Any,
    *,
    extra: Callable[[Any], None] = lambda _: None,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Path:
    arch, c = ARCHS[kind], model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    wide = getattr(c, "intermediate_size", None) or getattr(c, "n_inner", None) or 4 * c.hidden_size
    w.add_feed_forward_length(wide)
    w.add_head_count(c.num_attention_heads)
    if kind not in ("gpt2", "gpt_neox"):
        w.add_head_count_kv(c.num_key_value_heads)
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if hasattr(c, name):
            w.add_layer_norm_eps(getattr(c, name))
    if hasattr(c, "rms_norm_eps"):
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = getattr(c, "rope_parameters", None) or {}
    if kind != "gpt2":
        if kind not in ("stablelm", "gpt_neox", "starcoder2"):
            w.add_key_length(head)
            w.add_value_length(head)
        shared = rope.get("full_attention", rope)
        w.add_rope_dimension_count(int(head * shared.get("partial_rotary_factor", 1.0)))
        w.add_rope_freq_base(float(shared["rope_theta"]))
    if getattr(c, "sliding_window", None) and kind in ("mistral", "mixtral", "gemma2", "gemma3_text", "phi3"):  # fmt: skip
        w.add_sliding_window(c.sliding_window)
    if kind == "gemma2":
        if c.attn_logit_softcapping:
            w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if kind in ("mixtral", "qwen3_moe"):
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if kind == "qwen3_moe":
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if kind in ("gpt_neox", "stablelm"):
        w.add_parallel_residual(c.use_parallel_residual)
    if kind == "granite":
        w.add_attention_scale(c.attention_multiplier)
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
    if kind == "cohere":
        w.add_logit_scale(c.logit_scale)
    w.add_token_list([f"w{i}" for i in range(c.vocab_size)])
    extra(w)
    arrays = arrays_of(kind, model)
    change(arrays)
    for name, values in arrays.items():
        w.add_tensor(name, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def engine_of(path: Path) -> Engine:
    view = read_view(path, f"hash of {path.name}")
    family = read_family(view.config)
    return Engine(family, bind(family, open_view(view)))


LIMITED: dict[str, dict[str, Any]] = {
    # what llama.cpp's format says of each: no windows by layer, one scale, one order of layers
    "llama": {"rope_parameters": None}, "qwen2": {"rope_parameters": None, "use_sliding_window": False},
    "qwen3": {"rope_parameters": None, "use_sliding_window": False, "attention_bias": False},
    "qwen3_moe": {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "attention_bias": False},
    "mixtral": {"sliding_window": None}, "gemma": {"attention_bias": False}, "olmo2": {"rope_parameters": None, "attention_bias": False},
    "gemma2": {"attention_bias": False, "query_pre_attn_scalar": 16, "head_dim": 16,
               "attn_logit_softcapping": 2.0},
    "gemma3_text": {"attention_bias": False, "query_pre_attn_scalar": 16, "head_dim": 16,
                    "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0,
                    "num_hidden_layers": 7, "rope_scaling": None},
    "stablelm": {"qk_layernorm": False}, "phi3": {"rope_scaling": None},
    "starcoder2": {"use_bias": True, "sliding_window": None}, "gpt2": {
        "activation_function": "gelu_new", "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False},
    "gpt_neox": {"hidden_act": "gelu", "attention_bias": True}, "granite": {"mlp_bias": False, "attention_bias": False},
    "cohere": {"use_qk_norm": False, "attention_bias": False},
}  # fmt: skip
SILU = {"hidden_act": "silu"}


@pytest.mark.parametrize("kind", ARCHS)
def test_a_file_gives_the_library_s_numbers(kind: str, tmp_path: Path) -> None:
    changes = {**(SILU if kind == "llama" else {}), **LIMITED.get(kind, {})}
    model = build(kind, 1, **changes)
    found = differences(engine_of(write(tmp_path / "a.gguf", kind, model)), model, IDS)
    assert max(found) <= TOLERANCE, (kind, found)


def test_what_is_kept_of_a_file_is_what_it_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", "llama", build("llama", 1, **SILU, rope_parameters=None))
    first, again = read_view(path, "x"), read_view(path, "x")
    assert first.config == again.config
    assert list(first.parameters) == list(again.parameters)
    assert first.file.tensors == again.file.tensors
    assert "tokenizer.ggml.tokens" in first.file.metadata
    assert "tokenizer.ggml.tokens" not in again.file.metadata


@pytest.mark.parametrize("change", [
    lambda kept: kept.pop("tensors"), lambda kept: kept["tensors"].update(a=[[1], 0, 1 << 40, 4]),
    lambda kept: kept["tensors"].update(a=[[1], 0, -4, 4]), lambda kept: kept.update(metadata=[]),
    lambda kept: kept["tensors"].update(a=[[1.0], 0, 0, 4]), lambda kept: kept.update(tensors=3),
])  # fmt: skip
def test_what_was_kept_is_read_anew_where_it_is_not_what_was_written(
    change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.gguf", "llama", build("llama", 1, **SILU, rope_parameters=None))
    first = read_view(path, "x")
    (entry,) = (tmp_path / "cache").rglob("gguf-view/*.json")
    kept = json.loads(entry.read_text())
    change(kept)
    entry.write_text(json.dumps(kept))
    assert read_view(path, "x").file == first.file


def test_frequencies_of_the_file_divide_the_rope_s(tmp_path: Path) -> None:
    told = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 3.0, "original_max_position_embeddings": 16}  # fmt: skip
    model = build("llama", 1, **SILU, head_dim=8, rope_parameters=told)
    turned = model.rotary_emb.inv_freq.numpy()
    plain = 1 / 500.0 ** (np.arange(0, 8, 2, dtype=np.float32) / 8)

    def add(arrays: dict[str, Any]) -> None:
        arrays["rope_freqs.weight"] = (plain / turned).astype(np.float32)

    path = write(tmp_path / "a.gguf", "llama", model, change=add)
    assert max(differences(engine_of(path), model, IDS)) <= TOLERANCE


@pytest.mark.parametrize("told", [
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16},
])  # fmt: skip
def test_scaling_of_the_file_s_own_metadata(told: dict[str, Any], tmp_path: Path) -> None:
    model = build("llama", 1, **SILU, head_dim=8, rope_parameters=dict(told))

    def add(w: Any) -> None:
        w.add_rope_scaling_type(getattr(gguf.RopeScalingType, told["rope_type"].upper()))
        w.add_rope_scaling_factor(told["factor"])
        if "original_max_position_embeddings" in told:
            w.add_rope_scaling_orig_ctx_len(told["original_max_position_embeddings"])

    path = write(tmp_path / "a.gguf", "llama", model, extra=add)
    assert max(differences(engine_of(path), model, IDS)) <= TOLERANCE


def test_factors_of_long_texts(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
               "long_factor": [1.5, 2.0, 2.5, 3.0]}  # fmt: skip
    model = build("phi3", 1, rope_scaling=scaling, original_max_position_embeddings=16)

    def add(arrays: dict[str, Any]) -> None:
        for name in ("long", "short"):
            arrays[f"rope_factors_{name}.weight"] = np.array(scaling[f"{name}_factor"], np.float32)

    def say(w: Any) -> None:
        w.add_rope_scaling_orig_ctx_len(16)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(64 / 16) / math.log(16)))

    path = write(tmp_path / "a.gguf", "phi3", model, change=add, extra=say)
    engine = engine_of(path)
    for ids in (IDS, IDS[:6]):
        assert max(differences(engine, model, ids)) <= TOLERANCE


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_blocks_are_the_package_s_numbers(kind: str) -> None:
    per_block, block_bytes = SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (700, block_bytes), dtype=np.uint8)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = dequantize(raw.reshape(-1), kind)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.reshape(-1), equal_nan=True)
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] == (per_block, block_bytes)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_a_quantised_file_is_the_model_of_its_own_numbers(kind: str, tmp_path: Path) -> None:
    import torch

    model = build("llama", 1, **SILU, hidden_size=64, intermediate_size=64, head_dim=32,
                  num_attention_heads=2, num_key_value_heads=1, rope_parameters=None)  # fmt: skip
    stored = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() == 2:
                packed = gguf.quants.quantize(values.numpy(), stored)
                values.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(packed, stored), np.float32)))  # fmt: skip
            assert name
    path = tmp_path / "a.gguf"
    arrays = arrays_of("llama", model)

    def pack(kept: dict[str, Any]) -> None:
        kept.clear()

    def add(w: Any) -> None:
        for name, values in arrays.items():
            if values.ndim == 2:
                packed = gguf.quants.quantize(values, stored)
                w.add_tensor(name, packed, raw_dtype=stored)
            else:
                w.add_tensor(name, values)

    write(path, "llama", model, extra=add, change=pack)
    assert max(differences(engine_of(path), model, IDS)) <= TOLERANCE


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (lambda a: a.pop("blk.1.ffn_up.weight"), InputError, "lacks the tensor 'blk.1.ffn_up"),
        (lambda a: a.update({"blk.0.unheard.weight": np.ones(4, "f4")}), InputError, "unheard"),
        (lambda a: a.update({"blk.0.attn_q.weight": np.ones((8, 16), "f4")}), NotOurs, "shape"),
        (lambda a: a.update({"blk.0.attn_norm.weight": np.ones(16, "i4")}), NotOurs, "type I32"),
    ],
)  # fmt: skip
def test_tensors_are_accounted_for(change: Any, kind: Any, why: str, tmp_path: Path) -> None:
    model = build("llama", 1, **SILU, hidden_size=16, num_attention_heads=2, rope_parameters=None,
                  num_key_value_heads=1, head_dim=8)  # fmt: skip
    with pytest.raises(kind, match=why):
        engine_of(write(tmp_path / "a.gguf", "llama", model, change=change))


@pytest.mark.parametrize(
    ("key", "add"),
    [
        ("unheard", lambda w: w.add_uint32("llama.unheard", 3)),
        ("scaling", lambda w: w.add_string("llama.rope.scaling.type", "unheard")),
        ("split", lambda w: w.add_uint16("split.count", 3)),
    ],
)
def test_keys_are_accounted_for(key: str, add: Any, tmp_path: Path) -> None:
    model = build("llama", 1, **SILU, rope_parameters=None)
    path = write(tmp_path / "a.gguf", "llama", model, extra=add)
    with pytest.raises(InputError, match=key):
        read_view(path, "y")


def test_sizes_beyond_the_tensors_are_refused_first(tmp_path: Path) -> None:
    model = build("llama", 1, **SILU, rope_parameters=None)
    path = write(tmp_path / "a.gguf", "llama", model)
    data = path.read_bytes()
    at = data.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path.write_bytes(data[:at] + (1000).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(InputError, match="do not belong together"):
        read_view(path, "z")
    assert read_gguf(path).architecture == "llama"
