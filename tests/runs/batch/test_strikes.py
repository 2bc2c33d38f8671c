"""Who is blamed for a worker's death, without processes: every text comes to an end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnviz.errors import ResourceError
from attnviz.runs.batch.engines._strikes import STRIKES, Case
from attnviz.runs.batch.jobs import Job
from attnviz.runs.batch.rows import Row

Dies = Callable[[tuple[int, ...]], bool]


def drive(dies: Dies, *, group: int = 4, n_texts: int = 12) -> tuple[Case, int, Job]:
    """Run a shard through workers that die when ``dies(texts at work)``; return what is left."""
    case = Case(Job(0, tuple(Row(i, "a.txt", i + 1, "text") for i in range(n_texts))))
    deaths = 0
    while True:
        job = case.next_job()
        numbers = [row.number for row in job.rows if row.number not in job.lost]
        together = [n for n in numbers if n not in job.alone]
        groups = [(n,) for n in numbers if n in job.alone]
        groups += [tuple(together[i : i + group]) for i in range(0, len(together), group)]
        killer = next((texts for texts in groups if dies(texts)), None)
        if killer is None:
            if case.survived():
                return case, deaths, job
            continue
        deaths += 1
        assert deaths < 100
        case.died(killer, "signal 9")


def test_a_text_that_kills_is_found_among_others() -> None:
    case, deaths, job = drive(lambda texts: 5 in texts)
    assert set(case.lost) == {5}
    assert deaths == 1 + STRIKES
    assert not job.is_trial
    assert len(job.rows) == 12


def test_two_in_one_pass_are_both_found() -> None:
    case, _, _ = drive(lambda texts: bool({4, 6} & set(texts)))
    assert set(case.lost) == {4, 6}


def test_texts_that_kill_only_in_company_are_kept_apart() -> None:
    case, deaths, job = drive(lambda texts: {4, 6} <= set(texts))
    assert case.lost == {}
    assert {4, 6} <= job.alone
    assert deaths == STRIKES


def test_a_death_by_chance_costs_nothing() -> None:
    chances = iter([True, False])
    case, deaths, job = drive(lambda texts: 5 in texts and next(chances, False))
    assert (case.lost, deaths, job.alone) == ({}, 1, frozenset())


def test_two_deaths_alone_are_forgiven() -> None:
    chances = iter([True, True, False])
    case, deaths, _ = drive(lambda texts: texts == (5,) and next(chances, False), group=1)
    assert (case.lost, deaths) == ({}, 2)


def test_deaths_between_texts_end_the_batch() -> None:
    case = Case(Job(0, (Row(0, "a.txt", 1, "text"),)))
    case.died((), "signal 9")
    case.died((), "signal 9")
    with pytest.raises(ResourceError, match="between texts"):
        case.died((), "signal 9")
