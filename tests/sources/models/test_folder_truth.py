"""A folder's files are what is read: every tensor asked for, the file named, the class that was saved."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import Result
from tiny_models import write_model, write_tokenizer

pytest.importorskip("transformers", reason="needs the extra 'models'")

from attnviz.errors import InputError
from attnviz.runs.explain import explain
from attnviz.sources.models.files import find_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def change(folder: Path, **tensors: Any) -> None:
    """Put more tensors into a folder's file."""
    held = load_file(folder / "model.safetensors")
    more = {name.replace("__", "."): np.asarray(v, np.float32) for name, v in tensors.items()}
    save_file({**held, **more}, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "name",
    ["self_attn.q_proj.bias", "self_attn.q_norm.weight", "self_attn.q_proj.weight_scale_inv",
     "self_attn.q_proj.lora_A.weight", "self_attn.q_proj.base_layer.weight", "self_attn.sinks"],
)  # fmt: skip
def test_N9_N46_a_tensor_that_the_config_does_not_ask_for_is_refused(
    name: str, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    folder = write_model(tmp_path / "tiny")
    change(folder, **{f"model.layers.1.{name}": np.full(32, 9.0)})
    for command in ("explain", "summary", "heatmap"):
        done = cli(command, "hello world", "--model", str(folder))
        assert done.code == 3
        assert f"does not ask for, first 'model.layers.1.{name}'" in done.err


def test_a_bias_that_is_asked_for_is_used(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", attention_bias=True)
    draw = np.random.default_rng(1).standard_normal
    for i in range(2):
        at = f"model.layers.{i}.self_attn"
        change(
            folder, **{f"{at}.{p}_proj.bias": draw(n) * 4 for p, n in zip("qkvo", (32, 16, 16, 32))}
        )
    with_bias = explain("hello world", model=str(folder), layer=0, head=0, verify=True)
    without = explain("hello world", model=str(write_model(tmp_path / "plain")), layer=0, head=0)
    assert with_bias.checks["verified_weights"] <= 1e-5
    assert np.abs(with_bias.stages["weights"] - without.stages["weights"]).max() > 1e-3


def test_N30_an_adapter_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(InputError, match=r"tiny holds an adapter \(adapter_config.json\)"):
        find_model(folder)


def test_N31_the_file_named_is_the_file_that_was_read(tmp_path: Path) -> None:
    folder, other = write_model(tmp_path / "tiny"), write_model(tmp_path / "old")
    shutil.copy(other / "model.safetensors", folder / "old-00001-of-00001.safetensors")
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "old-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    change(folder, model__norm__weight=np.full(32, 2.0))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert explain("hello world", model=str(folder), layer=0, head=0).source.sha256 == digest
    (tmp_path / "linked").symlink_to(folder)
    assert find_model(tmp_path / "linked").name == "linked"


def test_N13_an_attention_that_is_not_at_hand_is_read_as_eager(tmp_path: Path) -> None:
    plain = explain("hello world", model=str(write_model(tmp_path / "a")), layer=0, head=0)
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        folder = write_model(tmp_path / key, **{key: "flash_attention_2"})
        found = explain("hello world", model=str(folder), layer=0, head=0)
        assert np.abs(found.stages["weights"] - plain.stages["weights"]).max() <= 2e-6


def test_N36_an_encoder_saved_alone_is_read_alone(tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(config).eval()
    model.save_pretrained(str(tmp_path / "t5"))
    write_tokenizer(tmp_path / "t5", bos=False)
    trace = explain(
        "hello world bear", model=str(tmp_path / "t5"), layer=0, head="all", verify=True
    )
    with torch.inference_mode():
        model.set_attn_implementation("eager")
        ids = torch.tensor([trace.tokens.ids])
        own = model(input_ids=ids, output_attentions=True).attentions[0][0].numpy()
    assert np.abs(trace.stages["weights"][0] - own).max() <= 2e-6


@pytest.mark.parametrize(
    ("config", "takes"), [("ViTConfig", "images"), ("Wav2Vec2Config", "sound")]
)
def test_a_model_of_images_or_sound_is_refused_in_these_words(
    config: str, takes: str, tmp_path: Path
) -> None:
    import transformers

    kinds = {"ViTConfig": "ViTModel", "Wav2Vec2Config": "Wav2Vec2Model"}
    more = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "conv_dim": (8, 8),
            "conv_stride": (2, 2), "conv_kernel": (2, 2), "vocab_size": None}  # fmt: skip
    made = getattr(transformers, config)(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        **(more if takes == "sound" else {}),
    )  # fmt: skip
    getattr(transformers, kinds[config])(made).save_pretrained(str(tmp_path / "m"))
    write_tokenizer(tmp_path / "m")
    with pytest.raises(InputError, match=f"takes {takes}"):
        explain("hello world", model=str(tmp_path / "m"))
