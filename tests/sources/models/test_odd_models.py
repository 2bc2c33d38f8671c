"""Models whose layers, classes or texts are unlike the rest: read right, or refused with the fact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Result
from tiny_models import write_tokenizer

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("accelerate", reason="needs the extra 'models'")

from attnviz.records import LayerHeads
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.source import open_model

pytestmark = [
    pytest.mark.usefixtures("own_cache", "one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]  # fmt: skip
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LFM2 = {**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"] * 2}  # fmt: skip
QWEN2_MOE = {
    **SIZES, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
BART = {
    "vocab_size": 60, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "is_decoder": True, "is_encoder_decoder": False,
}  # fmt: skip


def write(
    folder: Path, config: str, model: str, settings: dict[str, Any], **tokenizer: Any
) -> Path:
    """Save a tiny random model as the library does, with a tokenizer beside it."""
    import torch

    transformers = load_transformers()
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**settings))
    made.save_pretrained(folder)
    write_tokenizer(folder, **tokenizer)
    return folder


def test_N47_a_batch_of_all_layers_takes_those_of_a_hybrid_that_attend(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "lfm2", "Lfm2Config", "Lfm2ForCausalLM", LFM2)
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("hello world bear\nbear !\n")
    how = ("--model", str(folder), "--engine", "serial", "--format", "jsonl", "--layer", "all")
    done = cli("batch", "texts.txt", "-o", "out", *how)
    assert done.code == 0, done
    rows = [json.loads(line) for file in Path("out/heads").iterdir() for line in file.open()]
    assert {row["layer"] for row in rows if "layer" in row} == {1, 3}


@pytest.mark.parametrize("more", [(), ("--token", "bear")])
def test_a_rollout_of_a_hybrid_says_that_it_has_none(
    more: tuple[str, ...], tmp_path: Path, cli: Callable[..., Result]
) -> None:
    folder = write(tmp_path / "lfm2", "Lfm2Config", "Lfm2ForCausalLM", LFM2)
    done = cli("view", "rollout", "hello world bear", "--model", str(folder), *more)
    assert done.code == 2
    assert "all 4 layers, 2" in done.err
    assert "hybrid" in done.err


def test_F9_a_decoder_alone_of_barts_kin_shows_its_self_attention(
    tmp_path: Path, cli: Callable[..., Result]
) -> None:
    folder = write(tmp_path / "bart", "BartConfig", "BartForCausalLM", BART)
    done = cli(
        "explain", "hello world bear", "--model", str(folder), "-l", "0", "-H", "0", "--verify"
    )
    assert done.code == 0, done
    found: list[LayerHeads] = []
    source = open_model(folder)
    source.run(source.tokenize("hello world bear"), (0,), found.append)
    assert found[0].visible.causal


def test_qwen2_moe_keeps_the_window_of_0_that_its_config_writes_itself(tmp_path: Path) -> None:
    folder = write(tmp_path / "moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", QWEN2_MOE)
    source = open_model(folder)
    found: list[LayerHeads] = []
    source.run(source.tokenize("hello world bear"), source.layers, found.append)
    assert [(h.visible.causal, h.visible.window) for h in found] == [(True, None)] * 2
    assert source.info.notices == ()


BERT_WORDS = ("[CLS]", "[SEP]", "[UNK]", "how", "old", "are", "you", "six", "?")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = write(tmp_path / "bert", "BertConfig", "BertModel", SIZES)
    ids = {word: i for i, word in enumerate(BERT_WORDS)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_F14_a_text_of_which_only_special_tokens_come_is_refused(
    text: str, bert: Path, cli: Callable[..., Result]
) -> None:
    done = cli("explain", text, "--model", str(bert))
    assert done.code == 3, done
    assert done.out == ""


@pytest.mark.parametrize("engine", ["light", "library"])
def test_N45_a_typed_separator_begins_no_second_segment_and_that_is_said(
    engine: str, bert: Path
) -> None:
    from attnviz.sources.families.opening import try_light

    source = open_model(bert) if engine == "library" else try_light(bert, engine="light")
    assert source is not None
    said = "segment 0 (token_type_ids)"
    assert any(said in n for n in source.tokenize("how old are you ? [SEP] six").notices)
    assert not any(said in n for n in source.tokenize("how old are you ?").notices)
    assert not any(said in n for n in source.tokenize("how old [SEP]").notices)


def test_numbers_that_overflow_for_a_text_are_refused_where_a_layer_is_handed_on(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from attnviz.errors import InputError
    from attnviz.sources.models import source as module

    source = open_model(bert)
    made = module.to_layer_heads

    def broken(*given: Any, **named: Any) -> LayerHeads:
        heads = made(*given, **named)
        k = heads.k.clone()
        k[0, 1, 0] = np.inf
        return replace(heads, k=k)

    monkeypatch.setattr(module, "to_layer_heads", broken)
    with pytest.raises(InputError, match="layer 0 of bert gives NaN or Inf in k for this text"):
        source.run(source.tokenize("how old"), (0,), lambda _: None)
