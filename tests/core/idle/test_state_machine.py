"""The idle state machine: transitions after a classification, after returning activity, and impossible ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.idle.activity import IdleMode, IdlePolicy
from jupyter_gpu_quota.core.idle.classification import Busy, Classification, Idle, IdleReason, Unknown
from jupyter_gpu_quota.core.idle.state_machine import (
    BEGINNING,
    Freed,
    Freeing,
    IdleEvent,
    InUse,
    KeepRefused,
    Kept,
    MachineState,
    Observation,
    Reported,
    Stopping,
    Transition,
    Warned,
    is_lendable,
    keep,
    observe,
    transition,
)
from tests.core.idle.world import CPU_ONLY, MINUTE, NOW, QUIET, classification, quiet_notebook

RECLAIM = IdlePolicy(mode=IdleMode.RECLAIM)
REPORT = IdlePolicy()
LATER = NOW + 5 * MINUTE
ONCE = Kept(times=1, at=NOW - 50 * MINUTE)

IDLE = Idle(since=NOW - 20 * MINUTE, kernels=("k1",))
EMPTY = Idle(since=NOW - 20 * MINUTE, kernels=())
UNKNOWN = Unknown(reason=IdleReason.GAP)
BUSY = Busy(reason=IdleReason.GPU_IN_USE, since=NOW)
TYPED = Busy(reason=IdleReason.RECENT_MESSAGE, since=NOW)
BREAKPOINT = Busy(reason=IdleReason.KERNEL_BUSY, since=NOW - 90 * MINUTE, unused_since=NOW - 40 * MINUTE)

WARNED = Warned(at=NOW - MINUTE, until=LATER, kernels=("k1",))
FREEING = Freeing(at=NOW - MINUTE, kernels=("k1",))
FREED = Freed(at=NOW - MINUTE, idle_since=NOW - 20 * MINUTE)
STOPPING = Stopping(at=NOW - MINUTE, freed_at=NOW - 60 * MINUTE)
REPORTED = Reported(at=NOW - MINUTE, kernels=("k1",))


def look(
    found: Classification, *, holds: bool | None = True, reported_at: int | None = NOW,
    server_used_at: int | None = NOW - 20 * MINUTE,
) -> Observation:  # fmt: skip
    return Observation(classification=found, holds=holds, reported_at=reported_at, server_used_at=server_used_at)


STEPS = [
    # idle, mode reclaim
    pytest.param(BEGINNING, IDLE, NOW, IdleEvent.WARNED, Warned, id="an idle notebook is warned"),
    pytest.param(BEGINNING, EMPTY, NOW, IdleEvent.FREED, Freed, id="without memory on the GPU there is no warning"),
    pytest.param(REPORTED, IDLE, NOW, IdleEvent.WARNED, Warned, id="reclaim is turned on: a full warning comes first"),
    pytest.param(WARNED, IDLE, LATER - 1, None, Warned, id="the countdown is not over"),
    pytest.param(WARNED, IDLE, LATER, IdleEvent.FREEING, Freeing, id="the countdown is over"),
    pytest.param(WARNED, EMPTY, NOW, IdleEvent.FREED, Freed, id="the user shut the kernel down"),
    pytest.param(FREEING, IDLE, LATER, None, Freeing, id="a kernel that still holds the GPU"),
    pytest.param(FREEING, EMPTY, LATER, IdleEvent.FREED, Freed, id="no kernel holds the GPU any more"),
    pytest.param(FREED, EMPTY, LATER, None, Freed, id="a freed GPU stays freed"),
    pytest.param(FREED, EMPTY, NOW + 12 * 60 * MINUTE, IdleEvent.STOPPING, Stopping, id="later the server is stopped"),
    # activity in time
    pytest.param(WARNED, BUSY, NOW, IdleEvent.WITHDRAWN, InUse, id="the GPU is used during the countdown"),
    pytest.param(WARNED, TYPED, NOW, IdleEvent.WITHDRAWN, InUse, id="a cell is run during the countdown"),
    pytest.param(FREEING, TYPED, NOW, IdleEvent.WITHDRAWN, InUse, id="a cell is run before the kernel was shut down"),
    pytest.param(REPORTED, BUSY, NOW, IdleEvent.WITHDRAWN, InUse, id="a reported notebook is used again"),
    pytest.param(FREED, BUSY, NOW, IdleEvent.WOKEN, InUse, id="the owner uses the GPU that was freed"),
    pytest.param(STOPPING, BUSY, NOW, IdleEvent.WOKEN, InUse, id="the owner uses the GPU before the server stopped"),
    # unknown
    pytest.param(WARNED, UNKNOWN, LATER, IdleEvent.WITHDRAWN, InUse, id="the agent goes away during the countdown"),
    pytest.param(FREEING, UNKNOWN, LATER, IdleEvent.WITHDRAWN, InUse, id="the agent goes before the kernel is gone"),
    pytest.param(FREED, UNKNOWN, LATER, None, Freed, id="a freed GPU stays freed while the activity is unknown"),
    pytest.param(STOPPING, UNKNOWN, LATER, IdleEvent.WITHDRAWN, Freed, id="an unknown server is not stopped"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "found", "now", "event", "to"), STEPS)
def test_a_transition(state: MachineState, found: Classification, now: int, event: IdleEvent | None, to: type) -> None:
    taken = transition(state, look(found), RECLAIM, now)
    assert (taken.event, type(taken.state)) == (event, to)


@pytest.mark.parametrize(
    ("state", "event", "to"),
    [
        pytest.param(BEGINNING, IdleEvent.REPORTED, Reported, id="an idle notebook is reported"),
        pytest.param(REPORTED, None, Reported, id="and reported once"),
        pytest.param(
            WARNED, IdleEvent.REPORTED, Reported, id="the admin goes back to report: the warning is withdrawn"
        ),
        pytest.param(FREEING, IdleEvent.REPORTED, Reported, id="the admin goes back to report: nothing is shut down"),
        pytest.param(FREED, None, Freed, id="a freed GPU stays freed in mode report"),
        pytest.param(STOPPING, IdleEvent.WITHDRAWN, Freed, id="no server is stopped"),
    ],
)
def test_in_mode_report_nothing_is_freed(state: MachineState, event: IdleEvent | None, to: type) -> None:
    taken = transition(state, look(IDLE if state not in (FREED, STOPPING) else EMPTY), REPORT, NOW + 99 * 60 * MINUTE)
    assert (taken.event, type(taken.state)) == (event, to)


def test_a_warning_without_a_later_report_frees_nothing() -> None:
    unheard = look(IDLE, reported_at=WARNED.at)
    assert transition(WARNED, unheard, RECLAIM, LATER).state == WARNED


def test_the_countdown_has_the_length_of_the_policy() -> None:
    taken = transition(BEGINNING, look(IDLE), RECLAIM, NOW)
    assert taken.state == Warned(at=NOW, until=NOW + 300_000, kernels=("k1",))


def test_only_kernels_that_hold_the_gpu_are_shut_down() -> None:
    activity = quiet_notebook(kernels=(QUIET, CPU_ONLY))
    taken = transition(WARNED, observe(activity, classification(activity)), RECLAIM, LATER)
    assert taken.state == Freeing(at=LATER, kernels=("k1",))


def test_a_cell_in_a_cpu_kernel_leaves_the_gpu_freed_and_the_server_alive() -> None:
    taken = transition(FREED, look(TYPED, holds=False), RECLAIM, NOW)
    assert taken == Transition(replace(FREED, idle_since=None))


def test_a_kernel_that_holds_the_gpu_again_wakes_the_notebook() -> None:
    started = Busy(reason=IdleReason.RECENT_START, since=NOW)
    assert transition(FREED, look(started, holds=True), RECLAIM, NOW).event is IdleEvent.WOKEN
    assert transition(FREED, look(IDLE), RECLAIM, NOW).event is IdleEvent.WOKEN


def test_use_before_the_gpu_was_freed_does_not_wake_the_notebook() -> None:
    before = Busy(reason=IdleReason.RECENT_GPU_USE, since=FREED.at - MINUTE)
    assert isinstance(transition(FREED, look(before, holds=False), RECLAIM, NOW).state, Freed)


# --- keep ---------------------------------------------------------------------------------------------------------
def test_keep_postpones_the_warning_as_if_the_notebook_had_been_used() -> None:
    taken = keep(WARNED, RECLAIM, NOW)
    assert taken == Transition(InUse(kept=Kept(times=1, at=NOW)), IdleEvent.KEPT)
    again = classification(quiet_notebook(kept_at=NOW))
    assert isinstance(again, Busy)
    assert (again.reason, again.idle_at) == (IdleReason.KEPT, NOW + 20 * MINUTE)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        pytest.param(BEGINNING, "not_warned", id="no warning is pending"),
        pytest.param(FREED, "not_warned", id="the kernels were shut down already"),
        pytest.param(replace(WARNED, kept=Kept(times=3, at=NOW)), "kept_enough", id="a fourth time"),
    ],
)
def test_keep_is_refused(state: MachineState, why: str) -> None:
    refused = keep(state, RECLAIM, NOW)
    assert isinstance(refused, KeepRefused)
    assert (refused.why, refused.most) == (why, 3)


@pytest.mark.parametrize(
    ("found", "times"),
    [
        pytest.param(TYPED, 0, id="use resets the count"),
        pytest.param(Busy(reason=IdleReason.KEPT, since=NOW), 1, id="postponing does not reset it"),
        pytest.param(
            Busy(reason=IdleReason.RECENT_MESSAGE, since=NOW - 60 * MINUTE),
            1,
            id="use before the postponement does not reset it",
        ),
        pytest.param(UNKNOWN, 1, id="unknown activity does not reset it"),
        pytest.param(IDLE, 1, id="another warning does not reset it"),
    ],
)
def test_a_warning_can_be_postponed_as_often_as_the_policy_allows(found: Classification, times: int) -> None:
    assert transition(InUse(kept=ONCE), look(found), RECLAIM, NOW).state.kept.times == times


# --- notified only-------------------------------------------------------------------------------------------------
def test_the_owner_of_a_busy_kernel_without_gpu_use_is_notified_once_and_it_is_never_freed() -> None:
    policy = replace(RECLAIM, busy_notify_after_s=1_800)
    first = transition(BEGINNING, look(BREAKPOINT), policy, NOW)
    assert (first.event, first.state) == (IdleEvent.NOTIFIED, InUse(notified_at=NOW))
    assert transition(first.state, look(BREAKPOINT), policy, LATER) == Transition(first.state)
    assert transition(first.state, look(BUSY), policy, LATER).state == BEGINNING


def test_without_busy_notify_after_no_owner_is_notified() -> None:
    assert transition(BEGINNING, look(BREAKPOINT), RECLAIM, NOW) == Transition(BEGINNING)


# --- lending ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "found", "lendable"),
    [
        pytest.param(FREED, EMPTY, True, id="freed, idle, and nothing holds it"),
        pytest.param(FREED, replace(EMPTY, others=("terminal 1",)), False, id="a terminal still holds memory"),
        pytest.param(FREED, UNKNOWN, False, id="its activity is unknown"),
        pytest.param(FREEING, EMPTY, False, id="it is not freed yet"),
        pytest.param(FREED, IDLE, False, id="a kernel holds it again"),
    ],
)
def test_a_freed_idle_slice_without_other_programs_is_lendable(
    state: MachineState, found: Classification, lendable: bool
) -> None:
    assert is_lendable(state, found) is lendable


# --- whatever happens ---------------------------------------------------------------------------------------------
verdicts = st.sampled_from([IDLE, IDLE, IDLE, IDLE, EMPTY, UNKNOWN, BUSY, TYPED, BREAKPOINT])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(verdicts, st.integers(1, 200), st.sampled_from(list(IdleMode)), st.booleans()), max_size=30))
def test_nothing_is_freed_before_a_whole_countdown_in_mode_reclaim(
    looks: list[tuple[Classification, int, IdleMode, bool]],
) -> None:
    state: MachineState = BEGINNING
    now, idle_since = NOW, None
    for found, passed_s, mode, reports in looks:
        now += passed_s * 1000
        policy = replace(RECLAIM, mode=mode)
        counts = found is IDLE and mode is IdleMode.RECLAIM
        idle_since = (idle_since or now) if counts else None
        taken = transition(state, look(found, reported_at=now if reports else None), policy, now)
        if isinstance(taken.state, Freeing) and not isinstance(state, Freeing):
            assert idle_since is not None
            assert now - idle_since >= RECLAIM.warn_for_s * 1000
        if isinstance(found, Unknown | Busy):
            assert not isinstance(taken.state, Warned | Freeing | Stopping | Reported)
        if mode is IdleMode.REPORT:
            assert not isinstance(taken.state, Warned | Freeing | Stopping)
        state = taken.state


HOURS_12 = 12 * 60 * MINUTE


@pytest.mark.parametrize(
    ("used_at", "stops"),
    [
        pytest.param(NOW, True, id="long ago"),
        pytest.param(NOW + 1, False, id="less long ago than a stop takes"),
        pytest.param(None, False, id="not known"),
    ],
)
def test_a_server_in_whose_terminals_someone_works_is_not_stopped(used_at: int | None, stops: bool) -> None:
    now = NOW + HOURS_12
    seen = look(EMPTY, holds=False, server_used_at=used_at)
    taken = transition(FREED, seen, RECLAIM, now)
    assert isinstance(taken.state, Stopping) is stops
    state = Stopping(at=now, freed_at=NOW)
    taken = transition(state, seen, RECLAIM, now + 1000)
    assert taken == (Transition(state) if stops else Transition(Freed(at=NOW, idle_since=None), IdleEvent.WITHDRAWN))


@pytest.mark.parametrize("state", [BEGINNING, REPORTED, WARNED, FREEING], ids=lambda state: type(state).__name__)
@pytest.mark.parametrize(
    "found", [IDLE, EMPTY, UNKNOWN, BUSY, TYPED], ids=["idle", "empty", "unknown", "busy", "typed"]
)
@pytest.mark.parametrize("policy", [REPORT, RECLAIM], ids=["report", "reclaim"])
def test_deciding_again_at_the_same_instant_changes_nothing(
    state: MachineState, found: Classification, policy: IdlePolicy
) -> None:
    once = transition(state, look(found, holds=found is not EMPTY), policy, NOW)
    assert transition(once.state, look(found, holds=found is not EMPTY), policy, NOW) == Transition(once.state)
