"""``attnviz show``: files of attention as other programs write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import SENTENCE, Result

import attnviz
from attnviz.errors import InputError, WeightsError
from attnviz.render.page.build import page_of
from attnviz.sources.held import open_held, read_tokens

WORDS = SENTENCE.split()
DRAW = np.random.default_rng(1)
POWERS = np.exp(2 * DRAW.standard_normal((3, 2, 6, 6)))
MAPS = (POWERS / POWERS.sum(axis=-1, keepdims=True)).astype(np.float32)
Q, K, V = (DRAW.standard_normal((2, 6, 4)).astype(np.float32) for _ in range(3))


def write_npz(path: Path) -> None:
    np.savez(path / "file.npz", weights=MAPS)


def write_layers(path: Path) -> None:
    np.savez(path / "file.npz", **{f"layer_{n}": maps for n, maps in enumerate(MAPS)})


def write_folder(path: Path) -> None:
    (path / "file").mkdir()
    for n, maps in enumerate(MAPS):
        np.save(path / "file" / f"layer_{n}.npy", maps)


def write_hooks(path: Path) -> None:
    hooks = {f"blocks.{n}.attn.hook_pattern": maps[None] for n, maps in enumerate(MAPS)}
    save_file(hooks, path / "file.safetensors")


def write_outputs(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"attentions": tuple(torch.tensor(maps[None]) for maps in MAPS)}, path / "file.pt")


WRITERS = {
    "one array": (write_npz, "file.npz"), "an array a layer": (write_layers, "file.npz"),
    "a folder": (write_folder, "file"), "TransformerLens": (write_hooks, "file.safetensors"),
    "saved outputs": (write_outputs, "file.pt"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITERS)
def test_maps_are_found_by_the_names_that_dumps_have(
    kind: str, cli: Callable[..., Result], tmp_path: Path
) -> None:
    write, name = WRITERS[kind]
    write(tmp_path)
    (tmp_path / "file.json").write_text(json.dumps(WORDS))
    done = cli("show", str(tmp_path / name), "-f", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    np.testing.assert_allclose(np.array(told["stages"]["weights"]), MAPS, atol=1e-7)
    assert [token["label"] for token in told["tokens"]] == WORDS
    assert (told["layers"], told["heads"]) == ([0, 1, 2], [0, 1])


def test_one_array_alone_is_a_map(cli: Callable[..., Result], tmp_path: Path) -> None:
    np.save(tmp_path / "anything.npy", MAPS[0, 0])
    done = cli("show", str(tmp_path / "anything.npy"), "-f", "json")
    np.testing.assert_allclose(
        json.loads(done.out)["stages"]["weights"][0][0], MAPS[0, 0], atol=1e-7
    )


@pytest.mark.parametrize("style", ["plain", "TransformerLens"])
def test_q_k_and_v_are_computed_with(
    style: str, cli: Callable[..., Result], tmp_path: Path
) -> None:
    vectors = {"q": Q, "k": K, "v": V}
    if style == "TransformerLens":  # (batch, place, head, E)
        vectors = {
            f"blocks.4.attn.hook_{n}": x.swapaxes(0, 1)[None].copy() for n, x in vectors.items()
        }
    np.savez(tmp_path / "qkv.npz", **vectors)
    done = cli("show", str(tmp_path / "qkv.npz"), "--causal", "--scale", "0.5", "-f", "json")
    told = json.loads(done.out)
    own = attnviz.show(q=Q, k=K, v=V, causal=True, scale=0.5)
    np.testing.assert_allclose(
        np.array(told["stages"]["weights"])[0], own.stages["weights"][0], atol=1e-7
    )
    assert told["layers"] == ([4] if style == "TransformerLens" else [0])


def test_layers_heads_views_and_pictures_are_chosen(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    write_npz(tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(WORDS))
    path, names = str(tmp_path / "file.npz"), ("--tokens", str(tmp_path / "names.txt"))
    told = json.loads(cli("show", path, *names, "-l", "1-2", "-H", "1", "-f", "json").out)
    np.testing.assert_allclose(np.array(told["stages"]["weights"]), MAPS[1:, 1:], atol=1e-7)
    links = cli("show", path, *names, "--view", "links", "-l", "0", "-H", "0", "--width", "80")
    assert "links · L0.H0 · file.npz" in links.out
    assert "teddy" in links.out
    assert cli("show", path, *names, "-o", str(tmp_path / "a.png")).code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = cli("show", path, *names, "--view", "text", "-t", "teddy", "-l", "0", "-H", "0")
    assert "[teddy]" in text.out


def test_the_page_of_a_file_is_the_page_of_its_arrays_byte_for_byte(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    write_npz(tmp_path)
    (tmp_path / "file.json").write_text(json.dumps(WORDS))
    page = tmp_path / "page.html"
    assert cli("show", str(tmp_path / "file.npz"), "-o", str(page)).code == 0
    own = page_of(attnviz.show(list(MAPS), WORDS, name="file.npz"))
    assert page.read_text(encoding="utf-8") == own


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no file": (("none.npz",), 3, "cannot read none.npz"),
    "strange names": (("strange.npz",), 3, "holds a, b: wanted weights, or q and k"),
    "q alone": (("alone.npz",), 3, "wanted weights, or q and k"),
    "layers apart": (("apart.npz",), 3, "q, k and v are of different layers"),
    "a view of q and k": (("maps.npz", "--view", "walk"), 2, "the view walk needs q and k"),
    "no such view": (("maps.npz", "--view", "no"), 2, "view 'no' does not exist"),
    "a rule for maps": (("maps.npz", "--causal"), 2, "--scale and --causal are for q and k"),
    "a layer": (("maps.npz", "-l", "9"), 2, "layer 9 does not exist"),
    "a head": (("maps.npz", "-H", "9"), 2, "head 9 does not exist"),
    "no tokens": (("maps.npz", "--tokens", "none.txt"), 3, "none.txt cannot be read"),
    "too few tokens": (("maps.npz", "--tokens", "few.txt"), 2, "2 tokens for 6 rows or columns"),
    "no list": (("maps.npz", "--tokens", "no.json"), 3, "tokens are not a list of strings"),
    "no JSON": (("maps.npz", "--tokens", "bad.json"), 3, "tokens are not valid JSON"),
    "no text": (("maps.npz", "--tokens", "bytes.txt"), 3, "is not UTF-8 text"),
    "no batch": (("maps.npz", "--index", "1"), 2, "is not a batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_shown_is_one_line(
    name: str, cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("maps.npz", weights=MAPS)
    np.savez("strange.npz", a=MAPS, b=MAPS)
    np.savez("alone.npz", q=Q)
    np.savez("apart.npz", q_0=Q, k_1=K)
    Path("few.txt").write_text("two words")
    Path("no.json").write_text('{"words": 1}')
    Path("bad.json").write_text("[")
    Path("bytes.txt").write_bytes(b"\xff\xfe\xff")
    arguments, code, words = WRONG[name]
    done = cli("show", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.count("\n") == 1


def test_odd_weights_are_said_on_the_screen(cli: Callable[..., Result], tmp_path: Path) -> None:
    np.save(tmp_path / "odd.npy", MAPS[0, 0] * 0.5)
    done = cli("show", str(tmp_path / "odd.npy"))
    assert "6 of 6 rows do not sum to 1 (0.5 to 0.5): shown as they are" in done.err


def test_tokens_are_read_in_three_ways(tmp_path: Path) -> None:
    written: dict[str, Any] = {
        "a.json": '["x y", "z"]',
        "b.json": '{"tokens": ["x", "z"]}',
        "c.txt": "x y\nz\n",
        "d.txt": "x z",
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    assert [read_tokens(str(tmp_path / name)) for name in written] == [
        ("x y", "z"), ("x", "z"), ("x y", "z"), ("x", "z"),
    ]  # fmt: skip
    (tmp_path / "large.txt").write_bytes(b"a " * (9 << 20))
    with pytest.raises(InputError, match="more than 16 MB"):
        read_tokens(str(tmp_path / "large.txt"))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(WeightsError):
        open_held(str(tmp_path / "cut.npy"))
