"""Tokenizer files are tried out in a child once; what passed pays nothing later."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
from fuzz.bombs import TOKENIZERS
from tiny_models import write_tokenizer

from attnviz.errors import InputError
from attnviz.sources.confined.parent import Ending
from attnviz.sources.layers.weights import sample_folder
from attnviz.sources.text import tokenizer_trial
from attnviz.sources.text.tokenize import open_tokenizer


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the children; the cache is an empty one."""
    count: list[int] = []
    real = tokenizer_trial.run_confined

    def counted(*arguments: object, **named: object) -> Ending:
        count.append(1)
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer_trial, "run_confined", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return count


def test_a_pass_is_remembered(tmp_path: Path, started: list[int]) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for _ in range(3):
        assert open_tokenizer(path).tokenize("hello bear").pieces == ("<s>", "hello", "bear")
    assert len(started) == 1
    kept = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert [stat.S_IMODE(file.stat().st_mode) for file in kept] == [0o600]
    path.write_text(path.read_text().replace("bear", "boar"))  # another file
    open_tokenizer(path)
    assert len(started) == 2


def test_a_failure_is_not_remembered(tmp_path: Path, started: list[int]) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="makes its library panic"):
            tokenizer_trial.try_out(TOKENIZERS["panic"], name="t.json")
    assert len(started) == 2


def test_without_a_cache_the_child_runs_again(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    write_tokenizer(tmp_path)
    for _ in range(2):
        assert len(open_tokenizer(tmp_path / "tokenizer.json").tokenize("hello")) == 2
    assert len(started) == 2


def test_the_bundled_tokenizer_never_pays(started: list[int]) -> None:
    path = sample_folder() / "tokenizer.json"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer_trial.SAMPLE_SHA256
    open_tokenizer(path)
    assert started == []


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (Ending(-6, None), r"end its process \(status -6; its limit is \d+ bytes of memory\)"),
        (Ending(0, None, is_late=True), "within 1 s of processor time"),
        (Ending(0, {"memory": True}), "takes more than"),
        (Ending(0, {"fault": "no\x1b good"}), "t.json does not work: no"),
        (Ending(0, {"what": "is this"}), "takes more than"),
    ],
)
def test_whatever_comes_back_but_a_pass_is_an_error(
    started: list[int], monkeypatch: pytest.MonkeyPatch, end: Ending, reason: str
) -> None:
    monkeypatch.setattr(tokenizer_trial, "run_confined", lambda *_, **__: end)
    with pytest.raises(InputError, match=reason):
        tokenizer_trial.try_out(b"{}", name="t.json")


def test_what_the_library_makes_of_a_models_files_is_tried_too(
    tmp_path: Path, started: list[int]
) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models import tokenizer

    write_tokenizer(tmp_path)
    for _ in range(2):
        tokenizer.open_tokenizer(tmp_path)
    assert len(started) <= 2  # the file, and what the library writes of it where that differs
    assert os.listdir(tmp_path / "cache" / "attnviz" / "tokenizer")
