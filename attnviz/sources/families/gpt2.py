"""GPT-2: learned positions, one matrix for q, k and v, a norm before each part.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3. Its
matrices are stored as (in, out), unlike those of every other family here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnviz.sources.families.family import Family, Pass, Shapes, project, shapes
from attnviz.sources.families.parts import Floats, activate, linear, to_heads
from attnviz.sources.families.settings import check_activation, read_settings
from attnviz.sources.families.weights import Layer, Weights

KEYS = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False, "pad_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Its config keys with the library's defaults."""


class Gpt2(Family):
    """One model of the family, by its config."""

    prefixes = ("transformer.", "")
    layers = "h."
    attention = "attn"
    is_causal = True

    def __init__(self, config: Mapping[str, object]) -> None:
        s = read_settings(config, KEYS)
        s.n_inner = s.n_inner or 4 * s.n_embd
        super().__init__(s, d_model=s.n_embd, n_heads=s.n_head, n_layers=s.n_layer, n_inner=s.n_inner,
                         n_positions=s.n_positions)  # fmt: skip
        check_activation(s.activation_function)
        self.eps = s.layer_norm_epsilon

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        found = shapes({"wte": (self.n_vocab, d), "wpe": (self.s.n_positions, d)})
        return found | shapes({"ln_f": (d,)}, lambda _: True)

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide = self.d_model, self.s.n_inner
        found = shapes(dict.fromkeys(("ln_1", "ln_2"), (d,)), lambda _: True)
        matrices = {
            "attn.c_attn": (d, 3 * d),
            "attn.c_proj": (d, d),
            "mlp.c_fc": (d, wide),
            "mlp.c_proj": (wide, d),
        }
        for name, shape in matrices.items():
            found |= {f"{name}.weight": shape, f"{name}.bias": shape[1:]}
        return found

    # -- the forward pass -------------------------------------------------------------------

    def embed(self, weights: Weights, step: Pass) -> Floats:
        words_LD = weights.rows("wte.weight", step.ids.tolist())
        return words_LD + weights.rows("wpe.weight", step.positions.tolist())

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        normed_LD = self._norm(w, "ln_1", x_LD)
        x_LD = x_LD + self._attention(layer, w, normed_LD, step)
        up = self._linear(w, "mlp.c_fc", self._norm(w, "ln_2", x_LD))
        return x_LD + self._linear(w, "mlp.c_proj", activate(self.s.activation_function, up))

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer(""), "ln_f", x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        name = "wte.weight" if self.s.tie_word_embeddings else "lm_head.weight"
        return project(weights, name, x_LD) if name in weights.tensors else None

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        q, k, v = np.split(self._linear(w, "attn.c_attn", x_LD), 3, -1)
        scale = self.d_k**-0.5 if self.s.scale_attn_weights else 1.0
        if self.s.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        heads = to_heads(q, self.n_heads), to_heads(k, self.n_heads), to_heads(v, self.n_heads)
        return self._attend(layer, w, step, "attn.c_proj", heads, turned=True, scale=scale, x=x_LD)

    def _linear(self, w: Layer, name: str, x_LD: Floats) -> Floats:
        return linear(x_LD, w[f"{name}.weight"].T, w[f"{name}.bias"])
