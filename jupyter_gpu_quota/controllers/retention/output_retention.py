"""The outputs of ended jobs: their space by project, and their removal after ``storage.keep`` or at a request."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...backends.protocol import JobBackend
from ...core.amounts import counted
from ...quotafile import QuotaFile
from ...store.reads.quota_revision import InForce
from ...store.records.activity import OUTPUTS_TOTAL, KeepNotes, Note, NoteKind
from ...store.records.commands import OutputsExpired
from ...store.records.rows import JobRecord
from ...store.transactions import Store
from ..leadership.lease import Leadership

log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""How soon the next run is while a size or a removal is awaited."""
JOBS_A_RUN = 200
"""Ended jobs that are read again in each run, so that no run takes long; all of them in turn."""

Position = tuple[int, str]
"""Ended jobs are read in order of their end and id; the next part starts after this position."""
START: Position = (0, "")
PASS_EVERY_MS = 600_000
"""A pass over all ended jobs of projects with limits reads the ends of the others, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedOutputs:
    """The outputs of one ended job. ``mib`` None: not measured. ``requested_by``: the user who had them removed."""

    job: str
    project: str
    ended_at: int
    mib: int | None = None
    removed_at: int | None = None
    requested_by: str | None = None

    def note(self, now: int) -> Note:
        fields = ("project", "ended_at", "mib", "removed_at", "requested_by")
        return Note(kind="outputs", subject=self.job, at=now, document={name: getattr(self, name) for name in fields})


class OutputRetention:
    """Follows the jobs of projects with limits. The effect of a removal is observed: their size is 0 in a later run."""

    def __init__(self, store: Store, jobs: JobBackend, leadership: Leadership) -> None:
        self._store, self._jobs, self._leadership = store, jobs, leadership
        self._retained = {
            note.subject: RetainedOutputs(job=note.subject, **note.document)  # type: ignore[arg-type]
            for note in store.notes("outputs")
        }
        self._newest: Position | None = None
        self._pass: Position | None = START
        self._pass_at = 0
        self._limited, self._counted = frozenset[str](), frozenset[str]()
        self._removing: dict[str, RetainedOutputs] = {}
        self._unremoved: dict[str, str] = {}
        self._totals: Mapping[str, object] | None = None

    def run_once(self, found: InForce | None, now: int) -> int | None:
        """Record new sizes and removals; returns when to run again, None: as usual.

        Nothing is removed after its time while the newest quota file cannot be read: it may keep outputs for longer.
        """
        self._follow(found.file if found else None, now)
        self._order_removals(found.file if found and not found.fault else None, now)
        waiting = [each.job for each in self._retained.values() if each.mib is None and each.removed_at is None]
        sizes = self._jobs.output_sizes([*waiting, *self._removing]) if waiting or self._removing else {}
        measured = [self._measured(job, mib, now) for job, mib in sizes.items()]
        changed = {each.job: each for each in measured if each != self._retained[each.job]}
        self._record(changed.values(), retained := self._retained | changed, now)
        self._retained = retained  # only now: what a database that fails here lacks is recorded by the next run
        for job in [job for job, mib in sizes.items() if mib == 0]:
            self._removing.pop(job, None)
        is_soon = (
            self._removing.keys() - self._unremoved.keys()
            or self._limited != self._counted
            or any(job not in sizes for job in waiting)
        )
        return now + RETRY_MS if is_soon else None

    def forget(self, jobs: Iterable[str]) -> None:
        """Retention removed these jobs."""
        for job in jobs:
            self._retained.pop(job, None)
            self._removing.pop(job, None)

    def _follow(self, file: QuotaFile | None, now: int) -> None:
        """Track the jobs of projects with limits: those that ended since the last run, and in passes all of them.

        A job whose end is observed late sorts before the newest position, so only a pass finds it.
        """
        limited = (
            frozenset(each.name for each in file.projects if each.storage.model_fields_set) if file else frozenset()
        )
        if limited != self._limited:
            self._limited, self._pass = limited, START
            self._counted &= limited
        if not limited:
            return
        if self._newest is not None:
            self._newest, _ = self._track_after(self._newest)
        if self._pass is None and now >= self._pass_at:
            self._pass = START
        if self._pass is not None:
            self._pass, is_last = self._track_after(self._pass)
            if is_last:
                self._newest = max(self._newest or START, self._pass)
                self._pass, self._pass_at, self._counted = None, now + PASS_EVERY_MS, limited

    def _track_after(self, position: Position) -> tuple[Position, bool]:
        """Track the next part of the ended jobs. Returns its last position, and whether it was the last part."""
        found = self._store.ended_of(sorted(self._limited), position, JOBS_A_RUN)
        for record in found:
            self._track(record)
            position = record.ended_at or 0, record.job.id
        return position, len(found) < JOBS_A_RUN

    def _track(self, record: JobRecord) -> None:
        if record.ended_at is None:
            return
        job = record.job
        self._retained.setdefault(job.id, RetainedOutputs(job=job.id, project=job.project, ended_at=record.ended_at))

    def _order_removals(self, file: QuotaFile | None, now: int) -> None:
        """Order the removal of outputs that are due or unwanted; repeated until it is observed."""
        for note in self._store.notes("outputs_removal"):
            record = self._store.job(note.subject)
            if record is not None:
                self._track(record)
                user = str(note.document["requested_by"])
                self._removing[note.subject] = replace(self._retained[note.subject], requested_by=user)
        keep_s = {each.name: each.storage.keep for each in file.projects} if file else {}
        for job, retained in self._retained.items():
            keep = keep_s.get(retained.project)
            if retained.removed_at is None and keep is not None and retained.ended_at + keep * 1000 <= now:
                self._removing.setdefault(job, retained)
        self._unremoved = self._remove_all()

    def _remove_all(self) -> dict[str, str]:
        """Order every removal. Returns why those of some jobs cannot be carried out now."""
        unremoved = dict[str, str]()
        for job in self._removing:
            try:
                self._jobs.remove_outputs(job)
            except OSError as error:
                unremoved[job] = str(error)
        new = unremoved.keys() - self._unremoved.keys()
        if new:
            log.warning("the outputs of %s cannot be removed now: %s", counted(len(new), "job"), unremoved[min(new)])
        return unremoved

    def _measured(self, job: str, mib: int | None, now: int) -> RetainedOutputs:
        retained = self._removing.get(job) or self._retained[job]
        if job in self._removing and mib == 0:
            return replace(retained, mib=0, removed_at=now)
        return retained if mib is None else replace(retained, mib=mib)

    def _record(self, changed: Collection[RetainedOutputs], retained: Mapping[str, RetainedOutputs], now: int) -> None:
        """Store what changed, and the space of each project for the API."""
        notes, totals = [each.note(now) for each in changed], self._totalled(retained.values())
        if totals != self._totals and (totals or self._totals):
            notes.append(Note(kind="retention", subject=OUTPUTS_TOTAL, at=now, document=totals))
        if not notes:
            return
        removed = [each for each in changed if each.removed_at is not None]
        done: tuple[tuple[NoteKind, str], ...] = tuple(("outputs_removal", each.job) for each in removed)
        expired = [OutputsExpired(job=each.job, project=each.project) for each in removed if each.requested_by is None]
        keep = KeepNotes(notes=tuple(notes), over=done)
        self._store.record([*expired, keep], now=now, lease=self._leadership.lease)
        self._totals = totals

    def _totalled(self, retained: Iterable[RetainedOutputs]) -> dict[str, int | None]:
        """The space of each project in MiB; None while outputs of it are not measured, or jobs of it not read."""
        totals: dict[str, int | None] = dict.fromkeys(self._counted, 0)
        totals |= dict.fromkeys(self._limited - self._counted)
        for each in retained:
            total = totals.get(each.project, 0)
            totals[each.project] = None if total is None or each.mib is None else total + each.mib
        return totals
