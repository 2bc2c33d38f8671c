"""Numbers on the command line that are digits elsewhere in Unicode, or too long for a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Result

from attnviz.errors import UsageError
from attnviz.runs.request import parse_layer

ODD = ("²", "٣", "9" * 5000, "-1", "1.0", "", "0x1")


@pytest.mark.parametrize("layer", ODD)
def test_a_layer_that_is_no_number_is_a_usage_error(layer: str, cli: Callable[..., Result]) -> None:
    with pytest.raises(UsageError, match="is no number: a weight file is read one layer at a time"):
        parse_layer(layer)
    done = cli("explain", "a b", "-w", "sample", f"--layer={layer}")
    assert done.code == 2
    assert len(done.err) < 300
    assert (parse_layer("7"), parse_layer(7), parse_layer("007")) == (7, 7, 7)
