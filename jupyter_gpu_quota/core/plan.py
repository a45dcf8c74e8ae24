"""What ``decide`` answers: ordered actions, each with the reason that people are shown."""

from __future__ import annotations

from dataclasses import dataclass

from .frozen import fast_frozen
from .model import JobTarget, Placement
from .reasons import Reason, ReasonCode

RESIZED = frozenset({ReasonCode.SHRUNK, ReasonCode.GROWN})
"""Of a pause: the job goes on at once with other ranks, and it counts in no limit of pauses."""

GOES_ON = RESIZED | {ReasonCode.MOVED}
"""Of a pause: the job goes on at once, on devices that the same plan reserves for it."""


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Give a waiting job or a requested notebook these placements. ``attempt``: the job's new one, 0 for notebooks."""

    workload: str
    attempt: int
    placements: tuple[Placement, ...]
    borrower: bool
    reason: Reason


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Start a paused job again, from its checkpoint."""

    workload: str
    attempt: int
    placements: tuple[Placement, ...]
    borrower: bool
    reason: Reason


@fast_frozen
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


@fast_frozen
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
