"""Explanations beside the smallest changes: jobs ahead, bounds, quotas in force, the calendar, large pools."""

from __future__ import annotations

import dataclasses as dc
import random
from unittest.mock import Mock

import pytest

from jupyter_gpu_quota.core.explain.explanation import ChangeKind, Explanation, Outlook
from jupyter_gpu_quota.core.explain.trials import SMALL, WORK_OF_ALL
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.decide import decide_about
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from tests.core.explain import brute_force
from tests.core.world import BEGIN, GENTLE, World, world


# --- jobs of the own project ----------------------------------------------------------------------------------------
# R77 R79
@pytest.mark.parametrize(
    ("queued", "expected"),
    [
        pytest.param("a queues 1 priority 70\na queues 1", ("behind_higher_priority", 1, "a2"), id="one comes first"),
        pytest.param(
            "a queues 4 of 1 priority 70\na queues 1", ("behind_higher_priority", 4, "a2, a3, a4"),
            id="of several the first three are named",
        ),
        pytest.param("a queues 1\na queues 1", ("above_fair_share", None, None), id="an older one of equal priority"),
        pytest.param("b queues 1 priority 70\na queues 1", ("above_fair_share", None, None), id="of another project"),
        pytest.param(
            "a queues 3 fixed priority 70\na queues 1", ("above_fair_share", None, None), id="one that waits for quota"
        ),
    ],
)  # fmt: skip
def test_a_job_behind_higher_priorities_of_its_project_has_that_reason(
    queued: str, expected: tuple[str, int | None, str | None]
) -> None:
    made = world(f"pool t 2\na 1 of t\nb 1 of t\na runs 1 priority 70\nb runs 1\n{queued}")
    last = [job.id for job in made.jobs.values() if job.project == "a"][-1]
    reason = explain(made.snapshot(), made.policy, last).reason
    assert reason is not None
    figures = figures_of(reason)
    assert (reason.code, figures.get("ahead"), figures.get("workloads")) == expected


def test_the_sentence_names_the_jobs_ahead() -> None:
    made = world("pool t 1\na 1 of t\na runs 1 priority 90\na queues 1 priority 70\na queues 1")
    said = explanation_sentence(explain(made.snapshot(), made.policy, "a3"))
    assert (
        "Jobs of the same project with a higher job priority wait for GPUs, too, and come first: 1 job, at the" in said
    )
    assert "fair share of 1" in said, "the position of the project is there as well"


# --- bounds ---------------------------------------------------------------------------------------------------------
PROTECTED = dc.replace(GENTLE, min_runtime_s=7200)
PLANNED = "pool t 4\na 0 of t{}\nb 0 of t, weight 0{}\nb runs 3 of 1 minutes 60 ran 0\na queues 4\n{}"


# R34
@pytest.mark.parametrize(
    ("a", "b", "more", "delaying"),
    [
        pytest.param("", "", "", None, id="nothing else waits: a bound"),
        pytest.param("", "", "a queues 1", "a", id="another job of its project"),
        pytest.param("", "", "c 1 of t, weight 0", "c", id="another project has a training quota"),
        pytest.param(
            "",
            "",
            "c 0 of t\nc used 10 of t\na runs 1 fixed",
            "c",
            id="one with more past use, which that of its own project may exceed",
        ),
        pytest.param("", "", "c 0 of t\nc used 10 of t", None, id="one with more past use: a bound"),
        pytest.param("", "", "window w from 60 to 99: b 1 of t", "b", id="a window changes the amounts before"),
        pytest.param("", "", "window w from 9000 to 9999: b 1 of t", None, id="a window that opens after the start"),
    ],
)
def test_only_what_nothing_can_delay_is_a_bound(a: str, b: str, more: str, delaying: str | None) -> None:
    made = world(PLANNED.format(a, b, more), preemption=PROTECTED)
    found = explain(made.snapshot(), made.policy, "a1")
    assert found.reason is not None and found.outlook == "waits"
    assert figures_of(found.reason).get("delayed_by") == delaying
    assert found.is_bound is (delaying is None)
    assert ("at the latest" in explanation_sentence(found)) is found.is_bound


@pytest.mark.parametrize(
    ("department", "delaying"),
    [
        pytest.param("D 4 of t, limit 9", "c", id="a limit"),
        pytest.param("D 4 of t, limit per user 9", "c", id="a ceiling"),
        pytest.param("D 4 of t", None, id="neither: a bound"),
    ],
)
def test_another_project_below_the_bounds_of_the_same_department_may_come_first(
    department: str, delaying: str | None
) -> None:
    text = f"department {department}\na 4 of t in D\nc 0 of t in D, weight 0"
    made = world(f"pool t 4\n{text}\nc runs 1 minutes 60 fixed ran 0\na queues 4", preemption=PROTECTED)
    reason = explain(made.snapshot(), made.policy, "a1").reason
    assert reason is not None
    assert (figures_of(reason)["delaying"] > 0, figures_of(reason).get("delayed_by")) == (
        delaying is not None,
        delaying,
    )


def test_work_that_has_yet_to_start_makes_a_planned_start_an_estimate() -> None:
    made = world(PLANNED.format("", "", ""), preemption=PROTECTED)
    made.jobs["b1"] = dc.replace(made.jobs["b1"], state=JobState.STARTING, started_at=None)
    found = explain(made.snapshot(), made.policy, "a1")
    assert found.reason is not None
    assert (found.is_bound, figures_of(found.reason).get("delayed_by")) == (False, "b")


def test_unbooked_notebook_quota_makes_the_planned_start_of_a_preemptible_job_an_estimate() -> None:
    text = PLANNED.format("", ", notebooks 0.5", "").replace("a queues 4", "a queues 3")
    found = explain(*_of(world(text, preemption=PROTECTED)), "a1")
    assert not found.is_bound


def _of(made: World):  # type: ignore[no-untyped-def]
    return made.snapshot(), made.policy


# --- quotas in force and the calendar -------------------------------------------------------------------------------
def test_a_notebook_that_finds_no_room_is_explained_by_its_notebook_quota() -> None:
    made = world(
        "pool t 1\nn1g0 foreign 0.5\na 0 of t, notebooks 1\nb 0 of t\n"
        "window nights from 0 to 9: a of t, notebooks 0.75\na notebook 0.6"
    )
    said = explanation_sentence(explain(made.snapshot(), made.policy, "nb-a1"))
    assert said.startswith(
        "a asked for a notebook of 0.6 GPU; its notebook quota is 0.75. No device has that much free beside other "
        "slices and other work, and no running work may be paused for it. It starts when enough is freed. It would"
    )


# R66
def test_a_quota_that_is_in_force_in_part_is_shown_with_both_figures() -> None:
    made = world("pool t 8\na 6 of t\nb 2 of t\nb runs 6 of 1 fixed\na runs 2\na queues 1")
    found = explain(made.snapshot(), made.policy, "a2")
    assert [(one.owner, one.set_milli, one.in_force_milli) for one in found.in_force] == [("a", 6000, 2000)]
    assert " Training quota of a in pool t: set 6, in force 2; the rest is " in explanation_sentence(found)


def test_a_quota_in_force_as_a_whole_is_not_mentioned() -> None:
    made = world("pool t 8\na 6 of t\nb 2 of t\nb runs 2 of 1 fixed\na runs 6\na queues 1")
    assert explain(made.snapshot(), made.policy, "a2").in_force == ()


# R63
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param("window nights from 5 to 9: a of t, limit 2", (5, ("nights",)), id="a window that opens"),
        pytest.param("window day from 0 to 7: a of t, limit 1", (7, ("day",)), id="a window that closes"),
        pytest.param(
            "window w from 5 to 9: b 1 of t\nwindow x from 6 to 9: a of t, limit 2", (6, ("x",)),
            id="the second one, since the first brings nothing",
        ),
        pytest.param("window nights from 5 to 9: a of t, limit 1.5", None, id="one that brings too little"),
    ],
)  # fmt: skip
def test_the_window_that_brings_the_amounts_is_named_with_its_instant(
    windows: str, expected: tuple[int, tuple[str, ...]] | None
) -> None:
    limit = "" if "day" in windows else ", limit 1"
    made = world(f"pool t 4\na 1 of t{limit}\nb 0 of t\n{windows}\na runs 1\na queues 1")
    found = explain(made.snapshot(), made.policy, "a2")
    brought = [((one.at or 0) - BEGIN, one.windows) for one in found.would_start if one.kind is ChangeKind.CALENDAR]
    assert brought == ([] if expected is None else [(expected[0] * 1000, expected[1])])
    if expected:
        assert f"or at 1970-01-01T00:16:4{expected[0]}Z, when the calendar's window " in explanation_sentence(found)


def brought(found: Explanation) -> list[tuple[int, tuple[str, ...]]]:
    """The seconds after which the calendar starts it, and the named windows."""
    changes = (one for one in found.would_start if one.kind is ChangeKind.CALENDAR)
    return [(((one.at or 0) - BEGIN) // 1000, one.windows) for one in changes]


def nine_openings(pool: str) -> str:
    """Windows one after the other, each with another quota of another project."""
    return "\n".join(f"window w{at} from {at} to {at + 1}: q 0.{at} of {pool}" for at in range(1, 10))


def test_windows_of_another_pool_do_not_hide_the_one_that_brings_the_amounts() -> None:
    made = world(
        f"pool t 4\npool u 4\np 0 of t\nq 0 of u\n{nine_openings('u')}\nwindow x from 20 to 30: p 2 of t\n"
        "p queues 2 fixed pool t"
    )
    found = explain(made.snapshot(), made.policy, "p1")
    assert (brought(found), found.ended_early) == ([(20, ("x",))], ())


def test_where_more_sets_of_amounts_follow_than_are_tried_the_explanation_says_so() -> None:
    made = world(f"pool t 4\np 0 of t\nq 0 of t\n{nine_openings('t')}\np queues 2 fixed")
    found = explain(made.snapshot(), made.policy, "p1")
    assert (brought(found), found.ended_early) == ([], (ChangeKind.CALENDAR,))


def test_of_windows_that_move_together_those_of_its_project_are_named() -> None:
    made = world(
        "pool t 4\np 2 of t\nq 0 of t\nwindow nights from 0 to 9: p 0 of t\n"
        "window other from 9 to 12: q of t, weight 2\np queues 2 fixed"
    )
    assert brought(explain(made.snapshot(), made.policy, "p1")) == [(9, ("nights",))]


# --- requests -------------------------------------------------------------------------------------------------------
# R78
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a queues 1 model A", "B", id="the other model is free"),
        pytest.param("b runs 1 on n2g0 fixed\na queues 1 model A,B", "C", id="of two others the free one"),
        pytest.param("a queues 1 model A\nb runs 1 on n2g0\nb runs 1 on n3g0", None, id="no model is free"),
        pytest.param("a queues 1 ranks 2 model A", "B, C", id="a gang that needs both"),
    ],
)
def test_a_further_gpu_model_that_starts_it_is_named(text: str, expected: str | None) -> None:
    made = world(f"pool t 1x1 A\npool t 1x1 B\npool t 1x1 C\na 1 of t\nb 2 of t\na runs 1 on n1g0 fixed\n{text}")
    found = explain(made.snapshot(), made.policy, "a2")
    named = [one.model for one in found.would_start if one.kind is ChangeKind.GPU_MODEL]
    assert named == ([] if expected is None else [expected])


# --- large pools ----------------------------------------------------------------------------------------------------
def large(seed: int) -> World:
    """Forty devices that three projects fill, and ten to thirty waiting jobs."""
    rng, made = random.Random(seed), world("pool t 5x8\na 9 of t\nb 12 of t\nc 6 of t, limit 20")
    for project in "abc" * 40:
        size, free = rng.choice([500, 1000, 1000, 2000]), [name for name in made.devices if made.free(name) == 1000]
        nodes = [[name for name in free if made.devices[name].node == node.id] for node in made.nodes]
        room = [names for names in nodes if len(names) >= max(1, size // 1000)]
        if room:
            job = made.submit(project, size, priority=rng.choice([50, 50, 30]), preemptible=rng.random() < 0.6)
            made.put(job, rng.choice(room)[: max(1, size // 1000)], ran_s=rng.choice([60, 3600]))
    for _ in range(rng.randint(10, 30)):
        made.submit(rng.choice("abc"), rng.choice([500, 1000, 2000, 4000]), priority=rng.choice([50, 50, 60]))
    return made


# R78
@pytest.mark.parametrize("seed", [1, 3, 6, 7, 8, 9])
def test_in_a_large_pool_every_change_is_sufficient_and_none_of_the_work_can_be_left_out(seed: int) -> None:
    made = large(seed)
    snapshot, minimal = made.snapshot(), 0
    assert len(snapshot.jobs) > SMALL
    waiting = [job.id for job in snapshot.jobs if job.state is JobState.QUEUED]
    for name in waiting[:2] + waiting[-2:]:
        found = explain(snapshot, made.policy, name)
        for change in found.would_start:
            if change.kind is not ChangeKind.FREED:
                continue
            minimal += change.is_minimal
            assert not change.is_smallest, "not every set was tried"
            assert brute_force.starts(brute_force.without(snapshot, change.ends), made.policy, name)
            fewer = [[one for one in change.ends if one != left] for left in change.ends] if change.is_minimal else []
            assert not any(
                brute_force.starts(brute_force.without(snapshot, some), made.policy, name) for some in fewer if some
            )
            assert "may exist." in explanation_sentence(found)


def test_the_work_of_an_explanation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = large(0)
    queued = (job.id for job in made.jobs.values() if job.state is JobState.QUEUED)
    name = next(job for job in queued if explain(made.snapshot(), made.policy, job).outlook is Outlook.WAITS)
    monkeypatch.setattr("jupyter_gpu_quota.core.explain.trials.WORK_OF_ALL", 0)
    found = explain(made.snapshot(), made.policy, name)
    assert found.would_start == () and ChangeKind.FREED in found.ended_early
    assert "The search stopped early for the work that ends" in explanation_sentence(found)


def test_the_work_of_an_explanation_of_few_jobs_on_many_gpus_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(
        "pool t 125x8\na 500 of t\nb 500 of t\na runs 4 of 1 ranks 128\nb runs 3 of 1 ranks 128\na queues 1 ranks 256"
    )
    decided = Mock(wraps=decide_about)
    monkeypatch.setattr("jupyter_gpu_quota.core.explain.trials.decide_about", decided)
    explain(made.snapshot(), made.policy, "a5")
    assert 0 < decided.call_count <= WORK_OF_ALL // len(made.devices)
