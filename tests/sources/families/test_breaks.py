"""Every formula broken once: the comparison with the library notices each break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

from drawn_models import build, save
from test_parity import IDS, TOLERANCE, differences, one_thread, open_engine

from attnviz.records import LayerHeads
from attnviz.sources.families import (
    attending,
    bert,
    distances,
    family,
    gemma,
    gpt2,
    llama,
    modernbert,
    neox,
    parts,
    ropes,
    t5,
)

__all__ = ["one_thread"]

pytestmark = pytest.mark.filterwarnings("ignore")

Patch = Callable[[pytest.MonkeyPatch], None]


def swapped_pairs(patch: pytest.MonkeyPatch) -> None:
    real = ropes.Rope.turn

    def turn(self: Any, a: Any, table: Any) -> Any:
        return real(replace(self, in_pairs=not self.in_pairs), a, table)

    patch.setattr(ropes.Rope, "turn", turn)


def turned_backwards(patch: pytest.MonkeyPatch) -> None:
    real = ropes.Rope.turn
    patch.setattr(ropes.Rope, "turn", lambda self, a, table: real(self, a, (table[0], -table[1]) if len(a) % 2 else table))  # fmt: skip


def rope(**changes: Any) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        real = ropes.Rope.frequencies

        def frequencies(self: Any, n: int) -> Any:
            told = {k: v for k, v in changes.items() if k in self.told or k == "kind"}
            inner = {**self.told, **{k: v for k, v in told.items() if k != "kind"}}
            return real(replace(self, told=inner, kind=changes.get("kind", self.kind)), n)

        patch.setattr(ropes.Rope, "frequencies", frequencies)

    return patched


def next_position(patch: pytest.MonkeyPatch) -> None:
    real = ropes.Rope.table
    patch.setattr(ropes.Rope, "table", lambda self, at, n: real(self, at * 2, n))


def eps(module: Any, name: str) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        real = getattr(parts, name)
        patch.setattr(module, name, lambda *a, **k: real(*a, **{**k, "eps": k["eps"] * 1.5}))

    return patched


def attribute(kind: Any, **changes: Any) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        real = kind.__init__

        def init(self: Any, config: Any) -> None:
            real(self, config)
            for name, change in changes.items():
                setattr(self, name, change(getattr(self, name)))

        patch.setattr(kind, "__init__", init)

    return patched


def heads(change: Callable[[LayerHeads], LayerHeads]) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        real = attending.Attend.__call__
        patch.setattr(attending.Attend, "__call__", lambda self, h: real(self, change(h)))

    return patched


def activation(module: Any, name: str) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "activate", lambda _, x: parts.activate(name, x))

    return patched


def other_windows(windows: Any) -> Any:
    return [None if w is None else w + 1 for w in windows]


def wrong_kv(h: LayerHeads) -> LayerHeads:
    return replace(h, k=np.roll(h.k, 1, 0))


def no_bias(module: Any) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "linear", lambda x, w, b=None: parts.linear(x, w))

    return patched


def swapped_norms(patch: pytest.MonkeyPatch) -> None:
    real = llama.Llama._norm
    other = {
        "input_layernorm": "post_attention_layernorm",
        "post_attention_layernorm": "input_layernorm",
    }
    patch.setattr(
        llama.Llama, "_norm", lambda self, w, name, x: real(self, w, other.get(name, name), x)
    )


def no_plus_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gemma, "rms_norm", lambda x, w, eps: parts.rms_norm(x, w - 1, eps=eps))


def one_scale(h: LayerHeads) -> LayerHeads:
    return replace(h, scale=h.scale * 1.01)


def not_causal(h: LayerHeads) -> LayerHeads:
    return replace(h, visible=replace(h.visible, causal=not h.visible.causal))


def setting(kind: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    def patched(patch: pytest.MonkeyPatch) -> None:
        real = kind.__init__

        def init(self: Any, config: Any) -> None:
            real(self, config)
            setattr(self.s, name, change(getattr(self.s, name)))

        patch.setattr(kind, "__init__", init)

    return patched


def wider_part(patch: pytest.MonkeyPatch) -> None:
    real = ropes.Rope.frequencies

    def frequencies(self: Any, n: int) -> Any:
        turns, factor = real(replace(self, width=self.width + 2), n)
        return turns[: self.width // 2], factor

    patch.setattr(ropes.Rope, "frequencies", frequencies)


def by_heads(patch: pytest.MonkeyPatch) -> None:
    def normed(self: Any, w: Any, name: str, a: Any) -> Any:
        weight = w[f"self_attn.{name}_norm.weight"].reshape(len(a), 1, -1)
        return parts.rms_norm(a, weight, eps=self.eps)

    patch.setattr(llama.Llama, "_normed", normed)


def not_normed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(llama.Llama, "_normed", lambda self, w, name, a: a)


def run_as(order: str) -> Patch:
    """Run layers in another order than their tensors are of."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        real = llama.Llama.layer

        def layer(self: Any, *given: Any) -> Any:
            self.order, own = order, self.order
            try:
                return real(self, *given)
            finally:
                self.order = own

        patch.setattr(llama.Llama, "layer", layer)

    return patched


def exchanged_halves(patch: pytest.MonkeyPatch) -> None:
    real = llama.Llama._linear

    def linear(self: Any, w: Any, name: str, x: Any) -> Any:
        y = real(self, w, name, x)
        return np.roll(y, y.shape[-1] // 2, -1) if name == "mlp.gate_up_proj" else y

    patch.setattr(llama.Llama, "_linear", linear)


def not_by_head(patch: pytest.MonkeyPatch) -> None:
    def project(self: Any, w: Any, x: Any) -> Any:
        fused = self._linear(w, "attention.query_key_value", x)
        return tuple(parts.to_heads(a, self.n_heads) for a in np.split(fused, 3, -1))

    patch.setattr(neox.NeoX, "_project", project)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 3.0, "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
        "original_max_position_embeddings": 16}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 2.5, 3.0, 3.5], "original_max_position_embeddings": 16}  # fmt: skip
PLAIN = {"head_dim": 8, "rope_parameters": None}

BREAKS: list[tuple[str, str, dict[str, Any], Patch]] = [
    ("rope in pairs", "llama", PLAIN, swapped_pairs),
    ("rope in halves", "cohere", {}, swapped_pairs),
    ("rope backwards on one side", "gemma", {"num_key_value_heads": 1}, turned_backwards),
    ("positions twice as far", "gpt_neox", {}, next_position),
    ("linear: no factor", "llama", {**PLAIN, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}}, rope(factor=1.0)),
    ("dynamic: no growth", "llama", {**PLAIN, "max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.0}}, rope(kind="default")),
    ("llama3: other factor", "llama", {**PLAIN, "rope_parameters": LLAMA3}, rope(low_freq_factor=1.5)),
    ("llama3: other length", "llama", {**PLAIN, "rope_parameters": LLAMA3}, rope(original_max_position_embeddings=32)),
    ("yarn: other length", "llama", {**PLAIN, "rope_parameters": YARN}, rope(original_max_position_embeddings=64)),
    ("yarn: no factor of sine and cosine", "llama", {**PLAIN, "rope_parameters": {**YARN, "attention_factor": 1.4}}, rope(attention_factor=1.0)),
    ("longrope: short for long", "llama", {**PLAIN, "rope_parameters": LONG}, rope(original_max_position_embeddings=64)),
    ("rms eps", "llama", {"rms_norm_eps": 1e-2}, eps(llama, "rms_norm")),
    ("rms eps, gemma", "gemma2", {"rms_norm_eps": 1e-2}, eps(gemma, "rms_norm")),
    ("rms eps, t5", "t5", {"layer_norm_epsilon": 1e-2}, eps(t5, "rms_norm")),
    ("layer norm eps, bert", "bert", {"layer_norm_eps": 1e-2}, eps(family, "layer_norm")),
    ("layer norm eps, gpt2", "gpt2", {"layer_norm_epsilon": 1e-2}, eps(family, "layer_norm")),
    ("layer norm eps, neox", "gpt_neox", {"layer_norm_eps": 1e-2}, eps(family, "layer_norm")),
    ("layer norm eps, modernbert", "modernbert", {"norm_eps": 1e-2}, eps(family, "layer_norm")),
    ("gelu by tanh", "bert", {"hidden_act": "gelu"}, activation(bert, "gelu_new")),
    ("gelu exact", "gpt2", {"activation_function": "gelu_new"}, activation(gpt2, "gelu")),
    ("gelu for silu", "llama", {"hidden_act": "silu"}, activation(llama, "gelu")),
    ("scale", "llama", {}, heads(one_scale)),
    ("scale of encoders", "bert", {}, heads(one_scale)),
    ("scale by layer", "gpt2", {"scale_attn_by_inverse_layer_idx": True}, setting(gpt2.Gpt2, "scale_attn_by_inverse_layer_idx", lambda _: False)),
    ("scale from the config", "granite", {}, attribute(llama.Llama, scale=lambda _: 8**-0.5)),
    ("window one wider", "mistral", {"sliding_window": 5}, attribute(llama.Llama, windows=other_windows)),
    ("window one wider, by layer", "gemma3_text", {}, attribute(gemma.Gemma, windows=other_windows)),
    ("window one wider, both ways", "modernbert", {}, attribute(modernbert.ModernBert, windows=other_windows)),
    ("window in the other layers", "gemma2", {}, attribute(gemma.Gemma, windows=lambda w: w[1:] + w[:1])),
    ("kv heads shifted", "llama", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}, heads(wrong_kv)),
    ("rotary part one pair wider", "stablelm", {"partial_rotary_factor": 0.5}, wider_part),
    ("norms of q and k lost", "qwen3", {}, not_normed),
    ("norm of the whole width by heads", "olmo2", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}, by_heads),
    ("parts side by side", "llama", {}, run_as("beside")),
    ("norm of the other part", "gpt_neox", {"use_parallel_residual": True}, run_as("parallel")),
    ("gate and up exchanged", "phi3", {}, exchanged_halves),
    ("q, k, v not head by head", "gpt_neox", {}, not_by_head),
    ("mask lost", "llama", {}, heads(not_causal)),
    ("mask added", "bert", {}, heads(not_causal)),
    ("softcap lost", "gemma2", {"attn_logit_softcapping": 2.0}, attribute(gemma.Gemma, softcap=lambda _: None)),
    ("norms swapped", "llama", {}, swapped_norms),
    ("parts one after the other", "gpt_neox", {"use_parallel_residual": True}, run_as("pre")),
    ("norm without + 1", "gemma", {}, no_plus_one),
    ("biases lost", "qwen2", {}, no_bias(family)),
    ("embedding not scaled", "granite", {}, setting(llama.Llama, "embedding_multiplier", lambda _: 1.0)),
    ("residual not scaled", "granite", {}, setting(llama.Llama, "residual_multiplier", lambda _: 1.0)),
    ("rope where there is none", "smollm3", {}, attribute(llama.Llama, layer_ropes=lambda r: [next(filter(None, r))] * len(r))),
    ("theta of sliding layers", "gemma3_text", {"rope_local_base_freq": 300.0}, attribute(gemma.Gemma, layer_ropes=lambda r: [r[-1]] * len(r))),
    ("experts not made to sum to 1", "qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}, setting(llama.Llama, "norm_topk_prob", lambda _: False)),
    ("one expert fewer", "mixtral", {"num_experts_per_tok": 2}, setting(llama.Llama, "num_experts_per_tok", lambda _: 1)),
    ("positions from 0", "roberta", {"pad_token_id": 1}, attribute(bert.Bert, padding=lambda p: p - 1)),
    ("buckets of distance", "t5", {"relative_attention_num_buckets": 12}, setting(t5.T5, "relative_attention_max_distance", lambda d: d + 8)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "kind", "changes", "broken"), BREAKS, ids=[b[0] for b in BREAKS])
def test_a_break_is_noticed(
    what: str, kind: str, changes: dict[str, Any], broken: Patch,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = build(kind, 1, **changes)
    config = save(model, tmp_path)
    whole = differences(open_engine(tmp_path, config), model, IDS)
    assert max(whole) <= TOLERANCE, whole
    broken(monkeypatch)
    found = differences(open_engine(tmp_path, config), model, IDS)
    assert max(found) > 10 * TOLERANCE, (what, found)


def test_a_bucket_s_edge_is_the_library_s() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    attention = transformers.models.t5.modeling_t5.T5Attention
    distance = torch.arange(-300, 300)
    for n, reach in ((32, 128), (12, 20), (8, 12)):
        own = distances.bucket(distance.numpy(), n, reach)
        library = attention._relative_position_bucket(
            distance, bidirectional=True, num_buckets=n, max_distance=reach
        )
        assert own.tolist() == library.tolist(), (n, reach)
