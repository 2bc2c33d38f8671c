"""``--engine ray`` against a cluster made of plain objects: what is asked of Ray, and what deaths do.

``test_ray_engine`` runs a real cluster where Ray is installed; here every order of events is chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.runs.batch.engines import Staffing, ray_
from attnviz.runs.batch.jobs import Job, Work
from attnviz.runs.batch.rows import Row
from attnviz.runs.batch.run import Request, run_batch

TINY = {"weights": "random", "d_model": 8, "d_k": 4}


class ActorDied(Exception):
    """Stands for Ray's own error."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What a remote call returns: the call itself, not done yet."""

    name: str
    given: tuple[Any, ...]
    do: Callable[..., Any]


class FakeRay:
    """As much of Ray as the engine uses; work is done when its result is asked for."""

    exceptions = SimpleNamespace(RayError=ActorDied)

    def __init__(
        self,
        *,
        is_up: bool = False,
        cpus: float = 2,
        gpus: float = 0,
        dies: Callable[[str, Any], bool] = lambda call, message: False,
        refuses: Exception | None = None,
    ) -> None:
        self.is_up, self.dies, self.refuses = is_up, dies, refuses
        self.have = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        self.asked: list[dict[str, Any]] = []
        self.joined: list[dict[str, Any]] = []
        self.killed: list[Any] = []
        self.n_shut = 0

    def is_initialized(self) -> bool:
        return self.is_up

    def init(self, **options: Any) -> None:
        self.joined.append(options)
        if self.refuses is not None:
            raise self.refuses
        self.is_up = True

    def shutdown(self) -> None:
        self.n_shut += 1
        self.is_up = False

    def cluster_resources(self) -> dict[str, float]:
        return self.have

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.asked.append(options)

        def wrap(kind: type) -> Any:
            return SimpleNamespace(remote=lambda *given: self._handle(kind(*given)))

        return wrap

    def _handle(self, actor: Any) -> Any:
        def call(name: str) -> Any:
            def remote(*given: Any) -> Any:
                return Reference(name, given, getattr(actor, name))

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(open=call("open"), run=call("run"))

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1
        return references[-1:], references[:-1]

    def get(self, reference: Any) -> Any:
        if self.dies(reference.name, *(reference.given or (None,))):
            raise ActorDied("the actor died\nunexpectedly")
        return reference.do(*reference.given)

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], FakeRay]:
    def put(ray: FakeRay) -> FakeRay:
        monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
        return ray

    return put


def texts(folder: Path, lines: list[str]) -> Request:
    path = folder / "texts.txt"
    path.write_text("\n".join(lines) + "\n")
    return Request((str(path),), TINY, format="jsonl", shard_size=4, engine="ray")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_bytes_are_those_of_the_serial_engine(tmp_path: Path, install: Any) -> None:
    ray = install(FakeRay(cpus=3))
    request = texts(tmp_path, [f"a bear reads {i}" for i in range(13)])
    run_batch(request, tmp_path / "ray")
    run_batch(replace(request, engine="serial"), tmp_path / "serial")
    assert tree(tmp_path / "ray") == tree(tmp_path / "serial")
    assert ray.asked == [{"num_cpus": 1, "max_restarts": 0}] * 3
    assert len(ray.killed) == 3
    assert ray.n_shut == 1
    assert ray.joined == [{"address": "local", "log_to_driver": False, "logging_level": "ERROR",
                           "include_dashboard": False}]  # fmt: skip


def test_a_cluster_that_is_there_is_used_and_left(tmp_path: Path, install: Any) -> None:
    ray = install(FakeRay(is_up=True))
    run_batch(replace(texts(tmp_path, ["a bear"]), workers=2), tmp_path / "out")
    assert ray.joined == []
    assert ray.n_shut == 0
    assert len(ray.killed) == 2


def test_workers_and_address_are_passed_on(tmp_path: Path, install: Any) -> None:
    ray = install(FakeRay())
    run_batch(replace(texts(tmp_path, ["a bear"]), workers=3), tmp_path / "a")
    assert ray.joined[0]["num_cpus"] == 3
    run_batch(replace(texts(tmp_path, ["a bear"]), address="auto"), tmp_path / "b")
    assert ray.joined[1] == {"address": "auto", "log_to_driver": False, "logging_level": "ERROR"}


@pytest.mark.parametrize(
    "fault", [ConnectionError("no\ncluster"), ValueError("no"), RuntimeError("no"), OSError()]
)
def test_no_cluster_is_a_resource_error(tmp_path: Path, install: Any, fault: Exception) -> None:
    ray = install(FakeRay(refuses=fault))
    with pytest.raises(ResourceError, match="no Ray cluster at 'local': ") as caught:
        run_batch(texts(tmp_path, ["a bear"]), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert ray.n_shut == 0


def test_a_text_that_kills_its_actor_goes_to_the_errors(tmp_path: Path, install: Any) -> None:
    def dies(call: str, job: Any) -> bool:
        return call == "run" and any(
            row.text and "poison" in row.text and row.number not in job.lost for row in job.rows
        )

    install(FakeRay(dies=dies))
    told: list[str] = []
    lines = [f"page {i}" + " poison" * (i == 5) for i in range(8)]
    outcome = run_batch(texts(tmp_path, lines), tmp_path / "out", notify=told.append)
    assert (outcome.done, outcome.failed) == (7, 1)
    errors = [json.loads(line) for line in (tmp_path / "out/errors.jsonl").read_text().splitlines()]
    assert [error["line"] for error in errors] == [6]
    assert told == [
        "an actor died (Ray: ActorDied): shard 1 is tried again",
        "text 5 killed 3 actors: it goes to errors.jsonl",
    ]


def test_any_number_of_poisonous_texts_is_accounted_for(tmp_path: Path, install: Any) -> None:
    def dies(call: str, job: Any) -> bool:
        return call == "run" and any(row.number not in job.lost for row in job.rows)

    install(FakeRay(cpus=1, dies=dies))
    outcome = run_batch(texts(tmp_path, [f"page {i}" for i in range(60)]), tmp_path / "out")
    assert (outcome.done, outcome.failed) == (0, 60)
    assert len((tmp_path / "out/errors.jsonl").read_text().splitlines()) == 60


def test_actors_that_die_whatever_they_do_end_the_batch(install: Any) -> None:
    install(FakeRay(dies=lambda call, _: call == "run"))
    engine = ray_.make(Work(source=TINY), Staffing(workers=1))
    engine.open()
    jobs = iter([Job(n, (Row(n, "a.txt", n + 1, "a", ""),)) for n in range(200)])
    with pytest.raises(ResourceError, match=r"3 workers died between texts \(Ray: ActorDied\)"):
        list(engine.run(jobs))
    assert len(list(jobs)) > 190
    engine.close()
    engine.close()


def test_no_actor_comes_up(tmp_path: Path, install: Any) -> None:
    ray = install(FakeRay(dies=lambda call, _: call == "open"))
    with pytest.raises(ResourceError, match="no Ray actor comes up: the actor died unexpectedly"):
        run_batch(texts(tmp_path, ["a bear"]), tmp_path / "out")
    assert len(ray.asked) == 3
    assert ray.n_shut == 1
    tries = iter([True, True, False])
    install(FakeRay(dies=lambda call, _: call == "open" and next(tries, False)))
    assert run_batch(texts(tmp_path, ["a bear"]), tmp_path / "out2").done == 1


def test_a_source_that_is_refused_keeps_its_kind_of_error(tmp_path: Path, install: Any) -> None:
    install(FakeRay())
    request = texts(tmp_path, ["a bear"])
    with pytest.raises(InputError, match=r"none\.npz"):
        run_batch(replace(request, source={"weights": "none.npz"}), tmp_path / "a")
    with pytest.raises(UsageError):
        run_batch(replace(request, source={**TINY, "head": "77"}), tmp_path / "b")
    actor = ray_._Actor(Work(source={"weights": "none.npz"}))
    with pytest.raises(RuntimeError, match=r"none\.npz"):
        actor.run(Job(0, ()))


@pytest.mark.parametrize(
    ("source", "gpus", "room", "asks"),
    [
        (TINY, 0, 4, False),
        (TINY, 4, 4, False),
        ({**TINY, "device": "cuda"}, 3, 3, True),
        ({**TINY, "device": "cuda:1"}, 0, 4, False),
        ({**TINY, "dtype": "float32"}, 2, 2, True),
        ({**TINY, "dtype": "float32", "device": "cpu"}, 2, 4, False),
        ({"model": "x"}, 1, 1, True),
        ({"model": "x", "device": "cpu"}, 1, 4, False),
    ],
)
def test_actors_ask_for_gpus_where_they_serve(
    source: Any, gpus: int, room: int, asks: bool
) -> None:
    ray = FakeRay(cpus=8, gpus=gpus)
    engine = ray_.Ray(ray, Work(source=source, threads=2), Staffing())
    assert engine._room() == room
    engine._hire()
    assert ray.asked[0] == {"num_cpus": 2, "max_restarts": 0} | ({"num_gpus": 1} if asks else {})


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'attnviz\[ray\]'"):
        ray_.make(Work(), Staffing())
    assert ray_.os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray_._one_line(OSError()) == "OSError"
