"""The same model in the library, on its own eager attention: what the light engine is held to.

Home of torch and ``transformers`` in this folder; imported only for a proof or ``--verify``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.sources.families.binding import EXPERT
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.parts import Floats
from attnviz.sources.models.files import ModelFiles
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.library import load_transformers

Twin = Callable[[Sequence[int]], tuple[list[Floats], Floats]]


def library_twin(
    engine: Engine,
    files: ModelFiles,
    config: Mapping[str, Any],
    *,
    n_layers: int,
    words: Sequence[int] | None = None,
) -> Twin:
    """Load a model with the library, at most its first layers.

    A folder is read by the library itself. A GGUF's arrays, and some layers of a large model, are
    handed to it: what becomes of the file's names and orders of rows is then ours, and is held by
    tests.

    Parameters
    ----------
    words
        The only ids that will be asked about; their rows of the embedding are all it gets.

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
    name = f"the model {files.name}"
    if files.kind == "gguf" or words is not None:
        model = guard(name, lambda: _from_arrays(transformers, engine, config, n_layers, words))
    else:
        model = guard(name, lambda: _from_folder(transformers, files, n_layers))
    body = getattr(model, "base_model", model)
    body = body.encoder if getattr(body.config, "is_encoder_decoder", False) else body

    def run(ids: Sequence[int]) -> tuple[list[Floats], Floats]:
        inputs = torch.tensor([list(ids) if words is None else [words.index(i) for i in ids]])
        with torch.inference_mode():
            out = body(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                output_attentions=True,
                return_dict=True,
            )
        weights = [w[0].float().numpy() for w in out.attentions or ()]
        return weights, out.last_hidden_state[0].float().numpy()

    return lambda ids: guard(name, lambda: run(ids))


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
    transformers: Any,
    engine: Engine,
    config: Mapping[str, Any],
    n_layers: int,
    words: Sequence[int] | None,
) -> Any:
    told = {k: v for k, v in config.items() if k != "model_type"}
    if words is not None:
        told |= {"vocab_size": len(words), "pad_token_id": None}
    made = transformers.AutoConfig.for_model(config["model_type"], **told)
    _shorten(made, n_layers)
    with importlib.import_module("accelerate").init_empty_weights(include_buffers=False):
        model = transformers.AutoModel.from_config(made, attn_implementation="eager").eval()
    state = _state(engine, n_layers, words)
    unused = {key: value for key, value in model.state_dict().items() if key.startswith("pooler.")}
    state |= {key: torch.zeros(value.shape) for key, value in unused.items()}
    left, extra = model.load_state_dict(state, strict=False, assign=True)
    if left or extra:
        raise InputError(f"the library's model has other tensors: {[*left, *extra][:2]}")
    return model


def _state(engine: Engine, n_layers: int, words: Sequence[int] | None) -> dict[str, torch.Tensor]:
    """Return the first layers' arrays by the library's names, experts stacked."""
    family, weights = engine.family, engine.weights
    table = next(iter(family.tensors()))
    wanted = [*family.tensors()]
    for layer in range(n_layers):
        wanted += [family.prefix(layer) + name for name in family.layer_tensors(layer)]
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for name in wanted:
        match = EXPERT.match(name)
        if match:
            numbers = weights.read(name)
            role = _ROLES.get(match[3], match[3])
            listed = experts.setdefault(match[1].replace("block_sparse_moe", "mlp"), {})
            listed.setdefault(role, []).append(torch.from_numpy(numbers.copy()))
        else:
            own = (
                weights.read(name) if name != table or words is None else weights.rows(name, words)
            )
            found[name.replace("block_sparse_moe", "mlp")] = torch.from_numpy(own.copy())
        weights.release()
    for at, parts in experts.items():
        gates, ups = torch.stack(parts["gate_proj"]), torch.stack(parts["up_proj"])
        found[f"{at}gate_up_proj"] = torch.cat((gates, ups), 1)
        found[f"{at}down_proj"] = torch.stack(parts["down_proj"])
    return found


_ROLES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
