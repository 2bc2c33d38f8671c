"""A page of weights alone: every cell as it was given, and nothing that needs q and k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnviz.errors import ResourceError, UsageError
from attnviz.render.page.build import page_of
from attnviz.render.page.maps import encode_maps
from attnviz.runs.show import show

DRAW = np.random.default_rng(0)
WORDS = ["A", "cute", "teddy", "bear", "is", "reading", "a", "book", "under", "the", "old", "tree"]


def maps(n_layers: int, n_heads: int, n: int, dtype: type = np.float32) -> np.ndarray:
    powers = np.exp(2 * DRAW.standard_normal((n_layers, n_heads, n, n)))
    found: np.ndarray = (powers / powers.sum(axis=-1, keepdims=True)).astype(dtype)
    return found


WEIGHTS_AT = """(cells) => cells.map(([layer, head, query, key]) => {
  for (const [name, value] of [['layer', layer], ['head', head]]) {
    const select = document.getElementById(name);
    select.value = String(value);
    select.dispatchEvent(new Event('change'));
  }
  const c = document.getElementById('heatmap'), d = c.dataset, b = c.getBoundingClientRect(), n = Number;
  c.dispatchEvent(new PointerEvent('pointermove', { pointerType: 'mouse', bubbles: true,
    clientX: b.left + n(d.left) + (key + 0.5) * n(d.cell), clientY: b.top + n(d.top) + (query + 0.5) * n(d.cell) }));
  return Number(document.querySelector('[data-value="weight"]').textContent);
})"""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_hundred_cells_are_those_that_were_given(open_page: Callable, dtype: type) -> None:
    given = maps(2, 3, 12, dtype)
    opened = open_page(page_of(show(given, WORDS)))
    cells = DRAW.integers((2, 3, 12, 12), size=(200, 4))
    shown = opened.page.evaluate(WEIGHTS_AT, cells.tolist())
    np.testing.assert_allclose(shown, given[tuple(cells.T)], atol=5.1e-7)
    assert opened.is_quiet


def test_what_needs_q_and_k_is_not_offered_and_the_rest_works(open_page: Callable) -> None:
    given = maps(2, 4, 12)
    opened = open_page(page_of(show(given, WORDS)))
    page = opened.page
    for name in ("neuron", "whatif", "walk"):
        assert not page.locator(f"#{name}").is_visible()
    stages = page.locator("#stage option").evaluate_all("(all) => all.map((o) => o.value)")
    assert stages == ["weights", "mean", "max", "rollout", "change", "versus"]
    for stage, wanted in (("mean", given[0].mean(axis=0)), ("max", given[0].max(axis=0))):
        page.select_option("#stage", stage)
        opened.hover(3, 4)
        assert opened.value("shown") == pytest.approx(wanted[3, 4], abs=1e-6)
    for view in ("links", "grid", "pair", "heatmap"):
        page.click(f"#tab-{view}")
    page.click("#side")
    received = float(page.locator("#row-note").get_attribute("data-received"))
    key = int(page.locator("#cell").get_attribute("data-key"))
    assert received == pytest.approx(given[0, 0, :, key].sum(), abs=1e-6)
    page.check("#no-sinks")
    for fold in ("howto", "about", "take"):
        page.click(f"#{fold} summary")
    assert opened.is_quiet


def test_q_and_k_without_v_have_a_page_without_shares_of_z(open_page: Callable) -> None:
    q, k = DRAW.standard_normal((2, 12, 8)), DRAW.standard_normal((2, 12, 8))
    trace = show(tokens=WORDS, q=q, k=k)
    opened = open_page(page_of(trace))
    opened.hover(5, 2)
    assert opened.value("weight") == pytest.approx(trace.stages["weights"][0, 0, 5, 2], abs=1e-6)
    assert opened.page.locator('[data-value="share"]').count() == 0
    assert opened.page.locator("#neuron").is_visible()
    assert opened.is_quiet


def test_causal_maps_and_two_texts_keep_their_cells(open_page: Callable) -> None:
    causal = np.tril(maps(1, 1, 12)[0, 0])
    opened = open_page(page_of(show(causal, WORDS)))
    opened.hover(2, 5)
    assert opened.page.locator('[data-name="masked"]').count() == 1
    cross = maps(1, 2, 12)[:, :, :7]
    opened = open_page(page_of(show(cross, WORDS[:7], key_tokens=WORDS)))
    opened.hover(6, 11)
    assert opened.value("weight") == pytest.approx(cross[0, 0, 6, 11], abs=1e-6)


def test_a_large_page_holds_fewer_bits_and_says_the_error() -> None:
    given = maps(2, 2, 64)
    whole = encode_maps(show(given))
    assert (whole.header["numbers"], whole.header["weight_error"]) == ("float32", 0.0)
    for budget, kind, allowed in ((0.15, "uint16", 2e-5), (0.13, "uint8", 4e-3)):
        found = encode_maps(show(given), budget_mb=budget)
        assert found.header["numbers"] == kind
        assert 0 < found.header["weight_error"] <= allowed
        assert found.n_bytes <= budget * 1e6
    with pytest.raises(ResourceError, match=r"even in 8 bits: at most 0\.1 MB"):
        encode_maps(show(given), budget_mb=0.1)
    with pytest.raises(
        UsageError, match="negative weights, NaN and weights above 1 are kept as floats"
    ):
        encode_maps(show(-given), budget_mb=0.15)


def test_twelve_by_twelve_heads_of_512_tokens_fit_into_the_budget_of_today() -> None:
    one = np.full((1, 1, 512, 512), 1 / 512, np.float32)
    trace = show(np.broadcast_to(one, (12, 12, 512, 512)))
    assert encode_maps(trace).n_bytes <= 64e6
