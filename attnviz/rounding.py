"""Numbers that rounding touches, shown and ordered so that no processor changes a line.

Sums are cut differently by every kernel, so the last digits of a rounding error, and which of two
equal weights comes out larger, differ between machines. A screen shows a bound; files keep the
exact figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

_BITS = 20
"""Bits of a number that decide an order: about six digits, what float32 sums agree on."""


def bound(error: float, floor: float = 0.0) -> str:
    """Return the power of ten that an error stays below, not smaller than a floor's.

    Parameters
    ----------
    error
        Largest difference that was seen; NaN and infinity are shown as they are.
    floor
        What rounding alone may give: below it differences say nothing.

    Examples
    --------
    >>> bound(2.2e-16, 8e-16), bound(1.1e-16, 8e-16), bound(3e-6), bound(2.5), bound(0.0)
    ('1e-15', '1e-15', '1e-5', '1e1', '0')
    >>> bound(float("nan"))
    'nan'
    """
    largest = max(error, floor) if error == error else error
    if not math.isfinite(largest) or largest == 0:
        return f"{largest:g}"
    power = math.ceil(math.log10(largest) - 1e-9)
    return f"1e{power}"


def worse(*differences: float) -> float:
    """Return the largest difference; NaN, which every comparison would pass by, is the worst of all.

    Examples
    --------
    >>> worse(1.0, float("nan"), 2.0), worse(0.5, 0.25), worse()
    (nan, 0.5, 0.0)
    """
    return max((0.0, *differences), key=lambda d: math.inf if d != d else d)


def check_floors(dtype: str, *, n_keys: int, d_k: int) -> dict[str, float]:
    """Return what rounding alone may give for each check of a trace.

    A row is a sum of S terms, taken in pairs; a score a sum of d_k products, and an output again
    one of S (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). The
    last is taken 8 times, since scores above 1 are exponents.

    Parameters
    ----------
    dtype
        Of the sums: float64, or anything narrower, which is summed in float32.
    """
    epsilon = 2.0**-52 if dtype == "float64" else 2.0**-23
    model = 1e-5 if dtype in ("float64", "float32") else 0.0
    return {
        "row_sum_error": epsilon * (1 + math.log2(max(n_keys, 1))),
        "loop_error": 8 * epsilon * (d_k + n_keys),
        "parity": model,
        "verified_weights": model,
        "verified_states": model,
    }


def by_size(values: npt.ArrayLike, axis: int | None = -1) -> Any:
    """Return the order of falling numbers, as ``argsort``; what differs in the seventh digit is equal.

    Equal numbers keep their order. NaN comes last.

    Examples
    --------
    >>> by_size([0.25, 0.5, 0.25 + 1e-16, 0.75]).tolist()
    [3, 1, 0, 2]
    """
    import numpy as np

    return np.argsort(-coarse(values), axis=axis, kind="stable")


def largest(values: npt.ArrayLike) -> int:
    """Return the place of the largest number, the first of equal ones (see ``by_size``).

    Examples
    --------
    >>> largest([0.25, 0.5, 0.5 + 1e-16])
    1
    """
    import numpy as np

    return int(np.nan_to_num(coarse(values), nan=-np.inf).argmax())


def coarse(values: npt.ArrayLike) -> Any:
    """Return numbers rounded to about six digits, as float64, for comparing only.

    Examples
    --------
    >>> bool(coarse(0.1 + 0.2) == coarse(0.3))
    True
    """
    import numpy as np

    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, _BITS)), exponent - _BITS)
