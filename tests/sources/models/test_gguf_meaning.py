"""Every key and tensor of a GGUF file is accounted for: used, without effect, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

from gguf_models import KINDS, _tensors, eager, make, ours, settings_of, write

from attnviz.errors import InputError
from attnviz.sources.models.gguf import read_gguf
from attnviz.sources.models.gguf_meaning import FAMILIES, config_of, parameters_of

TOLERANCE = 2e-6


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def refusal(path: Path) -> str:
    file = read_gguf(path)
    with pytest.raises(InputError) as caught:
        str([config_of(file), *parameters_of(file)])
    return str(caught.value)


def test_every_architecture_that_is_read_is_tried() -> None:
    assert set(KINDS) == set(FAMILIES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_the_weights_of_its_original(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    found = ours(write(tmp_path / "a.gguf", kind, model), tmp_path / "made")
    assert difference(found, eager(model)) <= TOLERANCE


@pytest.mark.parametrize(
    ("kind", "changes", "keys"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}},
         {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                                       "original_max_position_embeddings": 16}},
         {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, {}),
        ("gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}, {}),
        ("gemma2", {"sliding_window": 2}, {}),
        ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
         {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
        ("qwen3", {"head_dim": 24}, {}),
        ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}, {}),
        ("stablelm", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}, {}),
        ("phi3", {"sliding_window": 3}, {"attention.sliding_window": 3}),
        ("llama", {"tie_word_embeddings": True}, {}),
    ],
)  # fmt: skip
def test_N4_F1a_settings_reach_the_model(
    kind: str, changes: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    model = make(kind, **changes)
    found = ours(write(tmp_path / "a.gguf", kind, model, keys=keys), tmp_path / "made")
    assert difference(found, eager(model)) <= TOLERANCE
    assert (
        difference(eager(make(kind)), eager(model)) > 100 * TOLERANCE
        or "tie_word_embeddings" in changes
    )


def test_N7_biases_of_q_k_and_v_are_read(tmp_path: Path) -> None:
    model = make("llama", attention_bias=True)
    path = write(tmp_path / "a.gguf", "llama", model)
    assert difference(ours(path, tmp_path / "made"), eager(model)) <= TOLERANCE
    for layer in model.model.layers:  # llama.cpp adds no bias of W_O that is not there
        layer.self_attn.o_proj.bias.data.zero_()
    kept = write(tmp_path / "b.gguf", "llama", model)
    fewer = {
        n: v for n, v in _tensors("llama", model).items() if not n.endswith("attn_output.bias")
    }
    only = write(tmp_path / "c.gguf", "llama", make("llama"), tensors=fewer)
    assert difference(ours(only, tmp_path / "c"), ours(kept, tmp_path / "b")) <= TOLERANCE


def test_factors_of_the_rotation_are_read(tmp_path: Path) -> None:
    """Llama 3 keeps its scaling as a tensor of factors."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, "rope_theta": 1e4}  # fmt: skip
    model = make("llama", rope_parameters=rope)
    plain = 1e4 ** (-np.arange(0, 8, 2) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    path = write(tmp_path / "a.gguf", "llama", model, tensors={"rope_freqs.weight": factors})
    assert difference(ours(path, tmp_path / "made"), eager(model)) <= TOLERANCE
    odd = write(tmp_path / "b.gguf", "llama", model, tensors={"rope_freqs.weight": factors[:2]})
    assert "rope_freqs.weight holds 2 factors, wanted 4" in refusal(odd)
    twice = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    both = write(
        tmp_path / "c.gguf", "llama", model, tensors={"rope_freqs.weight": factors}, keys=twice
    )
    assert "scales its rotation twice" in refusal(both)


def test_long_and_short_factors_are_read(tmp_path: Path) -> None:
    short, long = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]
    rope = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "rope_theta": 1e4,
            "attention_factor": 1.2, "original_max_position_embeddings": 16, "partial_rotary_factor": 1.0}  # fmt: skip
    model = make("phi3", rope_parameters=rope, original_max_position_embeddings=16)
    tensors = {
        f"rope_factors_{n}.weight": np.array(v, np.float32)
        for n, v in (("short", short), ("long", long))
    }
    keys = {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.2}
    path = write(tmp_path / "a.gguf", "phi3", model, tensors=tensors, keys=keys)
    for ids in ((5, 9, 7, 3), tuple(range(3, 27))):  # on both sides of the 16 positions
        assert difference(ours(path, tmp_path / "made", ids), eager(model, ids)) <= TOLERANCE
    one = write(
        tmp_path / "b.gguf", "phi3", model, tensors=dict([next(iter(tensors.items()))]), keys=keys
    )
    assert "both are needed" in refusal(one)


@pytest.mark.parametrize("kind", KINDS)
def test_N6_a_tensor_renamed_or_left_out_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    for name in _tensors(kind, model):
        if name.startswith("blk.") and not name.startswith("blk.1."):
            continue
        if name == "output.weight":  # a file without it says that it is tied
            continue
        told = refusal(write(tmp_path / "a.gguf", kind, model, without=name))
        assert repr(name) in told or "norm" in name, (name, told)
        values = np.zeros((4, 4), np.float32)
        told = refusal(
            write(tmp_path / "b.gguf", kind, model, without=name, tensors={f"x.{name}": values})
        )
        assert "lacks" in told or f"x.{name}" in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_or_key_that_nobody_asks_for_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    values = np.ones(8, np.float32)
    for name in (
        "blk.0.attn_q.scale",
        "blk.1.attn_sinks.weight",
        "rope_new.weight",
        "blk.0.lora_a",
    ):
        told = refusal(write(tmp_path / "a.gguf", kind, model, tensors={name: values}))
        assert repr(name) in told
    for key, value in (("attention.new_rule", 3), ("attn_scale_new", 2.0), ("attention.causal", False),
                       ("odd.key", 1), ("attention.scale", 0.123)):  # fmt: skip
        path = write(tmp_path / "b.gguf", kind, model, keys={key: value})
        if key == "attention.scale" and kind.startswith("gemma"):
            assert config_of(read_gguf(path))["query_pre_attn_scalar"] == pytest.approx(0.123**-2)
            continue
        assert key in refusal(path), (kind, key)


OFTEN = ("llama", "gemma2")
EVERY = [pytest.param(kind, marks=[] if kind in OFTEN else pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("kind", EVERY)
def test_every_key_changed_by_one_step_changes_the_answer_or_is_refused(
    kind: str, tmp_path: Path
) -> None:
    """Only a context length may change without effect: nothing is rotated differently by it."""
    model = make(kind)
    before = ours(write(tmp_path / "a.gguf", kind, model), tmp_path / "before")
    same = []
    for key, value in settings_of(kind, model).items():
        step = (
            not value
            if isinstance(value, bool)
            else value * 2
            if isinstance(value, float)
            else value + 1
        )
        path = write(tmp_path / "b.gguf", kind, model, keys={key: step})
        try:
            after = ours(path, tmp_path / "after")
        except Exception:  # ours, or the library's about sizes that do not fit
            continue
        if (
            len(after) == len(before)
            and after[0].shape == before[0].shape
            and difference(before, after) == 0
        ):
            same.append(key)
    allowed = {"context_length", "final_logit_softcapping"}
    if "moe" in kind:
        allowed.add("feed_forward_length")  # of dense layers, which these have none of
    assert set(same) <= allowed


@pytest.mark.parametrize("pre", ["never-heard-of", "gpt-4o"])
def test_N40_a_way_of_splitting_that_is_not_known_is_refused(pre: str, tmp_path: Path) -> None:
    from attnviz.sources.models.gguf_words import split_as_trained

    path = write(tmp_path / "a.gguf", "llama", make("llama"), pre=pre)
    with pytest.raises(InputError, match=f"tokenizer.ggml.pre = '{pre}', which is not known"):
        split_as_trained(None, read_gguf(path))


def test_N40_smollm_splits_digits_one_by_one(smollm2: Path) -> None:
    from attnviz.sources.models.gguf_convert import converted
    from attnviz.sources.models.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(converted(smollm2))
    assert tokenizer.tokenize("a  42").ids == (81, 256, 36, 34)
    assert len(tokenizer.tokenize("x = [\n    1,\n    2]")) == 9
