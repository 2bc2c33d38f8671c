"""Model folders: config.json, and the other small files beside the weights, of several families.

Read as ``model show`` and every command with ``--model`` read them: the card, then the model
built, a text cut, and one layer after the other run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.drawing import VALUES, change_bytes, change_json, change_number, often
from fuzz.kinds import Kind

_SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
_PAIR = {"d_model": 32, "vocab_size": 60, "pad_token_id": 0, "eos_token_id": 2,
         "decoder_start_token_id": 0, "is_encoder_decoder": True}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_GROUPED, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
              "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "float32",
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "bert": {**_SIZES, "model_type": "bert", "architectures": ["BertModel"],
             "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 60,
             "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "bos_token_id": 1,
             "eos_token_id": 2, "activation_function": "gelu_new"},
    "gemma2": {**_GROUPED, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"],
               "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
               "layer_types": ["sliding_attention"]},
    "mixtral": {**_GROUPED, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": None},
    "t5": {**_PAIR, "model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
           "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
           "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16},
    "bloom": {"model_type": "bloom", "architectures": ["BloomModel"], "vocab_size": 60,
              "hidden_size": 32, "n_layer": 1, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
}  # fmt: skip
MORE_FIELDS = (
    "rope_scaling", "rope_parameters", "rope_theta", "head_dim", "sliding_window", "layer_types",
    "attention_bias", "hidden_act", "dtype", "torch_dtype", "text_config", "quantization_config",
    "pretraining_tp", "pad_token_id", "rms_norm_eps", "initializer_range", "num_experts",
    "tie_word_embeddings", "attention_dropout", "auto_map", "is_encoder_decoder", "vision_config",
    "model_type", "architectures", "problem_type", "num_labels", "id2label", "use_cache",
    "max_window_layers", "sliding_window_pattern", "pruned_heads", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "add_cross_attention", "is_decoder", "attn_implementation",
    "_attn_implementation", "return_dict", "output_attentions", "output_hidden_states",
    "partial_rotary_factor", "attention_chunk_size", "n_ctx", "n_inner", "scale_attn_weights",
    "position_embedding_type", "transformers_version", "_name_or_path", "base_model_tp_plan",
    "base_model_ep_plan", "base_model_pp_plan", "generation_config", "torchscript", "pruned_heads",
    "num_key_value_heads", "mlp_bias", "attn_logit_softcapping", "max_position_embeddings",
)  # fmt: skip
CONFIG_VALUES: tuple[Any, ...] = (
    *VALUES, "llama", "mistral", "mamba", "bert", "qwen2", "phi3", "gpt_neox", "t5", "clip", "no_such",
    "linear", "yarn", "dynamic", "longrope", "llama3", {"rope_type": "yarn", "factor": 1e30},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, {"type": "dynamic", "factor": 0},
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
     "original_max_position_embeddings": 0, "rope_theta": 1e4},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [], "rope_theta": 1.0},
    {"rope_type": "default", "rope_theta": 0.0}, {"rope_type": "default", "rope_theta": 1e-30},
    "float64", "bfloat16", "float8_e4m3fn", "int8", "auto", {"quant_method": "gptq", "bits": 4},
    {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "fp8"},
    {"auto_map": {"AutoModel": "a.B"}}, {"AutoModel": "a.B"}, "flash_attention_2", "sdpa", "eager",
    "gelu", "relu", "silu", "softmax", "ClassInstantier", ["full_attention"], ["full_attention"] * 2,
    ["linear_attention", "sliding_attention"], ["full_attention"] * 5000, {"0": [0, 1]}, {"0": "x"},
    {"layers.*": "colwise"}, {"model_type": "llama"}, {"hidden_size": 1 << 16},
)  # fmt: skip
_INDEX = {
    "metadata": {"total_size": 1},
    "weight_map": {"model.embed_tokens.weight": "model.safetensors"},
}
_TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "unk_token": "<unk>",
    "model_max_length": 32, "added_tokens_decoder": {
        "0": {"content": "<unk>", "special": True, "lstrip": False},
        "1": {"content": "<s>", "special": True}, "2": {"content": "</s>", "special": True}},
    "clean_up_tokenization_spaces": False, "padding_side": "left",
}  # fmt: skip
_TOKENIZER_VALUES: tuple[Any, ...] = (
    *VALUES, "LlamaTokenizer", "BertTokenizer", "GPT2TokenizerFast", "T5Tokenizer", "TokenizersBackend",
    "XLMRobertaTokenizer", {"AutoTokenizer": ["a.B", None]}, "<s>", "</s>", ["<s>"], {"content": "<s>"},
    {"__type": "AddedToken", "content": "q", "special": True}, "{{ 1/0 }}", "a" * 100_000,
)  # fmt: skip
_GENERATION = {"bos_token_id": 1, "eos_token_id": 2, "max_length": 20, "do_sample": False}


def make(draw: random.Random) -> Mapping[str, bytes]:
    """Damage one of the files of one family's folder, its config.json most of the time."""
    family = draw.choice(tuple(FAMILIES)) if draw.random() < 0.7 else "llama"
    which = draw.random()
    if which < 0.82:
        return {f"{family}/config.json": encode(change_config(FAMILIES[family], draw), draw)}
    if which < 0.86:
        name, value, values = "model.safetensors.index.json", _INDEX, VALUES
    elif which < 0.95:
        name, value, values = "tokenizer_config.json", _TOKENIZER_CONFIG, _TOKENIZER_VALUES
    elif which < 0.98:
        name, value, values = "generation_config.json", _GENERATION, CONFIG_VALUES
    else:
        name, value, values = "special_tokens_map.json", {"bos_token": "<s>"}, _TOKENIZER_VALUES
    made: Any = dict(value)
    if name == "model.safetensors.index.json" and draw.random() < 0.5:
        shards = ("../../etc/passwd", "/etc/passwd", "model-1.safetensors", "a/../b.safetensors",
                  "model.safetensors\0", ".safetensors", "..safetensors", "model.safetensors")  # fmt: skip
        made["weight_map"] = {f"w{i}": draw.choice(shards) for i in range(draw.randint(0, 3))}
    else:
        for _ in often(draw):
            made = change_json(made, draw, values)
    return {f"{family}/{name}": encode(made, draw)}


def change_config(
    sound: dict[str, Any],
    draw: random.Random,
    fields: Sequence[str] = MORE_FIELDS,
    values: tuple[Any, ...] = CONFIG_VALUES,
) -> Any:
    """Return a config with a few settings added, changed or lost."""
    made: Any = dict(sound)
    for _ in often(draw):
        change = draw.random()
        if not isinstance(made, dict):
            break
        if change < 0.35:
            made[draw.choice(fields)] = draw.choice(values)
        elif change < 0.6:  # a number that could well be meant
            numbers = [key for key, value in made.items() if type(value) in (int, float)]
            key = draw.choice(numbers or ["vocab_size"])
            old = made.get(key, 1)
            near = change_number(old, draw) if type(old) is int else old * 10
            made[key] = draw.choice((old * 2, old // 2, old + 1, near))
        else:
            made = change_json(made, draw, values)
    return made


def encode(value: Any, draw: random.Random) -> bytes:
    """Return JSON, at times damaged, nested deep, or with every key twice."""
    data = json.dumps(value).encode()
    change = draw.random()
    if change < 0.06:
        return change_bytes(data, draw)
    if change < 0.08:
        deep = draw.choice((60, 70, 1000, 100_000))
        return b'{"a":' * deep + b"1" + b"}" * deep
    if change < 0.1:  # every key twice
        return data[:-1] + b"," + data[1:] if len(data) > 2 else data
    return data


@cache
def _libraries() -> Any:
    from attnviz.sources.models.library import load_transformers

    return load_transformers()


def prepare(folder: Path) -> None:
    """Make a whole tiny model of every family."""
    import torch
    from tiny_models import write_tokenizer

    torch.set_num_threads(1)
    transformers = _libraries()
    for name, settings in FAMILIES.items():
        torch.manual_seed(0)
        place = folder / name
        kind = getattr(transformers, settings["architectures"][0])
        kind(transformers.AutoConfig.for_model(**settings)).save_pretrained(place)
        (place / "config.json").write_text(json.dumps(settings))
        write_tokenizer(place)
        read(folder, {f"{name}/config.json": b""})


def read(folder: Path, files: Mapping[str, bytes]) -> object:
    """Read the folder that the files lie in."""
    from attnviz.errors import InputError
    from attnviz.sources.models.card import model_card
    from attnviz.sources.models.source import open_model

    place = folder / next(iter(files)).partition("/")[0]
    with suppress(InputError):  # what the card refuses is given as a model all the same
        model_card(place)
    source = open_model(place)
    tokens = source.tokenize("hello world !")
    seen: list[Any] = []
    source.run(tokens, source.layers, seen.append)
    assert len(seen) == len(source.layers), "a layer was lost"
    assert source.info.n_heads > 0
    return seen


KIND = Kind(make, read, prepare, room_bytes=2 << 30)
