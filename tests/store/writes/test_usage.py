"""Hours of use: the allocation is exact, the use is that of the readings, and unknown use is not zero."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event

from jupyter_gpu_quota.core.model import JobTarget
from jupyter_gpu_quota.core.plan import Start
from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from jupyter_gpu_quota.store.database.sql import SqlRows
from jupyter_gpu_quota.store.database.tables import HOURS
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import UsageReader
from jupyter_gpu_quota.store.records.rows import UsageHour
from jupyter_gpu_quota.store.writes.usage import HOUR_MS, Hour, add_use, split_by_hour
from tests.patience import PATIENCE_S
from tests.store.worlds import KINDS, T0, WITHIN, World, opened, placements

SECOND, MINUTE = 1_000, 60_000
HOUR = T0 // HOUR_MS * HOUR_MS
FAR = T0 + 400 * 24 * HOUR_MS


class Read(World):
    """A world whose devices are read."""

    sequence = 0

    def read(self, device: str, **percent: int | None) -> bool:
        row = DeviceSample(
            node="n1", device=device, at=self.now, utilisation_percent=None, memory_used_mib=None,
            coverage_permille=None, simulated=False, workloads=percent,
        )  # fmt: skip
        self.sequence += 1
        return self.store.add_samples("n1", self.sequence, [row], now=self.now)

    def reads(self, device: str, minutes: int, every_s: int = 30, **percent: int | None) -> None:
        for _ in range(minutes * 60 // every_s):
            self.now += every_s * SECOND
            self.read(device, **percent)

    def flush(self) -> None:
        """One more reading of another device, late enough for all before it to be written."""
        self.now += MINUTE
        self.read("d3")

    def hours(self, begin: int = HOUR, end: int = HOUR + 24 * HOUR_MS) -> dict[tuple[int, str, str], UsageHour]:
        rows = self.store.usage(begin, end, now=self.now)
        assert len({(row.hour_at, row.workload, row.device) for row in rows}) == len(rows)
        return {(int(row.hour_at - HOUR) // HOUR_MS, row.workload, row.device): row for row in rows}


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Read]:
    with opened(request.param, tmp_path) as store:
        made = Read(store)
        made.now = HOUR
        made.lease = made.lead("leader")
        yield made


def begun(world: Read, job: str = "J", device: str = "d0") -> None:
    world.submit(job)
    begin(world, job, device)


def begin(world: Read, job: str, device: str) -> None:
    world.lease = world.lead("leader")
    world.run(job, device)


def ended(world: Read, job: str = "J") -> None:
    world.lease = world.lead("leader")
    world.stop(job, JobTarget.CANCELLED)
    world.see(world.gone(job, 0, asked=True))


def test_use_is_summed_by_hour_with_its_owner(world: Read) -> None:
    begun(world)
    world.read("d0", J=0)
    world.reads("d0", 30, J=50)
    world.reads("d0", 60, J=10)
    world.flush()
    first, second = world.hours()[0, "J", "d0"], world.hours()[1, "J", "d0"]
    assert (first.user, first.project, first.pool) == ("bob", "bob-lab", "train")
    assert (first.seen_s, first.used_milli_s) == (3_600, 500 * 1_800 + 100 * 1_800)
    assert (second.seen_s, second.used_milli_s) == (1_800, 100 * 1_800)
    assert (first.allocated_s, first.allocated_milli_s) == (3_600, 3_600_000)
    assert second.allocated_s == 31 * 60


def test_unknown_use_is_not_zero_use(world: Read) -> None:
    begun(world)
    world.read("d0", J=0)
    world.reads("d0", 10, J=None)
    world.reads("d0", 5, J=40)
    world.flush()
    row = world.hours()[0, "J", "d0"]
    assert (row.seen_s, row.used_milli_s) == (300, 400 * 300)


def test_a_hole_in_the_readings_is_not_seen(world: Read) -> None:
    begun(world)
    world.read("d0", J=0)
    world.now += 10 * MINUTE
    world.read("d0", J=90)
    world.reads("d0", 1, J=90)
    world.flush()
    assert world.hours()[0, "J", "d0"].seen_s == 60


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS], ids=["back", "forward"])
def test_a_clock_that_is_set_adds_no_hour_of_use(world: Read, jump_ms: int) -> None:
    begun(world)
    world.read("d0", J=0)
    world.reads("d0", 1, J=100)
    world.now += jump_ms
    world.reads("d0", 1, J=100)
    world.flush()
    rows = world.store.usage(HOUR - 2 * HOUR_MS, HOUR + 24 * HOUR_MS, now=world.now)
    assert sum(row.seen_s for row in rows if row.workload == "J") == 60 + 30


def test_readings_that_several_processes_store_in_turn_count_once(tmp_path: Path) -> None:
    """Several processes of the API take the readings of nodes; each sees only some of those of a device."""
    with opened("sqlite", tmp_path) as store, closing(open_store(f"sqlite:///{tmp_path / 'store.sqlite'}")) as other:
        world = Read(store)
        world.now = HOUR
        world.lease = world.lead("leader")
        begun(world)
        world.read("d0", J=0)
        for number in range(60):
            world.store = other if number % 3 else store
            world.reads("d0", 1, every_s=10, J=50)
        for each in (other, store):
            world.store = each
            world.flush()
        row = world.hours()[0, "J", "d0"]
        assert (row.seen_s, row.used_milli_s) == (3_600, 500 * 3_600)


def test_a_repeated_batch_counts_once(world: Read) -> None:
    begun(world)
    world.read("d0", J=0)
    for _ in range(6):
        world.now += 10 * SECOND
        assert world.read("d0", J=100)
        world.sequence -= 1
        assert not world.read("d0", J=100)
    world.flush()
    assert world.hours()[0, "J", "d0"].seen_s == 60


def test_shares_of_one_device_are_distinguished(world: Read) -> None:
    for job in ("I", "J"):
        world.submit(job)
        world.start(job, "d0", milli=500)
    world.read("d0", I=0, J=0)
    world.reads("d0", 10, I=30, J=0)
    world.flush()
    found = {workload: (row.used_milli_s, row.allocated_milli_s // row.allocated_s) for (_, workload, _), row in
             world.hours().items()}  # fmt: skip
    assert found == {"I": (300 * 600, 500), "J": (0, 500)}


def test_the_allocation_is_known_without_readings(world: Read) -> None:
    begun(world)
    world.now += 90 * MINUTE
    ended(world)
    world.now += HOUR_MS
    found = {hour: (row.allocated_s, row.seen_s) for (hour, _, _), row in world.hours().items()}
    assert found == {0: (3_600, 0), 1: (1_800, 0)}


def test_retention_of_a_job_keeps_its_hours_as_they_were(world: Read) -> None:
    begun(world)
    world.read("d0", J=0)
    world.reads("d0", 70, J=20)
    ended(world)
    world.flush()
    before = world.hours()
    assert len(before) == 2 and before[0, "J", "d0"].allocated_s == 3_600
    assert world.store.forget(now=world.now, jobs_ended_before=world.now + 1, samples_before=world.now) == ["J"]
    assert world.hours() == before
    world.store.forget(
        now=world.now, jobs_ended_before=world.now + 1, samples_before=world.now, usage_before=HOUR + HOUR_MS
    )
    assert list(world.hours()) == [(1, "J", "d0")]
    world.store.forget(now=world.now, jobs_ended_before=0, samples_before=0, usage_before=FAR)
    assert world.hours() == {}


def test_retention_of_much_use_takes_several_short_transactions_and_calls(
    world: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.retention.HOURS_AT_A_TIME", 6)
    for number in range(12):
        begun(world, f"j{number}")
        world.now += 3 * HOUR_MS
        ended(world, f"j{number}")
        world.now += 1
    before, writing, changed = world.hours(end=HOUR + 40 * HOUR_MS), world.store._writing, list[int]()

    @contextmanager
    def counting(now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        with writing(now, repeatable=repeatable) as work:
            yield work
            changed.append(len(work._written["usage_hours"]))

    monkeypatch.setattr(world.store, "_writing", counting)
    calls = [world.store.forget(now=world.now, jobs_ended_before=world.now, samples_before=0) for _ in range(3)]
    assert calls == [[], [], sorted(before_jobs := {f"j{number}" for number in range(12)}, key=calls[2].index)]
    assert len(before_jobs) == 12 and max(changed) <= 6
    assert world.hours(end=HOUR + 40 * HOUR_MS) == before


def test_a_large_hour_of_use_is_written_in_several_transactions(world: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.usage.HOURS_AT_A_TIME", 2)
    use = {f"j{number}": number for number in range(5)}
    world.read("d0", **use)
    world.reads("d0", 90, **use)
    world.flush()
    assert {key: row.used_milli_s for key, row in world.hours().items()} == {
        (hour, f"j{number}", "d0"): 10 * number * seen_s
        for number in range(5)
        for hour, seen_s in ((0, 3600), (1, 1800))
    }


def test_hours_are_read_by_their_keys(tmp_path: Path) -> None:
    """A cluster with thousands of GPUs has thousands of rows in each hour."""
    with opened("sqlite", tmp_path) as store:
        rows = store._rows
        assert isinstance(rows, SqlRows)
        with rows.reading() as scope, rows._engine.connect() as connection:
            read = list[str]()
            event.listen(scope._connection, "before_cursor_execute", lambda *given: read.append(given[2:4]))
            scope.get_many(HOURS, [(HOUR, "J", "d0"), (HOUR + HOUR_MS, "J", "d1")])
            ((statement, given),) = read
            (step, *_) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given).all()
    assert "(hour_at=? AND workload=?)" in step[3]


def test_only_the_requested_hours_are_returned(world: Read) -> None:
    begun(world)
    world.now += 5 * HOUR_MS
    found = world.hours(HOUR + 2 * HOUR_MS, HOUR + 4 * HOUR_MS)
    assert {hour: row.allocated_s for (hour, _, _), row in found.items()} == {2: 3_600, 3: 3_600}


def test_a_reader_gets_the_hours_of_their_work_and_of_their_projects(world: Read) -> None:
    """Of a job that retention removed (J), of one with readings (L), of a notebook, and of allocations alone."""
    begun(world)
    world.now += 90 * MINUTE
    ended(world)
    world.store.forget(now=world.now, jobs_ended_before=world.now + 1, samples_before=world.now)
    begun(world, "L", "d1")
    world.reads("d1", 20, L=50)
    world.flush()
    for job, user, project, device in (("K", "olga", "bob-lab", "d2"), ("P", "patty", "patty-lab", "d3")):
        world.submit(job, user, project=project)
        begin(world, job, device)
    world.ask_notebook("N")
    world.lease = world.lead("leader")
    parts = placements("d0", milli=125)
    world.committed(Start(workload="N", attempt=0, placements=parts, borrower=False, reason=WITHIN))
    world.now += 90 * MINUTE
    world.reads("d0", 2, X=10)  # of a workload that the database does not have
    world.flush()
    period = HOUR, HOUR + 24 * HOUR_MS
    every = world.store.usage(*period, now=world.now)
    assert {row.workload for row in every} == set("JKLNPX")
    for user, projects, seen in (
        ("bob", (), "JLN"),
        ("olga", ("bob-lab",), "JKLN"),
        ("bob", ("patty-lab",), "JLNP"),
        ("olga", ("bob-lab", "patty-lab"), "JKLNP"),
        ("eve", (), ""),
    ):
        found = world.store.usage(*period, now=world.now, reader=UsageReader(user=user, projects=projects))
        assert {row.workload for row in found} == set(seen)
        assert set(found) == {row for row in every if row.user == user or row.project in projects}


def test_a_database_failure_loses_no_facts(world: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(world)
    world.read("d0", J=0)
    world.reads("d0", 1, J=100)
    with monkeypatch.context() as broken:
        broken.setattr("jupyter_gpu_quota.store.transactions.add_use", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            world.flush()
    world.flush()
    assert world.hours()[0, "J", "d0"].seen_s == 60


def test_use_that_could_not_be_written_is_written_once_with_the_next_reading(
    world: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three transactions is stored, and the others are repeated."""
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.usage.HOURS_AT_A_TIME", 2)
    use, written = {f"j{number}": number for number in range(5)}, list[Mapping[Hour, tuple[int, int]]]()

    def fails(work: UnitOfWork, due: Mapping[Hour, tuple[int, int]]) -> None:
        written.append(due)
        add_use(work, due) if len(written) == 1 else 1 // 0

    world.read("d0", **use)
    world.now += 30 * SECOND
    world.read("d0", **use)
    with monkeypatch.context() as broken:
        broken.setattr("jupyter_gpu_quota.store.transactions.add_use", fails)
        with pytest.raises(ZeroDivisionError):
            world.flush()
    assert {workload for _, workload, _ in world.hours()} == {"j0", "j1"}
    world.read("d3")
    assert {key: (row.seen_s, row.used_milli_s) for key, row in world.hours().items()} == {
        (0, f"j{number}", "d0"): (30, 300 * number) for number in range(5)
    }


def test_use_is_written_once_where_two_nodes_report_at_the_same_time(
    world: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thread waits for the write lock while the second one stores its batch."""
    world.now = HOUR + HOUR_MS - 30 * SECOND
    for _ in range(2):
        world.read("d0", J=100)
        world.now += MINUTE
    first_waits, second_is_stored, writing = threading.Event(), threading.Event(), world.store._writing

    @contextmanager
    def in_turn(now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        if threading.current_thread() is not threading.main_thread():
            first_waits.set()
            assert second_is_stored.wait(PATIENCE_S)
        with writing(now, repeatable=repeatable) as work:
            yield work

    monkeypatch.setattr(world.store, "_writing", in_turn)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(world.read, "d1", J=0)
        assert first_waits.wait(PATIENCE_S)
        assert world.read("d2", J=0)
        second_is_stored.set()
        assert first.result(PATIENCE_S)
    world.flush()
    assert {hour: row.seen_s for (hour, _, _), row in world.hours().items()} == {0: 30, 1: 30}


def test_a_period_is_divided_at_whole_hours() -> None:
    assert list(split_by_hour(HOUR - 5, HOUR + HOUR_MS + 7)) == [
        (HOUR - HOUR_MS, 5),
        (HOUR, HOUR_MS),
        (HOUR + HOUR_MS, 7),
    ]
    assert list(split_by_hour(HOUR, HOUR)) == []


def test_after_the_clock_went_back_the_newest_reading_is_the_newest(world: Read) -> None:
    world.read("d0", J=10)
    world.now -= HOUR_MS
    world.read("d0", J=20)
    assert world.store.latest_samples()["d0"].workloads == {"J": 20}


def test_a_late_older_reading_is_not_the_newest(world: Read) -> None:
    world.read("d0", J=10)
    late = DeviceSample(
        node="n1", device="d0", at=world.now - MINUTE, utilisation_percent=None, memory_used_mib=None,
        coverage_permille=None, simulated=False, workloads={"J": 20},
    )  # fmt: skip
    assert world.store.add_samples("n1", 99, [late], now=world.now)
    assert world.store.latest_samples()["d0"].workloads == {"J": 10}


def test_the_processes_of_the_newest_reading_come_back_as_they_were(world: Read) -> None:
    use = ProcessUse(handle="7", memory_mib=None, percent=3, used_at=world.now, places=(("pid:[1]", 7, 99), ("", 1, 2)))
    row = DeviceSample(
        node="n1", device="d0", at=world.now, utilisation_percent=None, memory_used_mib=None, coverage_permille=None,
        simulated=False, workloads={"J": 3}, processes={"J": (use,), "I": ()},
    )  # fmt: skip
    world.store.add_samples("n1", 1, [row], now=world.now)
    assert world.store.latest_samples()["d0"] == row
