"""Reported trouble cases, each as its user met it: through the command line, with its right values.

The parts of a case that need more than the command line are tested where they belong, under the
same id.
"""

from __future__ import annotations

import csv
import io
import json
import re
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import SENTENCE, Result, rounding_of, run_fresh
from tiny_models import write_model

Cli = Callable[..., Result]
BASE = np.array([[1.0, 0], [0, 1], [1, 1]])
BASE_WEIGHTS = [
    [0.4011121, 0.1977758, 0.4011121], [0.1977758, 0.4011121, 0.4011121],
    [0.2482551, 0.2482551, 0.5034898],
]  # fmt: skip
BASE_OUTPUT = [[0.8022242, 0.5988879], [0.5988879, 0.8022242], [0.7517449, 0.7517449]]
CAUSAL_WEIGHTS = [[1, 0, 0], [0.3302385, 0.6697615, 0], [0.2482551, 0.2482551, 0.5034898]]
CAUSAL_OUTPUT = [[1, 0], [0.3302385, 0.6697615], [0.7517449, 0.7517449]]


def write_layer(path: Path, x: Any, w_q: Any, w_k: Any, w_v: Any, **more: Any) -> str:
    """Write a layer whose words are a, b, c … with the rows of x as their vectors."""
    words = [chr(ord("a") + i) for i in range(len(x))]
    np.savez(
        path, w_q=w_q, w_k=w_k, w_v=w_v, embedding=np.asarray(x), vocab=np.array(words), **more
    )
    return str(path)


def told(cli: Cli, *arguments: str) -> Any:
    """Run a command and return its JSON, read as strictly as RFC 8259 asks."""
    done = cli(*arguments, "-f", "json")
    assert done.code == 0, done.err

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(done.out, parse_constant=fail)


def stage(found: Any, name: str, head: int = 0) -> Any:
    return np.array(found["stages"][name][0][head], float)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return write_layer(tmp_path / "base.npz", BASE, *[np.eye(2)] * 3)


@pytest.fixture
def even(tmp_path: Path) -> str:
    """Scores of 0, and the identity as values."""
    return write_layer(tmp_path / "even.npz", np.eye(5), *[np.zeros((5, 2))] * 2, np.eye(5))


def test_M1_base_as_it_is_and_causal(cli: Cli, base: str) -> None:
    for more, weights, output in (
        ((), BASE_WEIGHTS, BASE_OUTPUT), (("--causal",), CAUSAL_WEIGHTS, CAUSAL_OUTPUT),
    ):  # fmt: skip
        found = told(cli, "explain", "a b c", "-w", base, *more)
        np.testing.assert_allclose(stage(found, "weights"), weights, atol=1e-6)
        np.testing.assert_allclose(stage(found, "output"), output, atol=1e-6)


def test_M1_float16_adds_no_large_negative_numbers(cli: Cli, base: str) -> None:
    """Masks are combined as booleans: half precision has no −65504−65504 to overflow."""
    found = told(
        cli, "explain", "a b c", "-w", base, "--causal", "--window", "1", "--dtype", "float16"
    )
    np.testing.assert_array_equal(stage(found, "weights"), np.eye(3))


def test_M3_the_mask_s_meaning_and_the_keys_per_query_are_told(cli: Cli, even: str) -> None:
    found = told(cli, "explain", "a b c", "-w", even, "--causal")
    third = 1 / 3
    expected = [[1, 0, 0], [0.5, 0.5, 0], [third, third, third]]
    np.testing.assert_allclose(stage(found, "weights"), expected, atol=1e-12)
    assert found["visible"][0][0] == [[True, False, False], [True, True, False], [True, True, True]]
    screen = cli("explain", "a b c", "-w", even, "--causal").out
    assert "Keys each query may see: 1, 2, 3" in screen


def test_M5_the_root_of_the_head_s_width_divides_and_is_printed(cli: Cli, tmp_path: Path) -> None:
    """d_model 512, 8 heads of 64: scores 16 and 8 become 2 and 1."""
    w_q, w_k = np.zeros((512, 512)), np.zeros((512, 512))
    w_q[0, 0], w_k[0, 0], w_k[1, 0] = 4, 4, 2
    path = write_layer(
        tmp_path / "a.npz", np.eye(2, 512), w_q, w_k, np.eye(512), n_heads=np.array("8")
    )
    found = told(cli, "explain", "a b", "-w", path)
    np.testing.assert_array_equal(stage(found, "scores")[0], [16, 8])
    np.testing.assert_array_equal(stage(found, "scaled")[0], [2, 1])
    np.testing.assert_allclose(stage(found, "weights")[0], [0.7310586, 0.2689414], atol=1e-7)
    assert re.search(r"√d_k = √64 = 8\b|÷ 8\b|√64", cli("explain", "a b", "-w", path).out)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_M7_a_number_that_is_none_is_named_with_its_place(
    cli: Cli, tmp_path: Path, bad: float
) -> None:
    w_k = np.eye(2)
    w_k[1, 0] = bad
    path = write_layer(tmp_path / "a.npz", BASE, np.eye(2), w_k, np.eye(2))
    done = cli("explain", "a b c", "-w", path)
    assert done.code == 3
    assert f"a.npz: w_k[1, 0] is {bad}" in done.err


def test_M9_one_seed_draws_one_set_of_matrices(cli: Cli) -> None:
    wanted = told(cli, "explain", SENTENCE, "-w", "random", "--seed", "10")
    for more in (("--device", "cpu"), ("--dtype", "float32"), ("--d-model", "512", "--d-k", "64")):
        found = told(cli, "explain", SENTENCE, "-w", "random", "--seed", "10", *more)
        assert found["source"]["sha256"] == wanted["source"]["sha256"]
    other = told(cli, "explain", SENTENCE, "-w", "random", "--seed", "11")
    assert other["source"]["sha256"] != wanted["source"]["sha256"]


def test_P_s1_six_tokens_and_24_steps_stack_to_29_causal_rows(tmp_path: Path) -> None:
    """The library returns 6 × 6, then 1 × 7, 1 × 8, …: together they are our rows."""
    transformers = pytest.importorskip("transformers", reason="needs the extra 'models'")
    import torch

    from attnviz.runs.generate import generate

    folder = write_model(tmp_path / "tiny", eos_token_id=59)
    found = generate(
        "hello world bear hello !", model=str(folder), engine="library", n=24, layer="1", head="2"
    )
    assert (found.n_prompt, len(found.trace.tokens)) == (6, 30)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    prompt = torch.tensor([list(found.trace.tokens.ids[:6])])
    with torch.inference_mode():
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False,
            output_attentions=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    rows = np.zeros((29, 29))
    for step, layers in enumerate(made.attentions):
        part = layers[1][0, 2].numpy()
        rows[(0 if not step else 5 + step) : 6 + step, : part.shape[-1]] = part
    weights = found.trace.stages["weights"][0, 0]
    assert made.sequences[0].tolist() == list(found.trace.tokens.ids)
    allowed = rounding_of(found.trace.stages["masked"])
    np.testing.assert_allclose(weights[:29, :29], rows, rtol=0, atol=allowed)
    assert len(found.trace.tokens.labels) == 30
    assert all(found.trace.tokens.labels)


def test_P5_a_window_counts_the_query_and_0_is_none(cli: Cli, even: str) -> None:
    third = 1 / 3
    rows = [
        [1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [third, third, third, 0, 0], [0, third, third, third, 0],
        [0, 0, third, third, third],
    ]  # fmt: skip
    text = ("explain", "a b c d e", "-w", even, "--causal")
    np.testing.assert_allclose(
        stage(told(cli, *text, "--window", "3"), "weights"), rows, atol=1e-12
    )
    plain = stage(told(cli, *text), "weights")
    for window in ("0", "5", "9"):
        np.testing.assert_array_equal(stage(told(cli, *text, "--window", window), "weights"), plain)


def test_W1_converting_back_and_forth_keeps_every_number(cli: Cli, tmp_path: Path) -> None:
    w = np.asfortranarray([[1.0, 2, 3], [4, 5, 6]])
    np.savez(tmp_path / "a.npz", w=w, t=w.T)
    at = tmp_path / "a.npz"
    for name in ("b.safetensors", "c", "d.npz", "e.safetensors", "f.npz"):
        assert cli("weights", "convert", str(at), str(tmp_path / name)).code == 0
        at = tmp_path / name
    with np.load(at) as back:
        np.testing.assert_array_equal(back["w"], w)
        np.testing.assert_array_equal(back["t"], [[1, 4], [2, 5], [3, 6]])


def test_W3_a_ragged_array_is_named_and_nothing_runs(cli: Cli, tmp_path: Path) -> None:
    ragged = np.empty(2, object)
    ragged[:] = [[1, 2], [3]]
    np.savez(tmp_path / "a.npz", W_Q=ragged)
    done = cli("explain", "a", "-w", str(tmp_path / "a.npz"))
    assert done.code == 3
    assert len(done.err.splitlines()) == 1
    assert re.search(r"a\.npz.*W_Q.*(object|pickle)", done.err)


def test_W5_bfloat16_goes_into_an_npz_exactly(cli: Cli, tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x4049, 0xBEAA, 0x0001, 0x7F7F], np.uint16)
    right = np.array([1.0, 3.140625, -0.33203125, 9.18355e-41, 3.38953139e38], np.float32)
    size = len(bits) * 2
    header = json.dumps({"w": {"dtype": "BF16", "shape": [5], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    assert cli("weights", "convert", str(path), str(tmp_path / "b.npz")).code == 0
    with np.load(tmp_path / "b.npz") as back:
        np.testing.assert_allclose(back["w"], right, rtol=1e-6)
        np.testing.assert_array_equal(back["w"], (bits.astype(np.uint32) << 16).view(np.float32))


def test_W7_a_fused_matrix_is_cut_head_by_head(cli: Cli, tmp_path: Path) -> None:
    """GPT-NeoX keeps q, k, v of one head together: q = [3, 6], k = [5, 10], v = [8, 16]."""
    rows = np.array([[1.0, 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 2]])
    path = tmp_path / "a.safetensors"
    arrays = {"attention.query_key_value.weight": rows, "embedding": np.array([[3.0, 5]])}
    save_file(arrays, path, metadata={"n_heads": "2", "vocab": '["a"]'})
    found = told(cli, "explain", "a", "-w", str(path), "-H", "all")
    for name, wanted in (("q", [3, 6]), ("k", [5, 10]), ("v", [8, 16])):
        assert [stage(found, name, head)[0, 0] for head in (0, 1)] == wanted


def test_W_s3_lost_slashes_and_doubles_are_told(cli: Cli, tmp_path: Path) -> None:
    def put(name: str, members: list[str]) -> str:
        with (
            zipfile.ZipFile(tmp_path / name, "w") as archive,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("warnings.warn", lambda *a, **k: None)
            for member in members:
                data = io.BytesIO()
                np.lib.format.write_array(data, np.eye(2))
                archive.writestr(member, data.getvalue())
        return str(tmp_path / name)

    numbered = cli("explain", "a", "-w", put("a.npz", ["arr_0.npy", "arr_1.npy", "arr_2.npy"]))
    assert numbered.code == 3
    assert "arr_0, arr_1, arr_2" in numbered.err
    assert "wanted w_q" in numbered.err
    double = cli("explain", "a", "-w", put("b.npz", ["w_q.npy", "w_k.npy", "w_q.npy"]))
    assert (double.code, "w_q.npy stands in the file twice" in double.err) == (3, True)
    slashed = told(cli, "weights", "show", put("c.npz", ["/w_q.npy", "/w_k.npy", "/w_v.npy"]))
    assert [tensor["name"] for tensor in slashed["tensors"]] == ["/w_q", "/w_k", "/w_v"]
    assert slashed["sizes"]["d_model"] == 2


def test_T1_byte_level_pieces_are_shown_as_their_text(cli: Cli, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["Se", "Ã¡", "n", "Ġ", "g", "o", "t", "i", "Ċ", "Ã¡n", "Ġg", "ot", "Ġgot", "Ġi", "Ġit"]
    merges = [
        ("Ã¡", "n"),
        ("Ġ", "g"),
        ("o", "t"),
        ("Ġg", "ot"),
        ("Ġ", "i"),
        ("Ġi", "t"),
        ("S", "e"),
        ("Ã", "¡"),
    ]
    vocab = {p: i for i, p in enumerate([*pieces, "S", "e", "Ã", "¡"])}
    cutter = Tokenizer(models.BPE(vocab, [merges[-1], merges[-2], *merges[:-2]]))
    cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cutter.decoder = decoders.ByteLevel()
    cutter.save(str(tmp_path / "tokenizer.json"))
    draw = np.random.default_rng(0).standard_normal
    np.savez(
        tmp_path / "a.npz",
        embedding=draw((len(vocab), 4)),
        **{f"w_{n}": draw((4, 2)) for n in "qkv"},
    )
    tokens = told(cli, "explain", "Seán got it\n", "-w", str(tmp_path / "a.npz"))["tokens"]
    assert [t["piece"] for t in tokens] == ["Se", "Ã¡n", "Ġgot", "Ġit", "Ċ"]
    assert [t["label"] for t in tokens][:4] == ["Se", "án", "␣got", "␣it"]
    assert tokens[4]["label"]
    shown = cli("explain", "Seán got it\n", "-w", str(tmp_path / "a.npz"), "-s", "weights").out
    assert "Ã" not in shown
    assert "␊" in shown


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_R7_what_we_write_is_utf_8_whatever_the_terminal_holds(
    encoding: str, tmp_path: Path
) -> None:
    done = run_fresh(
        "explain", "猫 is cute", "-w", "random", "-o", "a.md", cwd=tmp_path,
        env={"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "猫" in (tmp_path / "a.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_H1_a_picture_of_any_script_is_written_with_one_notice(
    cli: Cli, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"a{ending}"
    done = cli("heatmap", "猫 は cute 🧸", "-w", "random", "-o", str(path))
    assert done.code == 0
    assert path.stat().st_size > 1000
    notices = [line for line in done.err.splitlines() if "glyph" in line or "font" in line]
    assert len(notices) <= 1
    assert "Warning" not in done.err


@pytest.mark.parametrize("n", [22, 30, 64])
def test_H3_every_token_has_its_label(cli: Cli, tmp_path: Path, n: int) -> None:
    path = tmp_path / "a.svg"
    words = [f"word{i}x" for i in range(n)]
    assert cli("heatmap", " ".join(words), "-w", "random", "-o", str(path)).code == 0
    drawn = re.findall(r">word(\d+)x<", path.read_text(encoding="utf-8"))
    assert sorted(map(int, drawn)) == sorted([*range(n), *range(n)])  # along both axes


@pytest.mark.slow  # 500 pictures
def test_H_s1_a_batch_of_500_pictures_keeps_its_memory(tmp_path: Path) -> None:
    code = (
        "import resource, sys\nfrom attnviz.cli.main import run_guarded\n"
        "def peak(n, out):\n"
        "    open('t.txt', 'w').write(''.join(f'a cute bear {i}\\n' for i in range(n)))\n"
        "    assert run_guarded(['batch', 't.txt', '-w', 'random', '-o', out, '-f', 'jsonl', '--engine',"
        " 'serial', '--heatmap', 'png', '-q']) == 0\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "first = peak(50, 'a')\nprint(peak(500, 'b') - first)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
    )  # fmt: skip
    assert done.stderr == ""
    assert int(done.stdout) < 30_000  # kilobytes


def test_C5_masked_cells_are_null_beside_a_mask(cli: Cli) -> None:
    found = told(cli, "explain", SENTENCE, "-w", "random", "--causal", "--dtype", "float32")
    visible = np.array(found["visible"][0][0])
    masked = found["stages"]["masked"][0][0]
    assert [[cell is not None for cell in row] for row in masked] == visible.tolist()
    numbers = np.array(found["stages"]["weights"][0][0])
    assert (numbers.astype(np.float32).astype(np.float64) == numbers).all()


def test_C_s1_one_record_per_pair_at_full_precision(cli: Cli) -> None:
    text = 'a,b "quoted" =1+1 -2 @x +3 c\nd'
    rows = list(csv.DictReader(io.StringIO(cli("explain", text, "-w", "random", "-f", "csv").out)))
    found = told(cli, "explain", text, "-w", "random")
    n = len(found["tokens"])
    assert len(rows) == n * n
    weights = [float(row["weights"]) for row in rows]
    assert weights == [cell for row in found["stages"]["weights"][0][0] for cell in row]


def test_C_s3_help_is_quick_and_completion_minds_colons(tmp_path: Path) -> None:
    taken_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run_fresh("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken_s) < 0.5
    code = "import sys; from attnviz.cli.main import run_guarded; run_guarded(['--help']); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )
    (tmp_path / "7:bear.npz").touch()
    ask = {"COMP_WORDS": "attnviz\nexplain\n-w\n7", "COMP_CWORD": "3",
           "_TYPER_COMPLETE_ARGS": "attnviz explain -w 7"}  # fmt: skip
    for shell in ("bash", "fish", "zsh"):  # a colon would end the value: such a name is not offered
        shown = run_fresh(env={**ask, "_ATTNVIZ_COMPLETE": f"complete_{shell}"}, cwd=tmp_path)
        assert b"bear" not in shown.stdout


def test_R3_a_label_with_an_invisible_start_ends_soon(cli: Cli) -> None:
    text = "\0a \x1bb \u200d \ufe0f wo\u2060rd"
    for width in ("12", "20", "40"):
        started = time.process_time()
        done = cli("explain", text, "-w", "random", "-s", "weights", "--width", width)
        assert done.code == 0
        assert time.process_time() - started < 1
        assert "\\u{2060}" in cli("explain", text, "-w", "random", "-s", "tokens").out
