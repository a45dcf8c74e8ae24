"""The outputs of ended jobs: their space by project, and their removal after ``storage.keep`` or at a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...backends.protocol import JobBackend
from ...quotafile import QuotaFile
from ...store.records.activity import OUTPUTS_TOTAL, KeepNotes, Note, NoteKind
from ...store.records.calls import Page
from ...store.records.rows import JobRecord
from ...store.transactions import Store
from ..lease import Leadership

RETRY_MS = 1_000
"""How soon the next run is while a size or a removal is awaited."""
JOBS_A_RUN = 200
"""Ended jobs that are read again in each run, so that no run takes long; all of them in turn."""


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
        self._newest, self._turn = 0, 0
        self._removing: dict[str, RetainedOutputs] = {}
        self._totals: Mapping[str, object] | None = None

    def run_once(self, file: QuotaFile | None, now: int) -> int | None:
        """Record new sizes and removals; returns when to run again, None: as usual."""
        self._follow(file)
        self._order_removals(file, now)
        waiting = [
            job for job, retained in self._retained.items() if retained.mib is None and retained.removed_at is None
        ]
        sizes = self._jobs.output_sizes([*waiting, *self._removing]) if waiting or self._removing else {}
        changed = [self._measured(job, mib, now) for job, mib in sizes.items()]
        self._retained |= {retained.job: retained for retained in changed}
        self._record(changed, now)
        return now + RETRY_MS if self._removing or len(waiting) > len(changed) else None

    def forget(self, jobs: Iterable[str]) -> None:
        """Retention removed these jobs."""
        for job in jobs:
            self._retained.pop(job, None)

    def _follow(self, file: QuotaFile | None) -> None:
        """Track the jobs of projects with limits: those that ended since the last run, and others in turn."""
        limited = [each.name for each in file.projects if each.storage.model_fields_set] if file else []
        if not limited:
            return
        news = self._store.ended_of(limited, self._newest)
        page = Page(offset=self._turn * JOBS_A_RUN, limit=JOBS_A_RUN)
        others = self._store.ended_of(limited, 0, page)
        self._turn = self._turn + 1 if len(others) == JOBS_A_RUN else 0
        for record in (*news, *others):
            self._track(record)

    def _track(self, record: JobRecord) -> None:
        if record.ended_at is None:
            return
        self._newest = max(self._newest, record.ended_at)
        job = record.job
        self._retained.setdefault(job.id, RetainedOutputs(job=job.id, project=job.project, ended_at=record.ended_at))

    def _order_removals(self, file: QuotaFile | None, now: int) -> None:
        """Order the removal of outputs that are due or unwanted; repeated until it is observed."""
        for note in self._store.notes("outputs_removal"):
            record = self._store.job(note.subject)
            if record is not None:
                self._track(record)
                self._removing[note.subject] = replace(
                    self._retained[note.subject], requested_by=str(note.document["requested_by"])
                )
        keep_s = {each.name: each.storage.keep for each in file.projects} if file else {}
        for job, retained in self._retained.items():
            keep = keep_s.get(retained.project)
            if retained.removed_at is None and keep is not None and retained.ended_at + keep * 1000 <= now:
                self._removing.setdefault(job, retained)
        for job in self._removing:
            self._jobs.remove_outputs(job)

    def _measured(self, job: str, mib: int, now: int) -> RetainedOutputs:
        retained = self._removing.get(job, self._retained[job])
        if job in self._removing and mib == 0:
            del self._removing[job]
            return replace(retained, mib=0, removed_at=now)
        return replace(retained, mib=mib)

    def _record(self, changed: Iterable[RetainedOutputs], now: int) -> None:
        """Store what changed, and the space of each project for the API."""
        notes = [retained.note(now) for retained in changed]
        totals = Counter[str]()
        for retained in self._retained.values():
            totals[retained.project] += retained.mib or 0
        if totals != self._totals and (totals or self._totals):
            notes.append(Note(kind="retention", subject=OUTPUTS_TOTAL, at=now, document=dict(totals)))
        if notes:
            done: tuple[tuple[NoteKind, str], ...] = tuple(
                ("outputs_removal", retained.job) for retained in changed if retained.removed_at is not None
            )
            self._store.record([KeepNotes(notes=tuple(notes), over=done)], now=now, lease=self._leadership.lease)
            self._totals = totals
