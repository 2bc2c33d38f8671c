"""Skip, with the reason, where there is no GPU; share the random layers of tests/property."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "property"))


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device in this machine")
    return torch.device("cuda", 0)
