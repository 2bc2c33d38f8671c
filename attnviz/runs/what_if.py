"""What if: a user's own causal rule, window or scale in place of the source's, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attnviz.masks import window_reach
from attnviz.records import LayerHeads, SourceInfo
from attnviz.runs.request import parse_scale

NOTICE = "what if: q, k and v come from the model; scores, weights and output are computed with your changes"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes of the rule by which q, k and v become weights; None leaves the source's own.

    Parameters
    ----------
    causal
        Whether a query is kept from looking at later keys.
    window
        A query sees at most this many keys, itself included.
    scale
        scaled = scores · scale.
    """

    causal: bool | None = None
    window: int | None = None
    scale: float | None = None

    @classmethod
    def read(
        cls, causal: bool | None = None, window: int | None = None, scale: str | float | None = None
    ) -> WhatIf:
        """Read what a user asked for; a scale of ``none`` is 1.

        Raises
        ------
        UsageError
            A scale that is no number above 0.
        """
        return cls(causal, window or None, parse_scale(scale))

    @property
    def changes_nothing(self) -> bool:
        """True where the source's own rule stays."""
        return self == WhatIf()

    def apply(self, heads: LayerHeads) -> LayerHeads:
        """Return a layer with these changes; ``own_output`` is dropped, it answers another question."""
        if self.changes_nothing:
            return heads
        visible = heads.visible
        if self.causal is not None:
            visible = replace(visible, causal=self.causal)
        if self.window:
            window_reach(self.window, causal=visible.causal)  # refuses a window of no keys
            visible = replace(visible, window=self.window)
        scale = heads.scale if self.scale is None else self.scale
        return replace(heads, visible=visible, scale=scale, own_output=None)

    def overrides(self, own: LayerHeads) -> dict[str, Any]:
        """Return what every file and screen says of a run: the changes, and the mask in words.

        Parameters
        ----------
        own
            A layer as its source gave it.
        """
        notes: dict[str, Any] = {}
        if self.causal is not None:
            notes["causal"] = self.causal
        if self.window:
            notes["window"] = self.window
        if self.scale is not None:
            notes |= {"scale": self.scale, "source_scale": float(own.scale)}
        is_causal = own.visible.causal if self.causal is None else self.causal
        rules = ["causal: no key after the query"] if is_causal else []
        window = self.window or own.visible.window
        rules += [f"window: {window} keys, itself included"] if window else []
        if own.visible.chunk:
            rules.append(f"chunks of {own.visible.chunk}: a query sees its own")
        return {**notes, "mask": ", ".join(rules)} if rules else notes

    def notices(self, source: SourceInfo) -> tuple[str, ...]:
        """Return what must be said where a trained model's rule was changed."""
        return () if self.changes_nothing or not source.is_model else (NOTICE,)
