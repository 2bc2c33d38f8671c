"""attnviz as a library: every command is a call, with the same options by the same names.

What lives here: the public functions. What does not: their work (``runs``) and screens (``cli``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from attnviz.core.stream.summary import Summary as Summary
from attnviz.records import Trace
from attnviz.runs.batch.run import Outcome, Request, run_batch
from attnviz.runs.compare import compare as compare
from attnviz.runs.explain import explain as explain
from attnviz.runs.generate import generate as generate
from attnviz.runs.heads import rank_heads as rank_heads
from attnviz.runs.show import show as show
from attnviz.runs.summarize import summarize as summarize
from attnviz.runs.watch import watch as watch

__all__ = [
    "Summary",
    "Trace",
    "batch",
    "compare",
    "explain",
    "generate",
    "load",
    "rank_heads",
    "show",
    "summarize",
    "watch",
]


def load(path: str, **options: Any) -> Any:
    """Open a weight file as a source, to have its q, k and v.

    Parameters
    ----------
    path
        .safetensors, .npz, .pt, a folder of .npy, or ``sample``, ``sample-8``, ``random``.
    options
        ``layer``, of a file that holds several; ``n_heads``, ``n_kv_heads``, where it does not say;
        ``seed``, ``d_model``, ``d_k`` of random weights.

    Returns
    -------
    source
        ``.info`` says what it is, ``.tokenize(text)`` gives ``Tokens``, and
        ``.run(tokens, layers, consume)`` hands one ``LayerHeads`` after the other to ``consume``.

    Raises
    ------
    InputError, WeightsError
        A file that cannot be read, or that holds no attention layer.

    Examples
    --------
    >>> source = load("sample")
    >>> found = []
    >>> source.run(source.tokenize("teddy bear"), [0], found.append)
    >>> found[0].q.shape
    (1, 2, 64)
    """
    from attnviz.runs.run import open_source

    return open_source(weights=path, **options)


def batch(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    input_format: str | None = None,
    text_column: str | None = None,
    encoding: str = "utf-8",
    where: str | None = None,
    links: int = 3,
    keep: Sequence[str] = (),
    keep_dtype: str = "float16",
    heatmap: str | None = None,
    format: str | None = None,
    shard_size: int = 512,
    engine: str = "local",
    workers: int | None = None,
    threads: int = 1,
    **source: Any,
) -> Outcome:
    """Send every text of some files through every head and write figures, as ``attnviz batch`` does.

    Parameters
    ----------
    inputs
        Files of texts: .txt, .jsonl, .csv, .tsv, .parquet.
    output
        A new folder, or the one a stopped run left: then it goes on.
    where
        Only texts of some length: ``"3 <= tokens <= 64"``.
    source
        Where attention comes from, by the names of ``explain``: ``weights``, ``model``, ``layer``,
        ``head`` and so on.

    Returns
    -------
    Outcome
        How many texts were done, failed and skipped, and the rows written.

    Raises
    ------
    UsageError
        An option that cannot be, a folder in use, or one that holds another batch.
    InputError, ResourceError
        Nothing to read; a full disk.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("A cute teddy bear\\nis reading\\n")
    >>> batch(folder / "texts.txt", folder / "results", engine="serial").rows
    2
    """
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    request = Request(
        inputs=tuple(os.fspath(path) for path in paths),
        source=source,
        input_format=input_format,
        text_column=text_column,
        encoding=encoding,
        where=where,
        links=links,
        keep=tuple(keep),
        keep_dtype=keep_dtype,
        heatmap=heatmap,
        painter="attnviz.render.picture.pictures:heatmap",
        format=format,
        shard_size=shard_size,
        engine=engine,
        workers=workers,
        threads=threads,
    )
    return run_batch(request, os.fspath(output))
