"""Device and precision: what is asked for is what is used, or an error that says what is there."""

from __future__ import annotations

import pytest
import torch

from attnviz.core import device
from attnviz.errors import ResourceError, UsageError


def test_a_device_that_is_not_here_says_what_is():
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ResourceError, match=f"'{absent}' is not here: this machine has cpu \\("):
        device.choose_device(absent)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cpu:1", "cuda:-1", "CUDA", "cuda:²"])
def test_a_wrong_name_lists_the_choices(name):
    with pytest.raises(UsageError, match="choose from auto, cpu, cuda, cuda:N, mps"):
        device.choose_device(name)


def test_a_wrong_precision_lists_the_choices_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'float32'"):
        device.choose_dtype("flaot32")


def test_mps_has_no_float64():
    with pytest.raises(UsageError, match="mps has no float64"):
        device.choose_dtype("float64", device=torch.device("mps"))


def test_full_float32_inside_whatever_was_set_outside():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with device.full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_facts_of_this_machine():
    assert device.thread_facts()["cores"] >= 1
    free = device.free_memory_bytes(torch.device("cpu"))
    assert free is None or free > 0
    assert device.cache_bytes(2) >= 2**16
    assert device.describe_device(torch.device("cpu")).startswith("cpu, ")
