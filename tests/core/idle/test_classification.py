"""Idle classification: every situation of docs/idle.md, and properties that always hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.idle.activity import GpuSample, KernelRecord, KernelState, NotebookActivity
from jupyter_gpu_quota.core.idle.classification import Busy, Classification, Idle, IdleReason, Unknown, continued
from tests.core.idle.world import (
    CPU_ONLY,
    MINUTE,
    NOW,
    POLICY,
    QUIET,
    TERMINAL,
    classification,
    quiet_notebook,
    readings,
    reports,
    used,
    without,
)


def said(found: Classification) -> str:
    """A classification as one or two words."""
    return found.reason if isinstance(found, Idle) else f"{type(found).__name__.lower()} {found.reason}"


def kernel(**changes: object) -> tuple[KernelRecord, ...]:
    return (replace(QUIET, **changes),)  # type: ignore[arg-type]


BUSY = {"state": KernelState.BUSY}

SITUATIONS = [
    # memory held, 0 %, kernels idle
    pytest.param({}, "unused", id="memory held, GPU at 0 %, kernel idle"),
    pytest.param({"kernels": (QUIET, CPU_ONLY)}, "unused", id="a CPU kernel beside it that is idle too"),
    pytest.param({"kernels": ()}, "unused", id="no kernel runs and nothing uses the slice"),
    pytest.param({"programs": (replace(TERMINAL, holds_gpu=True),)}, "unused", id="a terminal holds memory unused"),
    # memory held, 0 %, kernel busy
    pytest.param({"kernels": kernel(**BUSY)}, "busy kernel_busy", id="a download: the kernel is busy, the GPU unused"),
    pytest.param(
        {"kernels": kernel(**BUSY, last_message_at=NOW - 90 * MINUTE)},
        "busy kernel_busy",
        id="a cell has waited long at a breakpoint or for input()",
    ),
    pytest.param(
        {"kernels": (QUIET, replace(CPU_ONLY, state=KernelState.BUSY))},
        "busy kernel_busy",
        id="a CPU kernel of the notebook is busy",
    ),
    # GPU in use while kernels are idle
    pytest.param(
        {"samples": used(readings(60), minutes_ago=0, by="k1")},
        "busy gpu_in_use",
        id="a background thread uses the GPU while its kernel is idle",
    ),
    pytest.param(
        {"samples": used(readings(60), minutes_ago=0, by="terminal 1"), "programs": (TERMINAL,)},
        "busy gpu_in_use",
        id="a job in a terminal uses the GPU",
    ),
    pytest.param(
        {"samples": used(readings(60), minutes_ago=19)}, "busy recent_gpu_use", id="a burst nineteen minutes ago"
    ),
    pytest.param({"samples": used(readings(60), minutes_ago=21)}, "unused", id="a burst longer ago than required"),
    pytest.param(
        {"programs": (replace(TERMINAL, used_gpu_at=NOW - 5 * MINUTE),)},
        "busy recent_gpu_use",
        id="a terminal was seen to use the GPU that no reading of the notebook shows",
    ),
    # silent busy cell
    pytest.param(
        {
            "kernels": kernel(**BUSY, last_message_at=NOW - 150 * MINUTE),
            "samples": readings(60, percent=90),
        },
        "busy gpu_in_use",
        id="a silent cell without output for hours",
    ),
    # tabs
    pytest.param({"kernels": kernel(connections=3)}, "unused", id="open tabs that reconnect are no activity"),
    # jiggler
    pytest.param(
        {"kernels": kernel(last_message_at=NOW - 1 * MINUTE)},
        "busy recent_message",
        id="a cell that runs every minute only to look busy counts as use",
    ),
    pytest.param(
        {"kernels": (QUIET, replace(CPU_ONLY, last_message_at=NOW - 3 * MINUTE))},
        "busy recent_message",
        id="a CPU kernel of the notebook is in use",
    ),
    # starts, restarts, gaps
    pytest.param({"started_at": NOW - 2 * MINUTE}, "unknown just_started", id="the server just started"),
    pytest.param({"started_at": NOW - 15 * MINUTE}, "busy recent_start", id="the server started a while ago"),
    pytest.param({"started_at": None}, "unknown start_unknown", id="the start of the server is unknown"),
    pytest.param(
        {"kernels": kernel(started_at=NOW - 15 * MINUTE)}, "busy recent_start", id="the kernel was restarted"
    ),
    pytest.param({"samples": without(readings(60), 12, 10)}, "unknown gap", id="the agent was away ten minutes ago"),
    pytest.param({"samples": without(readings(60), 40, 30)}, "unused", id="the agent was away longer ago"),
    pytest.param({"samples": readings(60)[:-40]}, "unknown readings_stopped", id="the agent is away"),
    pytest.param({"samples": readings(15)}, "unknown too_few_readings", id="the agent has not run for long enough"),
    pytest.param(
        {"reports": tuple(at for at in reports(60) if not 10 * MINUTE < NOW - at < 15 * MINUTE)},
        "unknown gap",
        id="the service was away for five minutes",
    ),
    pytest.param({"reports": reports(60)[:-10]}, "unknown reports_stopped", id="the server's reports stopped"),
    pytest.param({"reports": reports(10)}, "unknown too_few_reports", id="the server began to report recently"),
    pytest.param({"reports": (), "kernels": None}, "unknown no_report", id="the server extension is not installed"),
    # unknown
    pytest.param({"samples": ()}, "unknown no_reading", id="there is no agent"),
    pytest.param({"samples": readings(60, percent=None)}, "unknown no_reading", id="figures of processes are missing"),
    pytest.param(
        {"samples": tuple(s for i, s in enumerate(readings(60)) if i % 8)},
        "unknown too_few_readings",
        id="one reading in eight is missing",
    ),
    pytest.param(
        {"samples": tuple(s for i, s in enumerate(readings(60)) if i % 12)},
        "unused",
        id="one reading in twelve is missing",
    ),
    pytest.param({"kernels": kernel(state=None)}, "unknown kernel_unknown", id="the kernel's state is not known"),
    pytest.param(
        {"kernels": kernel(last_message_at=None)}, "unknown kernel_unknown", id="its last message is not known"
    ),
    pytest.param(
        {"kernels": kernel(holds_gpu=None)}, "unknown holder_unknown", id="the kernel on the GPU is not known"
    ),
    # a person asks
    pytest.param({"kept_at": NOW - 2 * MINUTE}, "busy kept", id="the user postponed the warning"),
    pytest.param({"kept_at": NOW - 21 * MINUTE}, "unused", id="the user postponed the warning some time ago"),
    # clocks
    pytest.param(
        {"samples": (*readings(30, until=NOW + 60 * MINUTE), *readings(5))},
        "unknown clock_moved",
        id="the clock went back an hour five minutes ago",
    ),
    pytest.param(
        {"samples": readings(60, until=NOW + MINUTE)}, "unknown clock_moved", id="readings from the future"
    ),
    pytest.param(
        {"samples": (*readings(60, until=NOW - 60 * MINUTE), *readings(5))},
        "unknown gap",
        id="the clock went forward an hour: the same as a hole",
    ),
    pytest.param(
        {"kernels": kernel(last_message_at=NOW + 1)}, "unknown clock_moved", id="a message from the future"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), SITUATIONS)
def test_the_classification(changes: dict[str, object], expected: str) -> None:
    assert said(classification(quiet_notebook(**changes))) == expected


def test_an_idle_classification_names_the_kernels_that_hold_the_gpu() -> None:
    found = classification(quiet_notebook(kernels=(QUIET, CPU_ONLY)))
    assert found == Idle(since=NOW - 60 * MINUTE - 10_000, kernels=("k1",), figures=(("for_s", 3610),))


def test_without_waiting_work_it_takes_longer() -> None:
    assert said(classification(quiet_notebook(), waiting=False)) == "busy recent_message"
    long_ago = replace(QUIET, last_message_at=NOW - 150 * MINUTE)
    seen = {"samples": readings(150), "reports": reports(150)}
    assert said(classification(quiet_notebook(kernels=(long_ago,), **seen), waiting=False)) == "unused"


def test_recent_use_has_the_instant_at_which_it_becomes_idle() -> None:
    found = classification(quiet_notebook(kernels=kernel(last_message_at=NOW - 5 * MINUTE)))
    assert isinstance(found, Busy)
    assert (found.since, found.idle_at) == (NOW - 5 * MINUTE, NOW + 15 * MINUTE)
    assert found.figures == (("for_s", 300), ("needed_s", 1200))


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        pytest.param({"last_message_at": NOW - 5 * MINUTE}, (300, 7200, 1200), id="a message"),
        pytest.param({"started_at": NOW - 6 * MINUTE}, (360, 7200, 1200), id="a start"),
    ],
)
def test_without_waiting_work_the_figures_have_the_shorter_wait(
    changes: dict[str, object], figures: tuple[int, ...]
) -> None:
    long_ago = {"last_message_at": NOW - 150 * MINUTE}
    seen = {"samples": readings(150), "reports": reports(150)}
    found = classification(quiet_notebook(kernels=kernel(**{**long_ago, **changes}), **seen), waiting=False)
    assert isinstance(found, Busy)
    assert found.figures == tuple(zip(("for_s", "needed_s", "waited_for_s"), figures, strict=True))


def test_a_busy_kernel_has_the_instant_since_which_the_gpu_is_unused() -> None:
    found = classification(quiet_notebook(kernels=kernel(**BUSY)))
    assert isinstance(found, Busy)
    assert (found.since, found.unused_since) == (NOW - 100 * MINUTE, NOW - 60 * MINUTE - 10_000)


def test_the_reason_of_an_unknown_reading_is_shown() -> None:
    samples = tuple(GpuSample(at=s.at, percent=None, why="under MPS processes have no figures") for s in readings(60))
    found = classification(quiet_notebook(samples=samples))
    assert isinstance(found, Unknown)
    assert found.figures == (("why", "under MPS processes have no figures"),)


def test_use_before_an_unknown_reading_is_not_idle_where_the_gpu_may_be_freed_at_once() -> None:
    samples = tuple(replace(one, percent=None) if one.at == NOW else one for one in readings(60, percent=40))
    at_once = replace(POLICY, gpu_idle_after_s=0)
    assert said(classification(quiet_notebook(samples=samples), policy=at_once)) == "unknown too_few_readings"


@pytest.mark.parametrize(
    ("late_ms", "expected"),
    [
        pytest.param(0, "unused", id="readings on time"),
        pytest.param(4_000, "unused", id="readings that come up to four seconds early or late"),
    ],
)
def test_a_slightly_late_reading_is_not_missing(late_ms: int, expected: str) -> None:
    samples = tuple(replace(s, at=s.at - late_ms * (i % 2)) for i, s in enumerate(readings(60)))
    assert said(classification(quiet_notebook(samples=samples))) == expected


@pytest.mark.parametrize(
    ("ago_s", "expected"),
    [
        pytest.param(1_199, "busy recent_message", id="one second too early"),
        pytest.param(1_200, "unused", id="exactly as long as it takes"),
    ],
)
def test_the_bound_is_exact(ago_s: int, expected: str) -> None:
    assert said(classification(quiet_notebook(kernels=kernel(last_message_at=NOW - ago_s * 1000)))) == expected


# --- whatever is seen ---------------------------------------------------------------------------------------------
ages = st.integers(0, 130).map(lambda minutes: NOW - minutes * MINUTE)
percents = st.sampled_from([0, 0, 0, 0, 0, 0, 0, None, 50])
kernels = st.builds(
    KernelRecord,
    id=st.sampled_from(["k1", "k2", "k3"]),
    state=st.sampled_from([KernelState.IDLE, KernelState.IDLE, KernelState.BUSY, None]),
    started_at=st.one_of(st.none(), ages),
    last_message_at=st.one_of(st.none(), ages),
    holds_gpu=st.sampled_from([True, False, None]),
)


@st.composite
def notebooks(draw: st.DrawFn) -> NotebookActivity:
    """Mostly quiet notebooks, so that many are idle or nearly so, with a few things that are otherwise."""
    samples = list(readings(45, every_s=20 if draw(st.booleans()) else 10))
    for place in draw(st.lists(st.integers(0, len(samples) - 1), max_size=8)):
        samples[place] = replace(samples[place], percent=draw(percents))
    first, length = draw(st.integers(0, len(samples))), draw(st.sampled_from([0, 0, 1, 2, 3, 5, 30]))
    del samples[first : first + length]
    return quiet_notebook(
        samples=tuple(samples),
        kernels=draw(st.one_of(st.just((QUIET,)), st.lists(kernels, max_size=3).map(tuple), st.none())),
        started_at=draw(st.sampled_from([NOW - 200 * MINUTE, NOW - 200 * MINUTE, NOW - 3 * MINUTE, None])),
        kept_at=draw(st.one_of(st.none(), ages)),
    )


def with_something_unknown(activity: NotebookActivity, what: int) -> NotebookActivity:
    kernels = activity.kernels or (QUIET,)
    recent = [s for s in activity.samples if s.at < NOW - 20 * MINUTE]
    ways = [
        replace(activity, kernels=None),
        replace(activity, kernels=(*kernels, replace(QUIET, id="x", state=None))),
        replace(activity, kernels=(*kernels, replace(QUIET, id="x", last_message_at=None))),
        replace(activity, kernels=(*kernels, replace(QUIET, id="x", holds_gpu=None))),
        replace(activity, started_at=None),
        replace(activity, samples=()),
        replace(activity, samples=tuple(recent)),
        replace(activity, samples=tuple(replace(s, percent=None) for s in activity.samples)),
        replace(activity, reports=()),
        replace(activity, reports=activity.reports[:-4]),
    ]
    return ways[what % len(ways)]


@settings(max_examples=200, deadline=None)
@given(notebooks(), st.integers(0, 9), st.booleans())
def test_missing_facts_are_never_idle(activity: NotebookActivity, what: int, waiting: bool) -> None:
    assert not isinstance(classification(with_something_unknown(activity, what), waiting=waiting), Idle)


@settings(max_examples=200, deadline=None)
@given(notebooks(), st.integers(0, 45 * 60), st.sampled_from(["use", "message", "busy", "program", "keep"]))
def test_another_sign_of_use_never_makes_a_notebook_idle(activity: NotebookActivity, ago_s: int, sign: str) -> None:
    before, at = classification(activity), NOW - ago_s * 1000
    after = classification(with_one_more(activity, at, sign))
    assert isinstance(before, Idle) or not isinstance(after, Idle)


def with_message(kernel: KernelRecord, at: int) -> KernelRecord:
    """One more message; when the newest came stays unknown where it was: to learn that is no sign of use."""
    known = kernel.last_message_at
    return kernel if known is None else replace(kernel, last_message_at=max(at, known))


def with_one_more(activity: NotebookActivity, at: int, sign: str) -> NotebookActivity:
    """The same notebook, with one more sign of use."""
    kernels = activity.kernels
    match sign:
        case "use":
            samples = sorted(
                [*(s for s in activity.samples if s.at != at), GpuSample(at=at, percent=7)], key=lambda s: s.at
            )
            return replace(activity, samples=tuple(samples))
        case "message":
            return replace(activity, kernels=kernels and (with_message(kernels[0], at), *kernels[1:]))
        case "busy":
            return replace(activity, kernels=kernels and (replace(kernels[0], state=KernelState.BUSY), *kernels[1:]))
        case "program":
            return replace(activity, programs=(replace(TERMINAL, used_gpu_at=at),))
        case _:
            return replace(activity, kept_at=max(at, activity.kept_at or 0))


@pytest.mark.parametrize(
    "back_ms", [3_600_000, 40_000, -5_000], ids=["an hour", "more than a hole", "after its reading"]
)
def test_an_implausible_instant_of_use_is_ignored(back_ms: int) -> None:
    """The use was five minutes ago; its stated instant is another."""
    used = GpuSample(at=NOW - 5 * MINUTE, percent=30, used_at=NOW - 5 * MINUTE - back_ms)
    before = tuple(s for s in readings(60) if s.at < used.at)
    after = tuple(s for s in readings(60) if s.at > used.at)
    found = classification(quiet_notebook(samples=(*before, used, *after)))
    assert said(found) == "busy recent_gpu_use"


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40 * 6), st.integers(-7_200_000, 7_200_000))
def test_after_a_clock_jump_a_notebook_is_unknown_until_enough_readings_arrived(seen: int, jump_ms: int) -> None:
    """``seen`` readings after the jump, an hour of them before it."""
    after = readings(40)[-seen:]
    moved = readings(60, until=after[0].at - 10_000 - jump_ms)
    found = classification(quiet_notebook(samples=(*moved, *after)))
    long_enough = (seen - 1) * 10 + 10 >= POLICY.gpu_idle_after_s
    unnoticed = -10_000 < jump_ms <= 25_000
    assert not isinstance(found, Idle) or long_enough or unnoticed


@settings(max_examples=150, deadline=None)
@given(notebooks(), st.booleans())
def test_an_idle_notebook_was_unused_since_the_stated_instant(activity: NotebookActivity, waiting: bool) -> None:
    found = classification(activity, waiting=waiting)
    if isinstance(found, Idle):
        assert NOW - found.since >= POLICY.gpu_after_s(waiting=waiting) * 1000
        assert not any(s.percent for s in activity.samples if s.at > found.since)
        assert all(k.state is KernelState.IDLE for k in activity.kernels or ())
        assert {k.id for k in activity.kernels or () if k.holds_gpu} == set(found.kernels)


def idle_for(minutes: int) -> Idle:
    return Idle(since=NOW - minutes * MINUTE, kernels=("k1",), figures=(("for_s", minutes * 60),))


@pytest.mark.parametrize(
    ("before", "before_ago", "unused_for"),
    [
        pytest.param(idle_for(300), 1, 300, id="idle ever since"),
        pytest.param(idle_for(300), 40, 26, id="not classified for longer than evidence is kept"),
        pytest.param(idle_for(20), 1, 26, id="known for longer than before"),
        pytest.param(Unknown(reason=IdleReason.GAP), 1, 26, id="unknown before"),
    ],
)
def test_a_notebook_that_stays_idle_is_unused_since_the_beginning(
    before: Classification, before_ago: int, unused_for: int
) -> None:
    found = continued(idle_for(26), before, before_at=NOW - before_ago * MINUTE, now=NOW)
    assert found == idle_for(unused_for)
