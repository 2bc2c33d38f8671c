"""Numbers as text: one way for a whole table, and no sign that only rounding gave."""

from __future__ import annotations

import pytest

from attnviz.render.text import number_writer, write_percent


@pytest.mark.parametrize("noise", [-1e-17, -0.0, 0.0, 1e-17])
@pytest.mark.parametrize("precision", range(7))
def test_what_shows_as_0_has_no_sign(noise: float, precision: int) -> None:
    zeros = number_writer([100.0], precision)(0.0), write_percent(0.0, precision)
    assert (number_writer([100.0], precision)(noise), write_percent(noise, precision)) == zeros
    assert "-" not in "".join(zeros)


def test_what_is_below_0_keeps_its_sign() -> None:
    assert number_writer([1.0], 4)(-0.00005) == "-0.0001"
    assert number_writer([1e-9], 2)(-1e-9) == "-1.00e-09"
    assert write_percent(-0.0001, 4) == "-0.01 %"


def test_a_table_is_written_in_one_way() -> None:
    write = number_writer([0.25, 1e-9], 3)
    assert [write(0.25), write(1e-9), write(float("nan"))] == ["0.250", "0.000", "nan"]
    assert [write(float("inf")), write(float("-inf"))] == ["∞", "−∞"]
    assert number_writer([1e7], 2)(1e7) == "1.00e+07"
    assert number_writer([9_999_999.0], 2)(1.0) == "1.00"
