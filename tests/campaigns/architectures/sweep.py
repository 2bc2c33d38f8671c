"""Sweep every text architecture that the library can build tiny: exact, or refused with the fact.

Each is read as a user's model is (self-check, plan, run), text by text and in batches, in an order in
which a long text comes before a short one. The oracle shares nothing with that: a copy of the model
that has run nothing before computes each text alone, by its own eager attention.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from shrink import N_WORDS, tiny_models

from attnviz.core.attend import trace_heads
from attnviz.errors import AttnvizError
from attnviz.records import LayerHeads, Tokens
from attnviz.runs.batch.forward import Passes, choose_passes
from attnviz.sources.models.capture.padding import takes_padding
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.loading import Loaded, wrap
from attnviz.sources.models.planning import KINDS, make_plan, reported_weights, switch
from attnviz.sources.models.source import TransformersSource

EXACT = 2e-6
"""Largest difference of a weight from the model's own that is called exact."""
ROUNDINGS = 4
"""How many roundings of q and k, ours and the oracle's together, may lie between two equal weights."""
IN_DOUBLE = 1e-9
"""What a difference must shrink to in float64 to be rounding. Some models keep steps in float32."""
TOGETHER = 1e-5
"""Largest difference of a figure between a text in a batch and the text alone."""
LENGTHS = (31, 5, 60, 12, 3, 17, 45, 8, 24, 18)
"""Of the texts, in this order; thresholds of the tiny configs (4, 8, 16, 44) lie among them."""
SECONDS = 90


@dataclass
class Found:
    """What became of one architecture.

    Parameters
    ----------
    outcome
        ``exact``, ``refused`` (the fact stands in ``why``), ``wrong``, ``bug`` (exit 70), or
        ``not built``: the library cannot make or run it tiny, or it takes no text.
    weights, together
        Largest difference of a weight from the oracle's, of a figure between batch and single.
    large_score
        True where a difference above ``EXACT`` is within the bound that scores of its size have.
    """

    name: str
    outcome: str
    why: str = ""
    route: str = ""
    passes: str = ""
    kinds: str = ""
    weights: float = 0.0
    together: float = 0.0
    refused_texts: int = 0
    large_score: bool = False


_MROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
}
_OWN_KEYS = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "global_head_dim": 16}
_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_ZAMBA = {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2}
_COMPASS = {
    "rope_parameters": {"full_attention": None, "sliding_attention": _MROPE["rope_parameters"]}
}
_QWEN4 = {
    **_HYBRID,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
CHANGES: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _HYBRID,
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "cohere_compass_text": _COMPASS,
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 2, "norm_topk_prob": False},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "embedding_gemma2_text": {"global_head_dim": 8},
    "emu3": {"vocabulary_map": {"<image>": 3}},
    "esm": {"mask_token_id": 4, "vocab_size": N_WORDS},
    "gemma4": {"text_config": _OWN_KEYS}, "gemma4_unified": {"text_config": _OWN_KEYS},
    "gemma4_text": _OWN_KEYS, "gemma4_unified_text": _OWN_KEYS,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4}},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "hidden_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 8},
    "mluke": {"entity_vocab_size": 9, "entity_emb_size": 8},
    "mpnet": {"pad_token_id": 1, "bos_token_id": 0, "relative_attention_num_buckets": 32},
    "mpt": {"attn_config": {"attn_type": "multihead_attention", "alibi": True, "attn_pdrop": 0}, "emb_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0},
    "reformer": {"axial_pos_embds": False},
    "step3p7": {"sliding_window": 8, "text_config": {"sliding_window": 8}},
    "switch_transformers": {"expert_capacity": 4},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "glm5_next_text": {"index_kpool": 2, "num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "longcat_flash": {"num_layers": 1, "qk_head_dim": 16, "num_key_value_heads": 4, "zero_expert_num": 1, "expert_ffn_hidden_size": 16, "ffn_hidden_size": 48},
    "qwen4_exp": {"text_config": _QWEN4}, "qwen4_exp_text": _QWEN4,
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "zamba": _ZAMBA, "zamba2": _ZAMBA,
    "zaya": {"num_experts_per_tok": 1},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_moe_text", "hunyuan_vl_text", "hy_v4_vl_text", "cosmos3_edge_text"), _MROPE),
    **{
        name: {"text_config": _MROPE}
        for name in ("qwen2_vl", "qwen2_5_vl", "glm4v", "glm46v", "glm4v_moe", "glmga", "glm_ocr", "hunyuan_vl", "hy_v4_vl", "cosmos3_edge", "paddleocr_vl")
    },
}  # fmt: skip
"""Settings that a tiny model of a type needs beyond its sizes."""

_LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [4.0, 6.0, 8.0, 16.0], "original_max_position_embeddings": 16,
        "factor": 8.0,
    },
    "original_max_position_embeddings": 16,
}  # fmt: skip
_DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "max_position_embeddings": 16,
}
VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((f"{name}, LongRoPE", name, _LONGROPE) for name in ("phi3", "llama", "mistral", "qwen2")),
    ("phimoe, LongRoPE", "phimoe", {**_LONGROPE, "rope_parameters": {**_LONGROPE["rope_parameters"], "short_mscale": 1.1, "long_mscale": 1.3}}),
    *((f"{name}, dynamic rope", name, _DYNAMIC) for name in ("llama", "qwen2", "mistral", "gpt_neox", "stablelm")),
    ("bigbird_pegasus, one random block", "bigbird_pegasus", {"num_random_blocks": 1}),
    ("qwen2, window in half of the layers", "qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    ("gemma2, softcap", "gemma2", {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4}),
    ("falcon, ALiBi", "falcon", {"alibi": True, "multi_query": False, "new_decoder_architecture": False}),
    ("gemma4_text, one key head in global layers", "gemma4_text",
     {"num_global_key_value_heads": 1, "attention_k_eq_v": True}),
    ("gpt2, scaled by layer", "gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
)  # fmt: skip
"""One architecture with other settings: thresholds of length, windows, softcaps."""


_NEEDS_MORE = re.compile(r"specify|missing|None|[Rr]equired")
"""What the library says of a model that takes more than text; anything else is a config that does not fit."""


class _TooSlow(BaseException):
    """A model that takes longer than ``SECONDS``."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Words:
    """Stands in for a tokenizer where a decoder's text is asked for."""

    name = ""
    sha256 = ""
    notices = ()

    class tokenizer:
        @staticmethod
        def id_to_token(i: int) -> str:
            return str(i)

    def tokenize(self, text: str) -> Tokens:
        return text_of(8, shift=5)


def text_of(n: int, *, shift: int = 0) -> Tokens:
    ids = tuple(3 + (11 * i + 7 * (i // 9) + shift) % (N_WORDS - 4) for i in range(n))
    words = tuple(map(str, ids))
    return Tokens("", ids, words, words, (None,) * n, (False,) * n)


def open_tiny(loaded: Loaded, name: str, which: str | None = None) -> TransformersSource:
    """Open a built model as ``open_model`` does, without its files."""
    plan = make_plan(loaded.model, loaded.body, loaded.probe(), dtype="float32", name=name)
    plan = replace(plan, pads=takes_padding(loaded))
    kind = which or next(kind for kind in KINDS if plan.of(kind))
    files = ModelFiles(Path(), (), "safetensors", name)
    words: Any = _Words()
    return TransformersSource(files, files, "", words, loaded, plan, kind, target="x")


def oracle(loaded: Loaded, tokens: Tokens, decoder: Tokens | None, which: str) -> list[Any]:
    """Return a fresh copy's own eager weights of one text: (H, L, S) per layer."""
    fresh = replace(loaded, **_copied(loaded))
    switch(fresh.model, "eager")
    with torch.inference_mode():
        outputs = fresh.forward(
            [tokens.ids],
            decoder_ids=None if decoder is None else [decoder.ids],
            output_attentions=True,
        )
    return [w[0].double().numpy() for w in reported_weights(outputs).get(which, [])]


def _copied(loaded: Loaded) -> dict[str, Any]:
    model = copy.deepcopy(loaded.model)
    path = next(n for n, m in loaded.model.named_modules() if m is loaded.body)
    return {"model": model, "body": model.get_submodule(path) if path else model}


def apart(heads: LayerHeads, theirs: Any) -> float:
    dtype = torch.as_tensor(heads.q).dtype
    ours = np.asarray(trace_heads(heads, dtype=dtype)["weights"], np.float64)
    if heads.sinks is not None and abs(theirs.sum(-1) - 1).max() < 1e-3:
        ours = ours / ours.sum(-1, keepdims=True)  # reported without the sink's share
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max())


@contextmanager
def softmax_in_double() -> Iterator[None]:
    """Keep eager attention, which asks for float32 in its softmax, from rounding float64 scores."""
    own = torch.nn.functional.softmax

    def softmax(values: Any, *more: Any, **named: Any) -> Any:
        if values.dtype == torch.float64:
            named["dtype"] = torch.float64
        return own(values, *more, **named)

    with patch.object(torch.nn.functional, "softmax", softmax):
        yield


def bound(heads: LayerHeads) -> float:
    """Return how far rounding may move a weight in the precision that q and k were computed in.

    A rounding of q or k by half a unit in the last place, u, moves a score by at most u · Σ|q·k| · scale, and
    a change of δ in the scores moves a weight by at most δ / 2 (the slope of softmax is at most 1/4, and
    two scores move apart by 2 δ).
    """
    group = heads.q.shape[0] // heads.k.shape[0]
    q, k = (torch.as_tensor(np.asarray(a)).double().abs() for a in (heads.q, heads.k))
    size = float((q @ k.repeat_interleave(group, 0).mT).max()) * abs(heads.scale)
    return max(EXACT, ROUNDINGS * 2.0**-24 * size)


def check(loaded: Loaded, name: str, lengths: tuple[int, ...] = LENGTHS) -> Found:
    """Compare one model with its oracle, text by text, then all texts in batches with the same alone."""
    pristine = replace(loaded, **_copied(loaded))
    found = Found(name, "exact")
    try:
        first = open_tiny(loaded, name)
    except AttnvizError as fault:
        return replace(found, outcome="refused", why=str(fault))
    kinds = [kind for kind in KINDS if first.plan.of(kind)]
    found.route, found.kinds = first.plan.route, ", ".join(kinds)
    texts = [text_of(n, shift=13 * n) for n in lengths]
    is_within = True
    for kind in kinds:
        source = replace(first, which=kind)
        decoders = {}
        if loaded.is_encoder_decoder:
            for place, tokens in enumerate(texts):
                decoders[tokens.ids] = text_of(9 - 4 * (place % 2), shift=3 * place)
            source._written.update(decoders)
        for tokens in texts:
            got: list[LayerHeads] = []
            try:
                source.run(tokens, source.layers, got.append)
            except AttnvizError as fault:
                if fault.exit_code == 70:
                    raise
                found.refused_texts += 1
                found.why = str(fault)
                continue
            theirs = oracle(pristine, tokens, decoders.get(tokens.ids), kind)
            if not theirs:
                found.why = "no weights of its own to compare with; final states compared"
                continue
            if len(theirs) != len(got):
                return replace(found, outcome="wrong", why=f"{len(got)} of {len(theirs)} layers")
            for heads, weights in zip(got, theirs, strict=True):
                away = apart(heads, weights)
                found.weights = max(found.weights, away, key=_by_size)
                if not away <= EXACT:
                    found.large_score = True
                    is_within &= away <= bound(heads)
        _together(source, texts, found)
    if not is_within or not found.together <= TOGETHER:
        found.outcome = "wrong"
    elif found.refused_texts == len(texts) * len(kinds):
        found.outcome = "refused"
    return found


def _by_size(difference: float) -> float:
    return float("inf") if difference != difference else difference


def _together(source: TransformersSource, texts: list[Tokens], found: Found) -> None:
    """Compare the figures of texts in shared passes with those of the same texts alone."""
    passes = choose_passes(source, source.layers, lambda heads: heads)
    found.passes = passes.name
    alone: dict[int, Any] = {}
    for place, tokens in enumerate(texts):
        try:
            alone[place] = _figures(choose_single(source), [tokens])[0]
        except AttnvizError:
            continue
    for group in passes.plan([len(tokens) for tokens in texts]):
        known = [place for place in group if place in alone]
        if not known:
            continue
        for place, own in zip(known, _figures(passes, [texts[i] for i in known]), strict=True):
            for a, b in zip(own, alone[place], strict=True):
                for name in ("entropy_H", "first_H", "self_H", "received_H", "distance_H"):
                    off = np.abs(getattr(a, name) - getattr(b, name))
                    scale = max(1.0, float(np.abs(getattr(b, name)).max()))
                    found.together = max(found.together, float(off.max()) / scale, key=_by_size)


def choose_single(source: TransformersSource) -> Passes:
    from attnviz.runs.batch.forward import Single

    return Single(source, source.layers, lambda heads: heads)


def _figures(passes: Passes, texts: list[Tokens]) -> list[Any]:
    return passes.run(texts, n_links=3, with_parity=True)


def sweep_one(name: str, config_kind: Any, model_kind: Any, **changes: Any) -> Found:
    """Build an architecture in the first shape that runs, and check it."""
    why, without, needs = "no shape fits", None, None
    for _, built in tiny_models(config_kind, model_kind, **changes):
        if isinstance(built, Exception):
            why = f"{type(built).__name__}: {' '.join(str(built).split())[:160]}"
            continue
        loaded = wrap(built)
        try:
            with torch.inference_mode():
                switch(loaded.model, "eager")
                loaded.probe().run()
        except AttnvizError as fault:
            why = str(fault)[:200]
            if _NEEDS_MORE.search(why):
                needs = Found(name, "refused", why)
            continue
        try:
            found = check(loaded, name)
        except Exception as fault:
            said = f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
            return Found(name, "bug", said)
        if found.outcome == "exact" and found.large_score:
            with softmax_in_double():
                again = check(
                    wrap(copy.deepcopy(built).double(), dtype="float64"), name, LENGTHS[:4]
                )
            if not again.weights <= IN_DOUBLE:
                return replace(found, outcome="wrong", why=f"{again.weights:.0e} in float64 too")
        if "no softmax attention" not in found.why:
            return found
        without = found  # a hybrid of so few layers may have none; deeper shapes follow
    return without or needs or Found(name, "not built", why)


def candidates(transformers: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield every model of the library that takes ids of tokens: name, config's and model's class."""
    auto = transformers.models.auto
    configs = auto.configuration_auto.CONFIG_MAPPING_NAMES
    for name, listed in auto.modeling_auto.MODEL_MAPPING_NAMES.items():
        model = listed[0] if isinstance(listed, tuple | list) else listed
        try:
            pair = getattr(transformers, configs[name]), getattr(transformers, model)
            takes = pair[1].main_input_name
        except (KeyError, ImportError, AttributeError):
            continue  # no config of its own, or it needs a library that is not installed
        forward = inspect.signature(pair[1].forward).parameters
        if takes == "input_ids" and "input_ids" in forward:
            yield name, *pair


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers = load_transformers()
    transformers.logging.set_verbosity(50)
    kinds = {name: pair for name, *pair in candidates(transformers)}
    tasks = [(name, name, CHANGES.get(name, {})) for name in kinds]
    tasks += [
        (name, kind, {**CHANGES.get(kind, {}), **changes}) for name, kind, changes in VARIANTS
    ]
    every: list[Found] = []
    for name, kind, changes in tasks:
        if arguments and not any(fnmatch(name, pattern) for pattern in arguments):
            continue
        try:
            with limited(SECONDS):
                found = sweep_one(name, *kinds[kind], **changes)
        except _TooSlow:
            found = Found(name, "not built", f"more than {SECONDS} s")
        every.append(found)
        print(json.dumps(asdict(found), ensure_ascii=False), flush=True)
    counts = Counter(found.outcome for found in every)
    print(dict(counts), file=sys.stderr)
    return int(bool(counts["wrong"] + counts["bug"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
