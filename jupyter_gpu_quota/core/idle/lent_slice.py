"""Whether the owner of a lent slice leaves the GPU alone, so that the loan may go on.

That it was idle for long enough was known when the loan began. From then on every look must show, by facts that are
fresh, that nothing of the owner is on the device and nobody asks for it; whoever works beside it, in a kernel without
the GPU, does not end it. Source: docs/idle.md.
"""

from __future__ import annotations

from .activity import IdlePolicy, NotebookActivity
from .state_machine import Freed, Stage, Stopping


def rests(stage: Stage, activity: NotebookActivity, policy: IdlePolicy, *, empty: bool | None, now: int) -> bool | None:
    """True where the loan may go on, False for any sign that the owner wants its GPU; None where that is not known.

    ``empty``: whether the newest readings show nothing of the owner on the device.
    """
    if not isinstance(stage, Freed | Stopping) or empty is False or _is_used(activity):
        return False
    return True if empty and _is_seen(activity, policy, now) else None


def _is_used(activity: NotebookActivity) -> bool:
    """Whether the newest facts, however old, show a use or a hold."""
    newest = next((sample for sample in reversed(activity.samples) if sample.percent is not None), None)
    in_use = newest is not None and bool(newest.percent)
    return in_use or any(kernel.holds_gpu for kernel in activity.kernels or ())


def _is_seen(activity: NotebookActivity, policy: IdlePolicy, now: int) -> bool:
    """Whether reports and readings go on, and tell of every kernel whether it holds the GPU."""
    known = [sample.at for sample in activity.samples if sample.percent is not None]
    reported = activity.reports[-1:] and 0 <= now - activity.reports[-1] <= policy.hole_ms(policy.report_every_s)
    read = known and 0 <= now - known[-1] <= policy.hole_ms(policy.sample_every_s)
    told = activity.kernels is not None and all(kernel.holds_gpu is not None for kernel in activity.kernels)
    return bool(reported and read and told)


def patience_ms(policy: IdlePolicy) -> int:
    """How long facts may be missing before a loan ends: as long as they may be in any judgement."""
    return max(policy.hole_ms(policy.report_every_s), policy.hole_ms(policy.sample_every_s))
