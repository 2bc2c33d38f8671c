"""How much memory this run may take: what is free, and a limit of its own.

What lives here: the smallest room that the machine, the control group and this process's limits
leave, and setting such a limit. What does not: what a piece of work needs (each predicts its own),
memory of other devices (``core.device``).

``--max-memory`` is a limit that the operating system keeps (``RLIMIT_DATA``: all memory of one's own,
mapped files not counted), so that every plan reads it in one place, every child inherits it, and
what no plan foresaw ends as an error and not as a kill.
"""

from __future__ import annotations

from pathlib import Path

from attnviz.errors import UsageError

OWN_BYTES = 300_000_000
"""About what the program and its libraries take before they hold anything."""
SHARE = 0.8
"""The part of what is free that a plan may count on."""


_soft_limits_before: list[int] = []


def free_bytes() -> int | None:
    """Return the memory this process can still get, in bytes; None where nobody says.

    The smallest of what the machine, the control group, and this process's own limits leave.
    """
    rooms = (
        _machine_room_bytes(),
        _group_room_bytes(),
        _own_room_bytes("RLIMIT_AS", 0),
        _own_room_bytes("RLIMIT_DATA", 5),
    )
    return min((room for room in rooms if room is not None), default=None)


def room_bytes() -> int | None:
    """Return the memory that a plan may count on: a part of what is free is left to others."""
    free = free_bytes()
    return None if free is None else int(SHARE * free)


def compare(needed: int, room: int) -> str:
    """Say that a need is larger than the room, in the unit that shows it.

    Examples
    --------
    >>> compare(90_900_000, 42_100_000), compare(2_500_000_000, 990_000_000)
    ('needs 91 MB and 42 MB can be had', 'needs 2.5 GB and 1.0 GB can be had')
    """
    if needed < 10**9:
        return f"needs {needed / 1e6:,.0f} MB and {room / 1e6:,.0f} MB can be had"
    return f"needs {needed / 1e9:,.1f} GB and {room / 1e9:,.1f} GB can be had"


def cure() -> str:
    """Return what gives a run more memory: its limit raised, or other programs closed."""
    is_limited = any(_limit(name) is not None for name in ("RLIMIT_AS", "RLIMIT_DATA"))
    return "raise the limit (--max-memory)" if is_limited else "close other programs"


def limit_own(gigabytes: float) -> None:
    """Allow this process, and each of its children, so much memory and no more.

    Raises
    ------
    UsageError
        Less than the program itself takes.

    Notes
    -----
    Kept by Linux; elsewhere plans keep to it where the system lets it be set.
    """
    if not OWN_BYTES <= gigabytes * 1e9 < 1e18:
        raise UsageError(
            f"--max-memory {gigabytes:g} is less than the program itself takes, or no amount: give "
            f"{OWN_BYTES / 1e9:g} (GB) or more"
        )
    wanted = int(gigabytes * 1e9)
    try:
        import resource

        before, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        _soft_limits_before.append(before)
    except (ImportError, OSError, ValueError):  # not every system has such limits
        pass


def own_limit_bytes() -> int | None:
    """Return the limit that ``limit_own`` (or the shell) set for this process, or None."""
    return _limit("RLIMIT_DATA")


def limit_child(pid: int, n_bytes: int) -> None:
    """Allow a running child no more than so much memory, where the system can do that."""
    try:
        import resource

        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        resource.prlimit(pid, resource.RLIMIT_DATA, (n_bytes, hard))
    except (ImportError, AttributeError, OSError, ValueError):  # the child may be gone already
        pass


def lift_limit() -> None:
    """Put back the limit that was in force before ``limit_own``, if that was called."""
    while _soft_limits_before:
        import resource

        before = _soft_limits_before.pop()
        resource.setrlimit(
            resource.RLIMIT_DATA, (before, resource.getrlimit(resource.RLIMIT_DATA)[1])
        )


def is_exhausted(fault: BaseException) -> bool:
    """Tell whether a fault means that memory is used up; libraries say so in many ways.

    Examples
    --------
    >>> is_exhausted(MemoryError()), is_exhausted(RuntimeError("can't allocate memory: 8 bytes"))
    (True, True)
    >>> is_exhausted(ValueError("memory"))
    False
    """
    if isinstance(fault, MemoryError):
        return True
    told = str(fault)
    if isinstance(fault, RuntimeError):
        return "can't allocate memory" in told or "out of memory" in told
    is_loading = isinstance(fault, ImportError | OSError)
    return is_loading and ("failed to map segment" in told or "Cannot allocate memory" in told)


def _limit(name: str) -> int | None:
    try:
        import resource

        limit = int(resource.getrlimit(getattr(resource, name))[0])
        return None if limit == resource.RLIM_INFINITY else limit
    except (ImportError, AttributeError, OSError):
        return None


def _own_room_bytes(name: str, column: int) -> int | None:
    """Return what one of this process's limits leaves; ``column`` of statm is what it counts."""
    limit = _limit(name)
    if limit is None:
        return None
    try:
        import resource

        used_pages = int(Path("/proc/self/statm").read_text().split()[column])
        return max(0, limit - used_pages * resource.getpagesize())
    except (ImportError, OSError, ValueError):
        return None


def _machine_room_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _group_room_bytes() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # not there, or "max": no limit
            continue
    return None
