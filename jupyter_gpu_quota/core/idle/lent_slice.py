"""Whether a slice may stay lent, because its notebook does not use the GPU.

The notebook had been idle for long enough when the slice was lent. From then on every check must show, by recent facts,
that no process of the notebook is on the device and no kernel requests it. Work in a kernel without the GPU does not
end the lending. Source: docs/idle.md.
"""

from __future__ import annotations

from .activity import IdlePolicy, NotebookActivity
from .state_machine import Freed, MachineState, Stopping


def may_stay_lent(
    state: MachineState, activity: NotebookActivity, policy: IdlePolicy, *, empty: bool | None, now: int
) -> bool | None:
    """True where the slice may stay lent, False where anything shows that the notebook needs it, None where unknown.

    ``empty``: whether the newest known readings show nothing of the notebook on the device.
    """
    if not isinstance(state, Freed | Stopping) or empty is False or _is_used(activity):
        return False
    return True if empty and _is_seen(activity, policy, now) else None


def _is_used(activity: NotebookActivity) -> bool:
    """Whether the newest facts, however old, show a use or memory on the GPU."""
    newest = next((sample for sample in reversed(activity.samples) if sample.percent is not None), None)
    in_use = newest is not None and bool(newest.percent)
    return in_use or any(kernel.holds_gpu for kernel in activity.kernels or ())


def _is_seen(activity: NotebookActivity, policy: IdlePolicy, now: int) -> bool:
    """Whether reports and readings are recent, and complete for every kernel."""
    known = [sample.at for sample in activity.samples if sample.percent is not None]
    reported = activity.reports[-1:] and 0 <= now - activity.reports[-1] <= policy.max_gap_ms(policy.report_every_s)
    read = known and 0 <= now - known[-1] <= policy.max_gap_ms(policy.sample_every_s)
    is_complete = activity.kernels is not None and all(kernel.holds_gpu is not None for kernel in activity.kernels)
    return bool(reported and read and is_complete)


def evidence_timeout_ms(policy: IdlePolicy) -> int:
    """How long reports or readings may be missing before lending ends; the same as for a classification."""
    return max(policy.max_gap_ms(policy.report_every_s), policy.max_gap_ms(policy.sample_every_s))
