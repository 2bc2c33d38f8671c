"""GGUF's blocks of quantised numbers as float32, some hundred kilobytes at a time.

What lives here: bytes → numbers, by the ``gguf`` package's own formulas. What does not: where a
tensor's bytes are (``sources.models.gguf``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from attnviz.sources.families.parts import Floats
from attnviz.sources.families.settings import NotOurs

SIZES = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
}  # fmt: skip
"""Numbers and bytes of one block, by type: ggml.c."""

_AT_ONCE = 1 << 17


def dequantize(raw: Any, kind: str) -> Floats:
    """Turn blocks into numbers.

    Parameters
    ----------
    raw : (bytes,) uint8
        Whole blocks.
    kind
        A name of ``SIZES``.

    Returns
    -------
    (numbers,) float32
    """
    per_block, block_bytes = SIZES[kind]
    blocks = raw.reshape(-1, block_bytes)
    made = np.empty((len(blocks), per_block), np.float32)
    formula = _formula(kind)
    step = _AT_ONCE // per_block
    for start in range(0, len(blocks), step):
        made[start : start + step] = formula(blocks[start : start + step])
    return made.reshape(-1)


@cache
def _formula(kind: str) -> Any:
    from attnviz.sources.models.library import require

    require("gguf")
    import gguf.quants

    try:
        return getattr(gguf.quants, kind).dequantize_blocks
    except AttributeError:
        raise NotOurs(f"blocks of type {kind}, which this version of gguf does not read") from None
