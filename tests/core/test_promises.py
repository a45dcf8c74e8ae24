"""P1 to P12 and P14 over random worlds, with one level and two, by the checkers in ``promises.py``.

``GPU_QUOTA_WORLDS`` sets how many worlds are played (default 60). The soak sets more, and ``GPU_QUOTA_WORLD_SEED``,
which fixes them. ``GPU_QUOTA_SHRINK`` looks for a smaller world when one fails, which can take minutes.

"No job is paused twice on the way" (P8) is asserted for pauses between projects. Inside a project it cannot hold beside
P10 where the minimum run time is 0: a small job within the guarantee may not be hidden by a larger one of higher job
priority, comes back to claim it, and then makes room for the larger one, which now finds enough to take.
"""

from __future__ import annotations

import dataclasses as dc
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jupyter_gpu_quota.core.model import (
    Activity,
    Change,
    Health,
    History,
    JobState,
    JobTarget,
    NotebookState,
    PreemptionPolicy,
    Snapshot,
    Upkeep,
)
from jupyter_gpu_quota.core.plan import Pause, Plan, Resume, Start, Unreserve
from jupyter_gpu_quota.core.quota.fit import check_quotas
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.scheduling.decide import Decision
from tests.core.accounting import in_force
from tests.core.cluster import is_backfill
from tests.core.equivalence import check_departments_that_change_nothing
from tests.core.evictions import starting_again
from tests.core.promises import check_guarantees, check_instant, check_order_is_irrelevant, check_plan
from tests.core.quarantined import check_quarantined_reservations, claims, kept_until, on_quarantined, quarantine
from tests.core.world import BEGIN, World

WORLDS = min(int(os.environ.get("GPU_QUOTA_WORLDS", "60")), 4000)
"""4,000 take half an hour of one processor."""
WORLDS_OF_A_PART = 250
"""So many are played by one test, so that a soak uses all processors."""
SIZES = {
    "whole": (1000, 1000, 1000, 2000, 3000),
    "fractions": (100, 250, 300, 500, 600, 1000),
    "mixed": (250, 500, 1000, 1000, 2000, 4000),
}
NEVER_S = 10**9
JOBS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 5),
        st.fixed_dictionaries(
            {
                "user": st.sampled_from("uvw"),
                "priority": st.sampled_from([50, 50, 50, 70, 30]),
                "preemptible": st.sampled_from([True] * 6 + [False]),
                "ranks": st.sampled_from([1] * 8 + [2, 3]),
                "time_limit_s": st.sampled_from([NEVER_S, NEVER_S, 20]),
                "least": st.sampled_from([0] * 7 + [1, 2]),
            }
        ),
    ),
    min_size=1,
    max_size=6,
)


def _fields(amounts, **changed):  # type: ignore[no-untyped-def]
    return {name: getattr(amounts, name) for name in amounts.__slots__} | changed


class Worlds(RuleBasedStateMachine):
    """Random events, a tick after each; at the end demand and time are frozen, and plans must become empty."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.sizes = SIZES["whole"]
        self.steady = self.whole = True
        self.built = False
        """A draw may run out of entropy halfway."""
        self.late = "none"
        """The devices that are quarantined when a claim waits for several: one of them, or all of the pool but one."""
        self.before: Snapshot | None = None
        self.departments = 0
        self.ticks = 0
        self.events = 0
        self.taken: Counter[str] = Counter()
        self.frozen_at = 0
        self.paused_by: set[tuple[str, str]] = set()
        self.owed: set[str] = set()
        self.waits_since: dict[str, int] = {}

    # -- building ------------------------------------------------------------------------------------------

    @initialize(
        kind=st.sampled_from(sorted(SIZES)),
        nodes=st.sampled_from([(1, 2), (1, 4), (1, 6), (2, 3), (2, 4)]),
        count=st.integers(2, 4),
        young_s=st.sampled_from([0, 0, 2]),
        pauses=st.sampled_from([(1000, 86_400), (1000, 86_400), (2, 60)]),
        in_turn=st.booleans(),
        slices=st.booleans(),
        departments=st.sampled_from([0, 0, 2, 2, 3]),
        k=st.sampled_from([0, 0, 0, 1000, 3000]),
        drain_by=st.sampled_from([None, None, 12, 25]),
        lend_for=st.sampled_from([None, 4, 4, 1000]),
        late=st.sampled_from(["none"] * 4 + ["one", "most"]),
        data=st.data(),
    )
    def build(  # type: ignore[no-untyped-def]
        self, kind, nodes, count, young_s, pauses, in_turn, slices, departments, k, drain_by, lend_for, late, data
    ) -> None:
        rules = PreemptionPolicy(
            min_runtime_s=young_s, grace_s=3, lent_grace_s=1, max_pauses=pauses[0], per_s=pauses[1]
        )
        self.world = World(preemption=rules, within_project="users_in_turn" if in_turn else "first_come")
        self.world.pool("t", *nodes)
        self.sizes = SIZES[kind]
        self.departments = departments
        left = nodes[0] * nodes[1] * 1000
        for name in "abcd"[:count]:
            left -= self._add_project(name, left, kind, slices, data)
        for name in sorted({one.department for one in self.world.policy.projects if one.department}):
            left -= self._add_department(name, left, data)
        self.world.policy = dc.replace(self.world.policy, history=History(k_milli=k, half_life_s=10))
        if drain_by is not None:
            self.world.policy = dc.replace(self.world.policy, drain_by_at=BEGIN + drain_by * 1000)
        if lend_for is not None:
            self.world.lend_for(lend_for)
        self.late = late
        self.whole = kind == "whole" and nodes[0] == 1 and late == "none"
        for at in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
            self._add_window(f"w{at}", data)
        self._see_whether_steady()
        self.built = True

    def _see_whether_steady(self) -> None:
        """P10 is looked at while all quotas fit, whatever window is open."""
        policy, devices = self.world.policy, list(self.world.devices.values())
        instants = [0, *(at for window in policy.windows for at in (window.begins_at, window.ends_at))]
        self.steady = self.whole and not any(check_quotas(in_force(policy, at), devices) for at in instants)

    def _add_project(self, name, left, kind, slices, data) -> int:  # type: ignore[no-untyped-def]
        quotas = [0, 500, 1000, 1500] if kind == "fractions" else [0, 1000, 2000]
        training = min(left, data.draw(st.sampled_from(quotas)))
        notebook = min(left - training, data.draw(st.sampled_from([0, 250, 500, 1000]))) if slices else 0
        extra = data.draw(st.sampled_from([None, None, None, 1000]))
        self.world.project(
            name,
            "t",
            department=f"d{data.draw(st.integers(1, self.departments))}" if self.departments else None,
            priority=data.draw(st.sampled_from([50, 50, 60])),
            training_milli=training,
            notebook_milli=notebook,
            limit_milli=None if extra is None else training + notebook + extra,
            weight=data.draw(st.sampled_from([0, 1, 1, 1, 2, 3])),
            user_jobs_milli=data.draw(st.sampled_from([None, None, None, 1000, 2000])),
            user_notebook_milli=data.draw(st.sampled_from([None, None, 250])),
        )
        return training + notebook

    def _add_department(self, name, left, data) -> int:  # type: ignore[no-untyped-def]
        """Its quotas are its projects', or more; returns what of the pool it has beside theirs."""
        rows = [one.amounts["t"] for one in self.world.policy.projects if one.department == name]
        more = min(left, data.draw(st.sampled_from([0, 0, 1000])))
        training, notebook = sum(row.training_milli for row in rows) + more, sum(row.notebook_milli for row in rows)
        extra = data.draw(st.sampled_from([None, None, None, 0, 1000]))
        self.world.department(
            name,
            "t",
            priority=data.draw(st.sampled_from([50, 50, 60])),
            training_milli=training,
            notebook_milli=notebook,
            limit_milli=None if extra is None else training + notebook + extra,
            weight=data.draw(st.sampled_from([0, 1, 1, 1, 2])),
            user_jobs_milli=data.draw(st.sampled_from([None, None, None, 1000, 2000])),
            user_notebook_milli=data.draw(st.sampled_from([None, None, 250])),
        )
        return more

    def _add_window(self, name, data) -> None:  # type: ignore[no-untyped-def]
        """One project has another quota or weight, its department as much more or less, and neither has a limit."""
        project = data.draw(st.sampled_from(self.world.policy.projects))
        before, begins = project.amounts["t"], data.draw(st.integers(2, 20))
        training = data.draw(st.sampled_from([None, 0, 1000, 2000]))
        weight = data.draw(st.sampled_from([None, 0, 1, 2]))
        changes = [Change(owner=project.name, pool="t", training_milli=training, weight=weight)]
        self.world.project(project.name, "t", **_fields(before, limit_milli=None))
        for one in self.world.policy.departments:
            if one.name == project.department:
                now = one.amounts["t"]
                self.world.department(one.name, "t", **_fields(now, limit_milli=None))
                more = max(0, (training or 0) - before.training_milli)
                changes += [Change(owner=one.name, pool="t", department=True, training_milli=now.training_milli + more)]
        self.world.window(name, begins, begins + data.draw(st.integers(1, 15)), *changes)

    # -- outside events ------------------------------------------------------------------------------------

    def _event(self) -> None:
        self.paused_by.clear()

    def _pick(self, data, *states):  # type: ignore[no-untyped-def]
        names = sorted(
            name for name, job in self.world.jobs.items() if job.state in states and job.target is JobTarget.RUNNING
        )
        return data.draw(st.sampled_from(names)) if names else None

    @rule(jobs=JOBS)
    def submit(self, jobs) -> None:  # type: ignore[no-untyped-def]
        self._event()
        known = {row.name for row in self.world.policy.projects}
        for project, at, fields in jobs:
            least, fields = fields["least"], {name: field for name, field in fields.items() if name != "least"}
            if least:
                fields |= {"min_ranks": least, "ranks": max(least, fields["ranks"]) + 1}
            self.world.submit(project if project in known else "a", self.sizes[at % len(self.sizes)], **fields)

    @rule(jobs=JOBS)
    def submit_more(self, jobs) -> None:  # type: ignore[no-untyped-def]
        self.submit(jobs)

    @rule(jobs=JOBS)
    def submit_still_more(self, jobs) -> None:  # type: ignore[no-untyped-def]
        self.submit(jobs)

    @rule(jobs=JOBS, data=st.data())
    def finish_and_submit(self, jobs, data) -> None:  # type: ignore[no-untyped-def]
        self.finish(data)
        self.submit(jobs)

    @rule(data=st.data())
    def finish(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        if name := self._pick(data, JobState.RUNNING):
            self.world.end(name)

    @rule(data=st.data())
    def cancel(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        if name := self._pick(data, JobState.RUNNING, JobState.STARTING, JobState.QUEUED, JobState.PAUSED):
            self.world.cancel(name)
            self.owed.discard(name)

    @rule(data=st.data())
    def hold(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        if name := self._pick(data, JobState.RUNNING, JobState.STARTING, JobState.QUEUED, JobState.PAUSED):
            self.world.hold(name)
            self.owed.discard(name)

    @rule()
    def release(self) -> None:
        self._event()
        for name, job in sorted(self.world.jobs.items()):
            if job.state is JobState.HELD:
                self.world.release(name)

    @rule(project=st.sampled_from("abcd"), gpu=st.sampled_from([125, 250, 500, 1000]))
    def ask_for_a_slice(self, project, gpu) -> None:  # type: ignore[no-untyped-def]
        self._event()
        self.world.ask(project, gpu, id=f"nb{self.ticks}-{len(self.world.notebooks)}")

    @rule(data=st.data())
    def close_a_notebook(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        live = (NotebookState.BOOKED, NotebookState.LENT, NotebookState.REQUESTED)
        names = sorted(name for name, book in self.world.notebooks.items() if book.state in live)
        if names:
            name = data.draw(st.sampled_from(names))
            self.world.close(name)
            self.owed.discard(name)

    @rule(data=st.data(), activity=st.sampled_from(["idle", "idle", "busy", "unknown"]), empty=st.booleans())
    @precondition(lambda self: self.world.notebooks)
    def judge_notebooks(self, data, activity, empty) -> None:  # type: ignore[no-untyped-def]
        """Some notebooks become idle, others busy or unknown; an idle one may still have something on its device."""
        self._event()
        for name in data.draw(st.sets(st.sampled_from(sorted(self.world.notebooks)), min_size=1)):
            self.world.set_activity(name, Activity(activity), empty=empty or activity == "idle")

    @rule(ticks=st.sampled_from([1, 1, 2, 3]))
    def drains_take(self, ticks) -> None:  # type: ignore[no-untyped-def]
        self.world.drain_ticks = ticks

    @rule(name=st.sampled_from("abcd"), quota=st.sampled_from([0, 500, 1000, 2000]), weight=st.integers(0, 2))
    @precondition(lambda self: self.ticks > 15)
    def edit(self, name, quota, weight) -> None:  # type: ignore[no-untyped-def]
        """An edit may overcommit: guarantees are then reduced."""
        rows = {row.name: row for row in self.world.policy.projects}
        if name in rows:
            self._event()
            before = rows[name].amounts["t"]
            self.world.project(name, "t", **_fields(before, training_milli=quota, limit_milli=None, weight=weight))
            for one in self.world.policy.departments:
                if one.name == rows[name].department:
                    now = one.amounts["t"]
                    more = max(0, quota - before.training_milli)
                    fields = _fields(now, training_milli=now.training_milli + more, limit_milli=None)
                    self.world.department(one.name, "t", **fields)
            self.world.policy = dc.replace(self.world.policy, windows=())
            self._see_whether_steady()

    @rule(data=st.data())
    @precondition(lambda self: self.ticks > 10)
    def lose_or_repair_a_device(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        self.whole = self.steady = False
        name = data.draw(st.sampled_from(sorted(self.world.devices)))
        broken = self.world.devices[name].health is not Health.HEALTHY
        self.world.health(name, Health.HEALTHY if broken else data.draw(st.sampled_from(list(Health)[1:])))
        lost = broken or data.draw(st.booleans(), label="work on it is gone")
        for job in sorted(name_ for name_, rows in self.world.owned.items() if any(r.device == name for r in rows)):
            if lost and job in self.world.jobs:
                self.world.requeue(job)

    @rule(data=st.data(), upkeep=st.sampled_from(list(Upkeep)), by_s=st.sampled_from([None, None, 0, 3]))
    @precondition(lambda self: self.ticks > 10)
    def cordon_drain_or_open_a_node(self, data, upkeep, by_s) -> None:  # type: ignore[no-untyped-def]
        """Work on a cordoned node continues; a drained node loses it, some of it only by a deadline."""
        self._event()
        self.whole = self.steady = False
        node = data.draw(st.sampled_from(self.world.nodes))
        elapsed_s = (self.world.now - BEGIN) // 1000
        self.world.keep_up(node.id, upkeep, by_s=None if by_s is None else elapsed_s + by_s)

    @rule(data=st.data(), gpu=st.sampled_from([0, 0, 200, 1000]))
    @precondition(lambda self: self.ticks > 10)
    def see_foreign_work(self, data, gpu) -> None:  # type: ignore[no-untyped-def]
        self._event()
        self.whole = self.steady = False
        device = self.world.devices[data.draw(st.sampled_from(sorted(self.world.devices)))]
        if self.world.free(device.id) + device.foreign_milli >= gpu:
            self.world.devices[device.id] = dc.replace(device, foreign_milli=gpu)

    @rule(count=st.integers(1, 3))
    def time_passes(self, count) -> None:  # type: ignore[no-untyped-def]
        for _ in range(count):
            self.tick()

    @invariant()
    def mostly_a_tick_follows(self) -> None:
        """Two events in three have a tick of their own; the third falls into the next one's."""
        self.events += 1
        if self.world.devices and self.events % 3:
            self.tick()

    # -- one tick, checked -----------------------------------------------------------------------------------

    def tick(self) -> Plan:
        """One tick; a broken promise is reported with its world."""
        try:
            return self._tick()
        except AssertionError as broken:
            raise AssertionError(f"{broken}\n{self.world.dump()}") from broken

    def _tick(self) -> Plan:
        made = self.world
        self.ticks += 1
        made.pass_time()
        if made.policy.history.k_milli or self._window_turns():
            self._event()  # use and the calendar are events from outside, too
        snapshot = made.snapshot()
        decision = made.decide()
        if decision.plan.actions or not self._is_as_before(snapshot):
            self._check(snapshot, decision)
        recorded = {one.workload for one in made.backfill}
        planned = recorded | {one.workload for one in decision.backfill}
        claims = tuple(one for one in decision.plan.actions if not is_backfill(one, recorded, planned))
        self._note(dc.replace(decision.plan, actions=claims))
        made.apply(decision.plan)
        if decision.plan.actions:
            check_instant(made.snapshot())
        check_quarantined_reservations(made)
        quarantine(made, self.late)
        if self.steady:
            self._check_guarantees()
        return decision.plan

    def _is_as_before(self, snapshot: Snapshot) -> bool:
        """Whether only time has passed since the last call."""
        before, self.before = self.before, dc.replace(snapshot, now=0, version=0, usage=())
        return self.before == before and self.world.frozen

    def _check(self, snapshot: Snapshot, decision: Decision) -> None:
        check_instant(snapshot)
        check_plan(snapshot, self.world.policy, decision)
        if self.ticks % 3 == 0:
            check_order_is_irrelevant(snapshot, self.world.policy, decision.plan, self.ticks)
        if self.ticks % 4 == 0 and not self.world.policy.departments:
            check_departments_that_change_nothing(snapshot, self.world.policy, decision)

    def _note(self, plan: Plan) -> None:
        """P9: a victim cannot pause its preemptor; P7: a preemptor starts."""
        again = starting_again(plan.actions)
        for action in plan.actions:
            match action:
                case Pause() if action.workload in again:
                    self.owed.add(action.workload)  # moved, or with another size: it starts again
                case Pause():
                    if action.reason.code is not ReasonCode.PREEMPTED_IN_PROJECT:
                        self.taken[action.workload] += 1  # see the module's docstring
                    assert (action.workload, action.preemptor) not in self.paused_by, f"P9: {action}"
                    self.paused_by.add((action.preemptor, action.workload))
                    self.owed.add(action.preemptor)
                case Start() | Resume() | Unreserve():
                    self.owed.discard(action.workload)
                case _:
                    pass

    def _window_turns(self) -> bool:
        return any(self.world.now in (row.begins_at, row.ends_at) for row in self.world.policy.windows)

    def _check_guarantees(self) -> None:
        """P10, and a reservation becomes a start within drain + 2 ticks; no device is quarantined."""
        check_guarantees(self.world.snapshot(), self.world.policy, "t")
        self.waits_since = {name: self.waits_since.get(name, self.ticks) for name in claims(self.world)}
        for name, since in self.waits_since.items():
            assert self.ticks - since <= 3 + 2, f"P10: {name} waits for its place since {self.ticks - since} ticks"

    # -- at the end ------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.built:
            try:
                self._come_to_rest()
            except AssertionError as broken:
                raise AssertionError(f"{broken}\n{self.world.dump()}") from broken

    def _come_to_rest(self) -> None:
        """P8: with demand and clock protections frozen the plan reaches a fixed point; P7: claims were kept.

        A job whose pauses are used up stays so: no pause leaves the window.
        """
        made = self.world
        self.frozen_at = self.ticks
        made.policy, made.frozen = dc.replace(in_force(made.policy, made.now), windows=(), drain_by_at=None), True
        made.policy = dc.replace(made.policy, lending=dc.replace(made.policy.lending, release_after_s=NEVER_S))
        rules = made.policy.preemption
        made.policy = dc.replace(made.policy, preemption=dc.replace(rules, per_s=NEVER_S))
        for name, job in made.jobs.items():
            still_counted = tuple(at for at in job.paused_at if at > made.now - rules.per_s * 1000)
            made.jobs[name] = dc.replace(job, time_limit_s=NEVER_S, paused_at=still_counted)
        while made.leaves_at and self.ticks < self.frozen_at + 4:
            self.tick()  # what was leaving when the world froze
        self.taken.clear()
        self._settle()
        while kept := on_quarantined(made).values():
            made.now = max(made.now, *(kept_until(made, one) for one in kept))  # R25: an event from outside
            self._event()
            self.taken.clear()
            self._settle()
        left = claims(made).keys()
        assert not left, f"P7: devices are reserved for {left}, which do not start"
        assert not self.owed, f"P7: {self.owed} paused others and did not start"

    def _settle(self) -> None:
        """P8: a fixed point is reached, and no job is paused twice on the way."""
        made = self.world
        elastic = any(job.min_ranks is not None for job in made.jobs.values())
        rests_for = 11 * made.policy.preemption.grace_s if elastic else 5  # an elastic job grows after ten graces
        for count in range(200):
            plan = self.tick()
            if not plan.actions and not made.leaves_at and count > rests_for:
                break
        else:
            raise AssertionError(f"P8: not at rest: {made.picture()}")
        for _ in range(5):
            assert not self.tick().actions, "P8: five more ticks change something"
        for name, count in self.taken.items():
            assert count <= 1, f"P8: {name} was paused {count} times on the way"


@pytest.fixture(autouse=True)
def worlds_of_this_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis also draws constants of whatever is loaded: other tests would change which worlds are played."""
    monkeypatch.setattr(providers, "_get_local_constants", Constants)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", {})


@pytest.mark.timeout(3600)  # a part of a soak waits for a processor
@pytest.mark.parametrize("first_world", range(0, WORLDS, WORLDS_OF_A_PART))
def test_random_worlds_keep_the_promises(first_world: int) -> None:
    if "GPU_QUOTA_WORLD_SEED" in os.environ:  # run_state_machine_as_test reads the seed from the class
        seed(f"{os.environ['GPU_QUOTA_WORLD_SEED']} {first_world}")(Worlds)
    run_state_machine_as_test(
        Worlds,
        settings=settings(
            max_examples=min(WORLDS_OF_A_PART, WORLDS - first_world),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if "GPU_QUOTA_SHRINK" in os.environ else (Phase.generate,),
        ),
    )
