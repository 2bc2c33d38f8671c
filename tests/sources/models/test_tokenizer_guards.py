"""Tokenizers that are too large, lie, fail or panic: one line each, and nothing on stderr."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import write_model, write_tokenizer

from attnviz.errors import InputError, ResourceError
from attnviz.sources.confined import silence
from attnviz.sources.models import library, tokenizer
from attnviz.sources.text import long_text, tokenize, tokenizer_trial
from attnviz.sources.text.labels import Family


class PanicException(BaseException):
    """Named as the library's own."""


def raising(fault: BaseException) -> Any:
    def work(*_: Any, **__: Any) -> Any:
        os.write(2, b"thread panicked")
        raise fault

    return work


def test_faults_and_panics_of_the_library_are_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    for fault, told in ((ValueError("a\n  b"), "it does not work: a b"), (ValueError(), "it does not work: ValueError"),
                        (ValueError("x" * 300), "it does not work: " + "x" * 200),
                        (PanicException(), "it makes its library panic: it is damaged or hostile"),
                        (InputError("ours"), "ours")):  # fmt: skip
        with pytest.raises(InputError) as caught:
            tokenizer.guard("it", raising(fault), hush=True)
        assert str(caught.value) == told
    assert capfd.readouterr().err == ""
    with pytest.raises(ResourceError, match="memory"):
        tokenizer.guard("it", raising(MemoryError()), hush=True)
    with pytest.raises(InputError):
        tokenizer.guard("it", raising(ValueError()))
    assert capfd.readouterr().err == "thread panicked"
    assert tokenizer.guard("it", lambda: 3, hush=True) == 3


@pytest.mark.parametrize("step", ["read_family", "tokens_of", "tokens_of_any_length"])
def test_what_the_library_says_on_stderr_is_kept_from_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], step: str
) -> None:
    write_tokenizer(tmp_path)
    raw = tokenizer.open_raw(tmp_path / "tokenizer.json")
    opened = tokenizer.describe(raw)
    monkeypatch.setattr(tokenizer, step, raising(PanicException()))
    with pytest.raises(InputError, match="the tokenizer makes its library panic"):
        opened.tokenize("a") if step == "tokens_of_any_length" else tokenizer.describe(raw)
    assert capfd.readouterr().err == ""


def test_a_process_without_stderr_can_still_be_hushed(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: int) -> int:
        raise OSError

    monkeypatch.setattr(silence.os, "dup", closed)
    assert tokenizer.guard("it", lambda: 3, hush=True) == 3


def test_what_the_library_cannot_build_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_model(tmp_path / "tiny")
    loads: list[Any] = [raising(ValueError("no"))]

    def load(*given: Any, **named: Any) -> Any:
        assert given == (str(made),)
        assert named == {"local_files_only": True, "trust_remote_code": False}
        return loads[0](*given, **named)

    fake = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=load))
    monkeypatch.setattr(tokenizer, "load_transformers", lambda: fake)
    opened = tokenizer.open_tokenizer(made)
    assert opened.notices[0].startswith("tokenizer.json is used as it is")
    assert opened.tokenize("hello").pieces == ("<s>", "hello")
    slow = SimpleNamespace()
    for loads[0] in (
        lambda *_, **__: slow,
        lambda *_, **__: SimpleNamespace(backend_tokenizer=slow),
    ):
        with pytest.raises(InputError, match="tiny has a tokenizer without source offsets"):
            tokenizer.open_tokenizer(made)
    (made / "tokenizer.json").unlink()
    loads[0] = raising(ValueError("no"))
    with pytest.raises(InputError, match="the tokenizer does not work: no"):
        tokenizer.open_tokenizer(made)


def test_tokenizer_files_at_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_model(tmp_path / "tiny")
    path = made / "tokenizer.json"
    n_bytes = path.stat().st_size
    assert (tokenizer._MAX_BYTES, tokenizer_trial._MAX_PADDING) == (64 << 20, 1 << 20)
    monkeypatch.setattr(tokenizer, "_MAX_BYTES", n_bytes)
    tokenizer.check_files(made)
    monkeypatch.setattr(tokenizer, "_MAX_BYTES", n_bytes - 1)
    for work in (lambda: tokenizer.check_files(made), lambda: tokenizer.open_raw(path)):
        with pytest.raises(
            InputError, match=f"tokenizer.json has {n_bytes} bytes: at most {n_bytes - 1}"
        ):
            work()
    monkeypatch.undo()
    (made / "my-tokens").mkdir()
    tokenizer.check_files(made)
    monkeypatch.setattr(tokenizer, "_MAX_BYTES", n_bytes)
    (made / "added_tokens.json").write_bytes(bytes(n_bytes + 1))
    with pytest.raises(
        InputError, match=rf"added_tokens\.json has {n_bytes + 1} bytes: at most {n_bytes}"
    ):
        tokenizer.check_files(made)
    (made / "added_tokens.json").unlink()
    (made / "tokenizer_config.json").unlink()
    tokenizer.check_files(made)
    monkeypatch.undo()
    for length, is_read in ((1 << 20, True), ((1 << 20) + 1, False)):
        write_tokenizer(made, padding=length)
        if is_read:
            assert tokenizer.open_raw(path).padding is None
        else:
            with pytest.raises(InputError, match=f"pads every text to {length} tokens"):
                tokenizer.open_raw(path)


def test_ids_up_to_eight_times_the_words_and_a_spare(tmp_path: Path) -> None:
    class Vocabulary:
        def __init__(self, *ids: int) -> None:
            self.ids = ids

        def get_vocab(self, *, with_added_tokens: bool) -> dict[str, int]:
            assert with_added_tokens
            return {f"w{i}": i for i in self.ids}

    tokenizer.check_ids("x", Vocabulary())
    tokenizer.check_ids("x", Vocabulary(0, 16 + (1 << 16)))
    with pytest.raises(InputError, match="x has 2 words and the id 65553: at most 65552"):
        tokenizer.check_ids("x", Vocabulary(0, 17 + (1 << 16)))


def test_what_a_tokenizer_adds_and_is_called() -> None:
    def added(*spans: Any) -> str:
        pieces = tuple(f"p{i}" for i in range(len(spans)))
        return tokenizer.added_by(SimpleNamespace(spans=spans, pieces=pieces))  # type: ignore[arg-type]

    span = (0, 1)
    assert added(None, span, None) == "p0 … p2"
    assert added(span, span) == "nothing"
    assert added(None, None, span) == "p0 p1 …"
    assert added(span, None) == "… p1"
    assert added(span, None, span) == "nothing"
    assert added(None) == "… p0"
    assert added() == "nothing"
    named = [
        tokenizer.family_name(Family(kind, "X")) for kind in ("byte-level", "metaspace", "other")
    ]  # type: ignore[arg-type]
    assert named == ["byte-level X", "SentencePiece X", "X"]


def test_a_layers_tokenizer_that_fails_or_panics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    n_bytes = path.stat().st_size
    monkeypatch.setattr(tokenize, "_MAX_TOKENIZER_BYTES", n_bytes)
    opened = tokenize.open_tokenizer(path, n_rows=7)
    assert opened.tokenize("hello bear").pieces == ("<s>", "hello", "bear")
    assert opened.tokenize("a\ud800b").notices
    with pytest.raises(InputError, match="gives id 6, but the embedding has 6 rows"):
        tokenize.open_tokenizer(path, n_rows=6).tokenize("bear")
    for fault, told in (
        (ValueError("x"), "cannot cut this text: x"),
        (PanicException(), "library panic"),
    ):
        monkeypatch.setattr(long_text, "tokens_of_any_length", raising(fault))
        with pytest.raises(InputError, match=told):
            opened.tokenize("hello")
    monkeypatch.setattr(long_text, "tokens_of_any_length", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        opened.tokenize("hello")
    monkeypatch.setattr(tokenize, "_MAX_TOKENIZER_BYTES", n_bytes - 1)
    with pytest.raises(InputError, match=f"has {n_bytes} bytes: a tokenizer file has at most"):
        tokenize.open_tokenizer(path)
    with pytest.raises(InputError, match=r"cannot read the tokenizer gone\.json: No such file"):
        tokenize.open_tokenizer(tmp_path / "gone.json")
    monkeypatch.undo()
    path.write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json does not work"):
        tokenize.open_tokenizer(path)
    import tokenizers

    # what passed the trial, and panics here all the same
    monkeypatch.setattr(tokenize, "try_out", lambda *_, **__: "")
    for fault, told in (
        (ValueError("x"), "is not a tokenizer file: x"),
        (PanicException(), "panic"),
    ):
        fake = SimpleNamespace(from_buffer=raising(fault))
        monkeypatch.setattr(tokenizers, "Tokenizer", fake)
        with pytest.raises(InputError, match=told):
            tokenize.open_tokenizer(path)


def test_versions_of_what_is_not_there() -> None:
    assert library.version_of("no-such-package") == ""
    assert library.version_of("numpy").count(".") >= 2
