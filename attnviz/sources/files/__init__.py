"""Files of arrays: one file per format, all with the same contract.

What lives here: choosing the format by the ending, for reading and for writing. What does not:
what the arrays mean (``layouts``) and where bytes go on disk (``runs.store``).

=================  ==========================================  ==================
ending             read                                        written
=================  ==========================================  ==================
.safetensors       header checked, data mapped                 yes
.npz               uncompressed: mapped; compressed: unpacked  yes, uncompressed
a folder           of .npy files, mapped                       yes
.pt .pth .bin      tensors only, in a child process            no
=================  ==========================================  ==================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import InputError, UsageError
from attnviz.records import Array
from attnviz.sources.files.contract import ArrayFile, Entry, Rows, Writer, unreadable

__all__ = [
    "ENDINGS", "ArrayFile", "Content", "Entry", "Rows", "Writer", "open_arrays", "plan_content",
]  # fmt: skip

ENDINGS = (".safetensors", ".npz", ".pt", ".pth", ".bin")


@dataclass(frozen=True, slots=True)
class Content:
    """What is to be written: one file (under the name ``""``), or the files of a folder."""

    writers: Mapping[str, Writer]
    is_folder: bool = False


def open_arrays(path: str | os.PathLike[str]) -> ArrayFile:
    """Open a file or folder of arrays: names, shapes and types are known and checked, no data read.

    Raises
    ------
    InputError
        No such file, or an ending that names no format.
    WeightsError
        The file is damaged, hostile, or beyond the bounds.
    """
    where = Path(path)
    try:
        is_folder = where.is_dir()
    except (OSError, ValueError) as fault:
        raise unreadable(where, fault) from fault
    if is_folder:
        from attnviz.sources.files import npy_folder

        return npy_folder.open_arrays(where)
    ending = where.suffix.lower()
    if ending == ".safetensors":
        from attnviz.sources.files import safetensors_

        return safetensors_.open_arrays(where)
    if ending == ".npz":
        from attnviz.sources.files import npz

        return npz.open_arrays(where)
    if ending in (".pt", ".pth", ".bin"):
        from attnviz.sources.files import pt

        return pt.open_arrays(where)
    hint = {
        ".npy": "a single array is no layer: give the folder it lies in",
        ".gguf": "it is a whole model: give it with --model",
        ".onnx": "export the weights as .safetensors",
        ".h5": "export the weights as .npz",
    }.get(ending, "rename or convert it")
    exists = where.exists()
    raise InputError(
        f"{where.name} {f'has the ending {ending!r}' if exists else 'does not exist'}: "
        f"wanted {', '.join(ENDINGS)} or a folder of .npy files; "
        f"{hint if exists else 'check the path'}"
    )


def plan_content(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
    dtypes: Mapping[str, str] | None = None,
) -> Content:
    """Return what a path of this ending will hold, checked, ready to be published.

    Parameters
    ----------
    path
        Its ending chooses: .safetensors, .npz; none (or a slash at the end) a folder of .npy.
    arrays
        By name, in any memory and byte order; written row-major and little-endian.
    metadata
        Strings by name.
    dtypes
        ``BF16``, ``F8_E4M3``, ``F8_E5M2`` for arrays that hold bits of those.

    Raises
    ------
    UsageError
        An ending that is not written.
    WeightsError
        A name or type that the format cannot hold.
    """
    from attnviz.sources.files import npy_folder, npz, safetensors_

    kinds = dtypes or {}
    ending = Path(path).suffix.lower()
    if ending == ".safetensors":
        return Content({"": safetensors_.writer(arrays, metadata, kinds)})
    if ending == ".npz":
        return Content({"": npz.writer(arrays, metadata, kinds)})
    if not ending or str(path).endswith(("/", os.sep)):
        return Content(npy_folder.writers(arrays, metadata, kinds), is_folder=True)
    raise UsageError(
        f"{Path(path).name}: the ending {ending!r} is not written: choose .safetensors, .npz, "
        "or a name without an ending for a folder of .npy files"
    )
