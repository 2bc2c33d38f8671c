"""Rotary positions: which frequencies a config means, and turning q and k by them.

Su et al. 2021, "RoFormer", section 3.2. All kinds of the library: default, linear, dynamic (NTK),
yarn, longrope, llama3; on all or the first part of a head; in halves or in pairs. Frequencies and
angles are rounded to float32 as the library rounds them: at position 300 a last digit of a
frequency is 2e-5 of an angle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnviz.sources.families.parts import Floats, Whole
from attnviz.sources.families.settings import NotOurs, table

_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("original_max_position_embeddings",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_OPTIONAL = {
    "rope_type", "type", "rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow",
    "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor", "short_factor", "long_factor",
    "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "finetuned",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """One way to turn q and k.

    Parameters
    ----------
    kind
        The library's ``rope_type``.
    theta
        Base of the frequencies.
    width
        How many of a head's numbers are turned, the first ones.
    n_positions
        ``max_position_embeddings``.
    told
        The config's other numbers, as it names them.
    in_pairs
        Neighbouring numbers are turned together (Cohere), instead of the two halves of a head.
    """

    kind: str
    theta: float
    width: int
    n_positions: int
    told: Mapping[str, Any]
    in_pairs: bool = False

    @property
    def grows(self) -> bool:
        """True where a text's length changes the frequencies of all its positions."""
        return self.kind in ("dynamic", "longrope")

    def reach(self) -> int:
        """Up to how many tokens the frequencies are those of short texts."""
        if self.kind == "longrope":
            return int(self.told["original_max_position_embeddings"])
        return self.n_positions

    def frequencies(self, n_tokens: int) -> tuple[Floats, float]:
        """Return (width / 2,) radians per position, and the factor of cosine and sine."""
        told, width = self.told, self.width
        steps = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        theta = self.theta
        attention_factor = 1.0
        if self.kind == "dynamic":
            # bloc97 2023: the base grows with the text beyond the trained length
            length, factor = max(n_tokens, self.n_positions), told["factor"]
            growth = factor * length / self.n_positions - (factor - 1)
            theta = theta * growth ** (width / (width - 2))
        slow = np.float64(theta) ** steps.astype(np.float64)
        turns = (np.float32(1) / slow.astype(np.float32)).astype(np.float32)
        if self.kind == "linear":
            turns = turns / np.float32(told["factor"])
        elif self.kind == "llama3":
            turns = self._llama3(turns)
        elif self.kind == "yarn":
            turns, attention_factor = self._yarn(slow.astype(np.float32))
        elif self.kind == "longrope":
            turns, attention_factor = self._longrope(slow.astype(np.float32), n_tokens)
        return turns.astype(np.float32), attention_factor

    def _llama3(self, turns: Floats) -> Floats:
        """Slow turns are divided by a factor, fast ones kept, those in between blended."""
        told = self.told
        factor, low, high = (told[n] for n in ("factor", "low_freq_factor", "high_freq_factor"))
        old = told["original_max_position_embeddings"]
        wave = np.float32(2 * math.pi) / turns
        kept = np.where(wave > old / low, turns / np.float32(factor), turns)
        smooth = (np.float32(old) / wave - np.float32(low)) / np.float32(high - low)
        blended = (1 - smooth) * kept / np.float32(factor) + smooth * kept
        is_between = ~(wave < old / high) & ~(wave > old / low)
        return np.where(is_between, blended, kept).astype(np.float32)

    def _yarn(self, slow: Floats) -> tuple[Floats, float]:
        """Peng et al. 2023, "YaRN", section 3.2: a ramp between interpolation and none."""
        told, width = self.told, self.width
        old = told["original_max_position_embeddings"]
        factor = told.get("factor") or self.n_positions / old
        attention_factor = told.get("attention_factor")
        if attention_factor is None:
            one, all_dim = told.get("mscale"), told.get("mscale_all_dim")
            attention_factor = (
                _mscale(factor, one) / _mscale(factor, all_dim)
                if one and all_dim
                else _mscale(factor, 1)
            )

        def place(rotations: float) -> float:
            return width * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = place(told.get("beta_fast") or 32), place(told.get("beta_slow") or 1)
        if told.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001
        ramp = np.clip(
            (np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low),
            0,
            1,
        )
        kept = 1 - ramp
        turns = (
            np.float32(1) / (np.float32(factor) * slow) * (1 - kept) + np.float32(1) / slow * kept
        )
        return turns.astype(np.float32), float(attention_factor)

    def _longrope(self, slow: Floats, n_tokens: int) -> tuple[Floats, float]:
        """Ding et al. 2024, "LongRoPE": a factor per frequency, other ones for long texts."""
        told = self.told
        old = told["original_max_position_embeddings"]
        factor = told.get("factor") or self.n_positions / old
        attention_factor = told.get("attention_factor")
        if attention_factor is None:
            attention_factor = (
                1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(old))
            )
        chosen = told["long_factor" if n_tokens > old else "short_factor"]
        return np.float32(1) / (np.array(chosen, np.float32) * slow), float(attention_factor)

    def table(self, positions_L: Whole, n_tokens: int) -> tuple[Floats, Floats]:
        """Return cosine and sine of every angle: (L, width / 2) each.

        Parameters
        ----------
        positions_L
            Of the tokens at hand.
        n_tokens
            Of the whole text they belong to.
        """
        turns, factor = self.frequencies(n_tokens)
        angles = (positions_L.astype(np.float32)[:, None] * turns).astype(np.float64)
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return cosine * np.float32(factor), sine * np.float32(factor)

    def turn(self, a_HLE: Floats, table: tuple[Floats, Floats]) -> Floats:
        """Turn q or k: each pair (a, b) becomes (a·cos − b·sin, b·cos + a·sin)."""
        cosine, sine = table
        turned = a_HLE.copy()
        part, half = a_HLE[..., : self.width], self.width // 2
        first, second = (
            (part[..., ::2], part[..., 1::2])
            if self.in_pairs
            else (part[..., :half], part[..., half:])
        )
        places = (
            (slice(0, self.width, 2), slice(1, self.width, 2))
            if self.in_pairs
            else (slice(0, half), slice(half, self.width))
        )
        turned[..., places[0]] = first * cosine - second * sine
        turned[..., places[1]] = second * cosine + first * sine
        return turned


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


@np.errstate(all="ignore")
def read_rope(
    told: Mapping[str, Any] | None,
    *,
    theta: float,
    d_head: int,
    n_positions: int,
    part: float = 1.0,
    in_pairs: bool = False,
    original: int | None = None,
) -> Rope:
    """Read what a config says about rotary positions.

    Parameters
    ----------
    told
        ``rope_parameters`` or the older ``rope_scaling``; None where the config has neither.
    theta, part
        Base and share of a head, where ``told`` says nothing.
    original
        ``original_max_position_embeddings`` beside ``told``, which goes before the one in it.

    Raises
    ------
    NotOurs
        A kind or key that is not known, or a number that is missing or out of range.
    """
    given = table(told)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    unknown = set(given) - _OPTIONAL
    if kind not in _NUMBERS or unknown:
        raise NotOurs(f"rotary positions of the kind {kind[:40]!r} {sorted(unknown)[:3]}")
    if original is not None and kind in ("yarn", "longrope", "llama3"):
        given["original_max_position_embeddings"] = original
    if kind in ("yarn", "longrope", "llama3"):
        given.setdefault("original_max_position_embeddings", n_positions)
    for name in _NUMBERS[kind]:
        if name == "factor" and kind == "yarn" and given.get(name) is None:
            continue
        _check_number(name, given.get(name))
    theta = _check_number("rope_theta", given.get("rope_theta", theta))
    share = _check_number(
        "partial_rotary_factor",
        given.get("partial_rotary_factor") if given.get("partial_rotary_factor") else part,
    )
    width = int(d_head * share)
    if not 2 <= width <= d_head or width % 2:
        raise NotOurs(f"rotary positions on {width} of {d_head} numbers of a head")
    if kind == "dynamic" and width < 4:
        raise NotOurs("dynamic rotary positions on 2 numbers of a head")
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            listed = given.get(name)
            if not isinstance(listed, list) or len(listed) != width // 2:
                raise NotOurs(f"{name} is not a list of {width // 2} numbers")
            for number in listed:
                _check_number(name, number)
    for name in ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        if given.get(name) is not None:
            _check_number(name, given[name])
    made = Rope(kind, theta, width, n_positions, given, in_pairs)
    try:
        for n_tokens in (1, n_positions):
            made.frequencies(n_tokens)
    except ArithmeticError as fault:
        raise NotOurs(f"rotary positions of the kind {kind!r}: {fault}") from fault
    return made


def _check_number(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1e18:
        raise NotOurs(f"{name} = {str(value)[:40]} of rotary positions")
    return float(value)
