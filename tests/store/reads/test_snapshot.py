"""A mirror reads only changes, and its snapshots equal those of a new reader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.canonical import snapshot_digest
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Job, PreemptionPolicy
from jupyter_gpu_quota.core.plan import Reserve
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ReturnNotebook
from jupyter_gpu_quota.store.records.rows import Changes
from tests.store.worlds import DEVICES, KINDS, NODE, POLICY, T0, WITHIN, World, opened, placements


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def seen(world: World) -> Mirror:
    mirror = Mirror()
    assert mirror.update(world.store)
    return mirror


def job_of(mirror: Mirror, job: str, now: int = T0) -> Job:
    [found] = [found for found in mirror.snapshot(now).jobs if found.id == job]
    return found


def test_a_snapshot_is_the_live_work_in_the_order_of_ids(world: World) -> None:
    for job in ("c", "a", "b", "over"):
        world.submit(job)
    world.change("over", "cancel")
    world.ask_notebook("n")
    world.committed(Reserve(workload="a", placements=placements("d1"), reason=WITHIN))
    world.start("b", "d0")
    snapshot = seen(world).snapshot(T0 + 5)
    assert [job.id for job in snapshot.jobs] == ["a", "b", "c", "patty's job"]
    assert ([notebook.id for notebook in snapshot.notebooks], snapshot.nodes) == (["n"], (NODE,))
    assert (snapshot.devices, snapshot.version, snapshot.now) == (DEVICES, world.store.version(), T0 + 5)
    assert [allocation.workload for allocation in snapshot.allocations] == ["b"]
    assert [reservation.workload for reservation in snapshot.reservations] == ["a"]


def test_an_unchanged_reading_is_no_change(world: World) -> None:
    mirror = seen(world)
    assert not mirror.update(world.store)
    first = mirror.snapshot(T0)
    assert mirror.snapshot(T0 + 1).jobs is first.jobs


def test_metrics_are_stored_and_make_no_plan_stale(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    mirror = seen(world)
    world.see(world.fact("j", done=4, metrics={"loss": 0.1}))
    assert not mirror.update(world.store)
    assert (mirror.jobs["j"].done, mirror.version) == (4, world.store.version())
    world.see(world.fact("j", saved_at=T0 - 1))
    assert mirror.update(world.store) and job_of(mirror, "j").checkpoint_at == T0 - 1


@pytest.mark.parametrize("event", ["submit", "cancel", "notebook", "return", "device", "inventory", "quota", "end"])
def test_changes_that_plans_depend_on_are_news(world: World, event: str) -> None:
    world.submit("j")
    world.submit("runs")
    world.run("runs", "d0")
    world.ask_notebook("n")
    mirror = seen(world)
    match event:
        case "submit":
            world.submit("j2")
        case "cancel":
            world.change("j", "cancel")
        case "notebook":
            world.ask_notebook("n2", server="second")
        case "return":
            world.record(ReturnNotebook(notebook="n", actor="bob", why="stop"))
        case "device":
            world.see(DeviceFact(device="d0", foreign_milli=5))
        case "inventory":
            world.see(DeviceFact(device="d1", health="unhealthy"))
        case "quota":
            edit = replace(POLICY, within_project="first_come")
            world.record(ApplyQuota(actor="a", text="", document={}, policy=edit, expected_revision=None))
        case "end":
            world.see(world.gone("runs", 0))
    assert mirror.update(world.store)
    assert mirror.snapshot(T0) == seen(world).snapshot(T0)


def test_those_that_just_ended_are_in_the_latest_changes(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    mirror = seen(world)
    world.see(world.gone("j", 0))
    mirror.update(world.store)
    assert "j" not in mirror.jobs and mirror.allocations() == ()
    assert mirror.latest is not None
    assert [record.job.state for record in mirror.latest.jobs] == ["succeeded"]


def test_a_pause_counts_until_it_leaves_the_window(world: World) -> None:
    window_ms = POLICY.preemption.per_s * 1000
    world.submit("j")
    for _ in range(2):
        world.run("j", "d0")
        world.pause("j")
        world.see(world.gone("j", 75, asked=True))
        world.now += 1000
    mirror = seen(world)
    assert job_of(mirror, "j", T0 + window_ms - 1).paused_at == (T0, T0 + 1000)
    assert job_of(mirror, "j", T0 + window_ms).paused_at == (T0 + 1000,)
    assert job_of(mirror, "j", T0 + window_ms + 1000).paused_at == ()
    assert mirror.jobs["j"].pauses == 2


def test_a_longer_window_counts_the_pauses_that_are_kept(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    mirror = seen(world)
    hour = 3_600_000
    assert job_of(mirror, "j", T0 + 2 * hour).paused_at == ()
    longer = replace(POLICY, preemption=PreemptionPolicy(per_s=86_400))
    world.record(ApplyQuota(actor="a", text="", document={}, policy=longer, expected_revision=None))
    mirror.update(world.store)
    assert job_of(mirror, "j", T0 + 2 * hour).paused_at == (T0,)
    assert mirror.policy == replace(longer, revision=2)


def test_a_job_that_changes_after_its_pauses_left_the_window_is_still_trimmed(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    mirror = seen(world)
    late = T0 + 3_600_000
    assert job_of(mirror, "j", late).paused_at == ()
    world.see(world.fact("j", done=1))
    assert not mirror.update(world.store)
    assert job_of(mirror, "j", late).paused_at == ()
    world.see(world.gone("j", 75, asked=True))
    mirror.update(world.store)
    assert job_of(mirror, "j", late).paused_at == ()


def test_a_job_has_one_entry_of_pauses_until_its_end(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    mirror = seen(world)
    for done in range(1, 9):
        world.see(world.fact("j", done=done))
        mirror.update(world.store)
        mirror.snapshot(T0 + done)
    assert set(mirror._pauses) == {"j"} and len(mirror._pauses) == 1
    world.change("j", "cancel")
    world.see(world.gone("j", 0, asked=True))
    mirror.update(world.store)
    assert "j" not in mirror.jobs and len(mirror._pauses) == 0


def test_a_restored_backup_is_read_from_the_start() -> None:
    old, new = World(MemoryStore()), World(MemoryStore())
    new.submit("lost with the restore")
    mirror = seen(new)
    assert mirror.update(old.store)
    assert mirror.snapshot(T0) == seen(old).snapshot(T0)


def test_an_unavailable_store_leaves_the_mirror_as_it_was(world: World) -> None:
    class Away(MemoryStore):
        def changes(self, since: int, *, ended: bool = True) -> Changes:
            raise StoreUnavailable("away")

    mirror = seen(world)
    before = mirror.snapshot(T0)
    with pytest.raises(StoreUnavailable):
        mirror.update(Away())
    assert mirror.snapshot(T0) == before


def test_the_digest_of_a_snapshot_is_the_same_from_its_mirror_and_from_the_snapshot_alone(world: World) -> None:
    mirror, digests = seen(world), set()
    for number, job in enumerate(("a", "b", "c")):
        world.submit(job)
        world.run(job, f"d{number % 2}") if number < 2 else world.ask_notebook("n")
        mirror.update(world.store)
        snapshot = mirror.snapshot(T0 + number)
        assert mirror.digest(snapshot) == snapshot_digest(snapshot)
        digests.add(snapshot_digest(snapshot))
    world.see(world.gone("a", 0))
    mirror.update(world.store)
    assert mirror.digest(snapshot) == snapshot_digest(snapshot), "an older one, too"
    digests.add(mirror.digest(mirror.snapshot(T0 + 2)))
    assert len(digests) == 4
