"""Notebooks for tests of idle classification: a quiet notebook, and changes of it."""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpu_quota.core.idle.activity import (
    GpuSample,
    IdlePolicy,
    KernelRecord,
    KernelState,
    NotebookActivity,
    ProgramKind,
    ProgramRecord,
)
from jupyter_gpu_quota.core.idle.classification import Classification, classify

NOW = 1_800_000_000_000
MINUTE = 60_000
POLICY = IdlePolicy()
QUIET = KernelRecord(
    id="k1", state=KernelState.IDLE, started_at=NOW - 200 * MINUTE, last_message_at=NOW - 100 * MINUTE, holds_gpu=True
)
CPU_ONLY = replace(QUIET, id="k2", holds_gpu=False)
TERMINAL = ProgramRecord(name="terminal 1", kind=ProgramKind.TERMINAL, holds_gpu=False)


def readings(minutes: int, *, percent: int | None = 0, until: int = NOW, every_s: int = 10) -> tuple[GpuSample, ...]:
    """A reading every so often up to an instant, all the same."""
    count = minutes * 60 // every_s
    return tuple(GpuSample(at=until - i * every_s * 1000, percent=percent) for i in range(count, -1, -1))


def reports(minutes: int, *, until: int = NOW, every_s: int = 30) -> tuple[int, ...]:
    return tuple(sample.at for sample in readings(minutes, until=until, every_s=every_s))


def quiet_notebook(**changes: object) -> NotebookActivity:
    """A notebook that holds memory and did nothing for 100 minutes, observed without a gap; with these changes."""
    found = NotebookActivity(
        notebook="nb",
        started_at=NOW - 200 * MINUTE,
        samples=readings(60),
        reports=reports(60),
        kernels=(QUIET,),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def used(samples: tuple[GpuSample, ...], *, minutes_ago: int, by: str = "") -> tuple[GpuSample, ...]:
    """The same readings, one of them with use."""
    at = NOW - minutes_ago * MINUTE
    users = (by,) if by else ()
    return tuple(replace(s, percent=40, users=users) if s.at == at else s for s in samples)


def without(samples: tuple[GpuSample, ...], first: int, last: int) -> tuple[GpuSample, ...]:
    """Readings less those from ``first`` to ``last`` minutes ago."""
    return tuple(s for s in samples if not NOW - first * MINUTE <= s.at < NOW - last * MINUTE)


def classification(
    activity: NotebookActivity, *, waiting: bool = True, policy: IdlePolicy = POLICY, now: int = NOW
) -> Classification:
    return classify(activity, policy, waiting=waiting, now=now)
