"""BERT and its relatives: encoders with learned positions and a norm behind each part.

Devlin et al. 2019, "BERT": BERT, MiniLM, RoBERTa, XLM-R, DistilBERT, ELECTRA, and MPNet, which adds
a bias by distance to its scores (Song et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.sources.families.distances import DistanceBias
from attnviz.sources.families.family import Family, Pass, Shapes, shapes
from attnviz.sources.families.parts import Floats, Whole, activate, linear, to_heads
from attnviz.sources.families.settings import check_activation, read_settings
from attnviz.sources.families.weights import Layer, Weights

_COMMON: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "eos_token_id": None,
    "tie_word_embeddings": True,
}  # fmt: skip
_DISTIL: dict[str, Any] = {
    "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
    "activation": "gelu", "max_position_embeddings": 512, "pad_token_id": 0, "eos_token_id": None,
    "tie_word_embeddings": True, "tie_weights_": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """Names and habits of a relative.

    Parameters
    ----------
    keys
        Its config keys with the library's defaults.
    prefixes
        How the names of its tensors may begin.
    layer, query, key, value, out, norm, up, down, last
        Names within the encoder, and within a layer.
    counts_from_padding
        Positions count from the padding's id on, and padding stays there (RoBERTa).
    """

    keys: Mapping[str, Any]
    prefixes: tuple[str, ...]
    layer: str = "encoder.layer."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    last: str = "output.LayerNorm"
    counts_from_padding: bool = False


_ROBERTA = Variant({**_COMMON, "pad_token_id": 1}, ("roberta.", ""), counts_from_padding=True)
VARIANTS = {
    "bert": Variant(_COMMON, ("bert.", "")),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": Variant({**_COMMON, "hidden_size": 256, "embedding_size": 128,
                        "num_attention_heads": 4, "intermediate_size": 1024}, ("electra.", "")),
    "distilbert": Variant(
        _DISTIL, ("distilbert.", ""), layer="transformer.layer.", query="attention.q_lin",
        key="attention.k_lin", value="attention.v_lin", out="attention.out_lin",
        norm="sa_layer_norm", up="ffn.lin1", down="ffn.lin2", last="output_layer_norm",
    ),
    "mpnet": Variant(
        {k: v for k, v in _COMMON.items() if k != "type_vocab_size"}
        | {"pad_token_id": 1, "relative_attention_num_buckets": 32},
        ("mpnet.", ""), query="attention.attn.q", key="attention.attn.k",
        value="attention.attn.v", out="attention.attn.o", norm="attention.LayerNorm",
        counts_from_padding=True,
    ),
}  # fmt: skip
"""By ``model_type``."""

_MPNET_PADDING, _MPNET_BUCKETS, _MPNET_REACH = 1, 32, 128


class Bert(Family):
    """One model of the family, by its config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.variant = VARIANTS[self.kind]
        s = read_settings(config, self.variant.keys)
        if self.kind == "distilbert":
            s.hidden_size, s.num_hidden_layers, s.num_attention_heads = s.dim, s.n_layers, s.n_heads
            s.intermediate_size, s.hidden_act, s.layer_norm_eps = s.hidden_dim, s.activation, 1e-12
        super().__init__(
            s, d_model=s.hidden_size, n_heads=s.num_attention_heads, n_layers=s.num_hidden_layers,
            intermediate_size=s.intermediate_size, n_positions=s.max_position_embeddings,
        )  # fmt: skip
        check_activation(s.hidden_act)
        self.eps = s.layer_norm_eps
        self.layers, self.prefixes = self.variant.layer, self.variant.prefixes
        self.d_embedding = getattr(s, "embedding_size", s.hidden_size)
        self.padding = int(s.pad_token_id) if self.kind != "mpnet" else _MPNET_PADDING
        unused = self.padding + 1 if self.variant.counts_from_padding else 0
        self.n_positions = s.max_position_embeddings - unused

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        s, d = self.s, self.d_embedding
        names = {"word_embeddings": (s.vocab_size, d), "position_embeddings": (s.max_position_embeddings, d),
                 "LayerNorm": (d,)}  # fmt: skip
        found = shapes(
            {f"embeddings.{n}": shape for n, shape in names.items()}, lambda n: "Norm" in n
        )
        if hasattr(s, "type_vocab_size"):
            found["embeddings.token_type_embeddings.weight"] = (s.type_vocab_size, d)
        if self.d_embedding != self.d_model:
            found["embeddings_project.weight"] = (self.d_model, d)
            found["embeddings_project.bias"] = (self.d_model,)
        if self.kind == "mpnet":
            found["encoder.relative_attention_bias.weight"] = (
                s.relative_attention_num_buckets, self.n_heads,
            )  # fmt: skip
        return found

    def layer_tensors(self, layer: int) -> Shapes:
        v, d, wide = self.variant, self.d_model, self.s.intermediate_size
        found = dict.fromkeys((v.query, v.key, v.value, v.out), (d, d))
        found |= {v.up: (wide, d), v.down: (d, wide)}
        return shapes({**found, v.norm: (d,), v.last: (d,)}, lambda _: True)

    # -- the forward pass -------------------------------------------------------------------

    def place(self, ids: Sequence[int]) -> Whole:
        if not self.variant.counts_from_padding:
            return np.arange(len(ids))
        is_real = np.asarray(ids) != self.padding
        placed: Whole = np.cumsum(is_real) * is_real + self.padding
        return placed

    def embed(self, weights: Weights, step: Pass) -> Floats:
        at = "embeddings."
        x_LD = weights.rows(f"{at}word_embeddings.weight", step.ids.tolist())
        if hasattr(self.s, "type_vocab_size"):
            x_LD = x_LD + weights.rows(f"{at}token_type_embeddings.weight", [0])
        x_LD = x_LD + weights.rows(f"{at}position_embeddings.weight", step.positions.tolist())
        x_LD = self._norm(weights.layer(at), "LayerNorm", x_LD)
        if self.d_embedding != self.d_model:
            w = weights.layer("embeddings_project.")
            x_LD = linear(x_LD, w["weight"], w["bias"])
        return x_LD

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        v = self.variant
        x_LD = self._norm(w, v.norm, x_LD + self._attention(layer, w, x_LD, step))
        up = activate(self.s.hidden_act, self._linear(w, v.up, x_LD))
        return self._norm(w, v.last, x_LD + self._linear(w, v.down, up))

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        v = self.variant
        names = (v.query, v.key, v.value)
        q, k, value = (to_heads(self._linear(w, n, x_LD), self.n_heads) for n in names)
        bias = None
        if self.kind == "mpnet":
            table = w.weights.read("encoder.relative_attention_bias.weight")
            bias = DistanceBias(table, _MPNET_BUCKETS, _MPNET_REACH, len(x_LD))
        return self._attend(layer, w, step, v.out, (q, k, value), bias=bias, x=x_LD)
