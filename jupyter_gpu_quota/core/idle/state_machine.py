"""The idle state machine: from a notebook in use, over a warning with its countdown, to a freed GPU, a stopped server.

The state is stored; :func:`transition` gives the next one by the classification. What is to be done follows from the
state alone, so a controller that takes over at any point goes on from there. Everything but a kernel that was shut down
is undone when activity returns, and nothing goes on while anything is unknown.

state       meaning                                                   goes on to
InUse       nothing is under way                                      Reported, Warned; Freed where nothing is held
Reported    idle; the mode is ``report``, so nothing is done          InUse; Warned once the mode is ``reclaim``
Warned      the countdown runs, and the person can see it             InUse, Reported; Freeing when it is over
Freeing     the server is asked to shut these kernels down            InUse, Reported; Freed when none holds the GPU
Freed       no kernel holds the GPU; server, files, others live on    InUse when it is used again; Stopping much later
Stopping    the hub is asked to stop the server                       Freed, InUse when activity returns in time
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from .activity import IdleMode, IdlePolicy, NotebookActivity
from .classification import Busy, Classification, Idle, IdleReason, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How often a person postponed the warning since the last use, and when last."""

    times: int = 0
    at: int | None = None


NEVER_KEPT = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """``notified_at``: when the person was notified of a busy kernel that does not use the GPU.

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
    """The GPU is freed at ``until``, and the variables of these kernels are lost, unless it is used or postponed."""

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


MachineState = InUse | Reported | Warned | Freeing | Freed | Stopping
BEGINNING = InUse()


class IdleEvent(StrEnum):
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
    """One observation of a notebook. ``holds``: whether a kernel holds the GPU; ``reported_at``: the newest report."""

    classification: Classification
    holds: bool | None
    reported_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The state to store, and what happened; ``turn`` is None where nothing did."""

    stage: MachineState
    turn: IdleEvent | None = None


def seen(activity: NotebookActivity, classification: Classification) -> Seen:
    """The observation of a notebook: its classification, what holds the GPU, and the newest report."""
    holds = [kernel.holds_gpu for kernel in activity.kernels or ()]
    known = activity.kernels is not None and None not in holds
    newest = activity.reports[-1] if activity.reports else None
    return Seen(classification=classification, holds=any(holds) if known or any(holds) else None, reported_at=newest)


def transition(stage: MachineState, look: Seen, policy: IdlePolicy, now: int) -> Transition:
    """The next state by one observation. Any classification but idle withdraws what is not done yet."""
    match look.classification:
        case Busy():
            return _busy(stage, look.classification, look, policy, now)
        case Unknown():
            return _withdrawn(stage, stage.kept)
        case Idle():
            return _idle(stage, look.classification, look, policy, now)
        case _:
            assert_never(look.classification)


# --- not idle -----------------------------------------------------------------------------------------------------
USES_GPU = frozenset({IdleReason.GPU_IN_USE, IdleReason.RECENT_GPU_USE})


def _busy(stage: MachineState, classification: Busy, look: Seen, policy: IdlePolicy, now: int) -> Transition:
    kept = _kept_after(stage.kept, classification)
    match stage:
        case Freed() | Stopping():
            if look.holds or (classification.reason in USES_GPU and classification.since >= _freed_at(stage)):
                return Transition(stage=InUse(kept=kept), turn=IdleEvent.WOKEN)
            return _withdrawn(stage, kept)
        case InUse():
            return _maybe_notified(replace(stage, kept=kept), classification, policy, now)
        case Reported() | Warned() | Freeing():
            return _withdrawn(stage, kept)
        case _:
            assert_never(stage)


def _kept_after(kept: Kept, classification: Busy) -> Kept:
    """Use after the last postponement sets the number of postponements back to 0."""
    used = classification.reason is not IdleReason.KEPT and kept.at is not None and classification.since > kept.at
    return NEVER_KEPT if used else kept


def _freed_at(stage: Freed | Stopping) -> int:
    return stage.at if isinstance(stage, Freed) else stage.freed_at


def _withdrawn(stage: MachineState, kept: Kept) -> Transition:
    """Withdraw what is under way; a GPU that is freed stays so until it is used."""
    match stage:
        case InUse():
            return Transition(stage=replace(stage, kept=kept))
        case Reported() | Warned() | Freeing():
            return Transition(stage=InUse(kept=kept), turn=IdleEvent.WITHDRAWN)
        case Freed():
            return Transition(stage=replace(stage, idle_since=None, kept=kept))
        case Stopping():
            return Transition(stage=Freed(at=stage.freed_at, idle_since=None, kept=kept), turn=IdleEvent.WITHDRAWN)
        case _:
            assert_never(stage)


def _maybe_notified(stage: InUse, classification: Busy, policy: IdlePolicy, now: int) -> Transition:
    """A busy kernel that does not use the GPU is never freed; its owner may be notified, once for each stretch."""
    if classification.unused_since is None or policy.busy_notify_after_s is None:
        return Transition(stage=replace(stage, notified_at=None))
    due = max(classification.unused_since, classification.since) + policy.busy_notify_after_s * 1000
    if stage.notified_at is None and now >= due:
        return Transition(stage=replace(stage, notified_at=now), turn=IdleEvent.NOTIFIED)
    return Transition(stage=stage)


# --- idle ---------------------------------------------------------------------------------------------------------
def _idle(stage: MachineState, classification: Idle, look: Seen, policy: IdlePolicy, now: int) -> Transition:
    if policy.mode is IdleMode.REPORT:
        return _only_reported(stage, classification, now)
    match stage:
        case InUse() | Reported():
            return _warn(stage, classification, policy, now)
        case Warned():
            told = look.reported_at is not None and look.reported_at > stage.at
            if not classification.kernels:
                return _freed(stage, classification, now)
            if now < stage.until or not told:
                return Transition(stage=stage)
            return Transition(
                stage=Freeing(at=now, kernels=classification.kernels, kept=stage.kept), turn=IdleEvent.FREEING
            )
        case Freeing():
            return (
                Transition(stage=replace(stage, kernels=classification.kernels))
                if classification.kernels
                else _freed(stage, classification, now)
            )
        case Freed():
            return _maybe_stopped(stage, classification, policy, now)
        case Stopping():
            return Transition(stage=stage)
        case _:
            assert_never(stage)


def _only_reported(stage: MachineState, classification: Idle, now: int) -> Transition:
    """In mode ``report`` nothing is begun, and what was begun is withdrawn; a GPU that is freed stays so."""
    match stage:
        case Reported():
            return Transition(stage=replace(stage, kernels=classification.kernels))
        case Freed() | Stopping():
            return _withdrawn(stage, stage.kept)
        case _:
            return Transition(
                stage=Reported(at=now, kernels=classification.kernels, kept=stage.kept), turn=IdleEvent.REPORTED
            )


def _warn(stage: InUse | Reported, classification: Idle, policy: IdlePolicy, now: int) -> Transition:
    """Begin the countdown; where no kernel holds the GPU, nothing would be lost and no warning is needed."""
    if not classification.kernels:
        return _freed(stage, classification, now)
    until = now + policy.warn_for_s * 1000
    return Transition(
        stage=Warned(at=now, until=until, kernels=classification.kernels, kept=stage.kept), turn=IdleEvent.WARNED
    )


def _freed(stage: MachineState, classification: Idle, now: int) -> Transition:
    return Transition(stage=Freed(at=now, idle_since=classification.since, kept=stage.kept), turn=IdleEvent.FREED)


def _maybe_stopped(stage: Freed, classification: Idle, policy: IdlePolicy, now: int) -> Transition:
    if classification.kernels:  # a kernel that is classified as idle holds the GPU again: it was used
        return Transition(stage=InUse(kept=stage.kept), turn=IdleEvent.WOKEN)
    since = classification.since if stage.idle_since is None else min(stage.idle_since, classification.since)
    if now - since >= policy.stop_server_after_s * 1000:
        return Transition(stage=Stopping(at=now, freed_at=stage.at, kept=stage.kept), turn=IdleEvent.STOPPING)
    return Transition(stage=replace(stage, idle_since=since))


# --- requests of the person ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRefused:
    """Nothing was postponed. ``why`` is ``not_warned`` or ``kept_enough``."""

    why: str
    times: int
    most: int


def keep(stage: MachineState, policy: IdlePolicy, now: int) -> Transition | KeepRefused:
    """Postpone a warning as if the notebook had been used now; at most ``keep_at_most`` times until it is used."""
    if not isinstance(stage, Warned | Freeing):
        return KeepRefused(why="not_warned", times=stage.kept.times, most=policy.keep_at_most)
    if stage.kept.times >= policy.keep_at_most:
        return KeepRefused(why="kept_enough", times=stage.kept.times, most=policy.keep_at_most)
    return Transition(stage=InUse(kept=Kept(times=stage.kept.times + 1, at=now)), turn=IdleEvent.KEPT)


def asked(stage: MachineState, now: int) -> Transition:
    """A kernel is about to start and asks for the GPU: that is a use, though no reading shows it yet."""
    after = InUse(kept=stage.kept, asked_at=now)
    match stage:
        case InUse():
            return Transition(stage=replace(stage, asked_at=now))
        case Reported() | Warned() | Freeing():
            return Transition(stage=after, turn=IdleEvent.WITHDRAWN)
        case Freed() | Stopping():
            return Transition(stage=after, turn=IdleEvent.WOKEN)
        case _:
            assert_never(stage)


def is_lendable(stage: MachineState, classification: Classification) -> bool:
    """Whether a freed slice may be lent: it is idle, and neither a kernel nor another program holds it.

    When lending ends, :func:`.lent_slice.may_stay_lent` decides.
    """
    return (
        isinstance(stage, Freed)
        and isinstance(classification, Idle)
        and not classification.kernels
        and not classification.others
    )
