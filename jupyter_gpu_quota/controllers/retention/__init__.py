"""Retention: what ended long ago is removed from the store and from the backend, and so are unused code bundles.

The outputs of jobs are removed before that where the quota file limits them (:mod:`.output_retention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...backends.protocol import JobBackend
from ...quotafile import QuotaFile
from ...store.reads.quota_revision import in_force
from ...store.records.commands import ForgetGone
from ...store.transactions import Store
from ..leadership.lease import Leadership
from .output_retention import OutputRetention

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
EVERY_MS = 30_000
"""Often and little at a time: the removal of many rows at once would delay scheduling."""

BUNDLES_EVERY_MS = HOUR_MS


class BundleSweeper(Protocol):
    def sweep(self, keep: set[str]) -> object:
        """Remove the bundles that are neither in ``keep`` nor new."""


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
        self._file: tuple[int, QuotaFile | None] | None = None

    def run_once(self, now: int) -> int:
        """Remove what is due, at most 1,000 jobs. Raises LeaseLost and StoreUnavailable.

        The backend forgets a job first: a process that is killed in between leaves rows, and its successor repeats.
        """
        self.leadership.check()
        file = self._quota_file()
        ended_before = now - max(self.times.jobs_ms, self._past_use_ms(), file.keeps_outputs_s * 1000 if file else 0)
        jobs = self.store.ended_jobs(ended_before)
        for job in jobs:
            self.jobs.forget(job)
        self.leadership.check()
        forgotten = self.store.forget(
            now=now,
            jobs_ended_before=ended_before,
            samples_before=now - self.times.samples_ms,
            usage_before=now - self.times.usage_ms,
        )
        self._outputs.forget(forgotten)
        self.store.record([ForgetGone(gone_before=now - self.times.gone_ms)], now=now, lease=self.leadership.lease)
        if now >= self._bundles_at:
            self.bundles.sweep(self.store.bundles_in_use())
            self._bundles_at = now + BUNDLES_EVERY_MS
        return min(now + EVERY_MS, self._outputs.run_once(file, now) or now + EVERY_MS)

    def _quota_file(self) -> QuotaFile | None:
        """The quota file in force, read once for each revision."""
        found = self.store.quota()
        if found is None:
            return None
        if self._file is None or self._file[0] != found.revision:
            self._file = (found.revision, in_force(self.store, found).file)
        return self._file[1]

    def _past_use_ms(self) -> int:
        """The age of the oldest use that the order of the queue takes into account."""
        quota = self.store.quota()
        history = None if quota is None else quota.policy.history
        return 0 if history is None else history.window_s * 1000 + DAY_MS
