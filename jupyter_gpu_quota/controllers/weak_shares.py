"""Shares whose enforcement is weaker than the policy requires: the countdown, and the stop at its end.

A policy sets requirements for fractions only: a whole device has a single user.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..backends.protocol import EnforcementBackend
from ..core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer, RequiredEnforcement
from ..core.enforcement.weak_shares import WARN_FOR_MS, WEAK_FOR_MS, unenforceable_jobs, weak_share
from ..core.frozen import with_changes
from ..core.model import WHOLE_DEVICE, Allocation, Device
from ..core.reason_figures import figures_of, reason_from
from ..core.reasons import EnforcementTooWeak, Reason, StoppedTooWeak
from ..messages.reasons import warning
from ..store.reads.followed_store import FollowedStore
from ..store.records.commands import ChangeJob, RecordMemoryEnforcement
from .enforcement_effects import Effects
from .memory_enforcement import MemoryEnforcement

log = logging.getLogger(__name__)

ACTOR = "system:enforcement"
WAITING_EVERY_MS = 10_000
Held = Sequence[tuple[Allocation, DeviceShare]]


class WeakShares:
    """The shares that are enforced too weakly, since when, and when their work is stopped."""

    def __init__(
        self, view: FollowedStore, effects: Effects, memory: MemoryEnforcement, backend: EnforcementBackend
    ) -> None:
        self.view, self.effects, self.memory, self.backend = view, effects, memory, backend
        self.warned: dict[str, EnforcementTooWeak] = {}
        self._since: dict[str, int] = {}
        self._waiting_at = 0

    def warnings(self, workload: str) -> list[EnforcementTooWeak]:
        """The warning of a workload that will be stopped; empty for all other work."""
        return [self.warned[workload]] if workload in self.warned else []

    def act(self, held: Held, found: Mapping[str, EnforcementLabel], required: RequiredEnforcement, now: int) -> None:
        """Warn the owners of shares that are known to be enforced too weakly, and stop work whose countdown is over."""
        weak = {
            allocation.id: allocation
            for allocation, part in held
            if part.is_fraction and not found[allocation.id].is_enough(required) and self._is_counted(allocation, found)
        }
        self._since = {name: min(self._since.get(name, now), now) for name in weak}
        workloads, latest = {one.workload for one in weak.values()}, now + WARN_FOR_MS
        self.warned = {  # a later end is of before the clock was set back
            name: why for name, why in self.warned.items() if name in workloads and (why.stop_at or 0) <= latest
        }
        for name, one in weak.items():
            if now - self._since[name] < WEAK_FOR_MS or found[name].unsure:
                continue
            known, why = self.warned.get(one.workload), weak_share(one.device, found[name], required)
            if known is None:
                self._warn(one.workload, with_changes(why, stop_at=now + WARN_FOR_MS))
            elif known.stop_at is not None and now >= known.stop_at:
                self._stop(one.workload, why)
        self._hold_waiting(required, now)

    def _is_counted(self, one: Allocation, found: Mapping[str, EnforcementLabel]) -> bool:
        """Whether a weak label counts. An unsure one starts no countdown, and ends none that is under way."""
        return not found[one.id].unsure or (one.workload in self.warned and one.id in self._since)

    def _warn(self, workload: str, why: EnforcementTooWeak) -> None:
        self.warned[workload] = why
        log.warning("%s will be stopped in %d s: %s", workload, WARN_FOR_MS // 1000, warning(why))
        if workload in self.view.mirror.notebooks:
            request = RecordMemoryEnforcement(notebook=workload, actor=ACTOR, event="too_weak", why=why)
            self.effects.note(request)

    def _stop(self, workload: str, weak: EnforcementTooWeak) -> None:
        notebook = self.view.mirror.notebooks.get(workload)
        if notebook is not None:
            self.memory.order_stop(notebook, _stopped(weak), ACTOR)
        else:
            self.effects.hold(ChangeJob(job=workload, actor=ACTOR, change="hold", why=weak))

    def _hold_waiting(self, required: RequiredEnforcement, now: int) -> None:
        """Hold waiting jobs whose fraction no device of their pool could enforce."""
        if not required.is_set or now < self._waiting_at:
            return
        self._waiting_at = now + WAITING_EVERY_MS
        jobs = [record.job for record in self.view.mirror.jobs.values()]
        for job, why in unenforceable_jobs(self._offers, self.view.devices_in, jobs, required):
            self.effects.hold(ChangeJob(job=job.id, actor=ACTOR, change="hold", why=why))

    def _offers(self, devices: Sequence[Device], project: str) -> Sequence[EnforcementOffer]:
        return self.backend.capabilities(devices, gpu_milli=WHOLE_DEVICE // 2, project=project).offers

    # --- for a successor ------------------------------------------------------------------------------------------
    def document(self, workload: str, allocations: Sequence[str]) -> dict[str, Any]:
        """The countdown of a workload, for a controller that takes over; empty where none is under way."""
        since = {name: self._since[name] for name in allocations if name in self._since}
        why = self.warned.get(workload)
        weak = {} if why is None else {"weak": document_of(why)}
        return {"since": since, **weak} if since else {}

    def restore(self, workload: str, document: Mapping[str, Any]) -> None:
        """Continue the countdown in what :meth:`document` returned."""
        self._since |= document.get("since", {})
        why = reason_of(document["weak"]) if "weak" in document else None
        if isinstance(why, EnforcementTooWeak):
            self.warned[workload] = why


def document_of(reason: Reason) -> dict[str, Any]:
    """A reason as JSON: its code and its figures."""
    return {"code": str(reason.code), "figures": dict(figures_of(reason))}


def reason_of(document: Mapping[str, Any]) -> Reason:
    """The reason that :func:`document_of` wrote."""
    return reason_from(document["code"], document["figures"].items())


def _stopped(weak: EnforcementTooWeak) -> StoppedTooWeak:
    return StoppedTooWeak(
        device=weak.device,
        memory=weak.memory,
        compute=weak.compute,
        least_memory=weak.least_memory,
        least_compute=weak.least_compute,
    )
