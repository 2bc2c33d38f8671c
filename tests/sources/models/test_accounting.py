"""Which tensors of a folder may be left over or absent: by their whole place, never by a part of a name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnviz.errors import InputError
from attnviz.sources.models.accounting import (
    Shape,
    check_absent,
    check_left_over,
    check_told_once,
    is_aside,
)

LAYERS = SimpleNamespace(num_hidden_layers=2)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pooler.dense.weight", (8, 8)), ("bert.pooler.dense.bias", (8,)), ("cls.predictions.bias", (9,)),
        ("lm_head.weight", (9, 8)), ("classifier.bias", (2,)), ("score.weight", (2, 8)), ("decoder.bias", (9,)),
        ("head.norm.weight", (8,)), ("embeddings.position_ids", (1, 9)), ("model.visual.blocks.0.attn.qkv.bias", (8,)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,)), ("h.0.attn.bias", (1, 1, 9, 9)),
        ("h.0.attn.masked_bias", ()), ("mtp.0.weight", (8,)), ("model.mtp.fc.weight", (8,)),
    ],
)  # fmt: skip
def test_what_stands_behind_or_beside_attention_is_left_aside(name: str, shape: Shape) -> None:
    assert is_aside(name, shape, prefix="bert")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("h.1.attn.score.bias", (8,)), ("h.0.attn.bias", (8,)), ("h.0.attn.bias", None),
        ("h.0.attn.masked_bias", (8,)), ("model.layers.0.mtp.weight", (8,)), ("layers.0.pooler.weight", (8,)),
        ("encoder.layer.0.attention.classifier.bias", (8,)), ("decoder.layers.0.fc1.bias", (8,)),
        ("model.layers.0.self_attn.q_proj.bias", (8,)), ("head.attn.weight", (8,)),
    ],
)  # fmt: skip
def test_a_head_s_name_inside_a_layer_is_no_head(name: str, shape: Shape | None) -> None:
    assert not is_aside(name, shape)


def test_what_belongs_to_a_part_that_runs_is_never_aside() -> None:
    assert is_aside("lm_head.lora_A.weight", (4, 8))
    assert not is_aside("lm_head.lora_A.weight", (4, 8), run={"model", "lm_head"})


def test_layers_beyond_the_config_s_need_a_setting_that_says_so() -> None:
    more: dict[str, Shape | None] = {"model.layers.2.self_attn.q_proj.weight": (8, 8)}
    with pytest.raises(
        InputError, match=r"more layers than the 2 of its config, first 'model\.layers\.2"
    ):
        check_left_over("m", more, prefix="", run=(), config=LAYERS)
    config = SimpleNamespace(num_hidden_layers=2, num_nextn_predict_layers=1)
    with pytest.raises(InputError, match="more layers"):  # a layer like the others is one of them
        check_left_over("m", more, prefix="", run=(), config=config)
    more["model.layers.2.eh_proj.weight"] = (8, 16)
    check_left_over("m", more, prefix="", run=(), config=config)
    with pytest.raises(InputError, match=r"more layers.*model\.layers\.3"):
        check_left_over("m", {"model.layers.3.a": (8,)}, prefix="", run=(), config=config)


def test_the_first_tensor_left_over_is_named() -> None:
    left: dict[str, Shape | None] = {
        "h.1.attn.q.bias": (8,),
        "h.0.attn.q.bias": (8,),
        "lm_head.weight": (9, 8),
    }
    with pytest.raises(InputError, match=r"m holds 2 tensors .* first 'h\.0\.attn\.q\.bias'"):
        check_left_over("m", left, prefix="", run=(), config=LAYERS)


@pytest.mark.parametrize(
    ("absent", "has_head"),
    [
        ("model.layers.0.mlp.pooler.weight", True),
        ("lm_head.weight", True),
        ("model.score.weight", True),
    ],
)
def test_an_absent_tensor_is_refused_where_it_is_used(absent: str, has_head: bool) -> None:
    with pytest.raises(InputError, match=f"lacks 1 tensors of its architecture, first '{absent}'"):
        check_absent("m", ["model.pooler.dense.weight", absent], body="model.", has_head=has_head)


def test_a_pooler_or_another_tower_may_be_absent() -> None:
    check_absent("m", ["text.pooler.dense.weight", "vision.a"], body="text.", has_head=False)
    check_absent("m", ["pooler.dense.weight"], body="", has_head=False)


def test_two_names_of_one_parameter_are_refused() -> None:
    check_told_once(
        "m", ["model.norm.weight", "model.layers.0.norm.weight", "lm_head.weight"], "model"
    )
    for pair in (("model.norm.weight", "norm.weight"), ("a.LayerNorm.gamma", "a.LayerNorm.weight")):
        with pytest.raises(InputError, match="which are one tensor"):
            check_told_once("m", pair, "model")
