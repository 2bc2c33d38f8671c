"""Faults that others' tools had: rotary layouts (P3), windows (P5), softcap (P7), the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")

import torch
from tiny_models import write_model, write_tokenizer

from attnviz.core.reference import trace_heads
from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.models.capture import lazy_mask
from attnviz.sources.models.capture.interface import Record, formula_rows, fused_output
from attnviz.sources.models.capture.lazy_mask import Cut, LazyMask, make_mask, read_rule
from attnviz.sources.models.capture.to_layer_heads import to_layer_heads
from attnviz.sources.models.library import load_transformers

masking = load_transformers().masking_utils

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def heads_of(mask: torch.Tensor | None, *, length: int = 5, **more: object) -> LayerHeads:
    q = torch.zeros(1, 1, length, 4)
    v = torch.eye(length)[None, None]
    record = Record(0, torch.nn.Identity(), q, q, v, 0.5, mask=mask, **more)  # type: ignore[arg-type]
    span = (0, length)
    return to_layer_heads(record, Cut(0, span, span), layer=0, name="it")


def rows(mask: torch.Tensor | None, length: int = 5) -> np.ndarray:
    return trace_heads(heads_of(mask, length=length))["output"][0]


def test_P3_rotary_positions_are_the_models_half_split():
    """X = [1, 2, 3, 4] at position 1, base 10000, as the library rotates it."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    angle = torch.tensor([1.0, 0.01])
    cos, sin = (torch.cat([f(angle)] * 2)[None, None] for f in (torch.cos, torch.sin))
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    q, _ = apply_rotary_pos_emb(x, x, cos, sin)
    expected = [-1.9841106, 1.9599007, 2.4623779, 4.0197997]
    assert torch.allclose(q.flatten(), torch.tensor(expected), atol=1e-6)
    assert float((q * x).sum()) == pytest.approx(25.4020231, abs=1e-5)


def test_P5_a_window_of_three_shows_three_keys():
    """W keys, itself included; at or above L it is plain causal."""
    rule = masking.sliding_window_causal_mask_function(3)
    mask = make_mask(1, 5, 5, mask_function=rule)
    third, half = 1 / 3, 1 / 2
    expected = [
        [1, 0, 0, 0, 0], [half, half, 0, 0, 0], [third] * 3 + [0] * 2,
        [0, third, third, third, 0], [0, 0, third, third, third],
    ]  # fmt: skip
    assert np.allclose(rows(mask), expected)
    assert heads_of(mask).visible == MaskRule(causal=True, window=3)
    causal = rows(make_mask(1, 5, 5))
    wide = make_mask(1, 5, 5, mask_function=masking.sliding_window_causal_mask_function(5))
    assert np.allclose(rows(wide), causal)


def test_P7_softcap_comes_after_scale_and_before_the_mask():
    """Scaled scores 100 and 60 under a cap of 50."""
    k = torch.tensor([[[[200.0], [120.0]]]])
    q = torch.ones(1, 1, 2, 1)
    record = Record(0, torch.nn.Identity(), q, k, k, 0.5, mask=make_mask(1, 2, 2), softcap=50.0)
    heads = to_layer_heads(record, Cut(0, (0, 2), (0, 2)), layer=0, name="it")
    stages = trace_heads(heads)
    assert np.allclose(stages["capped"][0, 1], [48.2013790, 41.6827304], atol=1e-5)
    assert np.allclose(stages["weights"][0, 1], [0.9985265, 0.0014735], atol=1e-6)
    weights, _ = formula_rows(record)
    assert np.allclose(weights[0, 0, 1], [0.9985265, 0.0014735], atol=1e-6)


@pytest.mark.parametrize("window", [None, 0, 3, 100])
def test_P5_windows_of_a_config(tmp_path: Path, window: int | None) -> None:
    """0 and null are no window; others count the query itself."""
    from attnviz.sources.models.source import open_model

    folder = write_model(
        tmp_path / "m", model_type="mistral", architectures=["MistralForCausalLM"],
        sliding_window=window,
    )  # fmt: skip
    source = open_model(folder)
    found: list[LayerHeads] = []
    source.run(source.tokenize("hello world ! bear hello"), (0,), found.append)
    assert found[0].visible == MaskRule(causal=True, window=window or None)
    assert bool(source.info.notices) == (window == 0)
    counts = trace_heads(found[0])["visible"][0].sum(-1).tolist()
    assert counts == [min(i + 1, window or 99) for i in range(6)]


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("nan"), float("inf")])
def test_P7_a_softcap_that_is_no_cap_is_refused(softcap: float) -> None:
    from attnviz.errors import InputError
    from attnviz.sources.models.capture.interface import attention

    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(InputError, match="it must be above 0"):
        attention(torch.nn.Identity(), q, q, q, None, softcap=softcap)


def test_P1_base_by_the_interface_equals_the_formula() -> None:
    """BASE: what the fused kernel gives is weights · v, and both are the known numbers."""
    q = torch.tensor([[[[1.0, 0], [0, 1], [1, 1]]]])
    for mask, weights, output in (
        (None, [0.2482551, 0.2482551, 0.5034898], [0.7517449, 0.7517449]),
        (make_mask(1, 3, 3), [0.3302385, 0.6697615, 0], [0.3302385, 0.6697615]),
    ):
        record = Record(0, torch.nn.Identity(), q, q, q, 2**-0.5, mask=mask)
        row = 2 if mask is None else 1
        ours, blended = formula_rows(record)
        assert torch.allclose(ours[0, 0, row], torch.tensor(weights), atol=1e-6)
        assert torch.allclose(fused_output(record)[0, 0, row], torch.tensor(output), atol=1e-6)
        assert torch.allclose(fused_output(record), blended, atol=1e-6)


def test_P1_a_decoder_saved_with_default_settings(tmp_path: Path) -> None:
    """No kernel to choose, no flag to set: weights, and the final states of the model itself."""
    from attnviz.runs.explain import explain

    trace = explain("hello world !", model=str(write_model(tmp_path / "m")), verify=True)
    assert trace.stages["weights"].shape == (1, 1, 4, 4)
    assert trace.checks["parity"] <= 1e-5
    assert trace.checks["verified_weights"] <= 1e-5
    assert trace.checks["verified_states"] <= 1e-4


def test_a_rule_of_its_own_is_kept_by_index():
    def every_other(batch, head, query, key):
        return (key <= query) & ((query - key) % 2 == 0)

    mask = make_mask(1, 6, 6, mask_function=every_other)
    heads = heads_of(mask, length=6)
    assert heads.visible.where is not None
    seen = trace_heads(heads)["visible"][0]
    i, j = np.indices((6, 6))
    assert (seen == ((j <= i) & ((i - j) % 2 == 0))).all()


def test_a_rule_that_only_looks_familiar_is_not_believed():
    """The recognised form must evaluate the same; a doctored building block does not."""
    part = masking.sliding_window_overlay(3)
    doctored = SimpleNamespace(
        __module__=part.__module__, __qualname__=part.__qualname__, __code__=part.__code__,
        __closure__=part.__closure__,
    )  # fmt: skip

    class Doctored:
        def __getattr__(self, name: str) -> object:
            return getattr(doctored, name)

        def __call__(self, batch, head, query, key):
            return key > query - 2

    rule = masking.and_masks(Doctored(), masking.causal_mask_function)
    mask = LazyMask(rule, (1, 1, 6, 6))
    found = read_rule(mask, Cut(0, (0, 6), (0, 6)))
    assert found.where is not None


def test_padding_that_real_tokens_see_is_refused():
    from attnviz.errors import ResourceError

    mask = LazyMask(masking.bidirectional_mask_function, (2, 1, 4, 4))
    with pytest.raises(ResourceError, match="look at padding"):
        read_rule(mask, Cut(0, (1, 4), (1, 4)))


def test_a_mask_that_is_computed_with_becomes_dense_up_to_a_limit(monkeypatch):
    from attnviz.errors import ResourceError

    mask = make_mask(1, 4, 4)
    dense = mask + 0.0
    assert (dense[0, 0].triu(1)[0, 1:] == torch.finfo(torch.float32).min).all()
    assert isinstance(mask.detach(), LazyMask)
    monkeypatch.setattr(lazy_mask, "MATERIALISE_LIMIT_CELLS", 15)
    with pytest.raises(ResourceError, match="computes with its 4 × 4 mask"):
        mask + 0.0


@pytest.mark.parametrize("n_kv", [1, 2, 4])
@pytest.mark.parametrize("kind", ["none", "causal", "window", "padded", "softcap", "sinks", "bias"])
def test_what_the_model_goes_on_with_is_the_formula(kind, n_kv, monkeypatch):
    from attnviz.sources.models.capture import interface

    monkeypatch.setattr(interface, "_BLOCK_BYTES", 4000)
    torch.manual_seed(1)
    q = torch.randn(2, 4, 37, 8) * 2
    k, v = torch.randn(2, n_kv, 37, 8), torch.randn(2, n_kv, 37, 6)
    real = torch.ones(2, 37, dtype=torch.bool)
    real[1, :9] = False
    masks = {
        "none": None,
        "window": make_mask(
            2, 37, 37, mask_function=masking.sliding_window_causal_mask_function(5)
        ),
        "padded": make_mask(2, 37, 37, attention_mask=real),
    }
    more = {
        "softcap": {"softcap": 1.5},
        "sinks": {"sinks": torch.randn(4)},
        "bias": {"bias": torch.randn(1, 4, 37, 37)},
    }.get(kind, {})
    mask = masks.get(kind, make_mask(2, 37, 37))
    record = Record(0, torch.nn.Identity(), q, k, v, 0.4, mask=mask, **more)
    _, expected = formula_rows(record)
    found = fused_output(record)
    valid = slice(9, None) if kind == "padded" else slice(None)
    assert torch.allclose(found[:, :, valid], expected[:, :, valid], atol=2e-6)


def test_nothing_reaches_the_network(tmp_path: Path) -> None:
    """In an empty network namespace where the machine allows one; a socket ends the process."""
    folder = write_model(tmp_path / "tiny")
    code = f"""
import socket, sys
def no(*_, **__):
    sys.exit("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = no
from attnviz.cli.main import run_guarded
assert run_guarded(["explain", "hello world", "-m", {str(folder)!r}, "-f", "plain"]) == 0
import os
print(os.environ["HF_HUB_OFFLINE"])
"""
    inside = ["unshare", "-rn"] if has_namespaces() else []
    if inside:
        routes = subprocess.run(
            [*inside, "cat", "/proc/net/route"], capture_output=True, check=True
        )
        assert len(routes.stdout.splitlines()) <= 1
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [*inside, sys.executable, "-c", code], capture_output=True, text=True, check=False,
        timeout=120, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "output = the model's own (within" in done.stdout
    assert done.stdout.splitlines()[-1] == "1"


def has_namespaces() -> bool:
    """True where a process may have an empty network of its own."""
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode == 0
    )


def test_encoder_decoders_show_three_kinds(tmp_path: Path):
    import transformers

    from attnviz.sources.models.source import open_model

    settings = {
        "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings))
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    sizes = {}
    for which in ("encoder", "self", "cross"):
        source = open_model(tmp_path, which=which, target="hello bear bear world !")
        tokens = source.tokenize("hello world")
        found: list[LayerHeads] = []
        source.run(tokens, source.layers, found.append)
        sizes[which] = (found[0].n_queries, found[0].n_keys)
        assert len(source.queries(tokens)) == found[0].n_queries
        assert len(source.keys(tokens)) == found[0].n_keys
        for heads in found:
            error = np.abs(trace_heads(heads)["output"] - heads.own_output.numpy()).max()
            assert error <= 1e-5
    assert sizes == {"encoder": (3, 3), "self": (7, 7), "cross": (7, 3)}
    assert open_model(tmp_path).which == "encoder"
    written = open_model(tmp_path, which="self")
    tokens = written.tokenize("hello world")
    assert 1 <= len(written.queries(tokens)) <= 33
