"""One run: a source and a text on the way to tokens, core, layers, heads, what-if, notices and checks.

What lives here: which options mean which source, where its numbers are computed, how many cells are
held at once, which heads are shown, and what every result says of itself. What does not: reading
files (``sources``), mathematics (``core``), and what is made of a run (``explain``, ``page``, …).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np

from attnviz import __version__, memory
from attnviz.core import reference
from attnviz.errors import TooLong, UsageError
from attnviz.records import About, Array, HeadChoice, LayerHeads, RunInfo, Tokens
from attnviz.registry import installed, load
from attnviz.runs.pool_words import group_words, join_tokens, pool
from attnviz.runs.request import choose_heads, choose_layers, parse_layer
from attnviz.runs.what_if import WhatIf
from attnviz.sources import Source

REFERENCE_MAX_TOKENS = 512
"""Longer texts are not for numpy."""
DENSE_MAX_CELLS = 1 << 24
"""Cells of L × S matrices that are held at once, whatever the memory."""
DENSE_CELL_BYTES = 112
"""What a cell takes at most while its stages are computed and kept: 80 to 90 were measured."""
AUTO_MAX_CELLS = 1 << 28
"""Cells of all heads together that ``auto`` holds one layer after the other; more are streamed."""

Notify: TypeAlias = Callable[[str], None]
"""Told one line about slow work."""
Tell: TypeAlias = Callable[[int, int], None]
"""Told how much of how much is done."""

_AT_ONCE_CELLS = 1 << 22
_KEPT_NUMBERS = 1 << 25


def _say_nothing(_: str) -> None:
    pass


class Origin(TypedDict, total=False):
    """Where attention comes from, where it is computed, and what is changed: options of ``open_place``.

    Every function that takes a text takes these; what each means, and its default, stands there.
    ``layer`` is not among them: some functions look at several, so each says what it takes.
    """

    weights: str | Mapping[str, Any]
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
    causal: bool | None
    window: int | None
    scale: str | float | None
    notify: Notify
    layers_done: Tell | None


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how the numbers are computed."""

    device: str
    dtype: str
    core: str
    project: Callable[..., Array]
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]]


def choose_core(*, device: str = "auto", dtype: str = "float64", n_tokens: int = 0) -> Computing:
    """Choose numpy for small inputs in float64 on the CPU, torch for everything else.

    Raises
    ------
    UsageError, ResourceError
        An unknown device or precision, or one that this machine does not have.
    """
    is_small = device in ("auto", "cpu") and dtype == "float64"
    if is_small and n_tokens <= REFERENCE_MAX_TOKENS:
        return Computing("cpu", "float64", "numpy", reference.project, reference.trace_heads)
    from attnviz.core import attend
    from attnviz.core.device import choose_device, choose_dtype

    place, kind = choose_device(device), choose_dtype(dtype)
    return Computing(
        str(place),
        dtype,
        "torch",
        partial(attend.project, device=place, dtype=kind),
        partial(attend.trace_heads, device=place, dtype=kind),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A source opened for any number of texts, and what is asked of each.

    Parameters
    ----------
    layers
        Numbers of the asked-for layers that have attention, as the source counts them.
    device, dtype
        Where and in what precision its numbers are worked with.
    what_if
        Changes of the source's rule.
    max_tokens
        Longer texts are cut; None where the source does that itself.
    notify
        Told about slow work.
    """

    source: Source
    layers: tuple[int, ...]
    device: str
    dtype: str
    what_if: WhatIf = field(default_factory=WhatIf)
    max_tokens: int | None = None
    notify: Notify = _say_nothing

    def core_for(self, n_tokens: int) -> Computing:
        """Choose the core for a text of this length."""
        return choose_core(device=self.device, dtype=self.dtype, n_tokens=n_tokens)

    def send(self, text: str) -> Run:
        """Cut a text with the source's tokenizer."""
        return self.take(self.cut(text))

    def cut(self, text: str) -> Tokens:
        """Return a text's tokens, at most ``max_tokens`` of them."""
        from attnviz.sources.text.tokenize import cut_text

        return cut_text(self.source.tokenize, text, self.max_tokens)

    def take(self, tokens: Tokens) -> Run:
        """Start a run of a text that is cut already."""
        queries, keys = self.source.sides(tokens)
        computing = self.core_for(max(len(queries), len(keys)))
        return Run(
            self.source,
            computing,
            tokens,
            queries,
            keys,
            self.layers,
            self.what_if,
            notify=self.notify,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A text on its way through a source.

    Parameters
    ----------
    tokens
        What ``source.run`` takes: of an encoder-decoder always the encoder's.
    queries, keys
        The tokens along the two axes; the same record where they do not differ.
    layers
        Numbers of the asked-for layers.
    what_if
        Changes of the source's rule.
    checks
        What was compared before anything is computed.
    notify
        Told about slow work.
    """

    source: Source
    computing: Computing
    tokens: Tokens
    queries: Tokens
    keys: Tokens
    layers: tuple[int, ...]
    what_if: WhatIf = field(default_factory=WhatIf)
    checks: Mapping[str, float] = field(default_factory=dict)
    notify: Notify = _say_nothing

    @property
    def key_tokens(self) -> Tokens | None:
        """The tokens along the keys where they differ, as records write it."""
        return None if self.keys is self.queries else self.keys

    @property
    def n_cells(self) -> int:
        """L · S: what one head takes to be held whole."""
        return len(self.queries) * len(self.keys)

    def too_long_for(self, n_heads: int) -> str | None:
        """Say why so many heads are not held whole; None where they are."""
        if self.n_cells * n_heads <= fitting_cells():
            return None
        return _count(len(self.queries), len(self.keys), n_heads)

    def each(self, consume: Callable[[LayerHeads], None]) -> dict[str, Any]:
        """Compute the layers in order, each changed as asked, and hand them on one at a time.

        Returns
        -------
        dict
            What every file and screen says of the changes, see ``WhatIf.overrides``.
        """
        overrides: dict[str, Any] = {}

        def change(own: LayerHeads) -> None:
            if not overrides:
                overrides.update(self.what_if.overrides(own))
            consume(self.what_if.apply(own))

        self.source.run(self.tokens, self.layers, change)
        return overrides

    def about(
        self,
        overrides: Mapping[str, Any],
        *,
        core: str = "",
        checks: Mapping[str, float] | None = None,
        notices: Sequence[str] = (),
    ) -> About:
        """Return what a result of this run says of itself.

        Parameters
        ----------
        overrides
            From ``each``.
        core
            What computed it, where that was not this run's core.
        notices
            Of the result, behind those of the source, of the text and of the what-if.
        """
        info, key_tokens, at = self.source.info, self.key_tokens, self.computing
        return About(
            tokens=self.queries,
            source=info,
            run=RunInfo(__version__, at.device, at.dtype, core or at.core, overrides),
            key_tokens=key_tokens,
            checks={**(checks or {}), **self.checks},
            notices=(
                *info.notices,
                *self.queries.notices,
                *(() if key_tokens is None else key_tokens.notices),
                *self.what_if.notices(info),
                *notices,
            ),
        )


def open_source(
    *,
    weights: str | Mapping[str, Any] = "sample",
    layer: str | int | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    project: Callable[..., Array] = reference.project,
) -> Source:
    """Open the place attention comes from: random, bundled, a weight file, or an installed source.

    ``weights`` is ``sample``, ``sample-8``, ``random``, a path, or ``NAME`` or ``NAME:WHAT`` of a source
    that an installed package registers (group ``attnviz.sources``): ``open(WHAT)`` of what it
    registers gives the ``Source``. A mapping of names (``w_q``, ``w_k``, …) to arrays means what a
    file of them would.
    """
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
    from attnviz.sources.layers.weights import SAMPLES, open_weights

    if not isinstance(weights, str):
        return open_weights(
            _held(weights),
            layer=None if layer is None else parse_layer(layer),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            seed=seed,
            project=project,
        )
    name, _, what = weights.partition(":")
    if weights not in SAMPLES and not os.path.exists(weights) and name in installed("sources"):
        source: Source = load("sources", name).open(what)
        return source
    return open_weights(
        weights,
        layer=None if layer is None else parse_layer(layer),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        seed=seed,
        project=project,
    )


def _held(weights: Any) -> Any:
    """Return arrays in memory as a file of arrays; strings and plain numbers are its metadata."""
    from attnviz.runs.show import as_array
    from attnviz.sources.layers.weights import hold_arrays

    if not isinstance(weights, Mapping) or not weights:
        raise UsageError(
            f"weights is {type(weights).__name__}: give a name, a path, or a mapping of names to arrays"
        )
    plain = {name: v for name, v in weights.items() if isinstance(v, str | bool | int | float)}
    arrays = {name: as_array(v, name) for name, v in weights.items() if name not in plain}
    told = {n: v if isinstance(v, str) else str(v).lower() for n, v in plain.items()}
    return hold_arrays(arrays, told)


def open_place(
    *,
    weights: str | Mapping[str, Any] = "sample",
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
    causal: bool | None = None,
    window: int | None = None,
    scale: str | float | None = None,
    n_tokens: int = 0,
    notify: Notify = _say_nothing,
    layers_done: Tell | None = None,
) -> Place:
    """Open a layer's weights or a model, for any number of texts.

    Parameters
    ----------
    weights, seed, d_model, d_k, n_heads, n_kv_heads
        As of ``open_source``, where no model is given.
    model
        A Hugging Face folder, a place in its local cache, or a GGUF file.
    engine
        Who runs a model: ``light``, ``library``, or ``auto``, the light one where it is proved.
    attention, decoder_text
        Of an encoder-decoder: ``self``, ``cross`` or ``encoder``, and the decoder's text.
    max_tokens
        Cut longer texts, and say so.
    layer
        Of a model a number, a range or ``all``; of a weight file, which one it is.
    device, dtype
        Where, and in what precision; a model itself runs in float32 where float64 is asked for.
    causal, window, scale
        What if: no looking ahead, at most ``window`` keys, scores times ``scale`` (``"none"``: not
        divided at all), in place of the source's own rule.
    n_tokens
        About how long the texts are: short ones are projected by numpy.
    notify
        Told about slow first-time work.
    layers_done
        Told, as a model runs, how many layers of how many are done.

    Raises
    ------
    UsageError
        Options that do not go together, or a layer that is not there.
    InputError
        File or model cannot be read.
    """
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens} leaves nothing: give 1 or more")
    what_if = WhatIf.read(causal, window, scale)
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
        layers = source.layers  # the layer of a file was chosen as it was opened
        if len(layers) > 1:
            layers = choose_layers(layer, layers, source.info.n_layers)
        return Place(source, layers, device, dtype, what_if, max_tokens, notify)
    if weights != "sample":
        raise UsageError(f"--weights {weights} and --model {model} exclude each other: choose one")
    if n_heads is not None or n_kv_heads is not None:
        raise UsageError("--n-heads and --n-kv-heads are for weights: a model says its own")
    opened = _open_model(
        model,
        engine=engine,
        device=device,
        dtype=dtype,
        which=attention,
        max_tokens=max_tokens,
        target=decoder_text,
        notify=notify,
        layers_done=layers_done,
    )
    layers = choose_layers(layer, opened.layers, opened.info.n_layers)
    if opened.device.startswith("mps") and dtype == "float64":
        dtype = "float32"  # the device has no other
    return Place(opened, layers, opened.device, dtype, what_if, notify=notify)


def _open_model(
    path: str, *, engine: str, device: str, dtype: str, layers_done: Tell | None = None, **how: Any
) -> Source:
    """Open a model with whoever runs it."""
    from attnviz.sources.families.opening import try_light

    runs_in = "float32" if dtype == "float64" else dtype
    light = try_light(path, engine=engine, device=device, dtype=runs_in, tell=layers_done, **how)
    if light is not None:
        return light
    from attnviz.core.device import choose_device, choose_dtype
    from attnviz.sources.models.source import open_model

    place = str(choose_device(device))
    choose_dtype(dtype)
    return open_model(path, device=place, dtype=runs_in, **how)


def open_text(text: str, *, layer: str | int | None = None, **origin: Unpack[Origin]) -> Run:
    """Open a layer's weights or a model (``open_place``), and cut a text with its tokenizer."""
    return open_place(layer=layer, **origin, n_tokens=len(text) // 2).send(text)


# -- how many cells are held -----------------------------------------------------------------


def fitting_cells(most: int | None = None) -> int:
    """Return how many cells may be held at once, by the limit and by the memory there is."""
    most = DENSE_MAX_CELLS if most is None else most
    room = memory.room_bytes()
    return most if room is None else min(most, room // DENSE_CELL_BYTES)


def check_dense_size(n_queries: int, n_keys: int, n_heads: int) -> None:
    """Refuse what would not fit before computing it.

    Raises
    ------
    TooLong
        More cells than are ever held, or than the memory takes; says how many tokens fit.
    """
    cells = n_queries * n_keys * n_heads
    fitting = fitting_cells()
    if cells <= fitting:
        return
    held = f"at most {DENSE_MAX_CELLS} are held"
    if fitting < DENSE_MAX_CELLS:
        told = memory.compare(cells * DENSE_CELL_BYTES, fitting * DENSE_CELL_BYTES)
        held = f"holding them {told}"
    raise TooLong(
        f"{_count(n_queries, n_keys, n_heads)}: {held}, "
        f"which is {math.isqrt(fitting // n_heads)} tokens; shorten the text, choose fewer heads, "
        "or use attnviz summary, which takes any length"
    )


def _count(n_queries: int, n_keys: int, n_heads: int) -> str:
    return f"{n_queries} tokens and {n_heads} heads make {n_queries * n_keys * n_heads} cells"


# -- which heads are shown -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """The layers and heads to show.

    Parameters
    ----------
    ranking
        Every head considered, the most telling first, where the choice was ours.
    kept
        Layers that were run on the way, by number, as the source gave them.
    query
        The query it was chosen for, None for all.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    ranking: tuple[HeadChoice, ...] = ()
    kept: Mapping[int, LayerHeads] = field(default_factory=dict)
    query: int | None = None


def choose(
    run: Run,
    *,
    layer: str | int | None,
    head: str | int | None,
    query: int | None,
    words: bool = False,
) -> Chosen:
    """Return the layers and heads that a request means.

    Parameters
    ----------
    layer
        As it was asked for: None is all of a model's, where one head is to be chosen the most telling.
    head
        A number, a range, ``all``, ``mean``, ``auto`` or None, which is auto for a model.
    query
        Index of the token that ``auto`` asks about; any where None. Of the word, with ``words``.
    words
        Rank by the weights of words instead of tokens.

    Raises
    ------
    UsageError
        A layer or head that does not exist.
    TooLong
        Words of a text of which one head cannot be held whole.
    """
    info, layers = run.source.info, run.layers
    is_auto = head == "auto" or (head is None and info.is_model)
    heads = choose_heads("all" if is_auto else head, info.n_heads)
    is_one = str(head).isdigit() and layer is None  # a head's number alone: in which layer?
    if not (is_auto or is_one) or len(layers) * len(heads) == 1:
        return Chosen(layers, heads, query=query)
    ranking, kept = rank(run, layers, heads, query, words=words)
    best = ranking[0]
    kept = {best.layer: kept[best.layer]} if best.layer in kept else {}
    return Chosen((best.layer,), (best.head,), ranking, kept, query)


def rank(
    run: Run,
    layers: Sequence[int],
    heads: Sequence[int],
    query: int | None,
    *,
    words: bool = False,
) -> tuple[tuple[HeadChoice, ...], dict[int, LayerHeads]]:
    """Run the layers and rank their heads; small layers are kept for what comes next.

    Notes
    -----
    One layer at a time; of each head O(L + S) numbers stay. Long texts are gone through in blocks of
    rows, twice, so that the choice is the same at any length.
    """
    from attnviz.core.measures.choose import Ranking

    n_heads = len(heads) * len(layers)
    is_long = run.n_cells * n_heads > AUTO_MAX_CELLS or run.too_long_for(1) is not None
    if words:  # pooling takes a head whole
        is_long = False
        check_dense_size(len(run.queries), len(run.keys), 1)
    if is_long:
        run.notify(
            f"looking for the most telling of {n_heads} heads over {len(run.queries):,} tokens; "
            "--layer N --head N chooses one at once"
        )
    groups = (group_words(run.queries), group_words(run.keys)) if words else None
    queries, keys = run.queries, run.keys
    if groups is not None:
        queries, keys = (join_tokens(t, g) for t, g in zip((queries, keys), groups))
    ranking = Ranking(
        keys.special,
        query,
        n_queries=len(queries),
        special_queries=None if run.key_tokens is None else queries.special,
    )
    kept: dict[int, LayerHeads] = {}
    room = _KEPT_NUMBERS

    def consume(found: LayerHeads) -> None:
        nonlocal room
        room -= sum(int(np.prod(part.shape)) for part in (found.q, found.k, found.v))
        if room >= 0:
            kept[found.layer] = found
        if is_long:
            from attnviz.core.device import choose_device
            from attnviz.core.stream.rectangle import weight_rows

            device = choose_device(run.computing.device)
            for head in heads:
                ranking.add_rows(found.layer, head, weight_rows(found, head, device=device))
            return
        step = max(1, fitting_cells(_AT_ONCE_CELLS) // run.n_cells)
        for first in range(0, len(heads), step):
            some = tuple(heads[first : first + step])
            narrowed, places = narrow(found, some)
            weights_HLS = np.asarray(run.computing.trace_heads(narrowed)["weights"])
            weights_HLS = weights_HLS[list(places)]
            if groups is not None:
                weights_HLS = pool(weights_HLS, *groups)
            ranking.add(found.layer, some, weights_HLS)

    run.source.run(run.tokens, tuple(layers), consume)
    return ranking.ranked(), kept


def narrow(layer: LayerHeads, heads: Sequence[int]) -> tuple[LayerHeads, tuple[int, ...]]:
    """Return a layer with only these heads, and where they stand in it.

    Arrays of numpy, which are small, stay whole, so that nothing heavy is imported.
    """
    if isinstance(layer.q, np.ndarray) or tuple(heads) == tuple(range(layer.n_heads)):
        return layer, tuple(heads)
    from attnviz.core.placing import select_heads

    return select_heads(layer, heads), tuple(range(len(heads)))
