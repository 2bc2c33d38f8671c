"""Try out tokenizer files not seen before in a child process, once; remember those that passed.

What lives here: ``try_out``, and a bound on padding. What does not: the child's side (``confined.tokenizer_task``), opening a
tokenizer for use (``tokenize``, ``models.tokenizer``), which follows only after a pass.

The ``tokenizers`` library is native code that panics, aborts the process or takes all memory on
crafted files (huggingface/tokenizers issues 2094 and 2198), past any ``except``.
"""

from __future__ import annotations

import hashlib
from typing import Any

from attnviz.errors import InputError, ResourceError
from attnviz.memory import cure, free_bytes
from attnviz.sources.confined.parent import TOKENIZER_TASK, Limits, run_confined
from attnviz.sources.models.cache import read_entry, write_entry

SAMPLE_SHA256 = "4d6b564eac41e7b5ac2d344341fbbe47bcb50cd66636d5f91c01196041aedaf9"
"""Of the bundled sample's tokenizer, which is known to work."""

_VERSION = 1
_MAX_PADDING = 1 << 20
_EXTRA_BYTES, _BYTES_PER_BYTE = 192 << 20, 24  # a vocabulary takes some 17 times its JSON text
_BASE_CPU_S, _CPU_S_PER_BYTE = 1.0, 1e-6


def refuse_padding(tokenizer: Any, *, name: str) -> None:
    """Refuse a ``tokenizers.Tokenizer`` that pads without bound, padding switched off or not.

    Raises
    ------
    InputError
        Names the length.
    """
    length = (tokenizer.padding or {}).get("length") or 0
    if length > _MAX_PADDING:
        raise InputError(f"{name} pads every text to {length} tokens: it is damaged or hostile")


def try_out(data: bytes, *, name: str) -> str:
    """Load a serialised tokenizer and cut a few texts with it, in a child where it is new.

    A pass is remembered in the user's cache by the SHA-256 of the bytes and the library's version;
    where the cache cannot be written, the child runs again.

    Returns
    -------
    str
        SHA-256 of the bytes.

    Raises
    ------
    InputError
        It fails, panics, ends the child, or takes more memory or time than its size allows.
    ResourceError
        There is less memory than it is allowed.

    Notes
    -----
    About 0.15 s the first time, plus 0.1 s per MB; then nothing.
    """
    digest = hashlib.sha256(data).hexdigest()
    if digest == SAMPLE_SHA256:
        return digest
    import tokenizers

    key = hashlib.sha256(f"{_VERSION}\0{tokenizers.__version__}\0{digest}".encode()).hexdigest()
    if read_entry("tokenizer", key) is True:
        return digest
    limits = Limits(
        extra_bytes=_EXTRA_BYTES + _BYTES_PER_BYTE * len(data),
        cpu_s=_BASE_CPU_S + _CPU_S_PER_BYTE * len(data),
    )
    end = run_confined(TOKENIZER_TASK, [], limits=limits, stdin=data)
    if end.answer == {}:
        write_entry("tokenizer", key, True)
        return digest
    if end.answer is None or "memory" in end.answer:
        room = free_bytes()
        if room is not None and room < limits.extra_bytes:
            raise ResourceError(f"no memory is left to try {name} out: {cure()}")
    if end.is_late:
        raise InputError(
            f"{name} was not tried out within {limits.cpu_s:.0f} s of processor time: it is "
            "damaged or hostile"
        )
    if end.answer is None:
        raise InputError(
            f"{name} makes the tokenizer library end its process (status {end.status}; its limit "
            f"is {limits.extra_bytes} bytes of memory): it is damaged or hostile"
        )
    if "fault" in end.answer:
        raise InputError(f"{name} does not work: {str(end.answer['fault'])[:200]}")
    if "panic" in end.answer:
        raise InputError(f"{name} makes its library panic: it is damaged or hostile")
    raise InputError(
        f"{name} takes more than {limits.extra_bytes} bytes of memory: it is damaged or hostile"
    )
