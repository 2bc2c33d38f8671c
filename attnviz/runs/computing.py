"""Where the numbers are computed: numpy in float64 for small inputs, torch for everything else.

What lives here: choosing a core, a device and a precision. What does not: mathematics (``core``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from attnviz.core import reference
from attnviz.records import Array, LayerHeads

REFERENCE_MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how the numbers are computed."""

    device: str
    dtype: str
    core: str
    project: Callable[..., Array]
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]]


def choose_core(*, device: str = "auto", dtype: str = "float64", n_tokens: int = 0) -> Computing:
    """Choose numpy for small inputs in float64 on the CPU, torch for everything else.

    Raises
    ------
    UsageError, ResourceError
        An unknown device or precision, or one that this machine does not have.
    """
    is_small = device in ("auto", "cpu") and dtype == "float64"
    if is_small and n_tokens <= REFERENCE_MAX_TOKENS:
        return Computing("cpu", "float64", "numpy", reference.project, reference.trace_heads)
    from attnviz.core import attend
    from attnviz.core.device import choose_device, choose_dtype

    place, kind = choose_device(device), choose_dtype(dtype)
    return Computing(
        str(place),
        dtype,
        "torch",
        partial(attend.project, device=place, dtype=kind),
        partial(attend.trace_heads, device=place, dtype=kind),
    )


def choose_model_core(place: str, *, dtype: str, n_tokens: int) -> Computing:
    """Choose the core for q, k, v that a model made on a device: there, in the asked-for precision.

    float64 is worked in where the device has it, else float32.
    """
    if place.startswith("mps") and dtype == "float64":
        dtype = "float32"
    return choose_core(device=place, dtype=dtype, n_tokens=n_tokens)
