"""Jobs without data that they may still use, or without their code: they are held before they start."""

from __future__ import annotations

from collections.abc import Callable

from ...core.lifecycle import WAITING
from ...core.model import JobState, JobTarget
from ...core.reasons import CodeUnavailable
from ...quotafile import QuotaFile
from ..records.commands import ChangeJob
from .snapshot import Mirror

ACTOR = "system:controller"


def holds_without_data(mirror: Mirror, file: QuotaFile, now: int) -> list[ChangeJob]:
    """The holds of all waiting jobs whose data ended, is not in the quota file, or has other groups there."""
    found: dict[str, ChangeJob] = {}
    for (name, groups), jobs in mirror.jobs_with_data.items():
        why = file.data_refusal(name, groups, now)
        for job in jobs if why is not None else ():
            record = mirror.jobs[job]
            if record.job.state in WAITING and record.job.target is JobTarget.RUNNING:
                found[job] = ChangeJob(job=job, actor=ACTOR, change="hold", why=why)
    return list(found.values())


def holds_without_code(mirror: Mirror, has_code: Callable[[str, str], bool]) -> list[ChangeJob]:
    """The holds of all jobs that wait, or are about to start, and whose code is gone."""
    return [
        ChangeJob(job=job, actor=ACTOR, change="hold", why=CodeUnavailable())
        for job, record in mirror.jobs.items()
        if record.job.state in WAITING | {JobState.STARTING} and record.job.target is JobTarget.RUNNING
        and record.spec.bundle is not None and not has_code(job, record.spec.bundle)
    ]  # fmt: skip
