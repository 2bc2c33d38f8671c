"""Every setting and tensor of a GGUF file is used, known to be without effect, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import FILES, build, write_entry

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

import torch
import transformers
from safetensors.numpy import save_file

from attnviz.errors import InputError
from attnviz.sources.models.gguf import Gguf, read_gguf
from attnviz.sources.models.gguf_accounting import Account, account
from attnviz.sources.models.gguf_convert import write_model
from attnviz.sources.models.gguf_kinds import ARCHITECTURES

IDS = [[5, 9, 100, 201, 33, 7, 8, 261, 44, 100, 5, 9]]
Make = Callable[[str], Path]
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Write each entry once; its folder holds ``tiny.gguf`` and ``original``."""
    known: dict[str, Path] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def get(name: str) -> Path:
        if name not in known:
            known[name] = tmp_path_factory.mktemp("gguf")
            write_entry(name, known[name])
        return known[name]

    yield get
    torch.set_num_threads(before)


def attentions(model: Any, n_tokens: int = 12) -> dict[str, Any]:
    ids = torch.tensor(IDS * 3).reshape(1, -1)[:, :n_tokens]
    more = {"decoder_input_ids": ids[:, :6]} if model.config.is_encoder_decoder else {}
    if not hasattr(model, "decoder"):
        more = {}
    with torch.inference_mode():
        found = model(ids, output_attentions=True, **more)
    return {k: v for k, v in found.items() if "attentions" in k or k == "logits"}


def loaded(folder: Path, architecture: str) -> Any:
    kind = getattr(transformers, architecture)
    made, report = kind.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return made


def as_folder(found: Account, folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(found.config)))
    tensors = {name: found.read(name) for name in found.parameters}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_every_architecture_that_is_read_is_written_here() -> None:
    assert {entry.arch for entry in FILES.values()} == ARCHITECTURES


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference of attention and logits; infinite where shapes differ."""
    pairs = [(a, b) for key in one for a, b in zip(one[key], other[key], strict=True)]
    if set(one) != set(other) or any((a is None) != (b is None) for a, b in pairs):
        return np.inf
    kept = [(a, b) for a, b in pairs if a is not None]
    return max(float((a - b).abs().max()) if a.shape == b.shape else np.inf for a, b in kept)


def ours(path: Path, folder: Path) -> Any:
    """Read a file as the product does, without its tokenizer."""
    folder.mkdir(exist_ok=True)
    write_model(read_gguf(path), folder)
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    return loaded(folder, architecture)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_model_that_it_was_made_of(make: Make, tmp_path: Path, name: str) -> None:
    made = ours(make(name) / "tiny.gguf", tmp_path / "made")
    own = loaded(make(name) / "original", type(made).__name__)
    assert difference(attentions(own), attentions(made)) <= TOLERANCE


ROPE = {"rope_theta": 1e4}
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 8.0}}),
    ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    ("Llama", {"attention_bias": True}),
    ("Llama, yarn", {"rope_parameters": {
        **ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.7}}),
    ("Mistral", {"sliding_window": 2}),
    ("Gemma 2", {"attn_logit_softcapping": 3.0}),
    ("Gemma 2", {"final_logit_softcapping": 2.0}),
    ("Gemma 2", {"sliding_window": 2}),
    ("Gemma 3", {"sliding_window": 2}),
    ("Qwen3", {"head_dim": 24}),
    ("Qwen3", {"attention_bias": True}),
    ("StableLM", {"use_qkv_bias": False}),
    ("StableLM", {"rope_parameters": {**ROPE, "rope_type": "default", "partial_rotary_factor": 0.25}}),
    ("Phi-3", {"sliding_window": 3}),
    ("Granite", {"attention_bias": True}),
    ("Nemotron", {"attention_bias": True, "mlp_bias": True}),
    ("Cohere", {"logit_scale": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), CHANGES)
def test_N4_N7_F1a_settings_and_biases_reach_the_model(
    make: Make, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    path, _ = write_entry(name, tmp_path, changes=changes)
    made = ours(path, tmp_path / "made")
    own = attentions(loaded(tmp_path / "original", type(made).__name__))
    before = attentions(loaded(make(name) / "original", type(made).__name__))
    assert difference(own, attentions(made)) <= TOLERANCE
    assert difference(own, before) > 100 * TOLERANCE


@pytest.mark.parametrize("name", [
    name if name in ("Llama, yarn", "Gemma 2") else pytest.param(name, marks=pytest.mark.slow)
    for name in FILES
])  # fmt: skip
def test_each_setting_changed_by_one_step_changes_the_answer_or_is_refused(
    make: Make, tmp_path: Path, name: str
) -> None:
    """Where nothing changes, nothing changes in the original either: see ``SILENT``."""
    path = make(name) / "tiny.gguf"
    file = read_gguf(path)
    before = attentions(ours(path, tmp_path / "before"))
    same = set()
    for key, value in file.metadata.items():
        short = key.removeprefix(f"{file.architecture}.")
        if short == key or isinstance(value, str | list):
            continue
        step = not value if isinstance(value, bool) else value * 2 if value % 1 else value + 1
        if short == "rope.scaling.original_context_length":
            step = 4 * value  # yarn rounds what it computes from it
        try:
            found = account(saying(file, **{short: step}))
            folder = as_folder(found, tmp_path / short)
            after = attentions(loaded(folder, found.config["architectures"][0]))
        except Exception:  # ours, or the library's about sizes that do not fit
            continue
        if difference(before, after) == 0:
            same.add(short)
    assert SILENT_IN.get(name, set()) <= same <= SILENT | SILENT_IN.get(name, set())


SILENT = {"context_length", "decoder_start_token_id"}
"""How long texts may be, and where writing begins: no attention changes by them."""
SILENT_IN = {
    **{name: {"feed_forward_length"} for name in ("Qwen2-MoE", "Qwen3-MoE", "GPT-OSS")},
    "Phi-3": {"rope.scaling.original_context_length"},
}
"""Of dense layers, which these have none of; the length before scaling, which this has none of."""


def without(file: Gguf, name: str) -> Gguf:
    return replace(file, tensors={k: v for k, v in file.tensors.items() if k != name})


def saying(file: Gguf, **keys: Any) -> Gguf:
    told = {f"{file.architecture}.{k.replace('__', '.')}": v for k, v in keys.items()}
    return replace(file, metadata={**file.metadata, **told})


@pytest.mark.parametrize("name", FILES)
def test_N6_a_tensor_that_is_missing_or_unknown_is_refused_by_name(make: Make, name: str) -> None:
    file = read_gguf(make(name) / "tiny.gguf")
    for tensor in file.tensors:
        if tensor == "output.weight":  # a model without it reads its words from the embedding
            assert account(without(file, tensor)).config["tie_word_embeddings"]
            continue
        with pytest.raises(InputError, match=tensor.split(".")[-2]):
            account(without(file, tensor))
        renamed = {(f"{k}.old" if k == tensor else k): v for k, v in file.tensors.items()}
        with pytest.raises(InputError, match=tensor.split(".")[-2]):
            account(replace(file, tensors=renamed))
        more = {**file.tensors, f"{tensor}_scale": file.tensors[tensor]}
        with pytest.raises(InputError, match=f"{tensor}_scale"):
            account(replace(file, tensors=more))


@pytest.mark.parametrize("name", FILES)
def test_a_setting_that_is_not_known_is_refused_by_name(make: Make, name: str) -> None:
    file = read_gguf(make(name) / "tiny.gguf")
    for key in ("attention.key_scale", "rope.scaling.beta", "attention.temperature_length"):
        with pytest.raises(InputError, match=key):
            account(saying(file, **{key: 3.0}))
    with pytest.raises(InputError, match="other\\.attention"):
        account(replace(file, metadata={**file.metadata, "other.attention.scale": 1.0}))
    with pytest.raises(InputError, match=r"general\.type = adapter"):
        account(replace(file, metadata={**file.metadata, "general.type": "adapter"}))
    found = account(saying(file, rope__scaling__finetuned=False))
    assert found.unused[f"{file.architecture}.rope.scaling.finetuned"].startswith("whether")


def test_a_part_of_the_biases_is_refused(make: Make) -> None:
    file = read_gguf(make("Llama, biases") / "tiny.gguf")
    left = file
    for layer in range(3):
        left = without(left, f"blk.{layer}.attn_k.bias")
    with pytest.raises(InputError, match=r"lacks the tensor 'blk\.0\.attn_k\.bias'"):
        account(left)
    left = file
    for layer in range(3):
        left = without(left, f"blk.{layer}.attn_output.bias")
    zeros = account(left).read("model.layers.1.self_attn.o_proj.bias")
    assert zeros.shape == (32,)
    assert not zeros.any()


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Llama", {"rope__scaling__type": "dynamic"}, "rope.scaling.type = dynamic"),
        ("Llama", {"rope__dimension_count": 4, "attention__key_length": 8}, "turns 4 of 8"),
        ("Llama", {"attention__value_length": 4}, "another width"),
        ("Llama", {"vocab_size": 319}, "says 319 words, but has vectors for 320"),
        ("Llama", {"attention__causal": False}, "attention.causal = False"),
        ("Llama", {"attention__clamp_kqv": 2.0}, "clamp_kqv = 2.0"),
        ("Llama", {"rope__scaling__attn_factor": 1.5}, "attn_factor = 1.5"),
        ("Llama", {"rope__scaling__type": "longrope"}, "rope_factors_long.weight"),
        ("Llama, yarn", {"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        ("Llama, yarn", {"rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("Llama", {"attention__head_count": [4, 2, 4]}, "head_count"),
        ("Qwen2", {"attention__sliding_window": 8}, "does not say which layers"),
        ("StableLM", {"use_parallel_residual": True}, "use_parallel_residual"),
        ("BLOOM", {"attention__max_alibi_bias": 4.0}, "max_alibi_bias"),
        ("LFM2", {"attention__head_count_kv": [2, 0, 0]}, r"blk\.0\.attn_q\.weight"),
        ("LFM2", {"attention__head_count_kv": [2, 0]}, "heads for keys of 2 layers, but has 3"),
        ("Cohere", {"attention__scale": 0.5}, "attention.scale"),
        ("Gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ],
)
def test_settings_that_the_library_has_no_place_for_are_refused(
    make: Make, name: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        account(saying(read_gguf(make(name) / "tiny.gguf"), **keys))


def test_scales_bases_and_windows_go_where_the_library_reads_them(make: Make) -> None:
    gemma = read_gguf(make("Gemma 2") / "tiny.gguf")
    assert account(gemma).config["query_pre_attn_scalar"] == 16
    assert account(saying(gemma, attention__scale=0.5)).config["query_pre_attn_scalar"] == 4
    large = account(saying(read_gguf(make("Gemma 3") / "tiny.gguf"), rope__freq_base_swa=123.0))
    ropes = large.config["rope_parameters"]
    assert ropes["sliding_attention"] == {"rope_type": "default", "rope_theta": 123.0}
    assert (ropes["full_attention"]["rope_theta"], ropes["full_attention"]["factor"]) == (5e4, 8.0)
    assert large.config["layer_types"].index("full_attention") == 5
    qwen = read_gguf(make("Qwen2") / "tiny.gguf")
    slides = {
        "attention__sliding_window": 8,
        "attention__sliding_window_pattern": [True, False, True],
    }
    config = account(saying(qwen, **slides)).config
    assert config["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (config["sliding_window"], config["use_sliding_window"]) == (8, True)
    old = account(saying(read_gguf(make("Llama") / "tiny.gguf"), rope__scaling__factor=4.0))
    assert old.config["rope_parameters"]["rope_type"] == "linear"


def test_gemma_2_of_46_layers_is_scaled_by_its_width(make: Make) -> None:
    """27 B: llama.cpp, src/models/gemma2.cpp."""
    file = read_gguf(make("Gemma 2") / "tiny.gguf")
    tensors = {
        name.replace("blk.0.", f"blk.{i}."): tensor
        for name, tensor in file.tensors.items()
        for i in range(46)
    }
    large = saying(replace(file, tensors=tensors), block_count=46)
    assert account(large).config["query_pre_attn_scalar"] == 32 // 4


def test_rope_factors_are_llama_3_s_scaling(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, **ROPE}  # fmt: skip
    model = build("Llama", rope_parameters=rope)
    plain = 1e4 ** (-np.arange(0, 8, 2) / 8)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    how = {"changes": {"rope_parameters": rope}, "extra": {"rope_freqs.weight": factors}}
    path, _ = write_entry("Llama", tmp_path, **how)
    own = attentions(loaded(tmp_path / "original", "LlamaForCausalLM"))
    assert difference(own, attentions(ours(path, tmp_path / "made"))) <= TOLERANCE
    linear = saying(read_gguf(path), rope__scaling__type="linear", rope__scaling__factor=2.0)
    told = account(linear).config["rope_parameters"]["long_factor"]
    assert told == pytest.approx((2 * factors).tolist())
    other = write_entry("Qwen3", tmp_path / "q", extra={"rope_freqs.weight": factors})[0]
    with pytest.raises(InputError, match="rope_freqs"):  # llama.cpp reads them of Llama alone
        account(read_gguf(other))
    odd = write_entry("Llama", tmp_path / "o", extra={"rope_freqs.weight": factors[:2]})[0]
    with pytest.raises(
        InputError, match=r"rope_freqs\.weight holds 2 factors, 4 above 0 are wanted"
    ):
        account(read_gguf(odd))


def test_long_and_short_factors_are_phi_s(tmp_path: Path) -> None:
    long, short = (np.array([1.0, 2.0, 3.0, n], np.float32) for n in (9.0, 5.0))
    both = {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
    rope = {"rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist(),
            "attention_factor": 1.25, "original_max_position_embeddings": 16,
            "partial_rotary_factor": 1.0, **ROPE}  # fmt: skip
    keys = {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.25}
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 16}
    path, _ = write_entry("Phi-3", tmp_path, keys=keys, extra=both, changes=changes)
    own, made = loaded(tmp_path / "original", "Phi3ForCausalLM"), ours(path, tmp_path / "made")
    for n_tokens in (12, 30):  # on both sides of the 16 positions
        found = difference(attentions(own, n_tokens), attentions(made, n_tokens))
        assert found <= TOLERANCE
    lacks = without(read_gguf(path), "rope_factors_short.weight")
    with pytest.raises(InputError, match="rope_factors_short"):
        account(lacks)


@pytest.mark.parametrize(("arch", "hint"), [("mamba", "no attention"), ("rwkv7", "read are bloom")])
def test_architectures_that_are_not_read_are_named(make: Make, arch: str, hint: str) -> None:
    file = read_gguf(make("Llama") / "tiny.gguf")
    with pytest.raises(InputError, match=hint):
        account(replace(file, metadata={**file.metadata, "general.architecture": arch}))
