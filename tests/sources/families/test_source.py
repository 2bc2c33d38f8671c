"""The light engine behind the contract of sources: proof before trust, engines, writing, batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

from tiny_models import write_model

from attnviz.core import reference
from attnviz.errors import InputError, UsageError
from attnviz.records import LayerHeads
from attnviz.sources.families import opening, proof
from attnviz.sources.families.opening import try_light
from attnviz.sources.families.proof import Proof
from attnviz.sources.families.source import LightSource
from attnviz.sources.models.source import open_model

TEXT = "hello world ! bear hello"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny Llama, used once: compared with the library, its tokenizer kept."""
    place = tmp_path_factory.mktemp("light")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        made = write_model(place / "tiny", eos_token_id=2)
        assert isinstance(try_light(made, device="cpu"), LightSource)
        yield made


def opened(folder: Path, **how: Any) -> LightSource:
    found = try_light(folder, device="cpu", **how)
    assert isinstance(found, LightSource)
    return found


def run(source: Any, text: str = TEXT) -> list[LayerHeads]:
    found: list[LayerHeads] = []
    source.run(source.tokenize(text), source.layers, found.append)
    return found


def test_every_number_is_that_of_the_library_s_way(folder: Path) -> None:
    light, library = opened(folder), open_model(folder)
    assert light.tokenize(TEXT) == library.tokenize(TEXT)
    for ours, theirs in zip(run(light), run(library), strict=True):
        for name in ("q", "k", "v", "x", "w_o", "own_output"):
            a, b = getattr(ours, name), getattr(theirs, name).numpy()
            assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max()), name
        assert sorted(ours.inputs) == sorted(theirs.inputs)
        for name, step in ours.inputs.items():
            assert np.abs(step - theirs.inputs[name].numpy()).max() <= 1e-4
        assert (ours.scale, ours.visible, ours.layer) == (
            theirs.scale, theirs.visible, theirs.layer,
        )  # fmt: skip
        assert (
            np.abs(np.asarray(ours.own_output) - reference.trace_heads(ours)["output"]).max()
            <= 1e-5
        )
    a, b = light.info, library.info
    kept = ("kind", "name", "sha256", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_k", "d_v",
            "tokenizer", "tokenizer_sha256", "n_vocab", "n_positions")  # fmt: skip
    assert [getattr(a, n) for n in kept] == [getattr(b, n) for n in kept]


def test_the_provenance_says_who_ran_it_and_how_it_was_proved(folder: Path) -> None:
    info = opened(folder).info
    assert info.origin.startswith("llama, run by attnviz's light engine; weights equal the ")
    assert info.notices == ()


def test_what_was_proved_is_kept_by_hash_and_versions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("compared again")

    monkeypatch.setattr(opening, "prove", never)
    opened(folder)
    monkeypatch.setattr(proof, "engine_version", lambda: "another")
    with pytest.raises(AssertionError, match="compared again"):
        opened(folder)


@pytest.mark.parametrize(("weights", "states"), [(2e-5, 0.0), (0.0, 2e-5), (float("nan"), 0.0)])
def test_a_model_on_which_it_differs_is_left_to_the_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, weights: float, states: float
) -> None:
    monkeypatch.setattr(opening, "kept_proof", lambda *_: Proof(weights, states, 2))
    assert try_light(folder, device="cpu") is None
    asked = opened(folder, engine="light")
    assert "differs from the library" in asked.info.notices[0]


def test_a_broken_formula_fails_the_proof(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnviz.sources.families import llama, parts

    monkeypatch.setattr(proof, "engine_version", lambda: "broken")
    monkeypatch.setattr(llama, "rms_norm", lambda x, w, eps: parts.rms_norm(x, w * 1.01, eps=eps))
    assert try_light(folder, device="cpu") is None
    assert try_light(folder, device="cpu") is None  # and it is kept
    monkeypatch.undo()
    assert isinstance(try_light(folder, device="cpu"), LightSource)


def test_without_the_library_it_runs_and_says_that_nothing_was_proved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "kept_proof", lambda *_: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    source = opened(folder)
    assert source.info.origin.endswith("not proved on this model")
    assert source.info.notices[0].startswith("not proved on this model")


def test_engines_devices_and_precisions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert try_light(folder, engine="library", device="cpu") is None
    assert try_light(folder, device="cuda") is None
    assert try_light(folder, device="cpu", dtype="bfloat16") is None
    assert try_light(folder, device="cpu", target="a decoder's text") is None
    with pytest.raises(UsageError, match="auto, light"):
        try_light(folder, engine="lite")
    monkeypatch.setattr(opening, "may_have_gpu", lambda: True)
    assert try_light(folder, device="auto") is None
    assert isinstance(try_light(folder, device="auto", engine="light"), LightSource)
    for how in ({"device": "cuda"}, {"dtype": "float16"}, {"which": "cross"}):
        with pytest.raises(InputError, match="does not run this model"):
            try_light(folder, **{"device": "cpu", "engine": "light", **how})
    other = write_model(tmp_path / "other", model_type="mamba")
    assert try_light(other, device="cpu") is None
    with pytest.raises(InputError, match="'mamba'"):
        try_light(other, device="cpu", engine="light")


def test_texts_in_one_row_are_those_alone(folder: Path) -> None:
    source = opened(folder)
    texts = [source.tokenize(t) for t in ("hello", TEXT, "bear !", "world bear", "! ! bear bear")]
    alone = [run(source, t.text) for t in texts]
    found: dict[int, list[LayerHeads]] = {i: [] for i in range(len(texts))}
    source.run_batch(texts, source.layers, lambda i, h: found[i].append(h))
    joined: dict[int, list[Any]] = {i: [] for i in range(len(texts))}

    def consume(places: Any, heads: LayerHeads) -> None:
        n = heads.n_heads // len(places)
        for t, place in enumerate(places):
            joined[place].append(heads.q[t * n : (t + 1) * n])

    source.packer().run(texts, source.layers, consume)
    for i, own in enumerate(alone):
        for layer, heads in enumerate(own):
            for name in ("q", "k", "v", "own_output"):
                apart = np.abs(getattr(found[i][layer], name) - getattr(heads, name))
                assert apart.max() <= 2e-5, (i, layer, name)
            assert np.abs(joined[i][layer] - heads.q).max() <= 2e-5


def test_it_writes_what_the_library_writes(folder: Path) -> None:
    light, library = opened(folder), open_model(folder)
    tokens = light.tokenize(TEXT)
    heard: list[int] = []
    ours = light.generate(tokens, 8, tell=lambda t: heard.append(len(t)))
    theirs = library.generate(tokens, 8)
    assert (ours.ids, ours.labels, ours.spans) == (theirs.ids, theirs.labels, theirs.spans)
    assert heard == list(range(len(tokens) + 1, len(ours) + 1))


def test_drawing_is_the_same_for_one_seed(folder: Path) -> None:
    source = opened(folder)
    tokens = source.tokenize(TEXT)
    one, same, other = (source.generate(tokens, 9, temperature=50.0, seed=s).ids for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_the_next_word_with_a_cache_is_that_of_the_whole_text(folder: Path) -> None:
    engine = opened(folder).engine
    ids = [1, 3, 4, 6, 5, 3, 4]
    past: dict[int, Any] = {}
    for end in range(3, len(ids) + 1):
        step = engine.next_scores(ids[:end], past)
        whole = engine.next_scores(ids[:end], {})
        assert step is not None
        assert whole is not None
        assert np.abs(step - whole).max() <= 1e-4 * np.abs(whole).max()


def test_writing_with_a_penalty_is_the_library_s(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    (other / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.3}))
    source = opened(other, engine="light")
    with pytest.raises(UsageError, match="repetition_penalty"):
        source.generate(source.tokenize(TEXT), 3)


def test_limits_of_the_model_are_told(folder: Path) -> None:
    source = opened(folder)
    with pytest.raises(UsageError, match="layer 2 of tiny does not exist"):
        source.run(source.tokenize(TEXT), [2], lambda _: None)
    with pytest.raises(InputError, match="positions for 32"):
        source.tokenize("bear " * 40)
    cut = opened(folder, max_tokens=5).tokenize("bear " * 40)
    assert len(cut) == 5
    with pytest.raises(InputError, match="no tokens"):
        opened(write_without_start(folder)).tokenize("")


def write_without_start(folder: Path) -> Path:
    from tiny_models import write_tokenizer

    other = write_model(folder.parent / "bare")
    write_tokenizer(other, bos=False)
    return other


def test_layers_done_are_told(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    source = opened(folder, tell=lambda done, total: told.append((done, total)))
    source.engine.states([1, 3])
    assert told == [(1, 2), (2, 2)]


def test_what_a_run_holds_is_told_without_reading_weights(folder: Path) -> None:
    from attnviz.sources.families.opening import held_by_a_run

    source = opened(folder)
    assert held_by_a_run(folder, 10**9) == ("the light engine", 2 * source.engine.layer_bytes())
    who, held = held_by_a_run(folder, 7)
    assert (who, held) == ("the light engine", 28)  # never more than there is
    config = json.loads((folder / "config.json").read_text())
    other = folder.parent / "unknown"
    shutil.copytree(folder, other)
    (other / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    who, held = held_by_a_run(other, 7)
    assert who.startswith("the library: ")
    assert held == 28


def test_verify_compares_with_the_library(folder: Path) -> None:
    import attnviz

    trace = attnviz.explain(TEXT, model=str(folder), engine="light", device="cpu", verify=True)
    assert trace.checks["verified_weights"] <= 1e-5
    assert trace.checks["verified_states"] <= 1e-5


SCRIPT = """
import os, sys
from attnviz.cli.main import run_guarded
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
codes = [run_guarded(arguments) for arguments in {runs!r}]
sys.stdout.flush()
os.dup2(out, 1)
print(codes, sorted({{"torch", "transformers", "gguf"}} & set(sys.modules)))
"""


def loaded_by(*runs: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(runs=list(runs))], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_no_heavy_library_is_loaded_after_the_first_use(folder: Path, tmp_path: Path) -> None:
    model = ["--model", str(folder), "--device", "cpu"]
    found = loaded_by(
        ["explain", TEXT, *model],
        ["heatmap", TEXT, *model, "-l", "0", "-H", "1"],
        ["view", "links", TEXT, *model, "-l", "0", "-H", "1"],
        ["page", TEXT, *model, "-o", str(tmp_path / "a.html")],
        ["heads", TEXT, *model],
        ["compare", TEXT, "bear world", "--token", "bear", *model],
        ["generate", TEXT, "-n", "2", *model],
    )
    assert found == "[0, 0, 0, 0, 0, 0, 0] []"


def test_the_test_above_can_fail(folder: Path) -> None:
    code = (
        "import sys, attnviz\n"
        f"attnviz.explain({TEXT!r}, model={str(folder)!r}, engine='library', device='cpu')\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['torch', 'transformers']"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_refused_where_no_library_could_say_so(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file, save_file

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda _: None)
    made = write_model(tmp_path / "tiny")
    tensors = load_file(made / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][3, 4] = value
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    light = opened(made)
    assert light.proof is None
    found: list[LayerHeads] = []
    with pytest.raises(InputError, match="layer 1 gives NaN or Inf in k"):
        light.run(light.tokenize(TEXT), light.layers, found.append)
    assert [heads.layer for heads in found] == [0]
