"""A restored backup, with real job supervisors and a real database: devices stay with what runs, ends are recorded."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.job_files.paths import bundle_file
from jupyter_gpu_quota.backends.local.backend import LocalBackend
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.bundle import pack
from jupyter_gpu_quota.controllers.leadership.lease import FencedStore, Leadership, unique_holder
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.recovery.guard import RecoveryGuard
from jupyter_gpu_quota.controllers.scheduling import Intervals, SchedulingController
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reasons import CodeUnavailable
from jupyter_gpu_quota.core.recovery.differences import DifferenceKind
from jupyter_gpu_quota.store.backup import backup, restore
from jupyter_gpu_quota.store.history_mark import HistoryMark
from jupyter_gpu_quota.store.open import open_both
from jupyter_gpu_quota.store.records.calls import LeaseLost, Page
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ChangeJob, JobSpec, Recorded, SubmitJob
from jupyter_gpu_quota.store.records.recovery import AcceptRecovery
from jupyter_gpu_quota.store.records.rows import JobRecord
from jupyter_gpu_quota.store.transactions import Store
from tests.backends.worlds import passable_folder, stop
from tests.patience import PATIENCE_S, until

QUOTA = """
version: 1
pools: [{name: train, selector: {gpu_model: [Big]}, uses: [training]}]
projects: [{name: vision, quota: {train: {training: 2}}, members: {users: [bob]}}]
policy: {preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s, max_pauses: 100, per: 24h}}
"""
WORKS = "trap 'exit 75' TERM; while ! test -e {go}; do sleep 0.02; done; exit 0"
LEASE_MS = 400


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Killed(BaseException):
    """The process ends here: no handler of the controllers runs."""


class Site:
    """Two devices, one database, and controllers processes one after the other; each runs its loop step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.database = folder / "store.sqlite"
        self.url = f"sqlite:///{self.database}"
        self.backends: list[LocalBackend] = []
        self.start()
        self.bob = self.store.user_id("bob", now=now_ms())
        file = quotafile.parse(QUOTA)
        assert not isinstance(file, list), file
        request = ApplyQuota(
            actor="a", text=QUOTA, document=file.to_document(), policy=file.policy(1), expected_revision=0
        )
        assert isinstance(self.store.record([request], now=now_ms())[0], Recorded)

    # --- processes ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin a controllers process."""
        self.cached, self.store = open_both(self.url)
        kinds = [{"model": "Big", "memory_mib": 16_384, "count": 2}]
        self.backend = LocalBackend(self.state, simulated_devices=kinds, node="n")
        self.backends.append(self.backend)
        self.leadership = Leadership(self.cached, now_ms, holder=unique_holder(), lease_ms=LEASE_MS)
        self.loop = Loop("scheduling", self._controller, self.leadership, now_ms, takes_lease=True)

    def _controller(self) -> SchedulingController:
        return SchedulingController(
            clock=now_ms, store=self.cached, executor=self.backend.jobs, sampler=self.backend.samples,
            leadership=self.leadership, intervals=Intervals(tick_max_ms=10, sample_ms=200), validate=True,
            guard=RecoveryGuard(self.cached, self.backend.attempts, HistoryMark(self.state / "history.json")),
        )  # fmt: skip

    def end(self) -> None:
        """End the controllers process as the hub does; jobs continue."""
        self.leadership.resign()
        self.cached.close()

    def turn_until(self, seen: Callable[[], Any], what: str) -> None:
        def turned() -> bool:
            self.loop.run()
            self.check_devices()
            if self.loop.status.failures_in_a_row:
                raise AssertionError(self.loop.status.last_error)
            return bool(seen())

        until(turned, what=what)

    def turns(self, count: int = 30) -> None:
        for _ in range(count):
            self.loop.run()
            self.check_devices()
            time.sleep(0.01)

    def check_devices(self) -> None:
        """No device has two jobs, by what the supervisors recorded."""
        jobs = [path.name for path in (self.state / "jobs").iterdir()]
        used = [
            part.device for each in self.backend.attempts.newest(jobs) if each.has_processes
            for part in each.placements or ()
        ]  # fmt: skip
        assert len(used) == len(set(used)), used

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def submit(self, job: str, **code: Any) -> None:
        spec = JobSpec(
            command=("sh", "-c", WORKS.format(go=self.folder / f"{job}.go")), project="vision", pool="train",
            gpu_asked="1", gpu_milli=1000, name=job, **code,
        )  # fmt: skip
        request = SubmitJob(job=job, user=self.bob, account=None, spec=spec)
        assert isinstance(self.store.record([request], now=now_ms())[0], Recorded)

    def change(self, job: str, change: Any) -> None:
        outcome = self.store.record([ChangeJob(job=job, change=change, actor=self.bob)], now=now_ms())[0]
        assert isinstance(outcome, Recorded)

    def record(self, job: str) -> JobRecord:
        found = self.store.job(job)
        assert found is not None
        return found

    def is_in(self, job: str, *states: JobState) -> bool:
        return self.record(job).job.state in states

    def run(self, job: str) -> str:
        """Submit a job, wait until it runs, and return its device."""
        self.submit(job)
        self.turn_until(lambda: self.is_in(job, JobState.RUNNING), f"{job} to run")
        return self.device_of(job)

    def finish(self, job: str) -> None:
        (self.folder / f"{job}.go").touch()

    def device_of(self, job: str) -> str:
        return next(part.device for part in self.store.changes(0).allocations if part.workload == job)

    def foreign(self) -> dict[str, int]:
        return {device.id: device.foreign_milli for device in self.store.changes(0).devices if device.foreign_milli}

    def accept(self, *, stop_unknown: bool = False) -> None:
        request = AcceptRecovery(actor=self.bob, stop_unknown=stop_unknown)
        assert isinstance(self.store.record([request], now=now_ms())[0], Recorded)

    def audited(self) -> list[str]:
        return [row.kind for row in self.store.audit(page=Page(limit=10_000))[0]]

    def close(self) -> None:
        last = LocalJobs(self.state, simulated_devices=[])
        for fact in last.observe():
            if not fact.tree_gone:
                last.stop(stop(fact.job, attempt=fact.attempt, fencing=10**6, grace_s=0))
        until(lambda: all(fact.tree_gone for fact in last.observe()), what=last.observe)
        last.close()
        for backend in self.backends:
            backend.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with passable_folder() as folder:
        made = Site(folder)
        try:
            yield made
        finally:
            made.close()


def work_since(site: Site, *, ends_early: str = "early") -> tuple[Path, dict[str, str]]:
    """A backup, and then jobs that start, end and move. Returns the backup, and the device of each job that runs."""
    first, second = site.run("ends"), site.run("moves")
    site.submit("waits")
    site.change("waits", "hold")
    site.turns(3)
    file = site.folder / "backup.sqlite"
    backup(site.url, file)
    site.finish("ends")
    site.turn_until(lambda: site.is_in("ends", JobState.SUCCEEDED), "the end of a job")
    assert site.run(ends_early) == first
    site.change("moves", "hold")
    site.turn_until(lambda: site.is_in("moves", JobState.HELD), "a held job")
    assert site.run("new") == second
    site.finish(ends_early)
    site.turn_until(lambda: site.is_in(ends_early, JobState.SUCCEEDED), "the end of a job")
    site.change("moves", "release")
    site.turn_until(lambda: site.is_in("moves", JobState.RUNNING), "the moved job to run")
    return file, {"moves": first, "new": second}


def kinds(site: Site) -> dict[str, str]:
    hold = site.store.hold()
    assert hold is not None
    return {each.job: str(each.kind) for each in hold.differences}


DIFFERENCES = {"ends": "ended", "moves": "moved", "new": "unknown"}


def assert_held(site: Site) -> None:
    """Nothing is decided, and no other loop acts."""
    site.turn_until(lambda: site.store.hold() is not None and kinds(site) == DIFFERENCES, "the differences")
    plans = site.audited().count("plan")
    site.change("waits", "release")
    site.turns()
    assert site.is_in("waits", JobState.QUEUED)
    assert site.audited().count("plan") == plans
    assert site.leadership.current() is None and site.leadership.lease is not None
    with pytest.raises(LeaseLost):
        FencedStore(site.store, site.leadership, now_ms).check()


def assert_recovered(site: Site, devices: dict[str, str]) -> None:
    """The jobs are as their supervisors recorded, and unknown work keeps its device until it ends."""
    assert site.is_in("ends", JobState.SUCCEEDED) and site.record("ends").exit_status == 0
    moved = site.record("moves").job
    assert (moved.state, moved.attempt, site.device_of("moves")) == (JobState.RUNNING, 2, devices["moves"])
    assert site.store.job("new") is None and site.foreign() == {devices["new"]: 1000}
    if site.is_in("waits", JobState.HELD):
        site.change("waits", "release")
    site.turns()
    assert site.is_in("waits", JobState.QUEUED), "both devices are in use"
    site.finish("new")
    site.turn_until(lambda: site.is_in("waits", JobState.RUNNING), "a job on the device of the unknown one")
    assert site.device_of("waits") == devices["new"] and not site.foreign()
    site.finish("moves")
    site.turn_until(lambda: site.is_in("moves", JobState.SUCCEEDED), "the end of the moved job")
    assert isinstance(site.store.audit_verify(), int)


def put_back_by_hand(site: Site, file: Path) -> None:
    """As an admin without the command does, with the service stopped."""
    for path in site.folder.glob("store.sqlite*"):
        path.unlink()
    shutil.copy(file, site.database)


def put_back(site: Site, file: Path) -> None:
    restore(site.url, file, now=now_ms())


def put_back_over_damage(site: Site, file: Path) -> None:
    """The database is damaged, and the command moves it aside."""
    for path in (site.database, site.database.with_name("store.sqlite-wal")):
        if path.exists():
            path.write_bytes(b"x" * path.stat().st_size)
    mark = HistoryMark(site.state / "history.json").read()
    assert mark is not None
    assert restore(site.url, file, now=now_ms(), above=mark.fencing).moved


WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param(put_back, id="with the command"),
        pytest.param(put_back_by_hand, id="by hand"),
        pytest.param(put_back_over_damage, id="over a damaged one"),
    ],
)


@WAYS
def test_a_backup_restored_while_stopped_is_detected_before_any_decision(
    site: Site, way: Callable[[Site, Path], None]
) -> None:
    file, devices = work_since(site)
    used = site.backend.attempts.newest_fence()
    site.end()
    way(site, file)
    site.start()
    assert_held(site)
    assert site.leadership.lease is not None and site.leadership.lease.fencing > used
    site.accept()
    site.turn_until(lambda: site.store.hold() is None, "the recovery")
    assert_recovered(site, devices)


@WAYS
def test_a_backup_restored_while_the_leader_runs_is_detected(site: Site, way: Callable[[Site, Path], None]) -> None:
    file, devices = work_since(site)
    way(site, file)
    assert_held(site)
    site.accept()
    site.turn_until(lambda: site.store.hold() is None, "the recovery")
    assert_recovered(site, devices)


def test_unknown_work_is_stopped_on_request(site: Site) -> None:
    file, devices = work_since(site)
    put_back(site, file)
    assert_held(site)
    site.accept(stop_unknown=True)
    site.turn_until(lambda: site.is_in("waits", JobState.RUNNING), "the device of the stopped job")
    assert site.device_of("waits") == devices["new"] and not site.store.unknown_work()


def test_a_running_job_without_any_record_is_queued_again(site: Site) -> None:
    site.run("lost")
    file = site.folder / "backup.sqlite"
    backup(site.url, file)
    site.finish("lost")
    site.turn_until(lambda: site.is_in("lost", JobState.SUCCEEDED), "the end of a job")
    site.end()
    shutil.rmtree(site.state)
    put_back_by_hand(site, file)
    (site.folder / "lost.go").unlink()
    site.start()
    site.turn_until(lambda: site.store.hold() is not None and kinds(site) == {"lost": "lost"}, "the hold")
    site.accept()
    site.turn_until(lambda: site.is_in("lost", JobState.RUNNING), "the job to run again")
    assert site.record("lost").job.attempt == 2


def test_without_the_old_state_folder_jobs_wait_for_their_code(site: Site) -> None:
    """The recovery counts them. Once decisions are made again they are held, and none of them fails."""
    (site.folder / "code").mkdir()
    bundle = pack(site.folder / "code", site.folder / "packed")
    kept = Path(bundle_file(str(site.state / "bundles"), bundle.digest))
    kept.parent.mkdir(parents=True)
    shutil.copy(bundle.path, kept)
    for job in ("first", "second", "third"):
        site.submit(job, bundle=bundle.digest)
    site.turn_until(lambda: site.is_in("second", JobState.RUNNING), "two jobs to run")
    file = site.folder / "backup.sqlite"
    backup(site.url, file)
    for job in ("first", "second"):
        site.change(job, "cancel")
        site.turn_until(lambda job=job: site.is_in(job, JobState.CANCELLED), "the end of a job")
    site.change("third", "cancel")
    site.turns()
    site.end()
    shutil.rmtree(site.state)
    put_back_by_hand(site, file)
    site.start()
    site.turn_until(lambda: (hold := site.store.hold()) is not None and hold.without_code == 3, "the count")
    site.accept()
    jobs = [site.record(job) for job in ("first", "second", "third")]
    site.turn_until(lambda: all(site.is_in(each.job.id, JobState.HELD) for each in jobs), "the holds")
    assert {site.record(each.job.id).reason for each in jobs} == {CodeUnavailable()}

    kept.parent.mkdir(parents=True)
    shutil.copy(bundle.path, kept)
    site.change("third", "release")
    site.turn_until(lambda: site.is_in("third", JobState.RUNNING), "a job with its code")


def test_a_cancel_that_the_backup_lacks_is_not_undone(site: Site) -> None:
    site.run("cancelled")
    file = site.folder / "backup.sqlite"
    backup(site.url, file)
    site.change("cancelled", "cancel")
    site.turn_until(lambda: site.is_in("cancelled", JobState.CANCELLED), "the end of a job")
    put_back(site, file)
    site.turn_until(lambda: site.store.hold() is not None and kinds(site) == {"cancelled": "ended"}, "the hold")
    site.accept()
    site.turn_until(lambda: site.store.hold() is None, "the recovery")
    assert site.is_in("cancelled", JobState.CANCELLED)


def test_an_ordinary_restart_holds_nothing(site: Site) -> None:
    """Neither a take-over, nor a kill, nor work that ended meanwhile looks like an older database."""
    site.run("ends")
    site.run("stays")
    site.cached.close()
    site.finish("ends")
    path = site.state / "jobs" / "ends" / "attempts" / "1" / "rank-0" / "status.json"
    until(lambda: '"tree_gone": true' in path.read_text(), what="the end of a job")
    site.start()
    site.turn_until(lambda: site.is_in("ends", JobState.SUCCEEDED), "the end to be observed")
    assert site.store.hold() is None and "recovery.hold" not in site.audited()


def test_a_record_that_cannot_be_read_prevents_no_take_over(site: Site) -> None:
    device = site.run("stays")
    site.cached.close()
    status = site.state / "jobs" / "stays" / "attempts" / "1" / "rank-0" / "status.json"
    kept = status.rename(status.with_name("kept"))
    status.mkdir()
    try:
        site.start()
        assert site.run("other") != device == site.device_of("stays")
        assert site.store.hold() is None and site.is_in("stays", JobState.RUNNING)
    finally:
        status.rmdir()
        kept.rename(status)
    site.finish("stays")
    site.turn_until(lambda: site.is_in("stays", JobState.SUCCEEDED), "the end of the job")


STEPS: tuple[tuple[type, str], ...] = (
    (Store, "acquire_lease"), (Store, "record"), (Store, "recover"), (HistoryMark, "write"), (LocalJobs, "fence"),
)  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before each step", "after each step"])
def test_a_controller_killed_between_any_two_steps_of_the_recovery(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    file, devices = work_since(site)
    for killed_at in itertools.count():
        site.end()
        put_back_by_hand(site, file)
        site.start()
        calls = itertools.count()
        with monkeypatch.context() as patched:
            for owner, name in STEPS:
                patched.setattr(owner, name, _killing(getattr(owner, name), calls, killed_at, after=after))
            was_killed = not _recovers(site)
        if not was_killed:
            break
        site.start()
        site.turn_until(lambda: site.store.hold() is not None or "recovery.done" in site.audited(), "the next leader")
        if site.store.hold() is not None:
            site.accept()
        site.turn_until(lambda: site.store.hold() is None, "the recovery by the next leader")
        assert site.record("moves").job.attempt == 2 and site.foreign() == {devices["new"]: 1000}
    assert killed_at > 5
    assert_recovered(site, devices)


def _recovers(site: Site) -> bool:
    """Hold, accept, recover; False where the process was killed."""
    try:
        until(lambda: site.loop.run() and site.store.hold() is not None, PATIENCE_S)
        Store.record.__wrapped__(site.store, [AcceptRecovery(actor=site.bob)], now=now_ms())  # type: ignore[attr-defined]
        until(lambda: site.loop.run() and site.store.hold() is None, PATIENCE_S)
    except Killed:
        return False
    return True


def _killing(step: Callable[..., Any], calls: Iterator[int], killed_at: int, *, after: bool) -> Callable[..., Any]:
    def run(*given: Any, **named: Any) -> Any:
        is_now = next(calls) == killed_at
        if is_now and not after:
            raise Killed
        result = step(*given, **named)
        if is_now:
            raise Killed
        return result

    run.__wrapped__ = step  # type: ignore[attr-defined]
    return run


def test_the_kinds_are_public() -> None:
    assert {str(kind) for kind in DifferenceKind} == {"unknown", "moved", "ended", "lost"}
