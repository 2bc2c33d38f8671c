"""Llama and its relatives: decoders with rotary positions, gated or plain feed-forward, experts.

Touvron et al. 2023, "LLaMA"; one row of ``VARIANTS`` per relative says in what it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.sources.families.family import Family, Pass, Shapes, project, shapes
from attnviz.sources.families.parts import (
    Floats,
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
    check_experts,
    check_layers,
    check_sizes,
    read_settings,
    read_window,
    table,
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


_IN, _MID = "input_layernorm", "post_attention_layernorm"
_FEED = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
Around = tuple[str | None, str | None]
ORDERS: dict[str, tuple[Around, Around]] = {
    "pre": ((_IN, None), (_MID, None)),
    "post": ((None, _MID), (None, _FEED[1])),
    "around": ((_IN, _MID), _FEED),
    "parallel": ((_IN, None), (_IN, None)),
    "beside": ((_IN, None), (_MID, None)),
}
"""The norms before and behind attention, and before and behind the feed-forward part.

``parallel`` and ``beside``: both parts read the layer's input, by the same norm or each by its own.
"""


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
        A name of ``ORDERS``.
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
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    head: str = "lm_head"
    out: str = "self_attn.o_proj"
    up: str = "mlp.c_fc"
    down: str = "mlp.c_proj"


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
                   final_norm="final_layernorm", out="self_attn.dense", up="mlp.fc1",
                   down="mlp.fc2"),
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


class Llama(Family):
    """One model of the family, by its config."""

    prefixes: tuple[str, ...] = ("model.", "")
    attention = "self_attn"
    is_causal = True
    variants: Mapping[str, Variant] = VARIANTS
    softcap: float | None = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.variant = variant = self.variants[self.kind]
        s = read_settings(config, {**COMMON, **variant.keys})
        super().__init__(
            s, d_model=s.hidden_size, n_heads=s.num_attention_heads, n_layers=s.num_hidden_layers,
            d_head=s.head_dim or s.hidden_size // max(1, s.num_attention_heads),
            n_kv_heads=s.num_key_value_heads, intermediate_size=s.intermediate_size,
            n_positions=s.max_position_embeddings,
        )  # fmt: skip
        self.act = check_activation(self._read_activation(s))
        self.eps = next(
            (getattr(s, n) for n in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
             if hasattr(s, n)), 1e-5,
        )  # fmt: skip
        self.order, self.qk_norm = variant.order, variant.qk_norm
        if getattr(s, "use_parallel_residual", False):
            self.order = "beside" if variant.order == "beside" else "parallel"
        elif self.order == "beside":
            self.order = "pre"
        if getattr(s, "use_qk_norm", False):
            self.qk_norm = "own"
        if getattr(s, "qk_layernorm", False):
            self.qk_norm = "own" if self.kind == "stablelm" else "head"
        self.windows, turns = self._read_layers(s)
        both = self._read_ropes(s)
        self.ropes: Sequence[Rope] = tuple({id(rope): rope for rope in both.values()}.values())
        self.layer_ropes = [
            both[SLIDING if window else FULL] if turned else None
            for window, turned in zip(self.windows, turns)
        ]
        self.scale = float(self._read_scale(s))
        self._experts = self._read_experts(s)

    def _read_activation(self, s: Any) -> Any:
        return s.hidden_act

    def _read_scale(self, s: Any) -> float:
        told = getattr(s, "attention_multiplier", None)
        return float(self.d_k**-0.5 if told is None else told)

    def _read_ropes(self, s: Any) -> dict[str, Rope]:
        """Return the rotary positions of full and of sliding layers."""
        rope = self._read_rope(s)
        return {FULL: rope, SLIDING: rope}

    def _read_rope(self, s: Any) -> Rope:
        told = table(s.rope_parameters if s.rope_parameters is not None else s.rope_scaling)
        kind = told.get("rope_type") or told.get("type")
        if self.kind == "phi3" and kind in ("su", "yarn"):
            told["rope_type"] = "longrope"
        part = getattr(s, "partial_rotary_factor", 1.0)
        if not hasattr(s, "partial_rotary_factor") and "partial_rotary_factor" in told:
            raise NotOurs("partial_rotary_factor, which this kind of model does not have")
        return read_rope(
            told,
            theta=s.rope_theta,
            d_head=self.d_k,
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
            return [check_experts(s.num_local_experts)] * n
        if self.kind != "qwen3_moe":
            return [0] * n
        s.num_experts = s.num_local_experts or s.num_experts  # both names are in use
        check_sizes(
            decoder_sparse_step=s.decoder_sparse_step,
            moe_intermediate_size=s.moe_intermediate_size,
            num_experts=s.num_experts,
            num_experts_per_tok=s.num_experts_per_tok,
        )
        check_experts(s.num_experts)
        plain = s.mlp_only_layers or []
        if not isinstance(plain, list):
            raise NotOurs(f"mlp_only_layers = {str(plain)[:40]} is no list")
        step = s.decoder_sparse_step
        return [0 if i in plain or (i + 1) % step else s.num_experts for i in range(n)]

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        names = {self.variant.embedding: (self.n_vocab, self.d_model)}
        return shapes(names) | self._norm_shapes(self.variant.final_norm)

    def layer_tensors(self, layer: int) -> Shapes:
        found = shapes(self._attention_shapes(), self._is_biased) | self._qk_norm_shapes()
        for name in {name for around in ORDERS[self.order] for name in around if name}:
            found |= self._norm_shapes(name)
        return found | shapes(self._mlp_shapes(layer), self._is_biased)

    def _attention_shapes(self) -> dict[str, tuple[int, ...]]:
        d, wide_q, wide_k = self.d_model, self.n_heads * self.d_k, self.n_kv_heads * self.d_k
        out: dict[str, tuple[int, ...]] = {self.variant.out: (d, wide_q)}
        if self.variant.is_fused:
            return {"self_attn.qkv_proj": (wide_q + 2 * wide_k, d), **out}
        wide = {"q": wide_q, "k": wide_k, "v": wide_k}
        return {f"self_attn.{name}_proj": (n, d) for name, n in wide.items()} | out

    def _is_biased(self, name: str) -> bool:
        s, variant = self.s, self.variant
        if variant.bias or getattr(s, "use_bias", False):
            return True
        if name.startswith("mlp."):
            return bool(getattr(s, "mlp_bias", False)) and ".experts." not in name
        if name != variant.out and (variant.qkv_bias or getattr(s, "use_qkv_bias", False)):
            return True
        return bool(getattr(s, "attention_bias", False))

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        if self.variant.norm == "bare":
            return {}
        return shapes({name: (self.d_model,)}, lambda _: self.variant.norm == "layer")

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

    def _mlp_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        d, wide, variant = self.d_model, self.s.intermediate_size, self.variant
        if n_experts := self._experts[layer]:
            at, (gate, up, down) = self._expert_names
            wide = getattr(self.s, "moe_intermediate_size", wide)
            found: dict[str, tuple[int, ...]] = {f"{at}.gate": (n_experts, d)}
            for i in range(n_experts):
                one = f"{at}.experts.{i}."
                found |= {
                    f"{one}{gate}": (wide, d),
                    f"{one}{up}": (wide, d),
                    f"{one}{down}": (d, wide),
                }
            return found
        if variant.mlp == "fused":
            return {"mlp.gate_up_proj": (2 * wide, d), "mlp.down_proj": (d, wide)}
        if variant.mlp == "plain":
            return {variant.up: (wide, d), variant.down: (d, wide)}
        return {"mlp.gate_proj": (wide, d), "mlp.up_proj": (wide, d), "mlp.down_proj": (d, wide)}

    @property
    def _expert_names(self) -> tuple[str, tuple[str, str, str]]:
        if self.kind == "mixtral":
            return "block_sparse_moe", ("w1", "w3", "w2")
        return "mlp", ("gate_proj", "up_proj", "down_proj")

    # -- the forward pass -------------------------------------------------------------------

    def embed(self, weights: Weights, step: Pass) -> Floats:
        x_LD = weights.rows(f"{self.variant.embedding}.weight", step.ids.tolist())
        x_LD *= np.float32(getattr(self.s, "embedding_multiplier", 1.0))
        return x_LD

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        part = np.float32(getattr(self.s, "residual_multiplier", 1.0))
        (before, behind), (before_feed, behind_feed) = ORDERS[self.order]
        normed_LD = self._norm_if(w, before, x_LD)
        mixed_LD: Floats = x_LD + part * self._norm_if(
            w, behind, self._attention(layer, w, normed_LD, step)
        )
        read_LD = x_LD if self.order in ("parallel", "beside") else mixed_LD
        fed_LD = self._mlp(layer, w, self._norm_if(w, before_feed, read_LD))
        mixed_LD += part * self._norm_if(w, behind_feed, fed_LD)
        return mixed_LD

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), self.variant.final_norm, x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        tied, head = f"{self.variant.embedding}.weight", self.variant.head
        name = tied if self.s.tie_word_embeddings else f"{head}.weight"
        if name not in weights.tensors:
            return None
        scale = getattr(self.s, "logit_scale", 1.0) / getattr(self.s, "logits_scaling", 1.0)
        bias = f"{head}.bias" if f"{head}.bias" in weights.tensors else None
        return project(weights, name, x_LD, scale, bias)

    def _norm_if(self, w: Layer, name: str | None, x: Floats) -> Floats:
        return x if name is None else self._norm(w, name, x)

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        if self.variant.norm == "rms":
            return rms_norm(x, w[f"{name}.weight"], eps=self.eps)
        if self.variant.norm == "bare":
            return layer_norm(x, None, eps=self.eps)
        return super()._norm(w, name, x)

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        q, k, v = self._project(w, x_LD)
        inputs: dict[str, Floats] = {}
        if self.qk_norm is not None:
            inputs |= {"q_projected": q, "k_projected": k}
            q, k = self._normed(w, "q", q), self._normed(w, "k", k)
        if (rope := self.layer_ropes[layer]) is not None:
            name = "projected" if self.qk_norm is None else "normed"
            inputs |= {f"q_{name}": q, f"k_{name}": k}
            q, k = step.turn(rope, q), step.turn(rope, k)
        return self._attend(layer, w, step, self.variant.out, (q, k, v), scale=self.scale,
                            softcap=self.softcap, x=x_LD, inputs=inputs)  # fmt: skip

    def _project(self, w: Layer, x_LD: Floats) -> tuple[Floats, Floats, Floats]:
        if self.variant.is_fused:
            wide_q, wide_k = self.n_heads * self.d_k, self.n_kv_heads * self.d_k
            all_LX = self._linear(w, "self_attn.qkv_proj", x_LD)
            q, k, v = np.split(all_LX, (wide_q, wide_q + wide_k), -1)
        else:
            q, k, v = (self._linear(w, f"self_attn.{n}_proj", x_LD) for n in "qkv")
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
            return self._norm(w, f"self_attn.{name}_layernorm", a_HLE)
        if self.qk_norm == "own":
            weight = w[f"self_attn.{name}_norm.weight"]
            return layer_norm(a_HLE, weight[:, None], eps=self.eps)
        return self._norm(w, f"self_attn.{name}_norm", a_HLE)

    def _mlp(self, layer: int, w: Layer, x_LD: Floats) -> Floats:
        variant = self.variant
        if self._experts[layer]:
            return self._route(w, x_LD)
        if variant.mlp == "plain":
            return self._linear(
                w, variant.down, activate(self.act, self._linear(w, variant.up, x_LD))
            )
        if variant.mlp == "fused":
            gate, up = np.split(self._linear(w, "mlp.gate_up_proj", x_LD), 2, -1)
        else:
            gate, up = (self._linear(w, f"mlp.{name}_proj", x_LD) for name in ("gate", "up"))
        return self._linear(w, "mlp.down_proj", activate(self.act, gate.copy()) * up)

    def _route(self, w: Layer, x_LD: Floats) -> Floats:
        """Send each token to its best experts; only those that some token goes to are read.

        Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2; Jiang et al. 2024.
        """
        at, names = self._expert_names
        logits = linear(x_LD, w[f"{at}.gate.weight"])
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        n_chosen = min(self.s.num_experts_per_tok, shares.shape[-1])
        best_LN = np.argsort(-shares, axis=-1, kind="stable")[:, :n_chosen]
        share_LN = np.take_along_axis(shares, best_LN, -1)
        if self.kind == "mixtral" or self.s.norm_topk_prob:
            share_LN = share_LN / share_LN.sum(-1, keepdims=True)
        made = np.zeros_like(x_LD)
        for expert in np.unique(best_LN).tolist():
            rows, places = np.nonzero(best_LN == expert)
            gate, up, down = (w[f"{at}.experts.{expert}.{name}.weight"] for name in names)
            part = activate(self.act, linear(x_LD[rows], gate)) * linear(x_LD[rows], up)
            made[rows] += linear(part, down) * share_LN[rows, places][:, None]
        return made
