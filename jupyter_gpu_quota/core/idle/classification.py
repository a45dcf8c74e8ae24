"""Idle classification: whether a notebook's GPU is busy, idle or unknown, with the binding reason and since when.

Idle needs both, without a gap in the evidence: no process of the notebook used the GPU for long enough, and every
kernel was idle without a message for long enough. Any missing fact makes it unknown, and unknown is never idle.
Source: docs/idle.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from .activity import GpuSample, IdlePolicy, KernelState, NotebookActivity
from .unused_stretch import StretchBoundary, UnusedStretch, find_unused_stretch

Figures = tuple[tuple[str, int | str], ...]


class IdleReason(StrEnum):
    """Why a notebook is classified as it is; the same word in REST, pages, events, logs and audit."""

    # busy
    GPU_IN_USE = "gpu_in_use"
    KERNEL_BUSY = "kernel_busy"
    RECENT_GPU_USE = "recent_gpu_use"
    RECENT_MESSAGE = "recent_message"
    RECENT_START = "recent_start"
    KEPT = "kept"
    ASKED = "asked"
    # unknown
    NO_REPORT = "no_report"
    REPORTS_STOPPED = "reports_stopped"
    KERNEL_UNKNOWN = "kernel_unknown"
    START_UNKNOWN = "start_unknown"
    JUST_STARTED = "just_started"
    NO_READING = "no_reading"
    READINGS_STOPPED = "readings_stopped"
    TOO_FEW_READINGS = "too_few_readings"
    TOO_FEW_REPORTS = "too_few_reports"
    GAP = "gap"
    CLOCK_MOVED = "clock_moved"
    HOLDER_UNKNOWN = "holder_unknown"
    # idle
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """In use, or used too recently. ``since``: when that began, as far as is known.

    ``idle_at``: when it becomes idle if nothing else happens; None while it is in use. ``unused_since``: of a busy
    kernel that does not use the GPU, since when; None otherwise.
    """

    reason: IdleReason
    since: int
    figures: Figures = ()
    idle_at: int | None = None
    unused_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Unused ``since`` then. ``kernels`` have memory on the GPU: they would have to end for it to be free.

    ``others``: terminals and proxied programs that may have memory on it; it is not free before they end.
    """

    since: int
    kernels: tuple[str, ...]
    others: tuple[str, ...] = ()
    figures: Figures = ()
    reason: IdleReason = IdleReason.UNUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A fact that idleness depends on is not known: never idle."""

    reason: IdleReason
    figures: Figures = ()


Classification = Busy | Idle | Unknown


class _Evidence:
    """The evidence about one notebook at one instant; a stretch is computed when a rule needs it."""

    def __init__(self, activity: NotebookActivity, policy: IdlePolicy, *, waiting: bool, now: int) -> None:
        self.activity, self.policy, self.now = activity, policy, now
        self.kernels = activity.kernels or ()
        self.gpu_ms = policy.gpu_after_s(waiting=waiting) * 1000
        self.kernel_ms = policy.kernel_after_s(waiting=waiting) * 1000
        self.both_ms = max(self.gpu_ms, self.kernel_ms)

    @cached_property
    def gpu(self) -> UnusedStretch:
        every_s = self.policy.sample_every_s
        return find_unused_stretch(
            self.activity.samples, every_ms=every_s * 1000, max_gap_ms=self.policy.max_gap_ms(every_s)
        )

    @cached_property
    def reported(self) -> UnusedStretch:
        every_s = self.policy.report_every_s
        reports = [GpuSample(at=at, percent=0) for at in self.activity.reports]
        return find_unused_stretch(reports, every_ms=every_s * 1000, max_gap_ms=self.policy.max_gap_ms(every_s))

    @property
    def reported_at(self) -> int | None:
        """When the newest report arrived."""
        return self.activity.reports[-1] if self.activity.reports else None

    @property
    def newest(self) -> GpuSample | None:
        """The newest reading, known or not."""
        return self.activity.samples[-1] if self.activity.samples else None

    def fresh(self, at: int | None, every_s: int) -> bool:
        """Whether a periodic series, whose newest entry is of ``at``, has not stopped."""
        return at is not None and self.now - at <= self.policy.max_gap_ms(every_s)


def classify(activity: NotebookActivity, policy: IdlePolicy, *, waiting: bool, now: int) -> Classification:
    """Classify one notebook at ``now``. ``waiting``: work waits for a GPU, and this one would serve it.

    The first rule that applies decides: a clock jump; observed use; missing facts; recent use.
    """
    case = _Evidence(activity, policy, waiting=waiting, now=now)
    found = (rule(case) for rule in RULES)
    return next((classification for classification in found if classification is not None), None) or _idle(case)


# --- the clock ----------------------------------------------------------------------------------------------------
def _clock_moved(case: _Evidence) -> Classification | None:
    ahead = max(_instants(case.activity), default=case.now) - case.now
    return Unknown(reason=IdleReason.CLOCK_MOVED, figures=(("ahead_ms", ahead),)) if ahead > 0 else None


def _instants(activity: NotebookActivity) -> Iterator[int]:
    """The instants that must not be in the future; of a series only the newest one."""
    yield from (sample.at for sample in activity.samples[-1:])
    yield from activity.reports[-1:]
    kernels = activity.kernels or ()
    maybe = [*(k.last_message_at for k in kernels), *(k.started_at for k in kernels)]
    maybe += [*(p.used_gpu_at for p in activity.programs), activity.kept_at, activity.started_at]
    maybe.append(activity.asked_at)
    yield from (at for at in maybe if at is not None)


# --- observed use --------------------------------------------------------------------------------------------------
def _gpu_in_use(case: _Evidence) -> Classification | None:
    newest = case.newest
    if newest is None or not newest.percent or not case.fresh(newest.at, case.policy.sample_every_s):
        return None
    figures: Figures = (("percent", newest.percent), ("users", ", ".join(newest.users)))
    return Busy(reason=IdleReason.GPU_IN_USE, since=newest.at, figures=figures)


def _kernel_busy(case: _Evidence) -> Classification | None:
    busy = [kernel for kernel in case.kernels if kernel.state is KernelState.BUSY]
    reported_at = case.reported_at
    if not busy or reported_at is None or not case.fresh(reported_at, case.policy.report_every_s):
        return None
    since = min(kernel.last_message_at or reported_at for kernel in busy)
    figures: Figures = (("kernels", ", ".join(sorted(kernel.id for kernel in busy))),)
    unused = case.gpu.since if case.fresh(case.gpu.until, case.policy.sample_every_s) else None
    return Busy(reason=IdleReason.KERNEL_BUSY, since=since, figures=figures, unused_since=unused)


# --- missing facts ------------------------------------------------------------------------------------------------
def _no_report(case: _Evidence) -> Classification | None:
    reported_at = case.reported_at
    if case.activity.kernels is None or reported_at is None:
        return Unknown(reason=IdleReason.NO_REPORT)
    if not case.fresh(reported_at, case.policy.report_every_s):
        silent_s = (case.now - reported_at) // 1000
        return Unknown(reason=IdleReason.REPORTS_STOPPED, figures=(("silent_s", silent_s),))
    return None


def _kernel_unknown(case: _Evidence) -> Classification | None:
    for kernel in case.kernels:
        if None in (kernel.state, kernel.last_message_at, kernel.started_at):
            return Unknown(reason=IdleReason.KERNEL_UNKNOWN, figures=(("kernel", kernel.id),))
    return None


def _start(case: _Evidence) -> Classification | None:
    started = case.activity.started_at
    if started is None:
        return Unknown(reason=IdleReason.START_UNKNOWN)
    for_s = (case.now - started) // 1000
    if for_s < case.policy.grace_s:
        return Unknown(reason=IdleReason.JUST_STARTED, figures=(("for_s", for_s), ("grace_s", case.policy.grace_s)))
    return None


def _no_reading(case: _Evidence) -> Classification | None:
    newest = case.newest
    why = newest.why if newest and newest.percent is None and newest.why else "no reading came"
    known = next((sample.at for sample in reversed(case.activity.samples) if sample.percent is not None), None)
    if known is None:
        return Unknown(reason=IdleReason.NO_READING, figures=(("why", why),))
    if not case.fresh(known, case.policy.sample_every_s):
        silent_s = (case.now - known) // 1000
        return Unknown(reason=IdleReason.READINGS_STOPPED, figures=(("silent_s", silent_s), ("why", why)))
    return None


def _holder_unknown(case: _Evidence) -> Classification | None:
    unknown = [kernel.id for kernel in case.kernels if kernel.holds_gpu is None]
    return Unknown(reason=IdleReason.HOLDER_UNKNOWN, figures=(("name", unknown[0]),)) if unknown else None


# --- recent use, or too little evidence ---------------------------------------------------------------------------
def _recent_gpu_use(case: _Evidence) -> Classification | None:
    used = [program.used_gpu_at for program in case.activity.programs if program.used_gpu_at is not None]
    if case.gpu.use is not None:
        used.append(case.gpu.use.at if case.gpu.since is None else case.gpu.since)
    return _too_recent(case, IdleReason.RECENT_GPU_USE, max(used, default=None), case.gpu_ms)


def _recent_message(case: _Evidence) -> Classification | None:
    messages = [kernel.last_message_at for kernel in case.kernels if kernel.last_message_at is not None]
    return _too_recent(case, IdleReason.RECENT_MESSAGE, max(messages, default=None), case.kernel_ms)


def _recent_start(case: _Evidence) -> Classification | None:
    starts = [at for at in (case.activity.started_at, *(k.started_at for k in case.kernels)) if at is not None]
    return _too_recent(case, IdleReason.RECENT_START, max(starts, default=None), case.both_ms)


def _postponed(case: _Evidence) -> Classification | None:
    return _too_recent(case, IdleReason.KEPT, case.activity.kept_at, case.both_ms)


def _gpu_requested(case: _Evidence) -> Classification | None:
    return _too_recent(case, IdleReason.ASKED, case.activity.asked_at, max(case.both_ms, ASKED_MS))


ASKED_MS = 30_000
"""A kernel that requested the GPU has at least this long to start and be reported, whatever the policy's waits are."""


def _too_recent(case: _Evidence, reason: IdleReason, at: int | None, for_ms: int) -> Classification | None:
    if at is None or case.now - at >= for_ms:
        return None
    figures: Figures = (("for_s", (case.now - at) // 1000), ("needed_s", for_ms // 1000))
    return Busy(reason=reason, since=at, figures=(*figures, *_shorter_wait(case, reason, for_ms)), idle_at=at + for_ms)


def _shorter_wait(case: _Evidence, reason: IdleReason, for_ms: int) -> Figures:
    """The figure for the shorter wait that applies while work waits for the GPU; empty where it is not shorter."""
    policy, least_s = case.policy, ASKED_MS // 1000 if reason is IdleReason.ASKED else 0
    gpu_s, kernel_s = policy.gpu_after_s(waiting=True), policy.kernel_after_s(waiting=True)
    takes_s = {IdleReason.RECENT_GPU_USE: gpu_s, IdleReason.RECENT_MESSAGE: kernel_s}
    sooner_s = takes_s.get(reason, max(gpu_s, kernel_s, least_s))
    return (("waited_for_s", sooner_s),) if sooner_s * 1000 < for_ms else ()


def _few_readings(case: _Evidence) -> Classification | None:
    return _seen(case, case.gpu, case.gpu_ms, case.policy.sample_every_s, IdleReason.TOO_FEW_READINGS)


def _few_reports(case: _Evidence) -> Classification | None:
    return _seen(case, case.reported, case.kernel_ms, case.policy.report_every_s, IdleReason.TOO_FEW_REPORTS)


def _seen(case: _Evidence, stretch: UnusedStretch, for_ms: int, every_s: int, few: IdleReason) -> Classification | None:
    """Unknown unless a stretch reaches back far enough, and enough of it is covered."""
    seen_ms = 0 if stretch.since is None else case.now - stretch.since
    if stretch.since is None or seen_ms < for_ms:
        reason = {StretchBoundary.GAP: IdleReason.GAP, StretchBoundary.JUMP: IdleReason.CLOCK_MOVED}.get(
            stretch.boundary, few
        )
        return Unknown(reason=reason, figures=(("seen_s", seen_ms // 1000), ("needed_s", for_ms // 1000)))
    missing_ms = stretch.missing_ms(now=case.now, for_ms=for_ms, every_ms=every_s * 1000)
    if 100 * (for_ms - missing_ms) < case.policy.coverage_percent * for_ms:
        seen = (for_ms - missing_ms) * 100 // for_ms
        return Unknown(reason=few, figures=(("seen_percent", seen), ("needed_percent", case.policy.coverage_percent)))
    return None


RULES: tuple[Callable[[_Evidence], Classification | None], ...] = (
    _clock_moved,
    _gpu_in_use,
    _kernel_busy,
    _no_report,
    _kernel_unknown,
    _start,
    _no_reading,
    _holder_unknown,
    _recent_message,
    _postponed,
    _gpu_requested,
    _recent_start,
    _recent_gpu_use,
    _few_readings,
    _few_reports,
)
"""In this order; a notebook to which none applies is idle."""


def _idle(case: _Evidence) -> Idle:
    activity, gpu = case.activity, case.gpu
    assert gpu.since is not None
    assert activity.started_at is not None
    messages = [kernel.last_message_at for kernel in case.kernels if kernel.last_message_at is not None]
    since = max([gpu.since, activity.started_at, *messages, *([activity.kept_at] if activity.kept_at else [])])
    return Idle(
        since=since,
        kernels=tuple(sorted(kernel.id for kernel in case.kernels if kernel.holds_gpu)),
        others=tuple(sorted(program.name for program in activity.programs if program.holds_gpu is not False)),
        figures=(("for_s", (case.now - since) // 1000),),
    )


def continued(found: Classification, before: Classification, *, before_at: int, now: int) -> Classification:
    """A classification as idle with the beginning of the one before, where nothing happened in between.

    Evidence is kept only for as long as a classification needs it. ``before_at``: the instant of the one before.
    """
    if not isinstance(found, Idle) or not isinstance(before, Idle) or not before.since < found.since <= before_at:
        return found
    return replace(found, since=before.since, figures=(("for_s", (now - before.since) // 1000),))
