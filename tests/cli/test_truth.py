"""Numbers that are not the model's own are never shown: one rule in every command."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import Result
from tiny_models import write_model

pytest.importorskip("transformers", reason="needs the extra 'models'")

from attnviz.rounding import worse
from attnviz.sources.models.source import TransformersSource

COMMANDS = {
    "explain": ("explain",), "heatmap": ("heatmap",), "links": ("view", "links"), "grid": ("view", "grid"),
    "summary": ("summary",), "heads": ("heads",), "page": ("page", "-o", "x.html"),
    "json": ("explain", "-f", "json"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def batch(cli: Callable[..., Result], folder: Path) -> Result:
    Path("texts.txt").write_text("hello world bear\n")
    return cli(
        "batch",
        "texts.txt",
        "-o",
        "out",
        "--model",
        str(folder),
        "--engine",
        "serial",
        "--format",
        "jsonl",
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_F4_one_number_that_is_none_in_a_weight_is_named_by_every_command(
    value: float, cli: Callable[..., Result]
) -> None:
    folder = write_model(Path("tiny"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][3, 4] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for command, *more in COMMANDS.values():
        done = cli(command, *more, "hello world bear", "--model", str(folder))
        assert done.code == 3, (command, done)
        assert f"the tensor {name.removeprefix('model.')[:20]}" in done.err.replace(
            "model.layers", "layers"
        )
        assert "holds 1 numbers that are NaN or infinite" in done.err
        assert done.out == ""
    assert batch(cli, folder).code == 3


def spoil(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Let the model's own output be another than what follows from its q, k and v."""
    from dataclasses import replace

    monkeypatch.setattr("attnviz.sources.families.opening.try_light", lambda *_, **__: None)
    run_batch = TransformersSource.run_batch

    def spoiled(
        self: Any, texts: Sequence[Any], layers: Sequence[int], consume: Any, **how: Any
    ) -> None:
        run_batch(
            self, texts, layers,
            lambda place, heads: consume(place, replace(heads, own_output=heads.own_output + by)), **how,
        )  # fmt: skip

    monkeypatch.setattr(TransformersSource, "run_batch", spoiled)


@pytest.mark.parametrize("by", [2.5, 0.05, math.nan])
@pytest.mark.parametrize("name", COMMANDS)
def test_F5_an_output_that_is_not_the_models_own_is_said_so_and_ends_by_1(
    name: str, by: float, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(Path("tiny"))
    command, *more = COMMANDS[name]
    spoil(monkeypatch, by)
    done = cli(command, *more, "hello world bear", "--model", str(folder))
    assert done.code == 1, done
    assert "output not equal to the model's own" in done.err
    assert done.out == ""


def test_F5_a_batch_keeps_such_a_text_out(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersSource, "packer", lambda source: None)
    spoil(monkeypatch, 2.5)
    assert batch(cli, write_model(Path("tiny"))).code == 1
    assert "output not equal to the model's own" in Path("out/errors.jsonl").read_text()


def test_an_output_within_the_tolerance_passes(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 2e-6)
    assert cli("explain", "hello world", "--model", str(write_model(Path("tiny")))).code == 0


def test_the_largest_difference_is_nan_where_one_is() -> None:
    assert math.isnan(worse(0.0, math.nan))
    assert math.isnan(worse(math.nan, 3.0))
    assert worse(0.0, np.inf, 1.0) == math.inf


@pytest.mark.parametrize("engine", ["light", "library"])
def test_a_word_is_not_written_by_scores_that_are_none(
    engine: str, cli: Callable[..., Result]
) -> None:
    folder = write_model(Path("tiny"), tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = np.full((60, 32), 3e38, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    how = ("--model", str(folder), "--engine", engine)
    assert cli("explain", "hello world bear", *how).code == 0
    done = cli("generate", "hello world bear", "-n", "2", *how)
    assert (done.code, done.out) == (3, ""), done
    assert "NaN or Inf as a word's score after 4 tokens" in done.err
