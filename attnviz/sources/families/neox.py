"""GPT-NeoX and Pythia: rotary positions on a part of each head, both parts side by side.

Black et al. 2022, "GPT-NeoX-20B", section 2.1. The fused matrix is cut head by head: q, k, v of
head 0, then q, k, v of head 1, and so on. A Llama but for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnviz.sources.families.llama import Llama, Variant
from attnviz.sources.families.parts import Floats
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import NotOurs, table
from attnviz.sources.families.weights import Layer

KEYS: dict[str, Any] = {
    "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "hidden_act": "gelu", "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5, "use_parallel_residual": True, "rope_theta": None,
    "rotary_emb_base": 10000.0, "rotary_pct": 0.25, "attention_bias": True,
}  # fmt: skip
VARIANTS = {
    "gpt_neox": Variant(
        KEYS, norm="layer", order="beside", mlp="plain", embedding="embed_in",
        final_norm="final_layer_norm", head="embed_out", out="attention.dense",
        up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
    )
}  # fmt: skip


class NeoX(Llama):
    """One model of the family, by its config."""

    prefixes = ("gpt_neox.", "")
    attention = "attention"
    variants = VARIANTS

    def _read_rope(self, s: Any) -> Rope:
        if s.rope_theta is not None and s.rope_theta != s.rotary_emb_base:
            raise NotOurs("rope_theta beside rotary_emb_base")
        told = table(s.rope_parameters if s.rope_parameters is not None else s.rope_scaling)
        return read_rope(told, theta=s.rotary_emb_base, d_head=self.d_k, part=s.rotary_pct,
                         n_positions=s.max_position_embeddings)  # fmt: skip

    def _attention_shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.d_model
        if self.n_heads * self.d_k != d or self.n_kv_heads != self.n_heads:
            raise NotOurs(f"{self.n_heads} heads in {d} numbers")
        return {"attention.query_key_value": (3 * d, d), self.variant.out: (d, d)}

    def _is_biased(self, name: str) -> bool:
        return name.startswith("mlp.") or bool(self.s.attention_bias)

    def _project(self, w: Layer, x_LD: Floats) -> tuple[Floats, Floats, Floats]:
        fused = self._linear(w, "attention.query_key_value", x_LD)
        by_head = fused.reshape(len(x_LD), self.n_heads, 3, self.d_k).transpose(2, 1, 0, 3)
        q, k, v = (np.ascontiguousarray(part) for part in by_head)
        return q, k, v
