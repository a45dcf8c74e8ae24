"""Lending the slice of an idle notebook: which may be lent, which are waking, and when one returns to the quota.

A lent slice stays booked: room for it is reserved on its device, where only borrowers run, and they stop within
``lent_grace_s`` when the notebook is used again. Unknown activity is never idle. Source: docs/scheduling.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import MS_PER_S, Activity, Notebook, NotebookState, Policy
from ..plan import Lend, Release
from ..reasons import LentWhileIdle, Reason, SliceReleased


def may_be_lent(notebook: Notebook, policy: Policy) -> bool:
    """Whether a booked slice may be lent: its notebook is idle, and nothing of it was seen on the device.

    Rule R59.
    """
    return notebook.state is NotebookState.BOOKED and _is_idle_and_empty(notebook, policy)


def is_waking(notebook: Notebook, policy: Policy) -> bool:
    """Whether a lent slice has to be returned: its notebook is in use, or is not known to be idle. Rule R60."""
    return notebook.state is NotebookState.LENT and not _is_idle_and_empty(notebook, policy)


def release_at(notebook: Notebook, policy: Policy) -> int | None:
    """When a slice that is lent returns to its project's notebook quota; None for one that is not lent. Rule R62."""
    if notebook.state is not NotebookState.LENT or notebook.lent_at is None:
        return None
    return notebook.lent_at + policy.lending.release_after_s * MS_PER_S


def lend_and_release(notebooks: Iterable[Notebook], policy: Policy, now: int) -> list[Lend | Release]:
    """The slices to lend now, and those to release because they were lent for long enough, in id order."""
    found: list[Lend | Release] = []
    for notebook in sorted(notebooks, key=lambda one: one.id):
        ends_at = release_at(notebook, policy)
        if may_be_lent(notebook, policy):
            found.append(Lend(workload=notebook.id, reason=_reason(notebook, LentWhileIdle, policy)))
        elif ends_at is not None and now >= ends_at and not is_waking(notebook, policy):
            found.append(Release(workload=notebook.id, reason=_reason(notebook, SliceReleased, policy)))
    return found


def _is_idle_and_empty(notebook: Notebook, policy: Policy) -> bool:
    return policy.lending.enabled and notebook.activity is Activity.IDLE and notebook.seen_empty


def _reason(notebook: Notebook, kind: type[LentWhileIdle | SliceReleased], policy: Policy) -> Reason:
    return kind(
        project=notebook.project,
        pool=notebook.pool,
        gpu_milli=notebook.gpu_milli,
        release_after_s=policy.lending.release_after_s,
        lent_grace_s=policy.preemption.lent_grace_s,
    )
