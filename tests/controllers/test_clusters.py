"""Two clusters under one scheduling loop: the loss of one leaves the work of the other as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.clusters.backend import ClustersBackend
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.recovery.guard import RecoveryGuard
from jupyter_gpu_quota.controllers.scheduling import UNREAD_MS, Intervals, SchedulingController
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import OWN_CLUSTER, Node
from jupyter_gpu_quota.core.reasons import DeviceUnavailable
from jupyter_gpu_quota.messages.reasons import sentence
from jupyter_gpu_quota.store.history_mark import HistoryMark
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ChangeJob, JobSpec, Recorded, SubmitJob
from tests.backends.clusters.fakes import WEST, TwoClusters
from tests.controllers.setups.scheduling import NoSampler
from tests.patience import until

QUOTA = """
version: 1
pools:
  - {name: here, uses: [training]}
  - {name: there, selector: {cluster: west}, uses: [training]}
projects:
  - {name: vision, quota: {here: {training: 1}, there: {training: 1}}, members: {users: [bob]}}
  - {name: speech, quota: {here: {training: 1}, there: {training: 1}}, members: {users: [patty]}}
policy: {preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s, max_pauses: 100, per: 24h}}
"""
NOTICED_S = (UNREAD_MS + Intervals().inventory_ms) // 1000 + 5
"""Nodes of a cluster that cannot be read are closed within this time."""


class Site:
    """A store, two clusters in memory, and one controllers process after the other, on a virtual clock."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder, self.store = 1_000_000, folder, MemoryStore()
        self.two = TwoClusters(folder, lambda: self.now)
        self.users = {name: self.store.user_id(name, now=self.now) for name in ("bob", "patty")}
        file = quotafile.parse(QUOTA)
        assert not isinstance(file, list), file
        self.record(
            ApplyQuota(actor="a", text=QUOTA, document=file.to_document(), policy=file.policy(1), expected_revision=0)
        )
        self.begin("first")

    def begin(self, holder: str) -> None:
        """Begin a controllers process."""
        backend, self.terms = self.two.another(), list[SchedulingController]()
        self.leadership = Leadership(self.store, lambda: self.now, holder=holder)
        self.loop = Loop(
            "scheduling", lambda: self._controller(backend), self.leadership, lambda: self.now, takes_lease=True
        )

    def _controller(self, backend: ClustersBackend) -> SchedulingController:
        made = SchedulingController(
            clock=lambda: self.now, store=self.store, executor=backend.jobs, sampler=NoSampler(), validate=True,
            leadership=self.leadership,
            guard=RecoveryGuard(self.store, backend.attempts, HistoryMark(self.folder / "history.json")),
        )  # fmt: skip
        self.terms.append(made)
        return made

    def record(self, request: object) -> None:
        (outcome,) = self.store.record([request], now=self.now)  # type: ignore[list-item]
        assert isinstance(outcome, Recorded), outcome

    def submit(self, user: str, pool: str, *names: str, gpus: int = 1) -> None:
        project = {"bob": "vision", "patty": "speech"}[user]
        for name in names:
            spec = JobSpec(
                command=("train",), project=project, pool=pool, gpu_asked=str(gpus), gpu_milli=gpus * 1000, name=name
            )
            self.record(SubmitJob(job=name, user=self.users[user], account=None, spec=spec))
            self.now += 1

    def turn(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            while self.loop.run() <= self.now:
                pass
            assert self.loop.status.failures_in_a_row == 0, self.loop.status.last_error
            self.now += 1000

    def turn_until(self, seen: Callable[[], object]) -> None:
        """Turn until something is seen that a thread of the backend does."""
        until(lambda: (self.turn(), seen())[1])

    def states(self) -> dict[str, str]:
        records = {each.job.id: each.job for each in self.store.changes(0).jobs}
        return {name: str(records[name].state) for name in sorted(records)}

    def node(self, name: str) -> Node:
        return {node.id: node for node in self.store.changes(0).nodes}[name]

    def starts(self) -> dict[str, list[tuple[str, int]]]:
        """The start orders that each cluster carried out, by job and attempt."""
        by_name = {OWN_CLUSTER: self.two.own, WEST: self.two.west}
        return {name: sorted((order.job, order.attempt) for order in each.starts) for name, each in by_name.items()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_pool_has_the_devices_of_one_cluster(site: Site) -> None:
    site.submit("bob", "here", "h1", gpus=2)
    site.submit("bob", "there", "t1", gpus=2)
    site.submit("bob", "here", "h2", gpus=3)
    site.turn(3)
    assert {device.id: device.pool for device in site.store.changes(0).devices} == {
        "n1/0": "here", "n1/1": "here", "west:n1/0": "there", "west:n1/1": "there",
    }  # fmt: skip
    assert site.states() == {"h1": "running", "h2": "queued", "t1": "running"}
    assert site.starts() == {OWN_CLUSTER: [("h1", 1)], WEST: [("t1", 1)]}


def test_the_work_of_a_lost_cluster_is_kept_and_the_other_goes_on(site: Site) -> None:
    site.submit("bob", "here", "h1", "h2")
    site.submit("bob", "there", "t1", "t2")
    site.turn(3)
    site.two.west.is_away = True
    lost_at = site.now
    site.submit("patty", "here", "h3")
    site.submit("patty", "there", "t3")
    site.turn(NOTICED_S)
    assert site.states() == {
        "h1": "running", "h2": "paused", "h3": "running", "t1": "running", "t2": "pausing", "t3": "queued",
    }  # fmt: skip
    west, own = site.node("west:n1"), site.node("n1")
    assert (west.schedulable, own.schedulable, own.unread_since_at) == (False, True, None)
    assert west.unread_since_at is not None and abs(west.unread_since_at - lost_at) <= 60_000
    site.two.own.end("h1", 0)
    site.turn(3)
    assert (site.states()["h1"], site.states()["h2"]) == ("succeeded", "running")
    site.two.west.is_away = False
    site.turn(20)
    assert (site.node("west:n1").schedulable, site.node("west:n1").unread_since_at) == (True, None)
    assert {name: state for name, state in site.states().items() if name[0] == "t"} == {
        "t1": "running", "t2": "paused", "t3": "running",
    }  # fmt: skip
    assert site.starts()[WEST] == [("t1", 1), ("t2", 1), ("t3", 1)]
    assert len(site.terms) == 1, "the term went on"


def test_new_work_waits_for_a_lost_cluster_and_the_reason_names_it(site: Site) -> None:
    site.turn(2)
    site.two.west.is_away = True
    site.turn(NOTICED_S)
    site.submit("patty", "there", "t1")
    site.turn(2)
    mirror = site.terms[0].mirror
    policy = mirror.policy_at(site.now)
    assert policy is not None and site.states() == {"t1": "queued"}
    reason = explain(mirror.snapshot(site.now), policy, "t1").reason
    assert isinstance(reason, DeviceUnavailable), reason
    assert (reason.cluster, reason.unread_since_at) == (WEST, site.node("west:n1").unread_since_at)
    assert "Cluster west cannot be read since 1970-01-01T00:" in sentence(reason)


def test_a_leader_begins_without_a_lost_cluster_and_takes_it_over_when_it_returns(site: Site) -> None:
    site.submit("bob", "here", "h1")
    site.submit("bob", "there", "t1")
    site.submit("patty", "there", "t2")
    site.turn(3)
    site.leadership.resign()
    site.two.west.is_away = True
    site.begin("second")
    site.submit("patty", "here", "h2")
    site.turn(3)
    assert site.store.hold() is None, "the jobs of the lost cluster are no difference"
    assert site.states() == {"h1": "running", "h2": "running", "t1": "running", "t2": "running"}
    fencing = site.two.west.fencing
    assert site.two.own.fencing > fencing
    site.two.west.end("t1", 0)  # while nobody sees it
    site.two.west.is_away = False
    site.turn_until(lambda: site.states()["t1"] == "succeeded")
    assert site.states() == {"h1": "running", "h2": "running", "t1": "succeeded", "t2": "running"}
    assert site.two.west.fencing == site.two.own.fencing > fencing + 1
    assert len(site.terms) == 2, "the leader began one new term, although its lease never ended"
    assert site.starts() == {OWN_CLUSTER: [("h1", 1), ("h2", 1)], WEST: [("t1", 1), ("t2", 1)]}
    site.submit("bob", "there", "t3")
    site.turn(3)
    assert site.states()["t3"] == "running"


def test_a_job_that_a_returning_cluster_has_lost_is_found(site: Site) -> None:
    site.submit("bob", "here", "h1")
    site.submit("bob", "there", "t1")
    site.turn(3)
    site.leadership.resign()
    site.two.west.is_away = True
    site.begin("second")
    site.turn(3)
    site.two.west._runs.clear()
    site.two.west.is_away = False
    site.turn_until(lambda: site.store.hold() is not None)
    hold = site.store.hold()
    assert hold is not None
    assert [(each.job, each.kind) for each in hold.differences] == [("t1", "lost")]


def test_a_job_is_cancelled_in_a_lost_cluster_when_it_returns(site: Site) -> None:
    site.submit("bob", "there", "t1")
    site.turn(3)
    site.two.west.is_away = True
    site.record(ChangeJob(actor=site.users["bob"], job="t1", change="cancel"))
    site.turn(40)
    assert site.states() == {"t1": "pausing"}
    site.two.west.is_away = False
    site.turn(15)
    assert site.states() == {"t1": "cancelled"}
