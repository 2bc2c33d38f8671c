"""ModernBERT: an encoder with rotary positions, gated feed-forward, and windows in most layers.

Warner et al. 2024, "Smarter, Better, Faster, Longer", section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.family import Pass, Shapes, ids_of
from attnviz.sources.families.parts import Floats, Whole, activate, layer_norm, linear
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import (
    FULL,
    SLIDING,
    NotOurs,
    check_activation,
    check_layers,
    check_sizes,
    read_settings,
)
from attnviz.sources.families.weights import Layer, Weights

KEYS: dict[str, Any] = {
    "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192,
    "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "layer_types": None,
    "rope_parameters": None, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    "global_attn_every_n_layers": 3, "local_attention": 128, "mlp_bias": False,
    "pad_token_id": None, "eos_token_id": None, "tie_word_embeddings": True,
}  # fmt: skip
"""Its config keys with the library's defaults."""


class ModernBert:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("model.", "")

    def __init__(self, config: Mapping[str, Any]) -> None:
        inert = {"layer_norm_eps"}  # the first releases carry it; the model reads norm_eps
        given = {k: v for k, v in config.items() if k not in inert}
        self.s = s = read_settings(given, KEYS)
        check_sizes(
            num_hidden_layers=s.num_hidden_layers,
            num_attention_heads=s.num_attention_heads,
            hidden_size=s.hidden_size,
            intermediate_size=s.intermediate_size,
            vocab_size=s.vocab_size,
            max_position_embeddings=s.max_position_embeddings,
            global_attn_every_n_layers=s.global_attn_every_n_layers,
            local_attention=s.local_attention,
        )
        if s.hidden_size % s.num_attention_heads:
            raise NotOurs(f"{s.num_attention_heads} heads in {s.hidden_size} numbers")
        check_activation(s.hidden_activation)
        self.n_layers, self.n_heads = s.num_hidden_layers, s.num_attention_heads
        self.n_kv_heads, self.d_model, self.n_vocab = self.n_heads, s.hidden_size, s.vocab_size
        self.d_k = self.d_v = s.hidden_size // s.num_attention_heads
        self.n_positions: int | None = s.max_position_embeddings
        self.is_causal = False
        self.eos_ids = ids_of(s.eos_token_id)
        types = s.layer_types
        if types is None:
            every = s.global_attn_every_n_layers
            types = [SLIDING if i % every else FULL for i in range(s.num_hidden_layers)]
        self.types = check_layers("layer_types", types, s.num_hidden_layers, (FULL, SLIDING))
        # half of local_attention on each side, and the token itself: an odd number of keys
        window = s.local_attention // 2 * 2 + 1
        self.windows = [window if kind == SLIDING else None for kind in self.types]
        told = s.rope_parameters
        if told is not None and not (isinstance(told, Mapping) and set(told) <= {FULL, SLIDING}):
            raise NotOurs("rope_parameters that do not say which layers they are for")
        thetas = {FULL: s.global_rope_theta, SLIDING: s.local_rope_theta}
        self.by_type = {
            kind: read_rope(
                (told or {}).get(kind),
                theta=theta,
                d_head=self.d_k,
                n_positions=s.max_position_embeddings,
            )
            for kind, theta in thetas.items()
        }
        self.ropes: Sequence[Rope] = tuple(self.by_type.values())

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        found: dict[str, tuple[int, ...]] = {
            "embeddings.tok_embeddings.weight": (self.n_vocab, self.d_model)
        }
        for name in ("embeddings.norm", "final_norm"):
            found |= self._norm_shapes(name)
        return found

    def prefix(self, layer: int) -> str:
        return f"layers.{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide, s = self.d_model, self.s.intermediate_size, self.s
        found: dict[str, tuple[int, ...]] = {}
        for name, shape, has_bias in (
            ("attn.Wqkv", (3 * d, d), s.attention_bias), ("attn.Wo", (d, d), s.attention_bias),
            ("mlp.Wi", (2 * wide, d), s.mlp_bias), ("mlp.Wo", (d, wide), s.mlp_bias),
        ):  # fmt: skip
            found[f"{name}.weight"] = shape
            if has_bias:
                found[f"{name}.bias"] = shape[:1]
        for name in ("attn_norm", "mlp_norm") if layer else ("mlp_norm",):
            found |= self._norm_shapes(name)
        return found

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {f"{name}.weight": (self.d_model,)}
        if self.s.norm_bias:
            found[f"{name}.bias"] = (self.d_model,)
        return found

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        x_LD = weights.rows("embeddings.tok_embeddings.weight", step.ids.tolist())
        return self._norm(weights.layer("embeddings."), "norm", x_LD)

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        normed_LD = self._norm(w, "attn_norm", x_LD) if layer else x_LD
        x_LD = x_LD + self._attention(layer, w, normed_LD, step)
        both = self._linear(w, "mlp.Wi", self._norm(w, "mlp_norm", x_LD))
        shown, gate = np.split(both, 2, -1)
        return x_LD + self._linear(
            w, "mlp.Wo", activate(self.s.hidden_activation, shown.copy()) * gate
        )

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), "final_norm", x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        return None

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        fused = self._linear(w, "attn.Wqkv", x_LD)
        by_kind = fused.reshape(len(x_LD), 3, self.n_heads, self.d_k).transpose(1, 2, 0, 3)
        q, k, v = (np.ascontiguousarray(part) for part in by_kind)
        rope = self.by_type[self.types[layer]]
        w_o = w["attn.Wo.weight"]
        heads = LayerHeads(
            q=step.turn(rope, q),
            k=step.turn(rope, k),
            v=v,
            scale=self.d_k**-0.5,
            visible=MaskRule(window=self.windows[layer]),
            x=x_LD,
            w_o=w_o.T,
            inputs={"q_projected": q, "k_projected": k},
            layer=layer,
            name=f"layers.{layer}.attn",
        )
        return linear(step.attend(heads), w_o, w.get("attn.Wo.bias"))

    def _linear(self, w: Layer, name: str, x_LD: Floats) -> Floats:
        return linear(x_LD, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        return layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias"), eps=self.s.norm_eps)
