"""Lending the slice of an idle notebook: who may be lent, who is waking, and when a slice goes back to its project.

A lent slice stays booked: room for it is held on its device, where only borrowers run, and they leave within
``lent_grace_s`` when its owner wakes. Unknown activity is never idle. Source: docs/scheduling.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import Activity, Notebook, NotebookState, Policy
from ..plan import Lend, Reason, ReasonCode, Release
from ..queue.quota_state import SECOND


def may_be_lent(notebook: Notebook, policy: Policy) -> bool:
    """Whether a booked slice may be lent: its notebook is idle, and nothing of it was seen on the device."""
    return notebook.state is NotebookState.BOOKED and _rests(notebook, policy)


def is_waking(notebook: Notebook, policy: Policy) -> bool:
    """Whether the owner of a lent slice wants it back; an owner of whom nothing is known is not idle."""
    return notebook.state is NotebookState.LENT and not _rests(notebook, policy)


def release_at(notebook: Notebook, policy: Policy) -> int | None:
    """When a slice that is lent returns to its project's notebook quota; None for one that is not lent."""
    if notebook.state is not NotebookState.LENT or notebook.lent_at is None:
        return None
    return notebook.lent_at + policy.lending.release_after_s * SECOND


def lend_and_release(notebooks: Iterable[Notebook], policy: Policy, now: int) -> list[Lend | Release]:
    """What becomes of idle slices, in id order: those that may be lent are, those lent for long enough are released."""
    found: list[Lend | Release] = []
    for notebook in sorted(notebooks, key=lambda one: one.id):
        ends_at = release_at(notebook, policy)
        if may_be_lent(notebook, policy):
            found.append(Lend(workload=notebook.id, reason=_reason(notebook, ReasonCode.LENT_WHILE_IDLE, policy)))
        elif ends_at is not None and now >= ends_at and not is_waking(notebook, policy):
            found.append(Release(workload=notebook.id, reason=_reason(notebook, ReasonCode.SLICE_RELEASED, policy)))
    return found


def _rests(notebook: Notebook, policy: Policy) -> bool:
    return policy.lending.enabled and notebook.activity is Activity.IDLE and notebook.seen_empty


def _reason(notebook: Notebook, code: ReasonCode, policy: Policy) -> Reason:
    figures: tuple[tuple[str, int | str], ...] = (
        ("project", notebook.project),
        ("pool", notebook.pool),
        ("gpu_milli", notebook.gpu_milli),
        ("release_after_s", policy.lending.release_after_s),
        ("lent_grace_s", policy.preemption.lent_grace_s),
    )
    return Reason(code=code, figures=figures)
