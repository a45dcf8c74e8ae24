"""Classifies every booked notebook: takes the reports of its server and the samples of its GPU, and moves its state on.

Whatever is decided is in the store before anybody acts on it, and so is what it rests on: the reports are rows, and
what was seen is noted. A controller that takes over goes on where the one before it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ..core.idle.activity import GpuSample, IdleMode, IdlePolicy, NotebookActivity
from ..core.idle.classification import Busy, Classification, classify
from ..core.idle.history import ActivityHistories, Report, simulated_sample
from ..core.idle.lent_slice import may_stay_lent, patience_ms
from ..core.idle.process_owners import ProcessOwners, process_owners, suspendable
from ..core.idle.state_document import from_document, to_document
from ..core.idle.state_machine import (
    BEGINNING,
    Freeing,
    InUse,
    MachineState,
    Stopping,
    Transition,
    Warned,
    is_lendable,
    seen,
    transition,
)
from ..core.lifecycle import HOLDS_SLICE, WAITING
from ..core.model import NotebookState
from ..core.samples import DeviceSample, ProcessUse
from ..messages.idle import Suspends, told
from ..store.reads.followed_store import FollowedStore
from ..store.records.activity import KeepNotes
from ..store.records.commands import Recorded, RecordIdleState
from ..store.records.idle_state import IdleState, Suspension, word_of
from ..store.records.rows import NotebookRecord
from .activity_records import ActivityRecorder, report_of, restored
from .lease import FencedStore
from .notifications import NotificationQueue

log = logging.getLogger(__name__)

LOOK_EVERY_MS = 1_000
SILENT_MS = 10_000
"""A notebook of which nothing new comes is classified again after so long."""

STOP_AGAIN_MS = 60_000
"""A server that is to be stopped and still runs is stopped again after so long."""

ARRIVED_MEANWHILE_MS = 5_000
"""A fact this much newer than the start of a run arrived during the run; one that is newer still means a clock jump."""

NO_FIGURES = "its processes have no figures of their own"


class Idleness:
    """All booked notebooks.

    ``stop`` asks the hub to stop a notebook's server; it must not wait for the hub.
    """

    name = "idleness"

    def __init__(
        self, view: FollowedStore, store: FencedStore, notifications: NotificationQueue,
        stop: Callable[[NotebookRecord], object],
    ) -> None:  # fmt: skip
        self.view, self.store, self.notifications, self.stop = view, store, notifications, stop
        self.histories = ActivityHistories()
        self.recorder = ActivityRecorder()
        self.states: dict[str, IdleState] = {}
        self._stopped_at: dict[str, int] = {}
        self._last_report: dict[str, Report] = {}
        self._reports_since = 0
        self._began: int | None = None

    @property
    def policy(self) -> IdlePolicy:
        quota = self.view.quota_file
        return IdlePolicy() if quota is None else quota.idle

    def _policy_of(self, name: str) -> IdlePolicy:
        """A simulated device is sampled with each report of its notebook's server."""
        policy = self.policy
        return replace(policy, sample_every_s=policy.report_every_s) if self._is_simulated(name) else policy

    def run_once(self, now: int) -> int:
        """Classify the notebooks of which there is something new, or for which it is time."""
        self.view.refresh()
        if self._began is None:
            self._restore()
            self._began = now
        booked = [each for each in self.view.mirror.notebooks.values() if each.notebook.state in HOLDS_SLICE]
        self._forget_others({record.notebook.id for record in booked})
        news = self._take_reports(now)
        waiting = self._pools_with_waiting_work() if booked else set()
        states = []
        for record in booked:
            name = record.notebook.id
            if self._read(record) or name in news or self._is_time(record, now):
                state = self._classify(record, now, waiting=record.notebook.pool in waiting)
                if state is not None:
                    states.append(state)
            self._stop_if_due(record, now)
        self._note(states, now)
        return now + LOOK_EVERY_MS

    def _restore(self) -> None:
        """Begin with what the controller before this one noted."""
        live, store = self.view.mirror.notebooks, self.view.store
        reports = {row.notebook: report_of(row) for row in store.reports(0) if row.notebook in live}
        notes = [note for note in store.notes("activity") if note.subject in live]
        self.histories = restored(notes, reports, self.policy)
        self.states = {note.subject: IdleState.from_note(note) for note in store.notes("idle") if note.subject in live}
        self._last_report = dict(reports)
        self._reports_since = max((report.at for report in reports.values()), default=0)

    def _forget_others(self, names: set[str]) -> None:
        self.histories.keep_only(names)
        self.recorder.keep_only(names)
        self.states = {name: state for name, state in self.states.items() if name in names}
        self._stopped_at = {name: at for name, at in self._stopped_at.items() if name in names}
        self._last_report = {name: report for name, report in self._last_report.items() if name in names}

    # --- what is seen ---------------------------------------------------------------------------------------------
    def _take_reports(self, now: int) -> set[str]:
        """Take the reports that arrived since the last look; the notebooks that they are of."""
        since = self._reports_since if self._reports_since <= now else 0  # the clock was set back
        news = set[str]()
        for row in self.view.store.reports(since):
            self._reports_since = max(row.at, since)
            newest, record = self.histories.newest(row.notebook), self.view.mirror.notebooks.get(row.notebook)
            if newest is not None and (newest.instance, newest.sequence) == (row.instance, row.sequence):
                continue
            if record is None or record.notebook.state not in HOLDS_SLICE:
                continue
            if self._take_report(row.notebook, report_of(row)):
                news.add(row.notebook)
        return news

    def _take_report(self, name: str, report: Report) -> bool:
        if not self.histories.report(name, report, self.policy):
            return False
        self.recorder.report(name, report.instance, report.at)
        if self._is_simulated(name):
            self._simulate(name, report)
        return True

    def _simulate(self, name: str, report: Report) -> None:
        """A simulated device is used as much as its notebook's processes use the CPU; the server says how much."""
        before = self._last_report.get(name, report)
        sample = simulated_sample(before, report)
        if sample is not None:
            self._take_sample(name, sample)
        if sample is not None or before is report:
            self._last_report[name] = report

    def _read(self, record: NotebookRecord) -> bool:
        """Take the newest sample of each device that a notebook has a part of; whether one is new."""
        name, new = record.notebook.id, False
        if self._is_simulated(name):
            return False
        for row in self._rows_of(name):
            if row is not None and name in row.workloads:
                new |= self._take_sample(name, _sample(row, name, self._belonging(name, row)))
        return new

    def _take_sample(self, name: str, sample: GpuSample) -> bool:
        is_new = self.histories.read(name, sample, self.policy)
        if is_new:
            self.recorder.read(name, sample)
        return is_new

    def _is_time(self, record: NotebookRecord, now: int) -> bool:
        """Whether time alone may change a classification: a countdown or a wait is over, or nothing came for a while.

        So does what a person asked for since.
        """
        known, stage = self.states.get(record.notebook.id), stage_of(record)
        if known is None or not known.at <= now < known.at + SILENT_MS or _changed_at(stage) >= known.at:
            return True
        due = stage.until if isinstance(stage, Warned) else None
        if isinstance(known.classification, Busy):
            due = known.classification.idle_at
        return due is not None and known.at < due <= now

    # --- classifying ----------------------------------------------------------------------------------------------
    def _classify(self, record: NotebookRecord, now: int, *, waiting: bool) -> IdleState | None:
        """Classify one notebook now and move its state on; None where that changed meanwhile, or the slice ended."""
        name, stage = record.notebook.id, stage_of(record)
        policy = self._policy_of(name)
        activity = self.histories.activity(
            name,
            kept_at=stage.kept.at,
            holding=self._holding(name),
            empty=self._is_empty(name),
            process_owners=self._belonging(name, *self._rows_of(name)),
            asked_at=stage.asked_at if isinstance(stage, InUse) else None,
        )
        now = _at_least_newest(activity, now)
        classification = classify(activity, policy, waiting=waiting, now=now)
        taken = transition(stage, seen(activity, classification), policy, now)
        lendable = self._is_lendable(record, activity, classification, taken.stage, now)
        state = self._state(name, now, classification, taken.stage, lendable=lendable, waiting=waiting)
        if not self._record(record, taken, state):
            return None
        self.states[name] = state
        return state

    def _state(
        self, name: str, now: int, classification: Classification, stage: MachineState, *, lendable: bool, waiting: bool
    ) -> IdleState:
        newest, sample, policy = self.histories.newest(name), self.histories.newest_sample(name), self.policy
        frees = isinstance(stage, Freeing) and policy.mode is IdleMode.RECLAIM
        return IdleState(
            notebook=name,
            at=now,
            classification=classification,
            lendable=lendable,
            used_at=self.histories.used_at(name),
            sampled=None if sample is None else (sample.percent, sample.at),
            suspension=None
            if newest is None
            else Suspension(can=newest.suspends, why_not=newest.why_not, suspended=newest.suspended),
            quiet_ms=policy.kernel_after_s(waiting=waiting) * 1000,
            suspendable=self._suspendable(name, stage.kernels) if frees and isinstance(stage, Freeing) else {},
        )

    def _is_lendable(
        self,
        record: NotebookRecord,
        activity: NotebookActivity,
        classification: Classification,
        stage: MachineState,
        now: int,
    ) -> bool:
        """Whether the slice may be lent, or what is lent may stay so.

        A controller that takes over gives the facts as long to come as they may be missing in any classification.
        """
        name, empty = record.notebook.id, self._emptiness(record.notebook.id)
        if record.notebook.state is NotebookState.LENT:
            policy = self._policy_of(name)
            found = may_stay_lent(stage, activity, policy, empty=empty, now=now)
            began = now if self._began is None else self._began
            return now < began + patience_ms(policy) if found is None else found
        newest = self.histories.newest(name)
        return is_lendable(stage, classification) and empty is True and newest is not None and newest.asks_first

    def _record(self, record: NotebookRecord, taken: Transition, state: IdleState) -> bool:
        """Store what is new of a classification before it is acted on; whether the state that it rests on still was.

        The owner of a lent slice may work beside it, so a lendable one is stored as idle.
        """
        name, before, known = record.notebook.id, stage_of(record), self.states.get(record.notebook.id)
        same = known is not None and stored_word(known) == stored_word(state) and known.lendable == state.lendable
        if same and taken.turn is None and taken.stage == before:
            return True
        request = RecordIdleState(
            notebook=name,
            activity=stored_word(state),
            seen_empty=state.lendable,
            state=to_document(taken.stage),
            event=None if taken.turn is None else taken.turn.value,
            why=told(state.classification, taken.stage, self.policy.mode, state.at, suspends_of(state, self.policy)),
            expected=to_document(before),
        )
        notifications = self.notifications.about_idleness(request, before, self.policy, state.at)
        (outcome,) = self.store.record(replace(request, notifications=notifications))
        if not isinstance(outcome, Recorded):  # its server ended just now, or somebody changed its state
            log.debug("%s", outcome.message)
        return isinstance(outcome, Recorded)

    def _note(self, states: list[IdleState], now: int) -> None:
        """Note what the api shows of each notebook, and what was seen, for a successor."""
        due = self.recorder.note(self.policy, now)
        notes = tuple(state.to_note() for state in states)
        if due is not None:
            self.store.record(replace(due, notes=(*notes, *due.notes)))
        elif notes:
            self.store.record(KeepNotes(notes=notes))

    def _stop_if_due(self, record: NotebookRecord, now: int) -> None:
        """Stop the server of a notebook whose state says so; its slice goes back as with any server that stops."""
        name = record.notebook.id
        if isinstance(stage_of(record), Stopping) and now - self._stopped_at.get(name, -STOP_AGAIN_MS) >= STOP_AGAIN_MS:
            self.store.check()
            self._stopped_at[name] = now
            self.stop(record)

    def _pools_with_waiting_work(self) -> set[str]:
        """The pools in which work waits."""
        mirror = self.view.mirror
        jobs = {each.job.pool for each in mirror.jobs.values() if each.job.state in WAITING}
        asked = {
            each.notebook.pool for each in mirror.notebooks.values() if each.notebook.state is NotebookState.REQUESTED
        }
        return jobs | asked

    # --- what holds the GPU ---------------------------------------------------------------------------------------
    def _holding(self, name: str) -> tuple[str, ...] | None:
        """The kernels that hold the GPU, as far as that follows from what is known; None where it does not.

        A simulated device is held by every kernel that may use it. On a real one the processes on it tell; where they
        are not known, a single such kernel, with no program beside it, is the holder.
        """
        newest = self.histories.newest(name)
        if newest is None:
            return None
        if self._is_empty(name):
            return ()
        found = self._belonging(name, *self._rows_of(name))
        if found is not None:
            return tuple(found.holders)
        able = tuple(kernel.id for kernel in newest.kernels if kernel.holds_gpu is not False)
        alone = len(able) <= 1 and not newest.programs
        return able if alone or self._is_simulated(name) else None

    def _is_empty(self, name: str) -> bool:
        """Whether the newest samples show that nothing of a notebook is on its devices."""
        rows = self._rows_of(name)
        return bool(rows) and all(row is not None and row.workload_memory_mib.get(name) == 0 for row in rows)

    def _emptiness(self, name: str) -> bool | None:
        """The same, None where they do not tell. What holds a simulated device are kernels and programs alone."""
        if self._is_empty(name) or self._is_simulated(name):
            return True
        held = any(row is not None and row.workload_memory_mib.get(name) for row in self._rows_of(name))
        return False if held else None

    def _rows_of(self, name: str) -> list[DeviceSample | None]:
        """The newest sample of each device that a notebook has a part of."""
        return [self.view.samples.get(device) for device in self._devices_of(name)]

    def _devices_of(self, name: str) -> list[str]:
        """The devices of a notebook's slice; of one that is lent, where it comes back to."""
        record = self.view.mirror.notebooks.get(name)
        home = None if record is None else record.notebook.device
        return [part.device for part in self.view.allocations_of(name)] or ([home] if home else [])

    def _belonging(self, name: str, *rows: DeviceSample | None) -> ProcessOwners | None:
        """Which kernels and programs of a notebook its processes on these devices are; None where that is not known."""
        newest, processes = self.histories.newest(name), list[ProcessUse]()
        if newest is None or not rows:
            return None
        for row in rows:
            if row is None or name not in row.processes:
                return None
            processes += row.processes[name]
        return process_owners(newest.roots, processes)

    def _is_simulated(self, name: str) -> bool:
        """Whether all that a notebook holds is simulated."""
        devices = [self.view.device(device) for device in self._devices_of(name)]
        return bool(devices) and all(device is not None and device.simulated for device in devices)

    def _suspendable(self, name: str, kernels: tuple[str, ...]) -> dict[str, int]:
        """The kernels that may be suspended, with what each holds, by the newest sample of the one device."""
        newest, rows = self.histories.newest(name), self._rows_of(name)
        if not self.policy.suspend or newest is None or len(rows) != 1 or rows[0] is None:
            return {}
        return suspendable(newest.roots, rows[0].processes.get(name, ()), kernels)


def stage_of(record: NotebookRecord) -> MachineState:
    """The state of a notebook as the store has it."""
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def stored_word(state: IdleState) -> str:
    """The activity that the store is told."""
    return "idle" if state.lendable else word_of(state.classification)


def suspends_of(state: IdleState, policy: IdlePolicy) -> Suspends | None:
    """What becomes of the variables of a notebook's kernels; None where the policy does not suspend."""
    if not policy.suspend:
        return None
    if state.suspension is None:
        return Suspends(why_not="its server has not reported")
    known = state.suspension
    return Suspends(can=known.can, why_not=known.why_not, suspended=known.suspended)


def _at_least_newest(activity: NotebookActivity, now: int) -> int:
    """The instant of a classification: ``now``, or that of a fact that arrived while the run read the store."""
    newest = max(
        now,
        *(sample.at for sample in activity.samples[-1:]),
        *activity.reports[-1:],
        activity.kept_at or 0,
        activity.asked_at or 0,
    )
    return newest if newest <= now + ARRIVED_MEANWHILE_MS else now


def _changed_at(stage: MachineState) -> int:
    """When a person or a server last asked for something."""
    asked_at = stage.asked_at if isinstance(stage, InUse) else None
    return max(stage.kept.at or 0, asked_at or 0)


def _sample(row: DeviceSample, notebook: str, found: ProcessOwners | None) -> GpuSample:
    """A sample as classification takes it; it is dated where each process that used the device is."""
    percent = row.workloads[notebook]
    used = [process.used_at for process in row.processes.get(notebook, ()) if process.percent]
    dated = [at for at in used if at is not None]
    return GpuSample(
        at=row.at,
        percent=percent,
        why="" if percent is not None else row.why.get(notebook, NO_FIGURES),
        used_at=min(max(dated), row.at) if percent and dated and len(dated) == len(used) else None,
        users=() if found is None else tuple(sorted(found.users)),
    )
