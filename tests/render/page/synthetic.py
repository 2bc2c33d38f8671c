"""Layers without a model: q, k, v of any size, random or with the patterns real heads have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.records import About, LayerHeads, LayerStack, MaskRule, RunInfo, SourceInfo, Tokens


def make_tokens(labels: Sequence[str]) -> Tokens:
    n = len(labels)
    return Tokens(
        text=" ".join(labels),
        ids=tuple(range(n)),
        pieces=tuple(labels),
        labels=tuple(labels),
        spans=(None,) * n,
        special=(False,) * n,
    )


def make_info(n_layers: int, n_heads: int, n_kv_heads: int, d_k: int, d_v: int) -> SourceInfo:
    return SourceInfo(
        kind="synthetic", name="patterns", sha256="0" * 64, n_layers=n_layers, n_heads=n_heads,
        n_kv_heads=n_kv_heads, d_model=n_heads * d_k, d_k=d_k, d_v=d_v, seed=0,
    )  # fmt: skip


def make_layer(
    n_tokens: int,
    *,
    n_heads: int = 2,
    n_kv_heads: int | None = None,
    d_k: int = 8,
    d_v: int | None = None,
    seed: int = 0,
    dtype: type = np.float32,
    visible: MaskRule | None = None,
    patterned: bool = False,
    **more: object,
) -> LayerHeads:
    """Random q, k, v; with ``patterned``, heads that look at themselves, before, or the first."""
    draw = np.random.Generator(np.random.Philox(seed)).standard_normal
    groups = n_kv_heads or n_heads
    q, k = draw((n_heads, n_tokens, d_k)), draw((groups, n_tokens, d_k))
    if patterned:
        for head in range(n_heads):
            shift, strength = (
                (0, 1, 2, 5, 0, 1)[(head + seed) % 6],
                0.3 + 0.25 * ((head * 5 + seed) % 7),
            )
            q[head] = (
                strength * np.roll(k[head // (n_heads // groups)], shift, axis=0) + 0.4 * q[head]
            )
            if (head + seed) % 6 >= 4:
                k[head // (n_heads // groups), 0] += 1.5 * q[head].mean(axis=0) + 0.3
    return LayerHeads(
        q=q.astype(dtype),
        k=k.astype(dtype),
        v=draw((groups, n_tokens, d_v or d_k)).astype(dtype),
        scale=d_k**-0.5,
        visible=visible or MaskRule(),
        layer=seed,
        **more,  # type: ignore[arg-type]
    )


def make_stack(layers: Sequence[LayerHeads], labels: Sequence[str] | None = None) -> LayerStack:
    first = layers[0]
    n_heads, groups = first.n_heads, first.n_kv_heads
    return LayerStack(
        About(
            make_tokens(labels or [f"t{i}" for i in range(first.n_queries)]),
            make_info(len(layers), n_heads, groups, first.d_k, first.d_v),
            RunInfo("0", "cpu", str(first.q.dtype), "none"),
        ),
        layers=tuple(layers),
        heads=tuple(range(n_heads)),
        kv_heads=tuple(range(groups)),
    )


HOSTILE_PARTS = (
    "<script>alert(1)</script>", "</script/x", "</script x", "<!--<script x", "</script><script>alert(2)</script>", "<!--", "-->", "<![CDATA[", "]]>",
    "<img src=x onerror=alert(3)>", '" onmouseover="alert(4)', "' autofocus onfocus='alert(5)", "`", "${1}",
    "{{script}}", "{{data}}", "{{style}}", "&lt;", "&amp;", "&#0;", "\0", "\x1b[2J", "\x07", "\x7f", "\x9b31m",
    "\r\n", "\n", "\t", "\u2028", "\u2029", "\u202e", "\u2066", "\u2069", "\u200b", "\u200d", "\ufeff", "\ufffe",
    "\ud800", "\udc00", "\udfff\ud800", "\udce9", "猫", "日本語", "שלום", "مرحبا", "हिन्दी", "e\u0301", "a" + "\u0301" * 30,
    "🧸", "👩\u200d👩\u200d👧", "\U0001f1e9\U0001f1ea", "\ufe0f", "\U000e0041", "[pad]", "[/INST]", "$$x$$", "=1+1",
    "javascript:alert(6)", "url(x)", "*/", "</style>", "</title>", "</textarea>", "\\u003c", "\\", "%00", "  ", "",
    "x" * 3000,
)  # fmt: skip


def hostile_tokens(n: int, *, seed: int = 0) -> list[str]:
    """The parts one by one, then joined at random, with any code points between them."""
    draw = np.random.default_rng(seed)

    def letters() -> str:
        return "".join(chr(c) for c in draw.integers(0, 0x110000, draw.integers(0, 4)))

    tokens = list(HOSTILE_PARTS)
    while len(tokens) < n:
        parts = [HOSTILE_PARTS[i] for i in draw.integers(0, len(HOSTILE_PARTS) - 1, 3)]
        tokens.append(letters().join(parts[: int(draw.integers(1, 4))]) + letters())
    return tokens[:n]
