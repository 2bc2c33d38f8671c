"""T5's encoder (T5, mT5, UMT5): no positions but a bias by distance, no scale, RMS norms.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1. q · k is not divided
by √d: the initialisation takes that in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.distances import DistanceBias
from attnviz.sources.families.family import Pass, Shapes, ids_of
from attnviz.sources.families.parts import Floats, Whole, activate, linear, rms_norm, to_heads
from attnviz.sources.families.ropes import Rope
from attnviz.sources.families.settings import NotOurs, check_activation, check_sizes, read_settings
from attnviz.sources.families.weights import Layer, Weights

_COMMON: dict[str, Any] = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
    "num_decoder_layers": None, "num_heads": 8, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu", "is_gated_act": None, "dense_act_fn": None, "n_positions": None,
    "pad_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True,
    "scale_decoder_outputs": None,
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {
    "t5": _COMMON,
    "mt5": {**_COMMON, "vocab_size": 250112, "num_layers": 8, "num_heads": 6,
            "d_ff": 1024, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {**_COMMON, "vocab_size": 250112, "num_layers": 8, "num_heads": 6,
             "d_ff": 1024, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}  # fmt: skip
"""The config keys of each by ``model_type``, with the library's defaults."""


class T5:
    """One model of the family, by its config: the encoder alone.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    prefixes = ("",)
    beside = "decoder."

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.s = s = read_settings(config, KEYS[self.kind])
        check_sizes(
            num_layers=s.num_layers,
            num_heads=s.num_heads,
            d_model=s.d_model,
            d_kv=s.d_kv,
            d_ff=s.d_ff,
            vocab_size=s.vocab_size,
            relative_attention_num_buckets=s.relative_attention_num_buckets,
            relative_attention_max_distance=s.relative_attention_max_distance,
        )
        n, reach = s.relative_attention_num_buckets, s.relative_attention_max_distance
        if n < 4 or reach <= n // 4:
            raise NotOurs(f"{n} buckets up to a distance of {reach}")
        first, _, second = s.feed_forward_proj.partition("-")
        self.is_gated = first == "gated"
        name = second if self.is_gated else first
        # "gated-gelu" means the tanh form: transformers, T5Config
        self.act = check_activation("gelu_new" if s.feed_forward_proj == "gated-gelu" else name)
        self.n_layers, self.n_heads, self.n_kv_heads = s.num_layers, s.num_heads, s.num_heads
        self.d_model, self.d_k, self.d_v, self.n_vocab = s.d_model, s.d_kv, s.d_kv, s.vocab_size
        self.n_positions: int | None = None
        self.is_causal = False
        self.ropes: Sequence[Rope] = ()
        self.windows = [None] * s.num_layers
        self.eos_ids = ids_of(s.eos_token_id)
        self.has_own_bias = self.kind == "umt5"

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        return {"shared.weight": (self.n_vocab, d), "encoder.final_layer_norm.weight": (d,)}

    def prefix(self, layer: int) -> str:
        return f"encoder.block.{layer}.layer."

    def layer_tensors(self, layer: int) -> Shapes:
        s, d = self.s, self.d_model
        inner = self.n_heads * self.d_k
        found: dict[str, tuple[int, ...]] = {
            f"0.SelfAttention.{name}.weight": (inner, d) for name in "qkv"
        }
        found["0.SelfAttention.o.weight"] = (d, inner)
        found["0.layer_norm.weight"] = found["1.layer_norm.weight"] = (d,)
        if layer == 0 or self.has_own_bias:
            found["0.SelfAttention.relative_attention_bias.weight"] = (
                s.relative_attention_num_buckets, self.n_heads,
            )  # fmt: skip
        for name in ("wi_0", "wi_1") if self.is_gated else ("wi",):
            found[f"1.DenseReluDense.{name}.weight"] = (s.d_ff, d)
        found["1.DenseReluDense.wo.weight"] = (d, s.d_ff)
        return found

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        return weights.rows("shared.weight", step.ids.tolist())

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        normed_LD = self._norm(w, "0.layer_norm", x_LD)
        x_LD = x_LD + self._attention(layer, w, normed_LD, step)
        normed_LD = self._norm(w, "1.layer_norm", x_LD)
        at = "1.DenseReluDense."
        if self.is_gated:
            up = activate(self.act, linear(normed_LD, w[f"{at}wi_0.weight"]))
            up *= linear(normed_LD, w[f"{at}wi_1.weight"])
        else:
            up = activate(self.act, linear(normed_LD, w[f"{at}wi.weight"]))
        return x_LD + linear(up, w[f"{at}wo.weight"])

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer("encoder."), "final_layer_norm", x_LD)

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        return None

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        q, k, v = (
            to_heads(linear(x_LD, w[f"0.SelfAttention.{n}.weight"]), self.n_heads) for n in "qkv"
        )
        owner = layer if self.has_own_bias else 0  # T5 has one table, in its first layer
        table = w.weights.read(
            f"{self.prefix(owner)}0.SelfAttention.relative_attention_bias.weight"
        )
        s = self.s
        bias = DistanceBias(
            table,
            s.relative_attention_num_buckets,
            s.relative_attention_max_distance,
            len(x_LD),
        )
        w_o = w["0.SelfAttention.o.weight"]
        heads = LayerHeads(
            q=q,
            k=k,
            v=v,
            scale=1.0,
            visible=MaskRule(),
            bias=bias,
            x=x_LD,
            w_o=w_o.T,
            layer=layer,
            name=f"encoder.block.{layer}.layer.0.SelfAttention",
        )
        return linear(step.attend(heads), w_o)

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        return rms_norm(x, w[f"{name}.weight"], eps=self.s.layer_norm_epsilon)
