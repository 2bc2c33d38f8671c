"""Model folders: layouts that are found, hostile ones that are refused, cards without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_models import write_model, write_tokenizer

from attnviz.errors import InputError, UsageError
from attnviz.sources.models import library
from attnviz.sources.models.card import model_card
from attnviz.sources.models.card_layers import read_layers
from attnviz.sources.models.files import find_model, read_config, read_header

pytestmark = pytest.mark.usefixtures("own_cache")


def shard(folder: Path) -> None:
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )


def hub_copy(folder: Path, home: Path) -> Path:
    repo = home / "models--org--tiny"
    snapshot = repo / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "blobs").mkdir()
    (repo / "refs" / "main").write_text("abc123")
    for file in folder.iterdir():
        blob = repo / "blobs" / f"blob-{file.name}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return repo


def test_a_folder_its_shards_and_its_hub_cache_are_found(tmp_path, monkeypatch):
    plain = write_model(tmp_path / "plain")
    assert find_model(plain).name == "plain"
    repo = hub_copy(plain, tmp_path / "hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for given in (repo, repo / "snapshots", repo / "snapshots" / "abc123", "org/tiny"):
        found = find_model(given)
        assert (found.name, found.folder.name) == ("org/tiny", "abc123")
        assert found.sha256() == find_model(plain).sha256()
    shard(plain)
    assert len(find_model(plain).weights) == 2


@pytest.mark.parametrize("layout", ["single", "shards", "hub"])
def test_all_layouts_give_the_same_numbers(tmp_path, layout):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model

    place = write_model(tmp_path / "tiny")
    whole = open_model(place)
    if layout == "shards":
        shard(place)
    if layout == "hub":
        place = hub_copy(place, tmp_path)
    source = open_model(place)
    tokens = source.tokenize("hello world!")
    ours: list[Any] = []
    own: list[Any] = []
    source.run(tokens, (0, 1), ours.append)
    whole.run(tokens, (0, 1), own.append)
    for a, b in zip(ours, own, strict=True):
        assert np.array_equal(a.q, b.q)


def test_T3_one_start_token_where_the_tokenizer_adds_one(tmp_path):
    """Llama-like adds <s> once; others do not; a text's own <s> is told."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    import transformers

    from attnviz.sources.models.tokenizer import open_tokenizer

    folder = write_model(tmp_path / "tiny")
    tokenizer = open_tokenizer(folder)
    tokens = tokenizer.tokenize("hello world!")
    assert tokens.pieces == ("<s>", "hello", "world", "!")
    assert tokenizer.name.endswith("adds <s> …")
    own = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("hello world!", "<s>hello", ""):
        assert list(tokenizer.tokenize(text).ids) == own(text)["input_ids"]
    assert any("stands twice" in n for n in tokenizer.tokenize("<s>hello").notices)
    write_tokenizer(folder, bos=False)
    bare = open_tokenizer(folder)
    assert bare.tokenize("hello world!").pieces == ("hello", "world", "!")
    assert bare.name.endswith("adds nothing")


def test_code_in_a_folder_is_refused_and_never_run(tmp_path):
    folder = write_model(tmp_path / "evil", auto_map={"AutoModel": "poison.Model"})
    (folder / "poison.py").write_text("open('ran', 'w')")
    with pytest.raises(InputError, match=r"its own code \(auto_map in config\.json\)"):
        read_config(folder)
    folder = write_model(tmp_path / "nested", text_config={"auto_map": {"AutoModel": "x.Y"}})
    with pytest.raises(InputError, match="auto_map"):
        model_card(folder)
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model
    from attnviz.sources.models.tokenizer import open_tokenizer

    folder = write_model(tmp_path / "tokens")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["a.B", null]}}')
    with pytest.raises(InputError, match="its own tokenizer code"):
        open_tokenizer(folder)
    with pytest.raises(InputError, match="never run"):
        open_model(write_model(tmp_path / "evil2", auto_map={"AutoModel": "poison.Model"}))
    assert not list(tmp_path.rglob("ran"))


CONFIGS = {
    "layers": ('{"num_hidden_layers": 100000}', "num_hidden_layers = 100000"),
    "heads": ('{"num_attention_heads": 5000}', "num_attention_heads = 5000"),
    "width": ('{"hidden_size": 9999999}', "hidden_size = 9999999"),
    "nested width": ('{"text_config": {"hidden_size": 9999999}}', "hidden_size = 9999999"),
    "negative": ('{"rope_theta": -1e300}', "rope_theta"),
    "infinite": ('{"rope_theta": 1e999}', "not a number"),
    "twice": ('{"hidden_size": 8, "hidden_size": 9}', "'hidden_size' stands twice"),
    "deep": ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "5001 levels deep"),
    "list": ("[1]", "holds a list"),
    "not json": ("{", "is not JSON"),
    "not utf-8": (b"\xff\xfe{}", "is not UTF-8"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_hostile_configs_are_refused(tmp_path, name):
    text, message = CONFIGS[name]
    data = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


def test_quotes_without_end_take_no_time(tmp_path):
    import time

    (tmp_path / "config.json").write_text('{"a": "' + '\\"' * 200_000)
    start = time.process_time()
    with pytest.raises(InputError, match="is not JSON"):
        read_config(tmp_path)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_labels": 1 << 53}, "num_labels = 9007199254740992: at most 65536 is believed"),
        ({"vocab_size": 1 << 20}, "vocab_size = 1048576, its tensors are at most 60 wide"),
        ({"rope": {"n_things": 1 << 30}}, "n_things = 1073741824"),
    ],
)
def test_counts_beyond_every_tensor_are_refused_before_a_list_is_made(tmp_path, changes, reason):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model

    with pytest.raises(InputError, match=reason):
        open_model(write_model(tmp_path / "tiny", **changes))


def test_many_positions_are_no_width(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model

    assert open_model(write_model(tmp_path / "tiny", max_position_embeddings=1 << 20)).layers


def test_a_config_larger_than_its_weights_is_refused_before_anything_is_made(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model

    folder = write_model(tmp_path / "tiny", hidden_size=16384, vocab_size=60000, head_dim=8)
    with pytest.raises(InputError, match="its files hold"):
        open_model(folder)


def test_missing_tensors_are_refused_never_drawn(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from safetensors.numpy import load_file

    from attnviz.sources.models.source import open_model

    folder = write_model(tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks 1 tensors of its architecture"):
        open_model(folder)


def test_shards_stay_in_their_folder(tmp_path):
    folder = write_model(tmp_path / "tiny")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in ("../outside.safetensors", "/etc/passwd", "a/b.safetensors"):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        with pytest.raises(InputError, match="only plain file names"):
            find_model(folder)
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    with pytest.raises(InputError, match=r"lacks gone\.safetensors"):
        find_model(folder)
    index.unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(InputError, match="points out of the model's folder"):
        find_model(folder)


def test_what_is_no_model_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no model at .*nothing is downloaded"):
        find_model(tmp_path / "gone")
    with pytest.raises(InputError, match=r"no config\.json"):
        find_model(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"it holds a\.gguf: give that file"):
        find_model(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"a\.txt alone is not a model"):
        find_model(tmp_path / "a.txt")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\0.")
    with pytest.raises(InputError, match=r"it holds pytorch_model\.bin; pickled weights"):
        find_model(tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (60).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}    ',
        (60).to_bytes(8, "little")
        + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}      ',
    ],
)
def test_safetensors_headers_that_lie_are_refused(tmp_path, head):
    path = tmp_path / "a.safetensors"
    path.write_bytes(head)
    with pytest.raises(InputError):
        read_header(path)


def test_a_damaged_tokenizer_is_one_line(tmp_path):
    from attnviz.sources.models.guarding import guard
    from attnviz.sources.models.tokenizer import open_raw

    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json does not work"):
        open_raw(path)

    class PanicException(BaseException):
        pass

    def panic() -> None:
        raise PanicException

    with pytest.raises(InputError, match="makes its library panic"):
        guard("it", panic)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard("it", stop)
    folder = write_model(tmp_path / "pads")
    write_tokenizer(folder, padding=1 << 31)
    with pytest.raises(InputError, match="pads every text"):
        open_raw(folder / "tokenizer.json")


def test_ids_that_fit_no_model_are_refused(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    from attnviz.sources.models.source import open_model
    from attnviz.sources.models.tokenizer import open_raw

    folder = write_model(tmp_path / "tiny")
    path = folder / "tokenizer.json"
    sound = path.read_text()
    path.write_text(
        sound.replace('"bear":6', '"bear":2147483648').replace('"bear": 6', '"bear": 2147483648')
    )
    with pytest.raises(InputError, match="the id 2147483648: at most"):
        open_raw(path)
    path.write_text(sound.replace('"bear":6', '"bear":60').replace('"bear": 6', '"bear": 60'))
    source = open_model(folder)
    source.run(source.tokenize("hello"), (0,), lambda heads: None)
    with pytest.raises(InputError, match="'bear' has the id 60, but the model has vectors for 60"):
        source.run(source.tokenize("hello bear"), (0,), lambda heads: None)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'attnviz\[models\]'"):
        library.require("transformers")


def test_a_card_says_what_a_folder_holds(tmp_path):
    card = model_card(write_model(tmp_path / "tiny", rope_theta=5000.0))
    assert (card.n_layers, card.n_heads, card.n_kv_heads, card.d_model, card.d_k) == (
        2,
        4,
        2,
        32,
        8,
    )
    assert card.attention_layers == (0, 1)
    assert card.layers[0].rotary_base == 5000.0
    assert card.dtypes == {"F32": card.n_parameters}
    assert card.tokenizer_adds == "<s> …"
    assert len(card.sha256) == 64


def test_layers_of_hybrids_and_windows():
    base = {"num_hidden_layers": 4, "sliding_window": 8}
    kinds = ["linear_attention", "sliding_attention", "full_attention", "conv"]
    layers = read_layers({**base, "layer_types": kinds})
    assert [layer.has_attention for layer in layers] == [False, True, True, False]
    assert [layer.window for layer in layers] == [None, 8, None, None]
    assert [x.window for x in read_layers({**base, "sliding_window_pattern": 2})] == [
        8,
        None,
        8,
        None,
    ]
    jamba = read_layers({"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1})
    assert [x.layer for x in jamba if x.has_attention] == [1, 3]
    off = read_layers({**base, "use_sliding_window": False})
    assert {x.window for x in off} == {None}
    rotary = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    both = read_layers({**base, "sliding_window_pattern": 2, "rope_parameters": rotary})
    assert [x.rotary_base for x in both] == [1e4, 1e6, 1e4, 1e6]


def run_alone(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=120, env=os.environ.copy(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_card_imports_neither_torch_nor_transformers(tmp_path):
    folder = write_model(tmp_path / "tiny")
    code = f"""
        import sys
        from attnviz.sources.models.card import model_card
        model_card({str(folder)!r})
        print(sorted({{"torch", "transformers"}} & set(sys.modules)))
    """
    assert run_alone(code).strip() == "[]"
    assert run_alone(code.replace("import sys", "import sys, torch")).strip() == "['torch']"


@pytest.mark.model
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_cards_of_real_models_take_less_than_a_second(request, name):
    place = request.getfixturevalue(name)
    model_card(place)
    out = run_alone(f"""
        import time
        from attnviz.sources.models.card import model_card
        start = time.process_time()
        card = model_card({str(place)!r})
        print(time.process_time() - start, card.n_layers, card.n_kv_heads, card.max_positions)
    """).split()
    assert float(out[0]) < 1
    assert out[1:] == (["6", "12", "512"] if name == "minilm" else ["30", "3", "8192"])
