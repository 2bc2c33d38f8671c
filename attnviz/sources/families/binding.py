"""Which file of a model is which family's: config → family, stored names → the family's names.

Every tensor is accounted for: one that is missing, of another shape, or unknown inside the model
leaves it to the library. Heads on top of the model (a classifier, a pooler) are left aside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from attnviz.sources.families.family import Family
from attnviz.sources.families.settings import Lacks, NotOurs
from attnviz.sources.families.weights import Stored, Weights
from attnviz.sources.models.accounting import is_aside

FAMILIES = {
    "bert": "bert.Bert", "roberta": "bert.Bert", "xlm-roberta": "bert.Bert",
    "camembert": "bert.Bert", "electra": "bert.Bert", "distilbert": "bert.Bert",
    "mpnet": "bert.Bert", "gpt2": "gpt2.Gpt2", "gpt_neox": "neox.NeoX",
    "llama": "llama.Llama", "mistral": "llama.Llama", "mixtral": "llama.Llama",
    "qwen2": "llama.Llama", "qwen3": "llama.Llama", "qwen3_moe": "llama.Llama",
    "smollm3": "llama.Llama", "olmo": "llama.Llama", "olmo2": "llama.Llama",
    "granite": "llama.Llama", "stablelm": "llama.Llama", "phi3": "llama.Llama",
    "phi": "llama.Llama", "starcoder2": "llama.Llama", "cohere": "llama.Llama",
    "cohere2": "llama.Llama", "gemma": "gemma.Gemma", "gemma2": "gemma.Gemma",
    "gemma3_text": "gemma.Gemma", "modernbert": "modernbert.ModernBert", "t5": "t5.T5",
    "mt5": "t5.T5", "umt5": "t5.T5",
}  # fmt: skip
"""``model_type`` → file and class."""

_WRITES = frozenset(("lm_head", "embed_out"))
"""Parts that score words: only their own tensors are known."""
_WRITING = frozenset(("lm_head.weight", "lm_head.bias", "embed_out.weight"))
_SCALE = re.compile(r"_scale(_inv)?$")
EXPERT = re.compile(r"^(.*\.experts\.)(\d+)\.(\w+)\.weight$")


def read_family(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.

    Raises
    ------
    NotOurs
        No family here, or a config that its file does not know.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise NotOurs(f"models of the kind {kind[:40]!r} are not known here")
    module, _, name = FAMILIES[kind].partition(".")
    made: Family = getattr(import_module(f"attnviz.sources.families.{module}"), name)(config)
    return made


def bind(family: Family, stored: Weights, *, allows: frozenset[str] = frozenset()) -> Weights:
    """Return a model's tensors by the family's names, each of the shape that the config says.

    Parameters
    ----------
    stored
        By the names in the files.
    allows
        Names of the files that are understood elsewhere.

    Raises
    ------
    NotOurs
        An unknown tensor inside the model, or a shape that the config does not say.
    Lacks
        A tensor of the architecture is missing.
    """
    wanted: dict[str, tuple[int, ...]] = dict(family.tensors())
    if family.n_layers > len(stored.tensors):  # before a name is made for each of them
        raise Lacks(f"{family.n_layers} layers of {len(stored.tensors)} tensors")
    for layer in range(family.n_layers):
        at = family.prefix(layer)
        wanted |= {at + name: shape for name, shape in family.layer_tensors(layer).items()}
    prefix = _find_prefix(family, stored, next(iter(wanted)))
    found: dict[str, Stored] = {}
    for name, tensor in stored.tensors.items():
        if name in allows:
            continue
        inside = name.startswith(prefix)
        short = name[len(prefix) :] if inside else name
        short = _ALIASES.get(short, short)
        if short in found and short in wanted and tensor.shape == found[short].shape:
            if np.array_equal(tensor.raw, found[short].raw):
                continue  # tied weights that were saved twice
            raise NotOurs(f"it has two different tensors for {short[:80]!r}")
        scaled = _SCALE.sub("", name)  # a scale counts where its tensor is one of 8-bit floats
        is_scale = (
            scaled != name
            and scaled in stored.tensors
            and stored.tensors[scaled].kind.startswith("F8")
        )
        known = short in wanted or is_scale or name in _WRITING
        run = _WRITES if family.is_causal else ()
        is_beside = name.startswith(getattr(family, "beside", "\0"))
        shell = prefix.rstrip(".")
        if not (known or is_beside or is_aside(name, tensor.shape, prefix=shell, run=run)):
            raise NotOurs(f"it has a tensor {name[:80]!r} that this family does not have")
        found[short] = tensor
    for name, shape in wanted.items():
        _check(name, shape, found)
    for name in _WRITING & found.keys():
        rows = found[name].shape[:1]
        if found[name].shape != (rows if name.endswith("bias") else (*rows, family.d_model)):
            raise NotOurs(f"the tensor {name!r} has shape {found[name].shape}")
    return Weights(found, stored.maps, scale_block=stored.scale_block)


_ALIASES = {"encoder.embed_tokens.weight": "shared.weight", "LayerNorm.gamma": "LayerNorm.weight"}


def _find_prefix(family: Family, stored: Weights, first: str) -> str:
    names = [first, *(stored for stored, ours in _ALIASES.items() if ours == first)]
    for prefix in family.prefixes:
        if any(prefix + name in stored.tensors for name in names):
            return prefix
    raise Lacks(f"the model lacks the tensor {first!r} of its architecture")


def _check(name: str, shape: tuple[int, ...], found: Mapping[str, Stored]) -> None:
    if name in found:
        if found[name].shape != shape:
            raise NotOurs(f"the tensor {name[:80]!r} has shape {found[name].shape}, not {shape}")
        return
    raise Lacks(
        f"the model lacks the tensor {name[:80]!r} of its architecture: random numbers in its place "
        "would be shown as the model's"
    )
