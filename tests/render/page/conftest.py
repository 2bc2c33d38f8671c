"""A real Chromium, driven by playwright; without them these tests are skipped and say so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def chromium_path() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium: apt-get install -y chromium")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra 'dev'")
    path = chromium_path()
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


@dataclass
class Opened:
    """An open page, and everything it did that it must not do."""

    page: Any
    dialogs: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_quiet(self) -> bool:
        return not (self.dialogs or self.requests or self.complaints)

    def value(self, name: str) -> float:
        """The number that the chosen or hovered cell shows under a name."""
        text = self.page.locator(f'[data-value="{name}"]').inner_text().replace("−", "-")
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)

    def point(self, query: int, key: int) -> tuple[float, float]:
        """Where a cell of the heatmap is on the screen, scrolled into sight."""
        canvas = self.page.locator("#heatmap")
        canvas.scroll_into_view_if_needed()
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        place = self.page.evaluate(
            "([q, k]) => { const c = document.getElementById('heatmap'), d = c.dataset,"
            " b = c.getBoundingClientRect(), n = Number;"
            " return [b.left + n(d.left) + (k - n(d.column) + 0.5) * n(d.cell),"
            " b.top + n(d.top) + (q - n(d.row) + 0.5) * n(d.cell)] }",
            [query, key],
        )
        return place[0], place[1]

    def hover(self, query: int, key: int) -> None:
        self.page.mouse.move(*self.point(query, key))


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def open_(html: str, *, width: int = 1280, height: int = 1000, **options: Any) -> Opened:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        page = opened.page
        page.on("dialog", lambda d: (opened.dialogs.append(d.message), d.dismiss()))
        page.on(
            "request",
            lambda r: opened.requests.append(r.url) if r.url != path.as_uri() else None,
        )
        page.on("console", lambda m: opened.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: opened.complaints.append(f"error: {e}"))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=20_000)
        return opened

    yield open_
    for context in contexts:
        context.close()
