"""Stored bits become numbers exactly: every value of 8 and 16 bits against torch's own widening."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnviz.sources.files.dtypes import BITS, NUMPY, WIDENED, safetensors_name, widen


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("BF16", torch.bfloat16), ("F8_E5M2", torch.float8_e5m2),
        ("F8_E4M3", torch.float8_e4m3fn),
    ],
)  # fmt: skip
def test_every_value(name: str, theirs: torch.dtype) -> None:
    bits = np.arange(2 ** BITS[name], dtype=NUMPY[name])
    plain = bits.view(np.int16 if BITS[name] == 16 else np.uint8)
    right = torch.from_numpy(plain.copy()).view(theirs).float().numpy()
    found = widen(bits, name)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, right)
    is_number = ~np.isnan(right)  # the sign of NaN says nothing
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(right)[is_number])


def test_widths_are_those_of_the_numpy_types() -> None:
    assert all(np.dtype(held).itemsize * 8 == BITS[name] for name, held in NUMPY.items())


@pytest.mark.parametrize("name", sorted(set(NUMPY) - set(WIDENED)))
@pytest.mark.parametrize("order", "<>")
def test_a_name_comes_back_in_any_byte_order(name: str, order: str) -> None:
    assert safetensors_name(np.dtype(NUMPY[name]).newbyteorder(order)) == name


def test_what_has_no_name() -> None:
    assert [safetensors_name(np.dtype(d)) for d in ("U3", "O", "M8[s]", "c16")] == [None] * 4
