"""The records that cross layers: frozen, plain, without behaviour that needs another layer.

What lives here: what a source hands to the core, and what the core hands to the screen.
What does not: how any of it is computed (``core``), read (``sources``) or drawn (``render``).

Axis letters (the same everywhere): L queries, S keys, D d_model, H query heads,
K key/value heads, E d_head of q and k (the paper's d_k), F width of v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A numpy array, or a torch tensor where the torch core is at work."""

Span: TypeAlias = tuple[int, int]
"""Start and end of a token in its source text, in characters, end excluded."""

STAGES = ("q", "k", "v", "scores", "scaled", "bias", "capped", "masked", "weights", "output")
"""Every stage between x and z, in the order of computation."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text cut into tokens by its source's own tokenizer.

    Every tuple has one entry per token. ``labels`` are what a person reads (raw text: a
    format makes it visible), ``pieces`` the vocabulary's own strings, ``spans`` the exact
    place in ``text`` (None for a token that the tokenizer added), ``special`` marks those.
    ``notices`` say what the text lost on the way (characters without a token, unknown words).
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    labels: tuple[str, ...]
    spans: Sequence[Span | None]
    special: tuple[bool, ...]
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


NO_TOKENS = Tokens("", (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class MaskRule:
    """Which keys a query may see, as a rule; nothing L × S is held unless ``cells`` is given.

    All parts are combined with "and". True always means *may attend*.

    Parameters
    ----------
    causal
        A query sees no key after itself. With fewer queries than keys, the last query is
        aligned with the last key.
    window
        A query sees at most this many keys, itself included: the last ones where ``causal``,
        otherwise centred (one more before than after when the number is even).
    chunk
        Queries and keys are cut into chunks of this many positions; a query sees its own.
    key_visible
        (S,) bool; False where a key is padding.
    cells
        (L, S) or (H, L, S) bool, for small inputs.
    where
        ``where(head, query, key) -> bool array``: any other rule by index, broadcasting;
        a model's own lazy mask arrives this way. ``query`` counts from the first query.
    """

    causal: bool = False
    window: int | None = None
    chunk: int | None = None
    key_visible: Array | None = None
    cells: Array | None = None
    where: Callable[[Array, Array, Array], Array] | None = None

    @property
    def hides_nothing(self) -> bool:
        """True where every query sees every key by construction."""
        arrays = (self.key_visible, self.cells, self.where)
        is_bound = self.window is not None or self.chunk is not None
        return not (self.causal or is_bound or any(part is not None for part in arrays))


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """One layer's heads, ready to attend: what every source yields and the core consumes.

    Parameters
    ----------
    q : (H, L, E)   biases, norms and rotary positions applied, not yet scaled
    k : (K, S, E)   query head h reads key/value head h // (H // K)
    v : (K, S, F)
    scale
        scaled = (q·kᵀ) · scale; 1/√E unless the source says otherwise.
    visible
        Which cells enter the softmax.
    softcap
        capped = softcap · tanh((scaled + bias) / softcap), where the source has one.
    bias
        (H or 1, L, S) added scores, or ``bias(first_row, end_row) -> (H or 1, rows, S)``.
    sinks
        (H,) learned sink logits: an extra column of the softmax that has no value.
    x : (L, D) input of the projections, where the source knows it.
    w_o : (H·F, D) output projection, where the source has one.
    own_output : (H, L, F) what the model itself computed per head, for parity.
    inputs
        Named steps between x and q, k, v (before norm, before rotary, …), each (H or K, L, ·).
    """

    q: Array
    k: Array
    v: Array
    scale: float
    visible: MaskRule = field(default_factory=MaskRule)
    softcap: float | None = None
    bias: Array | Callable[[int, int], Array] | None = None
    sinks: Array | None = None
    x: Array | None = None
    w_o: Array | None = None
    own_output: Array | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)
    layer: int = 0
    name: str = ""

    @property
    def n_heads(self) -> int:
        return int(self.q.shape[0])

    @property
    def n_kv_heads(self) -> int:
        return int(self.k.shape[0])

    @property
    def n_queries(self) -> int:
        return int(self.q.shape[1])

    @property
    def n_keys(self) -> int:
        return int(self.k.shape[1])

    @property
    def d_k(self) -> int:
        return int(self.q.shape[2])

    @property
    def d_v(self) -> int:
        return int(self.v.shape[2])


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Where attention came from; goes into every file as provenance (no paths, only names).

    ``n_positions`` is how many tokens of a text the source can take; None where nothing bounds it.
    """

    kind: str
    name: str
    sha256: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_k: int
    d_v: int
    origin: str = ""
    seed: int | None = None
    tokenizer: str = ""
    tokenizer_sha256: str = ""
    notices: tuple[str, ...] = ()
    n_vocab: int = 0
    n_positions: int | None = None

    @property
    def is_model(self) -> bool:
        """True of a whole trained model, False of a single layer."""
        return self.kind == "model"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How the numbers were computed: version, place, precision and core."""

    version: str
    device: str
    dtype: str
    core: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class About:
    """Where a result comes from, how it was computed, and what must be said of it.

    Parameters
    ----------
    tokens
        The text's, along the queries; none where a result is about many texts.
    source, run
        Where attention comes from, and how the numbers were computed.
    key_tokens
        Those along the keys where they differ (cross attention).
    checks
        What was compared, by name: the largest difference found.
    notices
        What a reader should know: a text that was changed, a device replaced.
    """

    tokens: Tokens
    source: SourceInfo
    run: RunInfo
    key_tokens: Tokens | None = None
    checks: Mapping[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class HasAbout:
    """A result: what its ``about`` says is read through it."""

    __slots__ = ()
    about: About

    @property
    def tokens(self) -> Tokens:
        """The text's tokens, along the queries."""
        return self.about.tokens

    @property
    def key_tokens(self) -> Tokens | None:
        """The tokens along the keys where they differ (cross attention)."""
        return self.about.key_tokens

    @property
    def keys(self) -> Tokens:
        """The tokens along the key axis: the text's own, but for cross attention."""
        return self.tokens if self.key_tokens is None else self.key_tokens

    @property
    def source(self) -> SourceInfo:
        """Where attention comes from."""
        return self.about.source

    @property
    def run(self) -> RunInfo:
        """How the numbers were computed, and what was changed."""
        return self.about.run

    @property
    def checks(self) -> Mapping[str, float]:
        """What was compared, by name: the largest difference found."""
        return self.about.checks

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader should know."""
        return self.about.notices


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """One head's most telling link: how far it exceeds the head's habits (``core.choose``).

    Parameters
    ----------
    layer, head
        Their numbers.
    query, key
        The link.
    weight
        Of the link, 0 to 1.
    distance_habit
        What the head's other queries give at the same distance, on average.
    key_habit
        What they give to the same key, on average.
    telling
        weight − max(distance_habit, key_habit).
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    distance_habit: float
    key_habit: float
    telling: float


@dataclass(frozen=True, slots=True)
class LayerStack(HasAbout):
    """The asked-for layers and heads as q, k and v, nothing L × S: what an interactive page carries.

    Parameters
    ----------
    layers
        One ``LayerHeads`` per layer, numpy float32 or float64, holding only the chosen heads; k and
        v once per key/value head. A mask or bias that differs by head has H rows in that order.
    heads
        The source's numbers of the H query heads held.
    kv_heads
        The source's numbers of the K key/value heads held; query head h reads
        h // (``source.n_heads`` // ``source.n_kv_heads``).
    value_norms
        Per layer (H, S) ‖v_j·W_O‖; empty where the source has no W_O.
    """

    about: About
    layers: tuple[LayerHeads, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    value_norms: tuple[Array, ...] = ()

    @property
    def kv_index(self) -> tuple[int, ...]:
        """For each query head held, the place of its key/value head in k and v."""
        group = self.source.n_heads // self.source.n_kv_heads
        return tuple(self.kv_heads.index(head // group) for head in self.heads)


@dataclass(frozen=True, slots=True)
class Trace(HasAbout):
    """Every number of the asked-for layers and heads, dense: for texts up to the dense limit.

    ``heads`` are numbers, or ``("mean",)`` for the mean of all heads' weights. ``stages`` maps a stage's name to a numpy array of shape
    (layers, heads, rows, columns); k and v are repeated for the query heads that share them.
    ``visible`` is (layers, heads, L, S) bool. ``masked`` holds −∞ where ``visible`` is False.
    ``scale``, ``softcap`` have one entry per layer. ``sink_share`` is (layers, heads, L), the
    share of each row's softmax that went to a learned sink, where there is one.

    ``inputs`` are the steps between x and q, k that the source shows (``q_projected``,
    ``q_normed``, …), each (layers, heads, rows, E). ``ranking`` is every head considered, the most
    telling first, where the heads were chosen so; ``asked`` the query it was about, None for all.
    ``value_norms`` (layers, heads, S) is ‖v_j·W_O‖, where the source has W_O.
    """

    about: About
    layers: tuple[int, ...]
    heads: tuple[int | str, ...]
    scale: tuple[float, ...]
    softcap: tuple[float | None, ...]
    stages: Mapping[str, Array]
    visible: Array
    x: Array | None = None
    sink_share: Array | None = None
    rows_without_keys: tuple[tuple[int, int, int], ...] = ()
    inputs: Mapping[str, Array] = field(default_factory=dict)
    ranking: tuple[HeadChoice, ...] = ()
    value_norms: Array | None = None
    asked: int | None = None

    def to_numpy(self) -> dict[str, Array]:
        """Return every stage by name as numpy arrays of shape (layers, heads, rows, columns)."""
        return dict(self.stages)

    def to_json(self) -> str:
        """Return the trace as strict JSON, schema ``attnviz.trace/1``."""
        from attnviz import registry

        return str(registry.load("formats", "json").dump_trace(self))

    def plot(self, ax: Any = None, *, stage: str = "weights") -> Any:
        """Draw a stage: into matplotlib axes (one layer and head), or as a new Figure (all of them).

        Parameters
        ----------
        ax
            Axes to draw into; they are returned. Without, a ``matplotlib.figure.Figure`` is made.
        stage
            ``weights``, ``scores``, ``scaled``, ``masked``, ``q``, ``k``, ``v`` or ``output``.

        Raises
        ------
        UsageError
            A stage that is not there, or axes for more than one head.
        """
        from attnviz import registry

        return registry.load("formats", "png").plot(self, ax, stage)

    def _repr_html_(self) -> str | None:
        """Show the interactive page in a notebook, inside a sandboxed frame."""
        from attnviz import registry

        return registry.load("formats", "html").notebook_html(self)  # type: ignore[no-any-return]

    def _repr_png_(self) -> bytes | None:
        """Show the heatmap in a notebook that takes pictures only."""
        from attnviz import registry

        return registry.load("formats", "html").notebook_png(self)  # type: ignore[no-any-return]
