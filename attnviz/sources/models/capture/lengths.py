"""At which lengths a model may compute otherwise, and how many tokens it takes, by its config.

A text's numbers must not depend on the texts that share its forward pass. They would where a model
looks at the length of the pass: rotary factors that follow the longest text (LongRoPE, dynamic), the
k best keys of a sparse index, attention in blocks from some length on, experts that take so many
tokens and no more. Which settings mean such a length is told by their names; a name too many costs
a little speed, a name too few a wrong number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attnviz.sources.models.loading import Loaded, max_positions

_LENGTH = re.compile(
    r"original_max_position|top_?k|block|chunk|stride|length|landmark|compress|capacity|segment|local"
    r"|sparse|pool|downsampl|upsampl|nearest|memor|mem_len|reuse_len|trunc|cutoff|ngram|hash|lsh"
)
_OTHER = re.compile(
    r"expert(?!_capacity)|moe|router|group|vocab|vision|audio|image|video|speech|token|_ids?$|layer|heads|head_dim"
    r"|lora|width|hidden|kernel|conv|mamba|ssm|max_length|seq_length|max_seq|context_length|^top_k$"
    r"|local_attention$|attention_chunk_size|chunk_size_feed|sliding|multiple|max_text|lightning|linear"
)
"""Not lengths, or lengths that arrive as a rule of the mask (windows and chunks)."""

_STATIC_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional", "mrope"})


def shared_up_to(config: Any) -> int | None:
    """Return how many tokens a forward pass of several texts may have; None where nothing bounds it.

    Parameters
    ----------
    config
        Of the part of the model that reads text.

    Examples
    --------
    >>> shared_up_to({"rope_parameters": {"rope_type": "longrope",
    ...               "original_max_position_embeddings": 4096}, "max_position_embeddings": 131072})
    4096
    """
    settings = config if isinstance(config, Mapping) else config.to_dict()
    return min(_lengths(settings), default=None)


def _lengths(settings: Mapping[str, Any], most: int | None = None) -> Iterator[int]:
    most = settings.get("max_position_embeddings", most)
    rope = settings.get("rope_type", settings.get("type"))
    if isinstance(rope, str) and rope not in _STATIC_ROPE and isinstance(most, int):
        yield most
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _lengths(value, most)
        elif type(value) is int and value > 1 and _LENGTH.search(name) and not _OTHER.search(name):
            yield value


def most_tokens(loaded: Loaded) -> int | None:
    """Return how many tokens a model has positions for; None where nothing bounds them.

    Models of RoBERTa's kin count positions from behind their padding's own: a table of 128 rows
    whose padding is row 1 has 126 left (Liu et al. 2019, fairseq's ``make_positions``).
    """
    limit = max_positions(loaded.config)
    rope = getattr(loaded.config, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") == "dynamic":
        limit = int(limit * rope.get("factor", 1))  # stretched from the length it was trained with
    for name, module in loaded.body.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.rpartition(".")[2] == "position_embeddings" and padding is not None:
            room = len(module.weight) - padding - 1
            limit = room if limit is None else min(limit, room)
    return limit
