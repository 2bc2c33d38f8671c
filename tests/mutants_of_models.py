"""Damaged GGUF, config and tokenizer files, many of them: run as a program, so that a crash shows.

``python tests/mutants_of_models.py KIND:COUNT[:SEED] …`` prints what came of them as JSON. Every
one must end as a model or as one of our own errors, soon, and without much memory.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_models import CONFIG, write_model

NASTY: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 63, 10**30, 0.0, 0.5, -1e300,
    1e999, float("nan"), True, False, None, "", "x", "\0", "../../etc/passwd", "a" * 5000, [], [0],
    [1 << 31] * 3, {}, {"a": {}}, {"auto_map": {"AutoModel": "a.B"}}, "llama", "mamba", "bert",
    "linear", "yarn", {"rope_type": "yarn", "factor": 1e30}, {"type": "dynamic"}, "float64",
)  # fmt: skip
MORE_FIELDS = (
    "rope_scaling", "rope_parameters", "rope_theta", "head_dim", "sliding_window", "layer_types",
    "attention_bias", "hidden_act", "dtype", "torch_dtype", "text_config", "quantization_config",
    "pretraining_tp", "pad_token_id", "rms_norm_eps", "initializer_range", "num_experts",
    "tie_word_embeddings", "attention_dropout", "auto_map", "is_encoder_decoder", "vision_config",
)  # fmt: skip


def mutate_json(value: Any, draw: random.Random) -> Any:
    """Put something nasty at one random place of a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        made = dict(value)
        key = draw.choice(list(made))
        change = draw.random()
        if change < 0.1:
            del made[key]
        elif change < 0.2:
            name = f"{draw.choice(list(made))}x"
            made[name] = made.pop(key)
        else:
            made[key] = mutate_json(made[key], draw)
        return made
    if isinstance(value, list) and value and draw.random() < 0.9:
        made = list(value)
        place = draw.randrange(len(made))
        change = draw.random()
        if change < 0.1:
            del made[place]
        elif change < 0.2:
            made.insert(place, draw.choice(made))
        else:
            made[place] = mutate_json(made[place], draw)
        return made
    return draw.choice(NASTY)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Overwrite, insert or cut a few bytes."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(made) + 1)
        width = draw.choice((1, 1, 4, 8))
        number = draw.choice((0, 1, 8, 255, 1 << 16, (1 << 32) - 1, 1 << 33, 1 << 62))
        raw = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        change = draw.random()
        if change < 0.7:
            made[place : place + width] = raw
        elif change < 0.85:
            made[place:place] = raw
        else:
            del made[place : place + width]
    if draw.random() < 0.1:
        del made[draw.randrange(len(made) + 1) :]
    return bytes(made)


def sound_gguf() -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    words = [f"w{i}" for i in range(20)]
    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 1),
        text("llama.embedding_length") + struct.pack("<II", 4, 32),
        text("llama.attention.head_count") + struct.pack("<II", 4, 4),
        text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"),
        text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(words))
        + b"".join(map(text, words)),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ4f", 9, 6, 4, 1, 2, 3, 4),
    ]
    tensors = [("token_embd.weight", (32, 20), 0, 2560), ("blk.0.attn_q.weight", (32, 32), 8, 1088)]
    made = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    at, data = 0, b""
    for name, shape, kind, size in tensors:
        made += text(name) + struct.pack("<I2QIQ", 2, *shape, kind, at)
        data += bytes(size)
        at += size
    return made + b"\0" * (-len(made) % 32) + data


def gguf(folder: Path, draw: random.Random) -> Callable[[], Any]:
    from attnviz.sources.models.card import model_card
    from attnviz.sources.models.gguf import read_gguf

    path = folder / "a.gguf"
    path.write_bytes(mutate_bytes(sound_gguf(), draw))

    def work() -> Any:
        file = read_gguf(path)
        for name in list(file.tensors)[:2]:
            file.read(name)
        return model_card(path)

    return work


def config(folder: Path, draw: random.Random) -> Callable[[], Any]:
    from attnviz.sources.models.card import model_card
    from attnviz.sources.transformers_ import open_model

    made = dict(CONFIG)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if draw.random() < 0.3:
            made[draw.choice(MORE_FIELDS)] = draw.choice(NASTY)
            continue
        made = mutate_json(made, draw)
        made = made if isinstance(made, dict) else {}
    data = json.dumps(made).encode()
    if draw.random() < 0.1:
        data = mutate_bytes(data, draw)
    (folder / "config.json").write_bytes(data)

    def work() -> Any:
        model_card(folder)
        source = open_model(folder)
        tokens = source.tokenize("hello world !")
        source.run(tokens, source.layers, lambda heads: None)

    return work


def tokenizer(folder: Path, draw: random.Random) -> Callable[[], Any]:
    from attnviz.sources.models.tokenizer import open_tokenizer

    source = folder / "sound.json"
    if not source.exists():
        source.write_bytes((folder / "tokenizer.json").read_bytes())
    made = json.loads(source.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        made = mutate_json(made, draw)
    data = json.dumps(made).encode()
    if draw.random() < 0.1:
        data = mutate_bytes(data, draw)
    (folder / "tokenizer.json").write_bytes(data)

    def work() -> Any:
        tokens = open_tokenizer(folder).tokenize("hello world ! bear 🧸")
        assert len(tokens.labels) == len(tokens.ids)

    return work


def main(kind: str, count: int, seed: int) -> dict[str, Any]:
    from attnviz.errors import AttnvizError

    found: dict[str, Any] = {"opened": 0, "refused": 0, "faults": [], "heavy": [], "slowest_s": 0.0}
    make = {"gguf": gguf, "config": config, "tokenizer": tokenizer}[kind]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as made:
        folder = write_model(Path(made) / "tiny")
        if kind != "gguf":  # the libraries are in before time and memory are taken
            from attnviz.sources.transformers_ import open_model

            open_model(folder)
        highest = before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            draw = random.Random(f"{kind} {seed} {number}")
            work = make(folder, draw)
            start = time.process_time()
            try:
                work()
                found["opened"] += 1
            except AttnvizError as fault:
                found["refused"] += 1
                if "\n" in str(fault) or len(str(fault)) > 600:
                    found["faults"].append(f"{number}: a message of {len(str(fault))} characters")
            except BaseException as fault:
                if isinstance(fault, KeyboardInterrupt):
                    raise
                found["faults"].append(f"{number}: {type(fault).__name__}: {fault}"[:300])
            took = time.process_time() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if took > 2 or peak - highest > 200 << 10:
                found["heavy"].append(f"{number}: {took:.1f} s, {(peak - highest) >> 10} MB")
            highest = max(highest, peak)
            found["slowest_s"] = max(found["slowest_s"], took)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {**found, "grown_mb": grown / 1024}


if __name__ == "__main__":
    asked = [pair.split(":") for pair in sys.argv[1:]]
    print(
        json.dumps(
            {kind: main(kind, int(count), int(*seed or "0")) for kind, count, *seed in asked}
        )
    )
