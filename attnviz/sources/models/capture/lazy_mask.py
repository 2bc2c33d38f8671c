"""A model's own mask as a rule: nothing L × S is held, whatever the length.

What lives here: the mask function registered with ``transformers``, the tensor without storage it
returns, and the translation of a model's rule into ``MaskRule``. What does not: attention.

Without a mask function of ours the library would give the model *no mask at all*, silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from attnviz.errors import ResourceError
from attnviz.records import MaskRule

MATERIALISE_LIMIT_CELLS = 8192 * 8192
"""A model that computes with its mask gets a dense one up to this size."""

Index = torch.Tensor
IndexRule = Callable[[Index, Index, Index, Index], torch.Tensor]
"""``rule(batch, head, query, key) -> bool``, by index, broadcasting."""


class LazyMask(torch.Tensor):
    """Looks like the additive (B, 1, L, S) mask of eager attention, and holds only its rule.

    Reading its shape costs nothing. Any computation with it makes the dense mask, refused above
    ``MATERIALISE_LIMIT_CELLS``.
    """

    rule: IndexRule
    query_offset: int
    key_offset: int

    @staticmethod
    def __new__(
        cls,
        rule: IndexRule,
        shape: tuple[int, ...],
        *,
        query_offset: int = 0,
        key_offset: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> LazyMask:
        make: Any = torch.Tensor._make_wrapper_subclass
        mask: LazyMask = make(cls, shape, dtype=dtype, device=device)
        mask.rule, mask.query_offset, mask.key_offset = rule, query_offset, key_offset
        return mask

    def visible(
        self, rows: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """Evaluate the rule for a rectangle: (B, 1, rows, keys) bool."""
        n_batch, _, n_queries, n_keys = self.shape
        device = self.device
        row0, row1 = rows or (0, n_queries)
        key0, key1 = keys or (0, n_keys)
        query = torch.arange(row0, row1, device=device) + self.query_offset
        key = torch.arange(key0, key1, device=device) + self.key_offset
        seen = self.rule(
            torch.arange(n_batch, device=device)[:, None, None, None],
            torch.zeros((1, 1, 1, 1), dtype=torch.long, device=device),
            query[None, None, :, None],
            key[None, None, None, :],
        )
        return seen.expand(n_batch, -1, len(query), len(key))

    def dense(self) -> torch.Tensor:
        """Make the additive mask: 0 where visible, the smallest finite number elsewhere."""
        if self.shape[-2] * self.shape[-1] > MATERIALISE_LIMIT_CELLS:
            raise ResourceError(
                f"this model computes with its {self.shape[-2]} × {self.shape[-1]} mask: at most "
                f"{MATERIALISE_LIMIT_CELLS} cells are made; give a shorter text"
            )
        hidden = torch.finfo(self.dtype).min
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(self.visible(), zero, hidden)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyMask{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            mask: LazyMask = args[0]
            return LazyMask(
                mask.rule,
                tuple(mask.shape),
                query_offset=mask.query_offset,
                key_offset=mask.key_offset,
                dtype=mask.dtype,
                device=mask.device,
            )
        made = torch.utils._pytree.tree_map_only(LazyMask, LazyMask.dense, (args, kwargs or {}))
        result: torch.Tensor = func(*made[0], **made[1])
        return result


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: IndexRule | None = None,
    attention_mask: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    allow_is_bidirectional_skip: bool = False,
    **_: Any,
) -> torch.Tensor | None:
    """Build a model's mask; registered as ``AttentionMaskInterface``, whose names these are.

    Returns
    -------
    None
        Where the model itself would have no mask: every token sees every token.
    LazyMask
        (B, 1, L, S), a rule.
    torch.Tensor
        Dense, for rules that are not index based (``use_vmap``), by the library's own function.
    """
    masking_utils: Any = import_module("transformers.masking_utils")
    rule = mask_function or masking_utils.causal_mask_function
    if use_vmap:
        dense: torch.Tensor = masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, rule, attention_mask, dtype,
            use_vmap=True, device=device,
        )  # fmt: skip
        return dense
    padding = attention_mask
    if padding is not None:
        missing = kv_length + kv_offset - padding.shape[-1]
        if missing > 0:
            padding = torch.nn.functional.pad(padding, (0, missing))
        padding = None if bool(padding.all()) else padding.bool()
    if padding is not None:
        rule = masking_utils.and_masks(rule, masking_utils.padding_mask_function(padding))
    elif rule is masking_utils.bidirectional_mask_function and allow_is_bidirectional_skip:
        return None
    shape = (batch_size, 1, q_length, kv_length)
    return LazyMask(
        rule, shape, query_offset=q_offset, key_offset=kv_offset, dtype=dtype, device=device
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """The real tokens of one sentence in a padded batch: half-open ranges of queries and keys."""

    batch: int
    queries: tuple[int, int]
    keys: tuple[int, int]


def read_rule(mask: LazyMask, cut: Cut) -> MaskRule:
    """Translate a model's rule for one sentence, counted from its own first token.

    Causal, sliding, chunked and padding rules are recognised by the library's own building
    blocks, and believed only where a handful of rows evaluates the same; anything else becomes
    ``MaskRule(where=…)``, exact but without skipping.

    Raises
    ------
    ResourceError
        A real query would see padding: its numbers would depend on other sentences.
    """
    first_query, first_key = cut.queries[0] + mask.query_offset, cut.keys[0] + mask.key_offset
    found = _recognise(mask, cut, first_query - first_key)
    n_queries, n_keys = cut.queries[1] - cut.queries[0], cut.keys[1] - cut.keys[0]
    probes = {0, 1, n_queries // 3, n_queries // 2, n_queries - 2, n_queries - 1}
    for row in sorted(row for row in probes if 0 <= row < n_queries):
        place = cut.queries[0] + row
        seen = mask.visible(rows=(place, place + 1))[cut.batch, 0, 0]
        if bool(seen[: cut.keys[0]].any()) or bool(seen[cut.keys[1] :].any()):
            raise ResourceError(
                "this model lets real tokens look at padding: run its texts one at a time"
            )
        if found is not None:
            ours = _row(found, row, n_queries, n_keys)
            if not torch.equal(ours, seen[cut.keys[0] : cut.keys[1]].cpu()):
                found = None
    if found is not None:
        return found

    def where(head: Any, query: Any, key: Any) -> Any:
        rows = torch.as_tensor(query, device=mask.device) + first_query
        columns = torch.as_tensor(key, device=mask.device) + first_key
        batch = torch.full_like(rows, cut.batch)
        seen = mask.rule(batch, torch.zeros_like(rows), rows, columns)
        return seen if isinstance(query, torch.Tensor) else seen.cpu().numpy()

    return MaskRule(where=where)


def _recognise(mask: LazyMask, cut: Cut, shift: int) -> MaskRule | None:
    """Read causal, window and chunk out of the library's nested rules; None where one is new."""
    n_queries, n_keys = cut.queries[1] - cut.queries[0], cut.keys[1] - cut.keys[0]
    rule = MaskRule()
    for name, cells in _parts(mask.rule):
        if name == "causal_mask_function":
            if shift != n_keys - n_queries:
                return None
            rule = replace(rule, causal=True)
        elif name == "sliding_window_overlay.<locals>.inner_mask":
            rule = replace(rule, window=int(cells["sliding_window"]))
        elif name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            rule = replace(rule, window=2 * int(cells["sliding_window"]) + 1)
        elif name == "chunked_overlay.<locals>.inner_mask":
            if int(cells["left_padding"][cut.batch]) != cut.keys[0] + mask.key_offset:
                return None
            rule = replace(rule, chunk=int(cells["chunk_size"]))
        elif name not in (
            "bidirectional_mask_function",
            "padding_mask_function.<locals>.inner_mask",
        ):
            return None
    if rule.window is not None and not rule.causal and rule.window % 2 == 0:
        return None
    return rule


def _parts(rule: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the building blocks of a rule with what they close over; unknown ones by their name."""
    if getattr(rule, "__module__", "") != "transformers.masking_utils":
        yield "?", {}
        return
    names = rule.__code__.co_freevars
    cells = {n: cell.cell_contents for n, cell in zip(names, rule.__closure__ or ())}
    if rule.__qualname__ == "and_masks.<locals>.and_mask":
        for part in cells["mask_functions"]:
            yield from _parts(part)
    else:
        yield rule.__qualname__, cells


def _row(rule: MaskRule, row: int, n_queries: int, n_keys: int) -> torch.Tensor:
    """Evaluate a recognised rule for one query: (S,) bool."""
    key, position = torch.arange(n_keys), row + n_keys - n_queries
    seen = torch.ones(n_keys, dtype=torch.bool)
    if rule.causal:
        seen &= key <= position
    if rule.window is not None:
        before = rule.window - 1 if rule.causal else rule.window // 2
        after = 0 if rule.causal else rule.window // 2
        seen &= (key >= position - before) & (key <= position + after)
    if rule.chunk is not None:
        seen &= key // rule.chunk == position // rule.chunk
    return seen
