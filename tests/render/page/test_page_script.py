"""The page's own arithmetic, run by node on whole matrices, against the numpy reference."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_layer

from attnviz.core import reference
from attnviz.records import MaskRule
from attnviz.render.page.build import bundle
from attnviz.render.page.rules import describe_bias, describe_mask

SCRIPTS = resources.files("attnviz.render.page") / "js"

DRIVER = """
import { readFileSync } from "node:fs";
import { attend, blend, entropyBits, poolByMax } from "./maths.mjs";
const cases = JSON.parse(readFileSync(0, "utf8"));
const out = cases.map((head) => {
  const found = attend(head);
  const blends = Array.from({ length: head.nQueries }, (_, i) => blend(head, found.weights, i * head.nKeys));
  return {
    scores: [...found.scores], weights: [...found.weights], sinks: [...found.sinkShares],
    brought: blends.flatMap((b) => [...b.brought]), along: blends.flatMap((b) => [...(b.along ?? [])]),
    bits: blends.map((_, i) => entropyBits(found.weights, i * head.nKeys, head.nKeys)),
  };
});
process.stdout.write(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("no node: apt-get install -y nodejs")
    return found


def run_node(node: str, folder: Path, driver: str, data: object) -> object:
    for file in SCRIPTS.iterdir():
        (folder / file.name.replace(".js", ".mjs")).write_text(
            file.read_text(encoding="utf-8").replace('.js"', '.mjs"'), encoding="utf-8"
        )
    (folder / "driver.mjs").write_text(driver, encoding="utf-8")
    done = subprocess.run(
        [node, str(folder / "driver.mjs")], input=json.dumps(data), text=True, capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def head_of(layer, head: int) -> dict:
    """What the page's data module hands to the arithmetic, as JSON."""
    mask, bias = describe_mask(layer), describe_bias(layer)
    group = head // (layer.n_heads // layer.n_kv_heads)

    def own(array):
        return np.asarray(array[min(head, len(array) - 1)]).ravel().tolist()

    return {
        "nQueries": layer.n_queries, "nKeys": layer.n_keys, "width": layer.d_k, "valueWidth": layer.d_v,
        "q": layer.q[head].ravel().tolist(), "k": layer.k[group].ravel().tolist(),
        "v": layer.v[group].ravel().tolist(), "scale": layer.scale, "softcap": layer.softcap,
        "sink": None if layer.sinks is None else float(layer.sinks[head]),
        "mask": mask.facts, "bits": own(mask.arrays["mask"]) if mask.arrays else None,
        "bias": bias.facts, "biases": own(bias.arrays["bias"]) if bias.arrays else None,
    }  # fmt: skip


def layers() -> dict[str, object]:
    draw = np.random.default_rng(3).standard_normal
    key, query = np.arange(11)[None, :], np.arange(11)[:, None]
    odd = np.random.default_rng(4).random((4, 11, 11)) > 0.5
    odd[:, 3] = False
    make = {
        "plain": {},
        "causal": {"visible": MaskRule(causal=True)},
        "window": {"visible": MaskRule(causal=True, window=4)},
        "centred window": {"visible": MaskRule(window=4)},
        "chunk": {"visible": MaskRule(causal=True, chunk=3)},
        "padding": {"visible": MaskRule(key_visible=np.arange(11) < 8)},
        "cells, a row that sees nothing": {"visible": MaskRule(cells=odd)},
        "by index": {"visible": MaskRule(where=lambda h, q, k: (q + k + h) % 3 > 0)},
        "softcap": {"softcap": 2.0, "visible": MaskRule(causal=True)},
        "distance bias, capped": {"bias": draw((4, 21))[:, key - query + 10], "softcap": 5.0},
        "key bias": {"bias": np.broadcast_to(draw((1, 1, 11)), (1, 11, 11))},
        "dense bias": {"bias": draw((4, 11, 11))},
        "sinks": {"sinks": draw(4), "visible": MaskRule(causal=True)},
        "sinks, a row that sees nothing": {"sinks": draw(4), "visible": MaskRule(cells=odd)},
        "large scores": {"softcap": None},
    }
    found = {
        name: make_layer(11, n_heads=4, n_kv_heads=2, d_k=6, d_v=5, dtype=np.float64, **more)
        for name, more in make.items()
    }
    found["large scores"].q[:] *= 1e4
    return found


def test_every_kind_of_head_equals_the_reference(node, tmp_path):
    cases = [(name, layer, head) for name, layer in layers().items() for head in (0, 3)]
    answers = run_node(node, tmp_path, DRIVER, [head_of(layer, head) for _, layer, head in cases])
    for (name, layer, head), found in zip(cases, answers, strict=True):
        stages = {k: v[head] for k, v in reference.trace_heads(layer).items()}
        weights = stages["weights"]
        for ours, theirs in (("scores", stages["scores"]), ("weights", weights)):
            scale = max(1, np.abs(theirs).max())
            np.testing.assert_allclose(
                np.reshape(found[ours], (11, 11)), theirs, atol=1e-12 * scale, err_msg=name
            )
        np.testing.assert_allclose(found["bits"], reference.entropy_bits(weights), atol=1e-10)
        expected = 1 - weights.sum(-1)
        if layer.sinks is not None:
            np.testing.assert_allclose(found["sinks"], expected, atol=1e-12, err_msg=name)
        v_SF = layer.v[head // 2]
        brought = weights * np.linalg.norm(v_SF, axis=-1)
        np.testing.assert_allclose(np.reshape(found["brought"], (11, 11)), brought, atol=1e-12)
        z = stages["output"]
        square = np.maximum((z**2).sum(-1, keepdims=True), 1e-300)
        along = weights * (z @ v_SF.T) / square
        np.testing.assert_allclose(np.reshape(found["along"], (11, 11)), along, atol=1e-12)


def test_the_comparison_can_fail(node, tmp_path):
    layer = make_layer(5, d_k=6, dtype=np.float64)
    wrong = {**head_of(layer, 0), "scale": layer.scale * 1.01}
    found = run_node(node, tmp_path, DRIVER, [wrong])[0]
    true = reference.trace_heads(layer)["weights"][0]
    assert np.abs(np.reshape(found["weights"], (5, 5)) - true).max() > 1e-6


def test_pooling_keeps_the_strongest_cell(node, tmp_path):
    driver = """
import { readFileSync } from "node:fs";
import { poolByMax } from "./maths.mjs";
const values = Float64Array.from(JSON.parse(readFileSync(0, "utf8")));
const box = { row: 0, column: 0, rows: 100, columns: 100 };
process.stdout.write(JSON.stringify([...poolByMax(values, 100, 100, box, 7, 13)]));
"""
    values = np.random.default_rng(0).random((100, 100)) * 0.1
    values[53, 71] = 0.9
    values[10, 10] = -0.8
    pooled = np.reshape(run_node(node, tmp_path, driver, values.ravel().tolist()), (7, 13))
    assert pooled[53 * 7 // 100, 71 * 13 // 100] == np.float32(0.9)
    assert pooled[10 * 7 // 100, 10 * 13 // 100] == np.float32(-0.8)
    assert pooled.size == 91


def test_the_script_parses(node, tmp_path):
    (tmp_path / "bundle.js").write_text(bundle(), encoding="utf-8")
    done = subprocess.run(
        [node, "--check", str(tmp_path / "bundle.js")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(f.name for f in SCRIPTS.iterdir()))
def test_a_module_holds_one_idea(name):
    text = (SCRIPTS / name).read_text(encoding="utf-8")
    assert text.startswith("// ")
    assert len(text.splitlines()) <= 400
