"""The audit chain, people, samples, retention and changes, on every kind of store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.model import NotebookState
from jupyter_gpu_quota.core.plan import Lend, Refuse, Release, Reserve, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.database.tables import Head
from jupyter_gpu_quota.store.database.unit_of_work import UnitOfWork, audit_hash
from jupyter_gpu_quota.store.records.calls import AuditFilter, JobFilter, Page
from jupyter_gpu_quota.store.records.commands import KeepBundle, RequestSliceAgain, ReturnNotebook
from jupyter_gpu_quota.store.records.rows import AuditRow
from jupyter_gpu_quota.store.transactions import MAX_TRANSACTIONS, Store
from jupyter_gpu_quota.store.writes import retention
from jupyter_gpu_quota.store.writes.audit_chain import verify
from tests.store.worlds import DEVICES, KINDS, NODE, T0, WITHIN, World, opened, placements, submit


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


# --- audit ----------------------------------------------------------------------------------------------------------
def chain_of(world: World) -> tuple[Head, list[AuditRow]]:
    """Five rows and the head that covers them."""
    for number in range(3):
        world.submit(f"j{number}")
    rows = world.store.audit()[0][::-1]
    return Head(audit_seq=rows[-1].seq, audit_hash=rows[-1].hash), rows


def test_an_untouched_chain_holds(world: World) -> None:
    head, rows = chain_of(world)
    assert verify(head, rows) == len(rows) == world.store.audit_verify()


@pytest.mark.parametrize("field", ["at", "actor", "kind", "subject", "project", "payload", "hash", "previous", "seq"])
def test_an_edited_row_is_found(world: World, field: str) -> None:
    head, rows = chain_of(world)
    old = getattr(rows[2], field)
    rows[2] = replace(rows[2], **{field: 99 if isinstance(old, int) else f"{old or ''} "})
    answer = verify(head, rows)
    assert isinstance(answer, str) and "3" in answer


def test_an_edited_row_with_a_new_hash_is_found(world: World) -> None:
    head, rows = chain_of(world)
    edited = replace(rows[2], actor="somebody else")
    rows[2] = replace(edited, hash=audit_hash(edited))
    assert verify(head, rows) == "Audit row 4 does not follow row 3: one of the two was replaced or moved."


@pytest.mark.parametrize("gone", [0, 2, -1], ids=["the first", "one in the middle", "the last"])
def test_a_deleted_row_is_found(world: World, gone: int) -> None:
    head, rows = chain_of(world)
    del rows[gone]
    assert isinstance(verify(head, rows), str)


def test_a_duplicate_audit_row_is_reported(world: World) -> None:
    head, rows = chain_of(world)
    assert verify(head, [*rows[:2], rows[1], *rows[2:]]) == "Audit row 2 exists twice."


def test_swapped_rows_are_found(world: World) -> None:
    head, rows = chain_of(world)
    rows[1], rows[2] = replace(rows[2], seq=2), replace(rows[1], seq=3)
    assert isinstance(verify(head, rows), str)


def test_all_rows_deleted_is_found(world: World) -> None:
    head, _ = chain_of(world)
    assert isinstance(verify(head, []), str)


def test_the_audit_is_listed_by_time_and_project_newest_first(world: World) -> None:
    world.submit("old")
    world.now += 10
    world.submit("new")
    world.submit("other", "patty", project="patty-lab")
    since, total = world.store.audit(AuditFilter(since=T0 + 10))
    assert ([row.subject for row in since], total) == (["other", "new"], 2)
    mine, _ = world.store.audit(AuditFilter(projects=("bob-lab",)))
    assert [row.subject for row in mine] == ["new", "old"]
    assert world.store.audit(AuditFilter(projects=())) == ([], 0)
    one, total = world.store.audit(page=Page(offset=1, limit=1))
    assert ([row.subject for row in one], total) == (["new"], 6)


# --- people ---------------------------------------------------------------------------------------------------------
def test_a_user_keeps_one_id_and_the_name_is_stored_once(store: Store) -> None:
    ann = store.user_id("ann", now=T0)
    assert store.user_id("ann", now=T0 + 5) == ann != store.user_id("bob", now=T0)
    assert store.user_names([ann, "ghost"]) == {ann: "ann"}


def test_erasing_a_name_keeps_the_id(store: Store) -> None:
    ann = store.user_id("ann", now=T0)
    store.record([submit("j", ann)], now=T0)
    assert store.erase_name(ann, actor="admin", now=T0)
    assert not store.erase_name(ann, actor="admin", now=T0)
    assert store.user_names([ann]) == {}
    job = store.job("j")
    assert job is not None and job.job.user == ann
    assert "ann" not in repr(store.audit())
    assert store.user_id("ann", now=T0) != ann


def test_the_holder_of_the_lease_can_be_read(store: Store) -> None:
    assert store.lease() is None
    lease = store.acquire_lease("leader", clock=lambda: T0, ttl_ms=1000)
    assert lease is not None and store.lease() == lease
    store.release_lease(lease)
    assert store.lease() is None


def test_ids_are_ulids_that_sort_by_time(store: Store) -> None:
    first, second = store.user_id("ann", now=T0), store.user_id("bob", now=T0 + 1)
    assert len(first) == 26 and first < second


# --- samples --------------------------------------------------------------------------------------------------------
def sample(device: str, at: int, percent: int | None) -> DeviceSample:
    return DeviceSample(
        node="n1",
        device=device,
        at=at,
        utilisation_percent=percent,
        memory_used_mib=None,
        coverage_permille=900,
        simulated=True,
        workloads={"j": percent},
    )


def test_a_batch_of_samples_counts_once(store: Store) -> None:
    assert store.add_samples("n1", 7, [sample("d0", T0, 50), sample("d1", T0, None)], now=T0)
    assert not store.add_samples("n1", 7, [sample("d0", T0 + 1, 99)], now=T0)
    assert store.add_samples("n2", 7, [], now=T0)
    assert store.latest_samples() == {"d0": sample("d0", T0, 50), "d1": sample("d1", T0, None)}


def test_a_reading_is_stored_with_all_its_figures(store: Store) -> None:
    row = DeviceSample(
        node="n1", device="d0", at=T0, utilisation_percent=None, memory_used_mib=900, coverage_permille=0,
        simulated=False, workloads={"j": None, "k": 3}, workload_memory_mib={"j": 500, "k": None}, foreign_mib=100,
        temperature_c=41, power_w=120, why={"utilisation_percent": "Not Supported", "j": "MPS"},
    )  # fmt: skip
    store.add_samples("n1", 1, [row], now=T0)
    assert store.latest_samples() == {"d0": row}


def test_a_late_batch_does_not_hide_a_newer_one(store: Store) -> None:
    store.add_samples("n1", 2, [sample("d0", T0 + 10, 60)], now=T0)
    store.add_samples("n1", 1, [sample("d0", T0, 10), sample("d0", T0 + 10, 61)], now=T0)
    assert store.latest_samples()["d0"].utilisation_percent == 61


def test_samples_make_no_version(world: World) -> None:
    before = world.store.version()
    world.store.add_samples("n1", 1, [sample("d0", T0, 1)], now=T0)
    assert world.store.version() == before


# --- retention ------------------------------------------------------------------------------------------------------
def test_old_jobs_go_with_all_that_is_theirs_and_the_audit_stays(world: World) -> None:
    world.submit("old", key="k", bundle="b" * 64)
    world.run("old", "d0")
    world.see(world.gone("old", 0))
    world.ask_notebook("n")
    world.record(ReturnNotebook(notebook="n", actor="system:hub", why="stop"))
    world.submit("alive")
    world.run("alive", "d0")
    world.now += 1000
    world.submit("new")
    world.change("new", "cancel")
    audited = world.audited()
    world.now += 40 * 86_400_000
    assert world.store.forget(now=world.now, jobs_ended_before=T0 + 1, samples_before=0) == ["old"]
    assert world.store.job("old") is None and world.store.ranks("old") == [] and world.store.notebook("n") is None
    jobs, _ = world.store.jobs(JobFilter(projects=("bob-lab",)), Page())
    assert sorted(record.job.id for record in jobs) == ["alive", "new"]
    assert world.held() == {"d0": 1000} and world.store.bundles_in_use() == set()
    assert world.audited() == [*audited, "retention retention"]
    (removal,), (note,) = world.store.audit()[0][:1], world.store.notes("retention")
    assert (removal.at, note.at) == (world.now, world.now), "when it was removed, not since when it was due"
    assert json.loads(removal.payload)["ended_before"] == T0 + 1
    assert isinstance(world.store.audit_verify(), int)
    assert not world.record(submit("again", key="k"))[0].existed
    assert world.store.forget(now=world.now, jobs_ended_before=T0 + 1, samples_before=0) == []


def test_jobs_with_many_ranks_are_removed_in_several_short_transactions_and_calls(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job has had twelve ranks in three attempts, and a transaction removes four."""
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.retention.RANKS_AT_A_TIME", 4)
    world.submit("large", ranks=4)
    for attempt in range(3):
        world.run("large", "d0", "d1", "d2", "d3")
        if attempt < 2:
            world.pause("large")
        world.see(*(world.gone("large", 0, rank=rank, asked=attempt < 2) for rank in range(4)))
    _ended(world, "j1", "j2", "j3", "j4")
    ranks, writing, written = world.store.ranks("large"), world.store._writing, list[tuple[int, int]]()

    @contextmanager
    def counting(now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        with writing(now, repeatable=repeatable) as work:
            yield work
            written.append((len(work._written["ranks"]), len(work._written["jobs"])))

    monkeypatch.setattr(world.store, "_writing", counting)
    calls = [world.store.forget(now=world.now, jobs_ended_before=world.now, samples_before=0) for _ in range(3)]
    assert calls == [["large", "j1", "j2"], ["j3", "j4"], []] and len(ranks) == 12
    assert written == [(0, 0), (4, 0), (4, 0), (4, 1), (2, 2), (2, 2), (0, 0)]
    assert [world.store.ranks(job) for job in ("large", "j1", "j4")] == [[], [], []]
    assert world.audited()[-2:] == ["retention retention"] * 2 and isinstance(world.store.audit_verify(), int)


def test_one_call_removes_no_jobs_but_those_that_the_caller_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend removed the files of these, and not yet those of the others."""
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.retention.RANKS_AT_A_TIME", 2)
    _ended(world, "j1", "j2", "j3", "j4")
    world.submit("queued")
    found = ["j1", "j3", "queued", "unknown"]
    assert world.store.forget(now=world.now, jobs_ended_before=world.now, samples_before=0, jobs=found) == ["j1", "j3"]
    assert all(world.store.job(job) is not None for job in ("j2", "j4", "queued"))


def test_ended_jobs_are_read_after_a_position(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.store.queries.JOBS_AT_A_TIME", 2)
    _ended(world, "j1", "j2", "j3", "j4")
    first = world.store.ended_jobs(world.now)
    last = first[-1].ended_at
    assert last is not None
    second = world.store.ended_jobs(world.now, (last, "j2"))
    assert [record.job.id for record in (*first, *second)] == ["j1", "j2", "j3", "j4"]


def _ended(world: World, *jobs: str) -> None:
    for job in jobs:
        world.now += 1
        world.submit(job)
        world.run(job, "d0")
        world.see(world.gone(job, 0))
    world.now += 1


OVER_QUOTA = reason_from(ReasonCode.ABOVE_NOTEBOOK_QUOTA, (("quota_milli", 100),))


def test_notebooks_that_may_request_their_slices_again_stay_and_hide_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_A_TIME", 1)
    for name in ("released", "refused", "ended"):
        world.ask_notebook(name, server=name)
        parts = placements("d0", milli=125)
        world.committed(Start(workload=name, attempt=0, placements=parts, borrower=False, reason=WITHIN))
        if name != "ended":
            world.committed(Lend(workload=name, reason=reason_from(ReasonCode.LENT_WHILE_IDLE)))
            world.committed(Release(workload=name, reason=reason_from(ReasonCode.SLICE_RELEASED)))
    world.record(RequestSliceAgain(notebook="refused", actor="bob"))
    world.committed(Refuse(workload="refused", reason=OVER_QUOTA))
    world.ask_notebook("never booked", server="other")
    world.committed(Refuse(workload="never booked", reason=OVER_QUOTA))
    world.now += 1
    world.record(ReturnNotebook(notebook="ended", actor="system:hub", why="stop"))

    def left() -> set[str]:
        for _ in range(4):
            world.store.forget(now=world.now, jobs_ended_before=world.now + 1, samples_before=0)
        return {record.notebook.id for record in world.store.notebooks()[0]}

    stay = {"released", "refused"}
    assert {record.notebook.id for record in world.store.requestable_notebooks()} == stay == left()
    for name in stay:
        world.record(ReturnNotebook(notebook=name, actor="system:hub", why="stop"))
    assert world.store.requestable_notebooks() == [] and left() == set()


def test_old_samples_go_and_the_newest_of_each_device_stays_known(store: Store) -> None:
    for number in range(3):
        store.add_samples("n1", number, [sample("d0", T0 + number, number)], now=T0 + number)
    store.forget(now=T0, jobs_ended_before=0, samples_before=T0 + 2)
    assert store.latest_samples()["d0"].utilisation_percent == 2
    assert store.add_samples("n1", 0, [], now=T0), "its sequence number was forgotten with it"
    assert not store.add_samples("n1", 2, [], now=T0)


def test_one_call_removes_old_samples_in_a_few_transactions_and_later_calls_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.store.writes.retention.SAMPLES_AT_A_TIME", 2)
    for number in range(3 * MAX_TRANSACTIONS):
        store.add_samples("n1", number, [sample("d0", T0 + number, number)], now=T0 + number)
    left = list[int]()
    for _ in range(2):
        store.forget(now=T0, jobs_ended_before=0, samples_before=T0 + 1000)
        left.append(store.samples("d0", 0, T0 + 1000)[1])
    assert left == [MAX_TRANSACTIONS, 0]


# --- what changed ---------------------------------------------------------------------------------------------------
def test_a_first_request_reports_everything(world: World) -> None:
    world.submit("j")
    world.ask_notebook("n")
    changes = world.store.changes(0)
    assert sorted(record.job.id for record in changes.jobs) == ["j", "patty's job"]
    assert [record.notebook.id for record in changes.notebooks] == ["n"]
    assert (changes.nodes, sorted(changes.devices, key=lambda device: device.id)) == ((NODE,), list(DEVICES))
    assert changes.quota == world.store.quota()
    assert changes.version == world.store.version()


def test_later_reads_list_only_changed_rows(world: World) -> None:
    world.submit("j1")
    world.submit("j2")
    seen = world.store.version()
    world.start("j1", "d0")
    changes = world.store.changes(seen)
    assert [record.job.id for record in changes.jobs] == ["j1"]
    assert [allocation.workload for allocation in changes.allocations] == ["j1"]
    assert (changes.notebooks, changes.nodes, changes.devices, changes.quota) == ((), (), (), None)
    assert world.store.changes(changes.version) == replace(
        changes, jobs=(), allocations=(), released=(), reservations=(), unreserved=()
    )


def test_an_end_between_two_requests_is_reported_once(world: World) -> None:
    world.submit("j")
    world.committed(Reserve(workload="j", placements=placements("d0"), reason=WITHIN))
    seen = world.store.version()
    world.start("j", "d0")
    world.see(world.gone("j", 0))
    changes = world.store.changes(seen)
    assert [record.job.state for record in changes.jobs] == ["succeeded"]
    assert (len(changes.released), changes.allocations, changes.unreserved) == (1, (), ("j",))
    cold = world.store.changes(0)
    assert (cold.released, cold.unreserved) == ((), ())


def test_a_first_read_can_leave_out_ended_work(world: World) -> None:
    world.submit("j")
    world.change("j", "cancel")
    world.ask_notebook("n")
    world.record(ReturnNotebook(notebook="n", actor="system:hub", why="stop"))
    cold = world.store.changes(0, ended=False)
    assert ([record.job.id for record in cold.jobs], cold.notebooks) == (["patty's job"], ())
    notebooks, _ = world.store.notebooks(states=[NotebookState.RETURNED])
    assert len(notebooks) == 1


def test_every_writing_transaction_is_one_version(world: World) -> None:
    seen = [world.store.version()]
    world.submit("j")
    seen.append(world.store.version())
    world.start("j", "d0")
    seen.append(world.store.version())
    world.see(world.fact("j"))
    seen.append(world.store.version())
    world.record(KeepBundle(digest="b" * 64, user="bob", size_bytes=1))
    seen.append(world.store.version())
    assert seen == list(range(seen[0], seen[0] + 5))
