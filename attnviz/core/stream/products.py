"""The two matrix products of a streamed head: scores of a piece of keys, blend of its values.

What lives here: q·kᵀ and weights·v by the fastest exact route the machine has. What does not:
scale, mask, softmax (``panels``).

On a CPU in float32 the products go through oneDNN with the keys and values packed once per head:
measured 1.1 to 1.2 times as fast as ``mm`` where oneDNN and MKL are level (AMD Zen 4), 2.2 to
2.5 times where MKL does not use AVX-512 (AMD Zen 5). The operators are private to torch, so they
are tried on a small example first; ``mm`` is the fallback.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from attnviz.records import Span


class Products:
    """The keys and values of one head, cut into tiles and packed for multiplication.

    Parameters
    ----------
    k_SE, v_SF
        One key/value head, in the type sums are made in. Values that are not finite were
        replaced before (see ``attend.blend``).
    tile
        Keys per packed tile: pieces that are exactly one tile take the packed route.
    rows
        How many query rows a block will have (the packing is chosen for it).
    """

    def __init__(
        self, k_SE: torch.Tensor, v_SF: torch.Tensor, *, tile: int, rows: int, packed: bool
    ) -> None:
        self.k_SE, self.v_SF, self.tile = k_SE, v_SF, tile
        self.k_tiles: list[torch.Tensor] = []
        self.v_tiles: list[torch.Tensor] = []
        if packed:
            for start in range(0, len(k_SE) - tile + 1, tile):
                span = slice(start, start + tile)
                self.k_tiles.append(_pack(k_SE[span].contiguous(), rows))
                self.v_tiles.append(_pack(v_SF[span].t().contiguous(), rows))

    def scores(self, q_BE: torch.Tensor, keys: Span) -> torch.Tensor:
        """Compute q·kᵀ for a block of rows and a piece of keys: (rows, keys), a fresh tensor."""
        packed = self._packed(self.k_tiles, keys)
        if packed is not None:
            return _linear(q_BE, packed)
        return torch.mm(q_BE, self.k_SE[slice(*keys)].t())

    def blend(self, grown_BT: torch.Tensor, keys: Span) -> torch.Tensor:
        """Compute Σ_j grown_j · v_j over a piece of keys: (rows, F), a fresh tensor."""
        packed = self._packed(self.v_tiles, keys)
        if packed is not None:
            return _linear(grown_BT, packed)
        return torch.mm(grown_BT, self.v_SF[slice(*keys)])

    def _packed(self, tiles: list[torch.Tensor], keys: Span) -> torch.Tensor | None:
        number, rest = divmod(keys[0], self.tile)
        is_tile = rest == 0 and keys[1] - keys[0] == self.tile and number < len(tiles)
        return tiles[number] if is_tile else None


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether the packed route exists and multiplies right, here and in this type."""
    return device.type == "cpu" and dtype == torch.float32 and _onednn_multiplies()


@cache
def _onednn_multiplies() -> bool:
    try:
        a = torch.arange(12.0).reshape(3, 4)
        b = torch.arange(20.0).reshape(5, 4) - 7
        return bool(torch.equal(_linear(a, _pack(b, 3)), a @ b.t()))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


def _pack(weight_NE: torch.Tensor, rows: int) -> torch.Tensor:
    packed: Any = torch.ops.mkldnn._reorder_linear_weight.default(weight_NE, rows)
    return packed  # type: ignore[no-any-return]


def _linear(a_BE: torch.Tensor, packed_NE: torch.Tensor) -> torch.Tensor:
    product: Any = torch.ops.mkldnn._linear_pointwise.default(a_BE, packed_NE, None, "none", [], "")
    return product  # type: ignore[no-any-return]
