"""ModernBERT: an encoder with rotary positions, gated feed-forward, and windows in most layers.

Warner et al. 2024, "Smarter, Better, Faster, Longer", section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.sources.families.family import Family, Pass, Shapes, shapes
from attnviz.sources.families.parts import Floats, activate
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import (
    FULL,
    SLIDING,
    NotOurs,
    check_activation,
    check_layers,
    read_settings,
    table,
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


class ModernBert(Family):
    """One model of the family, by its config."""

    prefixes = ("model.", "")
    attention = "attn"

    def __init__(self, config: Mapping[str, Any]) -> None:
        inert = {"layer_norm_eps"}  # the first releases carry it; the model reads norm_eps
        s = read_settings({k: v for k, v in config.items() if k not in inert}, KEYS)
        super().__init__(
            s, d_model=s.hidden_size, n_heads=s.num_attention_heads, n_layers=s.num_hidden_layers,
            intermediate_size=s.intermediate_size, n_positions=s.max_position_embeddings,
            global_attn_every_n_layers=s.global_attn_every_n_layers,
            local_attention=s.local_attention,
        )  # fmt: skip
        check_activation(s.hidden_activation)
        self.eps = s.norm_eps
        types = s.layer_types
        if types is None:
            every = s.global_attn_every_n_layers
            types = [SLIDING if i % every else FULL for i in range(s.num_hidden_layers)]
        self.types = check_layers("layer_types", types, s.num_hidden_layers, (FULL, SLIDING))
        # half of local_attention on each side, and the token itself: an odd number of keys
        window = s.local_attention // 2 * 2 + 1
        self.windows = [window if kind == SLIDING else None for kind in self.types]
        told = table(s.rope_parameters)
        if not set(told) <= {FULL, SLIDING}:
            raise NotOurs("rope_parameters that do not say which layers they are for")
        thetas = {FULL: s.global_rope_theta, SLIDING: s.local_rope_theta}
        self.by_type = {
            kind: read_rope(
                table(told.get(kind)),
                theta=theta,
                d_head=self.d_k,
                n_positions=s.max_position_embeddings,
            )
            for kind, theta in thetas.items()
        }
        self.ropes: Sequence[Rope] = tuple(self.by_type.values())

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        found = shapes({"embeddings.tok_embeddings": (self.n_vocab, self.d_model)})
        return found | self._norm_shapes("embeddings.norm", "final_norm")

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide, s = self.d_model, self.s.intermediate_size, self.s
        attention, mlp = (
            {"attn.Wqkv": (3 * d, d), "attn.Wo": (d, d)},
            {"mlp.Wi": (2 * wide, d), "mlp.Wo": (d, wide)},
        )
        found = shapes(attention, lambda _: s.attention_bias) | shapes(mlp, lambda _: s.mlp_bias)
        return found | self._norm_shapes(*("attn_norm", "mlp_norm")[not layer :])

    def _norm_shapes(self, *names: str) -> dict[str, tuple[int, ...]]:
        return shapes(dict.fromkeys(names, (self.d_model,)), lambda _: self.s.norm_bias)

    # -- the forward pass -------------------------------------------------------------------

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

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        fused = self._linear(w, "attn.Wqkv", x_LD)
        by_kind = fused.reshape(len(x_LD), 3, self.n_heads, self.d_k).transpose(1, 2, 0, 3)
        q, k, v = (np.ascontiguousarray(part) for part in by_kind)
        rope = self.by_type[self.types[layer]]
        turned = step.turn(rope, q), step.turn(rope, k), v
        inputs = {"q_projected": q, "k_projected": k}
        return self._attend(layer, w, step, "attn.Wo", turned, x=x_LD, inputs=inputs)
