"""Sentences of idle detection: why a notebook is busy or idle, and the next step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import assert_never

from ..core.idle.activity import IdleMode
from ..core.idle.classification import Classification, IdleReason
from ..core.idle.state_machine import Freed, Freeing, InUse, MachineState, Reported, Stopping, Warned

WHY = {
    IdleReason.GPU_IN_USE: "The GPU is in use.",
    IdleReason.KERNEL_BUSY: "A kernel is busy or starting; such a kernel is never shut down.",
    IdleReason.RECENT_GPU_USE: "The GPU was used {for_s} ago",
    IdleReason.RECENT_MESSAGE: "A kernel was used {for_s} ago",
    IdleReason.RECENT_START: "It was started {for_s} ago",
    IdleReason.KEPT: "A user postponed the warning {for_s} ago",
    IdleReason.ASKED: "A kernel requested the GPU {for_s} ago",
    IdleReason.NO_REPORT: "Its server does not report what its kernels do, so it never counts as idle.",
    IdleReason.REPORTS_STOPPED: "Its server has not reported for {silent_s}, so it does not count as idle.",
    IdleReason.KERNEL_UNKNOWN: "The state of a kernel is unknown, so it does not count as idle.",
    IdleReason.START_UNKNOWN: "The start of its server is unknown, so it does not count as idle.",
    IdleReason.JUST_STARTED: "Its server started {for_s} ago; idle detection begins after {grace_s}.",
    IdleReason.NO_READING: "Its use of the GPU is unknown ({why}), so it does not count as idle.",
    IdleReason.READINGS_STOPPED: "Its GPU was not sampled for {silent_s} ({why}), so it does not count as idle.",
    IdleReason.TOO_FEW_READINGS: "There are too few samples of its GPU, so it does not count as idle.",
    IdleReason.TOO_FEW_REPORTS: "There are too few reports of its server, so it does not count as idle.",
    IdleReason.GAP: "Samples or reports are missing, so it does not count as idle before {needed_s} without a gap.",
    IdleReason.CLOCK_MOVED: "The clock was set, so it does not count as idle until it was observed for long enough.",
    IdleReason.HOLDER_UNKNOWN: "The kernel that uses the GPU is unknown, so it does not count as idle.",
    IdleReason.UNUSED: "It has been unused for {for_s}.",
}
"""One sentence for each reason; figures that end in _s are durations. :data:`RECENT` are continued."""

RECENT = frozenset(
    {
        IdleReason.RECENT_GPU_USE,
        IdleReason.RECENT_MESSAGE,
        IdleReason.RECENT_START,
        IdleReason.KEPT,
        IdleReason.ASKED,
    }
)
"""Use that is too recent. The sentence also says when the notebook is idle, unless its GPU is free already."""


NOTICE = "It has not used the GPU for a long time: stop what it does not need, or shut the kernel down."
"""For a busy kernel that does not use the GPU, if the policy sets ``busy_notify_after``; nothing is freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionState:
    """The suspension of idle kernels, if the policy has ``suspend``.

    ``can``: the server can suspend kernels, otherwise ``why_not`` is the reason. ``suspended``: number of suspended
    kernels.
    """

    can: bool = False
    why_not: str = ""
    suspended: int = 0


def idle_sentence(
    classification: Classification,
    state: MachineState,
    mode: IdleMode,
    now: int,
    suspension: SuspensionState | None = None,
) -> str:
    """Why a notebook is busy or idle, and the next step. ``suspension`` None: its
    kernels are shut down, never suspended."""
    figures = {name: duration(int(value)) if name.endswith("_s") else value for name, value in classification.figures}
    return f"{_cause_text(classification, figures, state)} {_next_step_text(state, mode, now, suspension)}".strip()


def _cause_text(classification: Classification, figures: dict[str, int | str], state: MachineState) -> str:
    if classification.reason is IdleReason.GPU_IN_USE and figures.get("users"):
        return f"The GPU is in use by {figures['users']}."
    words = WHY[classification.reason].format_map(defaultdict(lambda: "some time", figures))
    if classification.reason not in RECENT:
        return words
    return words + ("." if isinstance(state, Freed | Stopping) else _until_idle_text(classification.reason, figures))


def _until_idle_text(reason: IdleReason, figures: dict[str, int | str]) -> str:
    """The time until it is idle, and that time while other work waits for a GPU, which may begin at any moment."""
    begins = "that lasts for" if reason is IdleReason.KEPT else "it counts as idle after"
    soon = f" ({figures['waited_for_s']} while other work waits for a GPU)" if "waited_for_s" in figures else ""
    return f"; {begins} {figures.get('needed_s', 'some time')}{soon}."


def _next_step_text(state: MachineState, mode: IdleMode, now: int, suspension: SuspensionState | None) -> str:
    match state:
        case InUse():
            return "" if state.notified_at is None else NOTICE
        case Reported():
            return "The GPU is not freed: the policy only reports." if mode is IdleMode.REPORT else ""
        case Warned():
            left = duration(max(0, state.until - now) // 1000)
            effect = _shutdown_text(suspension)
            return f"In {left} its kernels that use the GPU are {effect} Run a cell, or keep it, to prevent that."
        case Freeing():
            how = "suspended, or shut down where they cannot be" if suspension and suspension.can else "shut down"
            return f"Its kernels that use the GPU are being {how}."
        case Freed():
            return _freed_text(suspension)
        case Stopping():
            return "Its server is being stopped."
        case _:
            assert_never(state)


def _shutdown_text(suspension: SuspensionState | None) -> str:
    """The effect on kernels and their variables."""
    if suspension is None:
        return "shut down and their variables are lost."
    if not suspension.can:
        return f"shut down and their variables are lost: they cannot be suspended ({suspension.why_not})."
    return (
        "suspended: their variables are kept, and each gets its GPU back with its next cell. "
        "One that cannot be suspended is shut down, and its variables are lost."
    )


def _freed_text(suspension: SuspensionState | None) -> str:
    lives = (
        "None of its kernels uses a GPU; its server continues, its files are kept, and a new kernel gets the GPU again."
    )
    if suspension is None or not suspension.suspended:
        return lives
    return (
        f"{lives} Suspended kernels: {suspension.suspended}; each keeps its variables and resumes with its next cell."
    )


def duration(seconds: int) -> str:
    """A duration as text, in its largest fitting unit."""
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds // size} {name}{'s' if seconds >= 2 * size else ''}"
    return f"{seconds} second{'s' if seconds != 1 else ''}"
