"""Watching a model that its owner runs: nothing changes, and what is seen is what was computed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

import torch
import transformers
from support import SENTENCE

import attnviz
from attnviz.errors import UsageError
from attnviz.runs.watch import Seen
from attnviz.sources.models.watching import Call, Calls

IDS = torch.arange(3, 11)[None]
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def tiny(kind: str, implementation: str) -> Any:
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation=implementation
        )
    else:
        config = transformers.BertConfig(
            **SIZES, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0
        )
        model = transformers.BertModel._from_config(config, attn_implementation=implementation)
    return model.eval()


def weights_by_the_library(model: Any, ids: Any, **more: Any) -> np.ndarray:
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    out = eager(ids, output_attentions=True, **more)
    return np.stack([layer.detach().numpy() for layer in out.attentions])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_what_is_seen_is_what_the_model_computes(kind: str, implementation: str) -> None:
    model = tiny(kind, implementation)
    with attnviz.watch(model) as seen, torch.no_grad():
        model(IDS)
    trace = seen.show([f"w{i}" for i in range(8)])
    theirs = weights_by_the_library(model, IDS)[:, 0]
    np.testing.assert_allclose(trace.stages["weights"], theirs, atol=2e-6)
    assert trace.checks["parity"] <= 1e-5
    assert (seen.layers, seen.n_runs) == ((0, 1, 2), 1)
    assert trace.source.n_kv_heads == (2 if kind == "llama" else 4)


def test_a_padded_batch_is_seen_text_by_text() -> None:
    model = tiny("bert", "sdpa")
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with attnviz.watch(model) as seen, torch.no_grad():
        model(ids, attention_mask=mask)
    theirs = weights_by_the_library(model, ids, attention_mask=mask)
    for index in (0, 1):
        trace = seen.show(index=index)
        np.testing.assert_allclose(trace.stages["weights"], theirs[:, index], atol=2e-6)
    assert not trace.visible[..., 5:].any()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_training_step_is_bit_for_bit_the_same(implementation: str) -> None:
    def step(model: Any) -> tuple[float, list[Any]]:
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    plain, watched = (tiny("llama", implementation).train() for _ in range(2))
    with attnviz.watch(watched) as seen:
        found = step(watched)
    loss, gradients = step(plain)
    assert found[0] == loss
    assert all(torch.equal(a, b) for a, b in zip(found[1], gradients, strict=True))
    assert watched.training
    assert seen.layers == (0, 1, 2)


def test_only_the_layers_asked_for_are_kept() -> None:
    model = tiny("llama", "sdpa")
    with attnviz.watch(model, layers=[1]) as seen, torch.no_grad():
        model(IDS)
    assert seen.layers == (1,)
    assert len(seen._found) == 1
    assert seen.show().layers == (1,)
    with pytest.raises(UsageError, match="layer 2 was not seen"):
        seen.show(layers=[2])


def test_a_model_is_left_as_it_was_found_also_after_an_error() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama import modeling_llama

    model = tiny("llama", "sdpa")
    before = (
        dict(ALL_ATTENTION_FUNCTIONS.items()), modeling_llama.eager_attention_forward,
        model.config._attn_implementation, model.training,
        [len(m._forward_pre_hooks) for m in model.modules()],
    )  # fmt: skip
    with pytest.raises(IndexError), attnviz.watch(model):
        model(IDS + 100)
    after = (
        dict(ALL_ATTENTION_FUNCTIONS.items()), modeling_llama.eager_attention_forward,
        model.config._attn_implementation, model.training,
        [len(m._forward_pre_hooks) for m in model.modules()],
    )  # fmt: skip
    assert after == before


def test_generate_is_seen_pass_by_pass() -> None:
    model = tiny("llama", "sdpa")
    with attnviz.watch(model) as seen:
        model.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert seen.n_runs == 3
    first, last = seen.show(run=0), seen.show()
    assert first.stages["weights"].shape[2:] == (8, 8)
    assert last.stages["weights"].shape[2:] == (1, 10)
    with pytest.raises(UsageError, match="run 3 does not exist: layer 0 ran 3 times"):
        seen.show(run=3)


def test_another_model_that_runs_meanwhile_is_not_seen() -> None:
    model, other = tiny("llama", "sdpa"), tiny("llama", "sdpa")
    with attnviz.watch(model) as seen, torch.no_grad():
        other(IDS)
    assert seen.layers == ()
    with pytest.raises(UsageError, match="no attention of LlamaForCausalLM was seen"):
        seen.show()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["no mask", "causal", "padding", "both"])
def test_attention_of_torch_is_seen(masked: str, batch_first: bool) -> None:
    torch.manual_seed(1)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=batch_first)
    x = torch.randn(2, 6, 16) if batch_first else torch.randn(6, 2, 16)
    how: dict[str, Any] = {}
    if masked in ("causal", "both"):
        how["attn_mask"] = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    if masked in ("padding", "both"):
        how["key_padding_mask"] = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with attnviz.watch(torch.nn.Sequential(layer)) as seen:
        _, theirs = layer(x, x, x, average_attn_weights=False, **how)
    for index in (0, 1):
        ours = seen.show(index=index).stages["weights"][0]
        np.testing.assert_allclose(ours, theirs[index].detach().numpy(), atol=1e-6)


def test_a_float_mask_and_other_widths_of_torch_are_seen() -> None:
    layer = torch.nn.MultiheadAttention(16, 2, kdim=10, vdim=12, bias=False, batch_first=True)
    q, k, v = torch.randn(1, 5, 16), torch.randn(1, 7, 10), torch.randn(1, 7, 12)
    mask = torch.randn(5, 7)
    mask[0, 3] = -torch.inf
    with attnviz.watch(torch.nn.Sequential(layer)) as seen:
        _, theirs = layer(q, k, v, attn_mask=mask, average_attn_weights=False)
    trace = seen.show([str(i) for i in range(5)], key_tokens=[str(i) for i in range(7)])
    np.testing.assert_allclose(trace.stages["weights"][0], theirs[0].detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("given", ["a name", 7, torch.nn.Linear(2, 2)])
def test_what_cannot_be_watched_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="watched"), attnviz.watch(given):
        pass


def test_a_batch_of_tokens_is_read_by_the_same_index() -> None:
    model = tiny("bert", "sdpa")
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    with attnviz.watch(model) as seen, torch.no_grad():
        model(ids)
    texts = [[f"{n}.{i}" for i in range(8)] for n in range(2)]
    assert seen.show(texts, index=1).tokens.labels[0] == "1.0"
    with pytest.raises(UsageError, match="index 2 does not exist: the batch has 0 to 1"):
        seen.show(index=2)


def test_nothing_seen_has_no_layers() -> None:
    assert (Seen("x").layers, Seen("x").n_runs) == ((), 0)


def test_a_real_model_is_watched(minilm: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm)
    ids = tokenizer("A cute teddy bear is reading", return_tensors="pt")
    with attnviz.watch(model) as seen, torch.no_grad():
        model(**ids)
    trace = seen.show(ids["input_ids"], tokenizer=tokenizer)
    assert trace.stages["weights"][0, 4, 3, 4] == pytest.approx(0.928227, abs=5e-6)
    assert trace.checks["parity"] <= 1e-5


def test_a_model_in_memory_is_explained_and_left_as_it_was(minilm: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm).train()
    model.encoder.layer[0].eval()
    before = [module.training for module in model.modules()], model.config._attn_implementation
    trace = attnviz.explain(SENTENCE, model=model, tokenizer=tokenizer, token="teddy")
    assert (trace.layers, trace.heads, trace.asked) == ((0,), (4,), 3)
    on_disk = attnviz.explain(SENTENCE, model=str(minilm), token="teddy")
    for stage in ("q", "k", "scores", "weights", "output"):
        np.testing.assert_allclose(trace.stages[stage], on_disk.stages[stage], atol=2e-5)
    assert trace.tokens.labels == on_disk.tokens.labels
    assert [choice.head for choice in trace.ranking[:4]] == [c.head for c in on_disk.ranking[:4]]
    after = [module.training for module in model.modules()], model.config._attn_implementation
    assert after == before
    one = attnviz.explain(SENTENCE, model=model, tokenizer=tokenizer, layer="1-2", head="3")
    assert (one.layers, one.heads) == ((1, 2), (3,))
    with pytest.raises(RuntimeError):
        attnviz.explain("word " * 600, model=model, tokenizer=tokenizer)
    assert [module.training for module in model.modules()] == before[0]
    for more, words in (
        ({}, "needs its tokenizer"), ({"tokenizer": tokenizer, "window": 3}, "window is for models"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            attnviz.explain(SENTENCE, model=model, **more)


def test_weights_in_memory_mean_what_a_file_of_them_would(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).standard_normal
    arrays = {f"w_{name}": draw((8, 4)) for name in "qkv"}
    np.savez(tmp_path / "layer.npz", **arrays, causal=np.array("true"))
    ours = attnviz.explain(SENTENCE, weights={**arrays, "causal": True})
    file = attnviz.explain(SENTENCE, weights=str(tmp_path / "layer.npz"))
    np.testing.assert_array_equal(ours.stages["weights"], file.stages["weights"])
    tensors = {name: torch.tensor(values) for name, values in arrays.items()}
    again = attnviz.explain(SENTENCE, weights={**tensors, "causal": True})
    np.testing.assert_array_equal(again.stages["weights"], ours.stages["weights"])
    assert again.source.sha256 == ours.source.sha256
    for wrong in ({}, 7, {"w_q": "x"}):
        with pytest.raises(attnviz.AttnvizError):
            attnviz.explain(SENTENCE, weights=wrong)
    with pytest.raises(UsageError, match="tokenizer goes with a model in memory"):
        attnviz.explain(SENTENCE, tokenizer=object())


def test_masks_of_torch_are_joined_and_additive_ones_split_into_mask_and_bias() -> None:
    q = torch.zeros(1, 2, 3, 4)
    added = torch.tensor([[0.5, -torch.inf, -3e4], [0, 0, 0], [0, 0, 1.0]])
    call = Call(0, q, q, q, 0.5, added[None, None])
    heads = call.heads(0)
    assert heads.visible.cells.tolist() == [[True, False, False], [True] * 3, [True] * 3]
    np.testing.assert_array_equal(heads.bias[0], [[0.5, 0, 0], [0, 0, 0], [0, 0, 1]])
    calls = Calls(frozenset({1}))
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert [calls.number(m) for m in (first, second, first)] == [0, 1, 0]
    assert [calls.wants(n) for n in (0, 1)] == [False, True]
