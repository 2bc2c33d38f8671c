"""Weights as they lie in files: every stored type, shards, rows, 8-bit floats with scales, experts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_models import CONFIG, write_model

from attnviz.errors import InputError, WeightsError
from attnviz.sources.families.binding import EXPERT, bind, read_family
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.opening import open_engine
from attnviz.sources.families.settings import Lacks, NotOurs, read_scale_block
from attnviz.sources.families.weights import Weights, open_safetensors
from attnviz.sources.files.safetensors_ import writer
from attnviz.sources.models.files import find_model


def write(path: Path, arrays: dict[str, Any], dtypes: dict[str, str] | None = None) -> Path:
    with path.open("wb") as file:
        writer(arrays, {}, dtypes or {})(file)
    return path


def tensors_of(folder: Path) -> dict[str, Any]:
    weights = open_safetensors([folder / "model.safetensors"])
    return {name: weights.read(name).copy() for name in weights.tensors}


def engine_of(*paths: Path, config: dict[str, Any] | None = None) -> Engine:
    family = read_family(config or CONFIG)
    return Engine(family, bind(family, open_safetensors(paths)))


def states(engine: Engine) -> Any:
    return engine.states([1, 3, 4, 6, 5])


def test_plain_and_half_types_are_widened_exactly(tmp_path: Path) -> None:
    numbers = np.array([[1.5, -2.25], [3.0, 0.125]], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    arrays = {"a": numbers, "b": numbers.astype(np.float16), "c": bits, "d": numbers.astype("f8")}
    weights = open_safetensors([write(tmp_path / "a.safetensors", arrays, {"c": "BF16"})])
    for name in arrays:
        assert weights.read(name).dtype == np.float32
        assert weights.read(name).tolist() == numbers.tolist()
        assert weights.rows(name, [1, 0, 1]).tolist() == numbers[[1, 0, 1]].tolist()
    assert np.concatenate(list(weights.chunks("a"))).tolist() == numbers.tolist()


def test_a_float32_tensor_is_mapped_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"a": np.ones((4, 4), np.float32)})
    assert not open_safetensors([path]).read("a").flags.owndata


def test_shards_give_what_one_file_gives(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "whole")
    arrays = tensors_of(folder)
    names = sorted(arrays)
    one = write(tmp_path / "one.safetensors", {n: arrays[n] for n in names[::2]})
    two = write(tmp_path / "two.safetensors", {n: arrays[n] for n in names[1::2]})
    whole, parts = engine_of(folder / "model.safetensors"), engine_of(one, two)
    assert np.array_equal(states(whole), states(parts))
    with pytest.raises(InputError, match="stands in two files"):
        open_safetensors([one, one])


def test_8_bit_floats_are_scaled_by_block_row_and_tensor(tmp_path: Path) -> None:
    codes = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4) + 40
    from attnviz.sources.files.dtypes import widen

    plain = widen(codes, "F8_E4M3")
    scales = {
        "block_scale_inv": np.array([[2.0, 3.0], [5.0, 7.0]], np.float32),
        "row_scale": np.arange(1, 7, dtype=np.float32),
        "all_scale": np.array(3.0, np.float32),
    }
    arrays = {"block": codes, "row": codes, "all": codes, "bare": codes, **scales}
    arrays |= {"odd": codes, "odd_scale": np.ones(4, np.float32)}
    kinds = dict.fromkeys(("block", "row", "all", "bare", "odd"), "F8_E4M3")
    weights = open_safetensors([write(tmp_path / "a.safetensors", arrays, kinds)])
    weights.scale_block = (4, 3)  # the last block is what is left, as the library cuts them
    blocks = np.repeat(np.repeat(scales["block_scale_inv"], 4, 0), 3, 1)[:6, :4]
    assert np.array_equal(weights.read("block"), plain * blocks)
    assert np.array_equal(weights.read("row"), plain * scales["row_scale"][:, None])
    assert np.array_equal(weights.read("all"), plain * np.float32(3))
    assert np.array_equal(weights.read("bare"), plain)
    with pytest.raises(InputError, match="scales of 'odd' have shape"):
        weights.read("odd")


@pytest.mark.parametrize("block", [[8, 4], [8, 8], None])
def test_a_model_of_8_bit_floats_is_the_one_that_the_library_dequantises(
    block: list[int] | None, tmp_path: Path
) -> None:
    """Written by the library's own quantiser; its model runs with those numbers widened."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    import torch
    from drawn_models import build, theirs
    from safetensors.torch import save_file
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    model = build("llama", 3, hidden_size=32, intermediate_size=24, num_attention_heads=4, head_dim=8,
                  num_key_value_heads=2, rope_parameters=None)  # fmt: skip
    settings = FineGrainedFP8Config(weight_block_size=block)
    quantizer = Fp8Quantize(SimpleNamespace(quantization_config=settings))
    kept = {}
    for name, values in model.state_dict().items():
        is_matrix = "_proj" in name and values.dim() == 2
        kept |= quantizer.convert({name: values}) if is_matrix else {name: values.clone()}
        if is_matrix:
            codes, scale = kept[name].float(), kept[name + "_scale_inv"]
            rows, columns = (n // m for n, m in zip(codes.shape, scale.shape))
            values.copy_(codes * scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1))
    assert {v.dtype for v in kept.values()} == {torch.float32, torch.float8_e4m3fn}
    save_file(
        {name: values.contiguous() for name, values in kept.items()}, tmp_path / "model.safetensors"
    )
    config = model.config.to_dict() | {"quantization_config": settings.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    engine = open_engine(find_model(tmp_path), "x")[0]
    ours, states = engine.states([5, 9, 2]), theirs(model, [5, 9, 2])[1]
    assert np.abs(ours - states).max() <= 2e-6 * max(1, np.abs(states).max())


@pytest.mark.parametrize("told", [[8], [0, 8], "8", [8.0, 8]])
def test_a_block_of_scales_is_two_sizes(told: Any) -> None:
    with pytest.raises(NotOurs, match="block"):
        read_scale_block(
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": told}}
        )


def test_only_the_rows_of_the_text_are_read_of_an_embedding(tmp_path: Path) -> None:
    engine = engine_of(write_model(tmp_path / "m") / "model.safetensors")
    touched: list[str] = []
    real = Weights.read
    try:
        Weights.read = lambda self, name: (touched.append(name), real(self, name))[1]  # type: ignore[method-assign]
        states(engine)
    finally:
        Weights.read = real  # type: ignore[method-assign]
    assert touched
    assert not any("embed_tokens" in name for name in touched)


def test_an_id_without_a_row_is_refused(tmp_path: Path) -> None:
    engine = engine_of(write_model(tmp_path / "m") / "model.safetensors")
    for ids in ([1, 60], [-1, 2]):
        with pytest.raises(InputError, match="60 rows"):
            engine.states(ids)


def test_layers_behind_the_last_asked_for_are_not_read(tmp_path: Path) -> None:
    engine = engine_of(write_model(tmp_path / "m") / "model.safetensors")
    touched: list[str] = []
    real = Weights.read
    try:
        Weights.read = lambda self, name: (touched.append(name), real(self, name))[1]  # type: ignore[method-assign]
        engine.run([1, 3, 4], [0], lambda *_: None)
    finally:
        Weights.read = real  # type: ignore[method-assign]
    assert {name.split(".")[1] for name in touched} == {"0"}
    assert not any(".mlp." in name for name in touched)


def test_layers_are_kept_from_the_second_text_on(tmp_path: Path) -> None:
    engine = engine_of(write_model(tmp_path / "m") / "model.safetensors")
    first = states(engine)
    assert not engine.weights.keeps
    assert np.array_equal(states(engine), first)
    assert engine.weights.keeps
    assert np.array_equal(states(engine), first)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "lacks the tensor"),
        ("model.layers.0.self_attn.k_proj.weight", np.ones((32, 32), np.float32), "has shape"),
        ("model.layers.0.self_attn.q_proj.bias", np.ones(32, np.float32), "does not have"),
        ("model.layers.2.mlp.up_proj.weight", np.ones((48, 32), np.float32), "does not have"),
    ],
)
def test_every_tensor_is_accounted_for(
    name: str, change: Any, why: str, tmp_path: Path
) -> None:  # fmt: skip
    arrays = tensors_of(write_model(tmp_path / "m"))
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change
    kind = Lacks if change is None else NotOurs
    with pytest.raises(kind, match=why):
        engine_of(write(tmp_path / "a.safetensors", arrays))


def test_heads_on_top_and_buffers_are_left_aside(tmp_path: Path) -> None:
    arrays = tensors_of(write_model(tmp_path / "m"))
    arrays |= {
        "score.weight": np.ones((2, 32), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
        "model.position_ids": np.arange(8),
    }
    engine_of(write(tmp_path / "a.safetensors", arrays))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "new_kind", "factor": 2.0}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": -1}},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "unheard_of": 1}},
        {"rope_scaling": ["linear"]},
        {"rope_scaling": 3},
        {"rope_scaling": "no table"},
        {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.0] * 4,
                "original_max_position_embeddings": 1,
                "factor": 2.0,
            }
        },
        {"hidden_act": "unheard_of"},
        {"hidden_act": {"a": 1}},
        {"num_hidden_layers": 1 << 30},
        {"num_attention_heads": float("inf")},
        {"model_type": "qwen3_moe", "mlp_only_layers": 3},
        {"model_type": "qwen3_moe", "num_experts": 1 << 20},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"num_key_value_heads": 3},
        {"num_hidden_layers": "2"},
        {"attention_bias": "yes"},
        {"unheard_of": 1},
        {"quantization_config": {"quant_method": "gptq"}},
        {"model_type": "mamba"},
    ],
)
def test_a_config_that_is_not_known_is_left_to_the_library(config: dict[str, Any]) -> None:
    with pytest.raises(NotOurs):
        read_family({**CONFIG, **config})


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for data in (b"", b"\0" * 8, b"\xff" * 64, (10).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        with pytest.raises(WeightsError):
            open_safetensors([path])


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_only_experts_that_a_token_goes_to_are_read(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from drawn_models import build, save, theirs

        changes = {"decoder_sparse_step": 1, "mlp_only_layers": []} if kind == "qwen3_moe" else {}
        model = build(kind, 0, num_hidden_layers=1, num_experts_per_tok=1, **changes)
        config = save(model, tmp_path)
        states = theirs(model, [5, 9])[1]
    engine = engine_of(tmp_path / "model.safetensors", config=config)
    touched: set[str] = set()
    real = Weights.read
    try:
        Weights.read = lambda self, name: (touched.add(name), real(self, name))[1]  # type: ignore[method-assign]
        ours = engine.states([5, 9])
    finally:
        Weights.read = real  # type: ignore[method-assign]
    assert 1 <= len({match[2] for name in touched if (match := EXPERT.match(name))}) <= 2
    assert np.abs(ours - states).max() <= 2e-6 * max(1, np.abs(states).max())


def test_a_config_as_json_reads_the_same(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert read_family(config).n_layers == 2
