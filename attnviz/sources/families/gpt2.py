"""GPT-2: learned positions, one matrix for q, k and v, a norm before each part.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3. Its
matrices are stored as (in, out), unlike those of every other family here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.family import Pass, Shapes, ids_of, project
from attnviz.sources.families.parts import Floats, Whole, activate, layer_norm, linear, to_heads
from attnviz.sources.families.ropes import Rope
from attnviz.sources.families.settings import NotOurs, check_activation, check_sizes, read_settings
from attnviz.sources.families.weights import Layer, Weights

KEYS = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False, "pad_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Its config keys with the library's defaults."""


class Gpt2:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("transformer.", "")

    def __init__(self, config: Mapping[str, object]) -> None:
        self.s = s = read_settings(config, KEYS)
        s.n_inner = s.n_inner or 4 * s.n_embd
        check_sizes(
            n_layer=s.n_layer,
            n_head=s.n_head,
            n_embd=s.n_embd,
            n_inner=s.n_inner,
            n_positions=s.n_positions,
            vocab_size=s.vocab_size,
        )
        if s.n_embd % s.n_head:
            raise NotOurs(f"{s.n_head} heads in {s.n_embd} numbers")
        check_activation(s.activation_function)
        self.n_layers, self.n_heads, self.n_kv_heads = s.n_layer, s.n_head, s.n_head
        self.d_model, self.n_vocab, self.n_positions = s.n_embd, s.vocab_size, s.n_positions
        self.d_k = self.d_v = s.n_embd // s.n_head
        self.is_causal = True
        self.ropes: Sequence[Rope] = ()
        self.windows = [None] * s.n_layer
        self.eos_ids = ids_of(s.eos_token_id)

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        return {
            "wte.weight": (self.n_vocab, d), "wpe.weight": (self.n_positions, d),
            "ln_f.weight": (d,), "ln_f.bias": (d,),
        }  # fmt: skip

    def prefix(self, layer: int) -> str:
        return f"h.{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        d, wide = self.d_model, self.s.n_inner
        found: dict[str, tuple[int, ...]] = {}
        for name, shape in (
            ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
            ("mlp.c_fc", (d, wide)), ("mlp.c_proj", (wide, d)),
        ):  # fmt: skip
            found |= {f"{name}.weight": shape, f"{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            found |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
        return found

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

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
        heads = LayerHeads(
            q=to_heads(q, self.n_heads),
            k=to_heads(k, self.n_heads),
            v=to_heads(v, self.n_heads),
            scale=scale,
            visible=MaskRule(causal=True),
            x=x_LD,
            w_o=w["attn.c_proj.weight"],
            layer=layer,
            name=f"h.{layer}.attn",
        )
        return self._linear(w, "attn.c_proj", step.attend(heads))

    def _linear(self, w: Layer, name: str, x_LD: Floats) -> Floats:
        return linear(x_LD, w[f"{name}.weight"].T, w[f"{name}.bias"])

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        eps = self.s.layer_norm_epsilon
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps=eps)
