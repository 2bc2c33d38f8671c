"""Weight files: every layout, dtype and order right, or one line that says what to do."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import Result

from attnviz.errors import InputError, UsageError, WeightsError
from attnviz.sources.files import open_arrays, plan_content
from attnviz.sources.layers.weights import load_layer

Cli = Callable[..., Result]


def save(
    path: Path, arrays: dict, metadata: dict[str, str] | None = None, dtypes: dict | None = None
) -> Path:
    from attnviz.runs.store import write_atomic, write_folder_atomic

    content = plan_content(path, arrays, metadata or {}, dtypes)
    if content.is_folder:
        return write_folder_atomic(path, content.writers)
    return write_atomic(path, content.writers[""])


def matrices(d_model: int = 6, width: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).standard_normal
    return {name: draw((d_model, width)) for name in ("w_q", "w_k", "w_v")}


ENDINGS = ("a.safetensors", "a.npz", "a")


@pytest.mark.parametrize("ending", ENDINGS)
def test_W1_every_memory_order_reads_back(tmp_path: Path, ending: str, cli: Cli) -> None:
    w = np.asfortranarray([[1.0, 2, 3], [4, 5, 6]])
    path = save(tmp_path / ending, {"f": w, "t": w.T, "step": w[:, ::2], "big": w.astype(">f4")})
    for target in ("b.npz", "c.safetensors", "d"):
        assert cli("weights", "convert", str(path), str(tmp_path / target)).code == 0
    for name in (ending, "b.npz", "c.safetensors", "d"):
        file = open_arrays(tmp_path / name)
        np.testing.assert_array_equal(file.read("f"), w)
        np.testing.assert_array_equal(file.read("t"), w.T)
        np.testing.assert_array_equal(file.read("step"), w[:, ::2])
        np.testing.assert_array_equal(file.read("big"), w)


def test_W1_a_column_major_npy_reads_right(tmp_path: Path) -> None:
    folder = tmp_path / "layer"
    folder.mkdir()
    w = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(folder / "w_q.npy", w)
    np.testing.assert_array_equal(open_arrays(folder).read("w_q"), w)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return (open, (str(self.marker), "w"))


def test_W3_objects_and_pickles_are_refused(tmp_path: Path, cli: Cli) -> None:
    marker = tmp_path / "executed"
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1, 2], [3]]
    poisoned = np.empty(1, dtype=object)
    poisoned[0] = Bomb(marker)
    np.savez(tmp_path / "ragged.npz", W_Q=ragged)
    np.savez(tmp_path / "evil.npz", W_Q=poisoned)
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Bomb(marker)))
    for name in ("ragged.npz", "evil.npz", "evil.pt"):
        done = cli("explain", "a", "-w", str(tmp_path / name))
        assert done.code == 3
        assert name in done.err
        assert len(done.err.splitlines()) == 1
        if name.endswith("npz"):
            assert "W_Q" in done.err
    assert not marker.exists()


def test_W3_a_pickle_inside_a_torch_archive_is_not_run(tmp_path: Path, cli: Cli) -> None:
    marker = tmp_path / "executed"
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"w": Bomb(marker)}, protocol=2))
        archive.writestr("evil/version", "3\n")
        archive.writestr("evil/byteorder", "little")
    done = cli("explain", "a", "-w", str(tmp_path / "evil.pt"))
    assert done.code == 3
    assert not marker.exists()


BF16 = {0x3F80: 1.0, 0x4049: 3.140625, 0xBEAA: -0.33203125, 0x0001: 9.183549615799121e-41,
        0x7F7F: 3.3895313892515355e38}  # fmt: skip


def test_W5_bfloat16_is_read_exactly(tmp_path: Path, cli: Cli) -> None:
    bits = np.array(list(BF16), dtype="<u2")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}}).encode()
    path = tmp_path / "bf16.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    np.testing.assert_array_equal(
        open_arrays(path).read("w"), np.array(list(BF16.values()), np.float32)
    )
    assert cli("weights", "convert", str(path), str(tmp_path / "wide.npz")).code == 0
    np.testing.assert_array_equal(
        open_arrays(tmp_path / "wide.npz").read("w"), np.array(list(BF16.values()), np.float32)
    )
    assert cli("weights", "convert", str(path), str(tmp_path / "same.safetensors")).code == 0
    assert open_arrays(tmp_path / "same.safetensors").entries["w"].dtype == "BF16"


def test_W7_interleaved_qkv(tmp_path: Path) -> None:
    rows = np.array([[1.0, 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 2]])
    x = np.array([3.0, 5])
    fused = save(tmp_path / "neox.npz", {"attention.query_key_value.weight": rows})
    layer = load_layer(fused, n_heads=2).layer
    assert [list(x @ w) for w in (layer.w_q, layer.w_k, layer.w_v)] == [[3, 6], [5, 10], [8, 16]]
    blocks = save(tmp_path / "gpt2.npz", {"h.0.attn.c_attn.weight": rows.T.copy()})
    layer = load_layer(blocks, n_heads=2).layer
    assert [list(x @ w) for w in (layer.w_q, layer.w_k, layer.w_v)] == [[3, 5], [8, 6], [10, 16]]
    with pytest.raises(WeightsError, match="--n-heads"):
        load_layer(fused)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "layers.0.self_attn.", "model.layers.0.self_attn.", "h.0.attn."]
)
def test_linear_layers_are_transposed(tmp_path: Path, prefix: str) -> None:
    w = matrices()
    linear = {f"{prefix}{n}_proj.weight": w[f"w_{n}"].T for n in "qkv"}
    layer = load_layer(save(tmp_path / "a.safetensors", linear), n_heads=2).layer
    for name, values in w.items():
        np.testing.assert_array_equal(getattr(layer, name), values)
    assert (layer.n_heads, layer.d_k) == (2, 2)


def test_separate_heads_and_capitals(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).standard_normal
    parts = {f"blocks.0.attn.W_{n}": draw((3, 6, 2)) for n in "QKV"}
    layer = load_layer(save(tmp_path / "tl.npz", parts)).layer
    assert (layer.n_heads, layer.d_k) == (3, 2)
    np.testing.assert_array_equal(layer.w_q[:, 2:4], parts["blocks.0.attn.W_Q"][1])


def test_multihead_module_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(module.in_proj_bias)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    output, weights = module(x, x, x, average_attn_weights=False)
    torch.save(module.state_dict(), tmp_path / "mha.pt")
    layer = load_layer(tmp_path / "mha.pt", n_heads=2).layer
    from attnviz.core import reference
    from attnviz.records import LayerHeads

    parts = [
        reference.project(
            x[0].numpy(), getattr(layer, f"w_{n}"), getattr(layer, f"b_{n}"), n_heads=2
        )
        for n in "qkv"
    ]
    traced = reference.trace_heads(LayerHeads(*parts, layer.scale))
    np.testing.assert_allclose(traced["weights"], weights[0].detach().numpy(), atol=1e-12)
    joined = traced["output"].transpose(1, 0, 2).reshape(5, 8) @ layer.w_o + layer.b_o
    np.testing.assert_allclose(joined, output[0].detach().numpy(), atol=1e-12)


def test_transformer_encoder_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    loaded = load_layer(tmp_path / "encoder.pt", layer=2, n_heads=2)
    assert loaded.n_layers == 3
    expected = encoder.layers[2].self_attn.in_proj_weight[:8].detach().numpy().T
    np.testing.assert_array_equal(loaded.layer.w_q, expected)
    with pytest.raises(UsageError, match="layer 3 does not exist"):
        load_layer(tmp_path / "encoder.pt", layer=3)


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_M7_nan_and_inf_are_named(tmp_path: Path, name: str, value: float) -> None:
    w = matrices()
    w[name][2, 1] = value
    with pytest.raises(WeightsError, match=rf"{name}\[2, 1\] is {str(value).replace('+', '')}"):
        load_layer(save(tmp_path / "a.npz", w))


def test_W_s3_names_found_and_wanted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", *matrices().values())
    with pytest.raises(
        WeightsError, match=r"w_q, w_k and w_v not found among arr_0, arr_1, arr_2.*w_q \(D"
    ):
        load_layer(tmp_path / "a.npz")


def test_doubtful_names_are_refused(tmp_path: Path) -> None:
    w = matrices()
    path = save(tmp_path / "a.npz", {**w, "q_proj.weight": w["w_q"].T})
    with pytest.raises(WeightsError, match=r"both w_q and q_proj\.weight"):
        load_layer(path)


SIZES = (1, 2, 3, 7, 64)


def test_every_shape_is_right_or_refused_by_us(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shapes in itertools.product(itertools.product((2, 7), SIZES), repeat=3):
        if rng.random() > 0.25:
            continue
        arrays = dict(
            zip(("w_q", "w_k", "w_v"), (np.ones(s, np.float32) for s in shapes), strict=True)
        )
        path = tmp_path / "a.safetensors"
        save_file(arrays, path)
        (d_q, e_q), (d_k, e_k), (d_v, _) = shapes
        fits = d_q == d_k == d_v and e_q == e_k
        if fits:
            assert load_layer(path).layer.d_k == e_q
        else:
            with pytest.raises(WeightsError):
                load_layer(path)


def test_empty_axes_are_refused(tmp_path: Path) -> None:
    for shape in ((6, 0), (0, 4)):
        with pytest.raises(WeightsError, match="empty"):
            load_layer(
                save(
                    tmp_path / f"a{shape[0]}.npz",
                    {n: np.zeros(shape) for n in ("w_q", "w_k", "w_v")},
                )
            )


def test_a_vocabulary_of_words(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "mine.safetensors"
    assert (
        cli(
            "weights", "new", str(path), "--d-model", "8", "--d-k", "4", "--words", "a,teddy,bear"
        ).code
        == 0
    )
    data = json.loads(cli("explain", "A Teddy bear", "-w", str(path), "-f", "json").out)
    assert [t["id"] for t in data["tokens"]] == [0, 1, 2]
    missing = cli("explain", "A zebra", "-w", str(path))
    assert missing.code == 3
    assert "'zebra'" in missing.err


def test_an_embedding_needs_a_vocabulary(tmp_path: Path) -> None:
    from attnviz.core.reference import project
    from attnviz.sources.layers.weights import open_weights

    path = save(tmp_path / "a.npz", {**matrices(), "embedding": np.ones((5, 6))})
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_weights(str(path), project=project)


def test_a_tokenizer_beside_the_file(tmp_path: Path, cli: Cli) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "teddy": 1, "bear": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    tokenizer.save(str(tmp_path / "a.tokenizer.json"))
    path = save(tmp_path / "a.npz", {**matrices(), "embedding": np.eye(3, 6)})
    done = cli("explain", "teddy 💩 bear", "-w", str(path), "-f", "json")
    data = json.loads(done.out)
    assert [t["id"] for t in data["tokens"]] == [1, 0, 2]
    assert data["tokens"][1]["label"] == "💩"
    short = save(tmp_path / "b.npz", {**matrices(), "embedding": np.eye(2, 6)})
    (tmp_path / "a.tokenizer.json").rename(tmp_path / "b.tokenizer.json")
    assert cli("explain", "bear", "-w", str(short)).code == 3


def test_files_without_an_embedding_say_so(tmp_path: Path, cli: Cli) -> None:
    path = save(tmp_path / "a.npz", matrices())
    done = cli("explain", "a b", "-w", str(path))
    assert done.code == 0
    assert "no embedding" in done.err


def test_W_s5_and_devices(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = {n: torch.from_numpy(v) for n, v in matrices().items()}
    torch.save(w, tmp_path / "a.pt")
    np.testing.assert_array_equal(load_layer(tmp_path / "a.pt").layer.w_q, w["w_q"].numpy())


def hostile_files(folder: Path) -> dict[str, Path]:
    """Write files that lie about their size, or end too soon."""
    good = save(folder / "good.npz", matrices())
    zeros = folder / "bomb.npz"
    with (
        zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("w_q.npy", "w") as member,
    ):
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 27,)}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(64):
            member.write(bytes(16 << 20))
    huge = folder / "huge"
    huge.mkdir()
    with (huge / "w_q.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 32,)}
        )
    doubled = folder / "double.safetensors"
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    doubled.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    long = folder / "long.safetensors"
    long.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    (folder / "cut.npz").write_bytes(good.read_bytes()[:200])
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "noise.pt").write_bytes(bytes(range(256)) * 8)
    names = (
        "bomb.npz",
        "huge",
        "double.safetensors",
        "long.safetensors",
        "cut.npz",
        "empty.safetensors",
        "noise.pt",
    )
    return {name: folder / name for name in names}


def test_hostile_files_are_refused_within_bounds(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (512 << 20,) * 2)\n"
        "from attnviz.cli.main import run_guarded\n"
        "sys.exit(run_guarded(['explain', 'a', '-w', sys.argv[1]]))"
    )
    for name, path in hostile_files(tmp_path).items():
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, timeout=20, check=False,
            env={"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 3, (name, done.stderr)
        assert done.stderr.count(b"\n") == 1, name


@pytest.mark.parametrize("ending", ENDINGS)
def test_show_and_convert(tmp_path: Path, ending: str, cli: Cli) -> None:
    path = save(tmp_path / ending, matrices(), {"n_heads": "2", "origin": "[red]\x1b[2J"})
    done = cli("weights", "show", str(path))
    assert done.code == 0
    assert "\x1b" not in done.out
    data = json.loads(cli("weights", "show", str(path), "-f", "json").out)
    assert data["sizes"]["n_heads"] == 2
    assert {t["role"] for t in data["tensors"]} == {"w_q", "w_k", "w_v"}
    kept = cli("weights", "convert", str(path), str(path))
    assert kept.code == 2
    assert "--force" in kept.err


def test_show_says_why_a_file_is_no_layer(tmp_path: Path, cli: Cli) -> None:
    path = save(tmp_path / "a.npz", {"something": np.ones(3)})
    done = cli("weights", "show", str(path))
    assert done.code == 0
    assert "not a layer" in done.out
