"""Write .npz and .npy so that the bytes depend on the arrays alone: no dates, one byte order."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

_DATE = (1980, 1, 1, 0, 0, 0)


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Return what ``write_npz`` writes."""
    out = io.BytesIO()
    write_npz(out, arrays)
    return out.getvalue()


def write_npz(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write arrays by name as an uncompressed .npz, in their order."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", _DATE)
            member.external_attr = 0o644 << 16
            with archive.open(member, "w", force_zip64=values.nbytes > 1 << 30) as part:
                write_npy(part, values)


def write_npy(file: IO[bytes], values: Any) -> None:
    """Write one .npy of version 1: row-major and little-endian, whatever came in."""
    plain = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    np.lib.format.write_array(file, plain.reshape(values.shape), version=(1, 0), allow_pickle=False)
