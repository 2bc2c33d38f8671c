"""GGUF files become model folders once, whole, quietly, and only where the settings fit the tensors."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file
from test_cards import number, words
from test_gguf import array, gguf, text

from attnviz.errors import InputError, ResourceError
from attnviz.sources.models import gguf_convert, library
from attnviz.sources.models.gguf import read_gguf
from attnviz.sources.models.gguf_accounting import Account, Part


class FakeLibrary:
    """As much of transformers as a conversion uses."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.AutoTokenizer = SimpleNamespace(from_pretrained=self._tokenizer)

    def _tokenizer(self, place: str, **named: Any) -> Any:
        self.asked.append((place, named))
        sys.stderr.write("progress bar")
        os.write(2, b"panicked")
        return SimpleNamespace(save_pretrained=lambda folder: (Path(folder) / "tokenizer.json").write_text("{}"))  # fmt: skip


def write_small(path: Path) -> Path:
    """Write a file that the bounded reader takes, and nothing else."""
    path.write_bytes(gguf([], [("t", (1000,), 0, bytes(4000))]))
    return path


def test_a_gguf_is_converted_once_offline_and_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    required: list[str] = []
    monkeypatch.setattr(gguf_convert, "require", lambda *names: required.extend(names))
    fake = FakeLibrary()
    monkeypatch.setattr(gguf_convert, "load_transformers", lambda: fake)
    monkeypatch.setattr(gguf_convert, "split_as_trained", lambda tokenizer, file: None)
    one = {"a.weight": Part(("t",))}
    monkeypatch.setattr(
        gguf_convert, "account", lambda file: Account(file, {"model_type": "llama"}, one, {})
    )
    path = write_small(tmp_path / "a.gguf")
    told: list[str] = []
    made = gguf_convert.converted(path, notify=told.append)
    assert sorted(os.listdir(made)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert load_file(made / "model.safetensors")["a.weight"].shape == (1000,)
    assert library.version_of("transformers") in made.name
    assert required == ["transformers", "accelerate", "gguf"]
    assert told == [f"converting a.gguf once (later runs skip this) into {made.parent}"]
    wanted = {"local_files_only": True, "trust_remote_code": False, "gguf_file": "a.gguf"}
    assert fake.asked == [(str(tmp_path), wanted)]
    assert gguf_convert.converted(path, notify=told.append) == made
    assert len(told) == 1
    assert capfd.readouterr().err == ""


def test_a_conversion_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(gguf_convert, "require", lambda *_: None)
    path = write_small(tmp_path / "a.gguf")
    with pytest.raises(InputError, match=r"is of the GGUF architecture ''"):
        gguf_convert.converted(path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_convert, "write_model", full)
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
