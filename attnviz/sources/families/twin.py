"""The same model in the library, on its own eager attention: what the light engine is held to.

Home of torch and ``transformers`` in this folder; imported only for a proof or ``--verify``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.parts import Floats
from attnviz.sources.families.weights import Weights
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.library import load_transformers

Twin = Callable[[Sequence[int]], tuple[list[Floats], Floats]]


def library_twin(
    engine: Engine, files: ModelFiles, config: Mapping[str, Any], n_layers: int
) -> Twin:
    """Load a model with the library, at most its first layers.

    A folder is read by the library itself. A GGUF's arrays are handed to it: what it makes of the
    file's names and orders of rows is then ours, and is held by tests.

    Returns
    -------
    Twin
        ids → weights of every layer (H, L, S), and the final states (L, D).

    Raises
    ------
    InputError
        The library does not take this model.
    """
    transformers = load_transformers()
    if files.kind == "gguf":
        model = guard(
            f"the model {files.name}", lambda: _from_arrays(transformers, engine, config, n_layers)
        )
    else:
        model = guard(
            f"the model {files.name}", lambda: _from_folder(transformers, files, n_layers)
        )
    body = getattr(model, "base_model", model)
    body = body.encoder if getattr(body.config, "is_encoder_decoder", False) else body

    def run(ids: Sequence[int]) -> tuple[list[Floats], Floats]:
        inputs = torch.tensor([list(ids)])
        with torch.inference_mode():
            out = body(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                output_attentions=True,
                return_dict=True,
            )
        weights = [w[0].float().numpy() for w in out.attentions or ()]
        return weights, out.last_hidden_state[0].float().numpy()

    return lambda ids: guard(f"the model {files.name}", lambda: run(ids))


def _shorten(config: Any, n_layers: int) -> None:
    """Make a config one of the first layers only."""
    if config.num_hidden_layers != n_layers:
        config.num_hidden_layers = n_layers
        for name in ("layer_types", "no_rope_layers"):
            if isinstance(getattr(config, name, None), list):
                setattr(config, name, getattr(config, name)[:n_layers])


def _from_folder(transformers: Any, files: ModelFiles, n_layers: int) -> Any:
    where = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(str(files.folder), **where)
    if getattr(config, "sliding_window", None) == 0:
        config.sliding_window = None
    _shorten(config, n_layers)
    model, report = transformers.AutoModel.from_pretrained(
        str(files.folder),
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        use_safetensors=True,
        output_loading_info=True,
        **where,
    )
    missing = [key for key in report["missing_keys"] if "pooler" not in key]
    if missing:
        raise InputError(f"{files.name} lacks {missing[0][:80]!r} for the library")
    return model.eval()


def _from_arrays(
    transformers: Any, engine: Engine, config: Mapping[str, Any], n_layers: int
) -> Any:
    told = {k: v for k, v in config.items() if k not in ("model_type", "rope_freqs")}
    made = transformers.AutoConfig.for_model(config["model_type"], **told)
    _shorten(made, n_layers)
    with torch.random.fork_rng():
        model = transformers.AutoModel.from_config(made, attn_implementation="eager").eval()
    divisors = config.get("rope_freqs")
    if divisors is not None:
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq") and "sliding" not in name:
                buffer.div_(torch.tensor(divisors))
    state = _state(engine.weights, model.state_dict().keys(), n_layers)
    left, extra = model.load_state_dict(state, strict=False, assign=True)
    left = [key for key in left if not key.endswith("lm_head.weight")]
    if left or extra:
        raise InputError(f"the library's model has other tensors: {[*left, *extra][:2]}")
    return model


_LAYER = re.compile(r"^(?:layers|h)\.(\d+)\.")
_STACK = re.compile(r"^(.*\.experts\.)(w1|w2|w3|gate_proj|up_proj|down_proj)$")


def _state(weights: Weights, wanted: Any, n_layers: int) -> dict[str, torch.Tensor]:
    """Return the first layers' arrays by the library's names."""
    found: dict[str, torch.Tensor] = {}
    for name in weights.tensors:
        layer = _LAYER.match(name)
        if (layer and int(layer[1]) >= n_layers) or name.startswith(("lm_head", "embed_out")):
            continue
        stack = _STACK.match(name)
        numbers = torch.from_numpy(weights.read(name).copy())
        weights.release()
        if stack is None:
            found[name] = numbers
            continue
        place = "gate_up_proj" if stack[2] in ("w1", "w3", "gate_proj", "up_proj") else "down_proj"
        full = stack[1].replace("block_sparse_moe", "mlp") + place
        if place == "down_proj":
            found[full] = numbers
        elif full in found:
            pair = (found[full], numbers)
            found[full] = torch.cat(pair if stack[2] in ("w3", "up_proj") else pair[::-1], 1)
        else:
            found[full] = numbers
    return {(k.replace("block_sparse_moe.gate", "mlp.gate")): v for k, v in found.items()}
