"""GPT-NeoX and Pythia: rotary positions on a part of each head, both parts side by side.

Black et al. 2022, "GPT-NeoX-20B", section 2.1. The fused matrix is cut head by head: q, k, v of
head 0, then q, k, v of head 1, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.family import Pass, Shapes, ids_of, project
from attnviz.sources.families.parts import Floats, Whole, activate, layer_norm, linear
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import NotOurs, check_activation, check_sizes, read_settings
from attnviz.sources.families.weights import Layer, Weights

KEYS: dict[str, Any] = {
    "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "hidden_act": "gelu", "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5, "use_parallel_residual": True, "rope_parameters": None,
    "rope_scaling": None, "rope_theta": None, "rotary_emb_base": 10000.0, "rotary_pct": 0.25,
    "attention_bias": True, "tie_word_embeddings": False, "pad_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
"""Its config keys with the library's defaults."""


class NeoX:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("gpt_neox.", "")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.s = s = read_settings(config, KEYS)
        check_sizes(
            num_hidden_layers=s.num_hidden_layers,
            num_attention_heads=s.num_attention_heads,
            hidden_size=s.hidden_size,
            intermediate_size=s.intermediate_size,
            vocab_size=s.vocab_size,
            max_position_embeddings=s.max_position_embeddings,
        )
        if s.hidden_size % s.num_attention_heads:
            raise NotOurs(f"{s.num_attention_heads} heads in {s.hidden_size} numbers")
        if s.rope_theta is not None and s.rope_theta != s.rotary_emb_base:
            raise NotOurs("rope_theta beside rotary_emb_base")
        check_activation(s.hidden_act)
        self.n_layers, self.n_heads = s.num_hidden_layers, s.num_attention_heads
        self.n_kv_heads, self.d_model, self.n_vocab = self.n_heads, s.hidden_size, s.vocab_size
        self.d_k = self.d_v = s.hidden_size // s.num_attention_heads
        self.n_positions: int | None = s.max_position_embeddings
        self.is_causal = True
        self.eos_ids = ids_of(s.eos_token_id)
        self.windows = [None] * s.num_hidden_layers
        self.rope = read_rope(
            s.rope_parameters if s.rope_parameters is not None else s.rope_scaling,
            theta=s.rotary_emb_base,
            d_head=self.d_k,
            n_positions=s.max_position_embeddings,
            part=s.rotary_pct,
        )
        self.ropes: Sequence[Rope] = (self.rope,)

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        return {
            "embed_in.weight": (self.n_vocab, d),
            "final_layer_norm.weight": (d,), "final_layer_norm.bias": (d,),
        }  # fmt: skip

    def prefix(self, layer: int) -> str:
        return f"layers.{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide = self.d_model, self.s.intermediate_size
        found: dict[str, tuple[int, ...]] = {}
        for name, shape in (
            ("attention.query_key_value", (3 * d, d)), ("attention.dense", (d, d)),
            ("mlp.dense_h_to_4h", (wide, d)), ("mlp.dense_4h_to_h", (d, wide)),
        ):  # fmt: skip
            found[f"{name}.weight"] = shape
            if self.s.attention_bias or name.startswith("mlp"):
                found[f"{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            found |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
        return found

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        return weights.rows("embed_in.weight", step.ids.tolist())

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        mixed_LD = self._attention(layer, w, self._norm(w, "input_layernorm", x_LD), step)
        if self.s.use_parallel_residual:
            fed_LD = self._mlp(w, self._norm(w, "post_attention_layernorm", x_LD))
            return x_LD + mixed_LD + fed_LD
        x_LD = x_LD + mixed_LD
        return x_LD + self._mlp(w, self._norm(w, "post_attention_layernorm", x_LD))

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), "final_layer_norm", x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        name = "embed_in.weight" if self.s.tie_word_embeddings else "embed_out.weight"
        return project(weights, name, x_LD) if name in weights.tensors else None

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        fused = self._linear(w, "attention.query_key_value", x_LD)
        by_head = fused.reshape(len(x_LD), self.n_heads, 3, self.d_k).transpose(2, 1, 0, 3)
        q, k, v = (np.ascontiguousarray(part) for part in by_head)
        w_o = w["attention.dense.weight"]
        heads = LayerHeads(
            q=step.turn(self.rope, q),
            k=step.turn(self.rope, k),
            v=v,
            scale=self.d_k**-0.5,
            visible=MaskRule(causal=True),
            x=x_LD,
            w_o=w_o.T,
            inputs={"q_projected": q, "k_projected": k},
            layer=layer,
            name=f"layers.{layer}.attention",
        )
        return linear(step.attend(heads), w_o, w.get("attention.dense.bias"))

    def _mlp(self, w: Layer, x_LD: Floats) -> Floats:
        up = activate(self.s.hidden_act, self._linear(w, "mlp.dense_h_to_4h", x_LD))
        return self._linear(w, "mlp.dense_4h_to_h", up)

    def _linear(self, w: Layer, name: str, x_LD: Floats) -> Floats:
        return linear(x_LD, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        eps = self.s.layer_norm_eps
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps=eps)
