"""The enforcement controller: reads back how every share is enforced, stores it, and compares it with the policy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from ..backends.protocol import EnforcementBackend
from ..core.enforcement.levels import DeviceShare, EnforcementLabel, RequiredEnforcement
from ..core.lifecycle import HOLDS_SLICE
from ..core.model import Allocation, JobState
from ..core.reasons import EnforcementTooWeak, OverShare
from ..messages.reasons import warning
from ..store.reads.followed_store import FollowedStore
from ..store.records.activity import KeepNotes, Note, NoteKind
from ..store.records.commands import AllocationLabel, RecordEnforcementLabels
from .enforcement_effects import Effects
from .memory_enforcement import MemoryEnforcement
from .weak_shares import ACTOR, WeakShares, document_of

log = logging.getLogger(__name__)

CHECK_EVERY_MS = 2_000
SWEEP_EVERY_MS = 60_000
Held = Sequence[tuple[Allocation, DeviceShare]]


class Enforcement:
    """Enforcement labels of all allocated shares, warnings, and stops."""

    name = "enforcement"

    def __init__(self, view: FollowedStore, backend: EnforcementBackend, effects: Effects) -> None:
        self.view, self.backend, self.effects = view, backend, effects
        self._sweep_at = 0
        self._is_stored = False

    @property
    def required(self) -> RequiredEnforcement:
        """The enforcement that the policy in force requires."""
        return self.view.quota_file.least if self.view.quota_file else RequiredEnforcement()

    def run_once(self, now: int) -> int:
        """Read back every allocated share, store changed labels, and stop work after its warning."""
        self.view.refresh()
        if not self._is_stored:
            self._restore()
        self._is_stored = False
        held, required, samples = list(self._held()), self.required, self.view.samples
        self.memory.read(((allocation.device, part) for allocation, part in held), samples)
        found = self.backend.read_back(
            {allocation.id: share for allocation, share in held},
            {one.id: samples[one.device] for one, _ in held if one.device in samples},
            policed=required.stops_over_share,
            now=now,
        )
        self._keep(held, found, now)
        self.memory.act(now, acts=required.stops_over_share)
        self._sweep(now)
        self.weak.act(held, found, required, now)
        self._note(held, now)
        self._is_stored = True
        return now + CHECK_EVERY_MS

    def _restore(self) -> None:
        """Load the stored labels and countdowns, also after a run that failed: no warning is lost or repeated."""
        self.memory = MemoryEnforcement(self.view, self.effects)
        self.weak = WeakShares(self.view, self.effects, self.memory, self.backend)
        self.effects.queued.clear()
        self.labels = dict(self.view.store.labels([each.id for each in self.view.allocations]))
        self._noted: dict[str, dict[str, Any]] = {}
        for note in self.view.store.notes("enforcement"):
            self._noted[note.subject] = dict(note.document)
            self.memory.restore(note.subject, note.document)
            self.weak.restore(note.subject, note.document)

    def _held(self) -> Iterator[tuple[Allocation, DeviceShare]]:
        """The shares of running jobs and booked notebooks on known devices."""
        for allocation in self.view.allocations:
            part = self._part(allocation)
            if part is not None:
                yield allocation, part

    def _part(self, allocation: Allocation) -> DeviceShare | None:
        mirror, device = self.view.mirror, self.view.device(allocation.device)
        job, notebook = mirror.jobs.get(allocation.workload), mirror.notebooks.get(allocation.workload)
        runs = job is not None and job.job.state in (JobState.RUNNING, JobState.PAUSING)
        booked = notebook is not None and notebook.notebook.state in HOLDS_SLICE
        if device is None or not (runs or booked):
            return None
        return DeviceShare(
            workload=allocation.workload, device=device.uuid, gpu_milli=allocation.gpu_milli,
            memory_mib=allocation.memory_mib, rank=allocation.rank, attempt=0 if job is None else job.job.attempt,
            notebook=booked, simulated=device.simulated,
        )  # fmt: skip

    def _keep(self, held: Held, found: Mapping[str, EnforcementLabel], now: int) -> None:
        """Store the labels that changed."""
        acts, labels = self.required.stops_over_share, dict[str, AllocationLabel]()
        for allocation, _ in held:
            each = found[allocation.id]
            clause = self.memory.clause(allocation.workload, allocation.device, acts=acts)
            weak = " ".join(self._warned(each, allocation.workload) for each in self.weak.warnings(allocation.workload))
            why = "; ".join(filter(None, (clause, each.why, weak)))
            labels[allocation.id] = AllocationLabel(
                allocation=allocation.id, memory=each.memory, compute=each.compute, why=why, read_at=now
            )
        known = self.labels
        new = tuple(each for name, each in labels.items() if name not in known or known[name].content != each.content)
        if new:
            self.effects.store.record(RecordEnforcementLabels(labels=new, actor=ACTOR))
        self.labels = labels

    def _warned(self, why: EnforcementTooWeak, workload: str) -> str:
        """A warning with its consequence and instant."""
        if why.stop_at is None:
            return warning(why)
        end = "its server is stopped" if workload in self.view.mirror.notebooks else "it is paused and held"
        at = datetime.fromtimestamp(why.stop_at / 1000, UTC)
        return f"{warning(why)} At {at:%H:%M:%SZ} {end}, unless that has changed."

    def _note(self, held: Held, now: int) -> None:
        """Store warnings, stops and countdowns. The api shows countdowns, and a successor continues them."""
        by_workload = sorted((allocation.workload, allocation.id) for allocation, _ in held)
        found = dict[str, dict[str, Any]]()
        for workload, pairs in groupby(by_workload, key=lambda pair: pair[0]):
            document = self._document(workload, [allocation for _, allocation in pairs])
            if document:
                found[workload] = document
        notes = tuple(
            Note(kind="enforcement", subject=name, at=now, document=document)
            for name, document in found.items()
            if self._noted.get(name) != document
        )
        over: tuple[tuple[NoteKind, str], ...] = tuple(("enforcement", name) for name in self._noted.keys() - found)
        self.effects.record(*([KeepNotes(notes=notes, over=over)] if notes or over else []))
        self._noted = found

    def _document(self, workload: str, allocations: Sequence[str]) -> dict[str, Any]:
        warnings: list[OverShare | EnforcementTooWeak] = [
            *self.memory.warnings(workload, acts=self.required.stops_over_share),
            *self.weak.warnings(workload),
        ]
        shown = {"warnings": [document_of(each) for each in warnings]} if warnings else {}
        return {**shown, **self.memory.document(workload), **self.weak.document(workload, allocations)}

    def _sweep(self, now: int) -> None:
        """Once a minute, let the backend clean up after notebooks whose slice was returned."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_MS
            self.effects.store.check()
            real = [device.uuid for device in self.view.mirror.devices.values() if not device.simulated]
            self.backend.sweep(frozenset(self.view.mirror.notebooks), [uuid for uuid in real if uuid])
