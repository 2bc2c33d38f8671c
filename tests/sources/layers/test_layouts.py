"""Every layout that common tools write gives the same layer, or a refusal in our words."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from attnviz.errors import UsageError, WeightsError
from attnviz.records import Array
from attnviz.sources.files import ArrayFile, Entry
from attnviz.sources.layers.layer import Layer
from attnviz.sources.layers.names import read_names
from attnviz.sources.layers.read import Loaded, load_opened

D, H, E = 12, 3, 4
Arrays = dict[str, Array]


def file_of(arrays: Arrays, metadata: dict[str, str] | None = None) -> ArrayFile:
    entries = {n: Entry(n, a.shape, str(a.dtype), a.nbytes) for n, a in arrays.items()}
    return ArrayFile(
        "x.npz", "npz", entries, metadata or {}, lambda n: (arrays[n], str(arrays[n].dtype))
    )


def load(arrays: Arrays, metadata: dict[str, str] | None = None, **options: int | None) -> Loaded:
    return load_opened(file_of(arrays, metadata), Path("x.npz"), "", **options)


def truth(n_kv: int = H, seed: int = 1) -> Arrays:
    draw = np.random.default_rng(seed).standard_normal
    widths = {"q": H * E, "k": n_kv * E, "v": n_kv * E}
    parts = {f"w_{n}": draw((D, w)) for n, w in widths.items()}
    parts |= {f"b_{n}": draw(w) for n, w in widths.items()}
    return parts | {"w_o": draw((H * E, D)), "b_o": draw(D)}


def linear(w: Arrays, names: dict[str, str]) -> Arrays:
    """Torch Linears: (out, in), with biases."""
    return {f"{name}.weight": w[f"w_{n}"].T for n, name in names.items()} | {
        f"{name}.bias": w[f"b_{n}"] for n, name in names.items()
    }


def blocks(w: Arrays) -> tuple[Array, Array]:
    return (
        np.concatenate([w[f"w_{n}"] for n in "qkv"], axis=1),
        np.concatenate([w[f"b_{n}"] for n in "qkv"]),
    )


def by_head(w: Arrays, n_kv: int = H) -> tuple[Array, Array]:
    """Per key/value head: its query heads, its key, its value (GPT-NeoX where n_kv is H)."""
    found = []
    for values in (w, {n.replace("b_", "w_"): b[None] for n, b in w.items() if n[0] == "b"}):
        rows = values["w_q"].shape[0]
        q = values["w_q"].reshape(rows, n_kv, -1, E)
        k, v = (values[f"w_{n}"].reshape(rows, n_kv, 1, E) for n in "kv")
        found.append(np.concatenate([q, k, v], axis=2).reshape(rows, -1))
    return found[0], found[1][0]


def three_axes(w: Arrays) -> Arrays:
    """TransformerLens: (H, D, E), W_O (H, E, D), b (H, E)."""
    found = {f"W_{n.upper()}": w[f"w_{n}"].reshape(D, -1, E).transpose(1, 0, 2) for n in "qkv"}
    found |= {f"b_{n.upper()}": w[f"b_{n}"].reshape(-1, E) for n in "qkv"}
    return found | {"W_O": w["w_o"].reshape(-1, E, D), "b_O": w["b_o"]}


def layouts() -> dict[str, tuple[Arrays, bool]]:
    """Name → (tensors, whether they tell the number of heads)."""
    w = truth()
    fused, bias = blocks(w)
    mixed, mixed_bias = by_head(w)
    out = {"weight": w["w_o"].T, "bias": w["b_o"]}

    def under(prefix: str, arrays: Arrays) -> Arrays:
        return {f"{prefix}{name}": values for name, values in arrays.items()}

    def proj(stem: str) -> Arrays:
        return {f"{stem}.{leaf}": values for leaf, values in out.items()}

    usual = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
    words = {"q": "query", "k": "key", "v": "value"}
    heads = {
        f"sa.heads.{h}.{word}.{leaf}": values
        for h in range(H)
        for n, word in words.items()
        for leaf, values in (
            ("weight", w[f"w_{n}"][:, h * E : h * E + E].T),
            ("bias", w[f"b_{n}"][h * E : h * E + E]),
        )
    }
    own_heads = {
        f"heads.{h}.{a}_{n}": w[f"{a}_{n}"][..., h * E : h * E + E]
        for h, a, n in itertools.product(range(H), "wb", "qkv")
    }
    flax = {f"params/attn/{x}/kernel": w[f"w_{n}"].reshape(D, H, E) for n, x in words.items()}
    flax |= {f"params/attn/{x}/bias": w[f"b_{n}"].reshape(H, E) for n, x in words.items()}
    flax |= {"params/attn/out/kernel": w["w_o"].reshape(H, E, D), "params/attn/out/bias": w["b_o"]}
    raschka = {"q": "W_query", "k": "W_key", "v": "W_value", "o": "out_proj"}
    return {
        "ours": (w, False),
        "capitals": ({f"W_{n.upper()}": w[f"w_{n}"] for n in "qkvo"} |
                     {f"b_{n}": w[f"b_{n}"] for n in "qkvo"}, False),
        "no underscore": ({f"W{n}": w[f"w_{n}"] for n in "qkvo"} |
                          {f"B{n}": w[f"b_{n}"] for n in "qkvo"}, False),
        "Llama": (under("model.layers.0.self_attn.", linear(w, usual)), False),
        "DataParallel": (under("module.", linear(w, usual)), False),
        "compiled": (under("_orig_mod.module.", linear(w, usual)), False),
        "OPT": (linear(w, {**usual, "o": "out_proj"}), False),
        "Meta": (under("layers.0.attention.", linear(w, {n: f"w{n}" for n in "qkvo"})), False),
        "DistilBERT": (under("transformer.layer.0.attention.",
                             linear(w, {n: f"{n}_lin" for n in "qkv"} | {"o": "out_lin"})), False),
        "BERT": (under("bert.encoder.layer.0.attention.",
                       under("self.", linear(w, words)) | proj("output.dense"))
                 | {"bert.encoder.layer.0.output.dense.weight": np.ones((D, 48)),
                    "bert.encoder.layer.0.intermediate.dense.weight": np.ones((48, D))}, False),
        "ViT": (under("encoder.layer.0.attention.",
                      under("attention.", linear(w, words)) | proj("output.dense")), False),
        "LLMs from scratch": (under("trf_blocks.0.att.", linear(w, raschka)), False),
        "parameters and a Linear": (
            {f"W_{x}": w[f"w_{n}"] for n, x in words.items()}
            | {f"b_{n}": w[f"b_{n}"] for n in "qkv"} | proj("out_proj"), False),
        "annotated transformer": (under("encoder.layers.0.self_attn.", linear(
            w, {n: f"linears.{i}" for i, n in enumerate("qkvo")})), False),
        "diffusers": (linear(w, {n: f"to_{n}" for n in "qkv"} | {"o": "to_out.0"}), False),
        "MultiheadAttention": (
            {"in_proj_weight": fused.T, "in_proj_bias": bias} | proj("out_proj"), False),
        "Transformer": (under("layers.0.self_attn.",
            {"in_proj_weight": fused.T, "in_proj_bias": bias} | proj("out_proj")), False),
        "GPT-2": (under("h.0.attn.", {
            "c_attn.weight": fused, "c_attn.bias": bias, "c_proj.weight": w["w_o"],
            "c_proj.bias": w["b_o"]}) | {"h.0.mlp.c_proj.weight": np.ones((48, D))}, False),
        "nanoGPT": (under("transformer.h.0.attn.", {
            "c_attn.weight": fused.T, "c_attn.bias": bias} | proj("c_proj")), False),
        "timm": (under("blocks.0.attn.", {"qkv.weight": fused.T, "qkv.bias": bias}
                 | proj("proj")), False),
        "GPT-NeoX": (under("gpt_neox.layers.0.attention.", {
            "query_key_value.weight": mixed.T, "query_key_value.bias": mixed_bias}
            | proj("dense")), False),
        "TransformerLens": (under("blocks.0.attn.", three_axes(w)), True),
        "Karpathy's heads": (heads | proj("sa.proj"), True),
        "our heads": (own_heads | {"w_o": w["w_o"], "b_o": w["b_o"]}, True),
        "flax": (flax, True),
    }  # fmt: skip


@pytest.mark.parametrize("name", layouts())
def test_every_layout_gives_the_same_layer(name: str) -> None:
    arrays, tells_heads = layouts()[name]
    layer = load(arrays, n_heads=None if tells_heads else H).layer
    assert (layer.n_heads, layer.n_kv_heads, layer.d_model, layer.d_k) == (H, H, D, E)
    assert layer.scale == 0.5
    for part, values in truth().items():
        np.testing.assert_array_equal(getattr(layer, part), values, err_msg=f"{name}: {part}")


@pytest.mark.parametrize("name", [n for n, (_, tells) in layouts().items() if tells])
def test_a_number_of_heads_that_shapes_refute(name: str) -> None:
    with pytest.raises(UsageError, match=r"--n-heads 2 contradicts x\.npz: its w_q has 3 heads"):
        load(layouts()[name][0], n_heads=2)


def test_the_file_and_the_caller_must_agree() -> None:
    assert load(truth(), {"n_heads": "3"}, n_heads=3).layer.n_heads == 3
    with pytest.raises(UsageError, match="contradicts"):
        load(truth(), {"n_heads": "3"}, n_heads=2)
    for value in ("0", "-1", "1.5", "many", "", "9" * 400, "NaN"):
        with pytest.raises(WeightsError, match="n_heads is"):
            load(truth(), {"n_heads": value})


@pytest.mark.parametrize("n_kv", [1, 3])
def test_W7_grouped_heads_by_head(n_kv: int) -> None:
    w = truth(n_kv)
    mixed, bias = by_head(w, n_kv)
    falcon = {"query_key_value.weight": mixed.T, "query_key_value.bias": bias}
    layer = load({f"h.0.self_attention.{n}": a for n, a in falcon.items()}, n_heads=H).layer
    assert layer.n_kv_heads == n_kv
    for part in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v"):
        np.testing.assert_array_equal(getattr(layer, part), w[part])
    if n_kv == 1:
        named = {f"encoder.layers.0.self_attention.{n}": a for n, a in falcon.items()}
        with pytest.raises(WeightsError, match="two ways"):
            load(named, n_heads=H)
    with pytest.raises(WeightsError, match="--n-heads"):
        load(falcon)


def test_grouped_heads_in_blocks_are_cut_where_the_output_proves_it() -> None:
    w = truth(1)
    fused, bias = blocks(w)
    phi = {"self_attn.qkv_proj.weight": fused.T, "self_attn.qkv_proj.bias": bias}
    with_output = phi | {"self_attn.o_proj.weight": w["w_o"].T}
    for layer in (load(with_output, n_heads=H).layer, load(phi, n_heads=H, n_kv_heads=1).layer):
        assert layer.n_kv_heads == 1
        np.testing.assert_array_equal(layer.w_q, w["w_q"])
        np.testing.assert_array_equal(layer.b_v, w["b_v"])
    with pytest.raises(WeightsError, match=r"wanted \(3·D, D\)|wanted 36"):
        load({"qkv_proj.weight": fused.T}, n_heads=H)


def test_a_fused_matrix_without_bias_is_told_by_its_own_shape() -> None:
    fused, _ = blocks(truth())
    for values in (fused, fused.T):
        layer = load({"c_attn.weight": values}, n_heads=H).layer
        for part in ("w_q", "w_k", "w_v"):
            np.testing.assert_array_equal(getattr(layer, part), truth()[part])
    with pytest.raises(WeightsError, match="Conv1D"):
        load({"c_attn.weight": np.ones((12, 12))}, n_heads=H)


@pytest.mark.parametrize("shape", [(), (1, 36), (36, 1), (5,), (0,)])
def test_a_fused_bias_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    fused, _ = blocks(truth())
    for layout in ("c_attn", "query_key_value", "qkv"):
        found = outcome({f"{layout}.weight": fused.T, f"{layout}.bias": np.ones(shape)}, n_heads=H)
        assert found is None or np.prod(shape) == 36


def test_grouped_heads_of_our_own() -> None:
    w = {name: values for name, values in truth(1).items() if name[0] == "w"}
    assert load(w, n_heads=3).layer.n_kv_heads == 1
    assert load(w, n_kv_heads=1).layer.n_heads == 3
    with pytest.raises(WeightsError, match="--n-heads"):
        load({"w_q": np.ones((4, 6)), "w_k": np.ones((4, 4)), "w_v": np.ones((4, 4))})


def layers(n: int, first: int = 0) -> Arrays:
    return {
        f"model.layers.{first + i}.self_attn.{x}_proj.weight": np.full((D, D), float(first + i + 1))
        for i in range(n)
        for x in "qkv"
    }


def test_one_of_several_layers_is_chosen() -> None:
    loaded = load(layers(12), n_heads=3)
    assert loaded.n_layers == 12
    assert any("12 layers, 0 to 11: shown is 0" in notice for notice in loaded.notices)
    assert load(layers(12), layer=10, n_heads=3).layer.w_q[0, 0] == 11
    with pytest.raises(UsageError, match=r"12 layers, 0 to 11; use --layer 11 for the last"):
        load(layers(12), layer=12)
    shard = layers(3, first=9)
    assert load(shard, layer=10, n_heads=3).layer.w_q[0, 0] == 11
    with pytest.raises(UsageError, match="9 to 11"):
        load(shard, layer=0)


def test_attention_to_another_text_is_no_layer_of_its_own() -> None:
    both = {
        f"layers.{i}.{site}.in_proj_weight": np.full((3 * D, D), float(i))
        for i in range(2)
        for site in ("self_attn", "multihead_attn")
    }
    loaded = load(both, layer=1, n_heads=1)
    assert loaded.n_layers == 2
    assert {role.tensor for role in loaded.recognised} == {n for n in both if "self" in n}
    assert load({"multihead_attn.in_proj_weight": np.ones((3 * D, D))}, n_heads=1).n_layers == 1


def test_encoder_layers_come_before_decoder_layers() -> None:
    names = [f"{side}.layers.{i}.self_attn.in_proj_weight" for side in ("decoder", "encoder")
             for i in (0, 1)]  # fmt: skip
    order = [site.tensors["w_qkv"] for site in read_names(names).sites]
    assert order == [names[2], names[3], names[0], names[1]]


@pytest.mark.parametrize(
    "extra", ["self_attn.q_norm.weight", "self_attn.bias_k", "self_attn.sinks"]
)
def test_what_changes_the_scores_is_refused(extra: str) -> None:
    arrays = {f"self_attn.{n}_proj.weight": np.ones((D, D)) for n in "qkv"}
    with pytest.raises(WeightsError, match="changes the scores beyond"):
        load(arrays | {extra: np.ones(4)}, n_heads=3)


EMBEDDINGS = (
    "embedding", "wte.weight", "transformer.wte.weight", "model.embed_tokens.weight",
    "bert.embeddings.word_embeddings.weight", "tok_embeddings.weight", "embed.W_E",
    "gpt_neox.embed_in.weight", "token_embedding_table.weight", "tok_emb.weight",
    "shared.weight", "embedding.weight", "module.embedding.weight",
)  # fmt: skip
POSITIONS = (
    "positions", "wpe.weight", "transformer.wpe.weight", "pos_embed.W_pos", "pos_emb.weight",
    "bert.embeddings.position_embeddings.weight", "position_embedding_table.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_tables_of_words(name: str) -> None:
    table = np.arange(5.0 * D).reshape(5, D)
    layer = load({**truth(), name: table}).layer
    np.testing.assert_array_equal(layer.embedding[[3, 0]], table[[3, 0]])


@pytest.mark.parametrize("name", POSITIONS)
def test_tables_of_positions(name: str) -> None:
    table = np.arange(7.0 * D).reshape(7, D)
    layer = load({**truth(), name: table}).layer
    assert len(layer.positions) == 7
    np.testing.assert_array_equal(layer.positions[:3], table[:3])


def test_positions_that_begin_at_row_two() -> None:
    table = np.arange(66.0 * D).reshape(66, D)
    loaded = load({**truth(), "embeddings.position_embeddings.weight": table})
    np.testing.assert_array_equal(loaded.layer.positions[:1], table[2:3])
    assert any("position 0 is row 2" in notice for notice in loaded.notices)


def test_of_two_embeddings_the_nearer_one() -> None:
    attn = {f"encoder.layers.0.self_attn.{n}_proj.weight": np.ones((D, D)) for n in "qkv"}
    tables = {f"{side}.embed_tokens.weight": np.full((5, D), value)
              for side, value in (("encoder", 1.0), ("decoder", 2.0))}  # fmt: skip
    layer = load({**attn, **tables, "shared.weight": np.zeros((5, D))}, n_heads=1).layer
    assert layer.embedding[0][0] == 1.0
    with pytest.raises(WeightsError, match="could all be the embedding"):
        load({**truth(), **tables})


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (np.tri(8), True),
        (np.triu(np.ones((8, 8)), 1), True),
        (np.tri(8)[None, None].astype(bool), True),
        (np.ones((8, 8)), False),
        (np.zeros((8, 8)), False),
        (np.tri(8, k=-1), False),
        (np.ones(8), False),
    ],
)
def test_a_causal_buffer_is_told_by_its_numbers(mask: Array, expected: bool) -> None:
    arrays = linear(truth(), {"q": "att.W_query", "k": "att.W_key", "v": "att.W_value"})
    loaded = load({**arrays, "att.mask": mask}, n_heads=3)
    assert loaded.layer.causal is expected
    assert any("causal" in notice for notice in loaded.notices) is expected
    assert load({**arrays, "att.mask": mask}, {"causal": "false"}, n_heads=3).layer.causal is False


def test_decoder_only_layouts_are_causal() -> None:
    for name in ("GPT-2", "GPT-NeoX"):
        assert load(layouts()[name][0], n_heads=3).layer.causal
    for name in ("BERT", "MultiheadAttention", "ours", "Llama"):
        assert not load(layouts()[name][0], n_heads=3).layer.causal


def test_what_a_file_does_not_tell_is_said() -> None:
    heads = load(layouts()["MultiheadAttention"][0])
    assert any("how many heads" in notice for notice in heads.notices)
    assert not load(truth()).notices
    rest = load({**truth(), "ln_1.weight": np.ones(D)})
    assert any(
        "ln_1.weight" in notice and "not the whole model" in notice for notice in rest.notices
    )


def test_scale_is_the_files_own_or_from_d_k_never_from_d_model() -> None:
    """Case M5."""
    arrays = {n: np.ones((512, 512)) for n in ("w_q", "w_k", "w_v")}
    assert load(arrays, n_heads=8).layer.scale == 1 / 8
    assert load(arrays, {"scale": "1.0"}).layer.scale == 1.0
    for value in ("0", "-1", "nan", "inf", "1/8", ""):
        with pytest.raises(WeightsError, match="scale is"):
            load(arrays, {"scale": value})


SIZES = (1, 2, 3, 7, 64)


def outcome(arrays: Arrays, **options: int | None) -> Layer | None:
    """Load, or be refused in our own words; anything else fails the test."""
    try:
        return load(arrays, **options).layer
    except (WeightsError, UsageError) as fault:
        text = str(fault)
        assert "\n" not in text
        assert "broadcast" not in text
        assert "reshape" not in text
        return None


@pytest.mark.parametrize("n_heads", [None, 1, 2, 3])
def test_all_shapes_are_right_or_refused_by_us(n_heads: int | None) -> None:
    for a, b, c in itertools.product(SIZES, repeat=3):
        same = {"w_q": np.ones((a, b)), "w_k": np.ones((a, b)), "w_v": np.ones((a, c))}
        found = outcome(same, n_heads=n_heads)
        heads = n_heads or 1
        assert (found is not None) == (b % heads == 0 and c % heads == 0)
        if found is not None:
            assert (found.d_model, found.d_k, found.d_v) == (a, b // heads, c // heads)
        other = {"w_q": np.ones((a, b)), "w_k": np.ones((c, b)), "w_v": np.ones((a, b))}
        assert (outcome(other, n_heads=n_heads) is not None) == (a == c and b % heads == 0)
        output = {**same, "w_v": np.ones((a, b)), "w_o": np.ones((c, a))}
        assert (outcome(output, n_heads=n_heads) is not None) == (b == c and b % heads == 0)
        linear_qkv = {f"{n}_proj.weight": np.ones((b, a)) for n in "qkv"}
        assert (outcome(linear_qkv, n_heads=n_heads) is not None) == (b % heads == 0)
        packed = outcome({"in_proj_weight": np.ones((a, b))}, n_heads=n_heads)
        assert (packed is not None) == (a == 3 * b and b % heads == 0)
        outcome({"c_attn.weight": np.ones((a, b)), "c_attn.bias": np.ones(c)}, n_heads=n_heads)
        outcome({"query_key_value.weight": np.ones((a, b))}, n_heads=n_heads, n_kv_heads=c)
        outcome({f"W_{n}": np.ones((a, b, c)) for n in "QKV"}, n_heads=n_heads)
        outcome({**same, "embedding": np.ones((b, c)), "b_q": np.ones(c)}, n_heads=n_heads)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (4, 0), (1, 2, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("part", ["w_q", "w_o", "b_q", "b_o", "embedding", "positions"])
def test_odd_shapes_of_any_part_are_refused(shape: tuple[int, ...], part: str) -> None:
    if part == "b_q" and shape == (1, 1, 1, 1):
        return
    assert outcome({**truth(), part: np.ones(shape)}) is None


@pytest.mark.parametrize("dtype", ["c16", "?", "U3", "g"])
def test_numbers_that_are_none_are_refused(dtype: str) -> None:
    arrays = {**truth(), "w_q": np.ones((D, D)).astype(dtype)}
    with pytest.raises(WeightsError, match=r"w_q holds .*: wanted real numbers"):
        load(arrays)
    if dtype in "c16?":
        with pytest.raises(WeightsError, match="the embedding holds"):
            load({**truth(), "embedding": np.ones((2, D)).astype(dtype)})


@pytest.mark.parametrize("dtype", [">f4", "<f2", ">f8", ">i2", "u1", "<i8"])
def test_matrices_are_handed_on_native_and_writable(dtype: str) -> None:
    arrays = {n: np.arange(12.0).reshape(3, 4).astype(dtype) for n in ("w_q", "w_k", "w_v")}
    for values in arrays.values():
        values.flags.writeable = False
    layer = load(arrays).layer
    for values in (layer.w_q, layer.w_k, layer.w_v):
        assert values.dtype.isnative
        assert values.flags.writeable
        assert values.flags.c_contiguous
        np.testing.assert_array_equal(values, np.arange(12.0).reshape(3, 4))


def test_M7_nan_in_a_table_is_named_when_its_row_is_read() -> None:
    table = np.ones((5, D))
    table[3, 2] = np.nan
    layer = load({**truth(), "embedding": table}).layer
    assert layer.embedding[[0, 4]].shape == (2, D)
    with pytest.raises(WeightsError, match=r"embedding\[3, 2\] is nan"):
        layer.embedding[[0, 3]]


def test_hostile_names_stay_on_one_line() -> None:
    names = ("w_q", "w\nq", "\x1b[2J", "\u202e", "a" * 900, "[red]", "")
    with pytest.raises(WeightsError) as caught:
        load({name: np.ones((2, 2)) for name in names})
    text = str(caught.value)
    assert not set(text) & {"\n", "\x1b", "\u202e"}
    assert len(text) < 600
