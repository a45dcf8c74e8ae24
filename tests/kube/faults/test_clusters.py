"""Two clusters, each with a real API server, under one scheduling loop; one API server is stopped meanwhile."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.clusters.backend import ClustersBackend
from jupyter_gpu_quota.backends.clusters.members import Member, Members
from jupyter_gpu_quota.backends.clusters.routes import JobRoutes
from jupyter_gpu_quota.backends.rendering.cluster_names import SIMULATED_GPUS
from jupyter_gpu_quota.controllers import scheduling
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.recovery.guard import RecoveryGuard
from jupyter_gpu_quota.controllers.scheduling import Intervals, SchedulingController
from jupyter_gpu_quota.core.model import OWN_CLUSTER, JobState
from jupyter_gpu_quota.store.history_mark import HistoryMark
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.commands import ApplyQuota, JobSpec, Recorded, SubmitJob
from jupyter_gpu_quota.store.records.rows import JobRecord
from tests.controllers.setups.scheduling import NoSampler
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.jobs.test_service import settings_of
from tests.kube.service import KubernetesService
from tests.kube.test_doctor import doctor
from tests.kube.world import KubernetesWorld, install
from tests.patience import until

WEST = "west"
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
WORKS = "echo $GPU_QUOTA_ATTEMPT >> {began}; trap 'exit 75' TERM; while ! test -e {go}; do sleep 0.02; done"
"""A job that notes each of its processes, saves when it is stopped, and ends when the test says so."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Site:
    """A store, two clusters with two devices each, and one controllers process after the other."""

    def __init__(self, folder: Path, own: ControlPlane, west: ControlPlane) -> None:
        self.folder, self.store = folder, MemoryStore()
        (folder / "state").mkdir()
        self.worlds = {
            name: KubernetesWorld(plane, folder / name) for name, plane in ((OWN_CLUSTER, own), (WEST, west))
        }
        self.users = {name: self.store.user_id(name, now=now_ms()) for name in ("bob", "patty")}
        file = quotafile.parse(QUOTA)
        assert not isinstance(file, list), file
        self._record(
            ApplyQuota(actor="a", text=QUOTA, document=file.to_document(), policy=file.policy(1), expected_revision=0)
        )
        self.begin("first")

    def begin(self, holder: str) -> None:
        """Begin a controllers process."""
        self.terms = list[SchedulingController]()
        members = [Member(name, world.backend) for name, world in self.worlds.items()]  # type: ignore[arg-type]
        routes = JobRoutes(self.folder / "state", [WEST])
        self.backend = ClustersBackend(Members(members, answer_within_s=1.0), routes)  # no thread renews the lease
        self.leadership = Leadership(self.store, now_ms, holder=holder)
        self.loop = Loop("scheduling", self._controller, self.leadership, now_ms, takes_lease=True)

    def _controller(self) -> SchedulingController:
        made = SchedulingController(
            clock=now_ms, store=self.store, executor=self.backend.jobs, sampler=NoSampler(), validate=True,
            leadership=self.leadership, intervals=Intervals(inventory_ms=200, tick_max_ms=50),
            guard=RecoveryGuard(self.store, self.backend.attempts, HistoryMark(self.folder / "history.json")),
        )  # fmt: skip
        self.terms.append(made)
        return made

    def _record(self, request: object) -> None:
        (outcome,) = self.store.record([request], now=now_ms())  # type: ignore[list-item]
        assert isinstance(outcome, Recorded), outcome

    def submit(self, user: str, pool: str, *names: str) -> None:
        project = {"bob": "vision", "patty": "speech"}[user]
        for name in names:
            script = WORKS.format(began=self.folder / f"{name}.began", go=self.folder / f"{name}.go")
            spec = JobSpec(
                command=("sh", "-c", script), project=project, pool=pool, gpu_asked="1", gpu_milli=1000, name=name
            )
            self._record(SubmitJob(job=name, user=self.users[user], account=None, spec=spec))

    def finish(self, job: str) -> None:
        """The job's work is done."""
        (self.folder / f"{job}.go").touch()

    def jobs(self) -> dict[str, JobRecord]:
        return {record.job.id: record for record in self.store.changes(0).jobs}

    def states(self, *names: str) -> list[str]:
        return [str(self.jobs()[name].job.state) for name in names]

    def is_running(self, *names: str) -> bool:
        """Whether their processes run, by what they and the store say."""
        return self.states(*names) == [JobState.RUNNING] * len(names) and all(map(self.processes, names))

    def processes(self, job: str) -> list[str]:
        """The attempt of each process that the job ever had."""
        file = self.folder / f"{job}.began"
        return file.read_text().split() if file.exists() else []

    def turn_until(self, seen: Callable[[], object]) -> None:
        def turned() -> object:
            self.loop.run()
            assert not self.loop.status.failures_in_a_row, self.loop.status.last_error
            return seen()

        until(turned, what=lambda: {name: str(each.job.state) for name, each in self.jobs().items()})

    def is_closed(self) -> bool:
        (node,) = [node for node in self.store.changes(0).nodes if node.cluster == WEST]
        return not node.schedulable and node.unread_since_at is not None

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()


@pytest.fixture
def site(
    control_plane: ControlPlane, west_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setattr(scheduling, "UNREAD_MS", 1_000)
    made = Site(tmp_path, control_plane, west_plane)
    try:
        yield made
    finally:
        made.close()


def test_one_cluster_is_lost_and_the_other_starts_preempts_and_finishes_jobs(
    site: Site, west_plane: ControlPlane
) -> None:
    site.submit("bob", "here", "h1")
    site.turn_until(lambda: site.is_running("h1"))
    site.submit("bob", "here", "h2")  # begins later, so it loses less work when one of the two is paused
    site.submit("bob", "there", "t1", "t2")
    site.turn_until(lambda: site.is_running("h1", "h2", "t1", "t2"))
    with stopped(west_plane):
        site.submit("patty", "here", "h3")
        site.finish("t1")  # the API server does not learn of it yet
        site.turn_until(lambda: site.is_running("h1", "h3"))
        assert site.states("h2") == ["paused"]
        site.finish("h1")
        site.turn_until(lambda: site.is_running("h2", "h3"))
        assert site.processes("h2") == ["1", "2"]
        site.turn_until(site.is_closed)
        site.submit("patty", "there", "t3")
        site.finish("h3")
        site.turn_until(lambda: site.states("h3") == ["succeeded"])
        assert site.states("h1", "t1", "t2", "t3") == ["succeeded", "running", "running", "queued"]
    site.turn_until(lambda: site.states("t1") == ["succeeded"] and site.is_running("t2", "t3"))
    assert not site.is_closed()
    for job in ("h2", "t2", "t3"):
        site.finish(job)
    site.turn_until(lambda: site.states("h2", "t2", "t3") == ["succeeded"] * 3)
    assert {job: site.processes(job) for job in ("h1", "h2", "h3", "t1", "t2", "t3")} == {
        "h1": ["1"], "h2": ["1", "2"], "h3": ["1"], "t1": ["1"], "t2": ["1"], "t3": ["1"],
    }  # fmt: skip
    assert len(site.terms) == 1


SERVICE_QUOTA = """
version: 1
pools:
  - {name: here, uses: [training]}
  - {name: there, selector: {cluster: west}, uses: [training]}
projects:
  - {name: vision, members: {users: [bob]}, quota: {here: {training: 1}, there: {training: 1}}}
"""


def test_the_service_has_code_logs_and_outputs_of_jobs_in_both_clusters(
    control_plane: ControlPlane, west_plane: ControlPlane, tmp_path: Path
) -> None:
    places = {"here": (control_plane, tmp_path / "state"), "there": (west_plane, tmp_path / "west")}
    namespaces = {pool: install(plane) for pool, (plane, _) in places.items()}
    kubelets = [
        FakeKubelet(plane, namespaces[pool], "node", volume, annotations={SIMULATED_GPUS: "1"})
        for pool, (plane, volume) in places.items()
    ]
    west = {"config": west_plane.kubeconfig(namespaces["there"]), "namespace": namespaces["there"]}
    settings = settings_of(control_plane, namespaces["here"], tmp_path / "state") | {
        "kubernetes_clusters": {WEST: {**west, "state_dir": str(tmp_path / "west")}}
    }
    for kubelet in kubelets:
        kubelet.start()
    service = KubernetesService(tmp_path, settings, quota=SERVICE_QUOTA)
    try:
        service.wait_until_ready()
        _submit_to_both(service, tmp_path, {pool: volume for pool, (_, volume) in places.items()})
        until(lambda: doctor(settings)["west: fencing"]["verdict"] == "ok", what="the policy is in force")
        found = doctor(settings)
        assert (found["west: devices"]["found"], found["devices"]["found"]) == ("1 device on 1 node: 1 simulated",) * 2
    finally:
        service.end()
        for kubelet in kubelets:
            kubelet.stop()


def _submit_to_both(service: KubernetesService, folder: Path, volumes: Mapping[str, Path]) -> None:
    """Submit one job with code to each pool, read its log while it runs, and its log and outputs afterwards."""
    bob, code, go_on = service.client(), folder / "code", folder / "go-on"
    until(lambda: {each.cluster for each in bob.nodes()} == {OWN_CLUSTER, WEST}, what=service.log)
    assert sorted(each.id for each in bob.devices()) == ["node/0", "west:node/0"]
    code.mkdir()
    (code / "train.sh").write_text(
        f'echo began; while [ ! -e {go_on} ]; do sleep 0.05; done; echo "in $POOL" > "$GPU_QUOTA_OUTPUT_DIR/model"\n'
    )
    jobs = {pool: bob.submit("sh train.sh", gpu="1", dir=code, pool=pool, variables={"POOL": pool}) for pool in volumes}
    for job in jobs.values():
        until(lambda job=job: job.logs() == "began\n", what=service.log)  # type: ignore[misc]
    go_on.touch()
    for pool, job in jobs.items():
        until(lambda job=job: bob.job(job.id).state == "succeeded", what=service.log)  # type: ignore[misc]
        assert job.logs() == "began\n"
        assert [each.path for each in job.outputs()] == ["model"]
        assert (volumes[pool] / "jobs" / job.id / "outputs" / "model").read_text() == f"in {pool}\n"


@contextlib.contextmanager
def stopped(plane: ControlPlane) -> Iterator[None]:
    """The API server refuses connections."""
    plane.end("kube-apiserver")
    try:
        yield
    finally:
        plane.start_again()


@contextlib.contextmanager
def frozen(plane: ControlPlane) -> Iterator[None]:
    """The API server keeps all connections, and answers nothing."""
    process = plane._processes["kube-apiserver"]
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("lost", [stopped, frozen], ids=["the API server is stopped", "the API server is silent"])
def test_a_leader_takes_over_without_a_lost_cluster_and_with_it_when_it_returns(
    site: Site, west_plane: ControlPlane, lost: Callable[[ControlPlane], contextlib.AbstractContextManager[None]]
) -> None:
    site.submit("bob", "here", "h1")
    site.submit("bob", "there", "t1", "t2")
    site.turn_until(lambda: site.is_running("h1", "t1", "t2"))
    (west,) = [world for name, world in site.worlds.items() if name == WEST]
    fence = f"/api/v1/namespaces/{west.namespace}/configmaps/gpu-quota-fence"
    before = int(west_plane.get(fence)["data"]["fencing"])
    with lost(west_plane):
        site.leadership.resign()
        site.begin("second")
        site.submit("patty", "here", "h2")
        site.finish("t1")
        site.turn_until(lambda: site.is_running("h1", "h2"))
        assert site.store.hold() is None
        assert site.states("t1", "t2") == ["running", "running"]
        assert site.backend.attempts.left_out() == {WEST: False}
    site.turn_until(lambda: site.states("t1") == ["succeeded"] and not site.backend.attempts.left_out())
    site.submit("patty", "there", "t3")
    site.turn_until(lambda: site.is_running("h1", "h2", "t2", "t3"))
    lease = site.leadership.lease
    assert lease is not None and int(west_plane.get(fence)["data"]["fencing"]) == lease.fencing > before
    assert Counter(len(site.processes(job)) for job in ("h1", "h2", "t1", "t2", "t3")) == {1: 5}
    names = sorted(pod["metadata"]["name"] for pod in west.pods())
    assert {"gq-t2-1-0", "gq-t3-1-0"} <= set(names) <= {"gq-t1-1-0", "gq-t2-1-0", "gq-t3-1-0"}
