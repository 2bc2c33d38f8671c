"""Windows of every width, keyboards, paper, high contrast: what a page owes to whoever opens it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_layer, make_stack

from attnviz.records import MaskRule
from attnviz.render.page.build import build_page

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "while",
    "reading",
    "beautiful",
    "stories",
]
VIEWS = ("heatmap", "links", "grid", "pair")
FOLDS = ("whatif", "take", "howto", "about")
SCHEMES: tuple[dict[str, str], ...] = ({"color_scheme": "dark"}, {"forced_colors": "active"})


def page_of(n_tokens: int = 12, *, n_heads: int = 4, n_layers: int = 2) -> str:
    layers = [
        make_layer(n_tokens, n_heads=n_heads, d_k=16, seed=n, patterned=True,
                   visible=MaskRule(causal=n == 1))
        for n in range(n_layers)
    ]  # fmt: skip
    return build_page(make_stack(layers, [WORDS[i % 12] for i in range(n_tokens)]))


def settle(page: Any) -> None:
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip("axe_playwright_python", reason="needs the extra 'dev'")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def complaints(page: Any) -> list[str]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{v['id']}: {n['html'][:80]}" for v in found["violations"] for n in v["nodes"]]


@pytest.mark.parametrize("width", [320, 375, 800, 1058, 1440])
def test_axe_finds_nothing(width: int, axe: str, open_page: Callable) -> None:
    opened = open_page(page_of(), width=width, bypass_csp=True, color_scheme="light")
    page = opened.page
    for fold in FOLDS:
        page.click(f"#{fold} summary")
    page.evaluate(axe)
    for view in VIEWS:
        page.click(f"#tab-{view}")
        settle(page)
        if width in (320, 1058) or view == "pair":  # the other views have the same controls
            assert complaints(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in SCHEMES:  # colours are all that differs: one view tells
        page.emulate_media(**scheme)
        settle(page)
        assert complaints(page) == [], scheme
    page.click("#walk")
    assert complaints(page) == []


def test_axe_would_find_a_name_that_is_missing(axe: str, open_page: Callable) -> None:
    page = open_page(page_of(), bypass_csp=True).page
    page.evaluate(axe)
    page.evaluate("document.getElementById('stage').removeAttribute('aria-label')")
    assert any(line.startswith("select-name") for line in complaints(page))


def test_every_name_is_whole_at_every_width(open_page: Callable) -> None:
    page = open_page(page_of()).page
    for width in range(320, 1601, 20):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        assert page.locator("#heatmap").get_attribute("data-cut") == "0", width
        cut = "[...document.querySelectorAll('#row-body bdi, #strip bdi, #cell-name bdi')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
        assert page.evaluate(cut) == 0, width
        hidden = "[...document.querySelectorAll('#row-body th')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
        assert page.evaluate(hidden) == 0, width


@pytest.mark.parametrize("size", [(1280, 720), (1366, 768), (1440, 900)])
def test_twelve_tokens_are_whole_on_one_screen(size: tuple[int, int], open_page: Callable) -> None:
    page = open_page(page_of(), width=size[0], height=size[1]).page
    box = page.locator("#legend").bounding_box()
    assert box["y"] + box["height"] <= size[1]
    canvas = page.locator("#heatmap")
    assert float(canvas.get_attribute("data-cell")) >= 16
    assert canvas.bounding_box()["y"] >= 0


def test_every_stop_of_the_keyboard_shows_where_it_is(open_page: Callable) -> None:
    """A ring that is seen: not cut by what scrolls around it."""
    page = open_page(page_of(), width=1058).page
    seen: list[str] = []
    for view in VIEWS:
        page.click(f"#tab-{view}")
        page.evaluate("document.activeElement.blur()")
        for _ in range(40):
            page.keyboard.press("Tab")
            name, ring, inside = page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.id || e.className || e.tagName, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2,"
                " e.tagName !== 'CANVAS' || parseFloat(s.outlineOffset) <= -2]; }"
            )
            if name == "BODY":
                break
            seen.append(name)
            assert ring, name
            assert inside, name
    assert {"heatmap", "links", "grid", "pair", "neuron", "strip", "side", "stage"} - set(seen) <= {
        "strip"
    }


def test_a_phone_keeps_the_tapped_value_in_sight(open_page: Callable) -> None:
    opened = open_page(page_of(), width=375, height=667, has_touch=True, is_mobile=True)
    page = opened.page
    x, y = opened.point(5, 3)
    page.touchscreen.tap(x, y)
    settle(page)
    box = page.locator("#peek").bounding_box()
    assert box["y"] + box["height"] <= 667
    assert page.locator("#peek b").inner_text().endswith("%")
    page.evaluate("window.scrollTo(0, 400)")
    settle(page)
    assert page.locator("header").bounding_box()["y"] < 0  # it does not stay above what is read


def test_paper_is_white_and_nothing_is_cut(open_page: Callable) -> None:
    page = open_page(page_of(), width=703, color_scheme="dark").page  # A4 less its margins
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    settle(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    beyond = page.evaluate(
        "[...document.querySelectorAll('body *')].filter((e) => e.offsetParent && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map((e) => e.id || e.className || e.tagName)"
    )
    assert beyond == []
    for name in ("theme", "zoom-field", "peek", "layer-after"):
        assert not page.locator(f"#{name}").is_visible()
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_without_scripts_a_page_says_what_it_needs(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "allow scripts" in page.locator("noscript").inner_text()
    context.close()


def test_the_grid_reads_out_the_head_that_the_keys_chose(open_page: Callable) -> None:
    page = open_page(page_of(24)).page
    page.click("#tab-grid")
    page.locator('#grid[data-done="8"]').wait_for()
    page.focus("#grid")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    settle(page)
    assert page.locator("#grid-note").inner_text().startswith("L1.H1: strongest link")


def test_a_table_of_all_keys_does_not_slow_the_pointer(open_page: Callable) -> None:
    """The rows of another query are written when the pointer rests, not at every move."""
    opened = open_page(page_of(100, n_layers=1))
    page = opened.page
    page.click("#row-all")
    page.evaluate(
        "() => { window.rows = 0; new MutationObserver((all) => { window.rows += all.length; })"
        ".observe(document.getElementById('row-body'), { childList: true }); }"
    )
    x, y = opened.point(10, 10)
    for step in range(20):
        page.mouse.move(x, y + 2 * step)
    assert page.evaluate("window.rows") <= 4
    page.locator("#row-name", has_text="looks").wait_for()
    page.wait_for_timeout(300)
    assert page.locator("#row-body tr").count() == 100
