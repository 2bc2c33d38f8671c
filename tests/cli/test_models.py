"""Trained models on the command line: the overview, the walk, words, verification, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support import SENTENCE, Result
from tiny_models import write_model

pytest.importorskip("transformers", reason="needs the extra 'models'")

pytestmark = [
    pytest.mark.usefixtures("own_cache", "one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
Cli = Callable[..., Result]
SCHEMA = json.loads((resources.files("attnviz") / "schemas/trace-1.json").read_text("utf-8"))


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_model(tmp_path / "tiny"))


def trace_of(done: Result) -> dict:
    assert done.code == 0, done.err
    data = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    return data


@pytest.mark.model
def test_the_overview_then_the_walk_of_the_chosen_head(cli: Cli, minilm: Path) -> None:
    out = cli("explain", SENTENCE, "-m", str(minilm), "--token", "teddy", "--width", "80").out
    assert max(map(len, out.splitlines())) <= 80
    assert "6 layers × 12 heads" in out
    assert "head auto chose L0.H4: 3:teddy → 4:bear has .93" in out
    assert "runners-up: L4.H9 3:teddy → 4:bear .72" in out
    assert out.index("6 layers") < out.index("head auto chose") < out.index("Tokens")
    assert "92.82 %" in out
    assert "output = the model's own (within" in out
    overview = out[: out.index("Tokens")].splitlines()
    assert len(overview) < 24


@pytest.mark.model
def test_json_has_the_parity_the_ranking_and_the_steps(cli: Cli, smollm2: Path) -> None:
    data = trace_of(cli("explain", SENTENCE, "-m", str(smollm2), "--token", "bear", "-f", "json"))
    assert (data["layers"], data["heads"], data["asked"]) == ([4], [2], 3)
    assert data["stages"]["weights"][0][0][3][2] == pytest.approx(0.933808, abs=1e-5)
    assert len(data["ranking"]) == 270
    assert data["ranking"][0]["key"] == 2
    assert 0 < data["checks"]["parity"] <= 1e-5
    assert set(data["inputs"]) == {"q_projected", "k_projected"}
    before, after = (np.array(v) for v in (data["inputs"]["q_projected"], data["stages"]["q"]))
    assert np.allclose(*(np.linalg.norm(v, axis=-1) for v in (before, after)), rtol=1e-5)
    assert np.abs(before - after).max() > 0.1


@pytest.mark.model
def test_every_command_takes_a_model(cli: Cli, minilm: Path, tmp_path: Path) -> None:
    model = ("-m", str(minilm))
    picture = cli("heatmap", SENTENCE, *model, "--token", "teddy")
    assert "head auto chose L0.H4" in picture.out
    assert "L5.H11" in cli("view", "grid", SENTENCE, *model, "-f", "plain").out
    links = cli("view", "links", SENTENCE, *model, "-l", "4", "-H", "9", "-f", "json")
    view = json.loads(links.out)
    assert (view["layers"], view["schema"]) == ([4], "attnviz.view/1")
    assert view["checks"]["parity"] < 1e-5
    page = cli("page", SENTENCE, *model, "-o", str(tmp_path / "a.html"))
    assert page.code == 0
    assert "equal to the model's own output (within" in page.err
    assert cli("heatmap", SENTENCE, *model, "-H", "3", "-l", "2", "-t", "teddy").code == 2


def test_layers_and_heads(cli: Cli, tiny: str) -> None:
    def shape(*options: str) -> tuple[list, list]:
        data = trace_of(cli("explain", "hello world !", "-m", tiny, "-f", "json", *options))
        assert np.array(data["stages"]["weights"]).shape[:2] == (
            len(data["layers"]), len(data["heads"]),
        )  # fmt: skip
        return data["layers"], data["heads"]

    assert shape("--layer", "all", "--head", "all") == ([0, 1], [0, 1, 2, 3])
    assert shape("--layer", "0-1", "--head", "1-2") == ([0, 1], [1, 2])
    assert shape("--layer", "1", "--head", "mean") == ([1], ["mean"])
    assert shape("--layer", "1", "--head", "3") == ([1], [3])
    layers, heads = shape("--head", "2")
    assert (len(layers), heads) == (1, [2])
    layers, heads = shape("--layer", "1")
    assert (layers, len(heads)) == ([1], 1)
    wrong = cli("explain", "hello", "-m", tiny, "--layer", "2")
    assert wrong.code == 2
    assert "layer 2 does not exist: there are 2, 0 to 1; use --layer 1 for the last" in wrong.err


def test_a_what_if_says_that_it_is_none_of_the_models(cli: Cli, tiny: str) -> None:
    done = cli("explain", "hello world !", "-m", tiny, "-f", "json", "--scale", "none")
    assert "parity" not in trace_of(done)["checks"]
    assert "what if" in done.err
    assert "what if" not in cli("explain", "hello world !", "-m", tiny).err


def test_verify_passes_and_fails(cli: Cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = trace_of(
        cli("explain", "hello world !", "-m", tiny, "--verify", "-f", "json", "--engine", "library")
    )
    assert data["checks"]["verified_weights"] <= 1e-5
    assert data["checks"]["verified_states"] <= 1e-5
    from attnviz.sources.models import verify as module

    real = module.load

    def doctored(*args, **kwargs):
        loaded = real(*args, **kwargs)
        loaded.body.layers[1].self_attn.q_proj.weight.data *= 1.01
        return loaded

    monkeypatch.setattr(module, "load", doctored)
    done = cli("explain", "hello world !", "-m", tiny, "--verify", "--engine", "library")
    assert done.code == 1
    assert done.out == ""
    assert "differs from the model run untouched: weights of layer 1 by" in done.err
    assert cli("explain", "hello", "--verify").code == 2


@pytest.mark.model
def test_words_are_pooled_by_the_stated_rule(cli: Cli, minilm: Path) -> None:
    text = "An unbelievably cute bear isn't reading"
    asked = ("explain", text, "-m", str(minilm), "-l", "0", "-H", "4", "-f", "json")
    whole, pooled = trace_of(cli(*asked)), trace_of(cli(*asked, "--words"))
    names = [token["label"] for token in pooled["tokens"]]
    assert names == ["[CLS]", "An", "unbelievably", "cute", "bear", "isn't", "reading", "[SEP]"]
    weights = np.array(whole["stages"]["weights"][0][0])
    words = np.array(pooled["stages"]["weights"][0][0])
    word = [
        i for i, t in enumerate(whole["tokens"]) if t["start"] is not None and 3 <= t["start"] < 15
    ]
    assert len(word) > 2
    assert words[2, 2] == pytest.approx(weights[np.ix_(word, word)].sum(1).mean())
    assert words[3, 2] == pytest.approx(weights[word[-1] + 1, word].sum())
    assert words.sum(-1) == pytest.approx(np.ones(8))
    assert set(pooled["stages"]) == {"weights"}
    assert (
        pooled["overrides"]["words"] == "sub-words pooled into words: rows averaged, columns summed"
    )
    screen = cli(*asked[:-2], "--words", "--token", "unbelievably")
    assert "rows averaged, columns summed" in screen.out
    refused = cli(*asked[:-2], "--token", "unbelievably")
    assert "is cut into 5 tokens, 2:un, 3:·bel" in refused.err
    assert cli("page", text, "-m", str(minilm), "--words", "-o", "x.html").code == 2


@pytest.mark.model
def test_a_token_is_found_under_every_spelling(cli: Cli, minilm: Path, smollm2: Path) -> None:
    for model, spellings in (
        (smollm2, ("bear", "␣bear", "Ġbear", "▁bear", " bear", "Bear", "3")),
        (minilm, ("bear", "BEAR", "4")),
    ):
        found = set()
        for word in spellings:
            done = cli("explain", SENTENCE, "-m", str(model), "-l", "0", "-H", "0", "-f", "json",
                       "-t", word)  # fmt: skip
            found.add(trace_of(done)["asked"])
        assert len(found) == 1
    text = "unbelievably cute"
    for word in ("bel", "##bel", "·bel"):
        assert cli("explain", text, "-m", str(minilm), "-H", "0", "-l", "0", "-t", word).code == 0


def test_a_text_is_cut_and_told(cli: Cli, tiny: str) -> None:
    done = cli("explain", "hello world ! bear", "-m", tiny, "--max-tokens", "3", "-f", "json")
    assert len(trace_of(done)["tokens"]) == 3
    assert "cut to 3 of 5 tokens (--max-tokens 3): the last" in done.err
    assert "(--strict)" in cli("explain", "hello world !", "-m", tiny, "--max-tokens", "2",
                               "--strict").err  # fmt: skip
    single = cli("explain", SENTENCE, "--max-tokens", "4", "-f", "json")
    assert len(trace_of(single)["tokens"]) == 4
    assert "cut to 4 of 6 tokens" in single.err
    too_long = cli("explain", "bear " * 40, "-m", tiny)
    assert too_long.code == 3
    assert "41 tokens, but tiny has positions for 32" in too_long.err


def test_options_that_do_not_go_together(cli: Cli, tiny: str) -> None:
    for options, message in (
        (("-w", "random", "-m", tiny), "exclude each other"),
        (("-m", tiny, "--n-heads", "2"), "a model says its own"),
        (("--attention", "cross"), "is for trained models"),
        (("-m", tiny, "--attention", "cross"), "'cross' does not exist: choose from self"),
        (("-m", tiny, "--max-tokens", "0"), "leaves nothing"),
    ):
        done = cli("explain", "hello", *options)
        assert done.code == 2
        assert message in done.err
        assert done.err.count("\n") == 1


def test_a_model_given_as_weights_points_to_the_model_option(cli: Cli, tiny: str) -> None:
    whole = Path(tiny) / "whole.gguf"
    whole.write_bytes(b"GGUF")
    for place in (tiny, str(whole)):
        done = cli("explain", "hello", "-w", place)
        assert done.code == 3
        assert "give it with --model" in done.err
    loose = cli("explain", "hello", "-w", f"{tiny}/model.safetensors", "-l", "0",
                "--n-heads", "4", "--n-kv-heads", "2")  # fmt: skip
    assert "--model FOLDER" in loose.err
    inside = cli("explain", "hello", "-m", f"{tiny}/model.safetensors")
    assert inside.code == 3
    assert "give the folder it is in" in inside.err


def test_model_show(cli: Cli, tiny: str, tmp_path: Path) -> None:
    out = cli("model", "show", tiny, "--width", "80").out
    assert max(map(len, out.splitlines())) <= 80
    for fact in ("LlamaForCausalLM", "adds", "<s> …", "all of 2 have attention", "0-1"):
        assert fact in out
    card = json.loads(cli("model", "show", tiny, "-f", "json").out)
    assert card["schema"] == "attnviz.model/1"
    assert (card["n_layers"], card["n_heads"], card["n_kv_heads"]) == (2, 4, 2)
    assert [layer["rotary_base"] for layer in card["layers"]] == [None, None]
    assert cli("model", "show", tiny, "-o", str(tmp_path / "card.md")).code == 0
    assert cli("model", "show", str(tmp_path)).code == 3


def test_a_card_of_hostile_names_is_safe(cli: Cli, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "a\x1b[2Jb", architectures=["\x1b[31mred"])
    done = cli("model", "show", str(folder))
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "␛[31mred" in done.out


def test_models_start_up_without_heavy_libraries() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from attnviz.cli.main import run_guarded; run_guarded(['model', '--help']);"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow  # 648 million cells are made, twice over
def test_a_heatmap_of_a_long_text_through_144_heads_finds_its_head(
    cli: Cli, tmp_path: Path
) -> None:
    """1,500 tokens make 324 million cells, more than are ever held."""
    size = {"num_hidden_layers": 9, "num_attention_heads": 16, "num_key_value_heads": 2}
    folder = write_model(tmp_path / "m", **size, head_dim=8, max_position_embeddings=2048)
    words = ["hello", "world", "bear", "!"]
    text = tmp_path / "long.txt"
    text.write_text(" ".join(words[i * i % 7 % 4] for i in range(1499)))
    picture = tmp_path / "long.png"
    done = cli("heatmap", "--file", str(text), "--model", str(folder), "-o", str(picture))
    assert done.code == 0, done.err
    assert "looking for the most telling of 144 heads over 1,500 tokens" in done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
