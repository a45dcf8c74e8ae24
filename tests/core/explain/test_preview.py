"""A preview of an edit lists what ticks under that edit do: the same jobs are paused, and no other."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.explain.preview import Effect, Preview, preview
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.plan import CONTINUES, Pause, Stop
from jupyter_gpu_quota.core.reason_figures import exceeds_bound_alone, max_use_milli
from tests.core.eviction.test_removal import without
from tests.core.world import World, world

Edit = Callable[[World], object]
RUNS = (JobState.STARTING, JobState.RUNNING)

BUSY = "pool t 4\na 1 of t\nb 1 of t\nc 0 of t\na runs 3 of 1\nb runs 1\nb queues 2 of 1\nc queues 1"
NOTEBOOKS = "pool t 4\na 1 of t, notebooks 0.5\nb 2 of t\na runs 2 of 1\na notebook 0.25\nb runs 1\nb queues 2 of 1"
LENT = "pool t 2\na 1 of t\nb 0 of t, notebooks 1\na runs 1\na runs 1 lent\nb notebook 0.5"
FIXED = "pool t 4\na 3 of t\nb 1 of t\na runs 2 of 1 fixed\na runs 1\nb runs 1\nb queues 1"
ELASTIC = "pool t 4\na 1 of t\nb 1 of t\na runs 1 ranks 1-3 held 3\nb runs 1\nb queues 1"
DEPARTMENTS = (
    "pool t 4\ndepartment d 2 of t\ndepartment e 2 of t\na 1 of t in d\nb 1 of t in d\nc 2 of t in e\n"
    "a runs 2 of 1\nb runs 2 of 1\nc queues 2 of 1"
)
NIGHT = (
    "pool t 4\na 3 of t\nb 1 of t\nwindow night from 0 to 900: a 1 of t; b 3 of t\n"
    "a runs 2 of 1\nb runs 1\nb queues 2 of 1\na queues 2 of 1"
)


def half_to_another_pool(made: World) -> None:
    """The second half of the devices, and what runs there, is another pool's from now on."""
    made.policy = dc.replace(made.policy, pools=(*made.policy.pools, "u"))
    for name in list(made.devices)[len(made.devices) // 2 :]:
        made.devices[name] = dc.replace(made.devices[name], pool="u")


WORLDS = {
    "a busy pool": BUSY,
    "notebooks": NOTEBOOKS,
    "borrowers": LENT,
    "non-preemptible work": FIXED,
    "elastic work": ELASTIC,
    "departments": DEPARTMENTS,
    "an open window": NIGHT,
}
EDITS: dict[str, Edit] = {
    "nothing": lambda made: None,
    "b is given more": lambda made: made.project("b", "t", training_milli=3000),
    "a is given nothing": lambda made: made.project("a", "t", limit_milli=0, weight=0),
    "the first project is removed": lambda made: without(made, "a"),
    "the second project is removed": lambda made: without(made, "b"),
    "a removed, b raised": lambda made: without(made, "a").project("b", "t", training_milli=3000),
    "the pool is removed": lambda made: without(made, "t"),
    "half of the pool is another's": half_to_another_pool,
}


def compared(made: World, edit: Edit) -> tuple[Preview, set[str], World]:
    """The preview, the running jobs that ticks under the edit pause, and the world after them."""
    made.settle()
    old, snapshot = made.policy, made.snapshot()
    runs, made.frozen = {job.id for job in snapshot.jobs if job.state in RUNS}, True
    edit(made)
    found = preview(snapshot, old, made.policy, moved=made.snapshot())
    return found, runs & paused_until_at_rest(made), made


def paused_until_at_rest(made: World) -> set[str]:
    """The jobs that ticks pause until a plan is empty; a job that is moved or resized continues."""
    paused = set[str]()
    while (plan := made.tick()).actions or made.leaves_at:
        asked = [action for action in plan.actions if isinstance(action, Pause)]
        paused |= {action.workload for action in asked if action.reason.code not in CONTINUES}
    return paused


# R65
@pytest.mark.parametrize("drain_ticks", [1, 3])
@pytest.mark.parametrize("edit", list(EDITS))
@pytest.mark.parametrize("text", list(WORLDS))
def test_the_preview_lists_the_jobs_that_ticks_pause(text: str, edit: str, drain_ticks: int) -> None:
    made = world(WORLDS[text])
    made.drain_ticks = drain_ticks
    found, paused, _ = compared(made, EDITS[edit])
    assert set(found.of(Effect.PAUSED)) == paused


def _line(owner: str) -> st.SearchStrategy[str]:
    size = st.sampled_from(["1", "1", "2", "0.5", "0.25"])
    more = st.sampled_from(["", "", "", " priority 70", " fixed"])
    return st.builds(lambda gpu, rest: f"{owner} queues {gpu}{rest}", size, more)


WORK = st.lists(st.sampled_from("abc").flatmap(_line), min_size=3, max_size=16)
QUOTAS = st.tuples(*[st.sampled_from(["0", "1", "2"])] * 3)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(quotas=QUOTAS, work=WORK, edit=st.sampled_from(list(EDITS)))
@example(
    quotas=("1", "0", "1"),
    work=["a queues 1", "a queues 0.5", "a queues 0.25 priority 70", "b queues 1", "b queues 1", "c queues 0.5"],
    edit="b is given more",  # a3 is moved, and continues
)
def test_in_random_states_the_preview_lists_the_jobs_that_ticks_pause(
    quotas: tuple[str, ...], work: list[str], edit: str
) -> None:
    owners = [f"{name} {quota} of t" for name, quota in zip("abc", quotas, strict=True)]
    found, paused, _ = compared(world("\n".join(["pool t 4", *owners, *work])), EDITS[edit])
    assert set(found.of(Effect.PAUSED)) == paused


def test_an_unchanged_policy_changes_nothing() -> None:
    found, paused, _ = compared(world(BUSY), EDITS["nothing"])
    assert (found.affected, paused) == ((), set())


# R65
def test_work_that_would_start_is_listed_with_its_former_reason() -> None:
    found, _, made = compared(world(BUSY), EDITS["b is given more"])
    assert (found.of(Effect.STARTS), found.of(Effect.PAUSED)) == (("b2", "b3"), ("a2", "a3"))
    assert all(made.jobs[name].state in RUNS for name in found.of(Effect.STARTS))
    assert all(one.before is not None and one.after is None for one in found.affected if one.effect is Effect.STARTS)


# R24
def test_a_longer_patience_lists_the_jobs_that_overtake_again() -> None:
    made = world(
        "pool t 2x2\na 2 of t\nb 2 of t\na runs 1 on n1g0 minutes 60 ran 600 fixed\n"
        "b runs 1 on n2g0 minutes 60 ran 700 fixed\na queues 2\na queues 1 by bob minutes 900 fixed\nb queues 2\n"
        "a used 100 of t"
    )
    made.jobs["a2"] = dc.replace(made.jobs["a2"], submitted_at=made.now - 25 * 3_600_000)
    found = preview(made.snapshot(), made.policy, dc.replace(made.policy, patience_s=48 * 3600))
    [one] = [one for one in found.affected if one.effect is Effect.STARTS]
    assert (one.work.id, one.before and one.before.code, one.after) == ("a3", "behind_overdue_job", None)


@pytest.mark.parametrize(("removed", "code"), [("a", "no_such_project"), ("t", "no_such_pool")])
def test_all_work_of_removed_projects_and_pools_is_listed(removed: str, code: str) -> None:
    made = world(NOTEBOOKS + "\na queues 5 of 1\na runs 1 fixed")
    made.settle()
    made.hold("a5")
    found, _, _ = compared(made, lambda made: without(made, removed))
    mine = {job.id for job in made.jobs.values() if removed in (job.project, job.pool)}
    assert {one.work.id for one in found.affected} >= {*mine, "nb-a1"}
    waits = [one for one in found.affected if one.effect is Effect.WAITS and one.work.id in mine]
    assert waits and {one.after.code for one in waits if one.after} == {code}


def test_running_work_is_never_listed_as_waiting() -> None:
    for text in WORLDS.values():
        for edit in EDITS.values():
            made = world(text)
            made.settle()
            runs = {job.id for job in made.jobs.values() if job.state in RUNS}
            found, _, _ = compared(made, edit)
            assert not runs & {*found.of(Effect.WAITS), *found.of(Effect.STARTS)}


def test_a_lowered_quota_lists_work_over_quota_and_draining_work() -> None:
    made = world("pool t 3\na 3 of t\na runs 2 of 1\na runs 1 fixed")
    found, paused, _ = compared(made, lambda made: made.project("a", "t", training_milli=1000))
    assert (found.of(Effect.OVER_QUOTA), found.of(Effect.DRAINS), paused) == (("a1", "a2"), (), set())
    assert {(one.used_milli, one.quota_milli, one.had_milli) for one in found.affected} == {(3000, 1000, 3000)}
    less, _, _ = compared(made, lambda made: made.project("a", "t", training_milli=500))
    assert (less.of(Effect.OVER_QUOTA), less.of(Effect.DRAINS)) == ((), ("a3",))
    assert {(one.used_milli, one.quota_milli) for one in less.affected} == {(1000, 500)}


@pytest.mark.parametrize(
    ("text", "to_milli", "named"),
    [
        pytest.param("a 2 of t\na runs 4 of 1", 1000, ("a2",), id="2 over already, 1 more: the third victim"),
        pytest.param("a 2 of t\na runs 2 of 1", 1000, ("a2",), id="all of the quota is used: only one goes over"),
        pytest.param(
            "a 2 of t\na runs 2 of 1\na runs 1 priority 40", 1000, ("a2",), id="the lowest priority is the first victim"
        ),
        pytest.param("a 3 of t\na runs 4", 2000, ("a1",), id="one large job changes from 1 over to 2 over"),
        pytest.param("a 4 of t\na runs 1 ranks 1-3 held 3\na runs 1", 2000, ("a1",), id="elastic work shrinks first"),
        pytest.param("a 2 of t\na runs 4 of 1", 3000, (), id="a raised quota puts no work over quota"),
    ],
)
def test_a_lowered_quota_lists_the_jobs_that_it_puts_over_quota_in_victim_order(
    text: str, to_milli: int, named: tuple[str, ...]
) -> None:
    found, paused, _ = compared(
        world(f"pool t 4\n{text}"), lambda made: made.project("a", "t", training_milli=to_milli)
    )
    assert (found.of(Effect.OVER_QUOTA), found.of(Effect.DRAINS), paused) == (named, (), set())


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(priorities=st.lists(st.sampled_from([40, 50, 70]), min_size=4, max_size=4), had=st.integers(1, 3))
def test_the_work_listed_as_over_quota_is_what_a_claim_for_all_of_it_pauses(priorities: list[int], had: int) -> None:
    """First the old quota is claimed, then the new one: the jobs paused only then are those listed."""
    lines = "\n".join(f"a runs 1 priority {priority}" for priority in priorities)
    made = world(f"pool t 4\na {had} of t\nb {4 - had} of t\n{lines}")
    old, snapshot = made.policy, made.snapshot()
    made.project("a", "t", training_milli=0)
    found = preview(snapshot, old, made.policy)

    def paused_by(claimed: int) -> set[str]:
        claim = world(f"pool t 4\na {4 - claimed} of t\nb {claimed} of t\n{lines}\nb queues {claimed} of 1")
        claim.settle()
        return {job.id for job in claim.jobs.values() if job.paused_at}

    assert set(found.of(Effect.OVER_QUOTA)) == paused_by(4) - paused_by(4 - had)


# R67
def test_a_past_drain_deadline_stops_the_jobs_above_their_quota_at_once() -> None:
    made = world("pool t 4\na 1 of t\nb 1 of t\na runs 3 of 1 fixed\nb queues 1")
    made.settle()
    old, late = made.policy, dc.replace(made.policy, drain_by_at=made.now)
    found = preview(made.snapshot(), old, late)
    assert found.of(Effect.PAUSED) == ("a2", "a3") and found.of(Effect.DRAINS) == ()
    assert {one.deadline_at for one in found.affected if one.effect is Effect.PAUSED} == {made.now}
    assert preview(made.snapshot(), late, old).of(Effect.RUNS_ON) == ("a2", "a3")
    made.frozen, made.policy = True, late
    assert {action.workload for action in made.tick().actions if isinstance(action, Stop)} == {"a2", "a3"}


# R67
@pytest.mark.parametrize(
    ("to_milli", "is_moved", "listed"),
    [
        pytest.param(1000, False, {"a1": True, "a2": True}, id="above its lowered quota"),
        pytest.param(1000, True, {"a1": True, "a2": True}, id="above it, and on devices that leave the pool"),
        pytest.param(2000, True, {"a1": False, "a2": False}, id="only on devices that leave the pool"),
    ],
)
def test_draining_work_has_the_deadline_that_can_stop_it(
    to_milli: int, is_moved: bool, listed: dict[str, bool]
) -> None:
    made = world("pool t 3\na 2 of t\na runs 2 of 1 fixed")
    made.settle()
    old, by = made.policy, made.now + 3_600_000
    made.project("a", "t", training_milli=to_milli)
    moved = dc.replace(made.snapshot(), devices=tuple(dc.replace(one, pool=None) for one in made.snapshot().devices))
    new = dc.replace(made.policy, drain_by_at=by)
    found = preview(made.snapshot(), old, new, moved=moved if is_moved else None)
    assert {one.work.id: one.deadline_at == by for one in found.affected} == listed
    assert {one.effect for one in found.affected} == {Effect.DRAINS}


# R67
def test_a_job_that_a_past_deadline_leaves_within_its_quota_is_not_listed() -> None:
    made = world("pool t 3\na 2 of t\na runs 2 of 1 fixed")
    made.settle()
    old = made.policy
    made.project("a", "t", training_milli=1000)
    found = preview(made.snapshot(), old, dc.replace(made.policy, drain_by_at=made.now))
    assert [(one.work.id, one.effect) for one in found.affected] == [("a2", Effect.PAUSED)]


def test_work_whose_devices_move_to_another_pool_is_listed_as_that() -> None:
    made = world("pool t 4\na 3 of t, notebooks 0.5\na runs 2 of 1\na notebook 0.5")
    found, paused, _ = compared(made, _nothing_matches)
    assert {(one.work.id, one.effect, one.loses_device) for one in found.affected} >= {
        (name, Effect.DRAINS, True) for name in ("a1", "a2", "nb-a1")
    }
    assert (found.of(Effect.OVER_QUOTA), paused) == ((), set())


def _nothing_matches(made: World) -> None:
    """The selector matches no device, and the quota is lowered, too."""
    made.devices = {name: dc.replace(one, pool=None) for name, one in made.devices.items()}
    made.project("a", "t", training_milli=1000)


def test_a_lowered_notebook_quota_names_the_slices_that_drain() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\na notebook 0.5\na notebook 0.25")
    found, _, _ = compared(made, lambda made: made.project("a", "t", notebook_milli=500))
    assert found.of(Effect.DRAINS) == ("nb-a1", "nb-a2")


def test_the_wait_before_the_edit_is_that_of_the_old_pools() -> None:
    """Devices that the edit gives to another pool are, without the edit, still where they were."""
    made = world("pool t 1\npool u 1\na 1 of t\na queues 1")
    made.settle()
    old, snapshot = made.policy, made.snapshot()
    moved = dc.replace(snapshot, devices=tuple(dc.replace(one, pool="u") for one in snapshot.devices))
    made.submit("a", 1000)
    waiting = dc.replace(made.snapshot(), devices=moved.devices)
    found = preview(made.snapshot(), old, made.policy, moved=waiting)
    [row] = [one for one in found.affected if one.work.id == "a2"]
    assert (row.effect, row.after and row.after.code) == (Effect.WAITS, "never_fits")


TWO_DEPARTMENTS = (
    "pool t 6\ndepartment d 4 of t\ndepartment e 2 of t\na 1 of t in d\nb 1 of t in d\nc 2 of t in e\n"
    "a runs 3 of 1\nb runs 1\n"
)


def lowered(made: World, milli: int) -> None:
    made.department("d", "t", training_milli=milli)


def test_a_lowered_quota_of_a_department_lists_work_of_projects_over_their_own() -> None:
    found, paused, _ = compared(world(TWO_DEPARTMENTS), lambda made: lowered(made, 3000))
    assert (found.of(Effect.OVER_QUOTA), paused) == (("a3",), set())
    [row] = found.affected
    assert (row.department, row.used_milli, row.quota_milli, row.had_milli) == ("d", 4000, 3000, 4000)


def test_a_department_within_its_lowered_quota_lists_no_work() -> None:
    text = TWO_DEPARTMENTS.replace("a runs 3 of 1", "a runs 2 of 1")
    assert compared(world(text), lambda made: lowered(made, 3000))[0].affected == ()


def test_the_work_that_a_lowered_department_lists_is_what_the_other_department_pauses() -> None:
    found, _, made = compared(world(TWO_DEPARTMENTS), lambda made: lowered(made, 2000))
    assert found.of(Effect.OVER_QUOTA) == ("a2", "a3")
    made.department("e", "t", training_milli=4000)
    made.project("c", "t", training_milli=4000)
    for _ in range(4):
        made.submit("c", 1000)
    made.settle()
    assert {job.id for job in made.jobs.values() if job.paused_at} == {"a2", "a3"}


def test_a_department_s_lowered_quota_for_notebooks_drains_them() -> None:
    made = world("pool t 1\ndepartment d 0 of t, notebooks 1\na 0 of t, notebooks 0.5 in d\na notebook 0.5")
    found, _, _ = compared(made, lambda made: made.department("d", "t", notebook_milli=250))
    assert found.of(Effect.DRAINS) == ("nb-a1",)
    assert [row.department for row in found.affected] == ["d"]


@pytest.mark.parametrize(
    ("had", "has"),
    [
        pytest.param({"limit_milli": 2000}, {"limit_milli": 500}, id="the limit falls below what it asks"),
        pytest.param({"user_jobs_milli": 2000}, {"user_jobs_milli": 500}, id="so does the ceiling for each user"),
        pytest.param({"user_jobs_milli": 2000}, {"user_jobs_milli": 0}, id="that ceiling becomes nothing"),
    ],
)
def test_a_job_that_can_no_longer_start_or_can_again_is_listed(had: dict[str, int], has: dict[str, int]) -> None:
    made = world("pool t 4\na 0 of t\nb 1 of t\na runs 1\na queues 2 of 1")
    made.project("a", "t", **had)
    found, _, made = compared(made, lambda made: made.project("a", "t", **has))
    [one] = found.affected
    assert one.before and one.after and one.before.code is one.after.code
    assert (one.effect, exceeds_bound_alone(one.before), exceeds_bound_alone(one.after)) == (Effect.WAITS, False, True)
    back, _, _ = compared(made, lambda made: made.project("a", "t", **had))
    assert back.of(Effect.WAITS) == (one.work.id,)


LIMITED = "pool t 8\na 0 of t\nb 1 of t\na runs 4 of 1\na queues 1"


@pytest.mark.parametrize(
    ("text", "had", "has"),
    [
        pytest.param(LIMITED, {"limit_milli": 4000}, {"limit_milli": 3000}, id="its limit"),
        pytest.param(LIMITED, {"user_jobs_milli": 4000}, {"user_jobs_milli": 1000}, id="its ceiling for each user"),
        pytest.param(
            "pool t 8\na 4 of t\nb 1 of t\na runs 4 of 1 fixed\na queues 1 fixed",
            {"training_milli": 4000},
            {"training_milli": 2000},
            id="its training quota, and it may not be preempted",
        ),
    ],
)
def test_a_job_that_waits_for_a_lowered_amount_is_listed_with_both_figures(
    text: str, had: dict[str, int], has: dict[str, int]
) -> None:
    made = world(text)
    made.project("a", "t", **had)
    found, paused, made = compared(made, lambda made: made.project("a", "t", **has))
    [one] = [one for one in found.affected if one.effect is Effect.WAITS]
    assert one.work.id == "a5" and not paused and one.before and one.after
    assert not exceeds_bound_alone(one.after) and one.before.code is one.after.code
    assert (max_use_milli(one.before), max_use_milli(one.after)) == (*had.values(), *has.values())
    back, _, _ = compared(made, lambda made: made.project("a", "t", **had))
    assert back.of(Effect.WAITS) == (), "behind a higher one it waits for no more than before"


def test_a_job_that_can_start_under_neither_policy_is_not_listed() -> None:
    made = world("pool t 4\na 1 of t, limit per user 1\na queues 2")
    found, _, _ = compared(made, lambda made: made.project("a", "t", user_jobs_milli=500))
    assert found.affected == ()
