"""Gemma 1, 2 and 3: embeddings scaled by √d, norms around both parts, scores that are capped.

Gemma Team 2024, "Gemma", "Gemma 2" (section 2), and 2025, "Gemma 3" (section 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.family import Pass, Shapes, ids_of, project
from attnviz.sources.families.parts import Floats, Whole, activate, linear, rms_norm, to_heads
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

_COMMON: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "attention_bias": False,
    "tie_word_embeddings": True, "rope_parameters": None, "rope_scaling": None,
    "rope_theta": 10000.0, "pad_token_id": 0, "eos_token_id": 1, "hidden_act": None,
    "hidden_activation": None,
}  # fmt: skip
_CAPPED: dict[str, Any] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "layer_types": None,
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {
    "gemma": _COMMON,
    "gemma2": {**_COMMON, **_CAPPED, "final_logit_softcapping": 30.0,
               "attn_logit_softcapping": 50.0},
    "gemma3_text": {**_COMMON, **_CAPPED, "vocab_size": 262208, "rope_theta": 1e6,
                    "max_position_embeddings": 131072, "rope_local_base_freq": 10000.0,
                    "sliding_window_pattern": 6, "_sliding_window_pattern": 6,
                    "final_logit_softcapping": None, "attn_logit_softcapping": None},
}  # fmt: skip
"""The config keys of each by ``model_type``, with the library's defaults."""


class Gemma:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("model.", "")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.s = s = read_settings(config, KEYS[self.kind])
        check_sizes(
            num_hidden_layers=s.num_hidden_layers,
            num_attention_heads=s.num_attention_heads,
            num_key_value_heads=s.num_key_value_heads,
            hidden_size=s.hidden_size,
            intermediate_size=s.intermediate_size,
            head_dim=s.head_dim,
            vocab_size=s.vocab_size,
            max_position_embeddings=s.max_position_embeddings,
        )
        if s.num_attention_heads % s.num_key_value_heads:
            raise NotOurs(f"{s.num_attention_heads} heads over {s.num_key_value_heads}")
        act = s.hidden_activation or s.hidden_act or "gelu_pytorch_tanh"
        # the first releases say "gelu" and mean its tanh form: transformers issue 29402
        self.act = check_activation("gelu_pytorch_tanh" if act == "gelu" else act)
        self.is_first = self.kind == "gemma"
        self.n_layers, self.n_heads = s.num_hidden_layers, s.num_attention_heads
        self.n_kv_heads, self.d_model = s.num_key_value_heads, s.hidden_size
        self.d_k = self.d_v = s.head_dim
        self.n_vocab, self.n_positions = s.vocab_size, s.max_position_embeddings
        self.is_causal = True
        self.eos_ids = ids_of(s.eos_token_id)
        pre = self.d_k if self.is_first else s.query_pre_attn_scalar
        check_sizes(query_pre_attn_scalar=int(pre))
        self.scale = pre**-0.5
        # Gemma 3's config may have a cap, which its attention does not use
        self.softcap = s.attn_logit_softcapping if self.kind == "gemma2" else None
        self.windows, types = self._read_layers(s)
        both = self._read_ropes(s)
        self.layer_ropes = [both[kind] for kind in types]
        self.ropes: Sequence[Rope] = tuple(both.values())

    def _read_layers(self, s: Any) -> tuple[list[int | None], list[str]]:
        n = s.num_hidden_layers
        if self.is_first:
            return [None] * n, [FULL] * n
        window, types = read_window(s.sliding_window), s.layer_types
        if types is None:
            every = getattr(s, "sliding_window_pattern", 2)
            check_sizes(sliding_window_pattern=every)
            types = [SLIDING if (i + 1) % every else FULL for i in range(n)]
        types = check_layers("layer_types", types, n, (FULL, SLIDING))
        return [window if kind == SLIDING else None for kind in types], types

    def _read_ropes(self, s: Any) -> dict[str, Rope]:
        """Return the rotary positions of full and of sliding layers: Gemma 3 has two."""
        told = s.rope_parameters
        same = {"d_head": self.d_k, "n_positions": s.max_position_embeddings}
        if self.kind != "gemma3_text":
            rope = read_rope(
                told if told is not None else s.rope_scaling,
                theta=s.rope_theta,
                **same,
            )
            return {FULL: rope, SLIDING: rope}
        if told is not None and not set(told) <= {FULL, SLIDING}:
            raise NotOurs("rope_parameters that do not say which layers they are for")
        full = dict((told or {}).get(FULL) or {}) | dict(s.rope_scaling or {})
        sliding = (told or {}).get(SLIDING)
        return {
            FULL: read_rope(full, theta=s.rope_theta, **same),
            SLIDING: read_rope(sliding, theta=s.rope_local_base_freq, **same),
        }

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        return {"embed_tokens.weight": (self.n_vocab, d), "norm.weight": (d,)}

    def prefix(self, layer: int) -> str:
        return f"layers.{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide = self.d_model, self.s.intermediate_size
        wide_q, wide_k = self.n_heads * self.d_k, self.n_kv_heads * self.d_k
        matrices = {
            "self_attn.q_proj": (wide_q, d), "self_attn.k_proj": (wide_k, d),
            "self_attn.v_proj": (wide_k, d), "self_attn.o_proj": (d, wide_q),
            "mlp.gate_proj": (wide, d), "mlp.up_proj": (wide, d), "mlp.down_proj": (d, wide),
        }  # fmt: skip
        found: dict[str, tuple[int, ...]] = {f"{n}.weight": shape for n, shape in matrices.items()}
        if self.s.attention_bias:
            found |= {f"{n}.bias": s[:1] for n, s in matrices.items() if n.startswith("self_attn")}
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{name}.weight"] = (d,)
        if not self.is_first:
            found["pre_feedforward_layernorm.weight"] = (d,)
            found["post_feedforward_layernorm.weight"] = (d,)
        if self.kind == "gemma3_text":
            found["self_attn.q_norm.weight"] = found["self_attn.k_norm.weight"] = (self.d_k,)
        return found

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        x_LD = weights.rows("embed_tokens.weight", step.ids.tolist())
        return x_LD * np.float32(math.sqrt(self.d_model))

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        mixed_LD = self._attention(layer, w, self._norm(w, "input_layernorm", x_LD), step)
        if self.is_first:
            x_LD = x_LD + mixed_LD
            return x_LD + self._mlp(w, self._norm(w, "post_attention_layernorm", x_LD))
        x_LD = x_LD + self._norm(w, "post_attention_layernorm", mixed_LD)
        fed_LD = self._mlp(w, self._norm(w, "pre_feedforward_layernorm", x_LD))
        return x_LD + self._norm(w, "post_feedforward_layernorm", fed_LD)

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), "norm", x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        name = "embed_tokens.weight" if self.s.tie_word_embeddings else "lm_head.weight"
        if name not in weights.tensors:
            return None
        scores = project(weights, name, x_LD)
        cap = getattr(self.s, "final_logit_softcapping", None)
        return scores if not cap else np.float32(cap) * np.tanh(scores / np.float32(cap))

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        """Gemma's norms multiply by 1 + weight."""
        return rms_norm(x, 1 + w[f"{name}.weight"], eps=self.s.rms_norm_eps)

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        flat = (
            linear(x_LD, w[f"self_attn.{n}_proj.weight"], w.get(f"self_attn.{n}_proj.bias"))
            for n in "qkv"
        )
        q, k, v = (to_heads(a, n) for a, n in zip(flat, (self.n_heads, *2 * (self.n_kv_heads,))))
        inputs = {"q_projected": q, "k_projected": k}
        if self.kind == "gemma3_text":
            q, k = self._norm(w, "self_attn.q_norm", q), self._norm(w, "self_attn.k_norm", k)
            inputs |= {"q_normed": q, "k_normed": k}
        rope = self.layer_ropes[layer]
        q, k = step.turn(rope, q), step.turn(rope, k)
        w_o = w["self_attn.o_proj.weight"]
        heads = LayerHeads(
            q=q,
            k=k,
            v=v,
            scale=self.scale,
            visible=MaskRule(causal=True, window=self.windows[layer]),
            softcap=self.softcap,
            x=x_LD,
            w_o=w_o.T,
            inputs=inputs,
            layer=layer,
            name=f"layers.{layer}.self_attn",
        )
        return linear(step.attend(heads), w_o, w.get("self_attn.o_proj.bias"))

    def _mlp(self, w: Layer, x_LD: Floats) -> Floats:
        gate = activate(self.act, linear(x_LD, w["mlp.gate_proj.weight"]))
        gate *= linear(x_LD, w["mlp.up_proj.weight"])
        return linear(gate, w["mlp.down_proj.weight"])
