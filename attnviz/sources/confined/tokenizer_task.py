"""The task of a child process that tries out a tokenizer file: load it, cut a few texts with it.

What lives here: the only first use of a stranger's ``tokenizer.json``. What does not: limits
(``child``), and what is made of the answer (``text.tokenizer_trial``).
"""

from __future__ import annotations

from typing import Any

PROBES = (
    "a",
    "A cute teddy bear is reading.",
    "Don't stop: 3.14 × 2 = 6.28\t(é, ß, İ)\r\n\r\n  x_y/z@w.org #1 $5 --no [MASK] </s>",
    "猫は本を読む 안녕하세요 שלום مرحبا नमस्ते 🧸👩‍👩‍👧 e\u0301 \u202e\ufeff\x00\x1b",
    "a" * 2000 + "!",
    " " * 2000 + "x",
    "ab " * 700,
)


def prepare() -> dict[str, Any] | None:
    """Load the library."""
    import tokenizers  # noqa: F401

    return None


def work(arguments: list[str], data: bytes) -> dict[str, Any]:
    """Load a serialised tokenizer and cut the probes; ``{}``, or ``fault`` or ``panic``."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        for text in PROBES:
            tokenizer.encode(text)
            tokenizer.encode(text, add_special_tokens=False)
        tokenizer.get_vocab(with_added_tokens=True)
    except MemoryError:
        raise
    except Exception as fault:
        return {"fault": " ".join(str(fault).split())[:200] or type(fault).__name__}
    except BaseException as fault:
        return {"panic": type(fault).__name__}
    return {}
