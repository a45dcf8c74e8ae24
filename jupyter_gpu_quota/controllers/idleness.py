"""The idleness controller: classifies every booked notebook by reports and GPU samples, and runs its state machine.

A decision is in the store before it is acted on, and so is its evidence: reports are rows, and observations are noted.
A controller that takes over continues every countdown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from ..core.idle.activity import GpuSample, IdleMode, IdlePolicy, NotebookActivity
from ..core.idle.classification import Busy, Classification, classify, continued
from ..core.idle.history import ActivityHistories, Report, simulated_sample
from ..core.idle.lent_slice import evidence_timeout_ms, may_stay_lent
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
    observe,
    requested_until,
    transition,
)
from ..core.lifecycle import HOLDS_SLICE, WAITING
from ..core.model import NotebookState
from ..core.samples import DeviceSample, ProcessUse
from ..messages.idle import SuspensionState, idle_sentence
from ..store.reads.followed_store import FollowedStore
from ..store.records.activity import LATE_CLOCK_MS, KeepNotes
from ..store.records.commands import Recorded, RecordIdleState
from ..store.records.idle_state import IdleState, Suspension, word_of
from ..store.records.rows import NotebookRecord
from .activity_records import ActivityRecorder, measured_reports, report_of, restored
from .leadership.lease import FencedStore
from .notifications import NotificationQueue

log = logging.getLogger(__name__)

CHECK_EVERY_MS = 1_000
SILENT_MS = 10_000
"""A notebook without news is classified again after this time."""

STOP_AGAIN_MS = 60_000
"""The request to stop a server that still runs is repeated after this time."""

ARRIVED_MEANWHILE_MS = 5_000
"""A fact newer than the start of a run by at most this time arrived during the run; beyond it the clock jumped."""

NO_FIGURES = "its processes have no figures of their own"


class Idleness:
    """All booked notebooks. ``stop`` requests that the hub stop a notebook's server, without waiting for the hub.

    ``lends_slices``: whether the backend can give a slice to a job while the notebook's server runs.
    """

    name = "idleness"

    def __init__(
        self, view: FollowedStore, store: FencedStore, notifications: NotificationQueue,
        stop: Callable[[NotebookRecord], object], *, lends_slices: bool,
    ) -> None:  # fmt: skip
        self.view, self.store, self.notifications, self.stop = view, store, notifications, stop
        self._lends_slices = lends_slices
        self.histories = ActivityHistories()
        self.recorder = ActivityRecorder()
        self.states: dict[str, IdleState] = {}
        self._stopped_at: dict[str, int] = {}
        self._owners_unknown_since: dict[str, int] = {}
        self._memory_known: dict[str, DeviceSample] = {}
        self._measured: dict[str, Report] = {}
        self._reports_since = 0
        self._began: int | None = None

    @property
    def policy(self) -> IdlePolicy:
        quota = self.view.quota_file
        return IdlePolicy() if quota is None else quota.idle

    def _policy_of(self, name: str) -> IdlePolicy:
        """The policy of one notebook. A simulated device is sampled with each report of the notebook's server."""
        policy = self.policy
        return replace(policy, sample_every_s=policy.report_every_s) if self._is_simulated(name) else policy

    def run_once(self, now: int) -> int:
        """Classify the notebooks that have new facts or a due instant."""
        self.view.refresh()
        if self._began is None:
            self._restore()
        self._began = now if self._began is None else min(self._began, now)
        booked = [each for each in self.view.mirror.notebooks.values() if each.notebook.state in HOLDS_SLICE]
        self.forget_others({record.notebook.id for record in booked})
        self.classify_due(booked, now)
        return now + CHECK_EVERY_MS

    def classify_due(self, booked: Sequence[NotebookRecord], now: int) -> None:
        """Classify those of these notebooks that have new facts or a due instant, as of the view's last refresh."""
        changed = self._take_reports(now)
        waiting = self.pools_with_waiting_work() if booked else set()
        states = []
        for record in booked:
            name, stopping = record.notebook.id, isinstance(machine_state_of(record), Stopping)
            if self._take_samples(record) or name in changed or self._is_due(record, now):
                machine = self._classify(record, now, waiting=record.notebook.pool in waiting)
                stopping &= isinstance(machine, Stopping)
                if machine is not None:
                    states.append(self.states[name])
            if stopping:
                self._request_stop(record, now)
        self._note(states, now)

    def _restore(self) -> None:
        """Load the evidence and the states that the previous controller noted."""
        live, store = self.view.mirror.notebooks, self.view.store
        reports = {row.notebook: report_of(row) for row in store.reports(0) if row.notebook in live}
        notes = [note for note in store.notes("activity") if note.subject in live]
        self.histories = restored(notes, reports, self.policy)
        self.recorder = ActivityRecorder(notes)
        self.states = {note.subject: IdleState.from_note(note) for note in store.notes("idle") if note.subject in live}
        self._measured = measured_reports(notes)

    def forget_others(self, names: Set[str]) -> None:
        """Drop the evidence of all notebooks but these."""
        self.histories.keep_only(names)
        self.recorder.keep_only(names)
        self.states = {name: state for name, state in self.states.items() if name in names}
        self._stopped_at = {name: at for name, at in self._stopped_at.items() if name in names}
        self._measured = {name: report for name, report in self._measured.items() if name in names}
        self._owners_unknown_since = {name: at for name, at in self._owners_unknown_since.items() if name in names}
        self._memory_known = {name: row for name, row in self._memory_known.items() if name in names}

    # --- evidence -------------------------------------------------------------------------------------------------
    def _take_reports(self, now: int) -> set[str]:
        """Take the reports that arrived since the last run. Returns the ids of their notebooks.

        Each has the time of the process of the API that stored it, whose clock may be late.
        """
        since = self._reports_since if self._reports_since <= now else 0  # the clock was set back
        changed = set[str]()
        for row in self.view.store.reports(max(0, since - LATE_CLOCK_MS)):
            self._reports_since = max(row.at, since)
            newest, record = self.histories.newest(row.notebook), self.view.mirror.notebooks.get(row.notebook)
            if newest is not None and (newest.instance, newest.sequence) == (row.instance, row.sequence):
                continue
            if record is None or record.notebook.state not in HOLDS_SLICE:
                continue
            if self._take_report(row.notebook, report_of(row)):
                changed.add(row.notebook)
        return changed

    def _take_report(self, name: str, report: Report) -> bool:
        if not self.histories.add_report(name, report, self.policy):
            return False
        self.recorder.report(name, report.instance, report.at)
        if self._is_simulated(name):
            self._simulate(name, report)
        return True

    def _simulate(self, name: str, report: Report) -> None:
        """The use of a simulated device is the CPU use of the notebook's processes, as its server reports it."""
        before = self._measured.get(name, report)
        sample = simulated_sample(before, report)
        if sample is not None:
            self._take_sample(name, sample)
        if sample is not None or before is report:
            self._measured[name] = report
            self.recorder.measured(name, report)

    def _take_samples(self, record: NotebookRecord) -> bool:
        """Take the new samples of each device of a notebook's slice. Returns whether there are any."""
        name, new = record.notebook.id, False
        if self._is_simulated(name):
            return False
        for newest in self._newest_rows(name):
            if newest is not None and name in newest.workloads:
                for row in (*self._missed_rows(name, newest), newest):
                    new |= self._take_sample(name, _sample(row, name, self._belonging(name, row)))
                if newest.workload_memory_mib.get(name) is not None:
                    self._memory_known[name] = newest
        return new

    def _missed_rows(self, name: str, newest: DeviceSample) -> list[DeviceSample]:
        """The samples of a device that were stored between two runs, before its newest one; at most the last hundred.

        None are looked for where that one is late by at most a quarter of a period.
        """
        last = self.histories.newest_sample(name)
        if last is None or newest.at - last.at <= self.policy.sample_every_s * 1250:
            return []
        rows, _ = self.view.store.samples(newest.device, last.at + 1, newest.at)
        return [row for row in reversed(rows) if name in row.workloads]

    def _take_sample(self, name: str, sample: GpuSample) -> bool:
        is_new = self.histories.add_sample(name, sample, self.policy)
        if is_new:
            self.recorder.read(name, sample, self.histories.use(name))
        return is_new

    def _is_due(self, record: NotebookRecord, now: int) -> bool:
        """Whether a classification is due without a new fact.

        It is due when a countdown or an idle time-out is over, after SILENT_MS, and after a request of a user.
        """
        known, machine = self.states.get(record.notebook.id), machine_state_of(record)
        if known is None or not known.at <= now < known.at + SILENT_MS or _changed_at(machine) >= known.at:
            return True
        due = machine.until if isinstance(machine, Warned) else None
        if isinstance(known.classification, Busy):
            due = known.classification.idle_at
        return due is not None and known.at < due <= now

    # --- classification -------------------------------------------------------------------------------------------
    def _classify(self, record: NotebookRecord, now: int, *, waiting: bool) -> MachineState | None:
        """Classify one notebook and store its next state; None where the store refused it as out of date."""
        name, machine = record.notebook.id, machine_state_of(record)
        if _changed_at(machine) > now + ARRIVED_MEANWHILE_MS:
            machine = requested_until(machine, now)
        policy = self._policy_of(name)
        activity = self.histories.activity(
            name,
            kept_at=machine.kept.at,
            holding=self._holding(name),
            empty=self._is_empty(name),
            process_owners=self._belonging(name, *self._rows_of(name)),
            asked_at=machine.asked_at if isinstance(machine, InUse) else None,
        )
        now = _at_least_newest(activity, now)
        classification = classify(activity, policy, waiting=waiting, now=now)
        taken = transition(machine, observe(activity, classification), policy, now)
        lendable = self._is_lendable(record, activity, classification, taken.state, now)
        known = self.states.get(name)
        if known is not None:
            classification = continued(classification, known.classification, before_at=known.at, now=now)
        state = self._state(name, now, classification, taken.state, lendable=lendable, waiting=waiting)
        if not self._record(record, taken, state):
            return None
        self.states[name] = state
        return taken.state

    def _state(
        self,
        name: str,
        now: int,
        classification: Classification,
        machine: MachineState,
        *,
        lendable: bool,
        waiting: bool,
    ) -> IdleState:
        newest, sample, policy = self.histories.newest(name), self.histories.newest_sample(name), self.policy
        freed = machine.kernels if isinstance(machine, Freeing) and policy.mode is IdleMode.RECLAIM else ()
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
            suspendable=self._suspendable(name, freed, now),
        )

    def _is_lendable(
        self,
        record: NotebookRecord,
        activity: NotebookActivity,
        classification: Classification,
        machine: MachineState,
        now: int,
    ) -> bool:
        """Whether a slice may be lent, or a lent slice may stay lent.

        After a take-over missing facts are tolerated for as long as in any classification.
        """
        name, empty = record.notebook.id, self._emptiness(record.notebook.id)
        if not self._lends_slices:
            return False
        if record.notebook.state is NotebookState.LENT:
            policy = self._policy_of(name)
            found = may_stay_lent(machine, activity, policy, empty=empty, now=now)
            began = now if self._began is None else self._began
            return now < began + evidence_timeout_ms(policy) if found is None else found
        newest = self.histories.newest(name)
        return is_lendable(machine, classification) and empty is True and newest is not None and newest.asks_first

    def _record(self, record: NotebookRecord, taken: Transition, state: IdleState) -> bool:
        """Store a change of classification or state. Returns whether the state in the store was the expected one.

        The owner of a lent slice may work beside it, so a lendable slice is stored as idle.
        """
        name, before, known = record.notebook.id, machine_state_of(record), self.states.get(record.notebook.id)
        same = known is not None and activity_word(known) == activity_word(state) and known.lendable == state.lendable
        if same and taken.event is None and taken.state == before:
            return True
        request = RecordIdleState(
            notebook=name,
            activity=activity_word(state),
            seen_empty=state.lendable,
            state=to_document(taken.state),
            event=None if taken.event is None else taken.event.value,
            why=idle_sentence(
                state.classification, taken.state, self.policy.mode, state.at, suspends_of(state, self.policy)
            ),
            expected=to_document(before),
        )
        notifications = self.notifications.about_idleness(request, before, self.policy, state.at)
        (outcome,) = self.store.record(replace(request, notifications=notifications))
        if not isinstance(outcome, Recorded):  # its server ended, or its state changed meanwhile
            log.debug("%s", outcome.message)
        return isinstance(outcome, Recorded)

    def _note(self, states: list[IdleState], now: int) -> None:
        """Store what the api shows of each notebook, and the new evidence for a successor."""
        due = self.recorder.note(self.policy, now)
        notes = tuple(state.to_note() for state in states)
        if due is not None:
            self.store.record(replace(due, notes=(*notes, *due.notes)))
            self.recorder.stored()
        elif notes:
            self.store.record(KeepNotes(notes=notes))

    def _request_stop(self, record: NotebookRecord, now: int) -> None:
        """Stop the server of a notebook in state Stopping; its slice is returned as that of any server that stops."""
        name = record.notebook.id
        if not 0 <= now - self._stopped_at.get(name, -STOP_AGAIN_MS) < STOP_AGAIN_MS:
            self.store.check()
            self._stopped_at[name] = now
            self.stop(record)

    def pools_with_waiting_work(self) -> set[str]:
        """The pools in which work waits."""
        mirror = self.view.mirror
        jobs = {each.job.pool for each in mirror.jobs.values() if each.job.state in WAITING}
        asked = {
            each.notebook.pool for each in mirror.notebooks.values() if each.notebook.state is NotebookState.REQUESTED
        }
        return jobs | asked

    # --- GPU processes --------------------------------------------------------------------------------------------
    def _holding(self, name: str) -> tuple[str, ...] | None:
        """The kernels that hold the GPU; None where that is unknown.

        Every kernel that may use a simulated device holds it. On a real one the processes on the device are the source;
        where they are unknown, a single kernel that may use it, without a program beside it, holds it.
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
        """Whether a notebook uses no memory of its devices by the newest samples."""
        rows = self._rows_of(name)
        return bool(rows) and all(row is not None and row.workload_memory_mib.get(name) == 0 for row in rows)

    def _emptiness(self, name: str) -> bool | None:
        """Whether no process of a notebook is on its devices; None where that is unknown.

        Only kernels and programs hold a simulated device.
        """
        if self._is_empty(name) or self._is_simulated(name):
            return True
        held = any(row is not None and row.workload_memory_mib.get(name) for row in self._rows_of(name))
        return False if held else None

    def _rows_of(self, name: str) -> list[DeviceSample | None]:
        """The samples that show which processes of a notebook are on its devices; None for a device without one.

        They are the newest ones. While the newest one of a lent slice does not say that, as just after the end of a
        process on its device, it is the last that does, for as long as readings may be missing.
        """
        rows, known = self._newest_rows(name), self._memory_known.get(name)
        record = self.view.mirror.notebooks.get(name)
        if known is None or record is None or record.notebook.state is not NotebookState.LENT:
            return rows
        oldest_ms = self.policy.max_gap_ms(self.policy.sample_every_s)
        return [
            known if row is not None and row.device == known.device and 0 <= row.at - known.at <= oldest_ms else row
            for row in rows
        ]

    def _newest_rows(self, name: str) -> list[DeviceSample | None]:
        """The newest sample of each device of a notebook's slice; None for a device without one."""
        return [self.view.samples.get(device) for device in self._devices_of(name)]

    def _devices_of(self, name: str) -> list[str]:
        """The devices of a notebook's slice; of a lent one, the device that it returns to."""
        record = self.view.mirror.notebooks.get(name)
        home = None if record is None else record.notebook.device
        return [part.device for part in self.view.allocations_of(name)] or ([home] if home else [])

    def _belonging(self, name: str, *rows: DeviceSample | None) -> ProcessOwners | None:
        """The kernels and programs that own the notebook's processes on these devices; None where that is unknown."""
        newest, processes = self.histories.newest(name), list[ProcessUse]()
        if newest is None or not rows:
            return None
        for row in rows:
            if row is None or name not in row.processes:
                return None
            processes += row.processes[name]
        return process_owners(newest.roots, processes)

    def _is_simulated(self, name: str) -> bool:
        """Whether all devices of a notebook's slice are simulated."""
        devices = [self.view.device(device) for device in self._devices_of(name)]
        return bool(devices) and all(device is not None and device.simulated for device in devices)

    def _suspendable(self, name: str, kernels: tuple[str, ...], now: int) -> dict[str, int] | None:
        """The kernels that may be suspended, and the memory of each in MiB, by the newest sample of the only device.

        None while it is unknown whose processes are there, at most for as long as readings may be missing.
        """
        newest, rows = self.histories.newest(name), self._rows_of(name)
        unknown_since = self._owners_unknown_since.pop(name, now)
        if not kernels or not self.policy.suspend or newest is None or len(rows) != 1 or self._is_simulated(name):
            return {}
        if self._belonging(name, *rows) is None:
            self._owners_unknown_since[name] = unknown_since = min(unknown_since, now)
            if now - unknown_since <= self.policy.max_gap_ms(self.policy.sample_every_s):
                return None
        return {} if rows[0] is None else suspendable(newest.roots, rows[0].processes.get(name, ()), kernels)


def machine_state_of(record: NotebookRecord) -> MachineState:
    """The state of a notebook in the store."""
    return BEGINNING if record.idle_state is None else from_document(record.idle_state)


def activity_word(state: IdleState) -> str:
    """The activity as it is stored."""
    return "idle" if state.lendable else word_of(state.classification)


def suspends_of(state: IdleState, policy: IdlePolicy) -> SuspensionState | None:
    """Whether the kernels of a notebook can be suspended; None where the policy does not suspend."""
    if not policy.suspend:
        return None
    if state.suspension is None:
        return SuspensionState(why_not="its server has not reported")
    known = state.suspension
    return SuspensionState(can=known.can, why_not=known.why_not, suspended=known.suspended)


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


def _changed_at(machine: MachineState) -> int:
    """The instant of the last request of a user or a server."""
    asked_at = machine.asked_at if isinstance(machine, InUse) else None
    return max(machine.kept.at or 0, asked_at or 0)


def _sample(row: DeviceSample, notebook: str, found: ProcessOwners | None) -> GpuSample:
    """A device sample as classification takes it; ``used_at`` is set where the use of every process is dated."""
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
