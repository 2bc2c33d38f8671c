"""Build a model from its files: checked first, offline, nothing of it executed.

What lives here: files → a ``torch`` model that runs ids forward. What does not: finding files
(``files``), what its attention does (``planning``), texts (``transformers_``).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnviz.errors import InputError, ResourceError
from attnviz.memory import compare, cure, is_exhausted, room_bytes
from attnviz.sources.models.accounting import (
    all_keys_told,
    check_absent,
    check_left_over,
    check_told_once,
)
from attnviz.sources.models.capture.state import unchanged
from attnviz.sources.models.files import ModelFiles, read_config, read_header
from attnviz.sources.models.guarding import guard, guard_run
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.planning import Probe

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_SPARE_PARAMETERS = 4_000_000
PROBE_TOKENS = (12, 9)
_COUNT = re.compile(
    r"^(num|n)_(?!positions|ctx)(?!.*positions)|_(size|dim|count|rank|layers|heads|experts|labels|buckets)$"
)
_LEAST_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, ready to run ids forward.

    Parameters
    ----------
    model
        As the library made it, with its head where it has one.
    body
        The part that is run: without a head, and only the text part of two-part models.
    """

    model: Any
    body: Any
    config: Any
    dtype: str
    device: torch.device
    is_encoder_decoder: bool
    notices: tuple[str, ...] = ()

    def forward(
        self,
        ids: Sequence[Sequence[int]],
        *,
        real: Sequence[tuple[int, int]] | None = None,
        decoder_ids: Sequence[Sequence[int]] | None = None,
        decoder_real: Sequence[tuple[int, int]] | None = None,
        output_attentions: bool = False,
    ) -> Any:
        """Run ids forward without a cache.

        Parameters
        ----------
        ids
            B rows of one length.
        real
            Half-open range of each row's real tokens, the rest being padding; positions are
            counted from a row's first real token. All are real where None.
        decoder_ids, decoder_real
            B rows for the decoder of an encoder-decoder, and their real tokens, each from 0 on.
        """
        accepted = inspect.signature(self.body.forward).parameters
        inputs = torch.tensor([list(row) for row in ids], device=self.device)
        mask = torch.ones_like(inputs)
        named: dict[str, Any] = {"input_ids": inputs}
        if real is not None:
            mask = self._mask(real, inputs.shape[1])
            counts_itself = self.config.model_type in _OWN_POSITIONS
            is_shifted = "position_ids" in accepted and any(start for start, _ in real)
            if is_shifted and not counts_itself:
                named["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        named["attention_mask"] = mask
        if decoder_ids is not None:
            rows = [list(row) for row in decoder_ids]
            named["decoder_input_ids"] = torch.tensor(rows, device=self.device)
            if decoder_real is not None and "decoder_attention_mask" in accepted:
                named["decoder_attention_mask"] = self._mask(decoder_real, len(rows[0]))
        if "use_cache" in accepted:
            named["use_cache"] = False
        if output_attentions:
            named["output_attentions"] = True
        return self.run(named)

    def run(self, named: Mapping[str, Any]) -> Any:
        """Run the body with inputs by name, guarded.

        Raises
        ------
        InputError
            The model's own code fails on what the files describe.
        """
        kind = type(self.body).__name__
        with unchanged(self.model):
            return guard_run(kind, lambda: self.body(**named, return_dict=True))

    @property
    def can_pad_left(self) -> bool:
        """True where positions can be counted from a row's first real token."""
        accepted = inspect.signature(self.body.forward).parameters
        kind = self.config.model_type
        return "position_ids" in accepted or kind in _OWN_POSITIONS or kind in _RELATIVE

    def _mask(self, real: Sequence[tuple[int, int]], length: int) -> torch.Tensor:
        """Return 1 where tokens are real: (B, length)."""
        place = torch.arange(length, device=self.device)[None]
        ends = torch.tensor([list(pair) for pair in real], device=self.device)
        return ((place >= ends[:, :1]) & (place < ends[:, 1:])).long()

    def probe(self) -> Probe:
        """Return a short forward pass over fixed ids for the self-check."""
        n_words = int(getattr(self.config, "vocab_size", 0) or 64)
        limit = max_positions(self.config) or PROBE_TOKENS[0]
        lengths = [min(n, limit) for n in PROBE_TOKENS]
        first, second = ([[(7 * i + 11) % n_words for i in range(n)]] for n in lengths)
        decoder = second if self.is_encoder_decoder else None

        def run(**options: Any) -> Any:
            return self.forward(first, decoder_ids=decoder, **options)

        return Probe(run, 1, lengths[0], lengths[1] if self.is_encoder_decoder else 0)


_RELATIVE = frozenset(
    {"t5", "mt5", "umt5", "longt5", "bloom", "mpt", "xlnet", "switch_transformers"}
)
_OWN_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "opt", "mpnet", "xlnet"})


def load(files: ModelFiles, *, device: torch.device, dtype: str) -> Loaded:
    """Load a model folder.

    Parameters
    ----------
    files
        Of kind ``safetensors``; a GGUF file is converted first.
    device, dtype
        Where and in what precision the model itself runs.

    Raises
    ------
    InputError
        A config that describes another model than the files hold, missing weights, or an
        architecture the library does not know.
    ResourceError
        Not enough memory.
    """
    raw, held = check_files(files)
    transformers = load_transformers()
    name = files.name
    config = guard(
        f"the config of {name}",
        lambda: transformers.AutoConfig.from_pretrained(
            str(files.folder),
            local_files_only=True,
            trust_remote_code=False,
        ),
    )
    config._attn_implementation = "eager"  # whatever the file names: flash and flex are not at hand
    _check_takes_text(name, config)
    notices = _mend_window(name, config)
    kind = _choose_class(transformers, raw)
    check_size(name, lambda: _skeleton(kind, config), held, DTYPES[dtype])

    def build() -> Any:
        return kind.from_pretrained(
            str(files.folder),
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )

    with all_keys_told(transformers) as told:
        model, report = guard(f"the model {name}", build)
    try:
        model = model.eval().requires_grad_(False).to(device)
    except (RuntimeError, MemoryError) as fault:
        if not is_exhausted(fault):
            raise
        raise ResourceError(f"{name} does not fit into the memory of {device}") from fault
    loaded = wrap(model, config=config, dtype=dtype, device=device)
    _account(
        files, loaded, told or {k: set(report[f"{k}_keys"]) for k in ("missing", "unexpected")}
    )
    check_finite(name, model)
    return replace(loaded, notices=notices)


def _account(files: ModelFiles, loaded: Loaded, keys: Mapping[str, set[str]]) -> None:
    """Refuse files that hold other tensors than the model that was built of them."""
    model, name = loaded.model, files.name
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    shapes: dict[str, Any] = {}
    for path in files.weights:
        shapes |= {label: shape for label, (_, shape) in read_header(path).items()}
    check_told_once(name, shapes, prefix)
    is_encoder = type(model).__name__.endswith(_ENCODERS)
    left = {
        key: shapes.get(key)
        for key in keys["unexpected"]
        if not (is_encoder and re.match(r"(\w+\.)?decoder\.", key))
    }
    parts = {label.partition(".")[0] for label, _ in model.named_parameters()}
    check_left_over(name, left, prefix=prefix, run=parts, config=loaded.config)
    place = next((n for n, m in model.named_modules() if m is loaded.body), "")
    ignored = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    constant = {
        key
        for key in keys["missing"]
        if any(re.search(pattern, key) for pattern in ignored) and _is_constant(model, key)
    }
    check_absent(
        name,
        keys["missing"] - constant,
        body=place and place + ".",
        has_head=loaded.body is getattr(model, "base_model", None),
    )


def _is_constant(model: Any, key: str) -> bool:
    """True for what the library fills in by itself: a mask, a bias of zeros."""
    place, _, last = key.rpartition(".")
    values = getattr(model.get_submodule(place), last)
    return values.numel() == 0 or bool((values == values.flatten()[0]).all())


def check_finite(name: str, model: Any) -> None:
    """Refuse weights that hold NaN or infinity: whatever is computed from them says nothing.

    Raises
    ------
    InputError
        Names the first such tensor.
    """
    for part, values in model.named_parameters():
        if values.is_floating_point() and not bool(torch.isfinite(values.float().sum())):
            bad = int((~torch.isfinite(values)).sum())
            if bad:
                raise InputError(
                    f"{name}: the tensor {part[:80]} holds {bad} numbers that are NaN or infinite"
                )


def wrap(model: Any, *, config: Any = None, dtype: str = "float32", device: Any = "cpu") -> Loaded:
    """Make a built model ready to run: pick the part of it that reads text."""
    config = model.config if config is None else config
    body = model
    if not getattr(config, "is_encoder_decoder", False) or not _is_pair(model):
        body = getattr(model, "base_model", model)
        is_tower = hasattr(config, "vision_config") or hasattr(config, "audio_config")
        if is_tower and hasattr(body, "text_model"):
            body = body.text_model
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    is_pair = bool(getattr(config, "is_encoder_decoder", False)) and _is_pair(model)
    return Loaded(model, body, config if is_pair else text, dtype, torch.device(device), is_pair)


def _mend_window(name: str, config: Any) -> tuple[str, ...]:
    """Read a window of 0 keys as none, where the library would hide every key."""
    if getattr(config, "sliding_window", None) != 0:
        return ()
    kinds = [str(kind) for kind in getattr(config, "layer_types", None) or ()]
    if any("sliding" in kind for kind in kinds):
        raise InputError(f"{name} has layers with a window of 0 keys: they would see nothing")
    if kinds:
        return ()  # no layer has the window; Qwen2-MoE writes 0 itself and needs the number
    config.sliding_window = None
    return ("config.json says sliding_window 0: read as no window",)


def _choose_class(transformers: Any, config: dict[str, Any]) -> Any:
    """Return the class with a language head where the folder was saved with one."""
    listed = config.get("architectures")
    wanted = str(listed[0]) if isinstance(listed, list) and listed else ""
    auto = transformers.models.auto.modeling_auto
    if wanted in set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return transformers.AutoModelForCausalLM
    if wanted in set(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()):
        return transformers.AutoModelForSeq2SeqLM
    if wanted.endswith(_ENCODERS) and isinstance(getattr(transformers, wanted, None), type):
        return getattr(transformers, wanted)  # an encoder alone, where AutoModel would build both
    return transformers.AutoModel


_ENCODERS = ("EncoderModel", "QuestionEncoder", "ContextEncoder")


def _skeleton(kind: Any, config: Any) -> Any:
    make = getattr(kind, "from_config", None) or kind._from_config
    with torch.device("meta"):
        return make(config)


def _check_takes_text(name: str, config: Any) -> None:
    """Refuse a model of images or sound, in words that say so."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None):
        return
    kind = type(config).__name__.removesuffix("Config")
    takes = (
        "images" if hasattr(config, "image_size") or hasattr(config, "patch_size") else "no text"
    )
    takes = (
        "sound" if any(hasattr(config, n) for n in ("num_mel_bins", "feat_extract_norm")) else takes
    )
    raise InputError(
        f"{name} ({kind}) takes {takes}: it has no vocabulary; give a model that reads text"
    )


def _is_pair(model: Any) -> bool:
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def check_files(files: ModelFiles) -> tuple[dict[str, Any], int]:
    """Look at a folder's config and tensors before any library does, its tokenizer's included.

    Returns
    -------
    config, held
        What config.json says, and how many numbers the files hold.

    Raises
    ------
    InputError
        Custom code, numbers that no model has, or a header that does not fit its file.
    """
    config = read_config(files.folder)
    shapes = [shape for path in files.weights for _, shape in read_header(path).values()]
    check_counts(files.name, config, max((max(shape, default=0) for shape in shapes), default=0))
    return config, sum(math.prod(shape) for shape in shapes)


def check_counts(name: str, config: Mapping[str, Any], largest: int) -> None:
    """Refuse counts and widths far beyond every tensor's, before the library makes anything.

    It makes lists, tables and modules of such lengths. Positions are no widths, and left out.

    Parameters
    ----------
    largest
        Along any axis of any tensor of the files.

    Raises
    ------
    InputError
        Names the setting, its number and what is believed.
    """
    limit = max(8 * largest, _LEAST_LIMIT)
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_counts(name, value, largest)
        elif isinstance(value, int) and value > limit and _COUNT.search(key):
            raise InputError(
                f"{name}: its config says {key[:80]} = {value}, its tensors are at most {largest} "
                f"wide: at most {limit} is believed"
            )


def check_size(name: str, make_skeleton: Any, held: int, dtype: torch.dtype) -> None:
    """Refuse a config that describes more numbers than the files hold, or than memory takes."""
    skeleton = guard(f"the config of {name}", make_skeleton)
    wanted = sum(parameter.numel() for parameter in skeleton.parameters())
    extra = sum(buffer.numel() * buffer.element_size() for buffer in skeleton.buffers())
    if wanted > 1.5 * held + _SPARE_PARAMETERS or extra > 1 << 30:
        raise InputError(
            f"{name}: its config describes {wanted} parameters, its files hold {held} numbers: "
            "they do not belong together"
        )
    needed, free = wanted * dtype.itemsize, room_bytes()
    if free is not None and needed > free:
        raise ResourceError(
            f"{name} in {str(dtype).removeprefix('torch.')} {compare(needed, free)}: "
            f"try --dtype bfloat16, or {cure()}"
        )


def max_positions(config: Any) -> int | None:
    """Return how many tokens a model has positions for; None where nothing bounds them.

    Models with relative positions (T5, ALiBi, XLNet) have no bound. RoBERTa's table begins with
    two rows that are never used.
    """
    kind = getattr(config, "model_type", "")
    if kind in _RELATIVE:
        return None
    if kind == "falcon" and getattr(config, "alibi", False):
        return None
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            unused = kind in {"roberta", "xlm-roberta", "camembert", "mpnet", "xmod", "longformer"}
            return value - (int(getattr(config, "pad_token_id", 1) or 0) + 1 if unused else 0)
    return None


def width_of(config: Any) -> int:
    """Return d_model; 0 where a config does not say."""
    return int(getattr(config, "hidden_size", 0) or getattr(config, "d_model", 0) or 0)


def count_layers(config: Any, which: str, n_calls: int) -> int:
    """Return how many layers a model has where ``n_calls`` of them attend in this way."""
    names = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"]
    if which == "encoder":
        names = ["encoder_layers", *names]
    elif getattr(config, "is_encoder_decoder", False):
        names = ["decoder_layers", "num_decoder_layers", *names]
    values = (getattr(config, name, None) for name in names)
    return next((int(v) for v in values if isinstance(v, int) and v >= n_calls), n_calls)
