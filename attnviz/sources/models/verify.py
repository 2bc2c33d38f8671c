"""Is it the model's own? Parity for every answer, and a comparison with the model left untouched.

The numbers compared come from the core that is at work; the file is read a second time, by another
reader than the one that loaded the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnviz.errors import CheckFailed, UsageError
from attnviz.records import Array, LayerHeads, Tokens
from attnviz.rounding import worse
from attnviz.sources.models.capture.interface import NAME, capture
from attnviz.sources.models.capture.lazy_bias import lazy_position_bias
from attnviz.sources.models.loading import load
from attnviz.sources.models.planning import (
    TOLERANCE,
    hidden_difference,
    reported_weights,
    switch,
)

if TYPE_CHECKING:
    from attnviz.sources.models.source import TransformersSource

MAX_TOKENS = 2048
"""Eager attention holds layers × heads × L × L: longer texts are not verified."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How far our numbers are from those of the model run untouched.

    Parameters
    ----------
    weights
        Layer → largest difference from the weights that its eager attention reports.
    hidden
        Largest difference of the final states from its fused attention, relative to their
        largest number.
    tolerance
        For both; depends on the precision the model runs in.
    file
        Largest difference of any parameter that was run from the file's own, read by another
        reader than the one that loaded it: 0 where the model that was run is the file's.
    """

    weights: Mapping[int, float]
    hidden: float
    tolerance: float
    file: float = 0.0

    @property
    def holds(self) -> bool:
        """True where every difference is within the tolerance (NaN is not)."""
        return all(d <= self.tolerance for d in (*self.weights.values(), self.hidden, self.file))


def verify(
    source: TransformersSource,
    tokens: Tokens,
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]],
) -> Verification:
    """Load the model anew, run it untouched, and compare weights and final states.

    Parameters
    ----------
    source
        The opened model.
    tokens
        From its ``tokenize``.
    trace_heads
        Of the core at work: a layer → its stages, ``weights`` (H, L, S) among them.

    Raises
    ------
    UsageError
        A text too long to hold the model's own weights.

    Notes
    -----
    Holds layers · heads · L² numbers, and the model twice.
    """
    if len(tokens) > MAX_TOKENS:
        raise UsageError(
            f"--verify holds every weight of every layer: at most {MAX_TOKENS} tokens, not "
            f"{len(tokens)}"
        )
    loaded = source.loaded
    fresh = load(source.folder_files, device=loaded.device, dtype=loaded.dtype)
    ids: list[tuple[int, ...]] = [tokens.ids]
    decoder = [source.queries(tokens).ids] if loaded.is_encoder_decoder else None
    if decoder is not None and source.which == "encoder":
        decoder = [tokens.ids[:1]]
    with torch.inference_mode():
        eager = fresh.forward(ids, decoder_ids=decoder, output_attentions=True)
        theirs = reported_weights(eager).get(source.which, [])
        switch(fresh.model, "sdpa")
        untouched = fresh.forward(ids, decoder_ids=decoder)
        ours = _final_states(source, ids, decoder)
    found: dict[int, float] = {}

    def compare(heads: LayerHeads) -> None:
        own = theirs[source.layers.index(heads.layer)][0].double().cpu()
        weights = torch.as_tensor(trace_heads(heads)["weights"]).double().cpu()
        if heads.sinks is not None and float((own.sum(-1) - 1).abs().max()) < 1e-3:
            weights = weights / weights.sum(-1, keepdim=True)  # reported without the sink's share
        found[heads.layer] = worse(found.get(heads.layer, 0.0), float((own - weights).abs().max()))

    if theirs:
        source.run(tokens, source.layers, compare)
    difference = hidden_difference(untouched, ours)
    return Verification(found, difference, TOLERANCE[loaded.dtype], file_difference(source))


def _final_states(source: TransformersSource, ids: Any, decoder: Any) -> Any:
    loaded = source.loaded
    if source.plan.route == "tap":
        switch(loaded.model, "eager")
        return loaded.forward(ids, decoder_ids=decoder)
    switch(loaded.model, NAME)
    with lazy_position_bias(loaded.body), capture(lambda _: None):
        return loaded.forward(ids, decoder_ids=decoder)


def file_difference(source: TransformersSource) -> float:
    """Return how far any parameter that was run is from the file's own, read independently.

    A GGUF file is read by the ``gguf`` package and placed by the library's own table, where ours
    made the model; a folder by ``safetensors``, tensor by tensor. Rotation and softcap of a GGUF
    file are computed from its metadata again.

    Raises
    ------
    CheckFailed
        A tensor of the file that no parameter holds.
    """
    model = source.loaded.model
    held = {name: value.detach() for name, value in model.state_dict().items()}
    worst = 0.0
    pairs: Iterable[Any]
    if source.files.kind == "gguf":
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        load: Any = load_gguf_checkpoint

        path = source.files.weights[0]
        tensors = _quietly(lambda: load(str(path), True, model)["tensors"])
        worst = _rotation_difference(path, model)
        pairs = ((name, held.get(name), value) for name, value in tensors.items())
    else:
        pairs = _folder_tensors(source, held)
    for name, ours, theirs in pairs:
        if ours is None or ours.shape != theirs.shape:
            raise CheckFailed(
                f"{source.info.name}: the tensor {name[:80]!r} of the file was not run"
            )
        wanted = theirs.to(ours.dtype).to(ours.device)
        differs = float((ours.double() - wanted.double()).abs().max()) if ours.numel() else 0.0
        worst = worse(worst, differs)
    return worst


def _folder_tensors(source: TransformersSource, held: Mapping[str, Any]) -> Iterator[Any]:
    """Yield name, what was run and what the file holds, where a parameter has the tensor's name."""
    from safetensors import safe_open

    prefix = getattr(source.loaded.model, "base_model_prefix", "") + "."
    for path in source.folder_files.weights:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                known = (name, prefix + name, name.removeprefix(prefix))
                found = next((n for n in known if n in held), None)
                if (
                    found is not None
                ):  # a head, or a part that the library renames, is not run as is
                    yield name, held[found], file.get_tensor(name)


def _rotation_difference(path: Path, model: Any) -> float:
    """Return how far a model's rotary frequencies are from those that a file's metadata gives."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(str(path))
    fields = {
        name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name
    }
    kind = fields["general.architecture"]
    frequencies = [m.inv_freq for m in model.modules() if hasattr(m, "inv_freq")]
    if (
        kind == "gemma3"
        or len(frequencies) != 1
        or fields.get(f"{kind}.rope.scaling.type") == "yarn"
    ):
        return 0.0  # several rotations, or one that depends on the length: the weights tell
    found = frequencies[0].double().cpu().numpy()
    base = float(fields.get(f"{kind}.rope.freq_base", 10000.0))
    wanted = base ** -(np.arange(len(found)) / len(found))
    wanted /= float(fields.get(f"{kind}.rope.scaling.factor", 1.0) or 1.0)
    for tensor in reader.tensors:
        if tensor.name in ("rope_freqs.weight", "rope_factors_short.weight"):
            wanted /= np.asarray(tensor.data, np.float64)
    return float(np.abs(found / wanted - 1).max())


def _quietly(work: Callable[[], Any]) -> Any:
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()):  # the library's progress bars
        return work()
