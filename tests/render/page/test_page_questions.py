"""What a reader asks a page, in a real Chromium: every number is the command line's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic import make_layer, make_stack

from attnviz.core import reference
from attnviz.core.measures.flow import rollout, value_norms, without_sinks
from attnviz.core.measures.patterns import Facts, score
from attnviz.records import HeadChoice, LayerHeads, LayerStack, MaskRule
from attnviz.render.page.build import build_page
from attnviz.runs.what_if import WhatIf

N = 14
CELLS = [(0, 0), (3, 2), (7, 7), (13, 5), (13, 13)]
LABELS = [f"word{i % 5}" for i in range(N)]


def stack_with_special(**more: Any) -> LayerStack:
    """Three layers of four heads on fourteen tokens; the first and the last were added."""
    layers = [
        make_layer(N, n_heads=4, n_kv_heads=2, d_k=16, seed=n, patterned=True, **more)
        for n in range(3)
    ]
    stack = make_stack(layers, LABELS)
    ids = tuple(i % 5 for i in range(N))
    special = tuple(i in (0, N - 1) for i in range(N))
    tokens = replace(stack.tokens, ids=ids, special=special)
    return replace(stack, about=replace(stack.about, tokens=tokens))


def weights_of(layer: LayerHeads, what_if: WhatIf | None = None) -> np.ndarray:
    changed = what_if.apply(layer) if what_if else layer
    return np.asarray(reference.trace_heads(changed)["weights"])


def choose(page: Any, name: str, value: str) -> None:
    page.select_option(f"#{name}", value)


def settle(page: Any) -> None:
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


@pytest.fixture
def opened(open_page: Callable) -> Any:
    return open_page(build_page(stack_with_special(), links=()))


def test_the_column_of_a_key_says_who_looks_at_it(opened: Any) -> None:
    weights = weights_of(stack_with_special().layers[1])[2]
    page = opened.page
    choose(page, "layer", "1")
    choose(page, "head", "2")
    x, y = opened.point(7, 4)
    page.mouse.click(x, y)
    page.click("#side")
    assert page.locator("#row-name").inner_text() == "Who looks at 4:word4"
    received = float(page.locator("#row-note").get_attribute("data-received"))
    assert received == pytest.approx(weights[:, 4].sum(), abs=1e-6)
    page.click("#row-all")
    shown = page.locator("#row-body td:nth-of-type(3)").all_inner_texts()
    expected = [f"{100 * weight:.2f} %" for weight in weights[:, 4]]
    assert shown == expected
    shade = page.locator('#strip .chip[data-label="word2"]').first.get_attribute("aria-label")
    assert shade == f"token 2 word2, looks at the key with {100 * weights[2, 4]:.1f} %"


def test_the_pair_map_holds_the_cell_of_every_head(opened: Any) -> None:
    stack = stack_with_special()
    page = opened.page
    x, y = opened.point(5, 4)
    page.mouse.click(x, y)
    page.click("#tab-pair")
    settle(page)
    canvas = page.locator("#pair")
    place = canvas.bounding_box()
    facts = {name: float(canvas.get_attribute(f"data-{name}")) for name in ("pitch", "left", "top")}
    for layer, head in ((0, 0), (1, 3), (2, 1)):
        weight = weights_of(stack.layers[layer])[head, 5, 4]
        at = (place["x"] + facts["left"] + (head + 0.5) * facts["pitch"],
              place["y"] + facts["top"] + (layer + 0.5) * facts["pitch"])  # fmt: skip
        page.mouse.move(*at)
        assert (
            page.locator("#pair-note").inner_text()
            == f"L{layer}.H{head} gives {100 * weight:.2f} %"
        )
        page.mouse.click(*at)
        assert opened.value("weight") == pytest.approx(weight, abs=1e-6)
    assert opened.is_quiet


CHANGES = {
    "causal": (WhatIf(causal=True), ["#causal"], {}),
    "window": (WhatIf(window=4), [], {"#window": "4"}),
    "causal window": (WhatIf(causal=True, window=3), ["#causal"], {"#window": "3"}),
}


@pytest.mark.parametrize("own", [MaskRule(), MaskRule(window=5)], ids=["open", "windowed"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_what_if_gives_the_weights_of_the_command_line(
    name: str, own: MaskRule, open_page: Callable
) -> None:
    what_if, boxes, numbers = CHANGES[name]
    stack = stack_with_special(visible=own)
    opened = open_page(build_page(stack))
    page = opened.page
    page.click("#whatif summary")
    for box in boxes:
        page.check(box)
    for box, value in numbers.items():
        page.fill(box, value)
        page.press(box, "Enter")
    changed, plain = weights_of(stack.layers[0], what_if)[0], weights_of(stack.layers[0])[0]
    for query, key in CELLS:
        opened.hover(query, key)
        assert opened.value("weight") == pytest.approx(changed[query, key], abs=1e-6)
        assert opened.value("before") == pytest.approx(plain[query, key], abs=1e-6)
    choose(page, "stage", "change")
    opened.hover(7, 7)
    assert opened.value("shown") == pytest.approx(changed[7, 7] - plain[7, 7], abs=2e-6)
    page.click("#whatif-reset")
    opened.hover(7, 7)
    assert opened.value("weight") == pytest.approx(plain[7, 7], abs=1e-6)
    assert opened.is_quiet


def test_temperature_is_a_scale_and_a_masked_key_is_gone(opened: Any) -> None:
    layer = stack_with_special().layers[0]
    page = opened.page
    page.click("#whatif summary")
    page.evaluate(
        "() => { const t = document.getElementById('temperature'); t.value = Math.log10(2.5);"
        " t.dispatchEvent(new Event('input')); }"
    )
    temperature = float(page.locator("#temperature-now").inner_text())
    warm = weights_of(layer, WhatIf(scale=layer.scale / temperature))[0]
    for query, key in CELLS:
        opened.hover(query, key)
        assert opened.value("weight") == pytest.approx(warm[query, key], abs=1e-6)
    page.click("#whatif-reset")
    x, y = opened.point(7, 6)
    page.mouse.click(x, y)
    page.click("#hide-key")
    seen = np.ones((N, N), bool)
    seen[:, 6] = False
    rest = weights_of(replace(layer, visible=MaskRule(cells=seen)))[0]
    for query, key in [*CELLS, (7, 6)]:
        opened.hover(query, key)
        assert opened.value("weight") == pytest.approx(rest[query, key], abs=1e-6)


def test_without_sinks_the_rest_is_rescaled_and_what_remained_is_said(opened: Any) -> None:
    layer = stack_with_special().layers[0]
    weights = weights_of(layer)[0]
    is_sink = np.isin(np.arange(N), (0, N - 1))
    rest = without_sinks(weights, is_sink)
    opened.page.check("#no-sinks")
    for query, key in CELLS:
        opened.hover(query, key)
        assert opened.value("weight") == pytest.approx(rest[query, key], abs=1e-6)
        assert opened.value("left") == pytest.approx(weights[query, ~is_sink].sum(), abs=1e-6)
    assert opened.page.locator("#hidden-word").inner_text() == "left out"


def shown_stages(stack: LayerStack) -> dict[str, np.ndarray]:
    """Of layer 1, head 2."""
    maps = [weights_of(layer) for layer in stack.layers]
    layer, own = stack.layers[1], maps[1][2]
    lengths = value_norms(layer.v, n_heads=4)[2]
    brought = own * lengths
    return {
        "share": brought / brought.sum(axis=-1, keepdims=True),
        "mean": maps[1].mean(axis=0),
        "max": maps[1].max(axis=0),
        "rollout": rollout(maps[:2]),
        "versus": own - maps[1][0],
    }


def test_every_map_of_the_heatmap_is_the_programs(opened: Any) -> None:
    page = opened.page
    choose(page, "layer", "1")
    choose(page, "head", "2")
    for stage, values in shown_stages(stack_with_special()).items():
        choose(page, "stage", stage)
        for query, key in CELLS:
            opened.hover(query, key)
            name = "share" if stage == "share" else "shown"
            assert opened.value(name) == pytest.approx(values[query, key], abs=1e-6), stage
    assert opened.is_quiet


def test_the_grid_sorts_by_the_patterns_of_heads(opened: Any) -> None:
    stack = stack_with_special()
    facts = Facts(np.array(stack.tokens.ids), np.array(stack.tokens.special), np.zeros(N))
    page = opened.page
    page.click("#tab-grid")
    page.locator('#grid[data-done="12"]').wait_for()
    for pattern in ("previous", "self", "first", "induction", "special"):
        scores = np.stack([
            score(weights_of(layer), np.ones((4, N, N), bool), facts)[pattern].scores
            for layer in stack.layers
        ])  # fmt: skip
        choose(page, "grid-sort", pattern)
        settle(page)
        box = page.locator("#grid").bounding_box()
        page.mouse.click(box["x"] + 40, box["y"] + 40)
        best = np.unravel_index(np.argmax(scores), scores.shape)
        chosen = [int(page.locator(f"#{name}").input_value()) for name in ("layer", "head")]
        assert chosen == [int(n) for n in best], pattern


def test_the_page_opens_at_its_link_and_offers_the_others(open_page: Callable) -> None:
    links = [HeadChoice(2, 1, 9, 3, 0.5, 0, 0, 0.5), HeadChoice(0, 3, 4, 1, 0.25, 0, 0, 0.2)]
    opened = open_page(build_page(stack_with_special(), links=links))
    page = opened.page
    where = "[...['layer', 'head'].map((n) => +document.getElementById(n).value), +document.getElementById('cell').dataset.query, +document.getElementById('cell').dataset.key]"
    assert page.evaluate(where) == [2, 1, 9, 3]
    buttons = page.locator("#insight-others button")
    assert buttons.all_inner_texts() == [
        "L2.H1: 9:word4 → 3:word3 50 %",
        "L0.H3: 4:word4 → 1:word1 25 %",
    ]
    buttons.nth(1).click()
    assert page.evaluate(where) == [0, 3, 4, 1]
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"


def test_the_whole_choice_is_in_the_address_and_pasting_one_opens_it(open_page: Callable) -> None:
    opened = open_page(build_page(stack_with_special()))
    page = opened.page
    page.click("#theme")
    page.click("#whatif summary")
    page.check("#causal")
    choose(page, "stage", "share")
    choose(page, "scaling", "log")
    page.click("#side")
    address = page.evaluate("location.hash")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("location.hash") == address
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("#stage").input_value() == "share"
    assert page.locator("#scaling").input_value() == "log"
    page.evaluate("location.hash = '#L2.H3.q8.k1.links'")
    settle(page)
    assert page.locator("#layer").input_value() == "2"
    assert page.locator("#cell").get_attribute("data-query") == "8"
    assert page.locator("#panel-links").is_visible()
    assert not page.is_checked("#causal")
    page.evaluate(
        "location.hash = '#L0.H0.q1.k1.heatmap;stage=<b>;hidden=99;other=-4;temperature=0;zzz'"
    )
    settle(page)
    assert opened.is_quiet


def test_keys_step_through_heads_and_find_a_token(opened: Any) -> None:
    page = opened.page
    page.keyboard.press("]")
    page.keyboard.press("}")
    assert [page.locator(f"#{name}").input_value() for name in ("layer", "head")] == ["1", "1"]
    page.keyboard.press("[")
    page.keyboard.press("{")
    assert [page.locator(f"#{name}").input_value() for name in ("layer", "head")] == ["0", "0"]
    page.keyboard.press("/")
    page.keyboard.type("ord3")
    assert page.locator("#find-note").inner_text() == "3 tokens, Enter goes through them"
    page.keyboard.press("Enter")
    assert page.locator("#cell").get_attribute("data-query") == "8"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#howto").get_attribute("open") is not None


def test_the_walk_shows_this_sentences_numbers(opened: Any) -> None:
    page = opened.page
    stages = reference.trace_heads(stack_with_special().layers[0])
    query = int(page.locator("#cell").get_attribute("data-query"))
    page.click("#walk")
    names = page.locator("#tour-picture .placed").all_inner_texts()
    keys = [int(name.split(":")[0]) for name in names]
    for stage in ("scores", "scaled", None, "weights"):
        if stage:
            shown = [float(t) for t in page.locator("#tour-picture b").evaluate_all(
                "(all) => all.map((b) => b.title.replace('−', '-'))")]  # fmt: skip
            np.testing.assert_allclose(shown, stages[stage][0, query, keys], atol=1e-6)
        page.click("#tour-after")
    assert page.locator("#tour-after").is_disabled()
    page.keyboard.press("Escape")
    assert not page.locator("#tour").is_visible()


def test_numbers_and_pictures_can_be_taken_away(opened: Any) -> None:
    page = opened.page
    weights = weights_of(stack_with_special().layers[0])[0]
    page.click("#take summary")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#take-numbers")
    page.get_by_text("copied the row").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").split("\n")
    query = int(page.locator("#cell").get_attribute("data-query"))
    copied = [float(line.split("\t")[-1]) for line in lines[2:]]
    np.testing.assert_allclose(copied, weights[query], atol=1e-7)
    with page.expect_download() as told:
        page.click("#take-svg")
    svg = told.value.path().read_text(encoding="utf-8")
    assert svg.count("<rect") == 1 + N * N
    assert f">{weights[2, 3]:.2f}</text>" in svg
    with page.expect_download() as told:
        page.click("#take-png")
    assert told.value.path().read_bytes().startswith(b"\x89PNG")
    assert told.value.suggested_filename == "attnviz-L0.H0-heatmap.png"
