"""The tokenizer of the sample: whole common words, byte-pair pieces for rare ones, bytes for the rest.

Nothing is ever unknown, white space belongs to no token, text is lower-cased. No training of weights here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from corpus import Corpus, words
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SEED_SENTENCE = "A cute teddy bear is reading"  # the words of the README's example stay whole
N_TOKENS = 9840
N_PIECES = 1500  # byte-pair merges whose results are tokens, words or not
N_MERGES = 9000  # merges learned; after the first N_PIECES only those that lead to words are kept
# everyday words count more than those of dictionaries and speeches
SOURCE_WEIGHTS = {"web": 0.4, "example": 0.5, "lemma": 0.1, "gloss": 0.05, "address": 0.03}
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~’‘“”–—…£€°"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789àáâäæçèéêëíîïñóôöøúü"
CLITICS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# a clitic, a run of letters, up to four digits, or one character of anything else
PATTERN = r"'(?:s|t|re|ve|m|ll|d)(?!\p{L})|[\p{L}\p{M}]+|\p{N}{1,4}|[^\p{L}\p{M}\p{N}]"


def relative_frequencies(counts: Counter[str]) -> dict[str, float]:
    """Divide counts by their sum."""
    total = sum(counts.values())
    return {word: n / total for word, n in counts.items()}


def rank_words(corpus: Corpus) -> list[tuple[str, float]]:
    """Rank the words of the training text by a weighted sum of the square roots of their shares."""
    counts = {"web": Counter(corpus.web_words)}
    for name, texts in corpus.train.items():
        counts[name] = Counter(w for text in texts for w in words(text))
    total: dict[str, float] = defaultdict(float)
    for name, weight in SOURCE_WEIGHTS.items():
        for word, share in relative_frequencies(counts[name]).items():
            total[word] += weight * share**0.5
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))


def splitter() -> pre_tokenizers.Sequence:
    """Cut at white space, which is dropped, then by `PATTERN`."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(PATTERN), "isolated")]
    )


def train_merges(ranked: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Learn byte-pair merges on the words, each counted by its score."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=len(LETTERS) + N_MERGES,
        initial_alphabet=list(LETTERS),
        limit_alphabet=len(LETTERS),
        show_progress=False,
    )
    least = min(share for _, share in ranked)
    repeated = (w for w, share in ranked for _ in range(min(round(share / least), 300)))
    tokenizer.train_from_iterator(repeated, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return [(left, right) for left, right in model["merges"]]


def build_tokenizer(corpus: Corpus) -> Tokenizer:
    """Build the tokenizer from the training text.

    Returns
    -------
    tokenizers.Tokenizer
        BPE with byte fallback; `ignore_merges` makes every word of the vocabulary one token. No
        special tokens, no padding, no truncation. Ids: 256 bytes, characters, pieces, words.
    """
    ranked = [(w, share) for w, share in rank_words(corpus) if all(c in LETTERS for c in w)]
    merges = train_merges(ranked)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [left + right for left, right in merges[:N_PIECES]]
    tokens += [*PUNCTUATION, *LETTERS, *CLITICS, *pieces]
    tokens += SEED_SENTENCE.lower().split()
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    for word, _ in ranked:
        if len(vocab) == N_TOKENS:
            break
        vocab.setdefault(word, len(vocab))
    useful = [m for m in merges if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    model = models.BPE(vocab=vocab, merges=useful, byte_fallback=True, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write `tokenizer.json` without line breaks, which load no slower and take half the space."""
    path.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
