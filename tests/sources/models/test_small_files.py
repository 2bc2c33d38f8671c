"""The small files of a model at their bounds: config, headers, indexes, hub caches, our own cache."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_model

from attnviz.errors import InputError
from attnviz.sources.models import cache, files
from attnviz.sources.models.files import (
    check_config,
    find_model,
    parse_json,
    read_config,
    read_header,
    read_json,
)

pytestmark = pytest.mark.usefixtures("own_cache")


def refusal(work: Any) -> str:
    with pytest.raises(InputError) as caught:
        work()
    return str(caught.value)


# --- JSON ---------------------------------------------------------------------------------------


def test_json_as_long_and_as_deep_as_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": 1}')
    assert files._MAX_JSON_BYTES == 16 << 20
    monkeypatch.setattr(files, "_MAX_JSON_BYTES", 8)
    assert read_json(path) == {"a": 1}
    monkeypatch.setattr(files, "_MAX_JSON_BYTES", 7)
    assert "config.json has 8 bytes: at most 7" in refusal(lambda: read_json(path))
    for depth, is_read in ((64, True), (65, False)):
        for pair in ("[]", "{}"):
            inner = '"[{"'
            for _ in range(depth - 1):
                inner = f"[{inner}]" if pair == "[]" else f'{{"k": {inner}}}'
            text = f'{{"a": {inner}}}'
            if is_read:
                assert list(parse_json(text, "x")) == ["a"]
            else:
                assert "x is nested 65 levels deep: at most 64" in refusal(lambda t=text: parse_json(t, "x"))  # type: ignore[misc]  # fmt: skip
    wide = '{"a": [' + "[], " * 99 + "[]]}"
    assert len(parse_json(wide, "x")["a"]) == 100


def test_brackets_in_strings_are_no_levels() -> None:
    for text in ('{"a": "' + "[" * 99 + '"}', '{"a": "\\"' + "[" * 99 + '"}', '{"a\\\\": "{{{{"}'):
        assert len(parse_json(text, "x")) == 1
    assert "is not JSON" in refusal(lambda: parse_json('{"a": "\\', "x"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot read gone.json: No such file" in refusal(
        lambda: read_json(tmp_path / "gone.json")
    )
    (tmp_path / "a.json").write_bytes(b'{"\xff": 1}')
    assert "a.json is not UTF-8 at byte 2" in refusal(lambda: read_json(tmp_path / "a.json"))
    for text, kind in (("[]", "list"), ("3", "int"), ("null", "NoneType")):
        assert f"x holds a {kind}, not an object" in refusal(lambda t=text: parse_json(t, "x"))  # type: ignore[misc]
    assert "the key 'a' stands twice" in refusal(lambda: parse_json('{"b": {"a": 1, "a": 1}}', "x"))
    long = json.dumps("k" * 90)
    assert f"the key {'k' * 80!r} stands" in refusal(lambda: parse_json(f"{{{long}: 1, {long}: 1}}", "x"))  # fmt: skip


LIMITS = {
    "num_hidden_layers": 1024, "n_layer": 1024, "num_layers": 1024, "encoder_layers": 1024, "depth": 1024,
    "num_attention_heads": 1024, "n_head": 1024, "num_key_value_heads": 1024, "head": 1024,
    "hidden_size": 1 << 17, "d_model": 1 << 17, "n_embd": 1 << 17, "dim": 1 << 17, "head_dim": 1 << 17,
    "d_kv": 1 << 17, "embedding_size": 1 << 17,
    "intermediate_size": 1 << 21, "moe_intermediate_size": 1 << 21, "d_ff": 1 << 21, "n_inner": 1 << 21,
    "decoder_ffn_dim": 1 << 21, "num_experts": 1 << 14, "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 28, "n_positions": 1 << 28, "anything": 1 << 62,
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_sizes_are_believed_up_to_their_limit(name: str) -> None:
    limit = LIMITS[name]
    for number in (limit, 0, -1, -(1 << 62), True, "many", None, [limit * 9]):
        check_config({name: number})
    for number in (limit + 1, -(1 << 62) - 1):
        said = refusal(lambda n=number: check_config({"text_config": {name: n}}, where="x"))  # type: ignore[misc]
        assert said == f"x has {name} = {number}: at most {limit} is believed"
    for number in (math.inf, -math.inf, math.nan):
        assert "not a number" in refusal(lambda n=number: check_config({name: n}))  # type: ignore[misc]


def test_code_is_refused_at_every_depth(tmp_path: Path) -> None:
    nested = {"a": {"b": {"auto_map": {}}}}
    assert "x brings its own code" in refusal(lambda: check_config(nested, where="x"))
    (tmp_path / "config.json").write_text('{"auto_map": null}')
    assert f"{tmp_path.name} brings its own code" in refusal(lambda: read_config(tmp_path))


# --- safetensors headers ------------------------------------------------------------------------


def header_file(folder: Path, header: Any, data: bytes = b"", n_bytes: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "a.safetensors"
    path.write_bytes(
        (len(text) if n_bytes is None else n_bytes).to_bytes(8, "little") + text + data
    )
    return path


T = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_headers_give_names_types_and_shapes(tmp_path: Path) -> None:
    places = {"data_offsets": [8, 16], "shape": [1, 2]}
    found = read_header(header_file(tmp_path, {"__metadata__": {"a": "b"}, "w": T, "s": {**T, **places}}, bytes(16)))  # fmt: skip
    assert found == {"w": ("F32", (2,)), "s": ("F32", (1, 2))}
    assert read_header(header_file(tmp_path, {})) == {}


@pytest.mark.parametrize(
    "change",
    [{"shape": [3]}, {"shape": [-2]}, {"shape": [True, 2]}, {"shape": None}, {"data_offsets": [0, 9]},
     {"data_offsets": [0]}, {"dtype": "F64"}, {"dtype": ["F32"]}, {"dtype": "NEW"}],
)  # fmt: skip
def test_a_model_s_tensors_are_refused_as_a_layer_s_are(tmp_path: Path, change: Any) -> None:
    """All bounds of a header are tested where its one reader is: tests/sources/files."""
    path = header_file(tmp_path, {"w": {**T, **change}}, bytes(8))
    assert refusal(lambda: read_header(path)).startswith("a.safetensors: w ")
    assert "follow" in refusal(lambda: read_header(header_file(tmp_path, b"{}", n_bytes=3)))


def test_a_folder_without_or_with_a_bad_index(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    assert find_model(folder).size_bytes == (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = folder / "model.safetensors.index.json"
    for text in ("{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(text)
        assert "has no weight_map" in refusal(lambda: find_model(folder))
    for name in (
        "-a.safetensors",
        ".a.safetensors",
        "a.safetensors\n",
        "a.bin",
        "",
        "ä/b.safetensors",
    ):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        assert "only plain file names" in refusal(lambda: find_model(folder))
    index.write_text(json.dumps({"weight_map": {"x": "one.safetensors", "y": "one.safetensors"}}))
    assert [path.name for path in find_model(folder).weights] == ["one.safetensors"]
    assert find_model(folder).sha256() == hashlib.sha256((folder / "one.safetensors").read_bytes()).hexdigest()  # fmt: skip
    index.unlink()
    (folder / "one.safetensors").unlink()
    assert "it holds no weights" in refusal(lambda: find_model(folder))
    for name in ("e.bin", "d.pt", "c.bin", "b.pth", "a.safetensors"):
        (folder / name).write_bytes(b"x")
    assert "it holds a.safetensors, b.pth, c.bin, d.pt;" in refusal(lambda: find_model(folder))


def test_files_that_are_no_model_get_a_hint(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    assert "give the folder it is in" in refusal(lambda: find_model(folder / "model.safetensors"))
    (tmp_path / "lone.npz").write_bytes(b"x")
    assert "single layers go to --weights" in refusal(lambda: find_model(tmp_path / "lone.npz"))
    (tmp_path / "A.GGUF").write_bytes(b"GGUF")
    found = find_model(tmp_path / "A.GGUF")
    assert (found.kind, found.name, found.folder) == ("gguf", "A", tmp_path)


def hub(home: Path, *revisions: str, main: str | None = None) -> Path:
    repo = home / "models--org--tiny"
    for revision in revisions:
        write_model(repo / "snapshots" / revision)
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    if main is not None:
        (repo / "refs" / "main").write_text(main)
    return repo


def test_hub_caches_with_one_several_and_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no snapshot of org/tiny" in refusal(lambda: find_model(hub(tmp_path / "a")))
    assert find_model(hub(tmp_path / "b", "one")).folder.name == "one"
    two = hub(tmp_path / "c", "one" + "x" * 20, "two")
    assert f"several snapshots of org/tiny: give one of one{'x' * 9}, two" in refusal(lambda: find_model(two))  # fmt: skip
    assert find_model(two / "snapshots" / "two").name == "org/tiny"
    assert find_model(hub(tmp_path / "c", main="two\n")).folder.name == "two"
    assert "several" in refusal(lambda: find_model(hub(tmp_path / "c", main="three")))
    assert "several" in refusal(lambda: find_model(hub(tmp_path / "c", main="two" + " " * 253)))
    assert find_model(hub(tmp_path / "c", main="two" + " " * 252)).folder.name == "two"
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub(tmp_path / "home" / "hub", "one")
    assert find_model("org/tiny").name == "org/tiny"
    for name in ("org/../tiny", "org/tiny/more", "org/" + "x" * 97, "org/none", "org tiny"):
        assert "nothing is downloaded" in refusal(lambda n=name: find_model(n))  # type: ignore[misc]
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "user")
    hub(tmp_path / "user" / ".cache" / "huggingface" / "hub", "one")
    assert find_model("org/tiny").name == "org/tiny"


def test_links_may_point_to_blobs_of_the_same_repository_only(tmp_path: Path) -> None:
    repo = hub(tmp_path / "a", "one")
    weights = repo / "snapshots" / "one" / "model.safetensors"
    weights.rename(repo / "blobs" / "w")
    weights.symlink_to(repo / "blobs" / "w")
    assert find_model(repo).weights == (weights,)
    for elsewhere in (repo / "refs" / "w", tmp_path / "blobs" / "w"):
        elsewhere.parent.mkdir(exist_ok=True)
        elsewhere.write_bytes(b"x")
        weights.unlink()
        weights.symlink_to(elsewhere)
        assert "points out of the model's folder" in refusal(lambda: find_model(repo))
    plain = write_model(tmp_path / "snapshots" / "x")
    (plain / "model.safetensors").unlink()
    (plain / "model.safetensors").symlink_to(tmp_path / "blobs" / "w")
    assert "points out of the model's folder" in refusal(lambda: find_model(plain))


# --- our own cache ------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "attnviz"


def test_entries_are_private_and_damaged_ones_are_none(home: Path) -> None:
    assert cache.read_entry("plan", "k") is None
    cache.write_entry("plan", "k", {"a": [1]})
    assert cache.read_entry("plan", "k") == {"a": [1]}
    path = home / "plan" / "k.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["k.json"]
    path.write_text("{")
    assert cache.read_entry("plan", "k") is None
    with pytest.raises(TypeError):
        cache.write_entry("plan", "k", object())
    assert os.listdir(path.parent) == ["k.json"]


def test_entries_are_made_where_they_will_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = cache.tempfile.mkstemp
    monkeypatch.setattr(
        cache.tempfile, "mkstemp", lambda **named: (asked.append(named), real(**named))[1]
    )
    cache.write_entry("plan", "k", "é")
    assert [named["dir"] for named in asked] == [home / "plan"]
    assert asked[0]["prefix"].startswith(".new-")
    assert cache.read_entry("plan", "k") == "é"


def test_a_cache_that_cannot_be_written_is_done_without(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_bytes(b"in the way")
    cache.write_entry("plan", "k", 1)
    assert cache.read_entry("plan", "k") is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert cache.cache_folder() == tmp_path / ".cache" / "attnviz"


def test_folders_appear_whole_and_private_or_not_at_all(home: Path, tmp_path: Path) -> None:
    target = home / "gguf" / "x"
    with cache.new_folder(target) as made:
        (made / "sub").mkdir()
        (made / "sub" / "a").write_text("1")
        assert not target.exists()
        assert made.parent == target.parent
        assert made.name.startswith(".new-")
        assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert (target / "sub" / "a").read_text() == "1"
    assert stat.S_IMODE((target / "sub" / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((target / "sub").stat().st_mode) == 0o700
    with cache.new_folder(target) as made:  # somebody was faster: theirs stays
        (made / "b").write_text("2")
    assert os.listdir(target) == ["sub"]
    with pytest.raises(FileNotFoundError), cache.new_folder(home / "gguf" / "y") as made:
        (made / "no" / "c").write_text("3")
    assert os.listdir(target.parent) == ["x"]
    (home / "gguf" / "file").write_text("x")
    with pytest.raises(OSError, match="Not a directory"), cache.new_folder(home / "gguf" / "file"):
        pass
    assert sorted(os.listdir(target.parent)) == ["file", "x"]


def test_a_hash_is_remembered_by_place_size_and_time(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"a" * 5_000_000)
    digest = hashlib.sha256(b"a" * 5_000_000).hexdigest()
    assert cache.sha256_of(path) == digest
    (entry,) = (home / "sha256").iterdir()
    entry.write_text(json.dumps("f" * 64))
    assert cache.sha256_of(path) == "f" * 64
    for odd in (json.dumps("f" * 63), json.dumps(["f"] * 64), "{"):
        entry.write_text(odd)
        assert cache.sha256_of(path) == digest
    path.write_bytes(b"b")
    assert cache.sha256_of(path) == hashlib.sha256(b"b").hexdigest()
