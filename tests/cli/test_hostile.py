"""Nothing that came from outside steers a terminal: texts, names, settings, options, complaints.

Every command runs in this process on streams that say they are a terminal (and once more on streams
that say they are not, where the formats alone must be safe). The full count, 10,000 strings through
every command, is ``slow``.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from cli.test_terminal import on_terminal
from every_command import CALLS, Call, write_world
from hostile import SEQUENCES, Seen, see, strings
from safetensors.numpy import load_file, save_file
from sources.models.test_gguf import array, gguf, text
from tiny_models import write_model
from typer.main import get_command

from attnviz.cli.app import app
from attnviz.sources.files import plan_content

EVIL = "\x1b]0;x\x07\x9b31m\u202e\r\n[red][/]{x}%s\u200b\ufe0f\xe9猫\\\udce9\x7f\t"
WITH_TEXT = [call for call in CALLS if call.takes_text]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def there(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))


def argument(hostile: str) -> str:
    """Return a text that can be an argument: no NUL, no halves of characters."""
    return hostile.replace("\0", "\x01").encode("utf-8", "replace").decode()


def filled(call: Call, words: str, out: Path, *more: str) -> list[str]:
    """Return a call with its text, a new file where it writes one, and options put in."""
    ending = ".html" if call.name == "page" else (call.endings or ("",))[0]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    arguments = call.fill(words, str(out / f"made{ending}"))
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at], *more, *arguments[at:]]


def run_all(
    words: list[str],
    place: Path,
    *,
    turn: int,
    is_terminal: bool,
    places: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Send strings through every command, each in another of its formats; return what is wrong."""
    faults: list[str] = []
    for number, call in enumerate(WITH_TEXT):
        formats = call.formats or ("",)
        format_name = formats[(turn + number) % len(formats)]
        asked = ("--format", format_name) if format_name else ()
        line = " ".join(map(argument, words))
        arguments = [places.get(a, a) for a in filled(call, line, place / "out", *asked)]
        seen = see(arguments, is_terminal=is_terminal)
        if seen.code:
            faults.append(f"{call.name}: exit code {seen.code}: {seen.err}")
        kept = {"csv": "\n" if is_terminal else "\n\r\t", "tsv": "\n\t"}.get(format_name, "\n")
        faults += seen.faults(allowed=kept)
    return faults


@pytest.mark.parametrize("turn", range(3))
def test_no_string_steers_a_terminal(turn: int, tmp_path: Path) -> None:
    words = [*strings(3, seed=turn), *SEQUENCES[turn::5]]
    assert run_all(words, tmp_path, turn=turn, is_terminal=not turn % 2) == []


def put_words(words: list[str], place: Path) -> dict[str, str]:
    """Write a layer and a model whose vocabulary are these words, each one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = ["[UNK]", *words]
    draw = np.random.default_rng(0).standard_normal
    arrays: dict[str, Any] = {f"w_{name}": draw((6, 4)) for name in "qkv"}
    arrays["embedding"] = draw((len(vocabulary), 6))
    np.savez(place / "words.npz", **arrays, vocab=np.array(vocabulary), n_heads=np.array("2"))
    folder = place / "model"
    if not folder.exists():
        write_model(folder, vocab_size=128, max_position_embeddings=128)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.embed_tokens.weight"] = draw((128, 32)).astype(np.float32)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {word: i for i, word in enumerate(vocabulary)}
    cutter = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    cutter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cutter.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return {"layer.npz": str(place / "words.npz"), "tiny": str(folder), "28": "100"}


@pytest.mark.slow  # 10,000 strings in all, each a token, through every command that takes a text
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_strings_through_every_command(part: int, tmp_path: Path, world: Path) -> None:
    n_strings = 0
    for turn in range(part * 20, part * 20 + 20):
        drawn = map(argument, strings(54, seed=1000 + turn))
        words = list(dict.fromkeys("".join(word.split()) or "x" for word in drawn))
        n_strings += len(words)
        places = put_words(words, tmp_path)
        is_terminal = bool(turn % 2)
        assert run_all(words, tmp_path, turn=turn, is_terminal=is_terminal, places=places) == []
    assert n_strings > 1000


def options() -> Iterator[tuple[Call, str]]:
    """Yield every option that takes a value, of every command, with a call of that command."""
    found: set[tuple[tuple[str, ...], str]] = set()
    for call in CALLS:
        command, path = get_command(app), call.arguments[:0]
        for word in call.arguments:
            if word not in getattr(command, "commands", {}):
                break
            command, path = command.commands[word], (*path, word)
        if call.name in ("cost", "explain model"):  # the one is slow, the other here already
            continue
        for parameter in command.params:
            name = max(parameter.opts, key=len)
            if name.startswith("--") and not parameter.is_flag and (path, name) not in found:
                found.add((path, name))
                yield call, name


def run_options(chosen: list[tuple[Call, str]], place: Path) -> list[str]:
    faults: list[str] = []
    for number, (call, name) in enumerate(chosen):
        more = ("--debug",) if number % 2 else ()
        arguments = filled(call, "a bear", place / "out", name, argument(EVIL), *more)
        faults += see(arguments, is_terminal=True).faults()
    return faults


def test_no_value_of_an_option_steers_a_terminal(tmp_path: Path) -> None:
    once = {name: (call, name) for call, name in options()}
    assert len(once) > 50
    assert run_options(list(once.values()), tmp_path) == []


@pytest.mark.slow  # every option of every command
def test_no_value_of_any_option_steers_a_terminal(tmp_path: Path) -> None:
    every = list(options())
    assert len(every) > 150
    assert run_options(every, tmp_path) == []


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_no_mistaken_word_steers_a_terminal(debug: tuple[str, ...]) -> None:
    evil = argument(EVIL) + "?"
    for arguments in (
        [evil], [f"--{evil}"], ["explain", f"--{evil}", "a"], ["explain", f"-{evil}"],
        ["explain", "a", evil], ["view", evil, "a"], ["weights", evil], ["config", "show", evil],
        ["weights", "show", evil], ["weights", "convert", evil, "x.npz"], ["model", "show", evil],
        ["weights", "new", f"{evil}.npz", "--d-k", "0"], ["batch", evil, "-o", "nothing"],
        ["batch", "--status", evil], ["explain", "--file", evil], ["page", "a", "-o", evil],
    ):  # fmt: skip
        seen = see([*arguments[:1], *debug, *arguments[1:]], is_terminal=True)
        assert seen.code in (2, 3)
        assert seen.faults() == []


def file_names() -> list[str]:
    """Return hostile names that a file can have."""
    made = [name.replace("/", "_")[:40] for name in (argument(EVIL), *strings(1, seed=5))]
    return [argument(name).strip(" .") or "x" for name in made]


def evil_layer() -> tuple[dict[str, Any], dict[str, str]]:
    """Return arrays with hostile names beside a layer's own, and metadata as hostile."""
    words = [argument(word) + str(i) for i, word in enumerate([EVIL, *strings(20, seed=6)])]
    draw = np.random.default_rng(0).standard_normal
    arrays = {f"w_{n}": draw((6, 4)) for n in "qkv"}
    arrays |= {"embedding": draw((len(words), 6))}
    arrays |= {argument(name): np.ones((1, 1)) for name in strings(5, seed=7)}
    return arrays, {"vocab": json.dumps(words), "origin": argument(EVIL), "n_heads": "2"}


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_no_name_in_a_weight_file_steers_a_terminal(tmp_path: Path, ending: str) -> None:
    arrays, metadata = evil_layer()
    words = json.loads(metadata["vocab"])
    for name in file_names():
        path = tmp_path / f"{name}{ending}"
        content = plan_content(path, arrays, metadata)
        with open(path, "wb") as file:
            content.writers[""](file)
        for format_name in ("table", "json", "markdown", "latex"):
            found = see(["weights", "show", str(path), "-f", format_name], is_terminal=False)
            assert (found.code, found.faults()) == (0, [])
        to = tmp_path / f"made{ending}"
        for arguments in (
            ["explain", " ".join(words[3:9]), "-w", str(path), "-f", "plain"],
            ["explain", "unknown", "-w", str(path)],
            ["summary", " ".join(words[3:9]), "-w", str(path), "-f", "plain"],
            ["heads", " ".join(words[3:9]), "-w", str(path)],
            ["weights", "convert", str(path), str(to), "--force"],
            ["weights", "convert", str(path), str(tmp_path / "folder")],
            ["explain", "a", "-w", str(path), "--n-heads", "3"],
            ["explain", "a", "-w", str(path), "--layer", "9"],
        ):
            assert see(arguments, is_terminal=False).faults() == []
        path.write_bytes(path.read_bytes()[:-9])
        assert see(["weights", "show", str(path), "--debug"], is_terminal=False).faults() == []
        path.unlink()


def test_no_name_in_a_model_steers_a_terminal(tmp_path: Path, world: Path) -> None:
    evil = EVIL.encode("utf-8", "replace").decode()
    changes: list[dict[str, Any]] = [
        {"model_type": evil}, {"architectures": [evil]}, {"_name_or_path": evil, "x" + evil: 1},
        {"dtype": evil}, {"rope_scaling": {"rope_type": evil}}, {"hidden_act": evil},
        {"auto_map": {evil: evil}}, {"num_attention_heads": evil}, {"layer_types": [evil, evil]},
        {"quantization_config": {"quant_method": evil}},
    ]  # fmt: skip
    for name, change in zip([*file_names(), *"abcdefg"], changes):
        folder = tmp_path / name
        shutil.copytree(world / "tiny", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | change))
        vocabulary = json.loads((folder / "tokenizer.json").read_text())
        vocabulary["model"]["vocab"] |= {evil: 7}
        vocabulary["added_tokens"] += [{**vocabulary["added_tokens"][1], "id": 8, "content": evil}]
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        for arguments in (
            ["model", "show", str(folder)],
            ["explain", f"hello {evil}", "--model", str(folder), "-f", "plain"],
            ["generate", "hello", "--model", str(folder), "-n", "2", "-f", "plain"],
        ):
            assert see(arguments, is_terminal=False).faults() == []


def test_no_name_in_a_gguf_file_steers_a_terminal(tmp_path: Path) -> None:
    evil = EVIL.encode("utf-8", "replace").decode()
    keys = [
        ("general.architecture", 8, text(evil)), ("general.name", 8, text(evil)),
        (evil, 8, text(evil)), ("tokenizer.ggml.tokens", 9, array(8, 2, text(evil) + text("b"))),
    ]  # fmt: skip
    data = np.ones((2, 2), "<f4").tobytes()
    for number, made in enumerate((
        gguf(keys, [(evil, (2, 2), 0, data)]), gguf([keys[0], keys[0]]), gguf(keys, n_keys=9),
        gguf([(evil, 99, b"")]), gguf(tensors=[(evil, (2, 2), 77, data)]),
    )):  # fmt: skip
        path = tmp_path / f"{file_names()[number % 2]}{number}.gguf"
        path.write_bytes(made)
        for arguments in (["model", "show", str(path)], ["explain", "a", "--model", str(path)]):
            seen = see([*arguments, "--debug"], is_terminal=True)
            assert seen.code in (0, 3)
            assert seen.faults() == []


def test_no_setting_steers_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = EVIL.encode("utf-8", "replace").decode()
    quoted = json.dumps(evil).replace("\x7f", "\\u007f")
    folder = tmp_path / file_names()[0]
    folder.mkdir()
    monkeypatch.chdir(folder)
    ends: list[Seen] = []
    for line in (
        f"{quoted} = 1", f"head = {quoted}", f"[{quoted}]\nhead = 1", f"[explain]\n{quoted} = 1",
        f"weights = {quoted}", 'head = "\x1b"', "= \x9b", f"precision = {quoted}", f"color = {quoted}",
        'head = "猫\u0301 [red]"', "output = '[red]'",
    ):  # fmt: skip
        Path("attnviz.toml").write_text(line)
        ends += [
            see(["config", "show"], is_terminal=True),
            see(["explain", "a", "-w", "random", "--debug"], is_terminal=True),
            see(["explain", "--help"], is_terminal=True),
        ]
    Path("attnviz.toml").unlink()
    for name in ("ATTNVIZ_HEAD", "ATTNVIZ_WEIGHTS", "ATTNVIZ_COLOR", f"ATTNVIZ_{argument(EVIL)}"):
        monkeypatch.setenv(name, argument(EVIL))
        ends += [
            see(["config", "show"], is_terminal=True),
            see(["explain", "a"], is_terminal=True),
        ]
        monkeypatch.delenv(name)
    assert [fault for seen in ends for fault in seen.faults()] == []


def test_no_input_of_a_batch_steers_a_terminal(tmp_path: Path) -> None:
    evil = [EVIL, *strings(6, seed=11)]
    rows = [{"text": word, "id": word, word: word} for word in evil]
    lines = {
        ".txt": "\n".join(argument(word).replace("\n", "") for word in evil).encode()
        + b"\n\xff\xfe\n",
        ".jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode() + b'{"text": \x1b}\n',
        ".csv": b'text,"\x1b[2J"\r\n"a \x9b","\x1b"\r\n"b\n\x1b]0;x\x07"\r\n',
    }
    for (ending, content), name in zip(lines.items(), [*file_names(), "a"]):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(content)
        out = tmp_path / f"out{ending}{name}"
        for arguments in (
            ["batch", str(path), "--dry-run", "-w", "layer.npz"],
            ["batch", str(path), "-o", str(out), "-f", "jsonl", "-w", "layer.npz", "--engine", "serial",
             "--report", str(tmp_path / f"{name}.md")],
            ["batch", "--status", str(out)],
            ["batch", str(path), "-o", str(out), "-f", "jsonl", "-w", "random", "--engine", "serial"],
            ["batch", str(path), "--text-column", argument(EVIL), "--dry-run", "-w", "layer.npz"],
        ):  # fmt: skip
            assert see(arguments, is_terminal=False).faults() == []


def test_what_libraries_say_by_themselves_is_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, a print, a log record, an exception that is no Exception."""

    class Panic(BaseException):
        pass

    def talk(*given: Any, **more: Any) -> None:
        import logging
        import sys

        warnings.warn(EVIL, UserWarning, stacklevel=1)
        print(EVIL, file=sys.stderr)
        print(EVIL)
        # half characters in what is logged cannot be sent between processes that run tests
        logging.getLogger("somebody").warning(EVIL.encode("utf-8", "replace").decode())
        raise Panic(EVIL)

    monkeypatch.setattr("attnviz.runs.explain.explain", talk)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        seen = see(["explain", "a", "-w", "random", "--debug"], is_terminal=True)
    faults = [fault for fault in seen.faults() if "stderr has" not in fault]
    assert faults == [f"{seen.arguments!a}: exit code 70"]
    assert seen.err.count("␛]0;x") >= 4
    assert seen.out.count("␛]0;x") == 1


@pytest.mark.parametrize("command", [("explain", "--stage", "weights"), ("heatmap",)])
def test_a_terminal_gets_the_same_bytes_from_hostile_and_from_tame_tokens(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """The tame layer has the same numbers and, as its words, what the hostile ones are shown as."""
    from attnviz.render.tokens import visible

    evil = [word for word in map(argument, strings(60, seed=9)) if not any(map(str.isspace, word))]
    evil = [f"x\x1b[2J{i}{word}" for i, word in enumerate(dict.fromkeys(evil))][:12]
    seen = []
    for name, words in (("hostile", evil), ("tame", [visible(word) for word in evil])):
        folder = tmp_path / name
        folder.mkdir()
        draw = np.random.default_rng(0).standard_normal
        arrays = {**{f"w_{n}": draw((6, 4)) for n in "qkv"}, "embedding": draw((len(words), 6))}
        np.savez(folder / "layer.npz", **arrays, vocab=np.array(words))
        shown = on_terminal(
            [*command, "-w", "layer.npz", "--", " ".join(words)],
            {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100"}, cwd=folder,
        )  # fmt: skip
        assert "\x1b[" in shown
        seen.append(re.sub("[0-9a-f]{12,64}|from [0-9]+ characters", "", shown))
    assert seen[0] == seen[1]
    assert {c for c in re.sub("\x1b\\[[0-9;]*m", "", seen[0]) if not c.isprintable()} == {
        "\r",
        "\n",
    }


def test_every_command_is_among_the_calls() -> None:
    def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield path
        for name, one in (below or {}).items():
            yield from leaves(one, (*path, name))

    called = {call.arguments for call in CALLS}
    for path in leaves(get_command(app)):
        assert any(arguments[: len(path)] == path for arguments in called), path
