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

NEAR = 2.0**-16
"""Share of a row's largest number within which numbers are equal: float32 sums differ by 1e-6."""


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


def by_size(values: npt.ArrayLike, n: int | None = None) -> Any:
    """Return the places of the n largest numbers of every row, by falling size.

    What only rounding keeps apart is equal, and equal numbers keep their order: a number and all
    within ``NEAR`` below it, then the largest of the rest and all within ``NEAR`` below that.

    Parameters
    ----------
    values
        (…, N) numbers; NaN counts as the smallest.
    n
        How many; all N by default.

    Examples
    --------
    >>> by_size([0.25, 0.5, 0.25 + 1e-7, 0.75]).tolist()
    [3, 1, 0, 2]
    >>> by_size([[0.25, 0.5, 0.25]], 2).tolist()
    [[1, 0]]
    """
    import numpy as np

    numbers = _comparable(values)
    n_all = numbers.shape[-1]
    n = n_all if n is None else min(n, n_all)
    tolerances = _tolerance(numbers)
    kept = None
    if numbers.ndim == 1 and 0 < n < n_all:  # sort only what can be among them
        least = np.partition(numbers, n_all - n)[n_all - n]
        kept = np.flatnonzero(numbers >= least - tolerances)
        numbers = numbers[kept]
    places = np.argsort(-numbers, axis=-1, kind="stable")
    n_rows, n_left = math.prod(numbers.shape[:-1]), numbers.shape[-1]
    rising_RN = np.take_along_axis(-numbers, places, -1).reshape(n_rows, n_left)
    orders_RN = places.reshape(n_rows, n_left)
    for rising, order, tolerance in zip(rising_RN, orders_RN, tolerances.ravel(), strict=True):
        begin = 0
        while begin < n:
            end = int(np.searchsorted(rising, rising[begin] + tolerance, side="right"))
            order[begin:end].sort()
            begin = end
    return places[..., :n] if kept is None else kept[places[:n]]


def largest(values: npt.ArrayLike, axis: int | None = None) -> Any:
    """Return the place of the largest number, as ``argmax``; of nearly equal ones the first.

    Examples
    --------
    >>> int(largest([0.25, 0.5, 0.5 + 1e-7])), largest([[1, 2], [4, 3]], axis=0).tolist()
    (1, [1, 1])
    """
    import numpy as np

    numbers = _comparable(values)
    numbers = numbers.ravel() if axis is None else np.moveaxis(numbers, axis, -1)
    top = numbers.max(axis=-1, keepdims=True)
    return (numbers >= top - _tolerance(numbers)).argmax(axis=-1)


def _comparable(values: npt.ArrayLike) -> Any:
    import numpy as np

    numbers = np.asarray(values, np.float64)
    return np.where(np.isnan(numbers), -np.inf, numbers)


def _tolerance(numbers: Any) -> Any:
    import numpy as np

    sizes = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
    return NEAR * sizes.max(axis=-1, keepdims=True, initial=0.0)
