"""A model's config as a family knows it: every key known, or the model is left to the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from attnviz.sources.families.parts import ACTIVATIONS

INERT = frozenset((
    "architectures", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype",
    "dtype", "model_type", "initializer_range", "initializer_factor", "use_cache",
    "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "unk_token_id",
    "mask_token_id", "decoder_start_token_id", "is_encoder_decoder", "id2label", "label2id",
    "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate",
    "gradient_checkpointing", "pretraining_tp", "keys_to_ignore_at_inference",
    "tokenizer_class", "torchscript", "use_bfloat16", "language", "chunk_size_feed_forward",
    "tie_encoder_decoder", "classifier_dropout", "attention_dropout", "hidden_dropout",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop",
    "attn_pdrop", "dropout", "embedding_dropout", "residual_dropout", "qa_dropout",
    "seq_classif_dropout", "dropout_rate", "classifier_pooling", "classifier_bias",
    "classifier_activation", "summary_type", "summary_use_proj", "summary_activation",
    "summary_last_dropout", "summary_first_dropout", "summary_proj_to_labels",
    "cache_implementation", "_attn_implementation_autoset", "attn_implementation",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "output_past",
    "prefix", "temperature", "top_k", "top_p", "do_sample", "max_length", "min_length",
    "num_beams", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "early_stopping", "remove_invalid_values", "diversity_penalty", "num_beam_groups",
    "num_return_sequences", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
    "typical_p", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "output_scores", "sparse_prediction",
    "sparse_pred_ignore_index", "deterministic_flash_attn", "reference_compile",
    "repad_logits_with_grad", "initializer_cutoff_factor", "decoder_bias", "mlp_dropout",
    "transformers.js_config", "unsloth_version", "unsloth_fixed", "n_ctx",
))  # fmt: skip
"""Keys that change nothing of a forward pass over one text, in any family here."""

_OFF = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "use_bidirectional_attention": False,
    "sinusoidal_pos_embds": False,
    "clip_qkv": None,
    "quantization_config": None,
    "per_layer_config": None,
    "pruned_heads": {},
    "cross_attention_hidden_size": None,
}
"""Keys that are understood only where they say nothing."""


class NotOurs(Exception):
    """This model is not run here; the reason names the key, number or tensor that is unknown."""


class Lacks(NotOurs):
    """A tensor of the architecture is missing."""


def read_settings(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> SimpleNamespace:
    """Read a config by a family's keys.

    Parameters
    ----------
    config
        As ``config.json`` has it.
    defaults
        Every key the family knows, with what the library takes where it is absent.

    Raises
    ------
    NotOurs
        A key that is neither known nor inert, or a value of another kind than the default's.
    """
    for key, value in config.items():
        if key in defaults or key in INERT:
            continue
        if key in _OFF and (not value or value == _OFF[key]):
            continue
        if key == "quantization_config" and _is_fp8(value):
            continue
        raise NotOurs(f"config.json says {key[:80]} = {str(value)[:40]}, which is not known here")
    found = {}
    for key, default in defaults.items():
        value = config.get(key, default)
        if key == "eos_token_id":  # one or several
            found[key] = value
            continue
        if value is None and isinstance(default, int | str) and not isinstance(default, bool):
            value = default
        if default is not None and value is not None and not _is_like(value, default):
            raise NotOurs(f"config.json says {key} = {str(value)[:40]}, which is no {key}")
        found[key] = value
    return SimpleNamespace(**found)


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_whole = isinstance(value, int) or (is_number and value.is_integer())
        return is_number and (isinstance(default, float) or is_whole)
    return isinstance(value, type(default))


def _is_fp8(value: Any) -> bool:
    """True where weights are 8-bit floats with scales beside them, which ``weights`` reads."""
    return isinstance(value, Mapping) and value.get("quant_method") == "fp8"


def read_scale_block(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many rows and columns of 8-bit floats share a scale; the library's, if not said.

    Raises
    ------
    NotOurs
        No pair of sizes.
    """
    told = (config.get("quantization_config") or {}).get("weight_block_size") or [128, 128]
    if not isinstance(told, list) or len(told) != 2:
        raise NotOurs(f"weight_block_size = {str(told)[:40]} is no pair of sizes")
    check_sizes(rows_of_a_block=told[0], columns_of_a_block=told[1])
    return told[0], told[1]


def check_activation(name: Any) -> str:
    """Return an activation's name.

    Raises
    ------
    NotOurs
        One that ``parts`` does not have.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise NotOurs(f"the activation {str(name)[:40]!r} is not known here")
    return name


def check_sizes(**sizes: Any) -> None:
    """Refuse counts and widths that are not positive whole numbers.

    Raises
    ------
    NotOurs
        Names the first.
    """
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise NotOurs(f"{name} = {str(value)[:40]} is no size")


def check_experts(n_experts: int) -> int:
    """Return a number of experts.

    Raises
    ------
    NotOurs
        More than any model has: names are made for each of them.
    """
    if n_experts > 1024:
        raise NotOurs(f"{n_experts} experts: at most 1024 are read")
    return n_experts


def table(value: Any) -> dict[str, Any]:
    """Return a config's table, empty where it has none.

    Raises
    ------
    NotOurs
        It is no table.
    """
    if value is not None and not isinstance(value, Mapping):
        raise NotOurs(f"{str(value)[:40]} where a table is expected")
    return dict(value or {})


def check_layers(what: str, values: Any, n_layers: int, allowed: Iterable[Any]) -> list[Any]:
    """Return one value per layer out of those allowed.

    Raises
    ------
    NotOurs
        Too few, or one that is not known.
    """
    choices = list(allowed)
    if not isinstance(values, list) or len(values) < n_layers:
        raise NotOurs(f"{what} does not say what each of {n_layers} layers is")
    for value in values[:n_layers]:
        if value not in choices:
            raise NotOurs(f"{what} says {str(value)[:40]}, which is not known here")
    return values[:n_layers]


FULL, SLIDING = "full_attention", "sliding_attention"


def read_window(value: Any) -> int | None:
    """Return a window of at least one key, or None.

    Raises
    ------
    NotOurs
        A window of no keys, or no number.
    """
    if value is None:
        return None
    check_sizes(sliding_window=value)
    return int(value)
