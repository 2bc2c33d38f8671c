"""--verify reads the file a second time, and sees what was run otherwise than the file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_files import FILES, write_entry

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

import torch
from tiny_models import write_model

from attnviz.errors import CheckFailed
from attnviz.sources.models.files import ModelFiles, find_model
from attnviz.sources.models.gguf import read_gguf
from attnviz.sources.models.gguf_convert import write_model as convert
from attnviz.sources.models.loading import Loaded, load
from attnviz.sources.models.verify_file import file_difference

TOLERANCE = 1e-5


def opened(name: str, folder: Path, **how: Any) -> tuple[ModelFiles, Loaded]:
    path, _ = write_entry(name, folder, **how)
    (folder / "made").mkdir()
    convert(read_gguf(path), folder / "made")
    loaded = load(find_model(folder / "made"), device=torch.device("cpu"), dtype="float32")
    return find_model(path), loaded


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_was_run_and_a_change_is_seen(
    name: str, tmp_path: Path, one_thread: None
) -> None:
    files, loaded = opened(name, tmp_path)
    assert file_difference("m", files, loaded) <= TOLERANCE
    parameters = dict(loaded.model.named_parameters())
    for label in (next(iter(parameters)), list(parameters)[len(parameters) // 2]):
        flat = parameters[label].data.view(-1)
        before = flat[0].item()
        flat[0] = before + 0.01
        assert file_difference("m", files, loaded) > 1e-3
        flat[0] = before


def swap_heads(model: Any) -> None:
    rows = model.model.layers[1].self_attn.q_proj.weight.data
    rows.copy_(rows.reshape(4, 8, -1).flip(0).reshape(rows.shape))


def turn_otherwise(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.5)


def scale_otherwise(model: Any) -> None:
    model.model.layers[2].self_attn.scaling *= 2


def cap_otherwise(model: Any) -> None:
    model.config.attn_logit_softcapping = 7.0


@pytest.mark.parametrize(
    ("name", "change"),
    [("Llama, linear", swap_heads), ("Llama, linear", turn_otherwise), ("Llama, yarn", turn_otherwise),
     ("Gemma 2", scale_otherwise), ("Gemma 2", cap_otherwise)],
)  # fmt: skip
def test_what_the_metadata_says_otherwise_is_seen(
    name: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    files, loaded = opened(name, tmp_path)
    assert file_difference("m", files, loaded) <= TOLERANCE
    change(loaded.model)
    assert file_difference("m", files, loaded) > 1e-3


def test_tensors_and_windows_that_were_not_run_are_named(tmp_path: Path) -> None:
    files, loaded = opened("Mistral", tmp_path)
    loaded.model.config.sliding_window = 9
    with pytest.raises(CheckFailed, match=r"a window of 4 keys, but 9 was run"):
        file_difference("m", files, loaded)
    files, loaded = opened("Llama, biases", tmp_path / "biases")
    for layer in loaded.model.model.layers:
        layer.self_attn.q_proj.bias = None
    with pytest.raises(CheckFailed, match=r"'blk\.0\.attn_q\.bias' of the file was not run"):
        file_difference("m", files, loaded)
    lacks, _ = write_entry("Llama", tmp_path / "l", drop=frozenset({"blk.1.attn_v.weight"}))
    _, whole = opened("Llama", tmp_path / "whole")
    with pytest.raises(
        CheckFailed, match=r"v_proj\.weight' was run, but the file does not hold it"
    ):
        file_difference("m", find_model(lacks), whole)


def test_a_folder_s_tensors_are_compared(tmp_path: Path) -> None:
    files = find_model(write_model(tmp_path / "tiny"))
    loaded = load(files, device=torch.device("cpu"), dtype="float32")
    assert file_difference("m", files, loaded) == 0
    loaded.model.model.layers[1].self_attn.k_proj.weight.data[3, 2] += 0.5
    assert file_difference("m", files, loaded) == pytest.approx(0.5)
    half = replace(loaded, model=loaded.model.to(torch.bfloat16))
    assert file_difference("m", files, half) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3-MoE"])
def test_experts_that_the_library_merges_are_compared(name: str, tmp_path: Path) -> None:
    _, _ = write_entry(name, tmp_path)
    files = find_model(tmp_path / "original")
    loaded = load(files, device=torch.device("cpu"), dtype="float32")
    assert file_difference("m", files, loaded) == 0
    merged = next(w for n, w in loaded.model.named_parameters() if "experts.down_proj" in n)
    merged.data[1, 0, 0] += 0.5
    assert file_difference("m", files, loaded) == pytest.approx(0.5)
