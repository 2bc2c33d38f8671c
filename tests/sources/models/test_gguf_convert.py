"""GGUF files become model folders once, whole, quietly, and only where the settings fit the tensors."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cards import number, words
from test_gguf import array, gguf, text

from attnviz.errors import InputError, ResourceError
from attnviz.sources.models import gguf_convert, library
from attnviz.sources.models.gguf import read_gguf


class FakeLibrary:
    """As much of transformers as a conversion uses."""

    def __init__(self, *, refuses: bool = False, writes: bool = True) -> None:
        self.asked: list[Any] = []
        kind = SimpleNamespace(from_pretrained=self._model)
        causal = SimpleNamespace(from_pretrained=self._refuse if refuses else self._model)
        self.AutoModel, self.AutoModelForCausalLM = kind, causal
        self.AutoTokenizer = SimpleNamespace(from_pretrained=self._tokenizer)
        self.writes = writes

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ValueError("no causal model")

    def _model(self, place: str, **named: Any) -> Any:
        sys.stderr.write("progress bar")
        self.asked.append((place, named))
        model = SimpleNamespace(config=SimpleNamespace(quantization_config=1))

        def save(folder: str) -> None:
            assert not hasattr(model.config, "quantization_config")
            assert model.hf_quantizer is None
            (Path(folder) / "config.json").write_text("{}")
            if self.writes:
                (Path(folder) / "model.safetensors").write_bytes(b"x")

        model.save_pretrained = save
        return model

    def _tokenizer(self, place: str, **named: Any) -> Any:
        self.asked.append((place, named))
        os.write(2, b"panicked")
        return SimpleNamespace(save_pretrained=lambda folder: (Path(folder) / "tokenizer.json").write_text("{}"))  # fmt: skip


@pytest.mark.parametrize("refuses", [False, True])
def test_a_gguf_is_converted_once_offline_and_quietly(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    refuses: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    required: list[str] = []
    monkeypatch.setattr(gguf_convert, "require", lambda *names: required.extend(names))
    fake = FakeLibrary(refuses=refuses)
    monkeypatch.setattr(gguf_convert, "load_transformers", lambda: fake)
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], [("t", (4,), 0, bytes(16))]))
    told: list[str] = []
    made = gguf_convert.converted(path, notify=told.append)
    assert sorted(os.listdir(made)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert made.name.endswith(f"-{library.version_of('transformers')}")
    assert required == ["transformers", "accelerate", "gguf"]
    assert told == [f"converting a.gguf once (later runs skip this) into {made.parent}"]
    wanted = {"local_files_only": True, "trust_remote_code": False, "gguf_file": "a.gguf"}
    assert fake.asked == [(str(tmp_path), wanted)] * 2
    assert gguf_convert.converted(path, notify=told.append) == made
    assert len(told) == 1
    assert capfd.readouterr().err == ""


def test_a_conversion_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(gguf_convert, "require", lambda *_: None)
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], [("t", (1000,), 0, bytes(4000))]))
    monkeypatch.setattr(gguf_convert, "load_transformers", lambda: FakeLibrary(writes=False))
    with pytest.raises(InputError, match=r"a\.gguf gave no weights"):
        gguf_convert.converted(path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_convert, "_convert", full)
    with pytest.raises(ResourceError, match="cannot write the converted model: No space left"):
        gguf_convert.converted(path)
    assert os.listdir(tmp_path / "xdg" / "attnviz" / "gguf") == []
    monkeypatch.setattr(gguf_convert.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(ResourceError, match="as float32"):
        gguf_convert.converted(path)
    for free, fits in ((4400, True), (4399, False)):
        monkeypatch.setattr(
            gguf_convert.shutil, "disk_usage", lambda _, f=free: SimpleNamespace(free=f)
        )
        if fits:
            gguf_convert._check_room(read_gguf(path), tmp_path / "x" / "y")
        else:
            with pytest.raises(ResourceError, match=r"takes 0\.0 GB as float32.*XDG_CACHE_HOME"):
                gguf_convert._check_room(read_gguf(path), tmp_path / "x" / "y")


@pytest.mark.parametrize(
    ("name", "limit"),
    [("block_count", 3), ("embedding_length", 32), ("feed_forward_length", 40), ("attention.head_count", 24),
     ("vocab_size", 1024), ("expert_count", 1024), ("context_length", 1 << 32), ("rope.dimension_count", 1024)],
)  # fmt: skip
def test_settings_up_to_what_the_tensors_show(tmp_path: Path, name: str, limit: int) -> None:
    tensors = [("token_embd.weight", (32, 4), 0, bytes(512)), ("blk.0.attn_q.weight", (32, 24), 0, bytes(3072)),
               ("blk.1.ffn_up.weight", (32, 40), 0, bytes(5120)), ("blk.1.ffn_gate.weight", (32, 8), 0, bytes(1024)),
               ("blk.0.attn_q.bias", (99,), 0, bytes(396)), ("blk.2.norm", (5,), 0, bytes(20)),
               ("blk.0.attn_q.weight.attn_q.weight", (7,), 0, bytes(28)), ("blk.9", (5,), 0, bytes(20)),
               ("enc.8.ffn_up.bias", (5,), 0, bytes(20))]  # fmt: skip
    path = tmp_path / "a.gguf"
    others = [one for one in gguf_convert._REQUIRED if one != name]

    def check_pair(*pair: Any) -> None:
        keys = [("general.architecture", 8, text("llama")), (f"llama.{name}", *pair), (f"other.{name}", *number(1 << 31)),
                *((f"llama.{one}", *number(0)) for one in others)]  # fmt: skip
        path.write_bytes(gguf(keys, tensors))
        gguf_convert.check_sizes(read_gguf(path))

    def check(value: int, *, listed: bool = False) -> None:
        if listed:
            check_pair(9, array(10, 2, struct.pack("<2Q", 0, value)))
        else:
            check_pair(10, struct.pack("<Q", value))

    check(limit)
    check(0, listed=True)
    if len(others) == len(gguf_convert._REQUIRED):
        check_pair(8, text("many"))
    else:  # where it is no number, the library would take one of its own
        with pytest.raises(
            InputError, match=rf"a\.gguf does not say llama\.{name}, .* show {limit}: its"
        ):
            check_pair(8, text("many"))
    if name == "context_length":
        return
    for listed in (False, True):
        with pytest.raises(
            InputError, match=f"= {limit + 1}, but its tensors show at most {limit}"
        ):
            check(limit + 1, listed=listed)


def test_words_up_to_twice_the_vectors(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for count, fits in ((8, True), (9, False)):
        keys = [("tokenizer.ggml.tokens", *words(*"abcdefghi"[:count]))]
        path.write_bytes(gguf(keys, [("token_embd.weight", (2, 4), 0, bytes(32))]))
        if fits:
            gguf_convert.check_sizes(read_gguf(path))
        else:
            with pytest.raises(InputError, match="names 9 words, but has vectors for 4"):
                gguf_convert.check_sizes(read_gguf(path))
