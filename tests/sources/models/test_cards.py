"""Cards from every kind of config and GGUF metadata, and tokenizers that do not want to be opened."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_gguf import array, gguf, text
from tiny_models import write_model

from attnviz.errors import InputError
from attnviz.sources.models import card as cards
from attnviz.sources.models.card import model_card
from attnviz.sources.models.card_layers import read_int, read_layers, with_tensors

pytestmark = pytest.mark.usefixtures("own_cache")
OUR_OWN = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("cards") / "tiny")


def card(folder: Path, **config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return model_card(folder)


# --- folders ------------------------------------------------------------------------------------

BASE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


def test_names_of_settings_in_other_families(folder: Path) -> None:
    gpt2 = card(
        folder, n_layer=2, n_head=4, n_embd=32, n_positions=64, model_type="gpt2", vocab_size=60
    )
    assert (gpt2.n_layers, gpt2.n_heads, gpt2.n_kv_heads, gpt2.d_model, gpt2.d_k, gpt2.d_v) == (2, 4, 4, 32, 8, 8)  # fmt: skip
    assert (gpt2.architecture, gpt2.max_positions, gpt2.vocab_size) == ("gpt2", 64, 60)
    assert (gpt2.softcap, gpt2.n_encoder_layers, gpt2.kind) == (None, None, "safetensors")
    t5 = card(folder, num_layers=5, num_decoder_layers=2, num_heads=4, d_model=32, d_kv=6, is_encoder_decoder=True)  # fmt: skip
    assert (t5.n_layers, t5.n_encoder_layers, t5.d_k, t5.d_v) == (2, 5, 6, 6)
    wide = card(folder, **BASE, head_dim=16, v_head_dim=12, num_key_value_heads=2, attn_logit_softcapping=50,
                architectures=["A", "B"], max_seq_len=9)  # fmt: skip
    assert (wide.d_k, wide.d_v, wide.n_kv_heads, wide.softcap) == (16, 12, 2, 50.0)
    assert (wide.architecture, wide.max_positions) == ("A", 9)
    mla = card(folder, **BASE, qk_nope_head_dim=5, qk_rope_head_dim=3)
    assert mla.d_k == 8
    assert card(folder, **BASE, qk_nope_head_dim=5).d_k == 5
    assert card(folder, **BASE, qk_nope_head_dim="x", qk_rope_head_dim=3).d_k == 3
    assert card(folder, num_attention_heads=4).d_k is None
    assert card(folder, hidden_size=32).d_k is None
    assert card(folder, **BASE, multi_query=True).n_kv_heads == 1
    assert card(folder, **BASE, multi_query=True, new_decoder_architecture=True).n_kv_heads == 4
    nested = card(folder, model_type="x", text_config={**BASE, "model_type": "y"})
    assert (nested.n_heads, nested.architecture) == (4, "x")
    nothing = card(folder)
    assert (nothing.n_layers, nothing.n_heads, nothing.d_k, nothing.architecture) == (None, None, None, "")  # fmt: skip
    odd = card(
        folder,
        **{**BASE, "num_attention_heads": True},
        attn_logit_softcapping=True,
        architectures=[],
    )
    assert (odd.n_heads, odd.softcap, odd.architecture) == (None, None, "")
    assert read_int({"a": True, "b": "3", "c": 3.0, "d": 3}, "a", "b", "c", "d") == 3


def test_numbers_are_counted_by_type_and_flags_left_out(tmp_path: Path) -> None:
    made = write_model(tmp_path / "tiny")
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros(9, np.float16), "i": np.zeros(7, np.int64),
               "u": np.zeros(3, np.uint8), "c": np.zeros(6, np.float64)}, made / "model.safetensors")  # fmt: skip
    found = card(made, **BASE)
    assert list(found.dtypes.items()) == [("F16", 9), ("I64", 7), ("F32", 6), ("F64", 6), ("U8", 3)]
    assert found.n_parameters == 21
    assert found.size_bytes == (made / "model.safetensors").stat().st_size
    assert found.files == ("model.safetensors",)
    assert len(found.tokenizer_sha256) == 64


@pytest.mark.parametrize(
    ("names", "kind", "told"),
    [((), "", "no tokenizer file"), (("vocab.txt", "tokenizer.model"), "tokenizer.model",
      "no tokenizer.json; it has tokenizer.model, vocab.txt")],
)  # fmt: skip
def test_a_card_without_tokenizer_json_says_what_there_is(
    tmp_path: Path, names: Any, kind: str, told: str
) -> None:
    made = write_model(tmp_path / "tiny")
    (made / "tokenizer.json").unlink()
    for name in names:
        (made / name).write_bytes(b"x")
    found = model_card(made)
    assert (found.tokenizer, found.tokenizer_adds, found.tokenizer_sha256) == (kind, None, "")
    assert found.notices == (told,)


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"layer_types": ["attention", "global", "local", "mamba"]}, ["full_attention", "full_attention", "local_attention", "mamba"]),
        ({"layer_types": ["local"] * 3}, ["full_attention"] * 4),
        ({"attention_layers": ["global", "local"] * 9}, ["full_attention", "local_attention"] * 2),
        ({"attn_layer_period": 3}, ["full_attention", "mamba", "mamba", "full_attention"]),
        ({"attn_layer_period": 3, "attn_layer_offset": 2}, ["mamba", "mamba", "full_attention", "mamba"]),
        ({"full_attn_idxs": [1, 3]}, ["conv", "full_attention"] * 2),
        ({"_sliding_window_pattern": 3}, ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
        ({"global_attn_every_n_layers": 3}, ["full_attention", "local_attention", "local_attention", "full_attention"]),
        ({"model_type": "gemma2"}, ["sliding_attention", "full_attention"] * 2),
        ({"sliding_window": 8}, ["sliding_attention"] * 4),
        ({"sliding_window": 8, "max_window_layers": 2}, ["sliding_attention"] * 4),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, ["full_attention"] * 3 + ["sliding_attention"]),
        ({"sliding_window": 8, "use_sliding_window": True}, ["sliding_attention"] * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, ["full_attention"] * 4),
        ({}, ["full_attention"] * 4),
    ],
)  # fmt: skip
def test_kinds_of_layers(config: Any, kinds: list[str]) -> None:
    layers = read_layers({"num_hidden_layers": 4, "attention_chunk_size": 16, **config})
    said = [layer.kind for layer in layers]
    wanted = ["full_attention" if kind == "attention" else kind for kind in kinds]
    assert [{"attention": "full_attention"}.get(kind, kind) for kind in said] == wanted
    for layer in layers:
        assert layer.has_attention == (layer.kind not in ("mamba", "conv"))
        is_windowed = layer.kind in ("sliding_attention", "local_attention")
        window = config.get("sliding_window", 16) if config.get("use_sliding_window") is not False else None  # fmt: skip
        assert layer.window == (window if is_windowed else None)
    assert [layer.layer for layer in layers] == [0, 1, 2, 3]


def test_rotary_bases_by_kind_and_layer() -> None:
    four = {"num_hidden_layers": 4, "sliding_window_pattern": 2}

    def bases(**config: Any) -> list[float | None]:
        return [layer.rotary_base for layer in read_layers({**four, **config})]

    assert bases(rope_theta=5) == [5.0] * 4
    assert bases(global_rope_theta=7, local_rope_theta=3) == [3.0, 7.0, 3.0, 7.0]
    assert bases(rope_theta=9, rope_local_base_freq=2) == [2.0, 9.0, 2.0, 9.0]
    assert bases(rope_theta=9, no_rope_layers=[1, 0]) == [9.0, None, 9.0, 9.0]
    assert bases(rope_parameters={"rope_theta": 4.0}) == [4.0] * 4
    assert bases(rope_parameters={"full_attention": 3}) == [None] * 4
    assert bases(rope_theta="x") == bases() == [None] * 4
    assert len(read_layers({"num_hidden_layers": 5000})) == 1024
    assert read_layers({"num_hidden_layers": -3}) == ()


def test_layers_without_tensors_like_attention_have_none() -> None:
    layers = read_layers({"num_hidden_layers": 2, "rope_theta": 2.0})
    assert with_tensors(layers, ["model.layers.0.self_attn.q_proj.weight"]) == layers
    told = with_tensors(layers, ["h.0.mlp.weight", "h.0.attn.q.weight", "h.1.time_mix.key.weight"])
    assert [layer.has_attention for layer in told] == [True, False]
    assert (told[1].kind, told[1].rotary_base) == ("other", None)
    assert with_tensors((), []) == ()


def test_a_card_is_quiet_where_its_tokenizer_panics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = write_model(tmp_path / "tiny")

    def panic(*_: Any, **__: Any) -> Any:
        os.write(2, b"thread panicked")
        raise ValueError("damaged")

    for name in ("tokens_of", "read_family"):
        monkeypatch.setattr(cards, name, panic)
        with pytest.raises(InputError, match=r"tokenizer\.json does not work: damaged"):
            model_card(made)
    assert capfd.readouterr().err == ""


# --- GGUF ---------------------------------------------------------------------------------------


def number(value: int) -> tuple[int, bytes]:
    return 4, struct.pack("<I", value)


def gguf_card(folder: Path, tensors: Any = (), **metadata: tuple[int, bytes]) -> Any:
    keys = [("general.architecture", 8, text("llama"))]
    keys += [(name.replace("__", "."), *pair) for name, pair in metadata.items()]
    path = folder / "a.gguf"
    path.write_bytes(gguf(keys, list(tensors)))
    return model_card(path)


def words(*names: str) -> tuple[int, bytes]:
    return 9, array(8, len(names), b"".join(map(text, names)))


def test_a_gguf_says_what_it_is(tmp_path: Path) -> None:
    found = gguf_card(
        tmp_path,
        [("blk.0.attn_q.weight", (32, 32), 0, bytes(4096)), ("blk.1.ffn_up.weight", (32, 2), 8, bytes(68)),
         ("ids", (4,), 26, bytes(16)), ("iq", (256,), 16, bytes(66))],
        llama__block_count=number(2), llama__embedding_length=number(32), llama__context_length=number(99),
        llama__attention__head_count=(9, array(4, 2, struct.pack("<2I", 4, 8))),
        llama__attention__head_count_kv=number(2), llama__attention__value_length=number(6),
        llama__rope__freq_base=(6, struct.pack("<f", 500.0)), llama__attn_logit_softcapping=(6, struct.pack("<f", 50.0)),
        tokenizer__ggml__model=(8, text("gpt2")), tokenizer__ggml__tokens=words("a", "<s>", "</s>"),
        tokenizer__ggml__add_bos_token=(7, b"\1"), tokenizer__ggml__bos_token_id=number(1),
        tokenizer__ggml__add_eos_token=(7, b"\1"), tokenizer__ggml__eos_token_id=number(2),
    )  # fmt: skip
    assert (found.architecture, found.kind, found.n_layers) == ("llama", "gguf", 2)
    assert (found.n_heads, found.n_kv_heads, found.d_model, found.d_k, found.d_v) == (
        8,
        2,
        32,
        4,
        6,
    )
    assert (found.vocab_size, found.max_positions, found.softcap) == (3, 99, 50.0)
    assert (found.tokenizer, found.tokenizer_adds) == ("byte-level BPE", "<s> … </s>")
    assert found.dtypes == {"F32": 1024, "IQ2_XXS": 256, "Q8_0": 64, "I32": 4}
    assert found.n_parameters == 1024 + 256 + 64
    assert [layer.has_attention for layer in found.layers] == [True, False]
    assert [layer.kind for layer in found.layers] == ["full_attention", "other"]
    assert [layer.rotary_base for layer in found.layers] == [500.0, None]
    odd = gguf_card(
        tmp_path, llama__attention__head_count=(9, array(6, 1, struct.pack("<f", 4))),
        llama__context_length=(8, text("x")), llama__embedding_length=(7, b"\1"),
    )  # fmt: skip
    assert (odd.n_heads, odd.max_positions, odd.d_model) == (None, None, None)
    for name in ("llama__attention__head_count", "llama__embedding_length"):
        assert gguf_card(tmp_path, **{name: number(4)}).d_k is None
    bare = gguf_card(
        tmp_path, llama__attention__head_count=number(0), llama__embedding_length=number(8)
    )
    assert (bare.n_layers, bare.d_k, bare.n_kv_heads, bare.vocab_size, bare.tokenizer_adds) == (None, None, 0, None, None)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "adds"),
    [
        ({}, None),
        ({"tokenizer__ggml__add_bos_token": (7, b"\0")}, "nothing"),
        ({"tokenizer__ggml__add_bos_token": (7, b"\1"), "tokenizer__ggml__bos_token_id": number(0)}, "a …"),
        ({"tokenizer__ggml__add_bos_token": (7, b"\1"), "tokenizer__ggml__bos_token_id": number(2)}, "nothing"),
        ({"tokenizer__ggml__add_bos_token": (7, b"\1")}, "nothing"),
        ({"tokenizer__ggml__add_bos_token": (7, b"\0"), "tokenizer__ggml__bos_token_id": number(0)}, "nothing"),
        ({"tokenizer__ggml__add_eos_token": (7, b"\1"), "tokenizer__ggml__eos_token_id": number(1)}, "… b"),
        ({"tokenizer__ggml__add_eos_token": (7, b"\1"), "tokenizer__ggml__eos_token_id": (5, struct.pack("<i", -1))}, "nothing"),
    ],
)  # fmt: skip
def test_what_a_gguf_adds_to_a_text(tmp_path: Path, more: Any, adds: str | None) -> None:
    assert (
        gguf_card(tmp_path, tokenizer__ggml__tokens=words("a", "b"), **more).tokenizer_adds == adds
    )
    if more:
        assert gguf_card(tmp_path, **more).tokenizer_adds is None


@pytest.mark.parametrize(
    ("architecture", "pattern", "windowed"),
    [("llama", None, [True] * 4), ("gemma2", None, [True, False] * 2), ("llama", number(4), [True] * 3 + [False]),
     ("llama", (9, array(7, 3, b"\1\0\1")), [True, False, True, False]), ("llama", number(1), [False] * 4)],
)  # fmt: skip
def test_windows_of_gguf_layers(
    tmp_path: Path, architecture: str, pattern: Any, windowed: list[bool]
) -> None:
    keys = [("general.architecture", 8, text(architecture)), (f"{architecture}.block_count", *number(4)),
            (f"{architecture}.attention.sliding_window", *number(8))]  # fmt: skip
    if pattern:
        keys.append((f"{architecture}.attention.sliding_window_pattern", *pattern))
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(keys, [(f"blk.{i}.attn_q.weight", (1,), 0, bytes(4)) for i in range(4)]))
    assert [layer.window for layer in model_card(path).layers] == [8 if is_so else None for is_so in windowed]  # fmt: skip
