"""BERT and its relatives: encoders with learned positions and a norm behind each part.

Devlin et al. 2019, "BERT": BERT, MiniLM, RoBERTa, XLM-R, DistilBERT, ELECTRA, and MPNet, which adds
a bias by distance to its scores (Song et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.distances import DistanceBias
from attnviz.sources.families.family import Pass, Shapes, ids_of
from attnviz.sources.families.parts import Floats, Whole, activate, layer_norm, linear, to_heads
from attnviz.sources.families.ropes import Rope
from attnviz.sources.families.settings import NotOurs, check_activation, check_sizes, read_settings
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


class Bert:
    """One model of the family, by its config.

    Raises
    ------
    NotOurs
        A config that this file does not know.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kind = str(config["model_type"])
        self.variant = VARIANTS[self.kind]
        s = read_settings(config, self.variant.keys)
        if self.kind == "distilbert":
            s.hidden_size, s.num_hidden_layers, s.num_attention_heads = s.dim, s.n_layers, s.n_heads
            s.intermediate_size, s.hidden_act, s.layer_norm_eps = s.hidden_dim, s.activation, 1e-12
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
        check_activation(s.hidden_act)
        self.s = s
        self.d_embedding = getattr(s, "embedding_size", s.hidden_size)
        self.n_layers, self.n_heads = s.num_hidden_layers, s.num_attention_heads
        self.n_kv_heads, self.d_model = self.n_heads, s.hidden_size
        self.d_k = self.d_v = s.hidden_size // s.num_attention_heads
        self.n_vocab = s.vocab_size
        self.padding = int(s.pad_token_id) if self.kind != "mpnet" else _MPNET_PADDING
        unused = self.padding + 1 if self.variant.counts_from_padding else 0
        self.n_positions: int | None = s.max_position_embeddings - unused
        self.is_causal = False
        self.eos_ids = ids_of(s.eos_token_id)
        self.ropes: Sequence[Rope] = ()
        self.windows = [None] * self.n_layers
        self.prefixes: tuple[str, ...] = self.variant.prefixes

    # -- tensors ----------------------------------------------------------------------------

    def tensors(self) -> Shapes:
        s, d = self.s, self.d_embedding
        found: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (s.vocab_size, d),
            "embeddings.position_embeddings.weight": (s.max_position_embeddings, d),
            "embeddings.LayerNorm.weight": (d,),
            "embeddings.LayerNorm.bias": (d,),
        }
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

    def prefix(self, layer: int) -> str:
        return f"{self.variant.layer}{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        v, d, wide = self.variant, self.d_model, self.s.intermediate_size
        found: dict[str, tuple[int, ...]] = {}
        for name in (v.query, v.key, v.value, v.out):
            found |= {f"{name}.weight": (d, d), f"{name}.bias": (d,)}
        for name in (v.norm, v.last):
            found |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
        return found | {
            f"{v.up}.weight": (wide, d), f"{v.up}.bias": (wide,),
            f"{v.down}.weight": (d, wide), f"{v.down}.bias": (d,),
        }  # fmt: skip

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
        up = activate(self.s.hidden_act, linear(x_LD, w[f"{v.up}.weight"], w[f"{v.up}.bias"]))
        down = linear(up, w[f"{v.down}.weight"], w[f"{v.down}.bias"])
        return self._norm(w, v.last, x_LD + down)

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        return x_LD

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        return None

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps=self.s.layer_norm_eps)

    def _attention(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        v = self.variant
        names = (v.query, v.key, v.value)
        q, k, value = (
            to_heads(linear(x_LD, w[f"{n}.weight"], w[f"{n}.bias"]), self.n_heads) for n in names
        )
        bias = None
        if self.kind == "mpnet":
            table = w.weights.read("encoder.relative_attention_bias.weight")
            bias = DistanceBias(table, _MPNET_BUCKETS, _MPNET_REACH, len(x_LD))
        w_o = w[f"{v.out}.weight"]
        heads = LayerHeads(
            q=q,
            k=k,
            v=value,
            scale=self.d_k**-0.5,
            visible=MaskRule(),
            bias=bias,
            x=x_LD,
            w_o=w_o.T,
            layer=layer,
            name=f"{v.layer}{layer}",
        )
        return linear(step.attend(heads), w_o, w[f"{v.out}.bias"])
