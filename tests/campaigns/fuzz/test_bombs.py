"""Known bombs, each given to the whole command line: exit 3, one line, soon, within 512 MB.

Memory is the resident memory of the command and its children (``ru_maxrss``), not address space:
a process with torch maps far more than it uses. Time is processor time, which a busy machine does
not change; by the clock each has a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import write_model

from fuzz import bombs

LIMIT_MB, LIMIT_S = 512, 5.0

# runs the command from a small process: ru_maxrss of a child begins with its parent's size
MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "attnviz", *sys.argv[1:]], capture_output=True, timeout=60)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, done.stdout.decode(), done.stderr.decode(),
                  used.ru_maxrss >> 10, used.ru_utime + used.ru_stime]))
"""


@dataclass(frozen=True)
class Measured:
    code: int
    out: str
    err: str
    rss_mb: int
    cpu_s: float


def attnviz(cache: Path, *arguments: str) -> Measured:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)}, timeout=90,
    )  # fmt: skip
    return Measured(*json.loads(done.stdout))


def check(found: Measured, reason: str) -> None:
    assert found.code == 3, found.err
    assert found.out == ""
    lines = found.err.splitlines()
    assert len(lines) == 1, found.err
    assert lines[0].startswith("attnviz: error: ")
    assert reason in lines[0]
    assert found.rss_mb < LIMIT_MB
    assert found.cpu_s < LIMIT_S


WEIGHTS = {
    "pt deflated 2 GB": ("a.pt", bombs.pt_deflated, "refused as a zip bomb"),
    "pt of 2^34 numbers": ("a.pt", bombs.pt_expanded, "refused"),
    "pt billion laughs": ("a.pt", bombs.pt_laughs, "more than 200000 values, or nests"),
    "npz deflated 2 GB": ("a.npz", bombs.npz_deflated, "refused as a zip bomb"),
    "npz of 32 GiB": ("a.npz", bombs.npz_huge, "is cut off"),
    "npy of 32 GiB": ("arrays", bombs.npy_huge, "is cut off"),
    "safetensors giant header": ("a.safetensors", bombs.safetensors_header, "99000000 characters"),
    "safetensors claim": ("a.safetensors", bombs.safetensors_claim, "at most 100000000"),
    "safetensors million": ("a.safetensors", bombs.safetensors_many, "more than 200000 tensors"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_files(tmp_path: Path, name: str) -> None:
    file, write, reason = WEIGHTS[name]
    path = tmp_path / file
    write(path)
    if "2 GB" in name:
        assert path.stat().st_size < 3 << 20
    check(attnviz(tmp_path / "cache", "explain", "a", "-w", str(path)), reason)


@pytest.mark.parametrize(
    ("write", "reason", "size"),
    [(bombs.gguf_list, "lists of 8589934592 values", 51), (bombs.gguf_nested, "nested", None)],
)
def test_gguf_files(tmp_path: Path, write, reason: str, size: int | None) -> None:
    path = tmp_path / "a.gguf"
    write(path)
    assert size is None or path.stat().st_size == size
    check(attnviz(tmp_path / "cache", "model", "show", str(path)), reason)


TOKENIZERS = {
    "padding": "pads every text to 2147483648 tokens",
    "growth": "bytes of memory",
    "time": "was not tried out within 1 s of processor time",
    "panic": "makes its library panic",
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(tmp_path: Path, name: str) -> None:
    """Of a single layer; ``model show`` and ``--model`` open them by the same trial."""
    import numpy as np

    one = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "a.npz", embedding=np.ones((20, 4)), w_q=one, w_k=one, w_v=one)
    (tmp_path / "tokenizer.json").write_bytes(bombs.TOKENIZERS[name])
    found = attnviz(tmp_path / "cache", "explain", "hello", "-w", str(tmp_path / "a.npz"))
    check(found, TOKENIZERS[name])


def _hostile_folder(folder: Path, name: str) -> None:
    write_model(folder)
    sound = (folder / "config.json").read_text()
    if name == "tokenizer growth":
        (folder / "tokenizer.json").write_bytes(bombs.TOKENIZERS["growth"])
    elif name == "shard elsewhere":
        index = {"weight_map": {"model.norm.weight": "../../etc/passwd"}}
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif name == "shard by a link":
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to("/etc/passwd")
    elif name == "deep":
        (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    elif name == "key twice":
        (folder / "config.json").write_text(sound[:-1] + "," + sound[1:])
    elif name == "code":
        config = {**json.loads(sound), "auto_map": {"AutoModel": "poison.Model"}}
        (folder / "config.json").write_text(json.dumps(config))
    else:
        (folder / "tokenizer_config.json").write_text(
            '{"auto_map": {"AutoTokenizer": ["poison.T", null]}}'
        )


FOLDERS = {
    "tokenizer growth": "bytes of memory",
    "shard elsewhere": "names the shard '../../etc/passwd'",
    "shard by a link": "points out of the model's folder",
    "deep": "levels deep",
    "key twice": "stands twice",
    "code": "its own code (auto_map in config.json)",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_model_folders(tmp_path: Path, name: str) -> None:
    """Nothing outside is read, and a sentinel shows that no code of the folder ran."""
    folder = tmp_path / "model"
    _hostile_folder(folder, name)
    (folder / "poison.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    check(attnviz(tmp_path / "cache", "model", "show", str(folder)), FOLDERS[name])
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FOLDERS, "tokenizer code"])
def test_model_folders_given_as_models(tmp_path: Path, name: str) -> None:
    """The same through ``--model``, where torch and the library of models are loaded too."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    folder = tmp_path / "model"
    _hostile_folder(folder, name)
    (folder / "poison.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    found = attnviz(tmp_path / "cache", "explain", "hello", "-m", str(folder))
    check(found, FOLDERS.get(name, "its own tokenizer code"))
    assert not (tmp_path / "ran").exists()


def test_the_measure_can_fail(tmp_path: Path) -> None:
    """A sound file is no bomb, and memory that is taken shows."""
    found = attnviz(tmp_path / "cache", "explain", "a bear")
    with pytest.raises(AssertionError):
        check(found, "")
    code = MEASURED.replace('"-m", "attnviz"', '"-c", "x = bytearray(600 << 20)"')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[3] > LIMIT_MB
