"""Faults that are put into the core on purpose are seen by the checkers, each within some dozens of worlds.

A fault counts as seen when a world breaks one of the rules named for it, and does not without the fault.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tests.outside.play import violations

Function = Callable[..., Any]
CORE = "jupyter_gpu_quota.core."
MOST_WORLDS = 120


class Fault(NamedTuple):
    """What replaces functions of the core, rules of which one is then broken, and the kinds that are played."""

    functions: dict[str, Callable[[Function], Function]]
    rules: set[str]
    kinds: tuple[str, ...]


def always(answer: object) -> Callable[[Function], Function]:
    """A function that gives one answer."""
    return lambda _: lambda *_args, **_options: answer


def then(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """The function as it is, its answer changed."""
    return lambda function: lambda *args, **options: change(function(*args, **options))


def at_least_fair(entitlement: int) -> int:
    return type(entitlement)(min(entitlement, 1))


def as_if_within_guarantee(preemptor: Any) -> Any:
    """A preemptor that takes what one within guarantee may take, also from the job that it was paused for."""
    return preemptor._replace(entitlement=type(preemptor.entitlement)(0), excluded_victim=None)


def without_reservations(actions: list[Any]) -> list[Any]:
    """A preemption's actions without the reservation for its preemptor, which is the last."""
    return actions[:-1]


def with_another_victim(function: Function) -> Function:
    """A preemption's actions with the pause of one more job."""

    def changed(builder: Any, preemption: Any) -> list[Any]:
        actions = function(builder, preemption)
        touched = {one.workload for one in actions}
        others = [one.job for one in builder.pool.running.values() if one.job.id not in touched and one.job.preemptible]
        more = [replace(one, workload=others[0].id) for one in actions[:1] if hasattr(one, "preemptor") and others]
        return [*more, *actions]

    return changed


def with_an_attempt_more(function: Function) -> Function:
    return lambda builder, work, *args, **options: function(
        builder, replace(work, attempt=work.attempt + 1) if hasattr(work, "attempt") else work, *args, **options
    )


def with_any_past_use(function: Function) -> Function:
    """The better right to a reservation, of every other project's claims within fair share."""
    return lambda held, pool, project, queue, entitlement: (
        function(held, pool, project, queue, entitlement) or (entitlement == 1 and project is not held.project)
    )


def as_if_in_the_file(project: Any) -> Any:
    """The state of a project that was taken out, as of one that is in the quota file with quota 0."""
    return replace(project, known=True, limit=10**9)


def without_patience(function: Function) -> Function:
    """Any job that has never started is overdue."""

    def changed(jobs: Any, pool: Any, backfill: Any) -> None:
        function(jobs, pool, backfill)
        jobs._since = pool.now

    return changed


FAULTS = {
    "a reservation of quarantined devices does not end": Fault(
        {"scheduling.reservations.kept_until": always(1 << 60)}, {"R25"}, ("faults",)
    ),
    "a notebook above its quota is admitted": Fault(
        {"scheduling.notebook_slices._why_refused": always(None)}, {"P2"}, ("notebooks",)
    ),
    "work that may not be preempted grows above its quota": Fault(
        {"queue.quota_state.QuotaState.fits_non_preemptible": always(True)}, {"P3", "R37"}, ("fixed",)
    ),
    "no limit and no ceiling counts": Fault(
        {
            "queue.quota_state.QuotaState.over_limit": always(False),
            "queue.quota_state.QuotaState.at_limit": always(False),
            "queue.quota_state.QuotaState.ceiling_test": always(None),
        },
        {"R12"},
        ("limits",),
    ),
    "reserved devices count as free while the work before is leaving": Fault(
        {"scheduling.cycle.is_free_now": always(True)}, {"P1"}, ("plain", "gangs")
    ),
    "jobs run on notebook quota that is not booked": Fault(
        {"scheduling.notebook_placement.NotebookPlacement.reserve_quota": always(None)}, {"R6"}, ("notebooks",)
    ),
    "every claim counts as within fair share": Fault(
        {"queue.quota_state.QuotaState.entitlement": then(at_least_fair)}, {"R37"}, ("plain", "weights")
    ),
    "claims above their guarantee take what is above quota": Fault(
        {"scheduling.job_service.preemptor_of": then(as_if_within_guarantee)}, {"R38", "R44"}, ("plain", "weights")
    ),
    "an imbalance is reversed": Fault(
        {"preemption.rules.PreemptionRules._stays_balanced": always(True)}, {"R44"}, ("weights", "plain", "nodes")
    ),
    "two jobs pause each other": Fault(
        {
            "scheduling.job_service.preemptor_of": then(as_if_within_guarantee),
            "queue.quota_state.QuotaState.entitlement": then(at_least_fair),
        },
        {"R46", "P8", "P9"},
        ("plain", "weights"),
    ),
    "protected work is paused for any claim": Fault(
        {"preemption.victims.is_protected": always(False), "preemption.victims.is_exhausted": always(False)},
        {"R53"},
        ("protected",),
    ),
    "a job more than needed is paused": Fault(
        {"scheduling.plan_builder.PlanBuilder._preemption_actions": with_another_victim}, {"P6"}, ("plain", "nodes")
    ),
    "the search finds no victims": Fault(
        {"scheduling.job_service.find_preemption": always(None)}, {"P10", "R40"}, ("plain",)
    ),
    "nothing is reserved for a claim that pauses work": Fault(
        {"scheduling.plan_builder.PlanBuilder._preemption_actions": then(without_reservations)}, {"P7"}, ("plain",)
    ),
    "surplus stays idle": Fault(
        {"scheduling.cycle.SchedulingCycle._serve_the_rest": always(None)}, {"P11"}, ("plain",)
    ),
    "a plan skips an attempt": Fault(
        {"scheduling.plan_builder.PlanBuilder.start": with_an_attempt_more}, {"P12"}, ("plain",)
    ),
    "past use does not count before a reservation": Fault(
        {"backfill.reservation.BackfillReservation.has_better_right": with_any_past_use},
        {"R32"},
        ("backfill", "gangs", "nodes"),
    ),
    "every job ends before the planned start": Fault(
        {"backfill.reservation.BackfillReservation.longest_time_limit_s": always(10**9)}, {"R32"}, ("backfill",)
    ),
    "jobs that do not fit beside the guarantees have the reservation": Fault(
        {"backfill.reservation.fits_beside_guarantees": always(True)}, {"R27"}, ("plain", "gangs", "nodes")
    ),
    "the recorded reservation is not read": Fault(
        {"backfill.state.BackfillState._held": always(None)}, {"R28", "R33"}, ("finite", "gangs", "nodes")
    ),
    "borrowers of a reservation stay": Fault(
        {"backfill.state.BackfillState._stop_borrowers": always(None)}, {"R31"}, ("backfill",)
    ),
    "no victims are found in a large pool": Fault(
        {"preemption.search.find.place_rank_by_rank": always(False)}, {"P10"}, ("dense",)
    ),
    "protected work is never paused": Fault(
        {"preemption.search.find.has_protected": always(False)}, {"P10"}, ("shielded",)
    ),
    "a job does not wait for an older one that is overdue": Fault(
        {"scheduling.job_service.JobService._waits_for_overdue_job": always(False)}, {"R24"}, ("patience",)
    ),
    "a job waits for an older one that is not overdue": Fault(
        {"backfill.patience.OverdueJobs.__init__": without_patience}, {"P10", "P11", "R23"}, ("patience", "finite")
    ),
    "jobs of a project start that was taken out": Fault(
        {"scheduling.read_pool._project_without_amounts": then(as_if_in_the_file)}, {"R68"}, ("edits",)
    ),
    "the deadline of a lowered quota passes": Fault(
        {"scheduling.decide.past_deadline": always([])}, {"R67"}, ("edits",)
    ),
    "the deadline of a lowered quota takes a job more": Fault(
        {"eviction.deadline._fewest": lambda _: lambda jobs, _over: list(jobs)}, {"R67"}, ("edits",)
    ),
    "work stays on a node that is drained, and on a failed device": Fault(
        {"scheduling.decide.evictions": always([])}, {"R69", "R70"}, ("faults",)
    ),
    "an elastic job grows at once": Fault(
        {"scheduling.elastic.GRACES_BEFORE_GROWTH": lambda _: 0}, {"R49"}, ("elastic",)
    ),
}


@pytest.mark.parametrize("title", FAULTS)
def test_the_checkers_see_that(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[title]
    for at in range(MOST_WORLDS):
        kind = fault.kinds[at % len(fault.kinds)]
        if _is_broken_by(fault, at, kind, monkeypatch) and not fault.rules & _broken(at, kind):
            return
    pytest.fail(f"{MOST_WORLDS} worlds break none of {', '.join(sorted(fault.rules))} by the fault alone")


def _is_broken_by(fault: Fault, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        for name, changed in fault.functions.items():
            patch.setattr(CORE + name, changed(_function(CORE + name)))
        return bool(fault.rules & _broken(seed, kind))


def _broken(seed: int, kind: str) -> set[str]:
    """The rules that the world of a seed breaks."""
    return {one.rule for one in violations(seed, kind)}


def _function(name: str) -> Function:
    """The function of a dotted name: of a module, or of a class of one."""
    return pkgutil.resolve_name(name)  # type: ignore[no-any-return]
