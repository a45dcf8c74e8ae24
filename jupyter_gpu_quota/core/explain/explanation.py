"""The records of an explanation: why a workload waits, and the single changes that would start it.

Source: docs/scheduling.md, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..reasons import Reason
from .rank_check import UncheckedRank


class ChangeKind(StrEnum):
    """The kinds of changes that could start a workload."""

    FREED = "freed"
    QUOTA = "quota"
    LIMIT = "limit"
    USER_CEILING = "user_ceiling"
    POOL = "pool"
    PREEMPTIBLE = "preemptible"
    GPU_MODEL = "gpu_model"
    SIZE = "size"
    TIME_LIMIT = "time_limit"
    CALENDAR = "calendar"


class AmountKind(StrEnum):
    """The amounts of a project or department that can keep a workload waiting."""

    TRAINING_QUOTA = "training_quota"
    NOTEBOOK_QUOTA = "notebook_quota"
    LIMIT = "limit"
    USER_CEILING = "user_ceiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAmount:
    """One amount of a project or department in a pool. ``window``: the open calendar window that sets it, if any."""

    kind: AmountKind
    owner: str
    is_department: bool
    pool: str
    window: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A single change that starts the workload, of those of its kind the smallest.

    ``by_milli``: its size, 0 where it has none. ``to_milli``: the new amount, capacity or request, None where there is
    none. ``amount``: which one is raised. ``ends``: the work whose end frees ``by_milli``; ``any_ends``: so does every
    other set of running work with that much; ``started_first``: the waiting work that starts before it then in every
    such way, and without which less would do. ``model``: the GPU model that a pool gains, or that the job would accept,
    "" for any. ``gpu_milli`` and ``ranks``: a smaller request; ``time_limit_s``: a shorter time limit. ``at`` and
    ``windows``: when the calendar brings other amounts, and the windows that open or close then.
    ``by_resubmission``: a job submitted anew, with this changed, would start, too. ``is_smallest``: every smaller
    change of the kind was tried, of an amount every multiple of what all amounts of the pool are multiples of; False
    where these are too many, or the pool is large.
    ``is_minimal``: one milli less, or one workload less, would not do; False where the bound on the work ended the
    search before.
    """

    kind: ChangeKind
    pool: str
    by_milli: int
    to_milli: int | None
    amount: OwnerAmount | None = None
    ends: tuple[str, ...] = ()
    any_ends: bool = False
    started_first: tuple[str, ...] = ()
    model: str | None = None
    gpu_milli: int | None = None
    ranks: int | None = None
    time_limit_s: int | None = None
    at: int | None = None
    windows: tuple[str, ...] = ()
    by_resubmission: bool = True
    is_smallest: bool = True
    is_minimal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTooHigh:
    """A quota that would start the workload, but that does not fit beside the other quotas of the pool.

    ``windows``: the calendar windows that are open when it does not fit, from ``begins_at`` on; empty and None if it
    does not fit beside the amounts without a window.
    """

    change: Change
    needed_milli: int
    available_milli: int
    windows: tuple[str, ...] = ()
    begins_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaInForce:
    """A training quota of which only a part is in force: other work, or missing devices, leave no room for the rest."""

    owner: str
    is_department: bool
    pool: str
    set_milli: int
    in_force_milli: int


class Outlook(StrEnum):
    """The decision of the next plan about the workload."""

    NOT_WAITING = "not waiting"  # it runs, is held or has ended
    STARTS = "starts"  # it starts, or has devices reserved
    WAITS = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a workload waits or runs. ``estimate_at``: the start by the time limits, None if they give none.

    ``is_bound``: this is a planned start that no other work can delay.
    ``unchecked``: its rank, where that fits the quota and relies on moves because no checked shape covers it.
    ``set_by_windows``: the amounts it is measured by that open calendar windows set, without those in the changes.
    ``in_force``: the quotas it is measured by that are in force only in part.
    ``ended_early``: the kinds of changes whose search the bound on the work ended; none of such a kind may be found
    although there is one, or one that is not the smallest.
    """

    workload: str
    state: str
    outlook: Outlook
    reason: Reason | None
    would_start: tuple[Change, ...] = ()
    quota_too_high: QuotaTooHigh | None = None
    unchecked: UncheckedRank | None = None
    set_by_windows: tuple[OwnerAmount, ...] = ()
    in_force: tuple[QuotaInForce, ...] = ()
    estimate_at: int | None = None
    is_bound: bool = False
    ended_early: tuple[ChangeKind, ...] = ()
