"""The check of the promised waiting times: an older job of the project that has precedence."""

from __future__ import annotations

import dataclasses as dc
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.simulate.guarantee import GuaranteeMonitor
from tests.core.world import world

PROMISED_MS = 5_000
"""Grace and two ticks of these worlds."""


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
    changes: Any = SimpleNamespace(
        jobs=[SimpleNamespace(job=job) for job in jobs], notebooks=[], devices=list(made.devices.values())
    )
    monitor.observe(changes, now)
    assert [one.workload for one in monitor.finish(now + PROMISED_MS + 1_000)] == [jobs[-1].id] * late
