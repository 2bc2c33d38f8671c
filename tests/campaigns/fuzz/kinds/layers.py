"""How the program reads a weight file, for every format of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from fuzz.kinds.arrays import SENTENCE


def read_layer(path: Path) -> object:
    """Read a weight file as ``weights show``, ``weights convert`` and ``explain`` do."""
    from attnviz.core.reference import project, trace_heads
    from attnviz.sources.files import open_arrays
    from attnviz.sources.layers.weights import describe, open_weights, read_all

    file = open_arrays(path)
    for name in file.entries:
        with suppress(InputError):  # of this array alone: for example a type that is not read
            file.read(name)
    describe(path)
    with suppress(InputError):
        read_all(path)
    source = open_weights(str(path), project=project)
    tokens = source.tokenize(SENTENCE)
    found: list[Any] = []
    source.run(tokens, (0,), lambda heads: found.append(trace_heads(heads)))
    assert len(found) == 1
    return found
