"""Retention: what ended long ago is removed from the store and from the backend, and so are unused code bundles.

The outputs of jobs are removed before that where the quota file limits them (:mod:`.output_retention`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ...backends.protocol import JobBackend
from ...store.reads.quota_revision import InForce, in_force
from ...store.records.commands import ForgetBundles, ForgetGone
from ...store.transactions import Store
from ...store.writes.retention import JOBS_AT_A_TIME
from ..leadership.lease import Leadership
from .output_retention import OutputRetention

log = logging.getLogger(__name__)

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
EVERY_MS = 30_000
"""Often and little at a time: the removal of many rows at once would delay scheduling."""

BUNDLES_EVERY_MS = HOUR_MS
BUNDLES_AT_A_TIME = 1_000


class BundleSweeper(Protocol):
    def sweep(self, keep: set[str]) -> object:
        """Remove the bundles that are neither in ``keep`` nor new."""

    def is_kept(self, digest: str) -> bool:
        """Whether a bundle is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionTimes:
    """How long each kind of record is kept after its end, in milliseconds."""

    jobs_ms: int = 30 * DAY_MS
    samples_ms: int = 2 * HOUR_MS
    usage_ms: int = 90 * DAY_MS
    gone_ms: int = 7 * DAY_MS


class Retention:
    """Runs in the thread of scheduling, which the job backend belongs to."""

    name = "retention"

    def __init__(
        self, store: Store, leadership: Leadership, jobs: JobBackend, bundles: BundleSweeper, times: RetentionTimes
    ) -> None:
        self.store, self.leadership, self.jobs, self.bundles, self.times = store, leadership, jobs, bundles, times
        self._bundles_at = 0
        self._outputs = OutputRetention(store, jobs, leadership)
        self._found: tuple[int, InForce] | None = None
        self._why_kept = ""
        self._after: tuple[int, str] | None = None
        """The last job of the last run, by its end and id; None: the next run begins with the first."""

    def run_once(self, now: int) -> int:
        """Remove what is due, at most 1,000 jobs. Raises LeaseLost and StoreUnavailable.

        The backend forgets a job first: a process that is killed in between leaves rows, and its successor repeats. No
        job is removed while the newest quota file cannot be read: it may keep jobs and outputs for longer.
        """
        self.leadership.check()
        found = self._in_force()
        keeps_ms = found.file.keeps_outputs_s * 1000 if found and found.file else 0
        ended_before = now - max(self.times.jobs_ms, self._past_use_ms(), keeps_ms)
        if found and found.fault:
            ended_before = 0
        jobs = self._forget_files(self._next_jobs(ended_before))
        self.leadership.check()
        forgotten = self.store.forget(
            now=now,
            jobs_ended_before=ended_before,
            jobs=jobs,
            samples_before=now - self.times.samples_ms,
            usage_before=now - self.times.usage_ms,
        )
        self._outputs.forget(forgotten)
        self.store.record([ForgetGone(gone_before=now - self.times.gone_ms)], now=now, lease=self.leadership.lease)
        next_at = self._outputs.run_once(found, now)
        if now >= self._bundles_at:
            self._sweep_bundles(now)
        return min(now + EVERY_MS, next_at or now + EVERY_MS)

    def _sweep_bundles(self, now: int) -> None:
        """Remove unused bundles, and the records of some that are gone; soon again where more of these are left.

        The records of bundles that jobs name stay: their volume may be missing.
        """
        in_use = self.store.bundles_in_use()
        self.bundles.sweep(in_use)
        owners = (each for each in self.store.bundle_owners() if each[0] not in in_use)
        gone = tuple(islice((each for each in owners if not self.bundles.is_kept(each[0])), BUNDLES_AT_A_TIME))
        if gone:
            self.store.record([ForgetBundles(bundles=gone, kept_before=now)], now=now, lease=self.leadership.lease)
        self._bundles_at = now + (EVERY_MS if len(gone) == BUNDLES_AT_A_TIME else BUNDLES_EVERY_MS)

    def _next_jobs(self, ended_before: int) -> list[str]:
        """The jobs to remove that follow those of the last run, or the first: jobs that stay delay no others."""
        found = self.store.ended_jobs(ended_before, self._after)
        last = found[-1] if len(found) == JOBS_AT_A_TIME else None
        self._after = None if last is None or last.ended_at is None else (last.ended_at, last.job.id)
        return [record.job.id for record in found]

    def _forget_files(self, jobs: Sequence[str]) -> list[str]:
        """Have the backend remove the data of jobs. Returns the jobs without data; the others stay for now."""
        kept = dict[str, str]()
        for job in jobs:
            try:
                self.jobs.forget(job)
            except OSError as error:
                kept[job] = str(error)
        why = min(kept.values(), default="")
        if why and why != self._why_kept:
            log.warning("%d ended jobs stay until their files can be removed: %s", len(kept), why)
        self._why_kept = why
        return [job for job in jobs if job not in kept]

    def _in_force(self) -> InForce | None:
        """The quota file in force, read and logged once for each revision."""
        newest = self.store.quota()
        if newest is None:
            return None
        if self._found is None or self._found[0] != newest.revision:
            self._found = (newest.revision, in_force(self.store, newest))
            if self._found[1].fault:
                log.error("no job and no output is removed after its time: %s", self._found[1].fault)
        return self._found[1]

    def _past_use_ms(self) -> int:
        """The age of the oldest use that the order of the queue takes into account."""
        quota = self.store.quota()
        history = None if quota is None else quota.policy.history
        return 0 if history is None else history.window_s * 1000 + DAY_MS
