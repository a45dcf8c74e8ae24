"""The activity history of idle classification: in the order of arrival, with retention, and its sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from jupyter_gpu_quota.core.idle.activity import GpuSample, IdleMode, IdlePolicy
from jupyter_gpu_quota.core.idle.classification import Busy, Idle, IdleReason, Unknown
from jupyter_gpu_quota.core.idle.history import ActivityHistories, Report, simulated_sample
from jupyter_gpu_quota.core.idle.state_document import NAMES, MachineStateName, from_document, name_of, to_document
from jupyter_gpu_quota.core.idle.state_machine import (
    Freed,
    Freeing,
    InUse,
    Kept,
    MachineState,
    Reported,
    Stopping,
    Warned,
)
from jupyter_gpu_quota.messages.idle import WHY, duration, idle_sentence
from tests.core.idle.world import CPU_ONLY, MINUTE, NOW, POLICY, QUIET

FIRST = Report(instance="a", sequence=1, at=NOW, started_at=NOW - MINUTE, kernels=(QUIET,), programs=())


def after(report: Report, **changes: object) -> Report:
    return replace(report, sequence=report.sequence + 1, at=report.at + 1_000, **changes)  # type: ignore[arg-type]


def test_readings_and_reports_are_stored_in_the_order_of_arrival() -> None:
    histories = ActivityHistories()
    for at in (NOW, NOW + 10_000, NOW - 5_000):
        assert histories.add_sample("nb", GpuSample(at=at, percent=0), POLICY)
    assert histories.add_report("nb", FIRST, POLICY)
    found = histories.activity("nb", kept_at=None, holding=None)
    assert [sample.at for sample in found.samples] == [NOW, NOW + 10_000, NOW - 5_000]
    assert (found.reports, found.kernels, found.started_at) == ((NOW,), (QUIET,), NOW - MINUTE)


def test_the_kernels_of_a_notebook_without_a_report_are_unknown() -> None:
    assert ActivityHistories().activity("nb", kept_at=None, holding=()).kernels is None


def test_a_repeated_reading_counts_once() -> None:
    histories = ActivityHistories()
    sample = GpuSample(at=NOW, percent=0)
    assert [histories.add_sample("nb", sample, POLICY), histories.add_sample("nb", sample, POLICY)] == [True, False]


@pytest.mark.parametrize(
    ("late", "taken"),
    [
        pytest.param(after(FIRST), True, id="the next one"),
        pytest.param(replace(FIRST, at=NOW + 1), False, id="the same one again"),
        pytest.param(replace(FIRST, sequence=0), False, id="an earlier one"),
        pytest.param(replace(FIRST, instance="b", sequence=0, at=NOW + 1), True, id="the first of a new server"),
    ],
)
def test_reports_that_count(late: Report, taken: bool) -> None:
    histories = ActivityHistories()
    histories.add_report("nb", FIRST, POLICY)
    assert histories.add_report("nb", late, POLICY) is taken


def test_a_report_of_an_ended_server_is_refused() -> None:
    histories = ActivityHistories()
    histories.add_report("nb", FIRST, POLICY)
    histories.add_report("nb", replace(FIRST, instance="b", at=NOW + 1), POLICY)
    assert not histories.add_report("nb", after(FIRST), POLICY)


def test_a_late_report_of_an_ended_server_leaves_the_reports_of_the_present_one() -> None:
    histories, present = ActivityHistories(), replace(FIRST, instance="b", at=NOW + 1)
    for report in (FIRST, present, after(FIRST)):
        histories.add_report("nb", report, POLICY)
    assert histories.add_report("nb", after(present), POLICY)
    assert histories.activity("nb", kept_at=None, holding=None).reports == (NOW + 1, NOW + 1_001)


def test_server_instances_are_stored_up_to_a_bound() -> None:
    histories = ActivityHistories()
    for number in range(1_000):
        histories.add_report("nb", replace(FIRST, instance=f"i{number}", at=NOW + number), POLICY)
    assert len(histories._of("nb").gone) == 100
    assert not histories.add_report("nb", replace(FIRST, instance="i998", at=NOW + 1_000), POLICY)


def test_a_kernel_without_gpu_access_never_holds_the_gpu() -> None:
    histories = ActivityHistories()
    unknown = replace(QUIET, holds_gpu=None)
    histories.add_report("nb", replace(FIRST, kernels=(unknown, CPU_ONLY)), POLICY)
    holds = {
        holding: [kernel.holds_gpu for kernel in histories.activity("nb", kept_at=None, holding=holding).kernels or ()]
        for holding in (None, (), ("k1",), ("k2",))
    }
    assert holds == {None: [None, False], (): [False, False], ("k1",): [True, False], ("k2",): [False, False]}


def test_the_history_is_bounded_by_the_policy() -> None:
    histories = ActivityHistories()
    for step in range(5_000):
        histories.add_sample("nb", GpuSample(at=NOW + step * 10_000, percent=0), POLICY)
    kept = histories.activity("nb", kept_at=None, holding=None).samples
    assert POLICY.when_nobody_waits_s // 10 < len(kept) < 2 * POLICY.when_nobody_waits_s // 10


@pytest.mark.parametrize("first_percent", [pytest.param(0, id="never used"), pytest.param(5, id="used once")])
def test_the_last_use_does_not_follow_the_clock_when_its_reading_is_dropped(first_percent: int) -> None:
    histories = ActivityHistories()
    for step in range(5_000):
        percent = 0 if step else first_percent
        histories.add_sample("nb", GpuSample(at=NOW + step * 10_000, percent=percent), POLICY)
    assert histories.used_at("nb") == NOW


@pytest.mark.parametrize(
    ("percents", "used_at"),
    [
        pytest.param([], None, id="nothing was read"),
        pytest.param([0, 0], NOW, id="it was never used since readings began"),
        pytest.param([0, 5, 0], NOW + 10_000, id="it was used"),
        pytest.param([0, 5, None], None, id="the newest reading is unknown"),
    ],
)
def test_the_last_use_of_the_gpu(percents: list[int | None], used_at: int | None) -> None:
    histories = ActivityHistories()
    for step, percent in enumerate(percents):
        histories.add_sample("nb", GpuSample(at=NOW + step * 10_000, percent=percent), POLICY)
    assert histories.used_at("nb") == used_at


def test_ended_notebooks_are_forgotten() -> None:
    histories = ActivityHistories()
    histories.add_report("nb", FIRST, POLICY)
    histories.keep_only(set())
    assert histories.newest("nb") is None


# --- simulated devices --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "percent"),
    [
        pytest.param({"cpu_ms": {"k1": 5_000}}, 0, id="its kernel did nothing"),
        pytest.param({"cpu_ms": {"k1": 5_200}}, 2, id="its kernel did a little"),
        pytest.param({"cpu_ms": {"k1": 45_000}}, 100, id="four cores were busy"),
        pytest.param({"cpu_ms": {"k1": 5_000, "terminal 1": 3_000}}, 30, id="a terminal that is new works"),
        pytest.param({"cpu_ms": {"k1": 5_000, "terminal 1": None}}, None, id="a terminal cannot be read"),
        pytest.param({"cpu_ms": {}}, 0, id="nothing runs any more"),
        pytest.param({"cpu_ms": {"k1": 5_000}, "instance": "b"}, None, id="the server restarted"),
        pytest.param({"cpu_ms": {"k1": 5_000}, "at": NOW - 5_000}, None, id="the clock went back"),
    ],
)
def test_the_use_of_a_simulated_device_follows_the_cpu(changes: dict[str, object], percent: int | None) -> None:
    before = replace(FIRST, cpu_ms={"k1": 5_000})
    after = replace(before, sequence=2, **{"at": NOW + 10_000, **changes})  # type: ignore[arg-type]
    found = simulated_sample(before, after)
    assert found is not None
    assert (found.at, found.percent) == (after.at, percent)


def test_reports_close_together_give_no_cpu_use() -> None:
    assert simulated_sample(FIRST, replace(FIRST, at=NOW + 1_999)) is None


# --- stages as documents ------------------------------------------------------------------------------------------
STAGES: list[MachineState] = [
    InUse(kept=Kept(times=2, at=NOW), notified_at=NOW),
    Reported(at=NOW, kernels=("a",)),
    Warned(at=NOW, until=NOW + 1, kernels=("a", "b")),
    Freeing(at=NOW, kernels=("a",)),
    Freed(at=NOW, idle_since=None),
    Stopping(at=NOW, freed_at=NOW),
]


@pytest.mark.parametrize("stage", STAGES, ids=name_of)
def test_a_stored_state_is_read_back_equal(stage: MachineState) -> None:
    assert from_document(to_document(stage)) == stage


def test_every_state_has_a_name() -> None:
    assert {name_of(stage) for stage in STAGES} == set(NAMES) == set(get_args(MachineStateName))


# --- sentences ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", list(IdleReason))
def test_every_reason_is_a_sentence_even_without_its_figures(reason: IdleReason) -> None:
    for classification in (Busy(reason=reason, since=NOW), Unknown(reason=reason)):
        sentence = idle_sentence(classification, InUse(), IdleMode.REPORT, NOW)
        assert sentence.endswith(".")
        assert "{" not in sentence
    assert reason in WHY


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        pytest.param(STAGES[1], "The GPU is not freed: the policy only reports.", id="only reported"),
        pytest.param(
            Warned(at=NOW, until=NOW + 4 * MINUTE, kernels=("a",)),
            "In 4 minutes its kernels that use the GPU are shut down and their variables are lost. "
            "Run a cell, or keep it, to prevent that.",
            id="warned",
        ),
    ],
)
def test_the_next_step_is_shown(stage: MachineState, says: str) -> None:
    idle = Idle(since=NOW, kernels=("a",), figures=(("for_s", 1_260),))
    assert idle_sentence(idle, stage, IdleMode.REPORT, NOW) == f"It has been unused for 21 minutes. {says}"


def test_a_busy_kernel_that_does_not_use_the_gpu_has_that_sentence() -> None:
    busy = Busy(reason=IdleReason.KERNEL_BUSY, since=NOW)
    assert (
        idle_sentence(busy, InUse(), IdleMode.REPORT, NOW)
        == "A kernel is busy or starting; such a kernel is never shut down."
    )
    assert idle_sentence(busy, InUse(notified_at=NOW), IdleMode.REPORT, NOW) == (
        "A kernel is busy or starting; such a kernel is never shut down. It has not used the GPU for a long time: stop "
        "what it does not need, or shut the kernel down."
    )


@pytest.mark.parametrize(
    ("reason", "more", "says"),
    [
        pytest.param(
            IdleReason.RECENT_START,
            (("waited_for_s", 8),),
            "It was started 21 seconds ago; it counts as idle after 10 minutes "
            "(8 seconds while other work waits for a GPU).",
            id="no work waits, and with waiting work it is sooner",
        ),
        pytest.param(
            IdleReason.RECENT_MESSAGE, (), "A kernel was used 21 seconds ago; it counts as idle after 10 minutes.",
            id="work waits: that is the time",
        ),
        pytest.param(
            IdleReason.KEPT, (("waited_for_s", 8),),
            "A user postponed the warning 21 seconds ago; that lasts for 10 minutes "
            "(8 seconds while other work waits for a GPU).",
            id="postponed: for how long depends on waiting work",
        ),
    ],
)  # fmt: skip
def test_the_time_until_idle_is_shown_for_both_cases(
    reason: IdleReason, more: tuple[tuple[str, int], ...], says: str
) -> None:
    busy = Busy(reason=reason, since=NOW, figures=(("for_s", 21), ("needed_s", 600), *more))
    assert idle_sentence(busy, InUse(), IdleMode.REPORT, NOW) == says


def test_the_sentence_of_a_freed_gpu_has_no_time_until_idle() -> None:
    busy = Busy(reason=IdleReason.RECENT_START, since=NOW, figures=(("for_s", 300), ("needed_s", 600)))
    assert idle_sentence(busy, Freed(at=NOW, idle_since=None), IdleMode.REPORT, NOW) == (
        "It was started 5 minutes ago. None of its kernels uses a GPU; its server continues, its files are kept, and a "
        "new kernel gets the GPU again."
    )


def test_the_message_names_the_users_of_the_gpu_where_they_are_known() -> None:
    busy = Busy(reason=IdleReason.GPU_IN_USE, since=NOW, figures=(("percent", 5), ("users", "terminal 1")))
    assert idle_sentence(busy, InUse(), IdleMode.REPORT, NOW) == "The GPU is in use by terminal 1."


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (60, "1 minute"),
        (90, "90 seconds"),
        (1_200, "20 minutes"),
        (7_200, "2 hours"),
    ],
)
def test_a_duration_is_in_its_largest_unit(seconds: int, said: str) -> None:
    assert duration(seconds) == said


def test_the_idle_policy_is_that_of_the_quota_file() -> None:
    assert IdlePolicy().mode is IdleMode.REPORT
