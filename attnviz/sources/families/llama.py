"""Llama and its relatives: decoders with rotary positions, gated or plain feed-forward, experts.

Touvron et al. 2023, "LLaMA"; one row of ``VARIANTS`` per relative says in what it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.family import Pass, Shapes, ids_of, project
from attnviz.sources.families.parts import (
    Floats,
    Whole,
    activate,
    layer_norm,
    linear,
    rms_norm,
    to_heads,
)
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import (
    FULL,
    SLIDING,
    NotOurs,
    check_activation,
    check_layers,
    check_sizes,
    read_settings,
    read_window,
)
from attnviz.sources.families.weights import Layer, Weights

COMMON: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "silu",
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "rope_parameters": None,
    "rope_scaling": None, "rope_theta": 10000.0, "head_dim": None, "pad_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
_RMS, _LAYER = {"rms_norm_eps": 1e-6}, {"layer_norm_eps": 1e-5}
_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """In what a relative differs from Llama.

    Parameters
    ----------
    keys
        The config keys it has beyond ``COMMON``, with their defaults, and other defaults.
    norm
        ``rms``; ``layer`` (with a bias), ``centred`` (without), ``bare`` (without weights).
    order
        ``pre``: a norm before attention and one before the feed-forward part. ``post``: behind
        each. ``parallel``: both parts read the same normed input.
    qk_norm
        Norm of q and k: of each ``head``, of the whole ``width``, or ``own``, other weights for
        every head.
    mlp
        ``gated``, ``fused`` (gate and up in one matrix) or ``plain``.
    qkv_bias, bias
        Biases of q, k, v, and of every other matrix, where the config has no say.
    """

    keys: Mapping[str, Any]
    norm: str = "rms"
    order: str = "pre"
    qk_norm: str | None = None
    mlp: str = "gated"
    is_fused: bool = False
    in_pairs: bool = False
    qkv_bias: bool = False
    bias: bool = False
    final_norm: str = "norm"
    out: str = "o_proj"
    up: str = "c_fc"
    down: str = "c_proj"


VARIANTS: dict[str, Variant] = {
    "llama": Variant({**_RMS, "attention_bias": False, "mlp_bias": False}),
    "mistral": Variant({**_RMS, "sliding_window": 4096, "num_key_value_heads": 8,
                        "max_position_embeddings": 4096 * 32}),
    "mixtral": Variant({**_RMS, "rms_norm_eps": 1e-5, "sliding_window": None,
                        "num_key_value_heads": 8, "num_local_experts": 8, "rope_theta": 1e6,
                        "num_experts_per_tok": 2, "max_position_embeddings": 4096 * 32}),
    "qwen2": Variant({**_RMS, **_WINDOW, "max_position_embeddings": 32768}, qkv_bias=True),
    "qwen3": Variant({**_RMS, **_WINDOW, "attention_bias": False, "head_dim": 128,
                      "max_position_embeddings": 32768}, qk_norm="head"),
    "qwen3_moe": Variant({**_RMS, **_WINDOW, "attention_bias": False, "head_dim": None,
                          "num_key_value_heads": 4, "max_position_embeddings": 32768,
                          "decoder_sparse_step": 1, "moe_intermediate_size": 768,
                          "num_experts_per_tok": 8, "num_experts": 128, "num_local_experts": None, "norm_topk_prob": False,
                          "mlp_only_layers": None}, qk_norm="head"),
    "smollm3": Variant({**_RMS, "use_sliding_window": False, "sliding_window": None,
                        "layer_types": None, "no_rope_layers": None, "no_rope_layer_interval": 4,
                        "attention_bias": False, "mlp_bias": False, "num_key_value_heads": 4,
                        "rope_theta": 2000000.0, "max_position_embeddings": 32768,
                        "tie_word_embeddings": True}),
    "olmo": Variant({"attention_bias": False}, norm="bare"),
    "olmo2": Variant({"rms_norm_eps": 1e-5, "attention_bias": False}, order="post",
                     qk_norm="width"),
    "granite": Variant({**_RMS, "attention_bias": False, "mlp_bias": False,
                        "embedding_multiplier": 1.0, "logits_scaling": 1.0,
                        "residual_multiplier": 1.0, "attention_multiplier": 1.0}),
    "stablelm": Variant({**_LAYER, "use_qkv_bias": False, "qk_layernorm": False,
                         "use_parallel_residual": False, "partial_rotary_factor": 0.25,
                         "num_key_value_heads": 32, "max_position_embeddings": 4096},
                        norm="layer"),
    "phi3": Variant({"rms_norm_eps": 1e-5, "sliding_window": None, "partial_rotary_factor": 1.0,
                     "original_max_position_embeddings": 4096, "max_position_embeddings": 4096},
                    mlp="fused", is_fused=True),
    "phi": Variant({**_LAYER, "partial_rotary_factor": 0.5, "qk_layernorm": False,
                    "hidden_act": "gelu_new"},
                   norm="layer", order="parallel", mlp="plain", bias=True, qkv_bias=True,
                   final_norm="final_layernorm", out="dense", up="fc1", down="fc2"),
    "starcoder2": Variant({"norm_epsilon": 1e-5, "sliding_window": None, "use_bias": True,
                           "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
                           "max_position_embeddings": 4096, "tie_word_embeddings": True},
                          norm="layer", mlp="plain"),
    "cohere": Variant({**_LAYER, "attention_bias": False, "use_qk_norm": False,
                       "logit_scale": 0.0625, "rope_theta": 500000.0, "tie_word_embeddings": True,
                       "max_position_embeddings": 8192},
                      norm="centred", order="parallel", in_pairs=True),
    "cohere2": Variant({**_LAYER, "attention_bias": False, "logit_scale": 0.0625,
                        "sliding_window": 4096, "layer_types": None, "sliding_window_pattern": 4,
                        "tie_word_embeddings": True, "max_position_embeddings": 8192},
                       norm="centred", order="parallel", in_pairs=True),
}  # fmt: skip
"""By ``model_type``."""


class Llama:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("model.", "")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.variant = variant = VARIANTS[self.kind]
        self.s = s = read_settings(config, {**COMMON, **variant.keys})
        s.num_key_value_heads = s.num_key_value_heads or s.num_attention_heads
        check_sizes(
            num_hidden_layers=s.num_hidden_layers,
            num_attention_heads=s.num_attention_heads,
            num_key_value_heads=s.num_key_value_heads,
            hidden_size=s.hidden_size,
            intermediate_size=s.intermediate_size,
            vocab_size=s.vocab_size,
            max_position_embeddings=s.max_position_embeddings,
        )
        if s.num_attention_heads % s.num_key_value_heads:
            raise NotOurs(f"{s.num_attention_heads} heads over {s.num_key_value_heads}")
        s.head_dim = s.head_dim or s.hidden_size // s.num_attention_heads
        check_sizes(head_dim=s.head_dim)
        check_activation(s.hidden_act)
        self.n_layers, self.n_heads = s.num_hidden_layers, s.num_attention_heads
        self.n_kv_heads, self.d_model = s.num_key_value_heads, s.hidden_size
        self.d_k = self.d_v = s.head_dim
        self.n_vocab, self.n_positions = s.vocab_size, s.max_position_embeddings
        self.is_causal = True
        self.eos_ids = ids_of(s.eos_token_id)
        self.eps = next(
            (getattr(s, n) for n in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
             if hasattr(s, n)), 1e-5,
        )  # fmt: skip
        self.order = variant.order
        if getattr(s, "use_parallel_residual", False):
            self.order = "parallel"
        self.qk_norm = variant.qk_norm
        if getattr(s, "use_qk_norm", False):
            self.qk_norm = "own"
        if getattr(s, "qk_layernorm", False):
            self.qk_norm = "own" if self.kind == "stablelm" else "head"
        self.rope = self._read_rope(s)
        self.windows, self._turns = self._read_layers(s)
        self.ropes: Sequence[Rope] = (self.rope,)
        scale = getattr(s, "attention_multiplier", None)
        self.scale = float(scale) if scale is not None else self.d_k**-0.5
        self._experts = self._read_experts(s)

    def _read_rope(self, s: Any) -> Rope:
        told = s.rope_parameters if s.rope_parameters is not None else s.rope_scaling
        if told is not None and not isinstance(told, Mapping):
            raise NotOurs("rope_scaling is not a table")
        told = dict(told or {})
        kind = told.get("rope_type") or told.get("type")
        if self.kind == "phi3" and kind in ("su", "yarn"):
            told["rope_type"] = "longrope"
        part = getattr(s, "partial_rotary_factor", 1.0)
        if not hasattr(s, "partial_rotary_factor") and "partial_rotary_factor" in told:
            raise NotOurs("partial_rotary_factor, which this kind of model does not have")
        return read_rope(
            told,
            theta=s.rope_theta,
            d_head=s.head_dim,
            n_positions=s.max_position_embeddings,
            part=part,
            in_pairs=self.variant.in_pairs,
            original=getattr(s, "original_max_position_embeddings", None),
        )

    def _read_layers(self, s: Any) -> tuple[list[int | None], list[bool]]:
        """Return each layer's window, and whether its q and k are turned."""
        n = s.num_hidden_layers
        turns = [True] * n
        if not hasattr(s, "sliding_window"):
            return [None] * n, turns
        uses = getattr(s, "use_sliding_window", True)
        window = read_window(s.sliding_window if uses else None)
        if self.kind == "smollm3":
            every = s.no_rope_layer_interval
            check_sizes(no_rope_layer_interval=every)
            listed = s.no_rope_layers or [int((i + 1) % every != 0) for i in range(n)]
            turns = [bool(t) for t in check_layers("no_rope_layers", listed, n, (0, 1))]
        if not hasattr(s, "layer_types"):
            return [window] * n, turns
        types = s.layer_types
        if types is None:
            if self.kind == "cohere2":
                check_sizes(sliding_window_pattern=s.sliding_window_pattern)
                types = [SLIDING if (i + 1) % s.sliding_window_pattern else FULL for i in range(n)]
            elif self.kind == "smollm3":
                types = [SLIDING if window and not turned else FULL for turned in turns]
            elif self.kind == "qwen3_moe":
                types = [SLIDING if window else FULL] * n
            else:
                first = s.max_window_layers
                types = [SLIDING if window and i >= first else FULL for i in range(n)]
        types = check_layers("layer_types", types, n, (FULL, SLIDING))
        if self.kind == "cohere2":
            turns = [kind == SLIDING for kind in types]
        return [window if kind == SLIDING else None for kind in types], turns

    def _read_experts(self, s: Any) -> list[int]:
        """Return how many experts each layer has; 0 for one plain feed-forward part."""
        n = s.num_hidden_layers
        if self.kind == "mixtral":
            check_sizes(
                num_local_experts=s.num_local_experts, num_experts_per_tok=s.num_experts_per_tok
            )
            return [s.num_local_experts] * n
        if self.kind != "qwen3_moe":
            return [0] * n
        s.num_experts = s.num_local_experts or s.num_experts  # both names are in use
        check_sizes(
            decoder_sparse_step=s.decoder_sparse_step,
            moe_intermediate_size=s.moe_intermediate_size,
            num_experts=s.num_experts,
            num_experts_per_tok=s.num_experts_per_tok,
        )
        plain = s.mlp_only_layers or []
        step = s.decoder_sparse_step
        return [0 if i in plain or (i + 1) % step else s.num_experts for i in range(n)]

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        s, d = self.s, self.d_model
        found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (s.vocab_size, d)}
        found |= self._norm_shapes(self.variant.final_norm)
        return found

    def prefix(self, layer: int) -> str:
        return f"layers.{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        s, d, variant = self.s, self.d_model, self.variant
        wide_q, wide_k = self.n_heads * self.d_k, self.n_kv_heads * self.d_k
        out = f"self_attn.{variant.out}"
        if variant.is_fused:
            found: dict[str, tuple[int, ...]] = {
                "self_attn.qkv_proj.weight": (wide_q + 2 * wide_k, d)
            }
        else:
            found = {
                "self_attn.q_proj.weight": (wide_q, d),
                "self_attn.k_proj.weight": (wide_k, d),
                "self_attn.v_proj.weight": (wide_k, d),
            }
            if self._has_qkv_bias:
                found |= {f"self_attn.{n}_proj.bias": (w,)
                          for n, w in (("q", wide_q), ("k", wide_k), ("v", wide_k))}  # fmt: skip
        found[f"{out}.weight"] = (d, wide_q)
        if self._has_bias("attention_bias"):
            found[f"{out}.bias"] = (d,)
        found |= self._qk_norm_shapes()
        for name in self._norms():
            found |= self._norm_shapes(name)
        return found | self._mlp_shapes(layer, s.intermediate_size)

    @property
    def _has_qkv_bias(self) -> bool:
        return (
            self.variant.qkv_bias
            or self._has_bias("attention_bias")
            or bool(getattr(self.s, "use_qkv_bias", False))
        )

    def _has_bias(self, key: str) -> bool:
        return self.variant.bias or bool(
            getattr(self.s, key, False) or getattr(self.s, "use_bias", False)
        )

    def _norms(self) -> tuple[str, ...]:
        if self.order == "post":
            return ("post_attention_layernorm", "post_feedforward_layernorm")
        if self.order == "parallel":
            return ("input_layernorm",)
        return ("input_layernorm", "post_attention_layernorm")

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        if self.variant.norm == "bare":
            return {}
        found: dict[str, tuple[int, ...]] = {f"{name}.weight": (self.d_model,)}
        if self.variant.norm == "layer":
            found[f"{name}.bias"] = (self.d_model,)
        return found

    def _qk_norm_shapes(self) -> dict[str, tuple[int, ...]]:
        pairs = (("q", self.n_heads), ("k", self.n_kv_heads))
        found: dict[str, tuple[int, ...]] = {}
        for name, n in pairs:
            if self.qk_norm == "width":
                found[f"self_attn.{name}_norm.weight"] = (n * self.d_k,)
            elif self.qk_norm == "own" and self.kind == "stablelm":
                found |= {f"self_attn.{name}_layernorm.norms.{i}.weight": (self.d_k,)
                          for i in range(n)}  # fmt: skip
            elif self.qk_norm == "own":
                found[f"self_attn.{name}_norm.weight"] = (n, self.d_k)
            elif self.qk_norm == "head" and self.kind == "phi":
                found |= {f"self_attn.{name}_layernorm.{part}": (self.d_k,)
                          for part in ("weight", "bias")}  # fmt: skip
            elif self.qk_norm == "head":
                found[f"self_attn.{name}_norm.weight"] = (self.d_k,)
        return found

    def _mlp_shapes(self, layer: int, wide: int) -> dict[str, tuple[int, ...]]:
        d, variant = self.d_model, self.variant
        n_experts = self._experts[layer]
        if self.kind == "mixtral":
            found: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate.weight": (n_experts, d)}
            for i in range(n_experts):
                at = f"block_sparse_moe.experts.{i}."
                found |= {f"{at}w1.weight": (wide, d), f"{at}w2.weight": (d, wide),
                          f"{at}w3.weight": (wide, d)}  # fmt: skip
            return found
        if n_experts:
            wide = self.s.moe_intermediate_size
            found = {"mlp.gate.weight": (n_experts, d)}
            for i in range(n_experts):
                at = f"mlp.experts.{i}."
                found |= {f"{at}gate_proj.weight": (wide, d), f"{at}down_proj.weight": (d, wide),
                          f"{at}up_proj.weight": (wide, d)}  # fmt: skip
            return found
        if variant.mlp == "fused":
            found = {"gate_up_proj": (2 * wide, d), "down_proj": (d, wide)}
        elif variant.mlp == "plain":
            found = {variant.up: (wide, d), variant.down: (d, wide)}
        else:
            found = {"gate_proj": (wide, d), "up_proj": (wide, d), "down_proj": (d, wide)}
        named = {f"mlp.{name}.weight": shape for name, shape in found.items()}
        if self._has_bias("mlp_bias"):
            named |= {f"mlp.{name}.bias": (shape[0],) for name, shape in found.items()}
        return named

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        x_LD = weights.rows("embed_tokens.weight", step.ids.tolist())
        return x_LD * np.float32(getattr(self.s, "embedding_multiplier", 1.0))

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        part = np.float32(getattr(self.s, "residual_multiplier", 1.0))
        if self.order == "post":
            x_LD = x_LD + self._norm(
                w, "post_attention_layernorm", self._attention(layer, w, x_LD, step)
            )
            return x_LD + self._norm(w, "post_feedforward_layernorm", self._mlp(layer, w, x_LD))
        normed_LD = self._norm(w, "input_layernorm", x_LD)
        mixed_LD = self._attention(layer, w, normed_LD, step)
        if self.order == "parallel":
            return x_LD + mixed_LD + self._mlp(layer, w, normed_LD)
        x_LD = x_LD + mixed_LD * part
        normed_LD = self._norm(w, "post_attention_layernorm", x_LD)
        return x_LD + self._mlp(layer, w, normed_LD) * part

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), self.variant.final_norm, x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        tied = "embed_tokens.weight"
        name = tied if self.s.tie_word_embeddings else "lm_head.weight"
        if name not in weights.tensors:
            return None
        scale = getattr(self.s, "logit_scale", 1.0) / getattr(self.s, "logits_scaling", 1.0)
        bias = "lm_head.bias" if "lm_head.bias" in weights.tensors else None
        return project(weights, name, x_LD, scale, bias)

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        if self.variant.norm == "rms":
            return rms_norm(x, w[f"{name}.weight"], eps=self.eps)
        if self.variant.norm == "bare":
            return layer_norm(x, None, eps=self.eps)
        bias = w[f"{name}.bias"] if self.variant.norm == "layer" else None
        return layer_norm(x, w[f"{name}.weight"], bias, eps=self.eps)

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        q, k, v = self._project(w, x_LD)
        inputs: dict[str, Floats] = {}
        if self.qk_norm is not None:
            inputs |= {"q_projected": q, "k_projected": k}
            q, k = self._normed(w, "q", q), self._normed(w, "k", k)
        if self._turns[layer]:
            name = "projected" if self.qk_norm is None else "normed"
            inputs |= {f"q_{name}": q, f"k_{name}": k}
            q, k = step.turn(self.rope, q), step.turn(self.rope, k)
        out = f"self_attn.{self.variant.out}"
        w_o = w[f"{out}.weight"]
        heads = LayerHeads(
            q=q,
            k=k,
            v=v,
            scale=self.scale,
            visible=MaskRule(causal=True, window=self.windows[layer]),
            x=x_LD,
            w_o=w_o.T,
            inputs=inputs,
            layer=layer,
            name=f"layers.{layer}.self_attn",
        )
        return linear(step.attend(heads), w_o, w.get(f"{out}.bias"))

    def _project(self, w: Layer, x_LD: Floats) -> tuple[Floats, Floats, Floats]:
        if self.variant.is_fused:
            wide_q, wide_k = self.n_heads * self.d_k, self.n_kv_heads * self.d_k
            all_LX = linear(x_LD, w["self_attn.qkv_proj.weight"])
            q, k, v = np.split(all_LX, (wide_q, wide_q + wide_k), -1)
        else:
            q, k, v = (
                linear(x_LD, w[f"self_attn.{n}_proj.weight"], w.get(f"self_attn.{n}_proj.bias"))
                for n in "qkv"
            )
        n, m = self.n_heads, self.n_kv_heads
        return to_heads(q, n), to_heads(k, m), to_heads(v, m)

    def _normed(self, w: Layer, name: str, a_HLE: Floats) -> Floats:
        if self.qk_norm == "width":
            flat = a_HLE.transpose(1, 0, 2).reshape(a_HLE.shape[1], -1)
            normed = rms_norm(flat, w[f"self_attn.{name}_norm.weight"], eps=self.eps)
            return to_heads(normed, len(a_HLE))
        if self.kind == "stablelm":
            rows = [w[f"self_attn.{name}_layernorm.norms.{i}.weight"] for i in range(len(a_HLE))]
            return layer_norm(a_HLE, np.stack(rows)[:, None], eps=self.eps)
        if self.kind == "phi":
            at = f"self_attn.{name}_layernorm"
            return layer_norm(a_HLE, w[f"{at}.weight"], w[f"{at}.bias"], eps=self.eps)
        weight = w[f"self_attn.{name}_norm.weight"]
        if self.qk_norm == "own":
            return layer_norm(a_HLE, weight[:, None], eps=self.eps)
        return rms_norm(a_HLE, weight, eps=self.eps)

    def _mlp(self, layer: int, w: Layer, x_LD: Floats) -> Floats:
        act, variant = self.s.hidden_act, self.variant
        if self._experts[layer]:
            return self._route(w, x_LD)
        if variant.mlp == "fused":
            gate, up = np.split(linear(x_LD, w["mlp.gate_up_proj.weight"]), 2, -1)
            return linear(activate(act, gate.copy()) * up, w["mlp.down_proj.weight"])
        if variant.mlp == "plain":
            up = linear(x_LD, w[f"mlp.{variant.up}.weight"], w.get(f"mlp.{variant.up}.bias"))
            down = f"mlp.{variant.down}"
            return linear(activate(act, up), w[f"{down}.weight"], w.get(f"{down}.bias"))
        gate = linear(x_LD, w["mlp.gate_proj.weight"], w.get("mlp.gate_proj.bias"))
        up = linear(x_LD, w["mlp.up_proj.weight"], w.get("mlp.up_proj.bias"))
        mixed = activate(act, gate)
        mixed *= up
        return linear(mixed, w["mlp.down_proj.weight"], w.get("mlp.down_proj.bias"))

    def _route(self, w: Layer, x_LD: Floats) -> Floats:
        """Send each token to its best experts; only those that some token goes to are read.

        Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2; Jiang et al. 2024.
        """
        is_mixtral = self.kind == "mixtral"
        at = "block_sparse_moe" if is_mixtral else "mlp"
        logits = linear(x_LD, w[f"{at}.gate.weight"])
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        n_chosen = min(self.s.num_experts_per_tok, shares.shape[-1])
        best_LN = np.argsort(-shares, axis=-1, kind="stable")[:, :n_chosen]
        share_LN = np.take_along_axis(shares, best_LN, -1)
        if is_mixtral or self.s.norm_topk_prob:
            share_LN = share_LN / share_LN.sum(-1, keepdims=True)
        names = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        made = np.zeros_like(x_LD)
        for expert in np.unique(best_LN).tolist():
            rows, places = np.nonzero(best_LN == expert)
            gate, up, down = (w.expert(f"{at}.experts.", expert, name) for name in names)
            part = activate(self.s.hidden_act, linear(x_LD[rows], gate)) * linear(x_LD[rows], up)
            made[rows] += linear(part, down) * share_LN[rows, places][:, None]
        return made
