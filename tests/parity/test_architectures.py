"""Every architecture against its own eager attention: weights, outputs, padding, streaming.

The models are tiny and random, built in this process. ``ATTNVIZ_WRITE_DOCS=1`` rewrites the
table in docs/models.md from what was measured here.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("accelerate", reason="needs the extra 'models'")

from architectures import ARCHITECTURES, Architecture, build
from refused import REFUSED
from support import rounding_of

from attnviz.core.attend import trace_heads
from attnviz.core.stream.stream import stream
from attnviz.errors import InputError
from attnviz.records import LayerHeads, MaskRule, Tokens
from attnviz.sources.models.capture.padding import pad, takes_padding
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.loading import Loaded, wrap
from attnviz.sources.models.planning import KINDS, Plan, make_plan, reported_weights, switch
from attnviz.sources.models.source import TransformersSource

# The table in docs/models.md, and the routes of architectures.py, are of the version that is pinned.
CONSTRAINTS = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")
PINNED = Version(re.findall(r"^transformers==(.*)$", CONSTRAINTS, re.M)[0])
IS_OLDER = Version(version("transformers")) < PINNED

LENGTHS = (23, 14)
DOCS = Path(__file__).parents[2] / "docs" / "models.md"
WAYS = {"interface": "attention interface", "tap": "tap"}
MEASURED: dict[str, tuple[str, float, float]] = {}

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # the library's own, of functions it still calls itself
    "ignore::FutureWarning",
    "ignore::UserWarning",
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny products are several times faster without waking other threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def opened(name: str) -> tuple[Loaded, Plan]:
    load_transformers()
    entry = next(e for e in ARCHITECTURES if e.name == name)
    with quiet():
        loaded = wrap(build(entry))
        plan = make_plan(loaded.model, loaded.body, loaded.probe(), dtype="float32", name=name)
        return loaded, replace(plan, pads=takes_padding(loaded))


def source_of(name: str, which: str) -> TransformersSource:
    loaded, plan = opened(name)
    files = ModelFiles(Path(), (), "safetensors", name)
    return TransformersSource(files, files, "", FakeTokenizer(), loaded, plan, which, target="x")  # type: ignore[arg-type]


class FakeTokenizer:
    """Gives an encoder-decoder nine decoder tokens."""

    class tokenizer:
        @staticmethod
        def id_to_token(i: int) -> str:
            return str(i)

    def tokenize(self, text: str) -> Tokens:
        return tokens_of(8, shift=5)


def source_with_texts(name: str, which: str, texts: list[Tokens]) -> TransformersSource:
    """An encoder-decoder whose decoder has texts of different lengths."""
    source = source_of(name, which)
    for place, tokens in enumerate(texts):
        source._written[tokens.ids] = tokens_of(9 - 4 * place, shift=3 * place)
    return source


def tokens_of(n: int, *, shift: int = 0) -> Tokens:
    ids = tuple(3 + (11 * i + shift) % 90 for i in range(n))
    words = tuple(str(i) for i in ids)
    return Tokens("", ids, words, words, (None,) * n, (False,) * n)


def captured(
    source: TransformersSource, texts: list[Tokens], side: str
) -> dict[int, list[LayerHeads]]:
    found: dict[int, list[LayerHeads]] = {place: [] for place in range(len(texts))}
    with quiet():
        source.run_batch(texts, source.layers, lambda i, h: found[i].append(h), side=side)
    return found


def eager(source: TransformersSource, texts: list[Tokens], side: str) -> list[list[Any]]:
    """The model's own weights: per text, per layer, (H, real queries, real keys)."""
    loaded = source.loaded
    pad_id = getattr(loaded.config, "pad_token_id", None) or 0
    batch = pad(texts, pad_id, side if loaded.can_pad_left else "right")
    decoder = None
    if loaded.is_encoder_decoder:
        decoder = pad([source._decoder(t) for t in texts], pad_id, "right")
    switch(loaded.model, "eager")
    with quiet():
        outputs = loaded.forward(
            batch.ids,
            real=batch.places,
            decoder_ids=None if decoder is None else decoder.ids,
            decoder_real=None if decoder is None else decoder.places,
            output_attentions=True,
        )
    listed = reported_weights(outputs)[source.which]
    found = []
    for place, (start, end) in enumerate(batch.real):
        rows = keys = slice(start, end)
        if decoder is not None and source.which != "encoder":
            rows = slice(*decoder.real[place])
            keys = rows if source.which == "self" else keys
        found.append([w[place][:, rows, keys].numpy() for w in listed])
    return found


def difference(heads: LayerHeads, weights: Any) -> float:
    ours = np.asarray(trace_heads(heads)["weights"])
    if heads.sinks is not None and abs(weights.sum(-1) - 1).max() < 1e-3:
        ours = ours / ours.sum(-1, keepdims=True)
    assert ours.shape == weights.shape
    return float(np.abs(ours - weights).max())


def output_difference(heads: LayerHeads, output: Any) -> float:
    own = heads.own_output.numpy()
    return float(np.abs(own - np.asarray(output)).max()) / max(1.0, float(np.abs(own).max()))


CASES = [(entry, side) for entry in ARCHITECTURES for side in ("none", "right", "left")]


@pytest.mark.parametrize(("entry", "side"), CASES, ids=[f"{e.name}-{s}" for e, s in CASES])
def test_weights_and_outputs_are_the_models_own(entry: Architecture, side: str) -> None:
    lengths = LENGTHS[:1] if side == "none" else LENGTHS
    texts = [tokens_of(n, shift=7 * n) for n in lengths]
    plan = opened(entry.name)[1]
    # an older library may hand nothing over here; the tap is as exact
    assert plan.route == entry.route or (IS_OLDER and plan.route == "tap")
    if not plan.pads:  # runs one text at a time
        texts = texts[:1]
    worst = streamed = 0.0
    beyond: list[float] = []
    for which in KINDS:
        if not plan.of(which):
            continue
        source = source_with_texts(entry.name, which, texts)
        found = captured(source, texts, side)
        theirs = eager(source, texts, side)
        for place in range(len(texts)):
            assert len(found[place]) == len(theirs[place]) == len(source.layers)
            for heads, weights in zip(found[place], theirs[place]):
                stages = trace_heads(heads)
                summary = stream(heads, figures=("output",), n_rows=5, n_workers=1)
                found_here = (
                    difference(heads, weights),
                    output_difference(heads, stages["output"]),
                    output_difference(heads, summary.output_HLF),
                )
                worst, streamed = max(worst, found_here[0]), max(streamed, found_here[2])
                beyond.append(max(found_here) / rounding_of(stages["masked"]))
    if side == "none":
        MEASURED[entry.name] = (plan.route, worst, streamed)
    assert max(beyond) <= 1


MUTANTS = [
    ("a scale 1 % too large", "Llama", lambda h: replace(h, scale=h.scale * 1.01)),
    ("a scale 1 % too large", "BLOOM", lambda h: replace(h, scale=h.scale * 1.01)),
    ("a dropped causal mask", "Llama", lambda h: replace(h, visible=MaskRule())),
    ("a dropped window", "Mistral", lambda h: replace(h, visible=MaskRule(causal=True))),
    (
        "a window one too wide",
        "Mistral",
        lambda h: replace(h, visible=replace(h.visible, window=9)),
    ),
    ("a dropped chunk", "Llama 4", lambda h: replace(h, visible=MaskRule(causal=True))),
    ("a dropped softcap", "Gemma 2", lambda h: replace(h, softcap=None)),
    ("a dropped bias", "T5", lambda h: replace(h, bias=None)),
    ("a dropped bias", "MPT", lambda h: replace(h, bias=None)),
    ("a dropped sink", "GPT-OSS", lambda h: replace(h, sinks=None)),
    ("the wrong key head", "Llama", lambda h: replace(h, k=h.k.flip(0))),
]


@pytest.mark.parametrize(
    ("what", "name", "mutate"), MUTANTS, ids=[f"{w}, {n}" for w, n, _ in MUTANTS]
)
def test_the_comparison_sees(what: str, name: str, mutate: Any) -> None:
    which = "encoder" if name == "T5" else "self"
    source = source_of(name, which)
    texts = [tokens_of(LENGTHS[0])]
    theirs = eager(source, texts, "none")[0]
    found = captured(source, texts, "none")[0]
    assert all(
        difference(h, w) <= rounding_of(trace_heads(h)["masked"]) for h, w in zip(found, theirs)
    )
    assert max(difference(mutate(h), w) for h, w in zip(found, theirs)) > 1e-3, what


@pytest.mark.parametrize("entry", ARCHITECTURES, ids=[e.name for e in ARCHITECTURES])
@pytest.mark.parametrize("side", ["left", "right"])
def test_P9_padding_changes_nothing(entry: Architecture, side: str) -> None:
    """A short text in a padded batch gives the numbers of its own run."""
    texts = [tokens_of(n, shift=7 * n) for n in LENGTHS]
    for which in KINDS:
        if not opened(entry.name)[1].of(which):
            continue
        source = source_with_texts(entry.name, which, texts)
        batch = captured(source, texts, side)
        for place, tokens in enumerate(texts):
            alone = captured(source, [tokens], "right")[0]
            for a, b in zip(batch[place], alone, strict=True):
                ours, own = (trace_heads(h) for h in (a, b))
                difference_ = np.abs(np.asarray(ours["weights"]) - np.asarray(own["weights"])).max()
                assert difference_ <= 3 * rounding_of(own["masked"])


@pytest.mark.parametrize("entry", REFUSED, ids=[e.name for e in REFUSED])
def test_what_cannot_be_read_is_refused_with_the_missing_fact(entry: Architecture) -> None:
    load_transformers()
    with quiet():
        loaded = wrap(build(entry))
        with pytest.raises(
            InputError, match=rf"^{entry.name} (cannot be read exactly|has no softmax)"
        ):
            make_plan(loaded.model, loaded.body, loaded.probe(), dtype="float32", name=entry.name)


def test_masks_arrive_as_rules_so_that_streaming_can_skip() -> None:
    def rule(name: str, layer: int, which: str = "self") -> MaskRule:
        return captured(source_of(name, which), [tokens_of(23)], "none")[0][layer].visible

    assert rule("Llama", 0) == MaskRule(causal=True)
    assert rule("BERT", 0) == MaskRule()
    assert rule("Mistral", 0) == MaskRule(causal=True, window=8)
    assert rule("Qwen2, window from layer 1", 0) == MaskRule(causal=True)
    assert rule("Qwen2, window from layer 1", 1) == MaskRule(causal=True, window=8)
    assert rule("Llama 4", 0) == MaskRule(causal=True, chunk=8)
    assert rule("ModernBERT", 1) == MaskRule(window=9)
    assert rule("T5", 0, "cross") == MaskRule()
    for side in ("left", "right"):
        texts = [tokens_of(23), tokens_of(9)]
        for name in ("Llama", "Mistral", "Llama 4", "BERT"):
            for heads in captured(source_of(name, "self"), texts, side)[1]:
                assert heads.visible.where is None
                assert heads.visible.cells is None


def test_only_the_asked_for_layers_run() -> None:
    loaded, _ = opened("Llama")
    source = source_of("Llama", "self")
    ran: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda *_, i=i: ran.append(i))
        for i, layer in enumerate(loaded.body.layers)
    ]
    seen: list[int] = []
    source.run(tokens_of(9), (1, 0), lambda heads: seen.append(heads.layer))
    for hook in hooks:
        hook.remove()
    assert seen == [0, 1]
    assert ran == [0]  # layer 1 was left in its attention, layer 2 never entered


def test_the_steps_before_q_are_shown_where_they_are_proved() -> None:
    def inputs(name: str) -> set[str]:
        return set(captured(source_of(name, "self"), [tokens_of(9)], "none")[0][0].inputs)

    assert inputs("BERT") == set()  # q is x·W_Q itself
    assert inputs("Llama") == {"q_projected", "k_projected"}
    assert inputs("Qwen3") == {"q_projected", "k_projected", "q_normed", "k_normed"}
    assert inputs("GPT-NeoX") == {"q_projected", "k_projected"}
    assert inputs("OPT") == {"q_projected"}
    heads = captured(source_of("Llama", "self"), [tokens_of(9)], "none")[0][0]
    w_q = opened("Llama")[0].body.layers[0].self_attn.q_proj.weight
    projected = (heads.x @ w_q.T).reshape(9, 4, 8).transpose(0, 1)
    assert np.allclose(projected, heads.inputs["q_projected"], atol=1e-5)
    assert heads.w_o.shape == (32, 32)


def test_hybrids_name_the_layers_that_have_attention() -> None:
    from attnviz.errors import UsageError

    source = source_of("Jamba", "self")
    assert source.layers == (1, 3)
    with pytest.raises(
        UsageError, match="layer 0 of Jamba has no self attention: choose from 1, 3"
    ):
        source.run(tokens_of(5), (0,), lambda _: None)


@pytest.mark.parametrize("entry", ARCHITECTURES, ids=[e.name for e in ARCHITECTURES])
def test_a_card_names_the_layers_that_attend(entry: Architecture) -> None:
    """From config and tensor names alone: the same layers as the running model's."""
    from attnviz.sources.models.card_layers import read_layers, with_tensors

    loaded, plan = opened(entry.name)
    layers = with_tensors(read_layers(loaded.config.to_dict()), loaded.model.state_dict())
    told = [layer.layer for layer in layers if layer.has_attention]
    which = "self" if plan.of("self") else "encoder"
    assert told == sorted(plan.of(which))


@pytest.mark.parametrize("entry", REFUSED, ids=[e.name for e in REFUSED])
def test_a_card_of_a_model_without_attention_says_so(entry: Architecture) -> None:
    from attnviz.sources.models.card_layers import read_layers, with_tensors

    model = build(entry)
    layers = with_tensors(read_layers(model.config.to_dict()), model.state_dict())
    has_none = entry.name in ("Mamba", "FNet", "RWKV")
    assert any(layer.has_attention for layer in layers) != has_none


def test_a_tensor_of_unknown_meaning_is_refused() -> None:
    import torch

    from attnviz.sources.models.capture.interface import attention

    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(InputError, match=r"passes gate \(3,\) to its attention"):
        attention(torch.nn.Linear(1, 1), q, q, q, None, gate=torch.zeros(3))


def test_the_table_in_the_docs_is_what_was_measured() -> None:
    if os.environ.get("ATTNVIZ_WRITE_DOCS"):
        missing = [e.name for e in ARCHITECTURES if e.name not in MEASURED]
        assert not missing, "run the whole file in one process to write the table"
        _write_docs()
    text = DOCS.read_text("utf-8")
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    for entry in ARCHITECTURES:
        assert f"| {entry.name} | {WAYS[entry.route]} | " in rows[entry.name]
        assert rows[entry.name].endswith(f"| {entry.features} |"), "ATTNVIZ_WRITE_DOCS=1 mends it"
    for entry in REFUSED:
        assert f"| {entry.name} | refused |" in rows[entry.name]
    assert len(ARCHITECTURES) >= 45


def _write_docs() -> None:
    start, end = "<!-- table: written by tests/parity -->", "<!-- end of table -->"
    lines = [
        start,
        "",
        "| architecture | read through | weights | streamed output | shown as its own |",
    ]
    lines.append("|---|---|---|---|---|")
    for entry in ARCHITECTURES:
        route, worst, streamed = MEASURED[entry.name]
        lines.append(
            f"| {entry.name} | {WAYS[route]} | {worst:.0e} | {streamed:.0e} | {entry.features} |"
        )
    lines += [f"| {e.name} | refused | | | {e.features} |" for e in REFUSED]
    text = DOCS.read_text("utf-8")
    before, _, rest = text.partition(start)
    DOCS.write_text(before + "\n".join([*lines, "", ""]) + end + rest.partition(end)[2], "utf-8")
