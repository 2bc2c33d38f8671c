"""The overview of a model's heads: one screen, however many heads, whatever tokens are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import HOSTILE

from attnviz.records import HeadChoice
from attnviz.render import overview
from attnviz.render.formats import plain, table
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document


def trace_of(n_layers: int, n_heads: int, labels: tuple[str, ...] = ("a", "b")) -> Any:
    ranking = [
        HeadChoice(layer, head, 1, 0, 0.5, 0.1, 0.1, 0.96 - 0.9 * head / n_heads - 0.0001 * layer)
        for layer in range(n_layers)
        for head in range(n_heads)
    ]
    names = SimpleNamespace(labels=labels)
    return SimpleNamespace(
        ranking=tuple(sorted(ranking, key=lambda c: -c.telling)), tokens=names, keys=names,
        key_tokens=None, asked=1, run=SimpleNamespace(overrides={}),
    )  # fmt: skip


def draw(trace: Any, form: Any = table, width: int | None = 80) -> str:
    return str(form.render(Document(overview.shapes(trace)), Screen(width=width)))


@pytest.mark.parametrize(("n_layers", "n_heads"), [(1, 2), (6, 12), (30, 9), (32, 32), (48, 64)])
def test_every_head_has_its_digit_on_one_screen(n_layers: int, n_heads: int) -> None:
    out = draw(trace_of(n_layers, n_heads))
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if line.startswith("│") and " L" in line]
    assert len(rows) == n_layers
    assert "part 1 of" not in out
    assert sum(line.count("·") + sum(c.isdigit() for c in line.split("│")[2]) for line in rows) == (
        n_layers * n_heads
    )
    assert out.count("→ L0 ") == 1
    assert f"{n_layers} layers × {n_heads} heads" in out


def test_the_digit_is_the_telling_in_tenths() -> None:
    out = draw(trace_of(1, 4))
    row = next(line for line in out.splitlines() if " L0 " in line)
    assert row.split("│")[2].split() == ["9", "7", "5", "2"]


def test_more_layers_than_a_screen_has_are_left_out_and_counted() -> None:
    out = draw(trace_of(96, 8))
    assert "48 layers whose best head tells less are left out" in out


@pytest.mark.parametrize("word", [w for w in HOSTILE if w != "\udce9"])
@pytest.mark.parametrize("form", [table, plain])
def test_hostile_tokens_are_shown_safely(word: str, form: Any) -> None:
    out = draw(trace_of(2, 3, (word, word)), form, None)
    assert all(c.isprintable() or c == "\n" for c in out)


def test_nothing_is_shown_where_the_user_chose() -> None:
    trace = trace_of(1, 1)
    trace.ranking = ()
    assert overview.shapes(trace) == ()
