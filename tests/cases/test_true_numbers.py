"""Cases in which a file's own numbers were lost on the way: right values, computed without attnviz."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("gguf", reason="needs the extra 'models'")

from support import SENTENCE, Result
from tiny_models import write_tokenizer

from attnviz.runs.batch.run import Request, run_batch

Cli = Callable[..., Result]
ENGINES = ("light", pytest.param("library", marks=pytest.mark.slow))  # converts and loads SmolLM2
pytestmark = [
    pytest.mark.usefixtures("own_cache", "one_thread"),
    pytest.mark.filterwarnings("ignore"),
]

LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [4.0, 6.0, 8.0, 16.0], "original_max_position_embeddings": 16, "factor": 8.0,
}  # fmt: skip
SHORT, LONG = "hello world bear hello world bear", " ".join(["hello bear world"] * 10)


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny Phi-3 whose rotary factors change at 16 tokens."""
    import torch
    import transformers

    config = transformers.Phi3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=128, original_max_position_embeddings=16,
        rope_parameters=LONG_ROPE, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Phi3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(16)
    folder = tmp_path_factory.mktemp("phi3")
    model.save_pretrained(str(folder))
    write_tokenizer(folder, bos=False)
    return folder, model


@pytest.mark.parametrize("engine", ["light", "library"])
def test_N1_a_text_has_the_same_rotary_factors_alone_and_beside_a_long_one(
    engine: str, phi3: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token's share, from eager attention over this text alone: layer by layer, head by head."""
    import torch

    folder, model = phi3
    ids = torch.tensor([[3, 4, 6, 3, 4, 6]])
    with torch.inference_mode():
        own = model(input_ids=ids, output_attentions=True).attentions
        as_long = model(
            input_ids=torch.tensor([ids[0].tolist() * 5]), output_attentions=True
        ).attentions
    wanted = np.array([w[0, :, :, 0].mean(-1).tolist() for w in own])
    wrong = np.array([w[0, :, :6, 0].mean(-1).tolist() for w in as_long])
    assert np.abs(wanted - wrong).max() > 0.01  # with the long text's factors it would show
    monkeypatch.chdir(tmp_path)
    Path("alone.txt").write_text(f"{SHORT}\n")
    Path("beside.txt").write_text(f"{LONG}\n{SHORT}\n")
    for name, text_id in (("alone", 0), ("beside", 1)):
        source = {"model": str(folder), "layer": "all", "engine": engine, "device": "cpu"}
        run_batch(Request((f"{name}.txt",), source, format="jsonl", engine="serial"), name)
        rows = [json.loads(line) for file in Path(name, "heads").iterdir() for line in file.open()]
        mine = {(r["layer"], r["head"]): r["first_share"] for r in rows if r["text_id"] == text_id}
        found = np.array([[mine[layer, head] for head in range(4)] for layer in range(2)])
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def rewritten(source: Path, target: Path, *, without: str = "", **more: Any) -> Path:
    """Write a GGUF file again, a tensor left out or keys added."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), "llama")
    for key, held in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = held.types[0]
        writer.add_key_value(
            key, held.contents(), kind, held.types[-1] if len(held.types) > 1 else None
        )
    for key, value in more.items():
        is_text = isinstance(value, str)
        kind = gguf.GGUFValueType.STRING if is_text else gguf.GGUFValueType.FLOAT32
        writer.add_key_value(key.replace("__", "."), value, kind)
    for tensor in reader.tensors:
        if tensor.name != without:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def weights_of(done: Result) -> Any:
    assert done.code == 0, done
    return np.array(json.loads(done.out)["stages"]["weights"][0][0], float)


@pytest.mark.parametrize("engine", ENGINES)
def test_N4_a_linear_rope_factor_in_a_file_turns_the_model(
    engine: str, smollm2: Path, tmp_path: Path, cli: Cli
) -> None:
    keys = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 8.0}
    path = rewritten(smollm2, tmp_path / "scaled.gguf", **keys)
    done = cli(
        "explain",
        SENTENCE,
        "--model",
        str(path),
        "--engine",
        engine,
        "-l",
        "0",
        "-H",
        "1",
        "-f",
        "json",
    )
    np.testing.assert_allclose(weights_of(done)[3, :4], [0.2128, 0.2931, 0.1839, 0.3103], atol=6e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_N6_a_file_without_a_tensor_is_refused_by_its_name(
    engine: str, smollm2: Path, tmp_path: Path, cli: Cli
) -> None:
    how = ("--engine", engine, "-l", "3", "-H", "0", "-f", "json")
    path = rewritten(smollm2, tmp_path / "less.gguf", without="blk.3.attn_q.weight")
    for more in ((), ("--verify",)):
        done = cli("explain", SENTENCE, "--model", str(path), *how, *more)
        assert done.code == 3, done
        assert "blk.3.attn_q.weight" in done.err or "layers.3.self_attn.q_proj.weight" in done.err
    whole = weights_of(cli("explain", SENTENCE, "--model", str(smollm2), *how))
    np.testing.assert_allclose(whole[1, :2], [0.9777, 0.0223], atol=6e-5)
