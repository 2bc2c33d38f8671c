"""Is what was run what is in the file? A second reading that shares no code with the first.

A GGUF file is read by the ``gguf`` package: its own reader, its own map of names, and what the
converter does to numbers applied forward to the model's parameters. Rotation, scale, softcap and
windows are computed from the metadata again. A folder is read by ``safetensors``.

References: ggml-org/llama.cpp, ``conversion/*.py``; ``ggml_rope_yarn`` in ``ggml.c``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnviz.errors import CheckFailed
from attnviz.rounding import worse
from attnviz.sources.models.files import ModelFiles

if TYPE_CHECKING:
    from attnviz.sources.models.loading import Loaded

Pair = tuple[str, torch.Tensor, Any]


def file_difference(name: str, files: ModelFiles, loaded: Loaded) -> float:
    """Return how far any parameter or setting that was run is from the file's own.

    Parameters
    ----------
    name
        Of the model, for people.
    files
        What was given: the GGUF file itself, not what it was made into.

    Raises
    ------
    CheckFailed
        A tensor or setting of the file that was not run; names it.
    """
    worst = 0.0
    pairs: Iterable[Pair]
    if files.kind == "gguf":
        pairs = _gguf_pairs(name, files.weights[0], loaded.model)
        worst = _settings_difference(files.weights[0], loaded.model)
    else:
        pairs = _folder_pairs(files.weights, loaded.model)
    for label, ours, theirs in pairs:
        wanted = torch.as_tensor(theirs)
        if ours.numel() != wanted.numel():
            raise CheckFailed(
                f"{name}: {label[:80]!r} of the file has another size than what was run"
            )
        held = ours.detach().cpu()
        wanted = wanted.reshape(held.shape).to(held.dtype)  # rounded as the model was, where it was
        if held.numel():
            worst = worse(worst, float((held.double() - wanted.double()).abs().max()))
    return worst


def _gguf_pairs(name: str, path: Path, model: Any) -> Iterator[Pair]:
    """Yield each tensor of the file beside the same one made of what was run."""
    import gguf

    reader = gguf.GGUFReader(str(path))
    arch = str(reader.fields["general.architecture"].contents())
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    n_layers = 1 + max(
        (int(n) for t in reader.tensors for n in re.findall(r"blk\.(\d+)\.", t.name)), default=0
    )
    names = gguf.get_tensor_name_map(number, n_layers)
    left = {tensor.name: tensor for tensor in reader.tensors}
    for label in [label for label in left if label.startswith("rope_")]:
        del left[label]  # compared as frequencies
    for parameter, values in _converted(arch, model):
        stem, _, end = parameter.rpartition(".")
        mapped = names.get_name(stem) if end in ("weight", "bias") else None
        label = f"{mapped}.{end}" if mapped else parameter
        tensor = left.pop(label, None)
        if tensor is not None:
            held = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            yield label, values, np.array(held)  # its own view of the file cannot be written
        elif end != "bias" or bool(values.any()):
            raise CheckFailed(f"{name}: {parameter[:80]!r} was run, but the file does not hold it")
    if left:
        raise CheckFailed(f"{name}: {next(iter(left))[:80]!r} of the file was not run")


def _converted(arch: str, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a model as llama.cpp's converter would write them."""
    config = model.config.get_text_config()
    by_head: dict[str, list[torch.Tensor]] = {}
    heads = config.num_attention_heads
    for name, w in model.named_parameters():
        w = w.detach()
        layer = re.search(r"\.(\d+)\.", name)
        blk = f"blk.{layer[1]}." if layer else ""
        if found := re.match(r"(.*layernorm)\.norms\.\d+\.weight$", name):
            by_head.setdefault(f"{found[1]}.weight", []).append(w)
        elif ".experts.gate_up_proj" in name:
            end = "bias" if name.endswith("_bias") else "weight"
            if arch == "gpt-oss":  # (E, in, 2·out), gate and up in turns
                w = w if end == "bias" else w.transpose(1, 2)
                halves: tuple[torch.Tensor, ...] = (w[:, ::2], w[:, 1::2])
            else:
                halves = tuple(w.chunk(2, dim=1))
            for which, half in zip(("gate", "up"), halves):
                yield f"{blk}ffn_{which}_exps.{end}", half
        elif ".experts.down_proj" in name:
            end = "bias" if name.endswith("_bias") else "weight"
            is_turned = arch == "gpt-oss" and end == "weight"
            yield f"{blk}ffn_down_exps.{end}", w.transpose(1, 2) if is_turned else w
        elif name.endswith(".sinks"):
            yield f"{blk}attn_sinks.weight", w
        else:
            label = name.removeprefix("transformer.") if arch == "bloom" else name
            yield label, _forward(arch, name, w, heads, config)
    for name, rows in by_head.items():
        yield name, torch.stack(rows)


def _forward(arch: str, name: str, w: torch.Tensor, heads: int, config: Any) -> torch.Tensor:
    """Do to one parameter what the converter does."""
    if arch in ("llama", "granite", "smollm3") and re.search(r"\.[qk]_proj\.", name):
        n = heads if ".q_proj." in name else config.num_key_value_heads
        return w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    if arch in ("gemma", "gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return w + 1
    if arch == "gpt2" and re.search(r"\.c_\w+\.weight$", name):
        return w.T
    if "query_key_value" in name and arch in ("bloom", "gptneox"):
        return w.reshape(heads, 3, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    if "query_key_value" in name and arch == "falcon":
        is_one = config.multi_query and not config.new_decoder_architecture
        n_kv = 1 if is_one else config.num_kv_heads
        groups = w.reshape(n_kv, heads // n_kv + 2, -1, *w.shape[1:])
        parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
        return torch.cat([part.reshape(-1, *w.shape[1:]) for part in parts])
    return w


def _settings_difference(path: Path, model: Any) -> float:
    """Return how far rotation, scale, softcap and windows are from the metadata's, relatively.

    Raises
    ------
    CheckFailed
        A window that other layers have.
    """
    import gguf

    reader = gguf.GGUFReader(str(path))
    arch = str(reader.fields["general.architecture"].contents())
    prefix = f"{arch}."
    told = {
        key.removeprefix(prefix): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(prefix)
    }
    config, worst = model.config.get_text_config(), 0.0
    factors = {
        t.name: np.asarray(t.data, np.float64) for t in reader.tensors if t.name[:5] == "rope_"
    }
    for label, found, scale in _rotations(model):
        wanted, own_scale = _rotation(arch, told, factors, label, 2 * len(found))
        worst = worse(worst, float(np.abs(found / wanted - 1).max()), abs(scale / own_scale - 1))
    width = told.get("attention.key_length")
    for module in model.modules():
        given = getattr(module, "scaling", None)
        is_attention = type(module).__name__.endswith("Attention")
        if isinstance(given, float) and is_attention and not arch.startswith(("t5", "gptneox")):
            n_heads = config.num_attention_heads
            wanted_width = width or config.hidden_size // n_heads
            if config.num_hidden_layers == {"gemma2": 46, "gemma3": 62}.get(arch):
                wanted_width = config.hidden_size // n_heads
            wanted = told.get("attention.scale") or wanted_width**-0.5
            worst = worse(worst, abs(given / wanted - 1))
    cap = told.get("attn_logit_softcapping", 50.0 if arch == "gemma2" else None)
    if cap or getattr(config, "attn_logit_softcapping", None):
        ours = getattr(config, "attn_logit_softcapping", None) or math.inf
        worst = worse(worst, abs(ours / (cap or math.inf) - 1))
    window = told.get("attention.sliding_window", 4096 if arch == "gemma2" else None) or None
    if window != (getattr(config, "sliding_window", None) or None):
        raise CheckFailed(
            f"{path.name} says a window of {window} keys, but {config.sliding_window} was run"
        )
    return worst


def _rotations(model: Any) -> Iterator[tuple[str, Any, float]]:
    """Yield what kind of layer turns by it, the frequencies, and what cosines are multiplied by."""
    for module in model.modules():
        for name, values in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and "original" not in name:
                label = name.removesuffix("inv_freq").rstrip("_")
                scale = getattr(
                    module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0
                )
                yield label, values.double().cpu().numpy(), float(scale)


def _rotation(
    arch: str, told: Mapping[str, Any], factors: Mapping[str, Any], label: str, n_turned: int
) -> tuple[Any, float]:
    """Compute frequencies as ``ggml_rope_yarn`` does: (n_turned/2,), and the factor of cosines."""
    is_near = label == "sliding_attention"
    key = "rope.freq_base_swa" if is_near else "rope.freq_base"
    base = float(told.get(key, 10000.0))
    plain = base ** (-2.0 * np.arange(n_turned // 2) / n_turned)
    for name in ("rope_freqs.weight", "rope_factors_short.weight"):
        if name in factors and not is_near:
            plain = plain / factors[name].ravel()
    kind = told.get("rope.scaling.type")
    factor = float(told.get("rope.scaling.factor") or told.get("rope.scale_linear") or 1.0)
    attention = float(told.get("rope.scaling.attn_factor", 1.0))
    if is_near or kind == "none" or factor == 1.0:
        return plain, attention
    if kind != "yarn":
        return plain / factor, attention
    before = told["rope.scaling.original_context_length"]

    def place(turns: float) -> float:
        return n_turned * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = place(told.get("rope.scaling.yarn_beta_fast", 32.0))
    high = place(told.get("rope.scaling.yarn_beta_slow", 1.0))
    if arch != "gpt-oss":  # whose original is not rounded
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_turned - 1)
    ramp = np.clip((np.arange(n_turned // 2) - low) / max(0.001, high - low), 0, 1)
    by_length = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
    scale = float(told.get("rope.scaling.yarn_attn_factor", by_length))
    return plain / factor * ramp + plain * (1 - ramp), scale * attention


def _folder_pairs(paths: Iterable[Path], model: Any) -> Iterator[Pair]:
    """Yield each tensor of the files beside the parameter that was run of it."""
    from safetensors import safe_open

    held = dict(model.state_dict())
    held |= _as_saved(model, held)
    prefix = getattr(model, "base_model_prefix", "") + "."
    for path in paths:
        with safe_open(str(path), framework="pt") as file:
            for label in file.keys():  # noqa: SIM118  (it is no mapping)
                known = (label, prefix + label, label.removeprefix(prefix))
                found = next((n for n in known if n in held), None)
                if found is not None:
                    yield label, held[found], file.get_tensor(label)


def _as_saved(model: Any, held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return parameters by the names of saved folders, where the library merges some at loading."""
    try:
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(model, dict(held)))
    except (ImportError, AttributeError, KeyError, ValueError, RuntimeError):
        return {}
