"""What a library raises on a stranger's model is one line; what is ours, and Ctrl-C, goes through."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.sources.models import guarding
from attnviz.sources.models.guarding import guard, guard_run, one_line


class PanicException(BaseException):
    """As the tokenizer library raises it."""


def raising(fault: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise fault

    return work


@pytest.mark.parametrize(
    ("fault", "becomes"),
    [
        (KeyError("q\nk"), InputError), (PanicException("at line 3"), InputError),
        (MemoryError(), ResourceError), (UsageError("ours"), UsageError),
        (KeyboardInterrupt(), KeyboardInterrupt), (SystemExit(3), SystemExit),
    ],
)  # fmt: skip
def test_loading(fault: BaseException, becomes: type[BaseException]) -> None:
    with pytest.raises(becomes) as caught:
        guard("model", raising(fault))
    assert "\n" not in str(caught.value)
    if becomes in (InputError, ResourceError):
        assert "model" in str(caught.value)
        assert caught.value.__cause__ is fault


@pytest.mark.parametrize(
    ("fault", "becomes"),
    [
        (UsageError("ours"), UsageError), (MemoryError(), MemoryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)  # fmt: skip
def test_running_lets_ours_through(fault: BaseException, becomes: type[BaseException]) -> None:
    with pytest.raises(becomes):
        guard_run("model", raising(fault))


def code_in(path: str, source: str, **names: Any) -> Callable[[], Any]:
    """Make a function whose code lies in a certain file, as tracebacks see it."""
    exec(compile(source, path, "exec"), names)
    work: Callable[[], Any] = names["work"]
    return work


def test_a_fault_of_the_models_own_code_is_one_line() -> None:
    library = code_in("/library/modeling.py", "def work():\n    raise KeyError('no such weight')")
    with pytest.raises(InputError, match=r"^model does not run: 'no such weight'"):
        guard_run("model", library)


def test_a_fault_of_ours_called_from_inside_a_model_stays() -> None:
    ours = code_in(guarding.__file__, "def work():\n    raise ValueError('a bug of ours')")
    library = code_in("/library/modeling.py", "def work():\n    ours()", ours=ours)
    with pytest.raises(ValueError, match="a bug of ours"):
        guard_run("model", library)


def test_a_fault_in_an_operation_that_the_tap_hears_is_the_model_s() -> None:
    """A table of positions that is too short, read off while eager attention runs."""
    torch = pytest.importorskip("torch")
    from attnviz.sources.models.capture.tap import tap

    table = torch.nn.Embedding(2, 4)
    with tap(table, lambda _: None, n_batch=1), pytest.raises(InputError, match="out of range"):
        guard_run("model", lambda: table(torch.tensor([[5]])))


def test_what_a_library_says_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        os.write(1, b"a stranger's words")
        os.write(2, b"a panic")
        warnings.warn("old", stacklevel=1)
        return 3

    assert guard("model", work, hush=True) == 3
    assert capfd.readouterr() == ("", "")
    assert guard("model", work) == 3
    assert capfd.readouterr() == ("", "a panic")


def test_a_long_message_is_cut_and_an_empty_one_is_the_faults_name() -> None:
    assert one_line(ValueError("a \n\t b\n" * 99)) == ("a b " * 99)[:200]
    assert one_line(ValueError()) == "ValueError"
