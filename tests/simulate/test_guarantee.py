"""The check of the promised waiting times: an older job of the project that has precedence, and users' ceilings."""

from __future__ import annotations

import dataclasses as dc
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.core.model import Job, JobState
from jupyter_gpu_quota.simulate.guarantee import GuaranteeMonitor
from tests.core.world import World, world

PROMISED_MS = 5_000
"""Grace and two ticks of these worlds."""


def changes_to(made: World, *jobs: Job) -> Any:
    rows = [SimpleNamespace(job=job) for job in jobs]
    return SimpleNamespace(jobs=rows, notebooks=[], devices=list(made.devices.values()))


# R24
@pytest.mark.parametrize(
    ("older", "precedes_after_s", "late"),
    [
        pytest.param("a queues 1", 0, False, id="it precedes already"),
        pytest.param("a queues 1", 4, False, id="it precedes before the promised time"),
        pytest.param("a queues 1", 100, True, id="it precedes after the promised time"),
        pytest.param("a queues 1 priority 40", 0, True, id="its priority is lower"),
        pytest.param("a queues 2", 0, True, id="it is larger than the quota"),
    ],
)
def test_a_claim_is_late_unless_an_older_job_of_its_project_precedes_it(
    older: str, precedes_after_s: int, late: bool
) -> None:
    made = world(f"pool t 4\na 1 of t\na runs 0.5\n{older}\na queues 0.5")
    jobs = list(made.jobs.values())
    now = jobs[-1].submitted_at
    waited_s = (now - jobs[-2].submitted_at) / 1000
    policy = dc.replace(made.policy, patience_s=int(waited_s + precedes_after_s))
    monitor = GuaranteeMonitor(policy, 1_000)
    monitor.observe(changes_to(made, *jobs), now)
    assert [one.workload for one in monitor.finish(now + PROMISED_MS + 1_000)] == [jobs[-1].id] * late


DEPARTMENT = "pool t 4\ndepartment D 4 of t, limit per user 1\na 2 of t in D\nb 2 of t in D\n"


# R12
@pytest.mark.parametrize(
    ("text", "late"),
    [
        pytest.param("pool t 4\na 2 of t, limit per user 1\na runs 1\na queues 1", [], id="of the project"),
        pytest.param(DEPARTMENT + "b runs 1 by a\na queues 1", [], id="of the department, used in another project"),
        pytest.param("pool t 4\na 2 of t, limit per user 1\na queues 2 of 1", ["a1"], id="one job has room"),
        pytest.param(
            "pool t 4\na 2 of t, limit per user 1\na runs 1\na queues 1\na queues 1 by ann", ["a3"], id="another user"
        ),
    ],
)
def test_a_job_whose_user_is_at_a_ceiling_is_not_late(text: str, late: list[str]) -> None:
    made = world(text)
    monitor = GuaranteeMonitor(made.policy, 1_000)
    monitor.observe(changes_to(made, *made.jobs.values()), made.now)
    assert [one.workload for one in monitor.finish(made.now + PROMISED_MS + 1_000)] == late


# R12
def test_a_job_is_late_from_when_the_work_of_its_user_has_ended() -> None:
    made = world(DEPARTMENT + "b runs 1 by a\na queues 1")
    monitor, first = GuaranteeMonitor(made.policy, 1_000), made.jobs["b1"]
    for after_ms, state in ((0, JobState.RUNNING), (10_000, JobState.PAUSING), (20_000, JobState.SUCCEEDED)):
        now = made.now + after_ms
        monitor.observe(changes_to(made, dc.replace(first, state=state), made.jobs["a1"]), now)
    [found] = monitor.finish(now + PROMISED_MS + 1_000)
    assert (found.workload, found.waited_ms) == ("a1", PROMISED_MS + 1_000)
