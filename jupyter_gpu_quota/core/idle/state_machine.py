"""The ladder: from a notebook in use, over a warning with its countdown, to a freed GPU and a stopped server.

A stage is what is stored; ``step`` takes one to the next by what the judge says, and what is to be done follows from
the stage alone, so that whoever dies between two lines is replaced by somebody who reads it again. Everything but a
kernel that is gone is undone when activity returns, and nothing goes on while anything is unknown.

stage       meaning                                                   goes on to
InUse       nothing is under way                                      Reported, Warned; Freed where nothing is held
Reported    idle; the mode is ``report``, so nothing is done          InUse; Warned once the mode is ``reclaim``
Warned      the countdown runs, and the person can see it             InUse, Reported; Freeing when it is over
Freeing     the server is told to shut these kernels down             InUse, Reported; Freed when none holds the GPU
Freed       no kernel holds the GPU; server, files, others live on    InUse when it is used again; Stopping much later
Stopping    the hub is asked to stop the server                       Freed, InUse when activity returns in time
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from .activity import IdleMode, IdlePolicy, NotebookActivity
from .classification import Busy, Idle, IdleReason, Unknown, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How often a person postponed the warning since the last use, and when last."""

    times: int = 0
    at: int | None = None


NEVER_KEPT = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """``notified_at``: when the person was told of a busy kernel that leaves the GPU alone.

    ``asked_at``: when a kernel that was about to start last asked for the GPU.
    """

    kept: Kept = NEVER_KEPT
    notified_at: int | None = None
    asked_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    at: int
    kernels: tuple[str, ...]
    kept: Kept = NEVER_KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """The GPU is freed at ``until``, and the variables of these kernels are lost, unless something happens."""

    at: int
    until: int
    kernels: tuple[str, ...]
    kept: Kept = NEVER_KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeing:
    at: int
    kernels: tuple[str, ...]
    kept: Kept = NEVER_KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """``idle_since``: since when nothing at all happened in the server, None while something does."""

    at: int
    idle_since: int | None
    kept: Kept = NEVER_KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    at: int
    freed_at: int
    kept: Kept = NEVER_KEPT


Stage = InUse | Reported | Warned | Freeing | Freed | Stopping
BEGINNING = InUse()


class Turn(StrEnum):
    """What happened to a notebook, for the audit, events and messages."""

    REPORTED = "reported"
    WARNED = "warned"
    WITHDRAWN = "withdrawn"
    KEPT = "kept"
    FREEING = "freeing"
    FREED = "freed"
    WOKEN = "woken"
    STOPPING = "stopping"
    NOTIFIED = "notified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a notebook. ``holds``: whether a kernel holds the GPU; ``reported_at``: the newest report."""

    verdict: Verdict
    holds: bool | None
    reported_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The stage to store, and what happened; ``turn`` None where nothing did."""

    stage: Stage
    turn: Turn | None = None


def seen(activity: NotebookActivity, verdict: Verdict) -> Seen:
    """What the ladder looks at beside the verdict. A use of the GPU by anything is a hold."""
    holds = [kernel.holds_gpu for kernel in activity.kernels or ()]
    known = activity.kernels is not None and None not in holds
    newest = activity.reports[-1] if activity.reports else None
    return Seen(verdict=verdict, holds=any(holds) if known or any(holds) else None, reported_at=newest)


def step(stage: Stage, look: Seen, policy: IdlePolicy, now: int) -> Step:
    """The next stage, by what was seen. Whatever is not idle withdraws what is not done yet."""
    match look.verdict:
        case Busy():
            return _busy(stage, look.verdict, look, policy, now)
        case Unknown():
            return _withdrawn(stage, stage.kept)
        case Idle():
            return _idle(stage, look.verdict, look, policy, now)
        case _:
            assert_never(look.verdict)


# --- not idle -----------------------------------------------------------------------------------------------------
USES_GPU = frozenset({IdleReason.GPU_IN_USE, IdleReason.RECENT_GPU_USE})


def _busy(stage: Stage, verdict: Busy, look: Seen, policy: IdlePolicy, now: int) -> Step:
    kept = _kept_after(stage.kept, verdict)
    match stage:
        case Freed() | Stopping():
            if look.holds or (verdict.reason in USES_GPU and verdict.since >= _freed_at(stage)):
                return Step(stage=InUse(kept=kept), turn=Turn.WOKEN)
            return _withdrawn(stage, kept)
        case InUse():
            return _maybe_notified(replace(stage, kept=kept), verdict, policy, now)
        case Reported() | Warned() | Freeing():
            return _withdrawn(stage, kept)
        case _:
            assert_never(stage)


def _kept_after(kept: Kept, verdict: Busy) -> Kept:
    """Real use since the person last asked gives all of their postponements back."""
    used = verdict.reason is not IdleReason.KEPT and kept.at is not None and verdict.since > kept.at
    return NEVER_KEPT if used else kept


def _freed_at(stage: Freed | Stopping) -> int:
    return stage.at if isinstance(stage, Freed) else stage.freed_at


def _withdrawn(stage: Stage, kept: Kept) -> Step:
    """Back to where nothing is under way; a GPU that is freed stays so until it is used."""
    match stage:
        case InUse():
            return Step(stage=replace(stage, kept=kept))
        case Reported() | Warned() | Freeing():
            return Step(stage=InUse(kept=kept), turn=Turn.WITHDRAWN)
        case Freed():
            return Step(stage=replace(stage, idle_since=None, kept=kept))
        case Stopping():
            return Step(stage=Freed(at=stage.freed_at, idle_since=None, kept=kept), turn=Turn.WITHDRAWN)
        case _:
            assert_never(stage)


def _maybe_notified(stage: InUse, verdict: Busy, policy: IdlePolicy, now: int) -> Step:
    """A busy kernel that leaves the GPU alone is never freed; its owner may be told, once a stretch."""
    if verdict.unused_since is None or policy.busy_notify_after_s is None:
        return Step(stage=replace(stage, notified_at=None))
    due = max(verdict.unused_since, verdict.since) + policy.busy_notify_after_s * 1000
    if stage.notified_at is None and now >= due:
        return Step(stage=replace(stage, notified_at=now), turn=Turn.NOTIFIED)
    return Step(stage=stage)


# --- idle ---------------------------------------------------------------------------------------------------------
def _idle(stage: Stage, verdict: Idle, look: Seen, policy: IdlePolicy, now: int) -> Step:
    if policy.mode is IdleMode.REPORT:
        return _only_reported(stage, verdict, now)
    match stage:
        case InUse() | Reported():
            return _warn(stage, verdict, policy, now)
        case Warned():
            told = look.reported_at is not None and look.reported_at > stage.at
            if not verdict.kernels:
                return _freed(stage, verdict, now)
            if now < stage.until or not told:
                return Step(stage=stage)
            return Step(stage=Freeing(at=now, kernels=verdict.kernels, kept=stage.kept), turn=Turn.FREEING)
        case Freeing():
            return (
                Step(stage=replace(stage, kernels=verdict.kernels)) if verdict.kernels else _freed(stage, verdict, now)
            )
        case Freed():
            return _maybe_stopped(stage, verdict, policy, now)
        case Stopping():
            return Step(stage=stage)
        case _:
            assert_never(stage)


def _only_reported(stage: Stage, verdict: Idle, now: int) -> Step:
    """In mode ``report`` nothing is begun, and what was begun is withdrawn; a GPU that is freed stays so."""
    match stage:
        case Reported():
            return Step(stage=replace(stage, kernels=verdict.kernels))
        case Freed() | Stopping():
            return _withdrawn(stage, stage.kept)
        case _:
            return Step(stage=Reported(at=now, kernels=verdict.kernels, kept=stage.kept), turn=Turn.REPORTED)


def _warn(stage: InUse | Reported, verdict: Idle, policy: IdlePolicy, now: int) -> Step:
    """Begin the countdown; where no kernel holds the GPU there is nothing to lose and nothing to warn of."""
    if not verdict.kernels:
        return _freed(stage, verdict, now)
    until = now + policy.warn_for_s * 1000
    return Step(stage=Warned(at=now, until=until, kernels=verdict.kernels, kept=stage.kept), turn=Turn.WARNED)


def _freed(stage: Stage, verdict: Idle, now: int) -> Step:
    return Step(stage=Freed(at=now, idle_since=verdict.since, kept=stage.kept), turn=Turn.FREED)


def _maybe_stopped(stage: Freed, verdict: Idle, policy: IdlePolicy, now: int) -> Step:
    if verdict.kernels:  # one that the verdict counts as idle began to hold the GPU again: it was used
        return Step(stage=InUse(kept=stage.kept), turn=Turn.WOKEN)
    since = verdict.since if stage.idle_since is None else min(stage.idle_since, verdict.since)
    if now - since >= policy.stop_server_after_s * 1000:
        return Step(stage=Stopping(at=now, freed_at=stage.at, kept=stage.kept), turn=Turn.STOPPING)
    return Step(stage=replace(stage, idle_since=since))


# --- what people ask for ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRefused:
    """Nothing was postponed. ``why`` is ``not_warned`` or ``kept_enough``."""

    why: str
    times: int
    most: int


def keep(stage: Stage, policy: IdlePolicy, now: int) -> Step | KeepRefused:
    """Postpone a warning as if the notebook had been used now; at most ``keep_at_most`` times until it is used."""
    if not isinstance(stage, Warned | Freeing):
        return KeepRefused(why="not_warned", times=stage.kept.times, most=policy.keep_at_most)
    if stage.kept.times >= policy.keep_at_most:
        return KeepRefused(why="kept_enough", times=stage.kept.times, most=policy.keep_at_most)
    return Step(stage=InUse(kept=Kept(times=stage.kept.times + 1, at=now)), turn=Turn.KEPT)


def asked(stage: Stage, now: int) -> Step:
    """A kernel is about to start and asks for the GPU: that is a use, though nothing of it is to be seen yet."""
    after = InUse(kept=stage.kept, asked_at=now)
    match stage:
        case InUse():
            return Step(stage=replace(stage, asked_at=now))
        case Reported() | Warned() | Freeing():
            return Step(stage=after, turn=Turn.WITHDRAWN)
        case Freed() | Stopping():
            return Step(stage=after, turn=Turn.WOKEN)
        case _:
            assert_never(stage)


def is_lendable(stage: Stage, verdict: Verdict) -> bool:
    """Whether a loan of a freed slice may begin: it is idle, and neither a kernel nor another program holds it.

    When a loan that has begun ends is for :func:`.loan.rests` to say.
    """
    return isinstance(stage, Freed) and isinstance(verdict, Idle) and not verdict.kernels and not verdict.others
