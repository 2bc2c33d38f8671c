"""What shapes and metadata prove about a layer: sizes, heads, scale, causality, vocabulary.

What lives here: the checks between the matrices that ``layouts`` found and the ``Layer`` that
``weights`` makes. What does not: names, files. Every refusal says what was found and wanted.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from attnviz.errors import UsageError, WeightsError
from attnviz.sources.files import ArrayFile
from attnviz.sources.files.contract import quote
from attnviz.sources.layers.layouts import WANTED, Parts

MAX_HEADS = 1024


def sizes_of(file: ArrayFile, parts: Parts) -> tuple[int, int, int]:
    """Prove heads and widths by the shapes; return (H, K, E)."""
    w_q, w_k, w_v = (parts.arrays[name] for name in ("w_q", "w_k", "w_v"))
    shapes = f"w_q {w_q.shape}, w_k {w_k.shape}, w_v {w_v.shape}"
    if not w_q.shape[0] == w_k.shape[0] == w_v.shape[0]:
        raise WeightsError(
            f"{file.name}: {shapes}: the first axis, d_model, differs; wanted {WANTED}"
        )
    heads = parts.n_heads or _heads_from_groups(parts) or 1
    if w_q.shape[1] % heads:
        raise WeightsError(
            f"{file.name}: {shapes}: the {w_q.shape[1]} columns of w_q do not divide into {heads} heads; "
            f"wanted {WANTED}; give the right --n-heads"
        )
    width = w_q.shape[1] // heads
    if w_k.shape[1] % width:
        raise WeightsError(
            f"{file.name}: {shapes} with {heads} head(s) of d_k {width}: w_k does not divide into "
            f"heads of that width; wanted {WANTED}; for grouped heads give --n-heads"
        )
    groups = parts.n_kv_heads or w_k.shape[1] // width
    broken = _broken_rule(heads, groups, width, w_k.shape[1], w_v.shape[1])
    if broken:
        raise WeightsError(
            f"{file.name}: {shapes} with {heads} query and {groups} key/value head(s): {broken}; "
            f"wanted {WANTED}, H a multiple of K; give --n-heads and --n-kv-heads"
        )
    widths = {"b_q": w_q.shape[1], "b_k": w_k.shape[1], "b_v": w_v.shape[1]}
    for name, wanted in widths.items():
        if name in parts.arrays and parts.arrays[name].shape != (wanted,):
            raise WeightsError(
                f"{file.name}: {name} has the shape {parts.arrays[name].shape}: wanted ({wanted},)"
            )
    w_o = parts.arrays.get("w_o")
    d_v = w_v.shape[1] // groups
    if w_o is not None and w_o.shape[0] != heads * d_v:
        raise WeightsError(
            f"{file.name}: w_o has the shape {w_o.shape}: wanted ({heads * d_v}, D), a row for every "
            "number of the joined heads"
        )
    b_o = parts.arrays.get("b_o")
    if b_o is not None and (w_o is None or b_o.shape != (w_o.shape[1],)):
        wanted = f"({w_o.shape[1]},)" if w_o is not None else "a w_o beside it"
        raise WeightsError(f"{file.name}: b_o has the shape {b_o.shape}: wanted {wanted}")
    return heads, groups, width


def _broken_rule(heads: int, groups: int, width: int, k_columns: int, v_columns: int) -> str:
    """Return which rule of grouped heads does not hold, in words; empty where all do."""
    if groups * width != k_columns:
        return f"w_k has {k_columns} columns, not {groups} heads of {width}, which is the width of w_q's"
    if heads % groups:
        return f"{heads} query heads cannot share {groups} key/value heads evenly"
    if v_columns % groups:
        return f"the {v_columns} columns of w_v do not divide into {groups} heads"
    return ""


def _heads_from_groups(parts: Parts) -> int:
    """Return H where only K is known: a query head is as wide as a key head."""
    width = parts.arrays["w_k"].shape[1] // (parts.n_kv_heads or 1)
    return parts.arrays["w_q"].shape[1] // width if parts.n_kv_heads and width else 0


def count_of(file: ArrayFile, name: str, asked: int | None) -> int | None:
    """Return a number of heads, from the file or from the caller; they must agree."""
    told = file.metadata.get(name)
    option = f"--{name.replace('_', '-')}"
    if asked is not None and not 1 <= asked <= MAX_HEADS:
        raise UsageError(f"{option} {asked} is out of range: 1 to {MAX_HEADS}")
    if told is None:
        return asked
    number = int(float(told)) if re.fullmatch(r"\s*[0-9]{1,6}(\.0)?\s*", told) else 0
    if not 1 <= number <= MAX_HEADS:
        raise WeightsError(
            f"{file.name}: its {name} is {quote(told)}: wanted a number from 1 to {MAX_HEADS}"
        )
    if asked is not None and asked != number:
        raise UsageError(
            f"{option} {asked} contradicts {file.name}, which says {number}: leave it out"
        )
    return number


def scale_of(file: ArrayFile, d_k: int) -> float:
    """Return the factor of the scores: the file's own, else 1/√d_k."""
    told = file.metadata.get("scale")
    if told is None:
        return 1 / math.sqrt(d_k)
    try:
        number = float(told)
    except ValueError:
        number = float("nan")
    if not (np.isfinite(number) and number > 0):
        raise WeightsError(f"{file.name}: its scale is {quote(told)}: wanted a number above 0")
    return number


def causal_of(file: ArrayFile, parts: Parts) -> tuple[bool, tuple[str, ...]]:
    """Return whether the layer is causal: its own word, else what its names and masks show."""
    told = file.metadata.get("causal")
    if told is None:
        notice = f"{file.name} is a decoder's: causal; --no-causal shows it without"
        return parts.is_causal, (notice,) if parts.is_causal else ()
    lowered = told.strip().lower()
    if lowered not in ("true", "false", "1", "0", "yes", "no"):
        raise WeightsError(f"{file.name}: its causal is {quote(told)}: wanted true or false")
    return lowered in ("true", "1", "yes"), ()


def check_table(file: ArrayFile, what: str, table: Any, d_model: int) -> None:
    """Refuse a table that is not (rows, d_model)."""
    if table is None:
        return
    shape = tuple(table.shape)
    if len(shape) != 2 or shape[1] != d_model or shape[0] == 0:
        raise WeightsError(
            f"{file.name}: the {what} has the shape {shape}: wanted (rows, {d_model}), one row per "
            f"{'word' if what == 'embedding' else 'position'}, as wide as w_q is high"
        )
    if (kind := table[:1].dtype).kind not in "fiu":
        raise WeightsError(f"{file.name}: the {what} holds {kind}: wanted real numbers; convert it")


def vocab_of(file: ArrayFile) -> tuple[str, ...] | None:
    """Return the words of the ``vocab`` that the file holds, None where it has none."""
    told = file.metadata.get("vocab")
    if told is None:
        return None
    try:
        words = json.loads(told)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise WeightsError(f"{file.name}: its vocab is no list of words: wanted V strings")
    return tuple(words)


def heads_notice(file: ArrayFile, parts: Parts) -> tuple[str, ...]:
    """Say so where nothing tells the number of heads of a module that usually has several."""
    if parts.n_heads is not None or parts.site.layout == "matrix":
        return ()
    return (f"{file.name} does not say how many heads it has: read as one; --n-heads N",)
