"""The queue order: inside a project, and between projects."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.plan import Pause, Resume
from tests.core.world import world


class TestQueueOrder:
    """Inside a project and between projects."""

    def starts(self, text: str, **rules: str) -> list[str]:
        return [action.workload for action in world(text, **rules).tick().actions]  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # R23
            pytest.param("a queues 1\na queues 1 priority 60", ["a2"], id="job priority first"),
            # R23
            pytest.param("a queues 2 of 1 by u\na queues 1 by v", ["a1"], id="then first submit time"),
        ],
    )
    def test_inside_a_project(self, text: str, expected: list[str]) -> None:
        assert self.starts("pool t 1\na 1 of t\n" + text) == expected

    def test_first_submit_time_decides_and_not_the_id(self) -> None:
        made = world("pool t 1\na 1 of t")
        made.submit("a", 1000, id="z")
        made.submit("a", 1000, id="b")
        assert [action.workload for action in made.tick().actions] == ["z"]

    # R21
    def test_a_job_within_the_guarantee_comes_before_an_older_one_above_it(self) -> None:
        assert self.starts("pool t 2\na 1 of t\na queues 2\na queues 1") == ["a2"]

    def test_what_a_claim_frees_is_offered_to_a_job_above_the_fair_share_behind_those_within(self) -> None:
        """A younger job of its own project, and after that c's; by its reservation c's might pause another job of a."""
        projects = "a 0 of t\nb 0 of t\nc 0 of t\na runs 1\na runs 0.75\na runs 2 ran 60\n"
        made = world("pool t 4\n" + projects + "b queues 0.75\na queues 1\na queues 0.25\nc queues 1")
        served = [one.workload for one in made.tick().actions if not isinstance(one, Pause)]
        assert served == ["b1", "a5", "c1"]

    # R23
    def test_users_take_turns(self) -> None:
        text = "pool t 2\na 2 of t\na queues 2 of 1 by u\na queues 1 by v"
        assert self.starts(text) == ["a1", "a3"]
        assert self.starts(text, within_project="first_come") == ["a1", "a2"]

    def test_the_user_of_a_victim_is_next(self) -> None:
        made = world(
            "pool t 3\na 3 of t\nb 0 of t\na runs 2 of 1 by u\na runs 1 by v\na queues 1 by u\na queues 1 by v"
        )
        made.end("a3")
        assert [action.workload for action in made.tick().actions] == ["a5"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # R22
            pytest.param("a 0 of t\nb 1 of t\na queues 1\nb queues 1", ["b1"], id="within guarantee first"),
            # R22
            pytest.param("a 0 of t\nb 0 of t, priority 60\na queues 1\nb queues 1", ["b1"], id="then project priority"),
            # R22
            pytest.param("a 0 of t\nb 0 of t\nb queues 1\na queues 1", ["b1"], id="then the longest waiting"),
            # R22
            pytest.param("a 0 of t, weight 0\nb 0 of t\na queues 1\nb queues 1", ["b1"], id="weight 0 last"),
            # R22
            pytest.param(
                "a 0 of t, weight 0, priority 60\nb 0 of t\nc 0 of t\na queues 1\nb queues 1\nc queues 1",
                ["b1"],
                id="and of those above their fair share, whatever its priority",
            ),
        ],
    )
    def test_between_projects(self, text: str, expected: list[str]) -> None:
        assert self.starts("pool t 1\n" + text) == expected

    # R23
    def test_a_paused_job_keeps_its_first_submit_time(self) -> None:
        made = world("pool t 1\na 1 of t\nb 0 of t\nb queues 1")
        made.tick()
        made.submit("b", 1000)
        made.submit("a", 1000)
        made.settle()
        made.end("a1")
        (resume,) = made.tick().actions
        assert isinstance(resume, Resume)
        assert resume.workload == "b1"
