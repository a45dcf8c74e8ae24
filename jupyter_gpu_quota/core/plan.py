"""The result of ``decide``: ordered actions, each with the reason that people are shown."""

from __future__ import annotations

from dataclasses import dataclass

from .frozen import fast_frozen
from .model import JobTarget, Placement
from .reason_codes import ReasonCode
from .reasons import Reason

RESIZED = frozenset({ReasonCode.SHRUNK, ReasonCode.GROWN})
"""Reasons of a pause after which the job continues at once with other ranks; no limit of pauses counts it."""

CONTINUES = RESIZED | {ReasonCode.MOVED}
"""Reasons of a pause after which the job continues at once, on devices that the same plan reserves for it."""


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
    """Stop a running job after a checkpoint, within ``grace_s``, and queue it again, for the work ``preemptor``."""

    workload: str
    preemptor: str
    grace_s: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop a running job: ``target`` is held, cancelled or failed, or paused where no preemptor takes its devices."""

    workload: str
    target: JobTarget
    grace_s: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse a notebook's request that its quota does not admit."""

    workload: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """Lend the device of an idle notebook's slice to borrowers; it stays booked, and a start returns it."""

    workload: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Return a slice that was lent for long enough to its project's notebook quota; its owner may request it again."""

    workload: str
    reason: Reason


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve these placements for a waiting workload; replaces its earlier ones.

    Their present work stops for it, or ends by ``starts_at``: a backfill reservation.
    """

    workload: str
    placements: tuple[Placement, ...]
    reason: Reason
    starts_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreserve:
    """Drop a workload's reservation: it started, it ended, or another claim took over its devices."""

    workload: str
    reason: Reason


Action = Start | Resume | Pause | Stop | Refuse | Lend | Release | Reserve | Unreserve


def gives_devices(action: Action) -> bool:
    """Whether an action starts its workload, or makes room for it now; a backfill reservation does not."""
    return isinstance(action, Start | Resume) or (isinstance(action, Reserve) and action.starts_at is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions of one tick, in the order they are to be committed; ``seen_version`` is the snapshot's.

    ``searches_ended_early``: the claims for which the bound on its work ended the preemption search, so that a cheaper
    set of victims may exist.
    """

    seen_version: int
    now: int
    actions: tuple[Action, ...] = ()
    searches_ended_early: tuple[str, ...] = ()
