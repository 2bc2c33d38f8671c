"""Number types as files name them, and as numpy holds them.

What lives here: the safetensors names (also used for .pt), their widths, and the exact widening
of the types numpy does not have. What does not: reading any file.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from attnviz.records import Array

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Width of one number in bits, by safetensors name."""

NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
}  # fmt: skip
"""How the bits are held in numpy; bfloat16 and 8-bit floats as unsigned integers."""

WIDENED = ("BF16", "F8_E4M3", "F8_E5M2")
"""Types that become float32, exactly."""


def widen(bits: Array, dtype: str) -> Array:
    """Return numbers from stored bits: bfloat16 and 8-bit floats as float32, others as they are.

    bfloat16 is the upper half of a float32, so every value is exact. F8_E5M2 is the upper half of
    a float16. F8_E4M3 ("fn") has exponent bias 7, no infinities and NaN at ±0x7F:
    Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.

    Examples
    --------
    >>> widen(np.array([0x3F80, 0xBEAA], np.uint16), "BF16").tolist()
    [1.0, -0.33203125]
    """
    if dtype == "BF16":
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F8_E5M2":
        return (np.asarray(bits).astype(np.uint16) << np.uint16(8)).view(np.float16).astype("f4")
    if dtype == "F8_E4M3":
        return _e4m3_values()[np.asarray(bits)]
    return np.asarray(bits)


@cache
def _e4m3_values() -> Array:
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = np.where(
        exponent == 0,
        fraction / 8 * 2.0**-6,
        (1 + fraction / 8) * np.exp2(exponent.astype(np.float64) - 7),
    )
    size[(byte & 0x7F) == 0x7F] = np.nan
    return (size * np.where(byte & 0x80, -1.0, 1.0)).astype(np.float32)


def safetensors_name(dtype: np.dtype) -> str | None:
    """Return the safetensors name of a numpy type in any byte order, None where there is none.

    Examples
    --------
    >>> safetensors_name(np.dtype(">f4")), safetensors_name(np.dtype("U3"))
    ('F32', None)
    """
    little = dtype.newbyteorder("<").str
    return next((n for n, s in NUMPY.items() if s == little and n not in WIDENED), None)
