"""Train the bundled sample: text, tokenizer, one attention head, and its eight-headed sibling.

    python sample_weights/train.py              everything, with the fixed seed
    python sample_weights/train.py --steps 200  a short run, to see that it works

The objective is in `point`; the text in corpus.py, the tokenizer in vocabulary.py, the figures in
evaluate.py. The same seed gives the same bytes on the same machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import HERE, Corpus, load_corpus
from safetensors.numpy import save
from torch import Tensor
from vocabulary import build_tokenizer, save_tokenizer

D_MODEL, D_HEAD, N_HEADS = 512, 64, 8
SCALE = D_HEAD**-0.5
BLOCK = 1024  # tokens scored against each other in one step
MAX_LENGTH = 64  # tokens of one sentence; longer ones are cut into several
PAIRS_SHARE = 0.25  # of a block: two-word sequences of the web
RARE = 1e-4  # queries more frequent than this count less, as in word2vec
STEPS, STEPS_8 = 14000, 4000
Z_SHARE = 0.3  # of the loss: how well the output z names the neighbours
# how much a neighbour counts, by its distance in tokens, on both sides
NEARNESS = {1: 1.0, 2: 0.3, 3: 0.1, 4: 0.1}
SINGLE: dict[int, float] = {s * d: w for d, w in NEARNESS.items() for s in (1, -1)}
HEADS: tuple[tuple[str, dict[int, float]], ...] = (
    ("the token after", {1: 1.0}),
    ("the token before", {-1: 1.0}),
    ("the second token after", {2: 1.0}),
    ("the second token before", {-2: 1.0}),
    ("three to six tokens after", dict.fromkeys(range(3, 7), 1.0)),
    ("three to six tokens before", {-d: 1.0 for d in range(3, 7)}),
    ("the tokens on both sides", {1: 1.0, -1: 1.0}),
    ("two to ten tokens away", {s * d: 1.0 for d in range(2, 11) for s in (1, -1)}),
)


@dataclass(frozen=True)
class Block:
    """Sentences laid one after another: ids and the sentence each token belongs to, both (N,)."""

    ids_N: Tensor
    sentence_N: Tensor


@dataclass(frozen=True)
class Text:
    """Encoded training text: all ids in a row with the start of each sentence, and web pairs."""

    ids: np.ndarray
    starts: np.ndarray
    pairs: np.ndarray
    pair_edges: np.ndarray  # cumulative probabilities the pairs are drawn with
    frequency_V: np.ndarray


def encode(tokenizer: object, texts: list[str]) -> list[list[int]]:
    """Encode sentences and cut the long ones into runs of at most `MAX_LENGTH`."""
    runs = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):  # type: ignore[attr-defined]
        ids = encoding.ids
        runs += [ids[i : i + MAX_LENGTH] for i in range(0, len(ids), MAX_LENGTH)]
    return [run for run in runs if len(run) > 1]


def encode_corpus(tokenizer: object, corpus: Corpus) -> Text:
    """Encode the training sentences and the web pairs whose words are whole tokens."""
    runs = [run for texts in corpus.train.values() for run in encode(tokenizer, list(texts))]
    vocab: dict[str, int] = tokenizer.get_vocab()  # type: ignore[attr-defined]
    known = [(vocab[a], vocab[b], n) for a, b, n in corpus.bigrams if a in vocab and b in vocab]
    share = np.array([n for _, _, n in known], dtype=np.float64) ** 0.5
    ids = np.array([i for run in runs for i in run], dtype=np.int64)
    starts = np.cumsum([0] + [len(run) for run in runs])
    frequency = np.bincount(ids, minlength=len(vocab)) + 1.0
    pairs = np.array([(a, b) for a, b, _ in known], dtype=np.int64)
    edges = np.cumsum(share / share.sum())
    return Text(ids, starts, pairs, edges, frequency / frequency.sum())


def draw_blocks(text: Text, seed: int) -> Callable[[], Block]:
    """Return a function that gives the next block; sentences come in a new order each epoch."""
    generator = np.random.Generator(np.random.Philox(seed))
    order: list[int] = []

    def next_block() -> Block:
        runs: list[np.ndarray] = []
        size = 0
        while size < BLOCK * (1 - PAIRS_SHARE):
            if not order:
                order.extend(generator.permutation(len(text.starts) - 1).tolist())
            start = order.pop()
            runs.append(text.ids[text.starts[start] : text.starts[start + 1]])
            size += len(runs[-1])
        n_pairs = max(0, BLOCK - size) // 2
        picked = np.searchsorted(text.pair_edges, generator.random(n_pairs))
        runs += list(text.pairs[np.minimum(picked, len(text.pairs) - 1)])
        lengths = np.array([len(run) for run in runs])
        sentence = np.repeat(np.arange(len(runs)), lengths)
        return Block(torch.from_numpy(np.concatenate(runs)), torch.from_numpy(sentence))

    return next_block


def neighbours(block: Block, nearness: dict[int, float]) -> tuple[Tensor, Tensor]:
    """List each token's neighbours in its own sentence.

    Returns
    -------
    index_ND, share_ND : Tensor
        Where the neighbour at each distance stands, and its share of the target: rows sum to 1,
        or to 0 where a token has no such neighbour. A copy of the token itself is no neighbour.
    """
    n = len(block.ids_N)
    here = torch.arange(n)
    offsets = torch.tensor(list(nearness))
    index_ND = (here[:, None] + offsets).clamp(0, n - 1)
    inside = (here[:, None] + offsets == index_ND) & (
        block.sentence_N[index_ND] == block.sentence_N[:, None]
    )
    other = block.ids_N[index_ND] != block.ids_N[:, None]
    share_ND = torch.tensor(list(nearness.values())) * (inside & other)
    return index_ND, share_ND / share_ND.sum(1, keepdim=True).clamp(min=1e-9)


def point(scores_NN: Tensor, index_ND: Tensor, share_ND: Tensor, weight_N: Tensor) -> Tensor:
    """Cross-entropy of pointing at one's neighbours among all tokens of a block.

    -Σ_i w_i Σ_d share_id · log softmax_j(scores_ij)[index_id] / Σ_i w_i

    The candidates are the tokens of a hundred sentences, the token itself among them, in no order:
    what decides is only which words go together. At the optimum a score is the logarithm of how
    many times likelier the key is beside the query than anywhere (pointwise mutual information;
    van den Oord et al. 2018, arXiv:1807.03748, section 2.3).
    """
    log_sum_N = torch.logsumexp(scores_NN, dim=1)
    chosen_N = (scores_NN.gather(1, index_ND) * share_ND).sum(1)
    weight_N = weight_N * share_ND.sum(1)
    return (weight_N * (log_sum_N - chosen_N)).sum() / weight_N.sum()


def attend(scores_NN: Tensor, sentence_N: Tensor) -> Tensor:
    """Attention weights: softmax of the scores among the tokens of a sentence, itself included."""
    same_NN = sentence_N[:, None] == sentence_N
    return torch.softmax(scores_NN.masked_fill(~same_NN, -torch.inf), dim=1)


def random_matrix(seed: int, *shape: int, scale: float) -> Tensor:
    """Draw a matrix by Philox, so that one seed means the same numbers everywhere."""
    values = np.random.Generator(np.random.Philox(seed)).standard_normal(shape) * scale
    return torch.from_numpy(values.astype(np.float32)).requires_grad_()


def run_steps(name: str, n_steps: int, rate: float, parameters: dict[str, Tensor],
              loss_of: Callable[[], Tensor]) -> None:  # fmt: skip
    """Minimise a loss by Adam, its rate falling linearly to zero; print progress and time left."""
    optimizer = torch.optim.Adam(parameters.values(), lr=rate, betas=(0.9, 0.99))
    began = time.perf_counter()
    mean = 0.0
    for step in range(1, n_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - (step - 1) / n_steps)
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean += loss.item()
        if step % 200 == 0 or step == n_steps:
            used_s = time.perf_counter() - began
            left_s = used_s / step * (n_steps - step)
            print(f"{name}  {step}/{n_steps}  loss {mean / ((step - 1) % 200 + 1):.4f}  "
                  f"{used_s / 60:.1f} min, {left_s / 60:.1f} min left", flush=True)  # fmt: skip
            mean = 0.0


def train_single(text: Text, seed: int, n_steps: int) -> dict[str, Tensor]:
    """Train the embedding and one head; `w_out` reads z and is not shipped."""
    n_tokens = len(text.frequency_V)
    wide = D_MODEL**-0.5
    parameters = {
        "embedding": random_matrix(seed, n_tokens, D_MODEL, scale=0.3),
        "w_q": random_matrix(seed + 1, D_MODEL, D_HEAD, scale=wide),
        "w_k": random_matrix(seed + 2, D_MODEL, D_HEAD, scale=wide),
        "w_v": random_matrix(seed + 3, D_MODEL, D_HEAD, scale=wide),
        "w_out": random_matrix(seed + 4, D_MODEL, D_HEAD, scale=wide),
    }
    weight_V = torch.from_numpy(np.minimum(1, np.sqrt(RARE / text.frequency_V))).float()
    next_block = draw_blocks(text, seed + 5)

    def loss_of() -> Tensor:
        block = next_block()
        x_ND = torch.nn.functional.embedding(block.ids_N, parameters["embedding"])
        q, k, v, u = (x_ND @ parameters[name] for name in ("w_q", "w_k", "w_v", "w_out"))
        scores_NN = q @ k.mT * SCALE
        z_NF = attend(scores_NN, block.sentence_N) @ v
        target = neighbours(block, SINGLE)
        weight_N = weight_V[block.ids_N]
        named = point(z_NF @ u.mT * SCALE, *target, weight_N)
        return point(scores_NN, *target, weight_N) + Z_SHARE * named

    run_steps("one head", n_steps, 4e-3, parameters, loss_of)
    return {name: tensor.detach() for name, tensor in parameters.items()}


def train_heads(text: Text, embedding: Tensor, seed: int, n_steps: int) -> dict[str, Tensor]:
    """Train eight heads on the finished embedding; each head points at other neighbours.

    w_v and w_o learn to name the tokens on both sides: the output, 512 wide, is compared with the
    embedding itself. This part of the loss does not move the heads' weights.
    """
    wide, width = D_MODEL**-0.5, N_HEADS * D_HEAD
    parameters = {
        name: random_matrix(seed + 10 + i, D_MODEL, width, scale=wide)
        for i, name in enumerate(("w_q", "w_k", "w_v", "w_o"))
    }
    weight_V = torch.from_numpy(np.minimum(1, np.sqrt(RARE / text.frequency_V))).float()
    next_block = draw_blocks(text, seed + 15)

    def loss_of() -> Tensor:
        block = next_block()
        x_ND = embedding[block.ids_N]
        q, k, v = (
            (x_ND @ parameters[name]).view(-1, N_HEADS, D_HEAD).transpose(0, 1)
            for name in ("w_q", "w_k", "w_v")
        )
        weight_N = weight_V[block.ids_N]
        total = torch.zeros(())
        outputs = []
        for head, (_, nearness) in enumerate(HEADS):
            scores_NN = q[head] @ k[head].mT * SCALE
            total = total + point(scores_NN, *neighbours(block, nearness), weight_N)
            outputs.append(attend(scores_NN.detach(), block.sentence_N) @ v[head])
        y_ND = torch.cat(outputs, dim=1) @ parameters["w_o"]
        named = point(y_ND @ x_ND.mT * D_MODEL**-0.5, *neighbours(block, SINGLE), weight_N)
        return total / N_HEADS + Z_SHARE * named

    run_steps("eight heads", n_steps, 2e-3, parameters, loss_of)
    return {name: tensor.detach() for name, tensor in parameters.items()}


def sort_header(content: bytes) -> bytes:
    """Return a safetensors file with its header in the order of names.

    The library writes metadata in the order of a hash table, which differs from run to run; the
    offsets of the tensors count from the end of the header and stay as they are.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


def save_layer(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write float16 tensors and metadata; the same values always give the same bytes."""
    arrays = {n: np.ascontiguousarray(t.numpy().astype(np.float16)) for n, t in tensors.items()}
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(sort_header(save(arrays, metadata=metadata)))
    temporary.replace(path)


def describe(text: Text, seed: int, tokenizer_path: Path) -> dict[str, str]:
    """State in metadata what both files share."""
    return {
        "format": "attnviz.layer/1",
        "scale": repr(SCALE),
        "causal": "false",
        "seed": str(seed),
        "licence": "MIT; training texts: see LICENSES.md",
        "data": (
            f"WordNet 3.1, State of the Union addresses 1790-2021, web bigram counts: "
            f"{len(text.ids)} tokens of sentences, {len(text.pairs)} word pairs"
        ),
        "tokenizer_sha256": hashlib.sha256(tokenizer_path.read_bytes()).hexdigest(),
    }


def main() -> None:
    """Run everything and write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=2017)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the single head")
    parser.add_argument("--steps-8", type=int, default=STEPS_8, help="steps of the eight heads")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write to")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    options.output.mkdir(parents=True, exist_ok=True)

    began = time.perf_counter()
    corpus = load_corpus()
    tokenizer = build_tokenizer(corpus)
    tokenizer_path = options.output / "tokenizer.json"
    save_tokenizer(tokenizer, tokenizer_path)
    text = encode_corpus(tokenizer, corpus)
    common = describe(text, options.seed, tokenizer_path)
    print(f"text ready: {common['data']}, {time.perf_counter() - began:.0f} s", flush=True)

    single = train_single(text, options.seed, options.steps)
    single.pop("w_out")
    save_layer(options.output / "sample.safetensors", single, common | {
        "n_heads": "1", "n_kv_heads": "1", "steps": str(options.steps),
        "origin": "one self-attention head trained for attnviz on WordNet, US presidents' "
                  "addresses and web bigrams to point at neighbouring words",
        "objective": "every token points at its neighbours among about 1000 shuffled tokens of "
                     f"other sentences; share by distance {json.dumps(NEARNESS)}; "
                     f"plus {Z_SHARE} x the same from the output z",
    })  # fmt: skip
    if options.steps_8:
        # what is shipped is float16: the heads learn on exactly that embedding
        heads = train_heads(text, single["embedding"].half().float(), options.seed, options.steps_8)
        save_layer(options.output / "sample-8.safetensors", heads, common | {
            "n_heads": str(N_HEADS), "n_kv_heads": str(N_HEADS), "steps": str(options.steps_8),
            "embedding_from": "sample.safetensors",
            "origin": "eight self-attention heads trained for attnviz on the same text and "
                      "embedding as sample, each to point at other neighbours",
            "objective": "each head points at its own kind of neighbour among about 1000 shuffled "
                         "tokens; w_v and w_o learn to name the neighbours",
            "heads": json.dumps([name for name, _ in HEADS]),
        })  # fmt: skip
    print(f"done in {(time.perf_counter() - began) / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
