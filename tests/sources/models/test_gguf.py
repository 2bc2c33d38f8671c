"""GGUF files: what is read right, and what hostile files are refused for, within bounds."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest

from attnviz.errors import InputError
from attnviz.sources.models.gguf import read_gguf


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(
    keys: list[tuple[str, int, bytes]] = (),  # type: ignore[assignment]
    tensors: list[tuple[str, tuple[int, ...], int, bytes]] = (),  # type: ignore[assignment]
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    made = magic + struct.pack("<I", version)
    made += struct.pack("<Q", len(tensors) if n_tensors is None else n_tensors)
    made += struct.pack("<Q", len(keys) if n_keys is None else n_keys)
    for key, kind, value in keys:
        made += text(key) + struct.pack("<I", kind) + value
    data = b""
    for name, listed, kind, raw in tensors:
        made += text(name) + struct.pack("<I", len(listed))
        made += struct.pack(f"<{len(listed)}Q", *listed) + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return made + b"\0" * (-len(made) % 32) + data


def array(kind: int, count: int, raw: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + raw


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_W_s1_dimensions_are_listed_fastest_first(tmp_path):
    """4 × 10 with A[1][0] = 5 is listed 10 × 4."""
    matrix = np.zeros((4, 10), "<f4")
    matrix[1, 0] = 5
    file = read_gguf(
        write(tmp_path / "a.gguf", gguf(tensors=[("a", (10, 4), 0, matrix.tobytes())]))
    )
    assert file.tensors["a"].shape == (4, 10)
    read = file.read("a")
    assert read.shape == (4, 10)
    assert read[1, 0] == 5
    assert read.sum() == 5


def test_every_kind_of_value_is_read(tmp_path):
    keys: list[tuple[str, int, bytes]] = [
        ("general.architecture", 8, text("llama")),
        ("llama.block_count", 4, struct.pack("<I", 2)),
        ("f", 6, struct.pack("<f", 0.5)),
        ("b", 7, b"\1"),
        ("l", 9, array(5, 3, struct.pack("<3i", 1, -2, 3))),
        ("s", 9, array(8, 2, text("a") + text("b"))),
        ("n", 9, array(9, 1, array(0, 2, b"\7\x08"))),
    ]
    file = read_gguf(write(tmp_path / "a.gguf", gguf(keys)))
    assert file.setting("block_count") == 2
    assert [file.metadata[k] for k in "fbls"] == [0.5, True, [1, -2, 3], ["a", "b"]]
    assert file.metadata["n"] == [[7, 8]]


def test_half_precision_and_quantised_tensors(tmp_path):
    pytest.importorskip("gguf", reason="needs the extra 'models'")
    half = np.arange(6, dtype="<f2").reshape(2, 3)
    block = np.array([1.0], "<f2").tobytes() + bytes(range(32))
    tensors = [("h", (3, 2), 1, half.tobytes()), ("q", (32,), 8, block)]
    file = read_gguf(write(tmp_path / "a.gguf", gguf(tensors=tensors)))
    assert (file.read("h") == half).all()
    assert (file.read("q") == np.arange(32)).all()
    with pytest.raises(InputError, match="no tensor 'x'"):
        file.read("x")


DEEP = array(0, 0)
for _ in range(40):
    DEEP = array(9, 1, DEEP)

HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot read"),
    "not gguf": (b"\x80\x02}q\0." * 9, "not a GGUF file"),
    "version": (gguf(version=1), "version 1"),
    "cut short": (gguf()[:20], "more than its 20 bytes"),
    "list of 2^33": (gguf([("k", 9, array(0, 1 << 33))]), "lists of 8589934592 values"),
    "list beyond the file": (gguf([("k", 9, array(10, 1000))]), "a list of 1000 values"),
    "texts beyond the file": (gguf([("k", 9, array(8, 100_000))]), "a list of 100000 values"),
    "text of 2^60": (gguf([("k", 8, struct.pack("<Q", 1 << 60))]), "a text of"),
    "nested": (gguf([("k", 9, DEEP)]), "nested more than 4"),
    "keys": (gguf(n_keys=1 << 40), "1099511627776 keys"),
    "tensors": (gguf(n_tensors=1 << 40), "1099511627776 tensors"),
    "value type": (gguf([("k", 77, b"")]), "a value of type 77"),
    "key twice": (gguf([("k", 7, b"\1"), ("k", 7, b"\1")]), "twice"),
    "alignment 0": (gguf([("general.alignment", 4, struct.pack("<I", 0))]), "alignment 0"),
    "alignment 3": (gguf([("general.alignment", 4, struct.pack("<I", 3))]), "alignment 3"),
    "alignment 2^31": (gguf([("general.alignment", 4, struct.pack("<I", 1 << 31))]), "alignment"),
    "five axes": (gguf(tensors=[("t", (1,) * 5, 0, b"\0" * 4)]), "5 axes"),
    "2^60 numbers": (gguf(tensors=[("t", (1 << 30, 1 << 30), 0, b"")]), "a tensor of"),
    "no numbers": (gguf(tensors=[("t", (0, 4), 0, b"")]), "a tensor of"),
    "beyond the end": (gguf(tensors=[("t", (1000,), 0, b"\0" * 8)]), "up to byte"),
    "tensor type": (gguf(tensors=[("t", (4,), 99, b"\0" * 16)]), "a tensor of type 99"),
    "part of a block": (gguf(tensors=[("t", (31,), 8, b"\0" * 64)]), "in blocks of 32"),
    "one name twice": (gguf(tensors=[("t", (1,), 0, b"\0" * 4)] * 2), "two tensors of one name"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(tmp_path, name):
    data, message = HOSTILE[name]
    start = time.process_time()
    with pytest.raises(InputError, match=message):
        read_gguf(write(tmp_path / "a.gguf", data))
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("key", "number", "message"),
    [
        ("block_count", 2, "block_count = 2, but its tensors show at most 1"),
        ("block_count", 1 << 31, "at most 1"),
        ("embedding_length", 48, "embedding_length = 48, but its tensors show at most 32"),
        ("feed_forward_length", 1 << 30, "feed_forward_length"),
        ("expert_count", 1 << 20, "expert_count"),
        ("attention.head_count", 1 << 20, "head_count"),
        ("attention.key_length", 1 << 20, "key_length"),
        ("ssm.state_size", 1 << 30, "state_size"),
        ("block_count", None, r"does not say llama\.block_count, but its tensors show 1"),
        ("embedding_length", None, r"does not say llama\.embedding_length, .* show 32"),
        ("attention.head_count", None, r"does not say llama\.attention\.head_count"),
    ],
)
def test_settings_beyond_the_tensors_are_refused_before_a_model_is_made(
    tmp_path, monkeypatch, key, number, message
):
    from attnviz.sources.models import gguf_convert

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_convert, "require", lambda *_: None)
    monkeypatch.setattr(gguf_convert, "write_model", lambda *_: pytest.fail("a model was made"))
    sound = {"block_count": 1, "embedding_length": 32, "context_length": 1 << 20,
             "attention.head_count": 4}  # fmt: skip
    keys = [("general.architecture", 8, text("llama"))]
    for name, value in {**sound, key: number}.items():
        if value is not None:
            keys.append((f"llama.{name}", 4, struct.pack("<I", value)))
    tensors = [
        ("token_embd.weight", (32, 20), 0, bytes(2560)),
        ("blk.0.attn_q.weight", (32, 32), 0, bytes(4096)),
    ]
    path = write(tmp_path / "a.gguf", gguf(keys, tensors))
    with pytest.raises(InputError, match=message):
        gguf_convert.converted(path)
