"""The first instant at which time alone could change the plan about some jobs."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import Job, JobState, Policy
from jupyter_gpu_quota.core.scheduling.wakeups import next_wakeup

PLAIN = Policy(revision=0)
POLICY = dc.replace(PLAIN, preemption=dc.replace(PLAIN.preemption, min_runtime_s=30, per_s=3600))
SHORT = Job(
    id="short", project="a", user="u", pool="t", gpu_milli=1000, submitted_at=0, state=JobState.RUNNING,
    started_at=10_000, time_limit_s=60,
)  # fmt: skip
LONG = dc.replace(SHORT, id="long", started_at=20_000, time_limit_s=600)
STARTING = dc.replace(SHORT, id="starting", state=JobState.STARTING, started_at=None)
PAUSED_BEFORE = dc.replace(LONG, id="paused", paused_at=(5_000, 8_000))


@pytest.mark.parametrize(
    ("jobs", "now", "expected"),
    [
        pytest.param((SHORT, LONG), 20_000, 40_000, id="the minimum run time of the first job ends"),
        pytest.param((LONG, SHORT), 20_000, 40_000, id="the order of the jobs does not matter"),
        pytest.param((LONG, SHORT), 40_000, 50_000, id="the minimum run time of the second job ends"),
        pytest.param((LONG, SHORT), 50_000, 70_000, id="the first job reaches its time limit"),
        pytest.param((LONG, SHORT), 70_000, 620_000, id="the second job reaches its time limit"),
        pytest.param((LONG, SHORT), 620_000, None, id="after all ends there is none"),
        pytest.param((STARTING,), 20_000, None, id="a job without a start has none"),
        pytest.param((PAUSED_BEFORE,), 620_000, 3_605_000, id="the first of two pauses is old enough"),
        pytest.param((PAUSED_BEFORE,), 3_605_000, 3_608_000, id="the second pause is old enough"),
    ],
)
def test_protection_time_limits_and_pauses_of_jobs(jobs: tuple[Job, ...], now: int, expected: int | None) -> None:
    assert next_wakeup(jobs, (), (), POLICY, now, wanted=False) == expected
