"""The two sides of reading a .pt file, each by itself: what is checked, asked for and answered."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_file_formats import zip_bytes

from attnviz.errors import AttnvizError, InputError, ResourceError, WeightsError
from attnviz.sources.confined import child, pt_task
from attnviz.sources.confined.parent import Ending, Limits, ending
from attnviz.sources.files import open_arrays, pt, safetensors_

torch = pytest.importorskip("torch")
PICKLE = ("a/data.pkl", b"\x80\x02}.")


def write(folder: Path, data: bytes) -> Path:
    path = folder / "a.pt"
    path.write_bytes(data)
    return path


# --- before the child starts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x02}.", "the format of torch before 1.6"),
        (b"hello", "begins with b'hell', no torch.save file"),
        (b"", "is empty"),
        (zip_bytes(PICKLE, ("a/code/x.py", b"")), "a TorchScript program"),
        (zip_bytes(PICKLE, ("code/x.py", b"")), "a TorchScript program"),
        (zip_bytes(("a/x", b"")), "0 members data.pkl of 0 bytes"),
        (zip_bytes(PICKLE, ("b/data.pkl", b"1")), "2 members data.pkl of 5 bytes"),
        (
            zip_bytes(PICKLE, deflate=True),
            "is compressed",
        ),
    ],
)
def test_what_is_no_archive_of_tensors_never_reaches_torch(
    tmp_path: Path, data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pt, "_run_child", lambda *_: pytest.fail("the child was started"))
    with pytest.raises(WeightsError) as caught:
        pt.open_arrays(write(tmp_path, data))
    assert reason in str(caught.value)


def test_pickles_and_sums_at_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pt._MAX_PICKLE_BYTES == 8 << 20
    path = write(tmp_path, zip_bytes(PICKLE, ("a/data/0", bytes(64)), ("data.pkl.txt", b"x")))
    pt._check_archive(path)
    monkeypatch.setattr(pt, "_MAX_PICKLE_BYTES", len(PICKLE[1]))
    pt._check_archive(path)
    monkeypatch.setattr(pt, "_MAX_PICKLE_BYTES", len(PICKLE[1]) - 1)
    with pytest.raises(WeightsError, match="at most 3"):
        pt._check_archive(path)
    monkeypatch.undo()
    size_bytes = path.stat().st_size
    for total in (size_bytes, size_bytes + 1):
        info = SimpleNamespace(filename="a/data.pkl", file_size=4, compress_size=4, compress_type=0)
        rest = SimpleNamespace(
            filename="a/0", file_size=total - 4, compress_size=4, compress_type=0
        )
        archive = SimpleNamespace(infolist=lambda pair=(info, rest): pair)
        archive.__dict__["close"] = lambda: None

        class Opened:
            def __enter__(self, archive: Any = archive) -> Any:
                return archive

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(pt, "open_zip", lambda _, opened=Opened: opened())
        if total == size_bytes:
            pt._check_archive(path)
        else:
            with pytest.raises(
                WeightsError, match=f"claim {total} bytes, the file has {size_bytes}"
            ):
                pt._check_archive(path)


def test_the_child_gets_what_the_file_may_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, bytes(1000))
    seen: dict[str, Any] = {}

    def run(task: Path, arguments: list[str], *, limits: Limits) -> Ending:
        seen.update(task=task, arguments=arguments, limits=limits)
        return Ending(0, {})

    monkeypatch.setattr(pt, "run_confined", run)
    pt._run_child(path, tmp_path / "out")
    assert seen["task"].name == "pt_task.py"
    assert seen["task"].is_file()
    assert seen["arguments"] == [str(path), str(tmp_path / "out"), str(3000 + (256 << 20))]
    assert seen["limits"] == Limits(3000 + (256 << 20), 5 + 1000 / 50e6)
    monkeypatch.setattr(pt, "run_confined", lambda *_, **__: Ending(0, None, is_late=True))
    with pytest.raises(WeightsError, match="was not read within 5 s of processor time"):
        pt._run_child(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("status", "line", "kind", "reason"),
    [
        (0, b"{}", None, ""),
        (1, b"{}", WeightsError, r"made the reading process end \(status 1\)"),
        (-9, b"", WeightsError, r"\(status -9\)"),
        (0, b"", WeightsError, r"\(status 0\)"),
        (0, b"[]", WeightsError, r"\(status 0\)"),
        (0, b"[" * 99_999, WeightsError, r"\(status 0\)"),
        (0, b'{"refused": "holds nothing"}', WeightsError, r"^a\.pt holds nothing$"),
        (1, b'{"refused": "holds nothing"}', WeightsError, r"\(status 1\)"),
        (0, b'{"torch": "2.9.0"}', InputError, r"torch 2\.10 or newer \(found: 2\.9\.0\)"),
        (0, b'{"disk": "No space left"}', ResourceError, r"\(No space left\): free some"),
        (0, b'{"memory": true}', WeightsError, r"more than 77 bytes of memory"),
    ],
)
def test_every_answer_of_the_child_is_an_error_of_its_kind(
    tmp_path: Path, status: int, line: bytes, kind: Any, reason: str
) -> None:
    path = tmp_path / "a.pt"
    limits = Limits(extra_bytes=77, cpu_s=1)
    if kind is None:
        pt._raise_answer(path, ending(status, line), limits)
        return
    with pytest.raises(kind, match=reason) as caught:
        pt._raise_answer(path, ending(status, line), limits)
    assert type(caught.value) is kind


@pytest.mark.parametrize("end", [Ending(-6, None), Ending(0, {"memory": True})])
def test_too_little_memory_for_the_child_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Ending
) -> None:
    monkeypatch.setattr(pt, "free_bytes", lambda: 76)
    with pytest.raises(ResourceError, match=r"no memory is left to read a\.pt"):
        pt._raise_answer(tmp_path / "a.pt", end, Limits(extra_bytes=77, cpu_s=1))


def test_a_full_disk_for_temporary_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pt.tempfile, "TemporaryDirectory", full)
    with pytest.raises(ResourceError, match=r"a\.pt .*No space left.*TMPDIR"):
        pt.open_arrays(write(tmp_path, zip_bytes(PICKLE)))


def test_the_copy_lies_in_a_folder_of_ours_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def child(path: Path, out: Path) -> None:
        made.append(out)
        out.write_bytes(safetensors_bytes())

    monkeypatch.setattr(pt, "_run_child", child)
    found = pt.open_arrays(write(tmp_path, zip_bytes(PICKLE)))
    assert (found.name, found.format) == ("a.pt", "pt")
    assert found.read("w").tolist() == [1.0]
    assert made[0].parent.name.startswith(".attnviz-")
    assert not made[0].parent.exists()


def safetensors_bytes() -> bytes:
    file = io.BytesIO()
    safetensors_.writer({"w": np.ones(1)}, {}, {})(file)
    return file.getvalue()


# --- inside the child ---------------------------------------------------------------------------


def refusal(work: Any) -> str:
    with pytest.raises(pt_task.Refused) as caught:
        work()
    return str(caught.value)


def test_nested_values_become_dotted_names_and_metadata() -> None:
    one = torch.ones(1)
    value = {"a": {"w": one, 3: one}, "l": [one, (one, "x")], "flag": True, "off": False, "n": 8, "s": 0.5,
             "long": "x" * 65_536, "longer": "x" * 65_537, "none": None}  # fmt: skip
    tensors, metadata = pt_task.collect(value, torch)
    assert list(tensors) == ["a.w", "a.3", "l.0", "l.1.0"]
    assert metadata == {"l.1.1": "x", "flag": "true", "off": "false", "n": "8", "s": "0.5",
                        "long": "x" * 65_536}  # fmt: skip
    assert list(pt_task.collect(one, torch)[0]) == [""]
    assert list(pt_task.collect([one], torch)[0]) == ["0"]


def test_values_at_the_bounds_of_number_and_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (pt_task._MAX_NODES, pt_task._MAX_DEPTH) == (200_000, 16)
    for wrap, name in ((lambda x: {"a": x}, "a"), (lambda x: [x], "0"), (lambda x: (x,), "0")):
        deep: Any = torch.ones(1)
        for _ in range(16):
            deep = wrap(deep)
        assert list(pt_task.collect(deep, torch)[0]) == [".".join(name * 16)]
        for deeper in ([deep], {"a": deep}):
            assert "nests them too deeply" in refusal(lambda d=deeper: pt_task.collect(d, torch))  # type: ignore[misc]
    monkeypatch.setattr(pt_task, "_MAX_NODES", 4)
    three = {"a": torch.ones(1), "b": 1, "c": 2}
    assert list(pt_task.collect(three, torch)[0]) == ["a"]
    assert "more than 4 values" in refusal(lambda: pt_task.collect({**three, "d": 3}, torch))
    assert "holds no tensors" in refusal(lambda: pt_task.collect({"a": 1}, torch))
    twice = {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}
    assert "two tensors of one name, 'a.b'" in refusal(lambda: pt_task.collect(twice, torch))


def test_every_type_that_is_read_has_its_name() -> None:
    for kind, name in pt_task._NAMES.items():
        assert pt_task.check("w", torch.zeros(1, dtype=getattr(torch, kind)), torch) == name
    with pytest.raises(pt_task.Refused, match="of dtype complex128, which is not read"):
        pt_task.check("w", torch.zeros(1, dtype=torch.complex128), torch)


@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized"])
def test_tensors_without_plain_numbers_are_refused(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = {
            "sparse": lambda: torch.eye(2).to_sparse(),
            "meta": lambda: torch.zeros(1, device="meta"),
            "quantized": lambda: torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8),
        }[kind]()
    name = "w" * 99
    assert f"holds {'w' * 80!r}, a sparse" in refusal(lambda: pt_task.check(name, tensor, torch))


def test_numbers_that_are_not_in_the_file_are_refused(tmp_path: Path) -> None:
    assert pt_task.check("w", torch.zeros(4)[::2], torch) == "F32"
    assert "takes 20 bytes, over a storage of 16" in refusal(
        lambda: pt_task.check("w", torch.zeros(4).as_strided((5,), (0,)), torch)
    )
    shared = torch.zeros(4)
    both = {"a": shared, "b": shared}
    out = tmp_path / "out"
    pt_task.write(str(out), both, {}, 32)
    assert "32 bytes that share one storage: at most 31" in refusal(
        lambda: pt_task.write(str(out), both, {}, 31)
    )


def test_what_the_child_writes_is_sound_safetensors(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.ones(1, dtype=torch.int8),
               "c": torch.ones(2, dtype=torch.float64), "empty": torch.zeros(0, 3),
               "z": torch.tensor([1 + 2j]).conj(), "m": torch.tensor([1 + 2j]).conj().imag}  # fmt: skip
    out = tmp_path / "out.safetensors"
    pt_task.write(str(out), tensors, {"note": "x"}, 1 << 20)
    file = open_arrays(out)
    assert dict(file.metadata) == {"note": "x"}
    assert file.read("b").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert file.read("z").tolist() == [1 - 2j]
    assert file.read("m").tolist() == [-2]
    assert file.read("empty").shape == (0, 3)
    assert list(file.entries) == ["c", "z", "b", "empty", "m", "a"]
    head = out.read_bytes()
    assert int.from_bytes(head[:8], "little") % 8 == 0
    pt_task.write(str(out), {"a": torch.ones(1)}, {}, 1 << 20)
    assert b"__metadata__" not in out.read_bytes()


class Library:
    """Stands for torch: loads by raising, and says what it was asked."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def load(self, *given: Any, **named: Any) -> Any:
        assert named == {"weights_only": True, "map_location": "cpu"}
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (RuntimeError("Weights only load failed. Unsupported global: GLOBAL os.system was not an"),
         "a pickled object (os.system), not only tensors"),
        (RuntimeError("weights_only is on"), "holds pickled objects, not only tensors"),
        (RuntimeError("WeightsUnpickler error"), "holds pickled objects"),
        (RuntimeError("Unsupported operand 149"), "holds pickled objects"),
        (RuntimeError("bad \x1b[2J /home/somebody/path file\nsecond"), "is damaged (RuntimeError: bad [2J  file); save"),
        (ValueError(""), "is damaged (ValueError: ); save"),
        (ValueError("x" * 300), f"({'ValueError: ' + 'x' * 120});"),
    ],
)  # fmt: skip
def test_what_torch_refuses_is_told_in_our_words(fault: Exception, reason: str) -> None:
    assert reason in refusal(lambda: pt_task.load("a.pt", Library(fault)))


@pytest.mark.parametrize(
    "fault",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate"),
        RuntimeError("Out of MEMORY"),
    ],
)
def test_memory_that_runs_out_is_told_apart(fault: BaseException) -> None:
    with pytest.raises(MemoryError):
        pt_task.load("a.pt", Library(fault))


def test_the_child_limits_itself_before_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource
    import signal

    limits: dict[int, tuple[int, int]] = {}
    timers: list[tuple[int, float]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.update({kind: pair}))
    monkeypatch.setattr(signal, "setitimer", lambda kind, seconds: timers.append((kind, seconds)))
    monkeypatch.setattr(signal, "signal", lambda kind, what: limits.update({kind: what}))

    def work(arguments: list[str], data: bytes) -> dict[str, Any]:
        return {"limits": dict(limits), "given": (arguments, data)}

    found = child.run(work, ["a"], b"b", extra_bytes=1 << 40, cpu_s=2.5)
    assert found["given"] == (["a"], b"b")
    now, hard = found["limits"][resource.RLIMIT_AS]
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    assert now == hard
    assert abs(now - (1 << 40) - held) < 64 << 20
    assert found["limits"][resource.RLIMIT_CORE] == (0, 0)
    assert found["limits"][signal.SIGPROF] == signal.SIG_DFL
    assert timers == [(signal.ITIMER_PROF, 2.5)]

    def fail(*_: Any) -> None:
        raise ValueError("not here")

    monkeypatch.setattr(resource, "setrlimit", fail)
    child.limit(1000, 1.0)


def answer(monkeypatch: pytest.MonkeyPatch, path: Path, version: str | None = None) -> Any:
    """Run the child's work in this process, without limiting it."""
    limits: list[Any] = []
    monkeypatch.setattr(child, "limit", lambda *given: limits.append(given))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: limits.append(n))
    if version is not None:
        monkeypatch.setattr(torch, "__version__", version)
    found = pt_task.prepare()
    if found is not None:
        assert limits == []
        return found
    arguments = [str(path), str(path.with_name("out")), str(1 << 20)]
    found = child.run(pt_task.work, arguments, b"", extra_bytes=1 << 20, cpu_s=1.0)
    assert limits == [1, (1 << 20, 1.0)]
    return found


def test_the_child_answers_with_one_word_for_each_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(2)}, path)
    assert answer(monkeypatch, path) == {}
    data = path.with_name("out").read_bytes()
    assert safetensors_.open_mapped(np.frombuffer(data, np.uint8), "out").read("w").tolist() == [
        1,
        1,
    ]
    torch.save({"a": 1}, path)
    assert answer(monkeypatch, path)["refused"].startswith("holds no tensors")
    for fault, wanted in (
        (MemoryError(), {"memory": True}),
        (OSError(28, "No space left"), {"disk": "No space left"}),
        (OSError(), {"disk": "error"}),
        (RecursionError(), {"refused": "nests its values too deeply"}),
    ):

        def fail(*_: Any, fault: BaseException = fault) -> Any:
            raise fault

        monkeypatch.setattr(pt_task, "load", fail)
        assert answer(monkeypatch, path) == wanted


@pytest.mark.parametrize(
    ("version", "is_read"),
    [("2.10.0", True), ("2.11.1+cpu", True), ("3.0.0", True), ("2.9.9", False), ("1.20.0", False), ("odd", False)],
)  # fmt: skip
def test_torch_before_2_10_is_not_let_near_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_read: bool
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(2)}, path)
    wanted = {} if is_read else {"torch": version}
    assert answer(monkeypatch, path, version) == wanted
    assert (tmp_path / "out").exists() is is_read


def test_no_torch_is_an_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert pt_task.prepare() == {"torch": "not installed"}
    assert issubclass(WeightsError, AttnvizError)
