"""What only several ticks show: P7, P8, P9, P10 and R6 with their times, R49."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..model import WHOLE, Device, Job, Policy, Reservation, State
from ..places import empty_room, take
from ..steps import Claim, Step
from .entitlement import surely_within_guarantee, within_guarantee
from .reservation import is_taken_over

Found = Iterator[tuple[str, str]]


@dataclass(slots=True)
class Watch:
    """What was seen so far in one world."""

    evictions: dict[str, tuple[set[str], Reservation | None]] = field(default_factory=dict)
    """By preemptor that has not started: its victims, and its reservation."""
    requested_at: dict[str, int] = field(default_factory=dict)
    """When each notebook that waits within its quota was seen first."""
    drains: dict[str, int] = field(default_factory=dict)
    """When each claim within guarantee got its reservation."""
    idle_drains: dict[str, int] = field(default_factory=dict)
    """For how many ticks the devices of a reservation have been free."""
    paused_for: dict[tuple[str, str], int] = field(default_factory=dict)
    """With everything frozen: the pauses of each job, for its own project and for others."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """With everything frozen: (preemptor, victim)."""
    stopping_at: dict[str, int] = field(default_factory=dict)
    """When each job was last being stopped."""
    given_at: dict[str, int] = field(default_factory=dict)
    """When each job that waited was last given devices."""
    given_reserved: dict[str, bool] = field(default_factory=dict)
    """Whether the backfill reservation had some of those devices until then."""
    given_from: dict[str, set[str]] = field(default_factory=dict)
    """The jobs that were paused for those devices."""
    devices: dict[str, Device] = field(default_factory=dict)
    policy: Policy | None = None

    def see(self, step: Step, frozen: bool) -> Found:
        self._note_changes(step.before)
        yield from self._preemptors_start(step)
        yield from self._drains_end(step)
        yield from self._notebooks_start(step)
        yield from _growth(step)
        if frozen:
            yield from self._frozen(step)
        self._note_times(step)

    def _note_changes(self, state: State) -> None:
        """Devices that fail or return, and edits of the quota file, begin the times and counts anew: claims may end."""
        if state.devices != self.devices or state.policy is not self.policy:
            timed = (self.evictions, self.requested_at, self.drains, self.idle_drains)
            for rows in (*timed, self.paused_for, self.pairs):
                rows.clear()
        self.devices, self.policy = state.devices, state.policy

    def _note_times(self, step: Step) -> None:
        jobs, now = step.before.jobs, step.before.now
        self.stopping_at |= {job.id: now for job in jobs.values() if job.leaves}
        given = {one.workload for one in step.giving()}
        new = given - step.before.reserved.keys()
        self.given_at |= {name: now for name in new if name in jobs and jobs[name].waits}
        reserved = {part.device for one in step.before.backfill.values() for part in one.placements}
        for one in step.giving():
            if one.workload in new:
                self.given_reserved[one.workload] = any(part.device in reserved for part in one.placements)
        evicted = {one.preemptor: {job.id for job in one.evicted} for one in step.claims}
        self.given_from |= {name: evicted.get(name, set()) for name in new}

    # --- P7 ---------------------------------------------------------------------------------------------------------
    def _preemptors_start(self, step: Step) -> Found:
        for claim in step.claims:
            victims, _ = self.evictions.get(claim.preemptor, (set(), None))
            victims |= {job.id for job in claim.evicted}
            if victims and claim.preemptor in step.before.jobs:
                self.evictions[claim.preemptor] = (victims, step.after.reserved.get(claim.preemptor))
        for name, (victims, kept) in list(self.evictions.items()):
            job = step.after.jobs.get(name)
            lost, kept = name not in step.after.reserved, step.before.reserved.get(name, kept)
            if job is None or not job.waits or (lost and kept is not None and is_taken_over(step, kept, job)):
                del self.evictions[name]
            elif lost and not _has_backfill(step, name):
                del self.evictions[name]
                yield "P7", f"{sorted(victims)} were paused for {name}, which lost its devices and waits"

    # --- P10 --------------------------------------------------------------------------------------------------------
    def _drains_end(self, step: Step) -> Found:
        now, policy = step.before.now, step.before.policy
        waiting = {name: one for name, one in step.after.reserved.items() if name in step.after.jobs}
        self.drains = {name: at for name, at in self.drains.items() if name in waiting}
        self.idle_drains = {name: count for name, count in self.idle_drains.items() if name in waiting}
        for name, kept in waiting.items():
            job = step.after.jobs[name]
            if any(step.after.devices[one.device].health == "quarantined" for one in kept.placements):
                if step.after.is_lost(kept):
                    yield (
                        "R25",
                        f"{name} has had a reservation of quarantined devices for {(now - kept.reserved_at) // 1000} s",
                    )
                self.drains.pop(name, None)
                continue
            if name in step.reserving and job.waits and surely_within_guarantee(step, job):
                self.drains.setdefault(name, now)
            if job.waits and now > self.drains.get(name, now) + (policy.grace_s + 2) * 1000:
                late = (now - self.drains.pop(name)) // 1000
                yield "P10", f"{name}, within guarantee, has had its reservation for {late} s and has not started"
            waits = not _is_free(step.before, kept) or any(one.leaves for one in step.before.in_pool(job.pool))
            self.idle_drains[name] = 0 if waits else self.idle_drains.get(name, 0) + 1
            if job.waits and self.idle_drains[name] == 3:
                yield "R25", f"the devices reserved for {name} have been free for three ticks"

    # --- R6 ---------------------------------------------------------------------------------------------------------
    def _notebooks_start(self, step: Step) -> Found:
        state = step.after
        waiting = {one.id for one in state.notebooks.values() if one.state == "requested" or one.woken}
        self.requested_at = {name: at for name, at in self.requested_at.items() if name in waiting}
        for name in sorted(waiting):
            since = self.requested_at.setdefault(name, state.now)
            grace_s = state.policy.grace_s if _has_lost_devices(state, name) else state.policy.lent_grace_s
            if state.now > since + (grace_s + 2) * 1000 and _could_start(state, name):
                self.requested_at[name] = state.now + 10**9
                yield "R6", f"notebook {name} has waited {(state.now - since) // 1000} s within its quota"

    # --- P8 and P9 --------------------------------------------------------------------------------------------------
    def _frozen(self, step: Step) -> Found:
        for claim in step.claims:
            if (preemptor := step.before.jobs.get(claim.preemptor)) is not None:
                for victim in claim.evicted:
                    yield from self._pair(step, claim, preemptor, victim)

    def _pair(self, step: Step, claim: Claim, preemptor: Job, victim: Job) -> Found:
        own = preemptor.project == victim.project
        self.pairs.add((preemptor.id, victim.id))
        if (victim.id, preemptor.id) in self.pairs and not within_guarantee(step, preemptor):
            yield "P9", f"{victim.id} had paused {preemptor.id}, which now pauses it"
        if own and (within_guarantee(step, preemptor) or not preemptor.preemptible):
            return  # what may not be preempted is within its quota (R8)
        if not own and self._is_new_since(claim, preemptor, victim):
            return
        key = (victim.id, "own" if own else "other")
        self.paused_for[key] = self.paused_for.get(key, 0) + 1
        if self.paused_for[key] == 2:
            yield "P8", f"{victim.id} is paused a second time ({key[1]} project), with everything frozen"

    def _is_new_since(self, claim: Claim, preemptor: Job, victim: Job) -> bool:
        """Whether a claim became possible after its victim was given devices.

        Until then the preemptor was being stopped, the backfill reservation kept it from the devices, they were of the
        job for which it was paused (R46), or a job that the claim moves had only reserved devices.
        """
        if (given_at := self.given_at.get(victim.id)) is None:
            return False
        if self.given_reserved.get(victim.id) or preemptor.paused_for in self.given_from.get(victim.id, ()):
            return True
        was_stopping = self.stopping_at.get(preemptor.id, 0) >= given_at
        return was_stopping or any((job.started_at or 0) >= given_at for job in claim.moved)


def _has_backfill(step: Step, name: str) -> bool:
    return any(one.workload == name for one in step.backfill.values())


def _is_free(state: State, kept: Reservation) -> bool:
    """Whether nothing is left on reserved devices that does not fit beside the reservation."""
    room = {name: WHOLE - one.foreign for name, one in state.devices.items()}
    for parts in state.held.values():
        take(room, parts)
    take(room, kept.placements)
    return all(room[one.device] >= 0 for one in kept.placements)


def _could_start(state: State, notebook: str) -> bool:
    """Whether a device has room for a slice beside other slices, and beside work that may not be preempted."""
    one = state.notebooks[notebook]
    room = empty_room(state, one.pool)
    for workload, parts in state.held.items():
        job = state.jobs.get(workload)
        if job is None or not job.preemptible:
            take(room, parts)
    return not state.policy.is_gone(one.project) and any(milli >= one.gpu_milli for milli in room.values())


def _has_lost_devices(state: State, notebook: str) -> bool:
    """Whether the pool has less than the quotas were checked for: jobs that do not borrow may have what is left."""
    pool = state.notebooks[notebook].pool
    return any(one.pool == pool and not one.healthy for one in state.devices.values())


def _growth(step: Step) -> Found:
    """R49: an elastic job grows once it has run for ten graces."""
    for action in step.of_kind("pause"):
        job = step.before.jobs.get(action.workload)
        if action.preemptor != action.workload or job is None or job.started_at is None:
            continue
        ran = (step.before.now - job.started_at) / 1000
        if action.workload in step.reserving and ran < 10 * step.before.policy.grace_s:
            yield "R49", f"{job.id} grows after {ran:g} s; ten graces are {10 * step.before.policy.grace_s}"
