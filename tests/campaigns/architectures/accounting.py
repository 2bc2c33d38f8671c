"""Account for every tensor and setting of a folder: one is changed at a time, and both engines are asked.

A tensor that is taken away, or one that is added, must be refused by name unless it has no effect on
attention. A setting that is changed by one step must change the answer as it changes the library's own
model that is built of the original tensors, or be refused. The oracle is that model, in eager attention;
it reads no folder and shares nothing with ours.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sweep import CHANGES, apart, candidates, oracle, text_of, tiny_models
from tiny_models import write_tokenizer

from attnviz.errors import AttnvizError, InputError
from attnviz.records import LayerHeads
from attnviz.sources.families.binding import FAMILIES, bind, read_family
from attnviz.sources.families.engine import Engine
from attnviz.sources.families.settings import NotOurs
from attnviz.sources.families.weights import open_safetensors
from attnviz.sources.models.files import find_model, read_config
from attnviz.sources.models.library import load_transformers
from attnviz.sources.models.loading import wrap
from attnviz.sources.models.source import open_model

SAME = 1e-5
"""Largest difference of a weight from the oracle's."""
N_TOKENS, N_DECODER = 26, 7

ARCHITECTURES = (
    "albert", "apertus", "arcee", "bart", "bert", "bert-generation", "biogpt", "bitnet", "bloom", "camembert",
    "clip_text_model", "codegen", "cohere", "cohere2", "convbert", "ctrl", "data2vec-text", "deberta", "deberta-v2",
    "deepseek_v3", "distilbert", "electra", "ernie", "esm", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text",
    "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "helium",
    "ibert", "jamba", "layoutlm", "lfm2", "llama", "luke", "m2m_100", "mbart", "megatron-bert", "mistral", "mixtral",
    "modernbert", "mpnet", "mpt", "mt5", "nemotron", "olmo", "olmo2", "olmoe", "openai-gpt", "opt", "pegasus", "phi", "phi3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rembert", "roberta", "roformer", "smollm3", "stablelm", "starcoder2",
    "switch_transformers", "t5", "umt5", "xglm", "xlm", "xlm-roberta", "xlnet",
)  # fmt: skip


@dataclass
class Account:
    """What became of the changes to one architecture.

    Parameters
    ----------
    counts
        Kind of change → what came of it (``refused``, ``as the original``, ``no effect``) → how many;
        ``light`` in front where it was the light engine's answer.
    faults
        Changes after which an answer was another than the original's, each with its difference.
    """

    name: str
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str) -> None:
        found = self.counts.setdefault(kind, {})
        found[what] = found.get(what, 0) + 1


Answer = dict[str, list[Any]]
TEXT, DECODER = text_of(N_TOKENS, shift=3), text_of(N_DECODER, shift=5)


def theirs(model: Any) -> Answer:
    """Return the weights of a model's own eager attention: kind → (H, L, S) per layer."""
    loaded = wrap(model)
    pair = DECODER if loaded.is_encoder_decoder else None
    kinds = ("encoder", "self", "cross") if pair else ("self",)
    return {kind: oracle(loaded, TEXT, pair, kind) for kind in kinds}


def ours(folder: Path, kinds: list[str]) -> dict[str, list[LayerHeads]]:
    """Read a folder as a user's model is read, with the library."""
    first = open_model(folder)
    found: dict[str, list[LayerHeads]] = {}
    for kind in kinds:
        source = replace(first, which=kind)
        if source.loaded.is_encoder_decoder:
            source._written[TEXT.ids] = DECODER
        source.run(TEXT, source.layers, found.setdefault(kind, []).append)
    return found


def light(folder: Path) -> list[LayerHeads]:
    """Read a folder with the light engine alone, without its proof."""
    files = find_model(folder)
    family = read_family(read_config(files.folder))
    engine = Engine(family, bind(family, open_safetensors(files.weights)))
    if max(TEXT.ids) >= engine.n_rows() or len(TEXT) > (family.n_positions or len(TEXT)):
        raise InputError("more tokens than the model has vectors or positions for")
    got: list[LayerHeads] = []
    with np.errstate(all="ignore"):
        engine.run(TEXT.ids, range(family.n_layers), lambda _, heads: got.append(heads))
    return got


def off(mine: list[LayerHeads], wanted: list[Any]) -> float:
    """Return the largest difference of a weight; infinity for another number of layers."""
    if len(mine) != len(wanted):
        return float("inf")
    return max((apart(heads, w) for heads, w in zip(mine, wanted, strict=True)), default=0.0)


def asked(
    folder: Path, wanted: Answer | None, *, reads: Callable[[], dict[str, list[LayerHeads]]]
) -> tuple[str, float]:
    """Return what an engine says of a folder, and how far that is from the oracle's."""
    try:
        mine = reads()
    except NotOurs:
        return "refused", 0.0
    except AttnvizError as fault:
        if fault.exit_code == 70:
            return "crash", float("inf")
        return "refused", 0.0
    except Exception as fault:  # exit 70
        return f"crash: {type(fault).__name__}", float("inf")
    if wanted is None:
        return "answer", float("inf")
    return "answer", max(off(mine[kind], wanted[kind]) for kind in mine)


def build(name: str, kinds: dict[str, Any], **changes: Any) -> Any:
    for _, built in tiny_models(*kinds[name], **{**CHANGES.get(name, {}), **changes}):
        if isinstance(built, Exception):
            continue
        try:
            if all(theirs(built).values()):  # a hybrid of few layers may have no attention
                return built
        except (AttnvizError, RuntimeError, TypeError, ValueError):
            continue
    raise InputError(f"{name} was not built")


def account_for(name: str, kinds: dict[str, Any], folder: Path, *, every: int = 1) -> Account:
    """Change one tensor or setting after another, and compare.

    Parameters
    ----------
    every
        Take every n-th change only.
    """
    account = Account(name)
    model = build(name, kinds)
    plain = theirs(model)
    model.save_pretrained(str(folder))
    write_tokenizer(folder, bos=False)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    readers: dict[str, Callable[[], dict[str, list[LayerHeads]]]] = {
        "": lambda: ours(folder, list(plain))
    }
    one_kind = next(iter(plain))
    if config["model_type"] in FAMILIES:
        readers["light "] = lambda: {one_kind: light(folder)}

    def compare(what: str, label: str, wanted: Answer | None, unless: Iterable[str] = ()) -> None:
        """Ask every engine, and count what it says; no answer is right for the kinds ``unless``."""
        for who, reads in readers.items():
            of_decoder = who and "encoder" in plain and label.startswith(_OF_DECODER)
            said, away = asked(folder, plain if of_decoder else wanted, reads=reads)
            shown = {one_kind} if who else set(plain)
            if said == "refused":
                account.add(who + what, "refused")
            elif said == "answer" and not shown & set(unless) and away <= SAME:
                same = of_decoder or (wanted is not None and differs(wanted, plain) <= SAME)
                account.add(who + what, "no effect" if same else "as the original")
            else:
                account.faults.append(f"{who}{what}: {label} ({said}, off by {away:.1e})")

    compare("unchanged", "", plain)
    for refused in [
        who for who in readers if account.counts.get(f"{who}unchanged", {}).get("refused")
    ]:
        account.faults += [f"{refused}unchanged: refused"] if refused == "" else []
        del readers[refused]
    for label in [*tensors][::every]:
        kept = {k: v for k, v in tensors.items() if k != label}
        put(folder, {**kept, f"cls.{label}": tensors[label]})
        changed = changed_kinds(model, label, plain)
        compare("tensor renamed", label, plain, unless=changed)
    for label, values in [*additions(tensors)][::every]:
        put(folder, {**tensors, label: values})
        behind = {
            "pooler": set(),
            "decoder": set(plain) - {"encoder"},
        }  # T5's encoder alone is light
        unless = behind.get(label.partition(".")[0], set(plain))
        compare("tensor added", label, plain, unless=unless)
    put(folder, tensors)
    for label, changed in [*steps(config)][::every]:
        (folder / "config.json").write_text(json.dumps(changed))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = theirs(rebuilt(kinds[name], changed, model))
        except Exception:
            wanted = None
        if wanted is not None and not all(
            np.isfinite(w).all() for ws in wanted.values() for w in ws
        ):
            wanted = None
        compare("setting", label, wanted)
    return account


def put(folder: Path, tensors: dict[str, Any]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def differs(a: Answer, b: Answer) -> float:
    """Return the largest difference between two answers of the library's own."""
    if [len(w) for w in a.values()] != [len(w) for w in b.values()]:
        return float("inf")
    pairs = [(x, y) for kind in a for x, y in zip(a[kind], b[kind], strict=True)]
    return max(
        (float(np.abs(x - y).max()) if x.shape == y.shape else float("inf")) for x, y in pairs
    )


def changed_kinds(model: Any, label: str, plain: Answer) -> set[str]:
    """Return the kinds of attention that other numbers in a parameter change; all where it cannot be told."""
    if label not in model.state_dict():
        return set(plain)
    other = copy.deepcopy(model)
    values = dict(other.state_dict())[label]
    with torch.no_grad():
        values.copy_(values + torch.randn_like(values.float()).to(values.dtype))
    found = theirs(other)
    return {kind for kind in plain if differs({kind: found[kind]}, {kind: plain[kind]}) > 0}


def rebuilt(pair: Any, settings: dict[str, Any], model: Any) -> Any:
    """Build the library's own model of changed settings and the original tensors."""
    config = pair[0].from_dict(copy.deepcopy(settings))
    made = pair[1]._from_config(config, attn_implementation="eager")
    missing, unexpected = made.load_state_dict(model.state_dict(), strict=False)
    left = [key for key in (*missing, *unexpected) if not key.startswith("pooler.")]
    if left:
        raise ValueError(left[0])
    return made.eval().requires_grad_(False)


def additions(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield tensors that files have which the model does not ask for."""
    draw = np.random.default_rng(0).standard_normal
    layers = [label for label, w in tensors.items() if w.ndim == 2]
    for label in layers:
        stem = label.removesuffix(".weight")
        width = tensors[label].shape[0]
        more = {
            f"{stem}.bias": draw(width), f"{stem}.weight_scale_inv": draw((1, 1)),
            f"{stem}.weight_scale": draw(width), f"{stem}.lora_A.weight": draw((2, 2)),
            f"{stem}.base_layer.weight": tensors[label], f"{stem}_norm.weight": draw(width),
            f"{stem}.score.bias": draw(width), f"model.extra.{stem}.weight": tensors[label],
        }  # fmt: skip
        for name, values in more.items():
            if name not in tensors:
                yield name, np.asarray(values, np.float32)


def steps(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the config with one setting changed by one step, nested ones too."""
    for key, value in config.items():
        if key in _NO_STEP:
            continue
        if isinstance(value, dict):
            for label, changed in steps(value):
                yield f"{key}.{label}", {**config, key: changed}
            continue
        for other in _others(value):
            yield f"{key} {value!r} → {other!r}"[:100], {**config, key: other}


_OF_DECODER = ("is_encoder_decoder", "num_decoder_layers", "decoder_layers")
"""Settings of the decoder alone, which the light engine does not show."""
_NO_STEP = ("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "_name_or_path",
            "problem_type", "chunk_size_feed_forward", "task_specific_params")  # fmt: skip


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, *([value - 1] if value > 1 else []), *([2 * value] if value > 1 else [])]
    if isinstance(value, float):
        return [value * 1.5 if value else 0.5, *([0.01] if 0 < value < 1e-3 else [])]
    if value in ("silu", "gelu", "gelu_new", "relu", "gelu_pytorch_tanh"):
        return ["relu" if value != "relu" else "gelu"]
    if isinstance(value, list) and value:
        return [value[:-1], value[::-1]]
    return []


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers = load_transformers()
    kinds = {name: pair for name, *pair in candidates(transformers)}
    total, n_faults = Account("all"), 0
    for name in ARCHITECTURES:
        if arguments and not any(fnmatch(name, pattern) for pattern in arguments):
            continue
        with tempfile.TemporaryDirectory() as place:
            os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
            try:
                found = account_for(name, kinds, Path(place) / "model")
            except Exception as fault:
                found = Account(name, faults=[f"{type(fault).__name__}: {fault}"])
        print(json.dumps(asdict(found), ensure_ascii=False), flush=True)
        n_faults += len(found.faults)
        for kind, counted in found.counts.items():
            for what, n in counted.items():
                sums = total.counts.setdefault(kind, {})
                sums[what] = sums.get(what, 0) + n
    print(json.dumps(total.counts), f"{n_faults} faults", file=sys.stderr)
    return int(bool(n_faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
