"""Which tensors of a file make an attention layer, by their names alone.

What lives here: the names that common tools write, grouped into sites (one attention module each)
and tables (embedding, positions). What does not: shapes and numbers, which prove or refute a name
(``layouts``). A name is compared part by part, between its dots, in any case; whatever stands
before the parts below (``model.``, ``module.``, ``encoder.layers.3.self_attn.``) is the site.

A ``.weight`` is a torch ``Linear`` and holds (out, in); a bare matrix and a ``.kernel`` hold (in, out).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attnviz.errors import WeightsError
from attnviz.sources.files.contract import listed, quote

_BARE = {
    stem: letter
    for letter, stems in {
        "q": ("w_q", "wq", "w_query"), "k": ("w_k", "wk", "w_key"), "v": ("w_v", "wv", "w_value"),
        "o": ("w_o", "wo", "w_out", "w_output"),
    }.items()
    for stem in stems
}  # fmt: skip

_SEPARATE: tuple[tuple[tuple[str, str, str], tuple[str, ...]], ...] = (
    (("q_proj", "k_proj", "v_proj"), ("out_proj", "o_proj")),
    (("query", "key", "value"), ("out", "proj", "out_proj", "output.dense", "c_proj")),
    (("q_lin", "k_lin", "v_lin"), ("out_lin",)),
    (("to_q", "to_k", "to_v"), ("to_out.0", "to_out")),
    (("wq", "wk", "wv"), ("wo",)),
    (("w_q", "w_k", "w_v"), ("w_o",)),
    (("w_query", "w_key", "w_value"), ("out_proj", "w_out")),
    (("w_qs", "w_ks", "w_vs"), ("fc",)),
    (("linears.0", "linears.1", "linears.2"), ("linears.3",)),
    (("q", "k", "v"), ("o", "out")),
)
"""Stems of q, k, v, and the stems that an output projection beside them may have."""

_FUSED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "c_attn": ("blocks", ("c_proj",)),
    "qkv": ("blocks", ("proj", "out_proj")),
    "qkv_proj": ("blocks", ("o_proj", "out_proj")),
    "to_qkv": ("blocks", ("to_out.0", "to_out")),
    "wqkv": ("blocks", ("out_proj", "wo")),
    "w_pack": ("blocks", ("o_proj",)),
    "query_key_value": ("by head", ("dense",)),
}
"""Stems of q, k, v in one matrix: in three blocks, or head by head (GPT-NeoX, BLOOM, Falcon)."""

_OUT = frozenset(o for _, outs in _SEPARATE for o in outs) | frozenset(
    o for _, outs in _FUSED.values() for o in outs
)
_EMBEDDING = frozenset(
    ("embedding", "embeddings", "embed", "emb", "wte", "embed_tokens", "word_embeddings",
     "word_embedding", "tok_embeddings", "embed_in", "token_embedding", "token_embeddings",
     "token_embedding_table", "tok_emb", "shared", "lut")
)  # fmt: skip
_POSITIONS = frozenset(
    ("positions", "wpe", "position_embeddings", "position_embedding", "position_embedding_table",
     "pos_emb", "pos_embedding", "embed_positions")
)  # fmt: skip
_BARE_TABLES = {
    "embedding": "embedding", "w_e": "embedding", "positions": "positions", "w_pos": "positions",
}  # fmt: skip
_CROSS = frozenset(
    ("multihead_attn", "cross_attn", "encoder_attn", "crossattention", "cross_attention",
     "encdecattention", "src_attn", "enc_attn")
)  # fmt: skip
_CHANGES_SCORES = frozenset(
    ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm", "q_ln",
     "k_ln", "bias_k", "bias_v", "q_bias", "v_bias", "sinks", "relative_attention_bias", "relative_position_bias_table",
     "logit_scale", "rel_pos_h", "pos_key_proj", "linear_pos")
)  # fmt: skip
_MASKS = frozenset(("tril", "mask", "bias", "causal_mask"))
_LEAVES = frozenset(("weight", "bias", "kernel"))
_HEAD = re.compile(r"(.*?)(?:^|\.)(?:heads?|attn_heads|attention_heads)\.(\d{1,4})\.$")


@dataclass(frozen=True, slots=True)
class Role:
    """What one tensor was recognised as: ``part`` of a layer, held in a ``layout``."""

    tensor: str
    part: str
    layout: str
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """One attention module of a file.

    Parameters
    ----------
    prefix
        Everything before its parts, as the file writes it, in lower case with dots.
    layout
        ``matrix``, ``kernel``, ``linear``, ``in_proj``, ``blocks``, ``by head``.
    tensors
        Part (``w_q``, ``b_o``, ``w_qkv``; ``w_q.3`` for separate heads) to tensor name.
    number
        Its layer, counted from 0.
    problem
        Why it cannot be read, where the names already tell.
    masks
        Buffers beside it that may hold a causal mask.
    is_causal
        Only decoders write these names.
    """

    prefix: str
    layout: str
    tensors: Mapping[str, str]
    number: int = 0
    problem: str = ""
    masks: tuple[str, ...] = ()
    is_causal: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether q, k and v are all there."""
        parts = {part.partition(".")[0] for part in self.tensors}
        return "w_qkv" in parts or {"w_q", "w_k", "w_v"} <= parts

    @property
    def is_cross(self) -> bool:
        """Whether its keys come from another text, by its name."""
        return bool(_CROSS & set(self.prefix.split(".")))


@dataclass(frozen=True, slots=True)
class Names:
    """All that the names of a file say."""

    sites: tuple[Site, ...]
    partial: tuple[Site, ...]
    tables: tuple[Role, ...]

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every tensor that means something, with its layer."""
        found = [
            Role(name, part, site.layout, site.number)
            for site in self.sites
            for part, name in site.tensors.items()
        ]
        return (*found, *self.tables)


def read_names(names: Iterable[str]) -> Names:
    """Group the names of a file into attention modules and tables.

    Examples
    --------
    >>> found = read_names(["h.1.attn.c_attn.weight", "h.0.attn.c_attn.weight", "wte.weight"])
    >>> [(site.number, site.layout) for site in found.sites], found.tables[0].part
    ([(0, 'blocks'), (1, 'blocks')], 'embedding')
    """
    parts: dict[tuple[str, str, int], dict[str, list[str]]] = {}
    outs: dict[tuple[str, str], dict[str, str]] = {}
    tables: list[Role] = []
    beside: dict[str, dict[str, str]] = {}
    for name in names:
        words = name.replace("/", ".").lower().split(".")
        table = _table_of(words)
        if table:
            tables.append(Role(name, table, "rows"))
            continue
        for depth, word in enumerate(words):
            if word in _CHANGES_SCORES or (word in _MASKS and depth == len(words) - 1):
                beside.setdefault(_prefix(words[:depth]), {})[word] = name
        for prefix, stem, letter in _outs_of(words):
            outs.setdefault((prefix, stem), {}).setdefault(letter, name)
        found = _part_of(words)
        if found:
            prefix, layout, family, part = found
            parts.setdefault((prefix, layout, family), {}).setdefault(part, []).append(name)
    for (prefix, layout, _), found_parts in parts.items():
        if layout == "matrix":
            for part in ("w_o", "b_o"):
                for name in found_parts.get(part, ())[:1]:
                    outs.setdefault((prefix, "w_o"), {}).setdefault(part, name)
    sites = [_make_site(key, found, outs, beside) for key, found in parts.items()]
    whole = [site for site in _join_rivals(sites) if site.is_whole]
    partial = tuple(site for site in sites if not site.is_whole)
    own = [site for site in whole if not site.is_cross]
    return Names(tuple(_numbered(own or whole)), partial, tuple(tables))


def _table_of(words: list[str]) -> str:
    leaf, stem = words[-1], words[-2] if len(words) > 1 else ""
    if leaf in ("weight", "embedding") and stem in _POSITIONS:
        return "positions"
    if leaf == "weight" and stem in _EMBEDDING:
        return "embedding"
    return _BARE_TABLES.get(leaf, "")


def _prefix(words: list[str]) -> str:
    return "".join(f"{word}." for word in words)


def _outs_of(words: list[str]) -> Iterable[tuple[str, str, str]]:
    """Yield every (prefix, stem, part) that an output projection of this name could be."""
    if words[-1] not in _LEAVES:
        return
    letter = "b_o" if words[-1] == "bias" else "w_o"
    for length in (1, 2):
        stem = ".".join(words[-1 - length : -1])
        if stem in _OUT:
            yield _prefix(words[: -1 - length]), stem, letter


def _part_of(words: list[str]) -> tuple[str, str, int, str] | None:
    """Return (prefix, layout, family, part) of a q, k, v tensor; None for anything else."""
    leaf, prefix = words[-1], _prefix(words[:-1])
    bare = "w" + leaf[1:] if leaf[:1] == "b" else leaf
    if bare in _BARE:
        return prefix, "matrix", -1, f"{leaf[0]}_{_BARE[bare]}"
    if leaf in ("in_proj_weight", "in_proj_bias"):
        return prefix, "in_proj", -1, "b_qkv" if leaf.endswith("bias") else "w_qkv"
    if leaf in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        return prefix, "in_proj", -1, f"w_{leaf[0]}"
    if leaf not in _LEAVES or len(words) < 2:
        return None
    letter = "b" if leaf == "bias" else "w"
    if words[-2] in _FUSED:
        family = list(_FUSED).index(words[-2])
        return _prefix(words[:-2]), _FUSED[words[-2]][0], family, f"{letter}_qkv"
    for length in (1, 2):
        stem = ".".join(words[-1 - length : -1])
        for family, (stems, _) in enumerate(_SEPARATE):
            if stem in stems:
                part = f"{letter}_{'qkv'[stems.index(stem)]}"
                return _prefix(words[: -1 - length]), "linear", family, part
    return None


def _make_site(
    key: tuple[str, str, int],
    found: Mapping[str, list[str]],
    outs: Mapping[tuple[str, str], Mapping[str, str]],
    beside: Mapping[str, Mapping[str, str]],
) -> Site:
    prefix, layout, family = key
    tensors = {part: names[0] for part, names in found.items()}
    doubled = [names for names in found.values() if len(names) > 1]
    problem = _both(*doubled[0][:2]) if doubled else ""
    head = _HEAD.match(prefix)
    outer = (f"{head[1]}." if head[1] else "") if head else prefix
    places = [(outer, stem) for stem in _outs_for(layout, family)]
    if prefix.endswith(("self.", "attention.attention.")):  # BERT, ViT
        places.append((_prefix(prefix.split(".")[:-2]), "output.dense"))
    for place in places:
        for part, name in outs.get(place, {}).items():
            if tensors.setdefault(part, name) != name:
                problem = problem or _both(tensors[part], name)
    if layout == "linear" and any(name.lower().endswith("kernel") for name in tensors.values()):
        layout = "kernel"
    near = {**beside.get(outer, {}), **beside.get(prefix, {})}
    extra = sorted(_CHANGES_SCORES & near.keys())
    if prefix.endswith("selfattention."):  # T5: only its first layer holds the table
        extra.append("relative positions")
    if extra and not problem:
        problem = (
            f"{quote(near.get(extra[0], extra[0]))} changes the scores beyond x·W: this layer cannot "
            "be shown from its matrices alone; choose a layer without it"
        )
    masks = tuple(near[word] for word in sorted(_MASKS & near.keys()))
    return Site(
        prefix, layout, tensors, problem=problem, masks=masks,
        is_causal=(layout, family) in _ALWAYS_CAUSAL,
    )  # fmt: skip


def _both(first: str, second: str) -> str:
    return (
        f"both {quote(first)} and {quote(second)} could be the same part: wanted one; "
        "rename or remove the other"
    )


_ALWAYS_CAUSAL = {("blocks", list(_FUSED).index("c_attn")),
                  ("by head", list(_FUSED).index("query_key_value"))}  # fmt: skip


def _outs_for(layout: str, family: int) -> tuple[str, ...]:
    if layout == "in_proj":
        return ("out_proj",)
    if layout in ("blocks", "by head"):
        return list(_FUSED.values())[family][1]
    if layout == "matrix":
        return ("w_o", "out_proj", "o_proj")
    return _SEPARATE[family][1]


def _join_rivals(sites: list[Site]) -> list[Site]:
    """Join separate heads into one site, and mark modules whose names say two things at once."""
    by_place: dict[str, list[Site]] = {}
    for site in sites:
        head = _HEAD.match(site.prefix)
        place = f"{head[1]}.heads" if head else site.prefix
        by_place.setdefault(place, []).append(site)
    joined: list[Site] = []
    for rivals in by_place.values():
        heads = [_HEAD.match(site.prefix) for site in rivals]
        if all(heads):
            joined.append(_join_heads(rivals, [int(h[2]) for h in heads if h]))
            continue
        whole = [site for site in rivals if site.is_whole]
        if whole and len(rivals) > 1:
            other = next(site for site in rivals if site is not whole[0])
            shared = sorted(whole[0].tensors.keys() & other.tensors.keys()) or ["w_qkv"]
            first, second = (
                site.tensors.get(shared[-1]) or next(iter(site.tensors.values()))
                for site in (whole[0], other)
            )
            whole[0] = replace(whole[0], problem=whole[0].problem or _both(first, second))
        joined.extend(whole[:1] or rivals)
    return joined


def _join_heads(sites: list[Site], numbers: list[int]) -> Site:
    tensors: dict[str, str] = {}
    for number, site in sorted(zip(numbers, sites, strict=True), key=lambda pair: pair[0]):
        for part, name in site.tensors.items():
            tensors[part if part in ("w_o", "b_o") else f"{part}.{number}"] = name
    problem = next((site.problem for site in sites if site.problem), "")
    if sorted(numbers) != list(range(len(numbers))) or len({s.layout for s in sites}) > 1:
        found = ", ".join(map(str, sorted(numbers)[:8]))
        problem = problem or f"heads numbered {found}: wanted 0, 1, 2, … of one kind, none missing"
    masks = tuple(mask for site in sites for mask in site.masks)
    return Site(sites[0].prefix, sites[0].layout, tensors, problem=problem, masks=masks)


def _numbered(sites: list[Site]) -> list[Site]:
    """Number sites by the one number in which their prefixes differ, else in order."""
    ordered = sorted(sites, key=lambda site: _natural(site.prefix))
    frames = {re.sub(r"\d+", "#", site.prefix) for site in ordered}
    counts = [tuple(int(n) for n in re.findall(r"\d+", site.prefix)) for site in ordered]
    if len(ordered) > 1 and len(frames) == 1:
        varying = [i for i in range(len(counts[0])) if len({c[i] for c in counts}) > 1]
        if len(varying) == 1:
            return [replace(s, number=c[varying[0]]) for s, c in zip(ordered, counts, strict=True)]
    return [replace(site, number=i) for i, site in enumerate(ordered)]


def _natural(prefix: str) -> tuple[tuple[int, str], ...]:
    words = prefix.replace("encoder", "a").replace("decoder", "b").split(".")
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def nearest_table(file: str, names: Names, part: str, prefix: str) -> str | None:
    """Return the table nearest to a module by its name: the longest shared beginning.

    Raises
    ------
    WeightsError
        Two that are equally near.
    """
    near = prefix.split(".")

    def shared(name: str) -> int:
        words = name.replace("/", ".").lower().split(".")
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(words, near, strict=False))
        return sum(1 for _ in same)

    found = sorted((role.tensor for role in names.tables if role.part == part), key=shared)
    if len(found) > 1 and shared(found[-1]) == shared(found[-2]):
        raise WeightsError(
            f"{file}: {listed(found)} could all be the {part}: wanted one; keep one of them"
        )
    return found[-1] if found else None
