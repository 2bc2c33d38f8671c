"""Break the figures' formulas one by one: the comparison with loops must see every break."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from test_head_figures import RULES, by_loops, layer

from attnviz.core import reference
from attnviz.core.measures import figures

SOURCE = Path(figures.__file__).read_text(encoding="utf-8")
MUTANTS = {
    "no scale": ("scores_HLS * heads.scale", "scores_HLS * 1"),
    "flipped mask": ("xp.where(visible_HLS, entering", "xp.where(~visible_HLS, entering"),
    "cap before the bias": ("heads.softcap * xp.tanh(entering / heads.softcap)", "entering"),
    "wrong kv head": ("reference.repeat_kv(values_KSX, heads.n_heads)", "np.concatenate([values_KSX] * group)"),
    "natural logarithm": ("reference.entropy_bits(weights_HLS)", "0.693147 * reference.entropy_bits(weights_HLS)"),
    "signed distance": ("abs(key_S[None, :] - position_L[:, None])", "(key_S[None, :] - position_L[:, None])"),
    "queries at the first keys": ("+ offset\n    key_S", "\n    key_S"),
    "last key for the first": ("received_HS[:, 0]", "received_HS[:, -1]"),
    "next for previous": ('("previous", -1)', '("previous", 1)'),
    "blind rows counted": ("seen_HL = visible_HLS.any(-1)", "seen_HL = visible_HLS.any(-1) | True"),
    "rows for keys": ("received_HS = weights_HLS.sum(-2)", "received_HS = weights_HLS.sum(-1)"),
    "sink share of everything": ("if self.has_sinks else zero", "if self.has_sinks else zero + 1e-3"),
    "blocks not counted on": ("+ row0,", ","),
    "weakest links": ("(keys, queries, -weights)", "(keys, queries, weights)"),
    "rows wrap around": ("best_H % n_keys", "best_H % n_rows"),
    "special tokens twice": ('found["special"] = (', 'found["special"] = 2 * ('),
}  # fmt: skip


def is_right(measure: Any) -> bool:
    """Compare every figure with loops: rules, blocks, sinks, special tokens, uneven axes."""
    for rule in RULES:
        for sinks in (False, True):
            for block_cells in (1, 1 << 20):
                n_keys = 8 if rule == "causal" else 6
                heads = layer(rule, sinks=sinks, n_keys=n_keys)
                if rule == "all":
                    bias = np.random.default_rng(5).standard_normal((4, 6, 6))
                    heads = replace(heads, softcap=1.5, bias=bias)
                stages = reference.trace_heads(heads)
                special = np.arange(n_keys) % 5 == 0
                found = measure(
                    heads, special_HS=np.tile(special, (4, 1)), n_links=4, block_cells=block_cells
                )
                for head in range(4):
                    weights = stages["weights"][head]
                    wanted = by_loops(weights, stages["visible"][head], special, n_keys - 6)
                    if not all(
                        np.isclose(getattr(found, name)[head], value, atol=1e-9, equal_nan=True)
                        for name, value in wanted.items()
                    ):
                        return False
                    cells = sorted((-w, *place) for place, w in np.ndenumerate(weights) if w > 0)[
                        :4
                    ]
                    queries, keys = found.link_queries_HN[head], found.link_keys_HN[head]
                    if [(i, j) for _, i, j in cells] != list(zip(queries, keys))[: len(cells)]:
                        return False
    return True


def test_the_unbroken_formulas_are_right() -> None:
    assert is_right(figures.measure)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_break_is_seen(name: str) -> None:
    before, after = MUTANTS[name]
    assert before in SOURCE
    mutant = ModuleType(figures.__name__)
    exec(compile(SOURCE.replace(before, after), name, "exec"), mutant.__dict__)
    with contextlib.suppress(ValueError, IndexError, TypeError):
        assert not is_right(mutant.measure)


def test_many_short_rows_take_the_other_softmax() -> None:
    scores = torch.randn(40, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(figures._softmax(scores, torch), torch.softmax(scores, -1))
