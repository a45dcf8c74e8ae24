"""A policy that the snapshot does not match: quotas above the capacity, removed projects and pools."""

from __future__ import annotations

import dataclasses as dc

from jupyter_gpu_quota.core.model import Health, JobState
from tests.core.preemption.test_search import victims
from tests.core.world import world


class TestUnequalPolicy:
    """Quotas above the capacity, removed projects and pools."""

    def test_a_claim_reclaims_up_to_its_reduced_guarantee(self) -> None:
        made = world("pool t 4\na 2 of t\nb 2 of t\na runs 2 of 1\nb runs 2 of 1\na queues 1")
        made.health("n1g3", Health.UNHEALTHY)
        made.owned.pop("b2")
        made.jobs["b2"] = dc.replace(made.jobs["b2"], state=JobState.QUEUED)
        made.settle()
        assert made.picture() == "a 2 / b 1"

    def test_a_job_of_a_removed_project_continues_and_is_the_first_victim(self) -> None:
        made = world("pool t 2\na 1 of t\nb 1 of t\na runs 1\nb runs 1")
        made.policy = dc.replace(made.policy, projects=made.policy.projects[1:])
        made.submit("b", 1000)
        plan = made.tick()
        assert victims(plan) == ["a1"]
        made.settle()
        assert made.decide().waits["a1"].code == "no_such_project"

    def test_a_job_of_an_unknown_pool_waits_with_that_reason(self) -> None:
        made = world("pool t 1\na 1 of t")
        made.submit("a", 1000, pool="gone")
        assert made.tick().actions == ()
        assert made.decide().waits["a1"].code == "no_such_pool"

    def test_a_project_without_amounts_in_a_pool_starts_nothing_there(self) -> None:
        made = world("pool t 1\npool u 1\na 1 of u\na queues 1 pool t")
        assert made.tick().actions == ()
        assert made.decide().waits["a1"].code == "above_limit"
