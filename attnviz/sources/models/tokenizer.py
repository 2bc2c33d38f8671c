"""The model's own tokenizer, opened within bounds, with padding and truncation off.

What lives here: opening it as the library would for this model, and what it adds to a text. What
does not: labels (``sources.labels``), single layers' vocabularies (``sources.tokenize``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from attnviz.records import Tokens
from attnviz.sources.models.files import read_json
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.library import load_transformers
from attnviz.sources.text.labels import Family, read_family, tokens_of
from attnviz.sources.text.long_text import tokens_of_any_length
from attnviz.sources.text.tokenize import cut_text
from attnviz.sources.text.tokenizer_trial import refuse_padding, try_out

_MAX_BYTES = 64 << 20
_SPARE_IDS = 1 << 16
_PROBE = "a"


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A tokenizer in use: ``tokenize(text)`` gives what the model's own call would, labelled.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    name
        Kind and what it adds, for people: ``WordPiece, adds [CLS] … [SEP]``.
    sha256
        Of its serialised form.
    """

    tokenizer: Any
    family: Family
    name: str
    sha256: str
    notices: tuple[str, ...] = ()

    def tokenize(self, text: str, *, max_tokens: int | None = None) -> Tokens:
        """Cut a text; beyond ``max_tokens`` it is shortened at a token's end, which is told."""
        return cut_text(self._cut, text, max_tokens)

    def _cut(self, text: str) -> Tokens:
        return guard(
            "the tokenizer",
            lambda: tokens_of_any_length(self.tokenizer, text, family=self.family),
            hush=True,
        )


def segment_notice(tokens: Tokens, n_types: Any, name: str) -> tuple[str, ...]:
    """Say that a typed [SEP] begins no second segment: ``token_type_ids`` stay 0 throughout.

    Parameters
    ----------
    n_types
        The config's ``type_vocab_size``; a model of fewer than two has no segments.
    name
        Of the model, for people.
    """
    if not isinstance(n_types, int) or n_types < 2 or len(tokens) < 3:
        return ()
    end = tokens.ids[-1] if tokens.spans[-1] is None else None
    typed = [i for i, span in enumerate(tokens.spans[:-2]) if span and tokens.ids[i] == end]
    if not typed:
        return ()
    return (
        f"the text spells out {tokens.pieces[typed[0]]}: what follows it still has segment 0 "
        f"(token_type_ids), where {name} expects segment 1 of a second text",
    )


def open_tokenizer(folder: Path) -> ModelTokenizer:
    """Open a model's tokenizer as the library would for this model, so that ids are the model's.

    Raises
    ------
    InputError
        None there, too large, damaged, bringing its own code, or without source offsets.
    """
    check_files(folder)
    transformers = load_transformers()

    def load() -> Any:
        made = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        return getattr(made, "backend_tokenizer", None)

    notices: tuple[str, ...] = ()
    try:
        tokenizer = guard("the tokenizer", load, hush=True)
    except InputError:
        if not (folder / "tokenizer.json").is_file():
            raise
        tokenizer = open_raw(folder / "tokenizer.json")
        notices = ("tokenizer.json is used as it is: the library cannot build this tokenizer",)
    if tokenizer is None or not hasattr(tokenizer, "no_padding"):
        raise InputError(
            f"{folder.name} has a tokenizer without source offsets: save it as tokenizer.json"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_ids(folder.name, tokenizer)
    return describe(tokenizer, notices)


def describe(tokenizer: Any, notices: tuple[str, ...] = ()) -> ModelTokenizer:
    """Read kind, additions and hash of a ``tokenizers.Tokenizer`` with padding off.

    What the library made of the files is tried out too: it need not be what a file held.
    """
    state = guard("the tokenizer", lambda: tokenizer.to_str().encode(), hush=True)
    digest = try_out(state, name="the tokenizer")
    family = guard("the tokenizer", lambda: read_family(tokenizer), hush=True)
    probe = guard("the tokenizer", lambda: tokens_of(tokenizer, _PROBE, family=family), hush=True)
    name = f"{family_name(family)}, adds {added_by(probe)}"
    return ModelTokenizer(tokenizer, family, name, digest, notices)


def check_ids(name: str, tokenizer: Any) -> None:
    """Refuse ids far beyond the number of words: the library makes lists up to the largest."""
    ids = guard(name, lambda: tokenizer.get_vocab(with_added_tokens=True), hush=True).values()
    limit = 8 * len(ids) + _SPARE_IDS
    if max(ids, default=0) > limit:
        raise InputError(
            f"the tokenizer of {name} has {len(ids)} words and the id {max(ids)}: at most {limit} "
            "is believed"
        )


def check_files(folder: Path) -> None:
    """Refuse tokenizer files that are too large, bring code, or pad without bound."""
    for file in folder.glob("*token*"):
        if file.is_file() and file.stat().st_size > _MAX_BYTES:
            raise InputError(f"{file.name} has {file.stat().st_size} bytes: at most {_MAX_BYTES}")
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and "auto_map" in read_json(settings):
        raise InputError(
            f"{folder.name} brings its own tokenizer code (auto_map in tokenizer_config.json): "
            "code from a model folder is never run"
        )
    if (folder / "tokenizer.json").is_file():
        open_raw(folder / "tokenizer.json")


def open_raw(path: Path) -> Any:
    """Open a ``tokenizer.json`` with nothing but the ``tokenizers`` library, padding off.

    It is tried out in a child process first, where it is new (``trial``).

    Returns
    -------
    tokenizers.Tokenizer
    """
    from tokenizers import Tokenizer

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path.name} has {path.stat().st_size} bytes: at most {_MAX_BYTES}")
        data = path.read_bytes()
    except OSError as fault:
        raise InputError(f"cannot read {path.name}: {fault.strerror}") from fault
    try_out(data, name=path.name)
    tokenizer = guard(path.name, lambda: Tokenizer.from_buffer(data), hush=True)
    refuse_padding(tokenizer, name=path.name)
    check_ids(path.name, tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def family_name(family: Family) -> str:
    """Return the kind of a tokenizer for people.

    Examples
    --------
    >>> family_name(Family("byte-level", "BPE")), family_name(Family("wordpiece", "WordPiece"))
    ('byte-level BPE', 'WordPiece')
    """
    prefix = {"byte-level": "byte-level ", "metaspace": "SentencePiece "}.get(family.kind, "")
    return f"{prefix}{family.algorithm}"


def added_by(probe: Tokens) -> str:
    """Return what a tokenizer put around a text: ``[CLS] … [SEP]``, or ``nothing``."""
    inside = [i for i, span in enumerate(probe.spans) if span is not None]
    first, last = (inside[0], inside[-1]) if inside else (0, -1)
    before, after = probe.pieces[:first], probe.pieces[last + 1 :]
    if not (before or after):
        return "nothing"
    return " ".join([*before, "…", *after])
