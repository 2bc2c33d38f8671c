"""The page in a real Firefox: the same numbers, whole names, nothing for axe, no complaint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from firefox import Firefox, firefox
from synthetic import make_layer, make_stack

from attnviz.core import reference
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
LAYERS = [make_layer(12, n_heads=4, d_k=16, seed=n, patterned=True) for n in range(2)]
HOVER = """(() => {
  const c = document.getElementById('heatmap'), d = c.dataset, b = c.getBoundingClientRect(), n = Number;
  c.dispatchEvent(new PointerEvent('pointermove', { pointerType: 'mouse', bubbles: true,
    clientX: b.left + n(d.left) + (%d + 0.5) * n(d.cell), clientY: b.top + n(d.top) + (%d + 0.5) * n(d.cell) }));
  return document.querySelector('[data-value="weight"]').textContent;
})()"""


@pytest.fixture(scope="module", params=["light", "dark"])
def tab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Firefox]:
    folder = tmp_path_factory.mktemp("firefox")
    page = folder / "page.html"
    page.write_text(build_page(make_stack(LAYERS, WORDS)), encoding="utf-8")
    profile = folder / "profile"
    profile.mkdir()
    dark = {"ui.systemUsesDarkTheme": int(request.param == "dark")}
    with firefox(profile, **dark) as found:
        found.open(page)
        assert found.run("document.documentElement.dataset.theme") == request.param
        yield found


def test_the_numbers_are_the_programs(tab: Firefox) -> None:
    weights = np.asarray(reference.trace_heads(LAYERS[0])["weights"])[0]
    tab.size(1280, 720)
    for query, key in ((0, 0), (5, 5), (11, 2)):
        assert float(tab.run(HOVER % (key, query))) == pytest.approx(weights[query, key], abs=1e-6)
    assert tab.complaints == []


def test_names_are_whole_at_every_width_and_the_picture_is_on_one_screen(tab: Firefox) -> None:
    cut = "[...document.querySelectorAll('#row-body th, #row-body bdi')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    for width in range(500, 1601, 20):  # a window of Firefox is not narrower
        tab.size(width, 900)
        assert tab.run("document.getElementById('heatmap').dataset.cut") == "0", width
        assert tab.run(cut) == 0, width
        assert tab.run("document.documentElement.scrollWidth") <= width
    tab.size(1280, 720)
    assert tab.run("document.getElementById('legend').getBoundingClientRect().bottom") <= 720


@pytest.mark.parametrize("width", [800, 1058, 1440])
def test_axe_finds_nothing(tab: Firefox, width: int) -> None:
    package = pytest.importorskip("axe_playwright_python", reason="needs the extra 'dev'")
    axe = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    tab.size(width, 900)
    tab.run(f"(() => {{ {axe}\n; globalThis.axe = axe; }})()")
    for view in ("heatmap", "links", "grid", "pair"):
        tab.run(f"document.getElementById('tab-{view}').click()")
        told = tab.run("axe.run(document, {resultTypes: ['violations']})")
        found = [f"{v['id']}: {n['html'][:80]}" for v in told["violations"] for n in v["nodes"]]
        assert found == [], view
    tab.run("document.getElementById('tab-heatmap').click()")


def test_the_scrollbar_of_the_links_stands_beside_the_percentages(tab: Firefox) -> None:
    tab.size(1280, 400)
    tab.run("document.getElementById('tab-links').click()")
    tab.size(1280, 420)
    wide = "document.getElementById('links').getBoundingClientRect().width"
    room = "document.getElementById('links-scroll').clientWidth"
    assert tab.run(wide) <= tab.run(room)
    tab.run("document.getElementById('tab-heatmap').click()")
