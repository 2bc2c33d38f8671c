"""Cut a text into tokens for single layers: by a tokenizer file, a word list, or plain words.

What lives here: the three vocabularies. What does not: labels of sub-word pieces (``labels``) and
the tokenizers of whole models (``models``). Texts are cut by the ``tokenizers`` library, never
by hand; padding and truncation that a file brings along are switched off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from attnviz.records import Span, Tokens
from attnviz.sources.text.tokenizer_trial import refuse_padding, try_out

_MAX_TOKENIZER_BYTES = 64 << 20
_REPLACEMENT = "\ufffd"


def clean(text: str) -> tuple[str, tuple[str, ...]]:
    """Replace lone surrogates, which no tokenizer takes, and say so.

    Examples
    --------
    >>> clean("caf\\udce9")
    ('caf\ufffd', ('1 half surrogate replaced by U+FFFD',))
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        fixed = "".join(_REPLACEMENT if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
        count = sum(0xD800 <= ord(c) <= 0xDFFF for c in text)
        plural = "" if count == 1 else "s"
        return fixed, (f"{count} half surrogate{plural} replaced by U+FFFD",)
    return text, ()


def split_words(text: str) -> list[tuple[str, Span]]:
    """Cut at blanks and around punctuation, with the exact place of each word."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return [(word, (a, b)) for word, (a, b) in BertPreTokenizer().pre_tokenize_str(text)]


@dataclass(frozen=True, slots=True)
class WordSplitter:
    """Words and punctuation without a vocabulary; ids are a hash of the lower-cased word."""

    def tokenize(self, text: str) -> Tokens:
        text, notices = clean(text)
        words = split_words(text)
        pieces = tuple(word.lower() for word, _ in words)
        return Tokens(
            text=text,
            ids=tuple(_word_id(piece) for piece in pieces),
            pieces=pieces,
            labels=tuple(word for word, _ in words),
            spans=tuple(span for _, span in words),
            special=(False,) * len(words),
            notices=notices,
        )


@dataclass(frozen=True, slots=True)
class WordList:
    """A list of V words; looked up exactly, then lower-cased, then as ``[UNK]`` if there is one."""

    words: Sequence[str]
    name: str = "vocab"
    _ids: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for i, word in enumerate(self.words):
            self._ids.setdefault(word, i)

    def tokenize(self, text: str) -> Tokens:
        text, notices = clean(text)
        ids: list[int] = []
        labels: list[str] = []
        spans: list[Span] = []
        unknown: list[str] = []
        for word, (start, end) in self._words(text):
            found = self._find(word)
            if found is None:
                if "[UNK]" not in self._ids:
                    raise InputError(
                        f"the word {word!r} is not in the vocabulary of {len(self.words)} words and "
                        f"there is no [UNK]: known words begin with {self._sample()}"
                    )
                unknown.append(word)
                found = self._ids["[UNK]"]
            ids.append(found)
            labels.append(word)
            spans.append((start, end))
        if unknown:
            notices = (*notices, f"not in the vocabulary, read as [UNK]: {', '.join(unknown[:8])}")
        return Tokens(
            text=text,
            ids=tuple(ids),
            pieces=tuple(self.words[i] for i in ids),
            labels=tuple(labels),
            spans=tuple(spans),
            special=(False,) * len(ids),
            notices=notices,
        )

    def _words(self, text: str) -> list[tuple[str, Span]]:
        """Blank-separated words where the list has them whole, else cut around punctuation."""
        from tokenizers.pre_tokenizers import WhitespaceSplit

        found: list[tuple[str, Span]] = []
        for chunk, (start, end) in WhitespaceSplit().pre_tokenize_str(text):
            if self._find(chunk) is not None:
                found.append((chunk, (start, end)))
            else:
                found += [(w, (start + a, start + b)) for w, (a, b) in split_words(chunk)]
        return found

    def _find(self, word: str) -> int | None:
        exact = self._ids.get(word)
        return exact if exact is not None else self._ids.get(word.lower())

    def _sample(self) -> str:
        return ", ".join(repr(word) for word in list(self.words)[:5])


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A ``tokenizer.json``, opened with padding and truncation switched off."""

    tokenizer: Any
    name: str
    sha256: str
    n_rows: int | None = None

    def tokenize(self, text: str) -> Tokens:
        from attnviz.sources.confined.silence import hushed
        from attnviz.sources.text.long_text import tokens_of_any_length

        text, notices = clean(text)
        try:
            with hushed():
                tokens = tokens_of_any_length(self.tokenizer, text)
        except Exception as fault:
            raise InputError(f"{self.name} cannot cut this text: {fault}") from fault
        except BaseException as fault:  # a panic of the library is no Exception
            raise _panic(self.name, fault) from fault
        if self.n_rows is not None and tokens.ids and max(tokens.ids) >= self.n_rows:
            raise InputError(
                f"{self.name} gives id {max(tokens.ids)}, but the embedding has {self.n_rows} rows: "
                "the tokenizer belongs to another file"
            )
        if not notices:
            return tokens
        return Tokens(
            tokens.text,
            tokens.ids,
            tokens.pieces,
            tokens.labels,
            tokens.spans,
            tokens.special,
            (*notices, *tokens.notices),
        )


def open_tokenizer(path: Path, *, n_rows: int | None = None) -> TokenizerFile:
    """Open a ``tokenizer.json``, once it has been tried out in a child process (``trial``).

    Parameters
    ----------
    n_rows
        V, rows of the embedding that ids must point into.

    Raises
    ------
    InputError
        Too large, unreadable, or not a tokenizer.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_TOKENIZER_BYTES:
            raise InputError(
                f"{path.name} has {size_bytes} bytes: a tokenizer file has at most {_MAX_TOKENIZER_BYTES}"
            )
        data = path.read_bytes()
    except OSError as fault:
        raise InputError(f"cannot read the tokenizer {path.name}: {fault.strerror}") from fault
    digest = try_out(data, name=path.name)
    from tokenizers import Tokenizer

    from attnviz.sources.confined.silence import hushed

    try:
        with hushed():
            tokenizer = Tokenizer.from_buffer(data)
        refuse_padding(tokenizer, name=path.name)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except InputError:
        raise
    except Exception as fault:
        raise InputError(f"{path.name} is not a tokenizer file: {fault}") from fault
    except BaseException as fault:  # a panic of the library is no Exception
        raise _panic(path.name, fault) from fault
    return TokenizerFile(tokenizer, path.name, digest, n_rows)


def _panic(name: str, fault: BaseException) -> InputError:
    """Turn the library's panic into an error of ours; let Ctrl-C and exits through."""
    if type(fault).__name__ != "PanicException":
        raise fault
    return InputError(f"{name} makes the tokenizer library panic: it is damaged or hostile")


def _word_id(piece: str) -> int:
    digest = hashlib.sha256(piece.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def cut_text(tokenize: Callable[[str], Tokens], text: str, max_tokens: int | None) -> Tokens:
    """Tokenize a text, shortened at a token's end to at most ``max_tokens``, which is told.

    Tokens that the tokenizer adds stay, and count.

    Raises
    ------
    InputError
        No room beside the tokens that are added.
    """
    tokens = tokenize(text)
    if max_tokens is None or len(tokens) <= max_tokens:
        return tokens
    n_added = sum(span is None for span in tokens.spans)
    if max_tokens <= n_added:
        raise InputError(
            f"--max-tokens {max_tokens} leaves no room: the tokenizer itself adds {n_added}"
        )
    spans = [span for span in tokens.spans if span is not None]
    shorter, room = tokens, max_tokens - n_added
    while len(shorter) > max_tokens and room > 0:
        end = spans[room - 1][1] if room < len(spans) else len(text)
        shorter = tokenize(text[:end])
        room -= max(1, len(shorter) - max_tokens)
    kept = len(shorter.text)
    told = (
        f"cut to {len(shorter)} of {len(tokens)} tokens (--max-tokens {max_tokens}): the last "
        f"{len(text) - kept} of {len(text)} characters, from {text[kept : kept + 24]!r} on, are left out"
    )
    return replace(shorter, notices=(*shorter.notices, told))
