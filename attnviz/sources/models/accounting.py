"""Every tensor of a folder accounted for: it is run, or known to be without effect, or the folder is refused.

What lives here: which tensors may be left over, and which may be absent, told by their whole place in the
model. What does not: GGUF (``gguf_accounting``), loading.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attnviz.errors import InputError

Shape = tuple[int, ...]

HEADS = frozenset((
    "pooler", "lm_head", "embed_out", "cls", "classifier", "pre_classifier", "score", "qa_outputs", "final_logits_bias",
    "generator_predictions", "generator_lm_head", "discriminator_predictions", "vocab_transform",
    "vocab_layer_norm", "vocab_projector", "mlm_head", "lm_loss", "logits_proj", "predictions", "sop_classifier",
    "summary", "sequence_summary", "proj_out", "projector", "linear_layer", "value_head", "v_head",
    "reward_head", "classification_head", "qa_head", "seq_relationship", "nsp_head", "mask_predictions",
    "mtp", "mtp_layers", "visual", "vision_model", "vision_tower", "vision_encoder", "vision_projector",
    "vision_embed_tokens", "embed_vision", "embed_audio", "audio_tower", "audio_model", "audio_encoder",
    "audio_projector", "multi_modal_projector", "mm_projector", "visual_projection", "text_projection",
    "logit_scale", "logit_bias",
))  # fmt: skip
"""Names of parts at the top of a file that stand behind or beside the text's attention."""

_MASKED_HEAD = re.compile(r"(head\.(dense|norm)\.(weight|bias)|decoder\.(weight|bias))\Z")
"""ModernBERT's prediction head, whose parts have everyday names."""
_SHELL = frozenset(("model", "transformer", "language_model", "text_model", "base_model"))
_COMPUTED = re.compile(
    r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids|token_type_ids|num_batches_tracked"
    r"|relative_position_index|embed_positions\._float_tensor|(en|de)coder\.version"
    r"|relative_attention_bias_cached)\Z"
    r"|^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight\Z"
)
"""What a model computes by itself, or has never used (T5's first files hold a bias for cross attention)."""
_MASK = re.compile(
    r"(^|\.)(self_attn|attn|attention|crossattention|self_attention)\.(bias|causal_mask)\Z"
)
_MASKED = re.compile(r"(^|\.)(attn|attention|crossattention)\.masked_bias\Z")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_FORETELLS = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head|mtp\w*)\.")
"""Tensors of a layer behind the last that foretells one more word (DeepSeek-V3's multi-token prediction)."""
_MORE_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers")


def is_aside(
    name: str, shape: Shape | None, *, prefix: str = "", run: Collection[str] = ()
) -> bool:
    """True where a tensor that no part of the run model asks for is without effect on its attention.

    Parameters
    ----------
    name
        In the file.
    prefix
        How the names of the model's own parts may begin, without the dot.
    run
        Names at the top of the model that was loaded: what belongs to them is never aside.

    Examples
    --------
    >>> is_aside("cls.predictions.bias", (9,)), is_aside("h.1.attn.score.bias", (9,))
    (True, False)
    >>> is_aside("h.0.attn.bias", (1, 1, 8, 8)), is_aside("h.0.attn.bias", (96,))
    (True, False)
    """
    if _COMPUTED.search(name):
        return True
    if _MASK.search(name):  # the triangle of a causal mask
        return (
            shape is not None and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]
        )
    if _MASKED.search(name):
        return shape in ((), (1,))
    parts = name.split(".")
    while len(parts) > 1 and (parts[0] in _SHELL or parts[0] == prefix):
        parts = parts[1:]
    if parts[0] in run or parts[0] not in HEADS:
        is_decoder = _MASKED_HEAD.match(".".join(parts)) is not None
        return is_decoder and parts[0] not in run
    return True


def check_left_over(
    name: str, left: Mapping[str, Shape | None], *, prefix: str, run: Collection[str], config: Any
) -> None:
    """Refuse tensors of the files that the model which was built does not ask for.

    A bias, a norm, a scale or an adapter that stays in the file would change attention unseen.

    Parameters
    ----------
    left
        Their names and shapes.
    prefix, run
        As of ``is_aside``.
    config
        Of the part that reads text.

    Raises
    ------
    InputError
        Names the first of them.
    """
    n_layers = _first(config, ("num_hidden_layers", "n_layer", "num_layers", "n_layers"))
    more = _first(config, _MORE_LAYERS)
    foretelling = {
        int(found[1]) for found in map(_LAYER.search, filter(_FORETELLS.search, left)) if found
    }
    kept, beyond = [], []
    for key, shape in sorted(left.items()):
        layer = _LAYER.search(key)
        if is_aside(key, shape, prefix=prefix, run=run):
            continue
        if layer and n_layers and n_layers <= int(layer[1]):
            if int(layer[1]) >= n_layers + more or int(layer[1]) not in foretelling:
                beyond.append(key)
            continue
        kept.append(key)
    if kept:
        raise InputError(
            f"{name} holds {len(kept)} tensors that its config does not ask for, first "
            f"{kept[0][:80]!r}: attention without them would not be the model's; mend config.json, "
            "or merge adapters and scales into the weights"
        )
    if beyond:
        raise InputError(
            f"{name} holds tensors of more layers than the {n_layers} of its config, first "
            f"{beyond[0][:80]!r}: mend config.json"
        )


def check_absent(name: str, absent: Iterable[str], *, body: str, has_head: bool) -> None:
    """Refuse parameters that the files do not hold: random numbers stand in their place.

    Parameters
    ----------
    absent
        Names in the model that was loaded.
    body
        Place in it of the part that is run, with a dot behind; empty where it is the whole.
    has_head
        True where the rest of the model is a head that writes.

    Raises
    ------
    InputError
        Names the first of them.
    """
    needed = []
    for key in sorted(absent):
        is_inside = key.startswith(body)
        short = key.removeprefix(body) if is_inside else key
        is_used = not short.startswith("pooler.") if is_inside else has_head
        if is_used and not _COMPUTED.search(key):
            needed.append(key)
    if needed:
        raise InputError(
            f"{name} lacks {len(needed)} tensors of its architecture, first {needed[0][:80]!r}: "
            "random numbers in their place would be shown as the model's"
        )


def check_told_once(name: str, names: Iterable[str], prefix: str) -> None:
    """Refuse two tensors that would become one parameter.

    Raises
    ------
    InputError
        Names both.
    """
    seen: dict[str, str] = {}
    for key in names:
        short = key.removeprefix(f"{prefix}.") if prefix else key
        short = re.sub(r"(?<=LayerNorm\.)(gamma|beta)\Z", _renamed, short)
        if short in seen:
            raise InputError(
                f"{name} holds {seen[short][:80]!r} and {key[:80]!r}, which are one tensor of its "
                "architecture: which of them is meant is not known"
            )
        seen[short] = key


def _renamed(found: re.Match[str]) -> str:
    return {"gamma": "weight", "beta": "bias"}[found[0]]


def _first(config: Any, names: Iterable[str]) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((int(v) for v in values if isinstance(v, int)), 0)


@contextmanager
def all_keys_told(transformers: Any) -> Iterator[dict[str, set[str]]]:
    """Tell which keys a model lacks and leaves over, before the library drops those that it is used to.

    It drops them by patterns such as ``pooler`` or ``attn.bias`` anywhere in a name.

    Yields
    ------
    dict
        ``missing`` and ``unexpected``, once a model was loaded; empty where the library has changed.
    """
    base = transformers.PreTrainedModel
    own: Any = getattr(base, "_adjust_missing_and_unexpected_keys", None)
    told: dict[str, set[str]] = {}

    def adjust(model: Any, info: Any) -> None:
        told["missing"], told["unexpected"] = set(info.missing_keys), set(info.unexpected_keys)
        own(model, info)

    if own is None:
        yield told
        return
    base._adjust_missing_and_unexpected_keys = adjust
    try:
        yield told
    finally:
        base._adjust_missing_and_unexpected_keys = own
