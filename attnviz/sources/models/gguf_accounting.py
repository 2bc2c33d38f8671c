"""Account for everything in a GGUF file: each setting and tensor is used, without effect, or refused.

``account`` reads a file as what the library would have saved as a folder: the ``config.json``, and
for every parameter which of the file's tensors it is made of, and how. llama.cpp writes some rows
in another order, adds one to some norms and stacks experts; that is undone. Needs numpy alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.errors import InputError
from attnviz.records import Array
from attnviz.sources.models.gguf import Gguf
from attnviz.sources.models.gguf_kinds import (
    ARCHITECTURES,
    KINDS,
    N_EXPERTS,
    Change,
    Kind,
    change_of,
)

WITHOUT_EFFECT: tuple[tuple[str, str], ...] = (
    (r"general\.(architecture|alignment)", "read elsewhere"),
    (r"general\.file_type", "every tensor says its own type"),
    (r"general\.sampling\..*", "how other programs draw words"),
    (
        r"general\.(name|author|version|organization|finetune|basename|description|quantized_by|"
        r"size_label|license(\..*)?|url|doi|uuid|repo_url|source\..*|source_url|source_hf_repo|"
        r"base_model\..*|base_version|dataset\..*|datasets|tags|languages)",
        "a note about the file",
    ),
    (r"mradermacher\..*", "a note about the file"),
    (r"quantize\.imatrix\..*", "how the numbers were rounded before they were stored"),
    (r"tokenizer\..*", "accounted for where the tokenizer is made"),
    (r"split\.(no|tensors\.count)", "where a file is one of several, split.count says so"),
    (r"ARCH\.rope\.scaling\.finetuned", "whether the scaling was trained, not what it is"),
    (r"ARCH\.pooling_type", "what is made of the last layer's states"),
    (r"ARCH\.tensor_data_layout", "a note about the order of rows, which is always this one"),
)
"""Patterns of keys (``ARCH`` is the file's architecture) and why they cannot change attention."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "general.quantization_version": (2,),
    "split.count": (0, 1),
    "ARCH.attention.causal": (True,),
    "ARCH.attention.clamp_kqv": (0.0,),
    "ARCH.attention.max_alibi_bias": (0.0,),
    "ARCH.expert_count": (0,),
    "ARCH.expert_used_count": (0,),
    "ARCH.expert_shared_count": (0,),
    "ARCH.expert_weights_scale": (0.0, 1.0),
    "ARCH.nextn_predict_layers": (0,),
    "ARCH.attention.sliding_window": (0,),
    "ARCH.attn_logit_softcapping": (0.0,),
    "ARCH.final_logit_softcapping": (0.0,),
    "ARCH.rope.scaling.attn_factor": (1.0,),
    "ARCH.rope.scaling.yarn_ext_factor": (1.0,),
    "ARCH.rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys that change nothing where they have these values; with others they are refused."""


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter: which tensors of the file it is made of, and how.

    Parameters
    ----------
    tensors
        Names in the file.
    change
        Takes those tensors as float32 arrays, rows first, and returns the parameter.
    """

    tensors: tuple[str, ...]
    change: Change = lambda tensor: tensor


@dataclass(frozen=True, slots=True)
class Account:
    """A GGUF file as a folder of the library: its config, and its parameters.

    Parameters
    ----------
    config
        What ``config.json`` would say; every setting that touches attention is given, so that no
        default of a library applies.
    parameters
        Name → what it is made of. Names are those of saved folders.
    unused
        Key → why it is without effect.
    """

    file: Gguf
    config: Mapping[str, Any]
    parameters: Mapping[str, Part]
    unused: Mapping[str, str]

    def read(self, name: str) -> Array:
        """Return one parameter: float32, the file's tensors dequantised and put in order.

        Raises
        ------
        InputError
            Tensors of shapes that do not fit, or of a type that cannot be dequantised.
        """
        return self._make(
            name, [self.file.read(tensor) for tensor in self.parameters[name].tensors]
        )

    def each(self) -> Iterator[tuple[str, Array]]:
        """Yield every parameter and its name; tensors that several are made of are read once."""
        last: dict[str, Array] = {}
        for name, part in self.parameters.items():
            last = {t: last[t] if t in last else self.file.read(t) for t in part.tensors}
            yield name, self._make(name, list(last.values()))

    def _make(self, name: str, tensors: Sequence[Array]) -> Array:
        part = self.parameters[name]
        try:
            made = part.change(*tensors)
        except (ValueError, IndexError) as fault:
            raise InputError(
                f"{self.file.path.name}: {part.tensors[0]} has a shape that its settings do not "
                f"give: {fault}"
            ) from fault
        return np.ascontiguousarray(made, np.float32)


class Reader:
    """One file being accounted for: what was read of it, and what was made."""

    def __init__(self, file: Gguf, kind: Kind) -> None:
        self.file, self.kind = file, kind
        self.config: dict[str, Any] = {}
        self.parameters: dict[str, Part] = {}
        self.seen_keys: set[str] = set()
        self.seen: set[str] = set()

    def refuse(self, what: str) -> InputError:
        return InputError(f"{self.file.path.name} {what}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the architecture; it counts as read. Equal lists are one value."""
        key = f"{self.file.architecture}.{name}"
        if key not in self.file.metadata:
            return default
        self.seen_keys.add(key)
        value = self.file.metadata[key]
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        return value

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a number.

        Raises
        ------
        InputError
            It is missing and there is no default, or it is no one number.
        """
        value = self.get(name, default)
        key = f"{self.file.architecture}.{name}"
        if value is None:
            raise self.refuse(f"does not say {key}: its metadata is damaged")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(f"says {key} = {str(value)[:60]}: one number is read")
        return value

    def some(self, *names: str) -> Any:
        """Return the first of these numbers that is said, or None."""
        return next((self.number(name) for name in names if self.get(name) is not None), None)

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def add(
        self, parameter: str, tensors: str | Sequence[str], change: Change | None = None
    ) -> None:
        """Make a parameter of tensors.

        Raises
        ------
        InputError
            A tensor that the file lacks; it is named.
        """
        names = (tensors,) if isinstance(tensors, str) else tuple(tensors)
        for name in names:
            if name not in self.file.tensors:
                raise self.refuse(
                    f"lacks the tensor {name!r}, which {self.file.architecture} models have: "
                    "it is damaged, or of a variant that is not read"
                )
        self.seen.update(names)
        self.parameters[parameter] = Part(names, change) if change else Part(names)

    @property
    def n_layers(self) -> int:
        return int(self.number("block_count"))

    def n_kv_heads(self, n_heads: int) -> int:
        """Return the number of heads for keys, which is the same in every layer that attends."""
        told = self.get("attention.head_count_kv", n_heads)
        if self.kind.model_type == "lfm2" and isinstance(told, list):  # 0 where a layer convolves
            told = max((n for n in told if isinstance(n, int)), default=n_heads)
        if isinstance(told, bool) or not isinstance(told, int) or told < 1 or n_heads % told:
            raise self.refuse(f"says {str(told)[:60]} heads for keys beside {n_heads} for queries")
        return told


def account(file: Gguf) -> Account:
    """Account for a GGUF file.

    Raises
    ------
    InputError
        An architecture that is not read; a setting, or a tensor, that is not known; a tensor that
        is missing. The message names it.

    Notes
    -----
    Reads no tensor, rope factors apart.
    """
    reader = Reader(file, _kind_of(file))
    _read_config(reader)
    _read_tensors(reader)
    if reader.kind.finish is not None:
        reader.kind.finish(reader)
    unused = _unused_keys(reader)
    left = [name for name in file.tensors if name not in reader.seen]
    if left:
        raise reader.refuse(
            f"has the tensor {left[0][:80]!r}, which is not known for {file.architecture} models: "
            "what it does to attention would be left out"
        )
    return Account(file, reader.config, reader.parameters, unused)


def _kind_of(file: Gguf) -> Kind:
    name = file.architecture
    if name == "llama" and file.setting("expert_count"):
        name = "mixtral"
    elif name == "llama" and file.setting("attention.sliding_window"):
        name = "mistral"
    if name not in KINDS:
        hint = {
            "mamba": "it has no attention", "mamba2": "it has no attention",
            "clip": "it is the part of a model that takes images or sound",
        }.get(name)  # fmt: skip
        if hint is None:
            hint = f"read are {', '.join(sorted(ARCHITECTURES))}"
        raise InputError(f"{file.path.name} is of the GGUF architecture {name[:40]!r}: {hint}")
    return KINDS[name]


def _unused_keys(reader: Reader) -> dict[str, str]:
    """Return the keys that were not read, with the reason.

    Raises
    ------
    InputError
        A key without a reason.
    """
    arch, unused = reader.file.architecture, {}
    for key, value in reader.file.metadata.items():
        if key in reader.seen_keys:
            continue
        short = f"ARCH.{key.removeprefix(f'{arch}.')}" if key.startswith(f"{arch}.") else key
        reason = next((why for what, why in WITHOUT_EFFECT if re.fullmatch(what, short)), None)
        if reason is None and short in _NEUTRAL and value in _NEUTRAL[short]:
            reason = f"{value} is as if it was not there"
        if reason is None:
            raise reader.refuse(
                f"says {key[:80]} = {str(value)[:40]}, which is not read for {arch} models: what it "
                "does to attention would be left out"
            )
        unused[key] = reason
    return unused


def _read_config(reader: Reader) -> None:
    kind, file = reader.kind, reader.file
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise reader.refuse("lacks the tensor 'token_embd.weight': it is damaged")
    d_model, n_heads = reader.number("embedding_length"), reader.number("attention.head_count")
    if not 0 < n_heads <= d_model:
        raise reader.refuse(f"says {n_heads} heads on {d_model} numbers: it is damaged")
    width = reader.number("attention.key_length", d_model // n_heads)
    turned = reader.number("rope.dimension_count", width) if kind.rotary != "none" else width
    if kind.rotary == "whole":
        if turned != width and reader.get("attention.key_length") is None:
            width = turned  # mistral-nemo's kin: a head of another width, told by its rotary part
        if turned != width:
            raise reader.refuse(f"turns {turned} of {width} numbers of a head: all are read")
    if reader.number("attention.value_length", width) != width:
        raise reader.refuse("has values of another width than its keys, which is not read")
    common: dict[str, Any] = {
        "vocab_size": embedding.shape[0],
        "hidden_size": d_model,
        "num_hidden_layers": reader.n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": reader.n_kv_heads(n_heads),
        "head_dim": width,
        "intermediate_size": reader.number("feed_forward_length"),
        "max_position_embeddings": reader.number("context_length"),
        "epsilon": _epsilon(reader),
    }
    if reader.number("vocab_size", embedding.shape[0]) != embedding.shape[0]:
        raise reader.refuse(
            f"says {reader.get('vocab_size')} words, but has vectors for {embedding.shape[0]}"
        )
    if kind.renamed.get("head_dim", "") is None and width * n_heads != d_model:
        raise reader.refuse(
            f"has {n_heads} heads of {width} on {d_model}: not a {file.architecture}"
        )
    if (
        kind.renamed.get("num_key_value_heads", "") is None
        and common["num_key_value_heads"] != n_heads
    ):
        raise reader.refuse("has fewer heads for keys than for queries, which is not read")
    config = reader.config
    config["architectures"] = [kind.architecture]
    config["model_type"] = kind.model_type
    for name, value in common.items():
        given = kind.renamed.get(name, name)
        if given is not None:
            config[given] = value
    config["tie_word_embeddings"] = kind.is_tied or not reader.has("output.weight")
    config["dtype"] = "float32"
    for end in ("bos", "eos", "pad"):
        config[f"{end}_token_id"] = file.metadata.get(
            f"tokenizer.ggml.{'padding' if end == 'pad' else end}_token_id"
        )
    for key, name in kind.settings.items():
        value = reader.number(key) if key in kind.required else reader.get(key)
        if value is not None:
            config[name] = value
    config.update(kind.fixed)
    if kind.rotary != "none":
        config["rope_parameters"] = _rope(reader, turned, width)


def _epsilon(reader: Reader) -> float:
    told = {
        name: reader.number(f"attention.layer_norm_{name}")
        for name in ("rms_epsilon", "epsilon")
        if reader.get(f"attention.layer_norm_{name}") is not None
    }
    wanted = "rms_epsilon" if reader.kind.epsilon == "rms" else "epsilon"
    if wanted not in told or any(value != told[wanted] for value in told.values()):
        raise reader.refuse(
            f"does not say one {reader.file.architecture}.attention.layer_norm_{wanted}: "
            f"{told or 'none'}"
        )
    return float(told[wanted])


def _rope(reader: Reader, n_turned: int, width: int) -> dict[str, Any]:
    """Read the rotary positions as the library's ``rope_parameters``."""
    found: dict[str, Any] = {
        "rope_theta": float(reader.number("rope.freq_base", 10000.0)),
        "rope_type": "default",
    }
    if reader.kind.rotary == "part":
        found["partial_rotary_factor"] = n_turned / width
    factor = reader.some("rope.scaling.factor", "rope.scale_linear")
    # llama.cpp takes a factor without a type as linear
    told = reader.get("rope.scaling.type", "linear" if factor else "none")
    original = reader.some("rope.scaling.original_context_length")
    attention = reader.number("rope.scaling.attn_factor", 1.0)
    is_scaled = told != "none" and factor not in (None, 0, 1)
    if told == "yarn" and is_scaled:
        if original is None:
            raise reader.refuse("scales its positions (yarn) without an original_context_length")
        found |= {
            "rope_type": "yarn",
            "factor": float(factor),
            "original_max_position_embeddings": original,
            "beta_fast": float(reader.number("rope.scaling.yarn_beta_fast", 32.0)),
            "beta_slow": float(reader.number("rope.scaling.yarn_beta_slow", 1.0)),
            **({"truncate": False} if reader.kind.model_type == "gpt_oss" else {}),
        }
        if (given := reader.some("rope.scaling.yarn_attn_factor")) is not None:
            found["attention_factor"] = float(given)
    elif told == "linear" and is_scaled:
        found |= {"rope_type": "linear", "factor": float(factor)}
    elif told not in ("none", "linear", "yarn", "longrope"):
        raise reader.refuse(f"says rope.scaling.type = {str(told)[:40]}, which is not read")
    if reader.has("rope_freqs.weight") and reader.kind.has_factors:
        _add_factors(reader, found, ("rope_freqs.weight",) * 2, None, n_turned)
    elif any(reader.has(f"rope_factors_{which}.weight") for which in ("long", "short")):
        if original is None or found["rope_type"] != "default":
            raise reader.refuse("has rope factors without an original_context_length of their own")
        names = ("rope_factors_long.weight", "rope_factors_short.weight")
        _add_factors(reader, found, names, original, n_turned)
        found["attention_factor"] = float(attention)
        attention = 1.0
    elif told == "longrope":
        raise reader.refuse("lacks the tensor 'rope_factors_long.weight' of its longrope positions")
    if attention != 1.0:
        raise reader.refuse(f"says rope.scaling.attn_factor = {attention}, which is not read here")
    return found


def _add_factors(
    reader: Reader,
    rope: dict[str, Any],
    names: tuple[str, str],
    original: int | None,
    n_turned: int,
) -> None:
    """Divide each frequency by a factor of its own; the library's longrope does that.

    With ``original``, the first tensor is for longer texts than that; else both are one.
    """
    linear = rope.pop("factor", 1.0)
    if rope["rope_type"] not in ("default", "linear"):
        raise reader.refuse(
            f"has rope factors and {rope['rope_type']} positions: not read together"
        )
    found = []
    for name in names:
        if not reader.has(name):
            raise reader.refuse(f"lacks the tensor {name!r} beside the other rope factors")
        reader.seen.add(name)
        factors = [float(factor) for factor in reader.file.read(name).ravel()]
        if len(factors) != n_turned // 2 or not all(0 < factor < np.inf for factor in factors):
            raise reader.refuse(
                f"is damaged: {name} holds {len(factors)} factors, {n_turned // 2} above 0 are wanted"
            )
        found.append([factor * linear for factor in factors])
    rope |= {
        "rope_type": "longrope",
        "long_factor": found[0],
        "short_factor": found[1],
        "attention_factor": 1.0,
        "original_max_position_embeddings": original or reader.number("context_length"),
    }


def _read_tensors(reader: Reader) -> None:
    kind = reader.kind
    for name, module in kind.top.items():
        if name in ("output", *kind.optional) and not reader.has(f"{name}.weight"):
            continue
        for end in ("weight", "bias") if name in kind.biased else ("weight",):
            reader.add(f"{module}.{end}", f"{name}.{end}", change_of(reader, name, end))
    layers = range(reader.n_layers)
    flags = _flagged(reader)
    for layer in layers:
        for name, module in kind.block.items():
            if name in kind.optional and not reader.has(f"blk.{layer}.{name}.weight"):
                continue
            ends = ["weight"] + ["bias"] * (name in kind.biased or name in flags)
            for end in ends:
                parameter, tensor = (
                    f"{kind.layers}{layer}.{module}.{end}",
                    f"blk.{layer}.{name}.{end}",
                )
                if end == "bias" and flags.get(name) is False:
                    rows = f"blk.{layer}.{name}.weight"
                    reader.add(parameter, rows, lambda w: np.zeros(w.shape[0], np.float32))
                else:
                    reader.add(parameter, tensor, change_of(reader, name, end))
        for name, module in kind.experts.items():
            for expert in range(reader.config[N_EXPERTS[kind.model_type]]):
                reader.add(
                    f"{kind.layers}{layer}.{module.format(expert)}.weight",
                    f"blk.{layer}.{name}.weight",
                    lambda w, expert=expert: w[expert],
                )


def _flagged(reader: Reader) -> dict[str, bool]:
    """Return the block tensors that get a bias by a flag, and whether the file has it."""
    found: dict[str, bool] = {}
    for flag, groups in reader.kind.flags.items():
        present = {
            group: any(reader.has(f"blk.{i}.{name}.bias") for name in group for i in range(reader.n_layers))
            for group in groups
        }  # fmt: skip
        reader.config[flag] = any(present.values())
        if reader.config[flag]:
            found |= {name: there for group, there in present.items() for name in group}
    return found
