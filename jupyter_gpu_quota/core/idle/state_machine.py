"""The idle state machine: in use, warned with a countdown, GPU freed, server stopped.

The state is stored; :func:`transition` gives the next one by the classification. All that has to be done follows from
the state alone, so a new leader continues at any point. Activity undoes everything except the shutdown of a kernel, and
nothing proceeds while anything is unknown.

state       meaning                                                   next
InUse       nothing is pending                                        Reported, Warned; Freed if no kernel has the GPU
Reported    idle; the mode is ``report``, so nothing is freed         InUse; Warned once the mode is ``reclaim``
Warned      the countdown runs, and the user is shown it              InUse, Reported; Freeing when it is over
Freeing     the server shuts these kernels down                       InUse, Reported; Freed when none has the GPU
Freed       no kernel has the GPU; server, files, others continue     InUse when it is used again; Stopping much later
Stopping    the hub stops the server                                  Freed, InUse when activity returns in time
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from .activity import IdleMode, IdlePolicy, NotebookActivity
from .classification import Busy, Classification, Idle, IdleReason, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How often the user postponed the warning since the last use, and when last."""

    times: int = 0
    at: int | None = None


NEVER_KEPT = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """``notified_at``: when the user was notified of a busy kernel that does not use the GPU.

    ``asked_at``: when a starting kernel last requested the GPU.
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
    """The events of a notebook, for the audit, event streams and messages."""

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
class Observation:
    """One observation of a notebook. ``holds``: whether a kernel has memory on the GPU, None where that is not known.

    ``reported_at``: the arrival of the newest report. ``server_used_at``: when the server itself was last used, None
    where that is not known.
    """

    classification: Classification
    holds: bool | None
    reported_at: int | None
    server_used_at: int | None


@dataclass(frozen=True, slots=True)
class Transition:
    """The state to store, and the event; None where nothing happened."""

    state: MachineState
    event: IdleEvent | None = None


def observe(activity: NotebookActivity, classification: Classification) -> Observation:
    """The observation of a notebook with this evidence and classification."""
    holds = [kernel.holds_gpu for kernel in activity.kernels or ()]
    known = activity.kernels is not None and None not in holds
    newest = activity.reports[-1] if activity.reports else None
    any_holds = any(holds) if known or any(holds) else None
    return Observation(
        classification=classification, holds=any_holds, reported_at=newest, server_used_at=activity.server_used_at
    )


def transition(state: MachineState, observed: Observation, policy: IdlePolicy, now: int) -> Transition:
    """The next state after one observation. Any classification but idle withdraws what is pending."""
    match observed.classification:
        case Busy():
            return _busy(state, observed.classification, observed, policy, now)
        case Unknown():
            return _withdrawn(state, state.kept)
        case Idle() if policy.mode is IdleMode.REPORT:
            return _only_reported(state, observed.classification, now)
        case Idle():
            return _idle(state, observed.classification, observed, policy, now)
        case _:
            assert_never(observed.classification)


# --- not idle -----------------------------------------------------------------------------------------------------
USES_GPU = frozenset({IdleReason.GPU_IN_USE, IdleReason.RECENT_GPU_USE})


def _busy(state: MachineState, classification: Busy, observed: Observation, policy: IdlePolicy, now: int) -> Transition:
    """The transition while it is in use. Use after the last postponement sets the number of postponements back to 0."""
    kept = state.kept
    if classification.reason is not IdleReason.KEPT and kept.at is not None and classification.since > kept.at:
        kept = NEVER_KEPT
    match state:
        case Freed() | Stopping():
            freed_at = state.at if isinstance(state, Freed) else state.freed_at
            if observed.holds or (classification.reason in USES_GPU and classification.since >= freed_at):
                return Transition(InUse(kept=kept), IdleEvent.WOKEN)
            return _withdrawn(state, kept)
        case InUse():
            return _maybe_notified(replace(state, kept=kept), classification, policy, now)
        case Reported() | Warned() | Freeing():
            return _withdrawn(state, kept)
        case _:
            assert_never(state)


def _withdrawn(state: MachineState, kept: Kept) -> Transition:
    """Withdraw what is pending; a GPU that is freed stays so until it is used."""
    match state:
        case InUse():
            return Transition(replace(state, kept=kept))
        case Reported() | Warned() | Freeing():
            return Transition(InUse(kept=kept), IdleEvent.WITHDRAWN)
        case Freed():
            return Transition(replace(state, idle_since=None, kept=kept))
        case Stopping():
            return Transition(Freed(at=state.freed_at, idle_since=None, kept=kept), IdleEvent.WITHDRAWN)
        case _:
            assert_never(state)


def _maybe_notified(state: InUse, classification: Busy, policy: IdlePolicy, now: int) -> Transition:
    """A busy kernel that does not use the GPU is never freed; its owner may be notified, once for each stretch."""
    if classification.unused_since is None or policy.busy_notify_after_s is None:
        return Transition(replace(state, notified_at=None))
    due = max(classification.unused_since, classification.since) + policy.busy_notify_after_s * 1000
    if state.notified_at is None and now >= due:
        return Transition(replace(state, notified_at=now), IdleEvent.NOTIFIED)
    return Transition(state)


# --- idle ---------------------------------------------------------------------------------------------------------
def _idle(state: MachineState, classification: Idle, observed: Observation, policy: IdlePolicy, now: int) -> Transition:
    """The countdown begins only where a kernel would be shut down; it ends only after a report of the server."""
    kernels, kept = classification.kernels, state.kept
    match state:
        case InUse() | Reported() | Warned() | Freeing() if not kernels:
            return Transition(Freed(at=now, idle_since=classification.since, kept=kept), IdleEvent.FREED)
        case InUse() | Reported():
            until = now + policy.warn_for_s * 1000
            return Transition(Warned(at=now, until=until, kernels=kernels, kept=kept), IdleEvent.WARNED)
        case Warned():
            has_reported = observed.reported_at is not None and observed.reported_at > state.at
            if now < state.until or not has_reported:
                return Transition(state)
            return Transition(Freeing(at=now, kernels=kernels, kept=kept), IdleEvent.FREEING)
        case Freeing():
            return Transition(replace(state, kernels=kernels))
        case Freed():
            return _maybe_stopped(state, classification, observed, policy, now)
        case Stopping():
            used_at, for_ms = observed.server_used_at, policy.stop_server_after_s * 1000
            was_used = used_at is None or state.at - used_at < for_ms  # else it is as when the stop was decided
            return _withdrawn(state, kept) if was_used else Transition(state)
        case _:
            assert_never(state)


def _only_reported(state: MachineState, classification: Idle, now: int) -> Transition:
    """In mode ``report`` nothing begins, and what is pending is withdrawn; a GPU that is freed stays so."""
    match state:
        case Reported():
            return Transition(replace(state, kernels=classification.kernels))
        case Freed() | Stopping():
            return _withdrawn(state, state.kept)
        case _:
            reported = Reported(at=now, kernels=classification.kernels, kept=state.kept)
            return Transition(reported, IdleEvent.REPORTED)


def _maybe_stopped(
    state: Freed, classification: Idle, observed: Observation, policy: IdlePolicy, now: int
) -> Transition:
    """Stop a server without use of a kernel, and none of itself, for so long; not where the latter is not known."""
    if classification.kernels:  # a kernel that is classified as idle has the GPU again: it was used
        return Transition(InUse(kept=state.kept), IdleEvent.WOKEN)
    since = classification.since if state.idle_since is None else min(state.idle_since, classification.since)
    used_at = observed.server_used_at
    if used_at is not None and now - max(since, used_at) >= policy.stop_server_after_s * 1000:
        return Transition(Stopping(at=now, freed_at=state.at, kept=state.kept), IdleEvent.STOPPING)
    return Transition(replace(state, idle_since=since))


# --- requests of the user -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRefused:
    """Nothing was postponed. ``why`` is ``not_warned`` or ``kept_enough``."""

    why: str
    times: int
    most: int


def keep(state: MachineState, policy: IdlePolicy, now: int) -> Transition | KeepRefused:
    """Postpone a warning as if the notebook had been used now; at most ``keep_at_most`` times until it is used."""
    times = state.kept.times
    if not isinstance(state, Warned | Freeing):
        return KeepRefused(why="not_warned", times=times, most=policy.keep_at_most)
    if times >= policy.keep_at_most:
        return KeepRefused(why="kept_enough", times=times, most=policy.keep_at_most)
    return Transition(InUse(kept=Kept(times=times + 1, at=now)), IdleEvent.KEPT)


def request_gpu(state: MachineState, now: int) -> Transition:
    """The transition when a starting kernel requests the GPU: that is a use, though no reading shows it yet."""
    after = InUse(kept=state.kept, asked_at=now)
    match state:
        case InUse():
            return Transition(replace(state, asked_at=now))
        case Reported() | Warned() | Freeing():
            return Transition(after, IdleEvent.WITHDRAWN)
        case Freed() | Stopping():
            return Transition(after, IdleEvent.WOKEN)
        case _:
            assert_never(state)


def requested_until(state: MachineState, now: int) -> MachineState:
    """The state with no request later than ``now``; one that is was made before the clock was set back."""
    kept_at = None if state.kept.at is None else min(state.kept.at, now)
    state = replace(state, kept=replace(state.kept, at=kept_at))
    if isinstance(state, InUse) and state.asked_at is not None:
        return replace(state, asked_at=min(state.asked_at, now))
    return state


def is_lendable(state: MachineState, classification: Classification) -> bool:
    """Whether a freed slice may be lent: it is idle, and no kernel or other program has memory on the GPU.

    When lending ends, :func:`.lent_slice.may_stay_lent` decides.
    """
    match state, classification:
        case Freed(), Idle(kernels=(), others=()):
            return True
        case _:
            return False
