"""Completion: what is offered, that it is safe, and that it is quick."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnviz.cli.main import run_guarded

ROOT = Path(__file__).parents[2]
Answer = Callable[..., tuple[str, int]]
Offered = Callable[..., list[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Answer:
    """Ask the program as a shell's script does: by variables alone."""

    def ask(shell: str, **variables: str) -> tuple[str, int]:
        monkeypatch.setenv("_ATTNVIZ_COMPLETE", f"complete_{shell}")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        code = run_guarded([])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        assert err == ""
        return out, code

    return ask


@pytest.fixture
def offered(answer: Answer) -> Offered:
    def ask(*words: str) -> list[str]:
        line = "\n".join(["attnviz", *map(shlex.quote, words[:-1]), words[-1]])
        return answer("bash", COMP_WORDS=line, COMP_CWORD=str(len(words)))[0].split()

    return ask


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["expl"], ["explain"]),
        (["weights", "s"], ["show"]),
        (["explain", "--he"], ["--head", "--help"]),
        (["explain", "--no-c"], ["--no-causal"]),
        (["explain", "--head", ""], ["all", "mean", "auto", "0"]),
        (["explain", "-H", "m"], ["mean"]),
        (["explain", "-w", "sample-8", "--head", "7"], ["7"]),
        (["explain", "--weights=sample-8", "--head", "7"], ["7"]),
        (["explain", "--weights", "=", "sample-8", "--head", "7"], ["7"]),
        (["explain", "-w", "random", "--n-heads", "3", "--head", "2"], ["2"]),
        (["explain", "-w", "random", "--n-heads", "3", "--head", "3"], []),
        (["summary", "--head", "m"], []),
        (["explain", "--layer", ""], ["all", "0"]),
        (["compare", "a", "--with-weights", "sample-8", "--with-head", "5"], ["5"]),
        (["explain", "--stage", "weights,s"], ["weights,scores", "weights,scaled"]),
        (["explain", "--stage", "x"], ["x"]),
        (["explain", "--stage", "weights,w"], []),
        (["heatmap", "--stage", "s"], ["scores", "scaled"]),
        (["explain", "-f", "js"], ["json", "jsonl"]),
        (["explain", "--format=js"], ["json", "jsonl"]),
        (["explain", "--format", "="], ["csv"]),
        (["batch", "-f", ""], ["parquet", "jsonl"]),
        (["explain", "--device", ""], ["auto", "cpu", "cuda", "mps"]),
        (["explain", "--scale", ""], ["none"]),
        (["view", "n"], ["neuron"]),
        (["view", "neuron", ""], []),
        (["heads", "--pattern", "s"], ["self", "special", "same"]),
        (["heatmap", "--cmap", "vi"], ["viridis", "vik"]),
        (["summary", "--figures", "entropy,l"], ["entropy,links"]),
        (["explain", "--precision", ""], []),
        (["explain", "--", "--he"], []),
        (["explain", "--nothing", "--he"], ["--head", "--help"]),
        (["nothing", "--ver"], ["--version"]),
        (["weights", "show", "samp"], ["sample"]),
        (["config", "show", "exp"], ["explain"]),
        (["config", "show", "weights", "n"], ["new"]),
        (["config", "show", "nothing", ""], []),
        (["config", "show", "nothing", "more", ""], []),
        (["batch", "--keep", "q,v,w"], ["q,v,weights"]),
        (["batch", "--engine", ""], ["local", "ray", "serial"]),
        (["weights", "new", "--words", ""], []),
        (["doctor", ""], []),
    ],
)
def test_what_is_offered(here: Path, offered: Offered, words: list[str], told: list[str]) -> None:
    found = offered(*words)
    assert (found[:1] if told == ["csv"] else found) == told


def test_names_are_those_there_are(here: Path, offered: Offered) -> None:
    from attnviz import registry
    from attnviz.render.views import heatmap
    from attnviz.sources.layers.weights import SAMPLES

    assert offered("view", "") == [*registry.names("views")]
    assert {*SAMPLES, "random"} == set(offered("explain", "-w", ""))
    assert set(offered("heatmap", "--stage", "")) == set(heatmap.STAGES)


def test_files(here: Path, offered: Offered) -> None:
    for name in ("mine.npz", "notes.md", ".hidden.npz", "-x.npz", "deep/er/one.safetensors",
                 "deep/er/read.me", "two/a.npz", "two/b.pt"):  # fmt: skip
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    assert offered("explain", "-w", "m") == ["mine.npz"]
    assert offered("explain", "-w", "./") == ["./-x.npz", "./deep/", "./mine.npz", "./two/"]
    assert "./-x.npz" in offered("explain", "-w", "./-")
    assert offered("explain", "-w", "d") == ["deep/er/one.safetensors"]
    assert offered("explain", "-w", "tw") == ["two/", "two/a.npz", "two/b.pt"]
    assert offered("explain", "-w", ".h") == [".hidden.npz"]
    assert offered("weights", "convert", "mine.npz", "two/a") == ["two/a.npz"]
    assert offered("explain", "--file", "n") == ["notes.md"]
    assert offered("explain", "-w", "nowhere/") == []
    assert offered("heatmap", "--font", "n") == ["notes.md"]
    assert offered("explain", "-o", "n") == ["notes.md"]
    (here / "texts.txt").touch()
    (here / "m.gguf").touch()
    assert offered("batch", "a.txt", "t") == ["texts.txt", "two/"]
    assert offered("model", "show", "m") == ["m.gguf"]
    assert offered("explain", "-m", "m") == ["m.gguf"]
    (here / "empty").mkdir()
    assert offered("explain", "-w", "e") == ["empty"]
    (here / "loop").symlink_to(".")
    assert offered("explain", "-w", "lo")[0] == "loop/"


def test_models_and_weight_files(here: Path, offered: Offered) -> None:
    (here / "tiny").mkdir()
    (here / "tiny/config.json").write_text('{"num_hidden_layers": 3, "num_attention_heads": 2}')
    (here / "tiny/model.safetensors").touch()
    assert offered("explain", "--model", "tiny", "--layer", "")[-3:] == ["0", "1", "2"]
    assert offered("explain", "-m", "tiny", "--head", "")[-2:] == ["0", "1"]
    assert offered("explain", "-m", "ti") == ["tiny"] or "tiny/" in offered("explain", "-m", "ti")
    (here / "tiny/config.json").write_text('{"text_config": {"n_layer": 2}, "n_head": true}')
    assert offered("explain", "-m", "tiny", "--layer", "")[-2:] == ["0", "1"]
    assert offered("explain", "-m", "tiny", "--head", "")[-1] == "auto"
    assert offered("explain", "-m", "none", "--layer", "") == ["all"]
    for broken in ("[", "[]", '{"num_hidden_layers": 1e400}', "{" * 100000):
        (here / "tiny/config.json").write_text(broken)
        assert offered("explain", "-m", "tiny", "--layer", "") == ["all"]
    for header in (b'{"__metadata__":{"n_heads":"4"}}', b"{", b"[]", b"[" * 90000, b""):
        (here / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        heads = offered("explain", "-w", "x.safetensors", "--head", "")[3:]
        assert heads == (["0", "1", "2", "3"] if b"4" in header else ["0"])
    (here / "x.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert offered("explain", "-w", "x.safetensors", "--head", "0") == ["0"]
    (here / "attnviz.toml").write_text('weights = "sample-8"\n')
    assert offered("explain", "--head", "7") == ["7"]
    (here / "attnviz.toml").write_text("weights = ")
    assert offered("explain", "--head", "7") == []


HOSTILE = ("$(touch x).npz", "`touch x`.npz", "a b.npz", 'q".npz', "q'.npz", "\x1b[31m.npz",
           "n\nl.npz", "a;b.npz", "a:b.npz", "a(b.npz", "\udce9.npz", "\u202ex.npz", "a&b.npz")  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_names_that_a_shell_would_run_are_not_offered(
    here: Path, answer: Answer, shell: str
) -> None:
    for name in HOSTILE:
        (here / name).touch()
    (here / "good.npz").touch()
    (here / "猫.npz").touch()
    text, code = answer(
        shell,
        COMP_WORDS="attnviz\nexplain\n-w\n",
        COMP_CWORD="3",
        _TYPER_COMPLETE_ARGS="attnviz explain -w ",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert code == 0
    assert "good.npz" in text
    assert "猫.npz" in text
    for mark in ("touch", ";", "&", "\x1b", "\u202e", "a b", "\udce9"):
        assert mark not in text


def test_nothing_given_breaks_it(here: Path, answer: Answer) -> None:
    for words in (
        "attnviz explain 'open", 'attnviz explain "', "attnviz explain \\", "attnviz", "",
        "attnviz -w", "attnviz explain -w -w -w", "attnviz \x1b", "attnviz explain --=", "a 'b' \"c",
    ):  # fmt: skip
        for shell in ("bash", "zsh", "fish", "pwsh"):
            for place in ("0", "1", "99", "x", "") if shell == "bash" else ("",):
                text, code = answer(
                    shell,
                    COMP_WORDS=words.replace(" ", "\n"),
                    COMP_CWORD=place,
                    _TYPER_COMPLETE_ARGS=words,
                    _TYPER_COMPLETE_FISH_ACTION="get-args",
                )
                assert code == 0
                assert "\x1b" not in text


def test_zsh_can_read_every_help_text(here: Path, answer: Answer) -> None:
    """Between the outer brackets each row is two quoted strings, with nothing that ends them."""
    for words in ("attnviz ", "attnviz explain --", "attnviz batch --", "attnviz view "):
        text, _ = answer("zsh", _TYPER_COMPLETE_ARGS=words)
        rows = text.removeprefix("_arguments '*: :((").removesuffix("))'\n").split("\n")
        assert len(rows) > 3
        for row in rows:
            assert re.fullmatch(r'"[^"()\n]+"(:"([^"()\n]|"")*")?', row), row
            assert row.replace("''", "").count("'") == 0


def test_fish_is_told_whether_there_is_anything(here: Path, answer: Answer) -> None:
    ask = {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert answer("fish", **ask, _TYPER_COMPLETE_ARGS="attnviz view ") == ("", 0)
    assert answer("fish", **ask, _TYPER_COMPLETE_ARGS="attnviz explain ") == ("", 1)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_script_works_in_bash(here: Path) -> None:
    (here / "bin").mkdir()
    command = here / "bin/attnviz"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m attnviz "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(_ATTNVIZ_COMPLETE=source_bash attnviz)"\n'
        "COMP_WORDS=(attnviz explain --weights sample-8 --head ''); COMP_CWORD=5\n"
        "_attnviz_completion attnviz; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{here}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["all", "mean", "auto", *"01234567"], done.stderr


def cpu_s(code: str, **more: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        check=True, capture_output=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_it_is_as_quick_as_help(here: Path) -> None:
    """Neither the libraries of numbers nor those of the parser are loaded; little more is done."""
    (here / "tiny").mkdir()
    (here / "tiny/config.json").write_text('{"num_hidden_layers": 3}')
    ask = {
        "_ATTNVIZ_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "attnviz explain --model tiny --layer ",
    }
    run = "from attnviz.cli.main import run_guarded\nrun_guarded({})"
    look = (
        "\nimport sys\nfound = {'numpy', 'torch', 'pydantic', 'rich'} & set(sys.modules)\n"
        "assert not found, found"
    )
    ours = min(cpu_s(run.format([]) + look, **ask) for _ in range(3))
    helps = min(cpu_s(run.format(["--help"])) for _ in range(3))
    assert ours < 1.4 * helps
