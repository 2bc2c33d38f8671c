"""T5's encoder (T5, mT5, UMT5): no positions but a bias by distance, no scale, RMS norms.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1. q · k is not divided
by √d: the initialisation takes that in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnviz.sources.families.distances import DistanceBias
from attnviz.sources.families.family import Family, Pass, Shapes, shapes
from attnviz.sources.families.parts import Floats, activate, rms_norm, to_heads
from attnviz.sources.families.settings import NotOurs, check_activation, read_settings
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


_FEED = "layer.1.DenseReluDense."


class T5(Family):
    """One model of the family, by its config: the encoder alone."""

    beside = "decoder."
    layers = "encoder.block."
    attention = "layer.0.SelfAttention"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        s = read_settings(config, KEYS[self.kind])
        super().__init__(
            s, d_model=s.d_model, n_heads=s.num_heads, n_layers=s.num_layers, d_head=s.d_kv, d_ff=s.d_ff,
            relative_attention_num_buckets=s.relative_attention_num_buckets,
            relative_attention_max_distance=s.relative_attention_max_distance,
        )  # fmt: skip
        self.eps = s.layer_norm_epsilon
        n, reach = s.relative_attention_num_buckets, s.relative_attention_max_distance
        if n < 4 or reach <= n // 4:
            raise NotOurs(f"{n} buckets up to a distance of {reach}")
        first, _, second = s.feed_forward_proj.partition("-")
        name = second if first == "gated" else first
        # "gated-gelu" means the tanh form, and what is said in so many words wins: transformers, T5Config
        said = "gelu_new" if s.feed_forward_proj == "gated-gelu" else name
        self.is_gated = first == "gated" if s.is_gated_act is None else bool(s.is_gated_act)
        self.act = check_activation(s.dense_act_fn or said)
        self.has_own_bias = self.kind == "umt5"

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        d = self.d_model
        return {"shared.weight": (self.n_vocab, d), "encoder.final_layer_norm.weight": (d,)}

    def layer_tensors(self, layer: int) -> Shapes:
        s, d = self.s, self.d_model
        inner = self.n_heads * self.d_k
        at = f"{self.attention}."
        found: dict[str, tuple[int, ...]] = {f"{at}{name}": (inner, d) for name in "qkv"}
        found |= {f"{at}o": (d, inner), "layer.0.layer_norm": (d,), "layer.1.layer_norm": (d,)}
        if layer == 0 or self.has_own_bias:
            buckets = s.relative_attention_num_buckets
            found[f"{at}relative_attention_bias"] = (buckets, self.n_heads)
        for name in ("wi_0", "wi_1") if self.is_gated else ("wi",):
            found[f"{_FEED}{name}"] = (s.d_ff, d)
        return shapes({**found, f"{_FEED}wo": (d, s.d_ff)})

    # -- the forward pass -------------------------------------------------------------------

    def embed(self, weights: Weights, step: Pass) -> Floats:
        return weights.rows("shared.weight", step.ids.tolist())

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        normed_LD = self._norm(w, "layer.0.layer_norm", x_LD)
        x_LD = x_LD + self._attention(layer, w, normed_LD, step)
        normed_LD = self._norm(w, "layer.1.layer_norm", x_LD)
        up = activate(
            self.act, self._linear(w, f"{_FEED}wi_0" if self.is_gated else f"{_FEED}wi", normed_LD)
        )
        if self.is_gated:
            up *= self._linear(w, f"{_FEED}wi_1", normed_LD)
        return x_LD + self._linear(w, f"{_FEED}wo", up)

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return self._norm(weights.layer("encoder."), "final_layer_norm", x_LD)

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        at, s = f"{self.attention}.", self.s
        q, k, v = (to_heads(self._linear(w, f"{at}{n}", x_LD), self.n_heads) for n in "qkv")
        owner = layer if self.has_own_bias else 0  # T5 has one table, in its first layer
        read = w.weights.read(f"{self.prefix(owner)}{at}relative_attention_bias.weight")
        bias = DistanceBias(
            read, s.relative_attention_num_buckets, s.relative_attention_max_distance, len(x_LD)
        )
        return self._attend(layer, w, step, f"{at}o", (q, k, v), scale=1.0, bias=bias, x=x_LD)

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        return rms_norm(x, w[f"{name}.weight"], eps=self.eps)
