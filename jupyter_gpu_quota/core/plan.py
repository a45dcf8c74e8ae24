"""What ``decide`` answers: ordered actions, each with the reason that people are shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .frozen import quickly_made
from .model import JobTarget, Placement


class ReasonCode(StrEnum):
    """Why a thing was done, or is not done yet; the same word in REST, pages, events, logs and audit."""

    # started
    WITHIN_GUARANTEE = "within_guarantee"
    WITHIN_FAIR_SHARE = "within_fair_share"
    IDLE_SURPLUS = "idle_surplus"
    BORROWS_NOTEBOOK_QUOTA = "borrows_notebook_quota"
    WITHIN_NOTEBOOK_QUOTA = "within_notebook_quota"
    # paused or stopped
    RECLAIMED = "reclaimed"
    FAIR_SHARE_RECLAIMED = "fair_share_reclaimed"
    PREEMPTED_IN_PROJECT = "preempted_in_project"
    BORROWER_RETURNS = "borrower_returns"
    MOVED = "moved"
    SHRUNK = "shrunk"
    GROWN = "grown"
    TIME_LIMIT = "time_limit"
    RANK_FAILED = "rank_failed"
    HELD_BY_PERSON = "held_by_person"
    CANCELLED_BY_PERSON = "cancelled_by_person"
    OVER_ITS_SHARE = "over_its_share"
    HELD_TOO_WEAKLY = "held_too_weakly"
    NOTHING_HOLDS_IT = "nothing_holds_it"
    STOPPED_OVER_SHARE = "stopped_over_share"
    STOPPED_TOO_WEAK = "stopped_too_weak"
    STOPPED_IDLE = "stopped_idle"
    DEVICE_UNHEALTHY = "device_unhealthy"
    NODE_DRAINED = "node_drained"
    DRAIN_DEADLINE = "drain_deadline"
    # kept until it ends
    PROJECT_GONE = "project_gone"
    POOL_GONE = "pool_gone"
    # lent and released
    LENT_WHILE_IDLE = "lent_while_idle"
    SLICE_RELEASED = "slice_released"
    # waiting or refused
    NO_FREE_GPU = "no_free_gpu"
    WAITS_FOR_DRAIN = "waits_for_drain"
    BEHIND_OTHERS = "behind_others"
    PLACE_KEPT = "place_kept"
    ABOVE_FAIR_SHARE = "above_fair_share"
    ABOVE_LIMIT = "above_limit"
    ABOVE_TRAINING_QUOTA = "above_training_quota"
    ABOVE_NOTEBOOK_QUOTA = "above_notebook_quota"
    ABOVE_USER_CEILING = "above_user_ceiling"
    VICTIMS_PROTECTED = "victims_protected"
    PAUSES_USED_UP = "pauses_used_up"
    DEVICE_QUARANTINED = "device_quarantined"
    DEVICES_OUT = "devices_out"
    NEVER_FITS = "never_fits"
    NO_SUCH_PROJECT = "no_such_project"
    NO_SUCH_POOL = "no_such_pool"
    NO_DEVICE = "no_device"
    # reservations dropped
    CLAIM_ENDED = "claim_ended"
    RESERVED_DEVICE_LOST = "reserved_device_lost"
    DRAIN_TAKEN_OVER = "drain_taken_over"


HELD_BY_ENFORCEMENT = frozenset({ReasonCode.OVER_ITS_SHARE, ReasonCode.HELD_TOO_WEAKLY, ReasonCode.NOTHING_HOLDS_IT})
"""Of a job that is held: not a person held it, and this stays why while it is asked to leave."""

SERVER_STOPPED = frozenset({ReasonCode.STOPPED_OVER_SHARE, ReasonCode.STOPPED_TOO_WEAK, ReasonCode.STOPPED_IDLE})
"""Of a notebook: the service had the hub stop its server, and this stays why after its slice went back."""

RESIZED = frozenset({ReasonCode.SHRUNK, ReasonCode.GROWN})
"""Of a pause: the job goes on at once with other ranks, and it counts in no limit of pauses."""

GOES_ON = RESIZED | {ReasonCode.MOVED}
"""Of a pause: the job goes on at once, in a place that the same plan reserves for it."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A code and the figures behind it, in the order they are told; :func:`.explain.sentence` says it in words."""

    code: ReasonCode
    figures: tuple[tuple[str, int | str], ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Give a waiting job or a requested notebook these placements. ``attempt``: the job's new one, 0 for notebooks."""

    workload: str
    attempt: int
    placements: tuple[Placement, ...]
    borrower: bool
    reason: Reason


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Start a paused job again, from its checkpoint."""

    workload: str
    attempt: int
    placements: tuple[Placement, ...]
    borrower: bool
    reason: Reason


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Ask a running job to checkpoint and leave within ``grace_s``; it is queued again. ``claimer`` takes its place."""

    workload: str
    claimer: str
    grace_s: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask a running job to leave: ``target`` is held, cancelled or failed, or paused where nobody claims its place."""

    workload: str
    target: JobTarget
    grace_s: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """A notebook request that its quota does not admit."""

    workload: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """Give the device of an idle notebook's slice to borrowers; it stays booked, and comes back with a start."""

    workload: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Return a slice that was lent for long enough to its project's notebook quota; its owner asks again."""

    workload: str
    reason: Reason


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Keep these placements for a waiting workload while their present holders leave; replaces its earlier ones."""

    workload: str
    placements: tuple[Placement, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreserve:
    """Drop a workload's reservation: it started, ended, or another claim took over."""

    workload: str
    reason: Reason


Action = Start | Resume | Pause | Stop | Refuse | Lend | Release | Reserve | Unreserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions of one tick, in the order they are to be committed; ``seen_version`` is the snapshot's."""

    seen_version: int
    now: int
    actions: tuple[Action, ...] = ()
