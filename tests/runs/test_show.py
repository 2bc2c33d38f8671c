"""Attention that people hold: arrays of any library, shown as they are, and what is said of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import SENTENCE

import attnviz
from attnviz import registry
from attnviz.core.measures.flow import rollout
from attnviz.core.reference import entropy_bits
from attnviz.errors import UsageError
from attnviz.render.screen import Screen
from attnviz.runs.show import as_array, show

WORDS = SENTENCE.split()
DRAW = np.random.default_rng(0)


def softmaxed(*shape: int) -> np.ndarray:
    scores = DRAW.standard_normal(shape)
    powers = np.exp(scores)
    found: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return found


MAPS = softmaxed(2, 3, 6, 6)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (MAPS, MAPS),
        (list(MAPS), MAPS),
        ([layer[None] for layer in MAPS], MAPS),
        (tuple(MAPS.astype(np.float32)[:, None]), MAPS),
        (MAPS[0], MAPS[:1]),
        (MAPS[0, 0], MAPS[:1, :1]),
        (MAPS[0, 0].tolist(), MAPS[:1, :1]),
        (list(MAPS[0]), MAPS[:1]),
    ],
    ids=["4", "list of 3", "list of 1+3", "float32", "3", "2", "numbers", "list of 2"],
)
def test_weights_of_every_form_are_kept_as_they_are(given: Any, wanted: np.ndarray) -> None:
    trace = show(given, WORDS)
    np.testing.assert_allclose(trace.stages["weights"], wanted, atol=1e-7)
    assert trace.tokens.labels == tuple(WORDS)
    assert trace.about.notices == ()


def test_tensors_of_torch_are_taken_with_gradients_and_in_half_precision() -> None:
    torch = pytest.importorskip("torch")
    exact = torch.tensor(MAPS, requires_grad=True)
    np.testing.assert_array_equal(show(exact, WORDS).stages["weights"], MAPS)
    for dtype, allowed in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        rounded = show([torch.tensor(layer[None]).to(dtype) for layer in MAPS], WORDS)
        np.testing.assert_allclose(rounded.stages["weights"], MAPS, atol=allowed)
        assert rounded.about.notices == ()


def test_whatever_hands_over_its_memory_is_an_array() -> None:
    class Box:
        def __init__(self, values: np.ndarray) -> None:
            self._values = values

        def __dlpack__(self, **how: Any) -> Any:
            return self._values.__dlpack__(**how)

        def __dlpack_device__(self) -> Any:
            return self._values.__dlpack_device__()

    np.testing.assert_array_equal(as_array(Box(MAPS), "weights"), MAPS)


def test_a_batch_needs_an_index_and_its_padding_is_shown() -> None:
    batch = [softmaxed(4, 3, 6, 6) for _ in range(2)]
    batch[0][2, :, :, 4:] = 0
    texts = [[f"{n}{word}" for word in WORDS] for n in range(4)]
    trace = show(batch, texts, index=2)
    np.testing.assert_array_equal(trace.stages["weights"][0], batch[0][2])
    assert trace.tokens.labels[0] == "2A"
    assert "do not sum to 1" in trace.about.notices[0]
    with pytest.raises(UsageError, match="batch of 4 texts: say which, index=0 to index=3"):
        show(batch, texts)
    with pytest.raises(UsageError, match="index 4 does not exist: the batch has 0 to 3"):
        show(batch, texts, index=4)


def test_cross_attention_has_two_texts() -> None:
    trace = show(
        softmaxed(3, 7, 12), [f"q{i}" for i in range(7)], key_tokens=[f"k{i}" for i in range(12)]
    )
    assert trace.key_tokens is not None
    assert trace.stages["weights"].shape == (1, 3, 7, 12)
    with pytest.raises(UsageError, match="7 queries and 12 keys are two texts: give key_tokens"):
        show(softmaxed(3, 7, 12), [f"q{i}" for i in range(7)])
    assert show(softmaxed(3, 7, 12)).keys.labels[-1] == "11"


def test_what_is_odd_about_weights_is_said_and_nothing_is_rescaled() -> None:
    odd = MAPS.copy()
    odd[0, 0, 1] *= 0.5
    odd[0, 1, 2] = np.nan
    odd[1, 2, 3, 0] = -0.25
    trace = show(odd, WORDS)
    np.testing.assert_array_equal(trace.stages["weights"], odd)
    said = " | ".join(trace.about.notices)
    assert "6 weights are NaN" in said
    assert "1 weights are negative (least -0.25)" in said
    assert "2 of 36 rows do not sum to 1 (0.5 to" in said


def test_a_map_without_later_keys_is_shown_as_causal() -> None:
    trace = show(np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None], WORDS)
    assert trace.about.notices == ("no query looks at a later key: shown as a causal mask",)
    assert trace.visible[0, 0].tolist() == np.tri(6, dtype=bool).tolist()


@pytest.mark.parametrize("causal", [False, True])
def test_q_and_k_give_the_weights_of_attention(causal: bool) -> None:
    """Grouped: 4 heads of q on 2 of k and v; against the formula written out."""
    q, k, v = (
        DRAW.standard_normal((4, 6, 8)),
        DRAW.standard_normal((2, 6, 8)),
        DRAW.standard_normal((2, 6, 5)),
    )
    trace = show(tokens=WORDS, q=q, k=k, v=v, causal=causal, scale=0.3)
    for head in range(4):
        scores = 0.3 * q[head] @ k[head // 2].T
        scores[np.triu(np.full((6, 6), causal), 1)] = -np.inf
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / powers.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(trace.stages["weights"][0, head], weights, atol=1e-12)
        np.testing.assert_allclose(
            trace.stages["output"][0, head], weights @ v[head // 2], atol=1e-12
        )
    assert trace.scale == (0.3,)


def test_without_a_scale_it_is_the_root_of_the_width_and_without_v_no_output_is_shown() -> None:
    q, k = DRAW.standard_normal((3, 6, 16)), DRAW.standard_normal((3, 6, 16))
    seen = np.tri(6, dtype=bool)
    trace = show(tokens=WORDS, q=q, k=k, mask=seen)
    assert trace.scale == (0.25,)
    assert "output" not in trace.stages
    assert (trace.stages["weights"][0][:, ~seen] == 0).all()
    with pytest.raises(UsageError, match=r"mask \(5, 5\): expected \(6, 6\) or \(3, 6, 6\)"):
        show(tokens=WORDS, q=q, k=k, mask=np.ones((5, 5)))


def test_rows_that_see_nothing_are_said() -> None:
    seen = np.ones((6, 6), bool)
    seen[2] = False
    trace = show(tokens=WORDS, q=np.ones((1, 6, 4)), k=np.ones((1, 6, 4)), mask=seen)
    assert trace.about.notices == ("1 rows can see no key; their weights are 0",)


class Tokenizer:
    all_special_tokens = ("[CLS]",)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["[CLS]", *WORDS][: len(ids)]


def test_ids_become_strings_by_the_tokenizer() -> None:
    trace = show(softmaxed(7, 7), np.arange(100, 107), tokenizer=Tokenizer())
    assert trace.tokens.labels == ("[CLS]", *WORDS)
    assert trace.tokens.ids == tuple(range(100, 107))
    assert trace.tokens.special == (True,) + (False,) * 6


WRONG = {
    "nothing": ({}, "give the weights, or q and k: one of the two"),
    "both": ({"weights": MAPS, "q": MAPS, "k": MAPS}, "one of the two"),
    "q alone": ({"q": MAPS}, "one of the two"),
    "a rule for weights": ({"weights": MAPS, "causal": True}, "leave them out where weights are given"),
    "words": ({"weights": "no"}, "weights is str, not an array of numbers"),
    "an object": ({"weights": object()}, "weights is object, not an array of numbers"),
    "ragged lists": ({"weights": [[0.5, 0.5], [1.0]]}, "weights is list, not an array of numbers"),
    "one axis": ({"weights": np.ones(3)}, r"expected \(L, S\), \(H, L, S\)"),
    "five axes": ({"weights": np.ones((1, 1, 1, 2, 2))}, r"expected \(L, S\)"),
    "nothing in it": ({"weights": np.ones((0, 2, 2))}, r"expected \(L, S\)"),
    "layers that differ": ({"weights": [np.ones((2, 3, 3)), np.ones((4, 3, 3))]}, "layers of different shapes"),
    "no batch": ({"weights": MAPS, "index": 0}, r"is not a batch"),
    "fewer tokens": ({"weights": MAPS, "tokens": WORDS[:4]}, "4 tokens for 6 rows or columns: give one for each"),
    "one string": ({"weights": MAPS, "tokens": SENTENCE}, "tokens is one string"),
    "ids": ({"weights": MAPS, "tokens": [1, 2, 3, 4, 5, 6]}, "tokens are ids: give the tokenizer"),
    "numbers and words": ({"weights": MAPS, "tokens": ["a", 2, 3, 4, 5, 6]}, "tokens must be strings"),
    "layers": ({"weights": MAPS, "layers": [1]}, "expected 2 whole numbers"),
    "heads": ({"weights": MAPS, "heads": ["a", "b", "c"]}, "expected 3 whole numbers"),
    "widths": ({"q": np.ones((2, 6, 4)), "k": np.ones((2, 6, 5))}, "do not fit one another"),
    "groups": ({"q": np.ones((4, 6, 4)), "k": np.ones((3, 6, 4))}, "K must divide H"),
    "scale": ({"q": np.ones((2, 6, 4)), "k": np.ones((2, 6, 4)), "scale": -1}, "scale -1 is not above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_clear_error(name: str) -> None:
    arguments, words = WRONG[name]
    with pytest.raises(UsageError, match=words):
        show(**arguments)


@pytest.mark.parametrize("name", ["heatmap", "links", "grid", "entropy", "rollout", "text"])
def test_every_view_of_weights_shows_them(name: str) -> None:
    document = registry.load("views", name).view(show(MAPS, WORDS))
    out = registry.load("formats", "table").render(document, Screen(width=80))
    assert "teddy" in out or name == "grid"
    for format_ in ("csv", "json", "plain", "markdown", "jsonl"):
        assert registry.load("formats", format_).render(document, Screen())


def test_figures_are_those_of_the_weights() -> None:
    trace = show(MAPS, WORDS)
    entropy = registry.load("views", "entropy").view(trace).data
    bits = [row[4] for row in entropy.rows]
    np.testing.assert_allclose(bits, entropy_bits(MAPS).ravel())
    flow = registry.load("views", "rollout").view(trace).shapes[1].panels[0].values
    np.testing.assert_allclose(flow, rollout(list(MAPS)))


@pytest.mark.parametrize(
    ("name", "asked"), [("neuron", {"queries": [1], "keys": [2]}), ("zoom", {"queries": [1]})]
)
def test_a_view_that_needs_q_and_k_says_so(name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"the view {name} needs q and k: here are weights alone"):
        registry.load("views", name).view(show(MAPS, WORDS), **asked)


def test_it_is_a_public_call() -> None:
    assert attnviz.show is show
    assert attnviz.show(MAPS, WORDS).to_numpy()["weights"].shape == (2, 3, 6, 6)
