"""Files of ``torch.save``: cut ones refused before a child starts, GPU ones read on the CPU.

Bombs are in ``tests/campaigns/fuzz/test_bombs.py``, damage by the thousand in ``tests/campaigns/fuzz``.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attnviz.errors import WeightsError
from attnviz.sources.files import open_arrays, pt

torch = pytest.importorskip("torch")


def test_a_file_that_is_cut_off_starts_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pt, "run_confined", lambda *_, **__: pytest.fail("a child was started"))
    file = io.BytesIO()
    torch.save({"w_q": torch.zeros(64)}, file)
    (tmp_path / "bad.pt").write_bytes(file.getvalue()[:-200])
    with pytest.raises(WeightsError, match="zip"):
        open_arrays(tmp_path / "bad.pt")


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
