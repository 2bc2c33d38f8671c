"""Where and in what precision numbers are computed: choice, facts, and no silent TF32.

What lives here: names → ``torch.device`` and ``torch.dtype``, memory and cache sizes, thread
counts. What does not: arithmetic (``attend``, ``stream``). Home file of torch's device API.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from attnviz import memory
from attnviz.errors import ResourceError, UsageError
from attnviz.registry import no_such_choice

DEVICES = ("auto", "cpu", "cuda", "mps")
"""What ``--device`` takes; ``cuda`` also with an index, as in ``cuda:1``."""

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""What ``--dtype`` takes: how q, k and v are stored."""


def choose_device(name: str = "auto") -> torch.device:
    """Turn a device's name into a device that is really there.

    Parameters
    ----------
    name
        ``auto`` (cuda, else mps, else cpu), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises
    ------
    UsageError
        No such name.
    ResourceError
        The device is not in this machine; the message says what is.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    kind, colon, number = name.partition(":")
    wrong_index = bool(colon) and (kind != "cuda" or not (number.isascii() and number.isdigit()))
    if kind not in DEVICES or wrong_index:
        raise UsageError(no_such_choice("device", name, ("auto", "cpu", "cuda", "cuda:N", "mps")))
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    index = int(number or 0)
    n_there = torch.cuda.device_count() if kind == "cuda" else int(_has_mps())
    if index >= n_there:
        raise ResourceError(
            f"device '{name}' is not here: this machine has {', '.join(list_devices())}; "
            f"use --device auto"
        )
    return torch.device(kind, index) if kind == "cuda" else torch.device(kind)


def choose_dtype(name: str = "float32", *, device: torch.device | None = None) -> torch.dtype:
    """Turn a precision's name into the type in which q, k and v are stored.

    Raises
    ------
    UsageError
        No such name, or the device cannot hold it (float64 on mps).

    Examples
    --------
    >>> choose_dtype("bfloat16")
    torch.bfloat16
    """
    if name not in DTYPES:
        raise UsageError(no_such_choice("dtype", name, tuple(DTYPES)))
    if name == "float64" and device is not None and device.type == "mps":
        raise UsageError("mps has no float64: use --dtype float32, or --device cpu")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name ``--dtype`` knows a type by.

    Examples
    --------
    >>> dtype_name(torch.float16)
    'float16'
    """
    return str(dtype).removeprefix("torch.")


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type products and softmax are summed in: float64 for float64, else float32.

    Examples
    --------
    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 in full float32 inside: never TF32 on a GPU, never bfloat16 on a CPU.

    The settings are the process's own; they are put back on the way out.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def list_devices() -> tuple[str, ...]:
    """Return one line for every device of this machine.

    Examples
    --------
    >>> list_devices()[0].startswith("cpu (")
    True
    """
    n_threads = torch.get_num_threads()
    found = [f"cpu ({n_threads} thread{'s' if n_threads != 1 else ''})"]
    found += [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})"
        for index in range(torch.cuda.device_count())
    ]
    return (*found, "mps") if _has_mps() else tuple(found)


def describe_device(device: torch.device) -> str:
    """Return how a device is named in a report: ``cpu, 2 threads`` or ``cuda:0, NVIDIA H200``."""
    if device.type == "cuda":
        return f"cuda:{device.index or 0}, {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        n_threads = torch.get_num_threads()
        return f"cpu, {n_threads} thread{'s' if n_threads != 1 else ''}"
    return device.type


def thread_facts() -> dict[str, int | str]:
    """Return what decides how many threads do the work.

    Returns
    -------
    dict
        ``cores`` usable by this process, ``threads`` torch works with, ``instructions`` (the
        widest vector unit torch found), and every thread variable set in the environment.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return {
        "cores": len(usable) if usable else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        **{name: os.environ[name] for name in names if name in os.environ},
    }


def free_memory_bytes(device: torch.device) -> int | None:
    """Return the memory of a device that a plan may count on, in bytes; None where nobody says.

    On a CPU a part of what is free (``memory.room_bytes``).
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        limit = torch.mps.recommended_max_memory()
        return max(0, int(limit - torch.mps.driver_allocated_memory()))
    return memory.room_bytes()


def cache_bytes(level: int = 3) -> int:
    """Return the size of a processor cache in bytes; a usual size where nobody says.

    Examples
    --------
    >>> cache_bytes(2) >= 2**16
    True
    """
    usual = {2: 2**20, 3: 16 * 2**20}
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size").read_text().strip()
        found = int(text.rstrip("KM")) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
    except (OSError, ValueError):
        return usual.get(level, 2**20)
    return max(found, 2**16)


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())
