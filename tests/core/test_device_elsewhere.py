"""Machines that are not this one: GPUs, Apple's, control groups, limits, caches nobody names."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz import memory
from attnviz.core import device
from attnviz.core.placing import select_heads
from attnviz.core.stream import plan, products
from attnviz.core.stream.plan import plan_stream
from attnviz.errors import ResourceError
from attnviz.masks import visible_block
from attnviz.records import LayerHeads, MaskRule
from attnviz.runs import doctor, run


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d=0: f"GPU of {d}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (7 << 30, 8 << 30))


def precision_of_a_model_on(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """In which precision q, k and v of a model are worked with, where float64 was asked for."""
    model = SimpleNamespace(device=device, layers=(0,), info=SimpleNamespace(n_layers=1))
    monkeypatch.setattr(run, "_open_model", lambda path, **how: model)
    return run.open_place(model="tiny").core_for(3).dtype


@pytest.mark.usefixtures("two_gpus")
def test_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.choose_device("auto") == device.choose_device("cuda") == torch.device("cuda", 0)
    assert device.choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        ResourceError, match=r"'cuda:2' is not here: this machine has .*cuda:1 \(GPU of 1\)"
    ):
        device.choose_device("cuda:2")
    assert device.list_devices()[1:] == ("cuda:0 (GPU of 0)", "cuda:1 (GPU of 1)")
    assert device.describe_device(torch.device("cuda", 1)) == "cuda:1, GPU of cuda:1"
    assert device.describe_device(torch.device("cuda")) == "cuda:0, GPU of cuda"
    assert device.free_memory_bytes(torch.device("cuda", 0)) == 7 << 30
    assert doctor.machine()["cuda"] == "cuda:0 GPU of 0, cuda:1 GPU of 1"
    assert precision_of_a_model_on("cuda:0", monkeypatch) == "float64"


def test_a_machine_of_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose_device("auto") == device.choose_device("mps") == torch.device("mps")
    assert device.list_devices()[-1] == device.describe_device(torch.device("mps")) == "mps"
    for held, free in ((3, 7), (20, 0)):
        fake = SimpleNamespace(
            recommended_max_memory=lambda: 10, driver_allocated_memory=lambda h=held: h
        )
        monkeypatch.setattr(torch, "mps", fake)
        assert device.free_memory_bytes(torch.device("mps")) == free
    assert precision_of_a_model_on("mps", monkeypatch) == "float32"


def test_a_machine_with_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device.choose_device("auto") == torch.device("cpu")
    for name in ("cuda", "mps"):
        with pytest.raises(ResourceError, match="use --device auto"):
            device.choose_device(name)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert device.list_devices() == ("cpu (1 thread)",)
    assert device.describe_device(torch.device("cpu")) == "cpu, 1 thread"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    facts = device.thread_facts()
    assert (facts["threads"], facts["OMP_NUM_THREADS"]) == (1, "5")
    assert "MKL_NUM_THREADS" not in facts
    monkeypatch.delattr(device.os, "sched_getaffinity")
    monkeypatch.setattr(device.os, "cpu_count", lambda: None)
    assert device.thread_facts()["cores"] == 1


class Files:
    """Stands for the files of /proc and /sys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: dict[str, str] = {}
        monkeypatch.setattr(Path, "read_text", lambda path: self._read(str(path)))

    def _read(self, path: str) -> str:
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]


def test_the_smallest_room_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    limits: dict[int, int] = {}
    none = (resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (limits[kind], -1) if kind in limits else none
    )
    assert memory.free_bytes() is None
    assert memory.room_bytes() is device.free_memory_bytes(torch.device("cpu")) is None
    assert memory.cure() == "close other programs"
    files.texts["/proc/meminfo"] = "MemTotal: 9 kB\nMemAvailable:  2048 kB\nx: 1"
    assert memory.free_bytes() == 2048 * 1024
    assert (
        memory.room_bytes()
        == device.free_memory_bytes(torch.device("cpu"))
        == int(0.8 * 2048 * 1024)
    )
    for odd in ("MemAvailable:\n", "MemAvailable: many kB", "MemFree: 3 kB"):
        files.texts["/proc/meminfo"] = odd
        assert memory.free_bytes() is None
    group = "/sys/fs/cgroup"
    files.texts |= {f"{group}/memory.max": "max", f"{group}/memory.current": "5"}
    assert memory.free_bytes() is None
    old = f"{group}/memory"
    files.texts |= {f"{old}/memory.limit_in_bytes": "70\n", f"{old}/memory.usage_in_bytes": "30\n"}
    assert memory.free_bytes() == 40
    files.texts[f"{group}/memory.max"] = "25"
    assert memory.free_bytes() == 20
    files.texts[f"{group}/memory.current"] = "99"
    assert memory.free_bytes() == 0
    del files.texts[f"{group}/memory.max"], files.texts[f"{old}/memory.limit_in_bytes"]
    page = resource.getpagesize()
    files.texts["/proc/self/statm"] = "9 1 1 1 1 7 0"
    for kind, used in ((resource.RLIMIT_AS, 9), (resource.RLIMIT_DATA, 7)):
        for pages in (used + 2, used, used - 1):
            limits = {kind: pages * page}
            assert memory.free_bytes() == max(0, pages - used) * page
        assert memory.cure() == "raise the limit (--max-memory)"
    del files.texts["/proc/self/statm"]
    assert memory.free_bytes() is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("512K\n", 512 << 10), ("3M", 3 << 20), ("99999", 99999), ("1K", 1 << 16), ("odd", 1 << 20), ("", 1 << 20), (None, 1 << 20)],
)  # fmt: skip
def test_caches_as_the_system_names_them(
    monkeypatch: pytest.MonkeyPatch, text: Any, found: int
) -> None:
    files = Files(monkeypatch)
    if text is not None:
        files.texts["/sys/devices/system/cpu/cpu0/cache/index2/size"] = text
    assert device.cache_bytes(2) == found
    assert device.cache_bytes(3) == device.cache_bytes() == 16 << 20
    assert device.cache_bytes(9) == 1 << 20


@pytest.mark.parametrize(
    ("fault", "is_memory"),
    [(MemoryError(), True), (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), True),
     (torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("shapes differ"), False),
     (ValueError("can't allocate memory"), False), (ImportError("failed to map segment from x"), True),
     (OSError(12, "Cannot allocate memory"), True), (ImportError("no such module"), False), (OSError(2, "No such file"), False)],
)  # fmt: skip
def test_only_faults_about_memory_are_about_memory(fault: BaseException, is_memory: bool) -> None:
    assert memory.is_exhausted(fault) is is_memory


def test_types_by_name() -> None:
    assert device.dtype_name(torch.bfloat16) == "bfloat16"
    assert device.sum_dtype(torch.float16) == torch.float32
    assert memory.compare(999_999_999, 5 * 10**5) == "needs 1,000 MB and 0 MB can be had"
    assert memory.compare(10**9, 5 * 10**8) == "needs 1.0 GB and 0.5 GB can be had"


def sizes(n: int, **more: Any) -> LayerHeads:
    q = np.broadcast_to(np.float32(0), (2, n, 4))
    return LayerHeads(q=q, k=q, v=q, scale=1.0, **more)


def test_blocks_on_a_gpu_follow_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    room: list[int | None] = [80 << 30]
    monkeypatch.setattr(plan, "free_memory_bytes", lambda _: room[0])
    whole = plan_stream(sizes(10_000), figures=("output",), device=gpu)
    assert (whole.n_rows, whole.tile, whole.n_workers, whole.packed) == (4096, 8192, 1, False)
    maps = plan_stream(sizes(10_000), figures=("map",), device=gpu, map_size=16)
    assert maps.tile == 10_048
    room[0] = 1 << 28
    assert plan_stream(sizes(10_000), figures=("output",), device=gpu).n_rows == 256
    room[0] = None
    assert plan_stream(sizes(10_000), figures=("output",), device=gpu).n_rows == 1024
    room[0] = 1 << 10
    with pytest.raises(
        ResourceError,
        match=r"streaming 10000 keys in blocks of 16 rows needs \d+ MB and 0 MB can be had",
    ):
        plan_stream(sizes(10_000), figures=("output",), device=gpu)


def test_the_packed_route_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    products._onednn_multiplies.cache_clear()

    def fail(*_: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(products, "_pack", fail)
    assert not products.can_pack(torch.device("cpu"), torch.float32)
    products._onednn_multiplies.cache_clear()
    monkeypatch.setattr(products, "_pack", lambda weight, rows: weight)
    monkeypatch.setattr(products, "_linear", lambda a, b: a @ b.t() + 1)
    assert not products.can_pack(torch.device("cpu"), torch.float32)
    products._onednn_multiplies.cache_clear()
    assert not products.can_pack(torch.device("cpu"), torch.float64)
    assert not products.can_pack(torch.device("cuda"), torch.float32)


def test_rules_by_head_follow_the_heads_that_are_chosen() -> None:
    draw = np.random.default_rng(0)
    rule = MaskRule(cells=draw.random((4, 3, 3)) > 0.5, where=lambda h, q, k: (h + q + k) % 3 > 0)
    q = np.zeros((4, 3, 2))
    heads = LayerHeads(q=q, k=q, v=q, scale=1.0, visible=rule)
    whole = visible_block(rule, n_queries=3, n_keys=3, n_heads=4)
    for wanted in ([2], [3, 0, 1]):
        chosen = select_heads(heads, wanted).visible
        part = visible_block(chosen, n_queries=3, n_keys=3, n_heads=len(wanted))
        np.testing.assert_array_equal(part, whole[wanted])


def test_torch_that_cannot_be_imported_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor.machine()["torch"].startswith("cannot be imported")
    assert "threads" not in doctor.machine()


def test_fonts_that_cannot_be_read_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager, ft2font

    entries = [SimpleNamespace(name="Last Resort", fname="z"), SimpleNamespace(name="Broken", fname="x"),
               SimpleNamespace(name="Whole", fname="a"), SimpleNamespace(name="Later", fname="b")]  # fmt: skip
    monkeypatch.setattr(font_manager.fontManager, "ttflist", entries)
    opened: list[str] = []

    def font(name: str) -> Any:
        opened.append(name)
        if name == "x":
            raise RuntimeError("damaged")
        return SimpleNamespace(get_charmap=lambda: dict.fromkeys(map(ord, "aαש猫क🧸")))

    monkeypatch.setattr(ft2font, "FT2Font", font)
    assert set(doctor.fonts().values()) == {"Whole"}
    assert opened == ["x", "a"]
    assert doctor.versions()["numpy"] == np.__version__
