"""A project or pool with work is removed from the quota file: running work, waiting work, and other projects."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import JobState, NotebookState
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from tests.core.world import World, world


def without(made: World, *names: str) -> World:
    """The same world under a quota file that names neither these projects nor these pools any more."""
    policy = made.policy
    made.policy = dc.replace(
        policy,
        projects=tuple(
            dc.replace(one, amounts={pool: row for pool, row in one.amounts.items() if pool not in names})
            for one in policy.projects
            if one.name not in names
        ),
        pools=tuple(name for name in policy.pools if name not in names),
    )
    return made


# R68
def test_queued_jobs_of_a_removed_project_wait_with_that_reason() -> None:
    made = without(world("pool t 4\na 2 of t\nb 2 of t\na queues 2 of 1"), "a")
    made.settle()
    assert made.jobs["a1"].state is JobState.QUEUED
    found = explain(made.snapshot(), made.policy, "a1")
    assert explanation_sentence(found).startswith(
        "Project a is no longer in the quota file, so this never starts. Ask an admin"
    )
    assert found.would_start == ()


def test_jobs_of_a_restored_project_continue() -> None:
    made = world("pool t 2\na 1 of t\nb 1 of t\na runs 1\na queues 1")
    before = made.policy
    without(made, "a").submit("b", 2000)
    made.settle()
    made.policy = before
    made.end("b1")
    made.settle()
    assert (made.jobs["a1"].state, made.jobs["a2"].state) == (JobState.RUNNING, JobState.RUNNING)


# R68
def test_running_jobs_of_a_removed_project_continue_and_are_the_first_victims() -> None:
    made = without(world("pool t 2\na 2 of t\nb 1 of t\nc 0 of t\na runs 1\nc runs 1"), "a")
    made.settle()
    assert made.jobs["a1"].state is JobState.RUNNING
    made.submit("b", 1000)
    made.settle()
    assert (made.jobs["a1"].state, made.jobs["c1"].state) == (JobState.PAUSED, JobState.RUNNING)
    assert explain(made.snapshot(), made.policy, "a1").reason.code == "no_such_project"  # type: ignore[union-attr]


def test_non_preemptible_work_of_a_removed_project_keeps_its_devices() -> None:
    made = without(world("pool t 1\na 1 of t\nb 1 of t\na runs 1 fixed\nb queues 1"), "a")
    made.settle()
    assert made.jobs["a1"].state is JobState.RUNNING
    made.end("a1")
    made.settle()
    assert made.jobs["b1"].state is JobState.RUNNING


def test_an_elastic_job_of_a_removed_project_does_not_grow_and_is_paused_as_a_whole() -> None:
    made = without(world("pool t 4\na 4 of t\nb 1 of t\na runs 1 ranks 1-4 held 2"), "a")
    made.settle()
    assert len(made.owned["a1"]) == 2
    made.submit("b", 1000, ranks=3)
    made.settle()
    assert (made.jobs["a1"].state, made.jobs["b1"].state) == (JobState.PAUSED, JobState.RUNNING)
    assert "shrunk" not in "".join(made.log), "its reason does not say that it continues at once"


def test_work_of_a_removed_project_is_not_moved() -> None:
    made = without(world("pool t 2\na 1 of t\nb 1 of t\na runs 0.5 on n1g0\na runs 0.5 on n1g1\nb queues 1"), "a")
    made.settle()
    states = sorted(made.jobs[name].state for name in ("a1", "a2"))
    assert states == [JobState.PAUSED, JobState.RUNNING] and made.jobs["b1"].state is JobState.RUNNING
    assert "moved" not in "".join(made.log), "its reason does not say that it continues at once"


# R68
def test_a_notebook_of_a_removed_project_keeps_its_slice() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.5\nb 1 of t\na notebook 0.5")
    made.settle()
    without(made, "a").submit("b", 1000)
    made.settle()
    assert made.notebooks["nb-a1"].state is NotebookState.BOOKED
    assert made.jobs["b1"].state is JobState.QUEUED
    made.close("nb-a1")
    made.settle()
    assert made.jobs["b1"].state is JobState.RUNNING


def test_new_notebooks_of_a_removed_project_are_refused() -> None:
    made = without(world("pool t 1\na 0 of t, notebooks 0.5\nb 1 of t\na notebook 0.5"), "a")
    made.settle()
    assert made.refused == {"nb-a1": "no_such_project"}


@pytest.mark.parametrize("kind", ["runs 1", "runs 1 fixed", "notebook 0.5"])
def test_work_of_a_removed_pool_keeps_devices_that_another_pool_has_now(kind: str) -> None:
    made = world(f"pool old 1\npool new 1\na 1 of old\na 0 of old, notebooks 0.5\nb 2 of new\na {kind}")
    made.settle()
    without(made, "old").devices["n1g0"] = dc.replace(made.devices["n1g0"], pool="new")
    made.submit("b", 1000, pool="new")
    made.submit("b", 1000, pool="new")
    made.settle()
    assert len(made.owned) == 2 and made.jobs["b2"].state is JobState.QUEUED
    assert made.reserved.keys() == {one.workload for one in made.backfill}, (
        "no reservation waits for a drain that was not requested"
    )
    found = explain(made.snapshot(), made.policy, "nb-a1" if "notebook" in kind else "a1")
    assert found.reason is not None and found.reason.code == "pool_gone"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("runs 1", "until it ends, or is paused because other projects claim its GPUs", id="a job"),
        pytest.param("runs 1 fixed", "This job keeps its GPUs until it ends", id="one that is not preemptible"),
        pytest.param("notebook 0.5", "This notebook keeps its GPUs until its server stops", id="a notebook"),
    ],
)
def test_work_of_a_removed_project_has_a_reason_with_its_end(kind: str, words: str) -> None:
    made = world(f"pool t 1\na 0 of t, notebooks 0.5\na {kind}")
    made.settle()
    without(made, "a")
    found = explain(made.snapshot(), made.policy, "nb-a1" if "notebook" in kind else "a1")
    assert words in explanation_sentence(found) and found.reason is not None and found.reason.code == "project_gone"


@pytest.mark.parametrize("removed", ["a", "t"])
def test_the_reason_of_draining_work_has_the_deadline(removed: str) -> None:
    made = without(world("pool t 1\npool u 0\na 1 of t\na runs 1 fixed"), removed)
    made.policy = dc.replace(made.policy, drain_by_at=made.now + 60_000)
    assert "or the quota file's drain deadline passes" in explanation_sentence(
        explain(made.snapshot(), made.policy, "a1")
    )
    made.now += 120_000
    made.settle()
    assert made.jobs["a1"].state is JobState.PAUSED
