"""P1 to P12 and P14 over random one-level worlds, by the checkers in ``promises.py``.

``GPU_QUOTA_WORLDS`` sets how many worlds are played (default 200); the soak sets more. ``GPU_QUOTA_SHRINK`` looks for
a smaller world when one fails, which can take minutes.

"No job is paused twice on the way" (P8) is asserted for pauses between projects. Inside a project it cannot hold beside
P10 where the minimum run time is 0: a small job within the guarantee may not be hidden by a larger one of higher job
priority, comes back to claim it, and then makes room for the larger one, which now finds enough to take.
"""

from __future__ import annotations

import dataclasses as dc
import os
from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpu_quota.core.model import Health, JobState, JobTarget, NotebookState, Preemption
from jupyter_gpu_quota.core.packing import check_quotas
from jupyter_gpu_quota.core.plan import Pause, Plan, ReasonCode, Reserve, Resume, Start, Unreserve
from tests.core.promises import Books, check_instant, check_order_is_irrelevant, check_plan, size
from tests.core.world import TICK_MS, World

WORLDS = int(os.environ.get("GPU_QUOTA_WORLDS", "200"))
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
            }
        ),
    ),
    min_size=1,
    max_size=6,
)


class Worlds(RuleBasedStateMachine):
    """Random events, a tick after each; at the end everything is frozen and must come to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.sizes = SIZES["whole"]
        self.steady = True
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
        data=st.data(),
    )
    def build(self, kind, nodes, count, young_s, pauses, in_turn, slices, data) -> None:  # type: ignore[no-untyped-def]
        rules = Preemption(min_runtime_s=young_s, grace_s=3, lent_grace_s=1, max_pauses=pauses[0], per_s=pauses[1])
        self.world = World(preemption=rules, within_project="users_in_turn" if in_turn else "first_come")
        self.world.pool("t", *nodes)
        self.sizes = SIZES[kind]
        left = nodes[0] * nodes[1] * 1000
        for name in "abcd"[:count]:
            left -= self._add_project(name, left, kind, slices, data)
        fits = not check_quotas(self.world.policy, self.world.devices.values())
        self.steady = kind == "whole" and nodes[0] == 1 and fits

    def _add_project(self, name, left, kind, slices, data) -> int:  # type: ignore[no-untyped-def]
        quotas = [0, 500, 1000, 1500] if kind == "fractions" else [0, 1000, 2000]
        training = min(left, data.draw(st.sampled_from(quotas)))
        notebook = min(left - training, data.draw(st.sampled_from([0, 250, 500, 1000]))) if slices else 0
        extra = data.draw(st.sampled_from([None, None, None, 1000]))
        self.world.project(
            name,
            "t",
            priority=data.draw(st.sampled_from([50, 50, 60])),
            training_milli=training,
            notebook_milli=notebook,
            limit_milli=None if extra is None else training + notebook + extra,
            weight=data.draw(st.sampled_from([0, 1, 1, 1, 2, 3])),
        )
        return training + notebook

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
        live = (NotebookState.BOOKED, NotebookState.REQUESTED)
        names = sorted(name for name, book in self.world.notebooks.items() if book.state in live)
        if names:
            name = data.draw(st.sampled_from(names))
            self.world.close(name)
            self.owed.discard(name)

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
            self.steady = False
            amounts = dc.replace(rows[name].amounts["t"], training_milli=quota, limit_milli=None, weight=weight)
            self.world.project(name, "t", **{k: getattr(amounts, k) for k in amounts.__slots__})

    @rule(data=st.data())
    @precondition(lambda self: self.ticks > 10)
    def lose_or_repair_a_device(self, data) -> None:  # type: ignore[no-untyped-def]
        self._event()
        self.steady = False
        name = data.draw(st.sampled_from(sorted(self.world.devices)))
        broken = self.world.devices[name].health is not Health.HEALTHY
        self.world.health(name, Health.HEALTHY if broken else data.draw(st.sampled_from(list(Health)[1:])))
        for job in sorted(name_ for name_, rows in self.world.owned.items() if any(r.device == name for r in rows)):
            if job in self.world.jobs:
                self._requeue(job)

    def _requeue(self, name: str) -> None:
        job = self.world.jobs[name]
        self.world.leaves_at.pop(name, None)
        del self.world.owned[name]
        if job.target in (JobTarget.HELD, JobTarget.CANCELLED, JobTarget.FAILED):
            self.world.end(name)
        else:
            self.world.jobs[name] = dc.replace(
                job, state=JobState.QUEUED, target=JobTarget.RUNNING, borrower=False, paused_for=None
            )

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
        """One tick; a broken promise is shown with the world it was broken in."""
        try:
            return self._tick()
        except AssertionError as broken:
            raise AssertionError(f"{broken}\n{self.world.dump()}") from broken

    def _tick(self) -> Plan:
        made = self.world
        self.ticks += 1
        made.now += TICK_MS
        made._let_leave()
        for name, job in made.jobs.items():
            if job.state is JobState.STARTING:
                made.jobs[name] = dc.replace(job, state=JobState.RUNNING)
        snapshot = made.snapshot()
        check_instant(snapshot)
        plan = made.decide().plan
        check_plan(snapshot, made.policy, plan)
        check_order_is_irrelevant(snapshot, made.policy, plan, self.ticks)
        self._note(plan)
        made.apply(plan)
        check_instant(made.snapshot())
        if self.steady:
            self._check_guarantees()
        return plan

    def _note(self, plan: Plan) -> None:
        """P9: whom a claimer paused cannot pause it; P7: who paused somebody is owed a start."""
        for action in plan.actions:
            match action:
                case Pause():
                    if action.reason.code is not ReasonCode.PREEMPTED_IN_PROJECT:
                        self.taken[action.workload] += 1  # see the module's docstring
                    assert (action.workload, action.claimer) not in self.paused_by, f"P9: {action}"
                    self.paused_by.add((action.claimer, action.workload))
                    self.owed.add(action.claimer)
                case Start() | Resume() | Unreserve():
                    self.owed.discard(action.workload)
                case _:
                    pass

    def _check_guarantees(self) -> None:
        """P10: a claim within guarantee has its devices, or a promise of them that is kept within drain + 2 ticks."""
        books = Books(self.world.snapshot(), self.world.policy, "t")
        use = books.use()
        for job in books.jobs.values():
            waits = job.state in (JobState.QUEUED, JobState.PAUSED)
            if waits and job.id not in self.world.reserved and books.fits_empty(job):
                within = use[job.project] + size(job) <= books.amounts[job.project].training_milli
                leaving = any(other.state is JobState.PAUSING for other in books.jobs.values())
                assert not within or leaving, f"P10: {job.id} is within the guarantee and waits"
        self.waits_since = {name: self.waits_since.get(name, self.ticks) for name in self.world.reserved}
        for name, since in self.waits_since.items():
            assert self.ticks - since <= 3 + 2, f"P10: {name} waits for its place since {self.ticks - since} ticks"

    # -- at the end ------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """P8: with demand and clock protections frozen the plan reaches a fixed point; P7: claims were kept."""
        made = self.world
        if not made.devices:
            return
        self.frozen_at = self.ticks
        for name, job in made.jobs.items():
            made.jobs[name] = dc.replace(job, time_limit_s=NEVER_S)
        while made.leaves_at and self.ticks < self.frozen_at + 4:
            self.tick()  # what was leaving when the world froze
        self.taken.clear()
        for count in range(100):
            plan = self.tick()
            if not plan.actions and not made.leaves_at and count > 5:
                break
        else:
            raise AssertionError(f"P8: not at rest: {made.picture()}")
        for _ in range(5):
            assert not self.tick().actions, "P8: five more ticks change something"
        for name, count in self.taken.items():
            assert count <= 1, f"P8: {name} was paused {count} times on the way\n{made.dump()}"
        assert not made.reserved, f"P7: {made.reserved} are kept for nobody"
        assert not self.owed, f"P7: {self.owed} paused others and did not start"
        assert not any(isinstance(action, Reserve) for action in plan.actions)


Worlds.TestCase.settings = settings(
    max_examples=WORLDS,
    stateful_step_count=30,
    deadline=None,
    derandomize="GPU_QUOTA_WORLDS" not in os.environ,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if "GPU_QUOTA_SHRINK" in os.environ else (Phase.generate,),
)
TestWorlds = Worlds.TestCase
