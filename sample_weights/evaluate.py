"""Measure the shipped sample on held-out text, with numpy alone, and print the README's tables.

    python sample_weights/evaluate.py            read heldout.jsonl and the shipped files
    python sample_weights/evaluate.py --select   choose the sentences anew from the corpus

No training here; the sentences are chosen by rule, see `select`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from train import Block

HERE = Path(__file__).resolve().parent
HELD_OUT = HERE / "heldout.jsonl"
PER_SOURCE = 200  # sentences kept per source and kind

Weigh = Callable[[list[int]], np.ndarray]


@dataclass(frozen=True)
class Layer:
    """One layer in float64: embedding (V, D), w_q, w_k, w_v (D, H·E), scale and heads."""

    embedding: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    scale: float
    n_heads: int


@dataclass(frozen=True)
class Case:
    """A held-out sentence and the positions of the two words of its compound."""

    text: str
    source: str
    seen: bool  # whether the two words stand side by side anywhere in the training text
    first: int
    second: int


def load_layer(path: Path) -> Layer:
    """Read a layer file, and the embedding from the file it names if it has none."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
    if "embedding" not in tensors:
        with safe_open(path.with_name(metadata["embedding_from"]), framework="numpy") as file:
            tensors["embedding"] = file.get_tensor("embedding").astype(np.float64)
    return Layer(
        *(tensors[name] for name in ("embedding", "w_q", "w_k", "w_v")),
        scale=float(metadata["scale"]),
        n_heads=int(metadata["n_heads"]),
    )


def head_scores(layer: Layer, ids: list[int], head: int) -> np.ndarray:
    """Scaled scores of one head, (L, L): q·kᵀ times the scale."""
    width = layer.w_q.shape[1] // layer.n_heads
    part = slice(head * width, (head + 1) * width)
    x_LD = layer.embedding[ids]
    return (x_LD @ layer.w_q[:, part]) @ (x_LD @ layer.w_k[:, part]).T * layer.scale


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax along the keys."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def weigh_by(layer: Layer, head: int = 0) -> Weigh:
    """Return the head as a function from ids to attention weights (L, L)."""
    return lambda ids: softmax(head_scores(layer, ids, head))


def weigh_shuffled(layer: Layer, seed: int = 0) -> Weigh:
    """The same head with its keys dealt to the wrong tokens of the sentence: a baseline."""
    generator = np.random.Generator(np.random.Philox(seed))
    return lambda ids: softmax(head_scores(layer, ids, 0)[:, generator.permutation(len(ids))])


def weigh_uniform(seed: int = 0) -> Weigh:
    """Equal weights; noise far below a weight decides the ties of the largest one."""
    generator = np.random.Generator(np.random.Philox(seed))
    return lambda ids: (1 + 1e-9 * generator.random((len(ids), len(ids)))) / len(ids)


def finds_partner(weights_LS: np.ndarray, case: Case) -> bool:
    """Tell whether the first word's largest weight among the other tokens is its partner."""
    row = weights_LS[case.first].copy()
    row[case.first] = -1
    return int(row.argmax()) == case.second


def partner_share(cases: list[Case], tokenizer: Tokenizer, weigh: Weigh) -> float:
    """Share of the cases whose first word looks at its partner."""
    ids_of = (tokenizer.encode(case.text, add_special_tokens=False).ids for case in cases)
    return float(np.mean([finds_partner(weigh(ids), case) for ids, case in zip(ids_of, cases)]))


def load_cases(path: Path = HELD_OUT) -> list[Case]:
    """Read the held-out sentences."""
    return [Case(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def pair_positions(tokens: list[str], pairs: frozenset[tuple[str, str]]) -> Iterator[int]:
    """Yield where two tokens side by side are a compound."""
    for i, pair in enumerate(itertools.pairwise(tokens)):
        if pair in pairs:
            yield i


def select(tokenizer: Tokenizer) -> list[Case]:
    """Choose the held-out sentences by rule.

    From every held-out sentence of 5 to 40 tokens with a noun compound of WordNet (or its plural)
    whose two words are one token each and stand in the sentence once: the first compound. Of
    these, per source, and per whether the pair of words was seen in training, the `PER_SOURCE`
    with the smallest hash.
    """
    from corpus import hash_of, load_corpus, pairs_with_plural, words

    corpus = load_corpus()
    pairs = frozenset(form for pair in corpus.compounds for form in pairs_with_plural(pair))
    training = {p for ts in corpus.train.values() for t in ts for p in zip(words(t), words(t)[1:])}
    training |= {(a, b) for a, b, _ in corpus.bigrams}
    chosen: list[Case] = []
    for source, texts in corpus.held_out.items():
        groups: dict[bool, list[Case]] = {True: [], False: []}
        for text in sorted(texts, key=hash_of):
            # the part of a dictionary line before the colon lists the lemmas: not prose
            sentence = text.split(": ", 1)[1] if source == "gloss" and ": " in text else text
            tokens = tokenizer.encode(sentence, add_special_tokens=False).tokens
            if not 5 <= len(tokens) <= 40:
                continue
            for i in pair_positions(tokens, pairs):
                first, second = tokens[i], tokens[i + 1]
                spoken = zip(words(sentence), words(sentence)[1:])
                if tokens.count(first) > 1 or tokens.count(second) > 1:
                    continue
                if (first, second) not in spoken:  # pieces of longer words
                    continue
                seen = (first, second) in training
                groups[seen].append(Case(sentence, source, seen, i, i + 1))
                break
        for cases in groups.values():
            chosen += cases[:PER_SOURCE]
    return chosen


def print_shares(
    cases: list[Case], tokenizer: Tokenizer, single: Layer, eight: Layer | None
) -> None:
    """Print the share of compounds found, by group and by kind of attention."""
    rows: dict[str, Weigh] = {
        "sample": weigh_by(single),
        "keys shuffled within the sentence": weigh_shuffled(single),
        "uniform": weigh_uniform(),
    }
    if eight is not None:
        rows |= {f"sample-8, head {h}": weigh_by(eight, h) for h in range(eight.n_heads)}
    groups = {
        "all": cases,
        "pair seen": [c for c in cases if c.seen],
        "pair never seen": [c for c in cases if not c.seen],
    }
    groups |= {
        s: [c for c in cases if c.source == s] for s in dict.fromkeys(c.source for c in cases)
    }
    print("| attention | " + " | ".join(f"{n} ({len(c)})" for n, c in groups.items()) + " |")
    print("|---|" + "---|" * len(groups))
    for name, weigh in rows.items():
        shares = (partner_share(group, tokenizer, weigh) for group in groups.values())
        print(f"| {name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")


def print_rows(text: str, tokenizer: Tokenizer, layer: Layer, head: int = 0) -> None:
    """Print the two tokens each token of a sentence looks at most."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    weights = weigh_by(layer, head)(encoding.ids)
    shown = []
    for token, row in zip(encoding.tokens, weights):
        best = row.argsort()[::-1][:2]
        shown.append(f"{token} → " + ", ".join(f"{encoding.tokens[j]} {row[j]:.2f}" for j in best))
    print(f"{text}\n    " + "; ".join(shown))


EXAMPLES = (
    "A cute teddy bear is reading",
    "She went to the post office to buy stamps.",
    "The swimming pool was closed because of heavy rain.",
    "I drank a cup of coffee this morning.",
    "The cat sat on the mat.",
    "We ate ice cream at the beach.",
    "The doctor gave the patient some medicine.",
    "He plays the guitar in a rock band.",
    "The train arrived at the station two hours late.",
    "My father bought a new car last week.",
    "The quick brown fox jumps over the lazy dog.",
    "The teacher asked the students to open their books.",
    "Heavy traffic on the main road delayed the school bus.",
    "The bank raised interest rates again.",
    "The river bank was covered with grass.",
    "Birds fly south in the winter.",
)


def print_losses(folder: Path) -> None:
    """Print the held-out loss of pointing at one's neighbours, beside two simpler attentions.

    ``among a thousand`` is the training objective (`point` in train.py): candidates are the tokens
    of about a hundred shuffled sentences. ``within the sentence`` is the same for what the shipped
    layer does: softmax over its own sentence, itself included. ``frequency`` is the best key score
    that knows nothing of the query, counted on the training text.
    """
    import torch
    from corpus import load_corpus
    from train import BLOCK, RARE, SINGLE, encode, encode_corpus, neighbours, point

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    layer = load_layer(folder / "sample.safetensors")
    corpus = load_corpus()
    text = encode_corpus(tokenizer, corpus)
    query_V = torch.from_numpy(np.minimum(1, np.sqrt(RARE / text.frequency_V)))
    mass_V = torch.zeros(len(text.frequency_V), dtype=torch.float64)
    seen_V = torch.zeros_like(mass_V)
    for block in _blocks(text.ids, text.starts, BLOCK, most=2000):
        index_ND, share_ND = neighbours(block, SINGLE)
        pull_ND = share_ND.double() * query_V[block.ids_N][:, None]
        mass_V.index_add_(0, block.ids_N[index_ND].flatten(), pull_ND.flatten())
        seen_V.index_add_(0, block.ids_N, torch.ones(len(block.ids_N), dtype=torch.float64))
    frequency_V = torch.log((mass_V + 1e-3) / (seen_V + 1))
    runs = [run for texts in corpus.held_out.values() for run in encode(tokenizer, list(texts))]
    ids = np.array([i for run in runs for i in run], dtype=np.int64)
    starts = np.cumsum([0] + [len(run) for run in runs])
    totals: dict[tuple[str, str], list[float]] = {}
    embedding = torch.from_numpy(layer.embedding)
    w_q, w_k = torch.from_numpy(layer.w_q), torch.from_numpy(layer.w_k)
    for block in _blocks(ids, starts, BLOCK, most=200):
        x_ND = embedding[block.ids_N]
        n = len(block.ids_N)
        scored = {
            "sample": (x_ND @ w_q) @ (x_ND @ w_k).mT * layer.scale,
            "frequency": frequency_V[block.ids_N].expand(n, n),
            "uniform": torch.zeros(n, n, dtype=torch.float64),
        }
        same_NN = block.sentence_N[:, None] == block.sentence_N
        index_ND, share_ND = neighbours(block, SINGLE)
        weight_N = query_V[block.ids_N]
        for name, scores_NN in scored.items():
            for place, entering in (
                ("among a thousand", scores_NN),
                ("within the sentence", scores_NN.masked_fill(~same_NN, -1e9)),
            ):
                loss = point(entering, index_ND, share_ND.double(), weight_N)
                totals.setdefault((name, place), []).append(float(loss))
    print("| attention | among a thousand tokens | within the sentence |\n|---|---:|---:|")
    for name in ("sample", "frequency", "uniform"):
        cells = (np.mean(totals[name, p]) for p in ("among a thousand", "within the sentence"))
        print(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


def _blocks(ids: np.ndarray, starts: np.ndarray, size: int, *, most: int) -> Iterator[Block]:
    """Lay sentences, in an order shuffled once, into blocks of about ``size`` tokens."""
    import torch
    from train import Block

    order = np.random.Generator(np.random.Philox(1)).permutation(len(starts) - 1)
    runs: list[np.ndarray] = []
    made = 0
    for i in order:
        runs.append(ids[starts[i] : starts[i + 1]])
        if sum(map(len, runs)) < size:
            continue
        sentence = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
        yield Block(torch.from_numpy(np.concatenate(runs)), torch.from_numpy(sentence))
        runs, made = [], made + 1
        if made == most:
            return


def main() -> None:
    """Select if asked, then print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--select", action="store_true", help="choose the sentences anew")
    parser.add_argument("--folder", type=Path, default=HERE, help="folder with the sample")
    parser.add_argument("--loss", action="store_true", help="print the held-out losses only")
    options = parser.parse_args()
    if options.loss:
        print_losses(options.folder)
        return
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    if options.select:
        lines = (json.dumps(vars(case), ensure_ascii=False) for case in select(tokenizer))
        HELD_OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    cases = load_cases()
    single = load_layer(options.folder / "sample.safetensors")
    path_8 = options.folder / "sample-8.safetensors"
    eight = load_layer(path_8) if path_8.exists() else None
    print_shares(cases, tokenizer, single, eight)
    for text in EXAMPLES:
        print_rows(text, tokenizer, single)
    if eight is not None:
        for head in range(eight.n_heads):
            print(f"head {head}: ", end="")
            print_rows(EXAMPLES[0], tokenizer, eight, head)


if __name__ == "__main__":
    main()
