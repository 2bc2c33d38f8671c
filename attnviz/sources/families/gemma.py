"""Gemma 1, 2 and 3: embeddings scaled by √d, norms around both parts, scores that are capped.

Gemma Team 2024, "Gemma", "Gemma 2" (section 2), and 2025, "Gemma 3" (section 2). A Llama but for that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnviz.sources.families.family import Pass
from attnviz.sources.families.llama import Llama, Variant
from attnviz.sources.families.parts import Floats, rms_norm
from attnviz.sources.families.ropes import Rope, read_rope
from attnviz.sources.families.settings import (
    FULL,
    SLIDING,
    NotOurs,
    check_layers,
    check_sizes,
    read_window,
    table,
)
from attnviz.sources.families.weights import Layer, Weights

_COMMON: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "attention_bias": False,
    "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1, "hidden_act": None,
    "hidden_activation": None,
}  # fmt: skip
_CAPPED: dict[str, Any] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "layer_types": None,
}  # fmt: skip
VARIANTS = {
    "gemma": Variant(_COMMON),
    "gemma2": Variant({**_COMMON, **_CAPPED, "final_logit_softcapping": 30.0,
                       "attn_logit_softcapping": 50.0}, order="around"),
    "gemma3_text": Variant({**_COMMON, **_CAPPED, "vocab_size": 262208, "rope_theta": 1e6,
                            "max_position_embeddings": 131072, "rope_local_base_freq": 10000.0,
                            "sliding_window_pattern": 6, "_sliding_window_pattern": 6,
                            "final_logit_softcapping": None, "attn_logit_softcapping": None},
                           order="around", qk_norm="head"),
}  # fmt: skip
"""By ``model_type``."""


class Gemma(Llama):
    """One model of the family, by its config."""

    variants = VARIANTS

    def _read_activation(self, s: Any) -> Any:
        # the first releases say "gelu" and mean its tanh form: transformers issue 29402
        act = s.hidden_activation or s.hidden_act or "gelu_pytorch_tanh"
        return "gelu_pytorch_tanh" if act == "gelu" else act

    def _read_scale(self, s: Any) -> float:
        # Gemma 3's config may have a cap, which its attention does not use
        self.softcap = s.attn_logit_softcapping if self.kind == "gemma2" else None
        pre = self.d_k if self.kind == "gemma" else s.query_pre_attn_scalar
        check_sizes(query_pre_attn_scalar=int(pre))
        return float(pre**-0.5)

    def _read_layers(self, s: Any) -> tuple[list[int | None], list[bool]]:
        n = self.n_layers
        if self.kind == "gemma":
            return [None] * n, [True] * n
        window, types = read_window(s.sliding_window), s.layer_types
        if window is None:
            raise NotOurs("no sliding_window")
        if types is None:
            every = getattr(s, "sliding_window_pattern", 2)
            check_sizes(sliding_window_pattern=every)
            types = [SLIDING if (i + 1) % every else FULL for i in range(n)]
        types = check_layers("layer_types", types, n, (FULL, SLIDING))
        return [window if kind == SLIDING else None for kind in types], [True] * n

    def _read_ropes(self, s: Any) -> dict[str, Rope]:
        """Return the rotary positions of full and of sliding layers: Gemma 3 has two."""
        if self.kind != "gemma3_text":
            return super()._read_ropes(s)
        told = table(s.rope_parameters)
        if not set(told) <= {FULL, SLIDING}:
            raise NotOurs("rope_parameters that do not say which layers they are for")
        same = {"d_head": self.d_k, "n_positions": s.max_position_embeddings}
        full, sliding = table(told.get(FULL)) | table(s.rope_scaling), table(told.get(SLIDING))
        return {
            FULL: read_rope(full, theta=s.rope_theta, **same),
            SLIDING: read_rope(sliding, theta=s.rope_local_base_freq, **same),
        }

    def embed(self, weights: Weights, step: Pass) -> Floats:
        return super().embed(weights, step) * np.float32(math.sqrt(self.d_model))

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        scores = super().logits(weights, x_LD)
        cap = getattr(self.s, "final_logit_softcapping", None)
        if scores is None or not cap:
            return scores
        capped: Floats = np.tanh(scores / np.float32(cap)) * np.float32(cap)
        return capped

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        """Gemma's norms multiply by 1 + weight."""
        return rms_norm(x, 1 + w[f"{name}.weight"], eps=self.eps)
