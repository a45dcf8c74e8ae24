"""The series of a job: its metrics, its progress and the use of its devices, in slots that widen as it lasts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store import transactions
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.job_series import SLOTS, WIDTH_MS, Point, Points, with_points, write_points
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.rows import JobSeries, Slot
from tests.patience import PATIENCE_S
from tests.store.worlds import KINDS, T0, World, opened


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def started(world: World, job: str = "j1") -> None:
    world.submit(job)
    world.start(job, "d0")


def report(world: World, seconds: int, rank: int = 0, **more: Any) -> None:
    world.now = T0 + seconds * 1000
    world.lease = world.lead("leader")
    fact = RankFact(job="j1", attempt=1, rank=rank, handle="100", started_at=T0, **more)
    assert world.store.observe([fact], lease=world.lease, now=world.now)


def sampled(world: World, seconds: int, percent: int | None, workload: str = "j1") -> None:
    world.now = T0 + seconds * 1000
    row = DeviceSample(
        node="n1", device="d0", at=world.now, utilisation_percent=percent, memory_used_mib=None, coverage_permille=1000,
        simulated=False, workloads={workload: percent}, workload_memory_mib={workload: 1024},
    )  # fmt: skip
    assert world.store.add_samples("n1", seconds, [row], now=world.now)


def flush(world: World, seconds: int) -> None:
    world.now = T0 + seconds * 1000
    world.store.add_series(now=world.now)


def slots(world: World, name: str, job: str = "j1") -> list[Slot]:
    row = world.store.series(job)
    return [] if row is None else list(row.series.get(name, ()))


def test_reported_metrics_are_stored_from_the_first_report_on(world: World) -> None:
    started(world)
    flush(world, 0)
    assert world.store.series("j1") is None
    report(world, 3, done=1, metrics={"loss": 4.0})
    report(world, 5, done=2, metrics={"loss": 2.0})
    report(world, 25, done=3, metrics={"loss": 1.0, "lr": 0.5})
    flush(world, 26)
    row = world.store.series("j1")
    assert row is not None and (row.begins_at, row.width_ms) == (T0 + 3_000, WIDTH_MS)
    assert slots(world, "metric loss") == [(0, 2, 3.0, 2.0, 4.0), (2, 1, 1.0, 1.0, 1.0)]
    assert slots(world, "metric lr") == [(2, 1, 0.5, 0.5, 0.5)]
    assert slots(world, "done") == [(0, 2, 1.5, 1.0, 2.0), (2, 1, 3.0, 3.0, 3.0)]


def test_the_same_report_is_one_point(world: World) -> None:
    started(world)
    flush(world, 0)
    for seconds in (1, 2, 3):
        report(world, seconds, metrics={"loss": 4.0})
    flush(world, 20)
    assert slots(world, "metric loss") == [(0, 1, 4.0, 4.0, 4.0)]


def test_other_ranks_and_numbers_without_a_json_form_add_nothing(world: World) -> None:
    world.submit("j1", ranks=2)
    world.start("j1", "d0", "d1")
    flush(world, 0)
    report(world, 1, rank=1, metrics={"loss": 1.0})
    report(world, 1, metrics={"loss": math.nan, "gain": math.inf, "ok": 1.0}, done=1 << 70)
    flush(world, 20)
    row = world.store.series("j1")
    assert row is not None and list(row.series) == ["metric ok"]


def test_the_use_of_its_devices_is_stored_and_unknown_use_is_left_out(world: World) -> None:
    started(world)
    sampled(world, 0, 40)
    sampled(world, 15, None)
    sampled(world, 30, 60)
    flush(world, 60)
    assert slots(world, "use d0") == [(0, 1, 400.0, 400.0, 400.0), (3, 1, 600.0, 600.0, 600.0)]
    assert [slot[0] for slot in slots(world, "memory d0")] == [0, 1, 3]


def test_points_of_many_jobs_are_written_in_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ended transaction keeps its points although the next one fails."""
    monkeypatch.setattr(transactions, "SERIES_AT_A_TIME", 1)
    started(world)
    sampled(world, 5, 50)
    sampled(world, 6, 50, workload="j0")
    written = list[str]()

    def write(work: UnitOfWork, due: Mapping[str, Sequence[Point]]) -> None:
        written.extend(due)
        if len(written) > 1:
            raise StoreUnavailable("the database has gone")
        write_points(work, due)

    monkeypatch.setattr(transactions, "write_points", write)
    with pytest.raises(StoreUnavailable):
        flush(world, 20)
    assert written == ["j1", "j0"] and slots(world, "use d0")


def test_a_point_that_arrives_while_others_are_taken_is_written_the_next_time() -> None:
    points, written = Points(), list[Point]()

    class Late(dict[str, int | None]):
        """The memory of workloads, at whose first reading another thread takes what is due."""

        def get(self, *key: Any) -> int | None:
            with ThreadPoolExecutor(1) as another:
                due = another.submit(points.take_due, T0 + 20_000).result(PATIENCE_S)
            written.extend(due.get("j1", ()))
            return super().get(*key)

    points.take_due(T0)
    row = DeviceSample(
        node="n1", device="d0", at=T0, utilisation_percent=None, memory_used_mib=None, coverage_permille=None,
        simulated=False, workloads={"j1": 50}, workload_memory_mib=Late(j1=1024),
    )  # fmt: skip
    points.take_samples([row])
    written += points.take_due(T0 + 40_000).get("j1", ())
    assert sorted(written) == [(T0, "memory d0", 1024), (T0, "use d0", 500)]


def test_a_notebook_has_no_series(world: World) -> None:
    world.ask_notebook("n")
    sampled(world, 0, 40, "n")
    flush(world, 60)
    assert world.store.series("n") is None


def test_nothing_is_written_within_ten_seconds(world: World) -> None:
    started(world)
    flush(world, 0)
    report(world, 1, metrics={"loss": 4.0})
    flush(world, 9)
    assert world.store.series("j1") is None
    flush(world, 10)
    assert world.store.series("j1") is not None


def test_a_series_changes_no_version_and_is_removed_with_its_job(world: World) -> None:
    started(world)
    flush(world, 0)
    report(world, 1, metrics={"loss": 4.0})
    before = world.store.version()
    flush(world, 20)
    assert world.store.version() == before
    report(world, 30, ended_at=T0 + 30_000, exit_status=0, tree_gone=True, metrics={"loss": 1.0})
    flush(world, 60)
    assert [slot[2] for slot in slots(world, "metric loss")] == [4.0, 1.0]
    world.store.forget(now=T0 + 3_600_000, jobs_ended_before=T0 + 3_600_000, samples_before=0)
    assert world.store.series("j1") is None and world.store.job("j1") is None


def test_a_long_job_has_as_many_slots_as_a_short_one() -> None:
    row = JobSeries(job="j", begins_at=T0, width_ms=WIDTH_MS)
    for minute in range(7 * 24 * 60):
        row = with_points(row, [(T0 + minute * 60_000, "metric loss", float(minute))])
    loss = row.series["metric loss"]
    assert SLOTS // 2 <= len(loss) <= SLOTS
    assert (sum(slot[1] for slot in loss), loss[0][3], loss[-1][4]) == (10_080, 0.0, 10_079.0)
    assert [slot[2] for slot in loss] == sorted(slot[2] for slot in loss)


points = st.lists(
    st.tuples(st.integers(T0 - 10_000, T0 + 10**10), st.sampled_from(["a", "b"]), st.floats(-1e308, 1e308)), min_size=1
)


@given(points)
def test_a_series_loses_no_extreme_and_is_the_same_in_any_batches(given: list[tuple[int, str, float]]) -> None:
    row = with_points(JobSeries(job="j", begins_at=T0, width_ms=WIDTH_MS), given)
    one_by_one = JobSeries(job="j", begins_at=T0, width_ms=WIDTH_MS)
    for point in given:
        one_by_one = with_points(one_by_one, [point])
    assert row == one_by_one
    for name in {name for _, name, _ in given}:
        values, found = [value for _, known, value in given if known == name], row.series[name]
        assert (min(slot[3] for slot in found), max(slot[4] for slot in found)) == (min(values), max(values))
        assert sum(slot[1] for slot in found) == len(values)
        assert all(slot[0] < SLOTS and slot[3] <= slot[4] and math.isfinite(slot[2]) for slot in found)
    assert replace(row, series={}) == JobSeries(job="j", begins_at=T0, width_ms=row.width_ms)
