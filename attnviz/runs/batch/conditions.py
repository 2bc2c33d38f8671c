"""Which texts of a batch are looked at: a small condition on their length.

What lives here: reading ``--where`` and asking it. What does not: anything about content.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from attnviz.errors import UsageError

NAMES = ("tokens", "chars")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATOR = r"\s*(<=|>=|==|!=|=|<|>)\s*"
_SIMPLE = re.compile(rf"(\w+){_OPERATOR}(\d+)", re.ASCII)
_CHAIN = re.compile(rf"(\d+){_OPERATOR}(\w+?)(?:{_OPERATOR}(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons that must all hold: (name, operator, number)."""

    parts: tuple[tuple[str, str, int], ...] = ()

    def holds(self, name: str, value: int) -> bool:
        """Tell whether everything said about one name is true of a value."""
        return all(
            _OPERATORS[sign](value, number) for what, sign, number in self.parts if what == name
        )


def read_where(text: str | None) -> Condition:
    """Read a condition: comparisons of ``tokens`` or ``chars`` with numbers, joined by ``and``.

    Raises
    ------
    UsageError
        Anything else.

    Examples
    --------
    >>> read_where("3 <= tokens <= 64 and chars < 400").parts
    (('tokens', '>=', 3), ('tokens', '<=', 64), ('chars', '<', 400))
    >>> read_where("tokens > 2").holds("tokens", 2)
    False
    """
    if text is None or not text.strip():
        return Condition()
    parts: list[tuple[str, str, int]] = []
    for piece in re.split(r"\s+and\s+|\s*,\s*", text.strip()):
        simple, chain = _SIMPLE.fullmatch(piece), _CHAIN.fullmatch(piece)
        if simple:
            found = [(simple[1], simple[2], int(simple[3]))]
        elif chain:
            found = [(chain[3], _FLIPPED.get(chain[2], chain[2]), int(chain[1]))]
            if chain[4]:
                found.append((chain[3], chain[4], int(chain[5])))
        else:
            found = [("", "", 0)]
        if any(name not in NAMES for name, _, _ in found):
            raise UsageError(
                f"--where {text!r}: {piece!r} is no comparison of tokens or chars with a number; "
                'for example --where "3 <= tokens <= 64 and chars < 400"'
            )
        parts += found
    return Condition(tuple(parts))
