"""Open the place attention comes from, and send a text to it: a layer, or a trained model.

What lives here: which options mean which source, and the text as its tokens. What does not:
reading files (``sources``), and what is computed from q, k, v (``pipeline``, ``pages``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

from attnviz.core import reference
from attnviz.errors import UsageError
from attnviz.records import Array, Tokens
from attnviz.runs.computing import Computing, choose_core, choose_model_core
from attnviz.runs.request import parse_layer
from attnviz.sources import Source

if TYPE_CHECKING:
    from attnviz.sources.families.source import LightSource
    from attnviz.sources.models.source import TransformersSource


class Origin(TypedDict, total=False):
    """Where attention comes from and where it is computed: the options of ``open_place`` by name.

    Every function that takes a text takes these; what each means, and its default, stands there.
    ``layer`` is not among them: some functions look at several, so each says what it takes.
    """

    weights: str
    model: str | None
    engine: str
    attention: str | None
    decoder_text: str | None
    max_tokens: int | None
    seed: int
    d_model: int
    d_k: int
    n_heads: int | None
    n_kv_heads: int | None
    device: str
    dtype: str
    notify: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """A source with a text on its way through it.

    Parameters
    ----------
    tokens
        What ``source.run`` takes: of an encoder-decoder always the encoder's.
    queries, keys
        The tokens along the two axes; the same record where they do not differ.
    layers
        Numbers of the layers that have attention, as the source counts them.
    model
        The source again, where it is a trained model.
    """

    source: Source
    computing: Computing
    tokens: Tokens
    queries: Tokens
    keys: Tokens
    layers: tuple[int, ...]
    model: TransformersSource | LightSource | None = None

    @property
    def key_tokens(self) -> Tokens | None:
        """The tokens along the keys where they differ, as records write it."""
        return None if self.keys is self.queries else self.keys


def open_source(
    *,
    weights: str = "sample",
    layer: str | int | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    project: Callable[..., Array] = reference.project,
) -> Source:
    """Open the place attention comes from: random, bundled, or a weight file."""
    if weights == "random":
        if layer is not None and parse_layer(layer) != 0:
            raise UsageError(
                f"layer {layer} does not exist: random weights are one layer, --layer 0"
            )
        from attnviz.sources.layers.random_ import open_random

        return open_random(
            seed=seed,
            d_model=d_model,
            d_k=d_k,
            n_heads=n_heads or 1,
            n_kv_heads=n_kv_heads,
            project=project,
        )
    from attnviz.sources.layers.weights import open_weights

    return open_weights(
        weights,
        layer=None if layer is None else parse_layer(layer),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        seed=seed,
        project=project,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A source opened for any number of texts.

    Parameters
    ----------
    layers
        Numbers of the layers that have attention, as the source counts them.
    device, dtype
        Where and in what precision its numbers are worked with.
    max_tokens
        Longer texts are cut.
    model
        The source again, where it is a trained model.
    """

    source: Source
    layers: tuple[int, ...]
    device: str
    dtype: str
    max_tokens: int | None = None
    model: TransformersSource | LightSource | None = None

    def core_for(self, n_tokens: int) -> Computing:
        """Choose the core for a text of this length."""
        if self.model is None:
            return choose_core(device=self.device, dtype=self.dtype, n_tokens=n_tokens)
        return choose_model_core(self.device, dtype=self.dtype, n_tokens=n_tokens)

    def send(self, text: str) -> Opened:
        """Cut a text with the source's tokenizer."""
        if self.model is not None:
            tokens = self.model.tokenize(text)
            queries, keys = self.model.queries(tokens), self.model.keys(tokens)
        else:
            from attnviz.sources.text.tokenize import cut_text

            tokens = queries = keys = cut_text(self.source.tokenize, text, self.max_tokens)
        computing = self.core_for(max(len(queries), len(keys)))
        return Opened(self.source, computing, tokens, queries, keys, self.layers, self.model)


def open_place(
    *,
    weights: str = "sample",
    model: str | None = None,
    engine: str = "auto",
    attention: str | None = None,
    decoder_text: str | None = None,
    max_tokens: int | None = None,
    layer: str | int | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    device: str = "auto",
    dtype: str = "float64",
    n_tokens: int = 0,
    notify: Callable[[str], None] = lambda _: None,
) -> Place:
    """Open a layer's weights or a model, for any number of texts.

    Parameters
    ----------
    weights, layer, seed, d_model, d_k, n_heads, n_kv_heads
        As of ``open_source``, where no model is given.
    model
        A Hugging Face folder, a place in its local cache, or a GGUF file.
    engine
        Who runs a model: ``light``, ``library``, or ``auto``, the light one where it is proved.
    attention, decoder_text
        Of an encoder-decoder: ``self``, ``cross`` or ``encoder``, and the decoder's text.
    max_tokens
        Cut longer texts, and say so.
    device, dtype
        Where, and in what precision; a model itself runs in float32 where float64 is asked for.
    n_tokens
        About how long the texts are: short ones are projected by numpy.
    notify
        Told about slow first-time work.

    Raises
    ------
    UsageError
        Options that do not go together.
    InputError
        File or model cannot be read.
    """
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens} leaves nothing: give 1 or more")
    if model is None:
        for name, value in (("--attention", attention), ("--decoder-text", decoder_text)):
            if value is not None:
                raise UsageError(f"{name} {value!r} is for trained models: give one with --model")
        computing = choose_core(device=device, dtype=dtype, n_tokens=n_tokens)
        source = open_source(
            weights=weights,
            layer=layer,
            seed=seed,
            d_model=d_model,
            d_k=d_k,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            project=computing.project,
        )
        return Place(source, (0,), device, dtype, max_tokens)
    if weights != "sample":
        raise UsageError(f"--weights {weights} and --model {model} exclude each other: choose one")
    if n_heads is not None or n_kv_heads is not None:
        raise UsageError("--n-heads and --n-kv-heads are for weights: a model says its own")
    from attnviz.sources.families.opening import try_light

    light = try_light(
        model,
        engine=engine,
        device=device,
        dtype="float32" if dtype == "float64" else dtype,
        which=attention,
        max_tokens=max_tokens,
        target=decoder_text,
        notify=notify,
    )
    if light is not None:
        return Place(light, light.layers, "cpu", dtype, max_tokens, light)
    from attnviz.core.device import choose_device, choose_dtype
    from attnviz.sources.models.source import open_model

    place = str(choose_device(device))
    choose_dtype(dtype)
    opened = open_model(
        model,
        which=attention,
        device=place,
        dtype="float32" if dtype == "float64" else dtype,
        max_tokens=max_tokens,
        target=decoder_text,
        notify=notify,
    )
    return Place(opened, opened.layers, place, dtype, max_tokens, opened)


def open_text(text: str, *, layer: str | int | None = None, **origin: Unpack[Origin]) -> Opened:
    """Open a layer's weights or a model (``open_place``), and cut a text with its tokenizer."""
    return open_place(layer=layer, **origin, n_tokens=len(text) // 2).send(text)


def notices_of(queries: Tokens, key_tokens: Tokens | None) -> tuple[str, ...]:
    """Return what was lost where the texts along the two axes were cut into tokens."""
    return (*queries.notices, *(() if key_tokens is None else key_tokens.notices))
