"""The page in a real Chromium: hostile tokens, numbers under the pointer, keys, small screens."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from synthetic import hostile_tokens, make_layer, make_stack

import attnviz
from attnviz.core import reference
from attnviz.records import MaskRule
from attnviz.render.page.build import build_page
from attnviz.render.page.encode import stack_of
from attnviz.render.tokens import visible

UNITS = "[...document.querySelectorAll('#strip .chip')].map(c => [c.dataset.label, c.textContent].map(s => Array.from({length: s.length}, (_, i) => s.charCodeAt(i))))"


def code_units(text: str) -> list[int]:
    raw = text.encode("utf-16-le", "surrogatepass")
    return np.frombuffer(raw, "<u2").tolist()


def see_everything(opened) -> None:
    """Open every view and every fold."""
    page = opened.page
    for view in ("links", "grid", "heatmap"):
        page.click(f"#tab-{view}")
        page.evaluate("() => new Promise(requestAnimationFrame)")
    for fold in ("howto", "about"):
        page.click(f"#{fold} summary")
    if page.locator("#row-all").is_visible():
        page.click("#row-all")
    page.wait_for_timeout(250)


def test_500_hostile_tokens_come_through_and_do_nothing(open_page: Callable):
    labels = hostile_tokens(500)
    html = build_page(make_stack([make_layer(500, d_k=4)], labels))
    opened = open_page(html)
    shown = opened.page.evaluate(UNITS)
    assert [exact for exact, _ in shown] == [code_units(label) for label in labels]
    assert [seen for _, seen in shown] == [code_units(visible(label)) for label in labels]
    see_everything(opened)
    table = opened.page.evaluate(
        "[...document.querySelectorAll('#row-body bdi')].map(t => t.textContent)"
    )
    assert table == [visible(label) for label in labels]
    assert opened.page.locator("#strip bdi").count() == 500
    assert (
        opened.page.locator("script").count()
        == opened.page.evaluate("document.scripts.length")
        == 2 + html.count('id="block-')
    )
    assert opened.is_quiet, (opened.dialogs, opened.requests, opened.complaints)


def test_the_hostile_test_can_fail(open_page: Callable):
    html = build_page(make_stack([make_layer(2)], ["a", "b"]))
    broken = html.replace(
        "</body>", "<img src='http://127.0.0.1:9/x.png'><script>alert(1)</script></body>"
    )
    opened = open_page(broken)
    opened.page.wait_for_timeout(200)
    assert not opened.dialogs  # the content security policy holds
    assert len(opened.complaints) >= 2
    unguarded = broken.replace("Content-Security-Policy", "X-Nothing")
    opened = open_page(unguarded)
    opened.page.wait_for_timeout(200)
    assert opened.dialogs == ["1"]
    assert opened.requests == ["http://127.0.0.1:9/x.png"]


def numbers_of(layer, head: int, query: int, key: int) -> dict[str, float]:
    stages = reference.trace_heads(layer)
    group = head // (layer.n_heads // layer.n_kv_heads)
    found = {
        "score": stages["scores"][head, query, key],
        "scaled": stages["scaled"][head, query, key],
        "weight": stages["weights"][head, query, key],
    }
    found |= {n: stages[n][head, query, key] for n in ("bias", "capped") if n in stages}
    v_SF = np.asarray(layer.v[group], np.float64)
    w_S = stages["weights"][head, query]
    brought = w_S * np.linalg.norm(v_SF, axis=-1)
    found["share"] = brought[key] / brought.sum()
    z = stages["output"][head, query]
    found["along"] = w_S[key] * (v_SF[key] @ z) / (z @ z)
    return found


def draw_bias(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, n, n)).astype(np.float32)


LAYERS = {
    "float32": lambda: make_layer(9, n_heads=4, n_kv_heads=2, d_k=64),
    "float64": lambda: make_layer(9, n_heads=4, n_kv_heads=2, d_k=64, dtype=np.float64),
    "causal window": lambda: make_layer(9, n_heads=4, visible=MaskRule(causal=True, window=4)),
    "capped, biased, with sinks": lambda: make_layer(
        9, n_heads=4, softcap=3.0, bias=draw_bias(9), sinks=np.arange(4, dtype=np.float32)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_numbers_under_the_pointer_are_the_programs(open_page: Callable, name: str):
    layer = LAYERS[name]()
    opened = open_page(build_page(make_stack([layer, layer])))
    for head, query, key in ((0, 0, 0), (3, 8, 5), (2, 4, 3), (1, 7, 7)):
        opened.page.select_option("#head", str(head))
        opened.hover(query, key)
        expected = numbers_of(layer, head, query, key)
        for what, value in expected.items():
            assert opened.value(what) == pytest.approx(value, abs=1e-6), (what, head, query, key)
    assert opened.is_quiet


def test_the_numbers_of_a_real_trace_are_those_of_explain(open_page: Callable):
    trace = attnviz.explain("A cute teddy bear is reading", head="all")
    opened = open_page(build_page(stack_of(trace)))
    stages = {name: values[0, 0] for name, values in trace.stages.items()}
    for query, key in ((0, 0), (2, 3), (3, 2), (5, 1)):
        opened.hover(query, key)
        for ours, theirs in (("score", "scores"), ("scaled", "scaled"), ("weight", "weights")):
            assert opened.value(ours) == pytest.approx(stages[theirs][query, key], abs=1e-6)


def test_a_compact_page_is_within_the_error_it_states(open_page: Callable):
    layer = make_layer(12, d_k=64, patterned=True)
    stack = make_stack([layer])
    opened = open_page(build_page(stack, compact=True))
    note = opened.page.locator("#precision-note").inner_text()
    error = float(note.split("within ")[1])
    weights = reference.trace_heads(layer)["weights"]
    for query, key in ((0, 0), (3, 3), (11, 5)):
        opened.hover(query, key)
        assert abs(opened.value("weight") - weights[0, query, key]) <= error * 1.06 + 5e-7
    assert 0 < error < 1e-3


def test_clicking_goes_through_layers_heads_tokens_and_views(open_page: Callable):
    layers = [make_layer(6, n_heads=3, seed=s, dtype=np.float64) for s in range(3)]
    opened = open_page(build_page(make_stack(layers)))
    page = opened.page
    page.click("#layer-after")
    page.click("#head-after")
    page.click("#head-after")
    assert page.locator("#layer").input_value() == "1"
    assert page.locator("#head").input_value() == "2"
    assert page.locator("#head-after").is_disabled()
    page.mouse.click(*opened.point(4, 1))
    page.mouse.move(2, 2)
    expected = numbers_of(layers[1], 2, 4, 1)
    assert opened.value("weight") == pytest.approx(expected["weight"], abs=1e-6)
    page.locator("#strip .chip").nth(5).click()
    page.mouse.move(2, 2)
    best = int(reference.trace_heads(layers[1])["weights"][2, 5].argmax())
    assert page.locator("#cell").get_attribute("data-query") == "5"
    assert page.locator("#cell").get_attribute("data-key") == str(best)
    page.locator('#row-body tr[data-key="0"]').click()
    assert page.locator("#cell").get_attribute("data-key") == "0"
    page.click("#tab-grid")
    page.wait_for_selector('#grid[data-done="9"]')
    box = page.locator("#grid").bounding_box()
    pitch = float(page.locator("#grid").get_attribute("data-pitch"))
    page.mouse.click(box["x"] + 34 + pitch * 0.5, box["y"] + 22 + pitch * 2.5)
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("2", "0")
    expected = numbers_of(layers[2], 0, 5, 0)
    assert opened.value("score") == pytest.approx(expected["score"], abs=1e-6)
    page.mouse.dblclick(box["x"] + 34 + pitch * 1.5, box["y"] + 22 + pitch * 0.5)
    assert page.locator("#heatmap").is_visible()
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("0", "1")
    page.click("#tab-links")
    box = page.locator("#links").bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 10 + 28 * 3.5)
    assert page.locator("#cell").get_attribute("data-query") == "3"
    page.click("#tab-heatmap")
    for stage in ("scores", "scaled", "masked"):
        page.select_option("#stage", stage)
    page.click("#theme")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert opened.is_quiet


def test_the_keyboard_reaches_everything(open_page: Callable):
    opened = open_page(
        build_page(make_stack([make_layer(20, n_heads=2, seed=s) for s in range(2)]))
    )
    page = opened.page
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.className")
        )
    for part in ("layer", "head", "theme", "tab-heatmap", "stage", "heatmap", "neuron", "row-all"):
        assert part in reached, (part, reached)
    assert any("chip" in name for name in reached)
    page.focus("#heatmap")
    page.keyboard.press("Home")
    start = int(page.locator("#cell").get_attribute("data-query"))
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    cell = page.locator("#cell")
    assert cell.get_attribute("data-query") == str(start + 1)
    assert cell.get_attribute("data-key") == "2"
    page.wait_for_function(
        "q => document.getElementById('live').textContent.startsWith(`query ${q} `)", arg=start + 1
    )
    assert "key 2 t2: weight" in page.locator("#live").inner_text()
    page.keyboard.press("+")
    page.keyboard.press("End")
    assert cell.get_attribute("data-key") == "19"
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert int(page.locator("#heatmap").get_attribute("data-column")) == 10  # the window followed
    page.keyboard.press("0")
    page.focus("#tab-heatmap")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-links").get_attribute("aria-selected") == "true"
    page.focus("#links")
    page.keyboard.press("ArrowUp")
    assert cell.get_attribute("data-query") == str(start)
    page.focus("#tab-links")
    page.keyboard.press("ArrowRight")
    page.focus("#grid")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("1", "1")
    page.focus("#neuron")
    page.keyboard.press("ArrowRight")
    assert page.locator("#live").inner_text().startswith("dimension 0: q ")
    assert opened.is_quiet


def color_at(opened, query: int, key: int) -> list[int]:
    """The colour of a cell, a little off its centre, where no digit stands."""
    return opened.page.evaluate(
        "([q, k]) => { const c = document.getElementById('heatmap'), d = c.dataset, n = Number,"
        " r = c.width / c.getBoundingClientRect().width,"
        " x = (n(d.left) + (k + 0.18) * n(d.cell)) * r, y = (n(d.top) + (q + 0.18) * n(d.cell)) * r;"
        " return [...c.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3) }",
        [query, key],
    )


def test_cells_have_the_colour_of_their_weight(open_page: Callable):
    layer = make_layer(6, patterned=True, d_k=16, visible=MaskRule(causal=True))
    opened = open_page(build_page(make_stack([layer])), color_scheme="light")
    weights = reference.trace_heads(layer)["weights"][0]
    ramp = np.array([[250, 250, 247], [214, 230, 232], [150, 193, 205], [77, 140, 168], [28, 87, 122], [8, 38, 68]])  # fmt: skip
    for query in range(6):
        for key in range(6):
            found = color_at(opened, query, key)
            if key > query:
                assert found == [229, 225, 217]
                continue
            level = round(255 * weights[query, key]) / 255 * 5
            expected = [np.interp(level, range(6), ramp[:, c]) for c in range(3)]
            np.testing.assert_allclose(found, expected, atol=1.5)


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_it_all_without_sideways_scrolling(open_page: Callable, width: int):
    layers = [make_layer(40, n_heads=12, seed=s) for s in range(2)]
    opened = open_page(
        build_page(make_stack(layers, [f"word{i}" * (1 + i % 4) for i in range(40)])),
        width=width, height=740, device_scale_factor=2, has_touch=True, is_mobile=True,
    )  # fmt: skip
    page = opened.page
    for view in ("heatmap", "links", "grid"):
        page.tap(f"#tab-{view}")
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.tap("#tab-heatmap")
    x, y = opened.point(30, 10)
    page.touchscreen.tap(x, y)
    assert page.locator("#cell").get_attribute("data-query") == "30"
    assert page.locator("#cell").get_attribute("data-key") == "10"
    small = page.evaluate(
        "[...document.querySelectorAll('button, select')].filter(e => e.offsetParent)"
        ".filter(e => e.getBoundingClientRect().height < 24).map(e => e.id)"
    )
    assert small == []
    assert opened.is_quiet


def test_a_long_text_scrolls_to_its_query(open_page: Callable):
    opened = open_page(build_page(make_stack([make_layer(400)]), query=390))
    strip, chip = opened.page.locator("#strip"), opened.page.locator("#strip .chip").nth(390)
    outer, inner = strip.bounding_box(), chip.bounding_box()
    assert outer["y"] <= inner["y"] <= outer["y"] + outer["height"] - inner["height"]
    assert opened.page.evaluate("window.scrollY") == 0


def test_the_address_remembers_the_choice(open_page: Callable):
    html = build_page(make_stack([make_layer(6, n_heads=3, seed=s) for s in range(2)]))
    opened = open_page(html)
    page = opened.page
    page.select_option("#layer", "1")
    page.mouse.click(*opened.point(4, 1))
    assert page.evaluate("location.hash") == "#L1.H0.q4.k1.heatmap"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#layer").input_value() == "1"
    assert page.locator("#cell").get_attribute("data-query") == "4"
    page.goto(page.url.split("#")[0] + "#L9.H9.q99.k99.nothing")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_colours(open_page: Callable, scheme: str):
    opened = open_page(build_page(make_stack([make_layer(3)])), color_scheme=scheme)
    assert opened.page.locator("html").get_attribute("data-theme") == scheme


def test_one_token_and_one_head_are_enough(open_page: Callable):
    opened = open_page(build_page(make_stack([make_layer(1, n_heads=1, d_k=1)])))
    assert opened.value("weight") == 1
    see_everything(opened)
    assert opened.is_quiet


def test_a_notebook_frame_works_without_an_origin(open_page: Callable):
    trace = attnviz.explain("A cute teddy bear is reading", weights="random")
    around = f"<!doctype html><html data-ready=1><body>{trace._repr_html_()}</body></html>"
    opened = open_page(around)
    frame = opened.page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    frame.locator("#strip .chip").nth(3).click()
    assert frame.locator("#cell").get_attribute("data-query") == "3"
    assert not opened.dialogs
    assert not opened.complaints
    assert [url for url in opened.requests if not url.startswith("about:")] == []


def test_a_server_is_asked_for_the_page_and_nothing_else(browser):
    html = build_page(make_stack([make_layer(3)])).encode()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(200)
    finally:
        page.close()
        server.shutdown()
        server.server_close()
    assert asked == ["/"]


def test_a_page_opens_without_sinks_where_asked_and_keeps_what_is_chosen(open_page: Callable):
    stack = stack_of(attnviz.explain("A cute teddy bear is reading"))
    opened = open_page(build_page(stack, query=3, no_sinks=True))
    page = opened.page
    assert page.locator("#no-sinks").is_checked()
    assert "weight without sinks" in page.text_content("body")
    page.evaluate("document.getElementById('no-sinks').click()")
    assert "sinks=true" in page.evaluate("window.location.hash")
    plain = open_page(build_page(stack, query=3)).page
    assert not plain.locator("#no-sinks").is_checked()
    assert opened.is_quiet, opened.complaints
