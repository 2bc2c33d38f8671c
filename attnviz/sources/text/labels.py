"""Labels that people read, for every family of tokenizers, from the exact place in the source.

What lives here: ``tokens_of`` (cut a text and label it) and ``label_tokens`` (label a ready
``tokenizers.Encoding``). What does not: opening tokenizer files (``tokenize``, ``models``) and
making labels safe for a screen or a file (``render``): a newline stays a newline here.

A label is the slice of the source that a token stands for, never the vocabulary's own string:
``Ġcute``, ``▁cute`` and ``cute`` all read as the text has them, a leading blank as ``␣``. A word
continued by WordPiece begins with ``·``. A token that holds only part of a character reads
``🧸[1/3:f0 9f]``: the character, which part of how many, and its bytes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnviz.records import Span, Tokens

SPACE_SIGN = "␣"
CONTINUATION_SIGN = "·"
_METASPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNKNOWN_NAMES = ("[UNK]", "<unk>")
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Family:
    """What a tokenizer's pieces mean: the facts that turn a piece into text.

    Parameters
    ----------
    kind
        ``byte-level`` (pieces are bytes in disguise), ``metaspace`` (SentencePiece style),
        ``wordpiece``, or ``words``.
    algorithm
        The model's name in the ``tokenizers`` library: BPE, WordPiece, Unigram, WordLevel.
    continuation
        Prefix of a piece that continues a word (``##``), or empty.
    unknown_ids
        Ids that stand for anything the vocabulary lacks.
    special_ids
        Ids of control tokens, whether the tokenizer adds them or the text spells them out.
    """

    kind: str
    algorithm: str
    continuation: str = ""
    unknown_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()


def read_family(tokenizer: Any) -> Family:
    """Read from a ``tokenizers.Tokenizer`` how its pieces stand for text.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer

    Examples
    --------
    >>> from tokenizers import Tokenizer, models
    >>> read_family(Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))).kind
    'wordpiece'
    """
    model = tokenizer.model
    algorithm = type(model).__name__
    state = "".join(
        repr(part)
        for part in (tokenizer.pre_tokenizer, tokenizer.decoder, tokenizer.normalizer)
        if part is not None
    )
    if "ByteLevel" in state:
        kind = "byte-level"
    elif "Metaspace" in state or _METASPACE in state:
        kind = "metaspace"
    else:
        kind = "wordpiece" if algorithm == "WordPiece" else "words"
    names = {getattr(model, "unk_token", None) or "", *_UNKNOWN_NAMES}
    unknown = {tokenizer.token_to_id(name) for name in names if name}
    added = tokenizer.get_added_tokens_decoder()
    return Family(
        kind=kind,
        algorithm=algorithm,
        continuation=str(getattr(model, "continuing_subword_prefix", None) or ""),
        unknown_ids=frozenset(i for i in unknown if i is not None),
        special_ids=frozenset(i for i, token in added.items() if token.special),
    )


def tokens_of(tokenizer: Any, text: str, *, family: Family | None = None) -> Tokens:
    """Cut a text with a ``tokenizers.Tokenizer``, as it would for its model, and label the pieces.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Padding and truncation must be off (``no_padding()``, ``no_truncation()``).
    text
        Without lone surrogates, which the library refuses.
    family
        Facts from ``read_family``; read anew where None.

    Returns
    -------
    Tokens
        With what the tokenizer adds; ``notices`` say which characters have no token and which
        words are unknown.

    Notes
    -----
    Time and memory grow with the length of the text.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> cutter = Tokenizer(models.WordPiece({"un": 0, "##kind": 1, "[UNK]": 2}, unk_token="[UNK]"))
    >>> cutter.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokens_of(cutter, "unkind bear").labels
    ('un', '·kind', 'bear')
    """
    encoding = tokenizer.encode(text)
    return label_tokens(encoding, text, family or read_family(tokenizer), tokenizer=tokenizer)


def label_tokens(
    encoding: Any, text: str, family: Family, *, tokenizer: Any = None, start: int = 0
) -> Tokens:
    """Label a ready encoding.

    Parameters
    ----------
    encoding : tokenizers.Encoding
        Of one text; any object with ``ids``, ``tokens``, ``offsets``, ``special_tokens_mask``.
    text
        What was encoded.
    family
        See ``read_family``.
    tokenizer
        What encoded it; some report the source in place of their unknown piece.
    start
        Where ``text`` begins in a longer one; spans point into that.
    """
    ids: list[int] = encoding.ids
    pieces: Sequence[str] = encoding.tokens
    if tokenizer is not None and family.algorithm == "Unigram":
        pieces = [tokenizer.id_to_token(i) or piece for i, piece in zip(ids, pieces)]
    added = [bool(flag) for flag in encoding.special_tokens_mask]
    control_ids = family.special_ids - family.unknown_ids
    special = [a or i in control_ids for i, a in zip(ids, added)]
    spans: list[Span | None] = [
        None if a else (int(first), int(end)) for (first, end), a in zip(encoding.offsets, added)
    ]
    raw = [None if s else piece_bytes(p, family) for p, s in zip(pieces, special)]
    parts = _find_parts(spans, raw, pieces, special)
    labels: list[str] = []
    for i, (piece, span) in enumerate(zip(pieces, spans)):
        if span is None or special[i]:
            labels.append(piece)
            continue
        if span[0] == span[1]:
            spans[i] = span = _restore(text, span, raw[i])
        if i in parts:
            labels.append(_label_part(text, parts[i], raw[i]))
        else:
            labels.append(_label_whole(text, span, piece, raw[i], family) or piece)
    return Tokens(
        text=text,
        ids=tuple(ids),
        pieces=tuple(pieces),
        labels=tuple(labels),
        spans=tuple(span and (span[0] + start, span[1] + start) for span in spans),
        special=tuple(special),
        notices=tuple(_notices(text, ids, pieces, spans, special, added, family, start=start)),
    )


def piece_bytes(piece: str, family: Family) -> bytes | None:
    """Return the bytes a piece stands for, where the family says so; None otherwise.

    Examples
    --------
    >>> piece_bytes("Ã¡", Family("byte-level", "BPE")), piece_bytes("<0x0A>", Family("words", ""))
    (b'\\xc3\\xa1', b'\\n')
    """
    if family.kind == "byte-level":
        table = _byte_alphabet()
        try:
            return bytes(table[char] for char in piece)
        except KeyError:
            return None
    found = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else None


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of GPT-2's alphabet hides (openai/gpt-2, src/encoder.py)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in plain}
    hidden = [byte for byte in range(256) if byte not in set(plain)]
    return {**table, **{chr(256 + n): byte for n, byte in enumerate(hidden)}}


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    count: int
    span: Span


def _find_parts(
    spans: Sequence[Span | None],
    raw: Sequence[bytes | None],
    pieces: Sequence[str],
    special: Sequence[bool],
) -> dict[int, _Part]:
    """Find runs of tokens that share a character; each token of a run gets its number in it."""
    can_share = [not s and _can_share(p, r) for s, p, r in zip(special, pieces, raw)]
    parts: dict[int, _Part] = {}
    i = 0
    while i < len(spans):
        run, reach = [i], spans[i]
        j = i + 1
        while reach is not None and can_share[i] and j < len(spans):
            following = spans[j]
            if following is None or not (can_share[j] and reach[0] <= following[0] < reach[1]):
                break
            reach = (reach[0], max(reach[1], following[1]))
            run.append(j)
            j += 1
        if reach is not None and (len(run) > 1 or _is_half(raw[i])):
            parts |= {n: _Part(k + 1, len(run), reach) for k, n in enumerate(run)}
        i = j
    return parts


def _can_share(piece: str, raw: bytes | None) -> bool:
    """A blank put before the first word shares its place without being part of the character."""
    return bool(piece.strip(_METASPACE) if raw is None else raw.strip(b" "))


def _is_half(raw: bytes | None) -> bool:
    if raw is None:
        return False
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _label_part(text: str, part: _Part, raw: bytes | None) -> str:
    whole = text[slice(*part.span)]
    bytes_shown = "" if raw is None else f":{raw.hex(' ')}"
    return f"{whole.strip() or whole}[{part.number}/{part.count}{bytes_shown}]"


def _label_whole(text: str, span: Span, piece: str, raw: bytes | None, family: Family) -> str:
    start, end = span
    shown = text[start:end]
    is_blank = not (piece.strip(_METASPACE) if raw is None else raw.strip(b" "))
    if is_blank and not shown.isspace() and (raw or shown.strip(_METASPACE)):
        return SPACE_SIGN * len(raw or piece)  # a blank the tokenizer put before the first word
    if raw is not None and raw[:1] == b" " and text[start - 1 : start] == " " and shown[:1] != " ":
        shown = " " + shown  # offsets were trimmed
    body = shown.strip(" ")
    if body:
        ahead = len(shown) - len(shown.lstrip(" "))
        shown = SPACE_SIGN * ahead + body + SPACE_SIGN * (len(shown) - ahead - len(body))
    else:
        shown = SPACE_SIGN * len(shown)
    is_continued = bool(family.continuation) and piece.startswith(family.continuation)
    is_continued = is_continued and len(piece) > len(family.continuation)
    return CONTINUATION_SIGN + shown if is_continued and start > 0 else shown


def _restore(text: str, span: Span, raw: bytes | None) -> Span:
    """Give a blank whose offsets were trimmed to nothing its place back."""
    if not raw or _is_half(raw):
        return span
    blank = raw.decode("utf-8")
    start = span[0] - len(blank)
    return (start, span[1]) if start >= 0 and text[start : span[1]] == blank else span


def _notices(
    text: str,
    ids: Sequence[int],
    pieces: Sequence[str],
    spans: Sequence[Span | None],
    special: Sequence[bool],
    added: Sequence[bool],
    family: Family,
    *,
    start: int = 0,
) -> list[str]:
    notices: list[str] = []
    slices = [text[slice(*span)] if span else "" for span in spans]
    unknown = [
        (piece, source)
        for i, piece, source in zip(ids, pieces, slices)
        if i in family.unknown_ids and source and source != piece
    ]
    if unknown:
        listed = ", ".join(repr(source) for _, source in unknown[:_MAX_LISTED])
        more = f" and {len(unknown) - _MAX_LISTED} more" if len(unknown) > _MAX_LISTED else ""
        notices.append(f"not in the vocabulary, read as {unknown[0][0]}: {listed}{more}")
    unused = _unused_characters(text, pieces, spans, slices, family)
    if unused:
        listed = ", ".join(f"U+{ord(text[at]):04X} at {at + start}" for at in unused[:_MAX_LISTED])
        more = f" and {len(unused) - _MAX_LISTED} more" if len(unused) > _MAX_LISTED else ""
        notices.append(f"characters without a token: {listed}{more}")
    spelled = [
        piece for piece, control, ours in zip(pieces, special, added) if control and not ours
    ]
    if spelled:
        listed = ", ".join(dict.fromkeys(spelled[:_MAX_LISTED]))
        notices.append(f"the text spells out control tokens, read as such: {listed}")
    if len(ids) > 1 and special[0] and ids[0] == ids[1] and added[0] and not added[1]:
        notices.append(
            f"{pieces[0]} stands twice at the start: the tokenizer adds it to the text's own"
        )
    return notices


def _unused_characters(
    text: str,
    pieces: Sequence[str],
    spans: Sequence[Span | None],
    slices: Sequence[str],
    family: Family,
) -> list[int]:
    """Return the places of characters that no token stands for, blanks left aside."""
    seen = bytearray(len(text))
    for span in spans:
        if span:
            seen[span[0] : span[1]] = b"\x01" * (span[1] - span[0])
    unused = [at for at in range(len(text)) if not seen[at] and not text[at].isspace()]
    if family.kind != "byte-level":  # normalisers drop controls from the inside of a word
        for piece, span, source in zip(pieces, spans, slices):
            is_bytes_or_blank = _BYTE_TOKEN.fullmatch(piece) or not piece.strip(_METASPACE)
            if span and not source.isprintable() and not is_bytes_or_blank:
                unused += [
                    span[0] + k
                    for k, char in enumerate(source)
                    if unicodedata.category(char)[0] == "C"
                    and char not in piece
                    and not char.isspace()
                ]
    return sorted(set(unused))
