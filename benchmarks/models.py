"""Time and memory of capturing one layer of a real model, beside eager and sdpa.

Run: ``python benchmarks/models.py MODEL [LENGTH …]``, where MODEL is what ``--model`` takes. Memory is
the peak above the loaded model, each way in a process of its own. Times of sdpa and attnviz are taken
in turns in one process, the best of each, in seconds on the clock and of the processors: on a machine
with other work the latter show the ratio best.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import threading
import time

WAYS = ("sdpa", "attnviz, all layers, one kept", "attnviz, first layer", "eager with weights")
LENGTHS = (2048, 8192)
EAGER_LIMIT = 2048
ROUNDS = 4


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


class Peak:
    """The largest resident size while the block runs, sampled every 5 ms."""

    def __enter__(self) -> Peak:
        self.start = self.highest = resident_bytes()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done.wait(0.005):
            self.highest = max(self.highest, resident_bytes())

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


def measure(model: str, way: str, length: int) -> dict[str, float]:
    import torch

    from attnviz.records import LayerHeads, Tokens
    from attnviz.sources.models.planning import switch
    from attnviz.sources.models.source import open_model

    source = open_model(model)
    ids = tuple((7 * i + 11) % 4000 + 100 for i in range(length))
    tokens = Tokens("", ids, ("",) * length, ("",) * length, (None,) * length, (False,) * length)
    last = source.layers[-1]
    kept: list[LayerHeads] = []

    def work(way: str) -> None:
        kept.clear()
        if way.startswith("attnviz"):
            source.run(tokens, (0 if "first" in way else last,), kept.append)
            return
        with torch.inference_mode():
            source.loaded.forward([ids], output_attentions="eager" in way)

    switch(source.loaded.model, "eager" if "eager" in way else "sdpa")
    with torch.inference_mode():
        source.loaded.forward([ids[:64]])  # pages of the weights come in
    peak, rounds = 0, ROUNDS if length <= 4096 else 2
    others = [way] if "eager" in way or "first" in way else [WAYS[0], WAYS[1]]
    found: dict[str, tuple[float, float]] = {}
    for turn in range(1 if "eager" in way else rounds):
        for name in others if turn else [way]:
            switch(source.loaded.model, "eager" if "eager" in name else "sdpa")
            with Peak() as seen:
                wall, used = time.perf_counter(), time.process_time()
                work(name)
                spent = (time.perf_counter() - wall, time.process_time() - used)
            best = found.get(name, (float("inf"), float("inf")))
            found[name] = (min(best[0], spent[0]), min(best[1], spent[1]))
            if turn == 0:
                peak = seen.highest - seen.start
    clock, processors = found[way]
    times = processors / found[WAYS[0]][1] if WAYS[0] in found else 0.0
    return {"clock": clock, "processors": processors, "times": times, "megabytes": peak / 1e6}


def main() -> None:
    model, *rest = sys.argv[1:]
    if rest[:1] == ["--one"]:
        print(json.dumps(measure(model, rest[1], int(rest[2]))))
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    print("| tokens | way | s, clock | s, processors | × sdpa | MB above the loaded model |")
    print("|---|---|---|---|---|---|")
    for length in [int(n) for n in rest] or LENGTHS:
        for way in WAYS:
            if "eager" in way and length > EAGER_LIMIT:
                print(f"| {length} | {way} | not run: layers · heads · L² numbers | | | |")
                continue
            command = [sys.executable, __file__, model, "--one", way, str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            ratio = f"{found['times']:.2f}" if found["times"] else ""
            print(
                f"| {length} | {way} | {found['clock']:.2f} | {found['processors']:.2f} "
                f"| {ratio} | {found['megabytes']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
