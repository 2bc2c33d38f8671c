"""Every option of every command changes something that can be seen, or is refused in one line."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from every_command import write_world
from support import Result
from typer.main import get_command

from attnviz.cli.app import app
from attnviz.cli.rules import RULES, check_effects
from attnviz.errors import UsageError

pytest.importorskip("transformers", reason="needs the extra 'models'")

TEXT = "cute bear cute"
SMALL = ("-w", "random", "--d-model", "8", "--d-k", "4")
MODEL = ("--model", "tiny", "--max-tokens", "28")
BASES: dict[str, tuple[str, ...]] = {
    "explain": (*SMALL, TEXT), "heatmap": (*SMALL, TEXT), "view": ("links", *SMALL, TEXT),
    "page": (*SMALL, TEXT, "-o", "new.html"), "show": ("maps.npz",),
    "compare": (*SMALL, "--token", "0", TEXT, "bear cute"), "generate": (*MODEL, "-n", "2", TEXT),
    "heads": (*SMALL, "--n-heads", "8", "a b c d", "b c d a"), "summary": (*SMALL, TEXT),
    "batch": ("accents.txt", *SMALL, "-o", "new", "-f", "jsonl", "--engine", "serial"),
    "doctor": (), "weights new": ("new.npz", "--d-model", "4", "--d-k", "3"),
    "weights show": ("layer.npz",), "weights convert": ("layer.npz", "new.npz"),
    "model show": ("tiny",), "config show": ("explain",),
}  # fmt: skip
"""Each command as it runs without the option; ``cost`` measures time, which never is the same twice."""
VALUES = {
    "align": "position", "attention": "self", "budget": "0.01", "cmap": "viridis", "color": "always",
    "color-scale": "log", "d-k": "2", "d-model": "6", "decoder-text": "bear", "dpi": "77", "dtype": "bfloat16",
    "encoding": "latin-1", "engine": "library", "fail-above": "0", "figures": "links", "file": "text.txt",
    "font": "none.ttf", "format": "json", "head": "1", "heatmap": "png", "index": "0", "input-format": "jsonl",
    "keep": "weights", "keep-dtype": "float32", "key": "1", "key-tokens": "other.json", "keys": "0-1", "layer": "1",
    "links": "1", "map": "2", "max": "0.5", "max-tokens": "2", "model": "tiny", "n-heads": "2", "n-kv-heads": "3",
    "n-tokens": "1", "output": "out.json", "pattern": "previous", "pool": "mean", "precision": "7",
    "ray-address": "x", "report": "report.json", "rows": "0-0", "scale": "9", "seed": "7", "shard": "0/2",
    "shard-size": "1", "size": "4x4", "stage": "scores", "status": "layer.npz", "temperature": "3",
    "text-column": "n", "title": "other", "token": "1", "tokens": "names.json", "top": "1", "view": "links",
    "weights": "layer.npz", "where": "tokens > 1", "width": "20", "window": "1", "with-head": "1",
    "with-layer": "1", "with-model": "tiny", "with-weights": "layer.npz", "words": "2", "workers": "2",
}  # fmt: skip
EXISTING = ("there.json", "there.html")
SAME = {
    ("generate", "model"): "it is the same model", ("generate", "engine"): "the words are the same, proved",
}  # fmt: skip
UNSEEN = {
    "quiet": "only notices and errors are left out", "strict": "ends at a notice", "help": "is a text of its own",
    "debug": "shows where an error of ours comes from", "max-memory": "is a bound: see test_memory.py",
    "device": "the CPU is what there is", "threads": "changes time alone",
}  # fmt: skip
"""Options whose effect is not in what is written here."""
PICTURE = ("-o", "new.png")
WITH: dict[str, tuple[str, ...]] = {
    "cmap": PICTURE, "color-scale": PICTURE, "dpi": PICTURE, "size": PICTURE, "title": PICTURE, "font": PICTURE,
    "outlines": ("-o", "new.svg"), "temperature": ("--seed", "1"), "keep-dtype": ("--keep", "weights"),
    "key-tokens": ("--tokens", "names.json"), "force": ("-o", "there.json"),
}  # fmt: skip
"""What must stand beside an option for it to mean something."""


@dataclass(frozen=True)
class Done:
    """What a command left: its status, what it printed, and the files it wrote."""

    code: int
    out: str
    err: str
    files: tuple[tuple[str, bytes], ...]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Done]]:
    from attnviz.cli.main import run_guarded

    place = tmp_path_factory.mktemp("options")
    (place / "world").mkdir()
    world = write_world(place / "world")
    (world / "accents.txt").write_text("un ours café\nreading a book\n", encoding="utf-8")
    (world / "text.txt").write_text("another text", encoding="utf-8")
    (world / "names.json").write_text('["a", "b", "c"]', encoding="utf-8")
    (world / "other.json").write_text('["d", "e", "f"]', encoding="utf-8")
    before, kept = Path.cwd(), os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")

    @cache
    def run(*arguments: str) -> Done:
        here = place / "run"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(world, here)
        for name in EXISTING:
            (here / name).write_text("old")
        known = {path.relative_to(here) for path in here.rglob("*")}
        os.chdir(here)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_guarded(list(arguments))
        files = tuple(
            (str(path.relative_to(here)), path.read_bytes())
            for path in sorted(here.rglob("*"))
            if path.is_file() and (path.relative_to(here) not in known or path.name in EXISTING)
        )
        return Done(code, out.getvalue(), err.getvalue(), files)

    yield run
    os.chdir(before)
    if kept is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = kept


def options() -> Iterator[tuple[str, str, bool]]:
    """Yield every command, option, and whether it is a switch."""

    def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if not below:
            yield " ".join(path), command
            return
        for name in below:
            yield from leaves(below[name], (*path, name))

    for name, command in leaves(get_command(app)):
        for parameter in command.params:
            if parameter.param_type_name == "option":
                longest = max(parameter.opts, key=len)
                yield name, longest.removeprefix("--"), bool(parameter.is_flag)


CASES = [case for case in options() if case[1] not in UNSEEN and case[0] != "cost"]


@pytest.mark.parametrize("command", dict.fromkeys(case[0] for case in CASES))
def test_every_option_is_honoured_or_refused(command: str, run: Callable[..., Done]) -> None:
    ignored = []
    for _, option, is_switch in (case for case in CASES if case[0] == command):
        base = [*command.split(), *BASES[command]]
        if option == "file" and TEXT in base:
            base.remove(TEXT)
        beside = WITH.get(option, ())
        if "-o" in base and "-o" in beside:
            base[base.index("-o") + 1] = "there.html" if option == "force" else beside[1]
            beside = ()
        given = (f"--{option}",) if is_switch else (f"--{option}", VALUES[option])
        plain, found = run(*base, *beside), run(*base, *beside, *given)
        if found.code in (2, 3) and found.out == "":
            assert found.err.strip().splitlines()[-1].startswith("attnviz: error: "), found.err
            continue
        is_same = (found.code, found.out, found.files) == (plain.code, plain.out, plain.files)
        if is_same and (command, option) not in SAME:
            ignored.append(option)
    assert ignored == []


def test_no_rule_names_an_option_that_does_not_exist() -> None:
    known = {option.replace("-", "_") for _, option, _ in options()}
    for rule in RULES:
        assert set(rule.options) <= known


def test_what_settings_say_is_never_refused(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNVIZ_PRECISION", "2")
    monkeypatch.setenv("ATTNVIZ_ENGINE", "light")
    assert cli("explain", TEXT, *SMALL, "-f", "json").code == 0


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("engine", {"model": None}), ("d_k", {"weights": "sample"}), ("seed", {"weights": "sample"}),
        ("seed", {"model": "m", "temperature": 0.0}), ("force", {"output": None}), ("dpi", {"output": "a.csv"}),
        ("outlines", {"output": "a.png"}), ("cmap", {"format": "json"}), ("precision", {"output": "a.parquet"}),
        ("text_column", {"inputs": ["a.txt"]}), ("keep_dtype", {"keep": None}), ("ray_address", {"engine": "local"}),
        ("workers", {"engine": "serial", "workers": 2}), ("key_tokens", {"tokens": None}),
    ],
)  # fmt: skip
def test_each_rule_refuses_what_has_no_effect(given: str, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^--{given.replace('_', '-')} "):
        check_effects([given], values)
