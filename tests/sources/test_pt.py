"""Hostile .pt files: refused in time, within memory, and nothing in them is run."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attnviz.sources.files import open_arrays

torch = pytest.importorskip("torch")

CHUNKS = 16  # of 16 MiB

MEASURED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)
from attnviz.errors import WeightsError
from attnviz.sources.files import open_arrays
try:
    open_arrays(sys.argv[1])
except WeightsError as fault:
    print(fault)
assert "torch" not in sys.modules
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def deflated(path: Path) -> None:
    """Write 256 kB that unpack to 256 MiB (refused by its kind, so larger ones are no slower)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        with archive.open("a/data/0", "w", force_zip64=True) as member:
            for _ in range(CHUNKS):
                member.write(bytes(16 << 20))


def expanded(path: Path) -> None:
    """Write 1.5 kB that claim 2^34 numbers."""
    torch.save({"w_q": torch.zeros(1).expand(1 << 34)}, path)


def laughing(path: Path) -> None:
    """Write nested lists that share their parts: 10^30 values in a few bytes."""
    value: object = ["lol"] * 10
    for _ in range(30):
        value = [value] * 10
    torch.save({"w": torch.zeros(1), "l": value}, path)


def cut(path: Path) -> None:
    file = io.BytesIO()
    torch.save({"w_q": torch.zeros(64)}, file)
    path.write_bytes(file.getvalue()[:-200])


HOSTILE = {
    "deflated": (deflated, "zip bomb"),
    "expanded": (expanded, "refused"),
    "laughing": (laughing, "more than 200000 values, or nests"),
    "cut": (cut, "zip"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pt_files(tmp_path: Path, name: str) -> None:
    make, reason = HOSTILE[name]
    path = tmp_path / "bad.pt"
    make(path)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    took_s = time.monotonic() - began
    message, rss_kib = done.stdout.splitlines()
    assert reason in message
    assert int(rss_kib) < 512 << 10
    assert took_s < 15, f"{took_s:.1f} s"  # about 2 s; the bound leaves room for a loaded machine


def test_W_s5_a_file_saved_on_a_gpu_is_read_on_the_cpu(tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"w_q": torch.arange(6.0).reshape(2, 3)}, file)
    with (
        zipfile.ZipFile(file) as source,
        zipfile.ZipFile(tmp_path / "gpu.pt", "w") as target,
    ):
        for member in source.infolist():
            data = source.read(member)
            if member.filename.endswith("data.pkl"):
                assert b"X\x03\x00\x00\x00cpu" in data
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            target.writestr(member.filename, data)
    found = open_arrays(tmp_path / "gpu.pt").read("w_q")
    np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3))
