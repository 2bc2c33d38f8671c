"""The self-test of the doctor is right here, and sees arithmetic that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnviz.core import reference
from attnviz.core.selftest import run_cases


def test_the_arithmetic_of_this_machine_is_right() -> None:
    cases = list(run_cases())
    assert len({case.name for case in cases}) == 5
    assert all(case.is_right for case in cases)


@pytest.mark.parametrize("fault", [1e-9, 0.5, np.nan])
def test_wrong_weights_are_seen(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.trace_heads

    def wrong(*asked: Any, **more: Any) -> dict[str, Any]:
        stages = dict(right(*asked, **more))
        return {**stages, "weights": stages["weights"] + fault}

    monkeypatch.setattr(reference, "trace_heads", wrong)
    assert not any(case.is_right for case in run_cases())
