"""``attnviz generate``: the library's own tokens, and the rows behind them."""

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

from attnviz.errors import UsageError
from attnviz.runs.generate import generate

pytest.importorskip("transformers", reason="needs the extra 'models'")
Cli = Callable[..., Result]


def test_64_greedy_tokens_and_their_rows_are_the_librarys(smollm2: Path) -> None:
    import torch

    from attnviz.runs.run import open_place

    found = generate(SENTENCE, model=str(smollm2), engine="library", n=64, layer="4", head="2")
    opened = open_place(model=str(smollm2), engine="library").send(SENTENCE)
    library = opened.source.loaded.model
    library.set_attn_implementation("eager")
    prompt = torch.tensor([list(opened.tokens.ids)])
    with torch.inference_mode():
        made = library.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False
        )
        rows = library(made, output_attentions=True).attentions[4][0, 2].double().numpy()
    assert list(found.trace.tokens.ids) == made[0].tolist()
    assert np.abs(found.trace.stages["weights"][0, 0] - rows).max() < 1e-5
    assert found.trace.checks["parity"] < 1e-5
    assert found.n_prompt == len(opened.tokens)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    write_model(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_the_screen_the_files_and_the_schema(cli: Cli, tiny: str, tmp_path: Path) -> None:
    done = cli("generate", "hello world", "-m", tiny, "-n", "5")
    assert done.code == 0
    assert "where it looked" in done.out
    assert "the prompt is tokens 0 to" in done.out
    schema = json.loads((resources.files("attnviz") / "schemas/view-1.json").read_text("utf-8"))
    data = json.loads(cli("generate", "hello world", "-m", tiny, "-n", "5", "-f", "json").out)
    jsonschema.Draft202012Validator(schema).validate(data)
    first = [r for r in data["records"] if r["token"] == data["records"][0]["token"]]
    assert sum(r["weight"] for r in first) == pytest.approx(1.0)
    assert first[0]["query"] == first[0]["token"] - 1
    for suffix in (".png", ".html", ".csv"):
        path = str(tmp_path / f"g{suffix}")
        assert cli("generate", "hello world", "-m", tiny, "-n", "5", "-o", path).code == 0


def test_drawn_tokens_are_the_seeds(tiny: str) -> None:
    def ids(seed: int) -> tuple[int, ...]:
        return generate("hello", model=tiny, n=12, temperature=5.0, seed=seed).trace.tokens.ids

    assert ids(1) == ids(1)
    assert len({ids(seed) for seed in range(4)}) > 1


def test_every_new_token_is_told_with_its_row(tiny: str) -> None:
    told: list[tuple[tuple[int, ...], np.ndarray]] = []
    found = generate("hello world", model=tiny, n=6, layer="1", head="2",
                     tell=lambda tokens, row: told.append((tokens.ids, row)))  # fmt: skip
    alone = generate("hello world", model=tiny, n=6, layer="1", head="2")
    assert told[-1][0] == found.trace.tokens.ids == alone.trace.tokens.ids
    weights = found.trace.stages["weights"][0, 0]
    for ids, row in told:
        query = len(ids) - 2
        assert np.abs(row - weights[query, : query + 1]).max() < 1e-6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-n", "0"), "-n 0 is out of range"),
        (("--temperature", "-1"), "out of range"),
        (("--head", "all"), "one head is followed"),
        (("--attention", "cross"), "leave it out"),
    ],
)
def test_refusals(cli: Cli, tiny: str, options: tuple[str, ...], reason: str) -> None:
    done = cli("generate", "hello", "-m", tiny, *options)
    assert (done.code, reason in done.err) == (2, True)
    with pytest.raises(UsageError, match="only a trained model writes"):
        generate("hello")


def test_an_encoder_does_not_write(cli: Cli, minilm: Path) -> None:
    done = cli("generate", SENTENCE, "-m", str(minilm))
    assert (done.code, "has no language head" in done.err) == (2, True)
