"""The shapes of KAI-Scheduler's scale tests on kwok nodes, from the submission to the pod bound by kube-scheduler.

The shipped controllers run as a process of their own on an SQLite file, with the permissions of the chart. This process
records the jobs as the API's writer does. The verdict that a gang cannot start is the backfill reservation in the
database: the reason itself is computed from a snapshot when it is read, which the part "shapes" measures.
``python -m tests.benchmarks.kube.shapes [NODES]`` prints the figures.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from jupyter_gpu_quota.api.requests.writer import MAX_BATCH
from jupyter_gpu_quota.controllers.main import now_ms
from jupyter_gpu_quota.core.amounts import gpu_text
from jupyter_gpu_quota.store import wakeup
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ChangeJob, JobSpec, Refusal, SubmitJob
from tests.benchmarks.figures import Figure, print_plainly
from tests.benchmarks.kube.cluster import EACH, GPU, KwokCluster, Pods, kwok_cluster, missing
from tests.kube.jobs.test_service import settings_of
from tests.kube.service import KubernetesService
from tests.kube.world import install
from tests.patience import until

NODES, QUICK_NODES = 500, 20
SINGLE_CLAIMS, BLOCKED = 5, 80
STAGE_WITHIN_S = 1800.0
"""The time-out of one shape: the largest has 8,000 pods."""

MEMORY_MIB, REQUESTS_PER_POD = 500, 8

QUOTA = """\
version: 1
pools:
  - {{name: train, selector: {{gpu_model: [H100]}}, uses: [training]}}
projects:
  - {{name: filler, members: {{users: [runner]}}, quota: {{train: {{training: 0}}}}}}
  - {{name: owner, members: {{users: [runner]}}, quota: {{train: {{training: {gpus}}}}}}}
policy:
  preemption: {{min_runtime: 0s, grace: 1s, max_pauses: 100}}
"""

KAI = "KAI-Scheduler: {} s published, 500 kwok nodes, its own cluster"


class Site:
    """The controllers as a process, and the database that they share with this one."""

    def __init__(self, folder: Path, cluster: KwokCluster, gpus: int) -> None:
        self.cluster, self._state = cluster, folder / "state"
        self._state.mkdir()
        namespace = install(cluster.plane)
        self.pods = Pods(cluster.plane, namespace)
        settings = settings_of(cluster.plane, namespace, self._state) | {"run_dir": str(folder)}
        self._service = KubernetesService(folder, settings, only="controller", quota=QUOTA.format(gpus=gpus))
        database = self._state / "gpu-quota.sqlite"
        until(database.exists, what=self.log)
        self._store = open_store(f"sqlite:///{database}")
        self._user = self._store.user_id("runner", now=now_ms())
        self._wake = folder / "controller.sock"

    def submit(
        self, prefix: str, project: str, count: int, *, gpus: int = 1, ranks: int = 1, preemptible: bool = True
    ) -> float:
        """Queue so many jobs; returns the instant before."""
        began = time.monotonic()
        spec = JobSpec(
            command=("simulated",), project=project, pool="train", gpu_asked=gpu_text(gpus * 1000),
            gpu_milli=gpus * 1000, ranks=ranks, name=prefix, preemptible=preemptible,
        )  # fmt: skip
        self._record([
            SubmitJob(job=f"{prefix}{number:05d}", user=self._user, account=None, spec=spec) for number in range(count)
        ])  # fmt: skip
        return began

    def cancel(self, *jobs: str) -> None:
        self._record([ChangeJob(job=job, actor=self._user, change="cancel") for job in jobs])

    def leave_no_whole_node(self, prefix: str, count: int) -> None:
        """Cancel one job on each of so many nodes: their devices are free, and no node is whole."""
        of_node = {node: pod for pod, node in self.pods.nodes_of(prefix).items()}
        pods = [of_node[node] for node in sorted(of_node)][:count]
        assert len(pods) == count, f"{len(of_node)} nodes have a pod of {prefix}"
        left = len(self.pods.bound(prefix)) - count
        self.cancel(*(pod.split("-")[1] for pod in pods))
        until(lambda: len(self.pods.bound(prefix)) <= left, STAGE_WITHIN_S, lambda: self._state_of(prefix, left))

    def reserved(self, job: str, since: int, began: float) -> float:
        """Wait until the database has the job's backfill reservation; returns the seconds since ``began``."""
        until(
            lambda: any(each.workload == job for each in self._store.changes(since).reservations),
            STAGE_WITHIN_S, self.log,
        )  # fmt: skip
        return time.monotonic() - began

    def version(self) -> int:
        return self._store.version()

    def _record(self, requests: Sequence[SubmitJob | ChangeJob]) -> None:
        for first in range(0, len(requests), MAX_BATCH):
            while True:
                try:
                    outcomes = self._store.record(requests[first : first + MAX_BATCH], now=now_ms())
                    break
                except StoreUnavailable:  # the controllers had the lock
                    time.sleep(0.05)
            refused = [each.message for each in outcomes if isinstance(each, Refusal)]
            assert not refused, refused[0]
            wakeup.notify(self._wake, b"{}")

    def bound(self, prefix: str, count: int, began: float) -> float:
        """Wait until as many pods have a node; returns the seconds since ``began``."""
        until(lambda: len(self.pods.bound(prefix)) >= count, STAGE_WITHIN_S, lambda: self._state_of(prefix, count))
        return time.monotonic() - began

    def _state_of(self, prefix: str, count: int) -> str:
        return f"{len(self.pods.bound(prefix))} of {count} pods of {prefix} are bound; the log: {self.log()[-1500:]}"

    def peak_mib(self) -> float:
        """The highest resident memory of the controllers process, of those of the service the largest."""
        pids = Path(f"/proc/{self._service.process.pid}/task/{self._service.process.pid}/children").read_text().split()
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return max(int(text.split("VmHWM:")[1].split()[0]) for text in texts) / 1024

    def log(self) -> str:
        return self._service.log()

    def close(self) -> None:
        self._service.end()
        self.pods.close()
        self._store.close()


@contextmanager
def site(nodes: int) -> Iterator[Site]:
    """A cluster with so many nodes, and controllers that see all of them."""
    with tempfile.TemporaryDirectory() as folder, kwok_cluster(Path(folder)) as cluster:
        names = [f"n{number:04d}" for number in range(nodes)]
        labels = {f"{GPU}.product": "H100", f"{GPU}.memory": "81559"}
        cluster.add_nodes(names, {GPU: str(EACH)}, labels)
        made = Site(Path(folder), cluster, nodes * EACH)
        try:
            yield made
        finally:
            made.close()


def measure(nodes: int) -> Iterator[Figure]:
    """All shapes, one after the other, on one cluster."""
    gpus, gang = nodes * EACH, nodes // 2
    with site(nodes) as here:
        before = here.cluster.requests()
        took = here.bound("gq-f", gpus, here.submit("f", "filler", gpus))
        yield _figure(f"fill {nodes} nodes, {gpus} one-GPU jobs", took, nodes, "398")
        each = (here.cluster.requests() - before) / gpus
        yield Figure(
            name="API requests per started pod", value=each, unit="requests", bound=REQUESTS_PER_POD,
            timed="dispatched for the account of the controllers while they filled the cluster, watches included",
        )  # fmt: skip

        singles = [here.bound(f"gq-s{at}", 1, here.submit(f"s{at}", "owner", 1)) for at in range(SINGLE_CLAIMS)]
        timed = f"; median of {SINGLE_CLAIMS}, one after the other, worst {max(singles):.1f} s"
        yield _figure("reclaim 1 GPU of a full cluster", median(singles), nodes, "13.9", timed)

        took = here.bound("gq-g", gang, here.submit("g", "owner", 1, gpus=EACH, ranks=gang))
        yield _figure(f"gang of {gang} x {EACH} from a full cluster", took, nodes, "102")
        began = time.monotonic()
        here.cancel("g00000")
        here.bound("gq-f", gpus - SINGLE_CLAIMS, began)

        began = here.submit("m", "owner", gpus - SINGLE_CLAIMS, preemptible=False)
        took = here.bound("gq-m", gpus - SINGLE_CLAIMS, began)
        yield _figure(f"reclaim {gpus - SINGLE_CLAIMS} GPUs, one-GPU jobs", took, nodes, "694")

        here.leave_no_whole_node("gq-m", min(BLOCKED, nodes) // EACH * EACH)
        since = here.version()
        began = here.submit("n", "owner", 1, gpus=EACH, ranks=min(BLOCKED, nodes) // EACH)
        timed = "from the submission to the backfill reservation in SQLite, by which the job is known to wait"
        yield Figure(
            name=f"kube, verdict on a gang of {min(BLOCKED, nodes) // EACH} x {EACH} that no nodes can take",
            value=here.reserved("n00000", since, began), unit="s", timed=timed,
            peers=KAI.format("249.5") if nodes == NODES else "",
        )  # fmt: skip
        yield Figure(
            name="memory of the controllers", value=here.peak_mib(), unit="MiB", bound=MEMORY_MIB,
            timed=f"highest resident memory after all shapes, {nodes} nodes, {2 * gpus} jobs",
        )  # fmt: skip


def _figure(name: str, value: float, nodes: int, published: str, more: str = "") -> Figure:
    timed = "first submission to last pod bound by kube-scheduler, our decision and SQLite included"
    return Figure(
        name=f"kube, {name}", value=value, unit="s", timed=timed + more,
        peers=KAI.format(published) if nodes == NODES else "",
    )  # fmt: skip


def figures(quick: bool) -> list[Figure]:
    """None where the programs are not built."""
    return [] if missing() else list(measure(QUICK_NODES if quick else NODES))


if __name__ == "__main__":
    for one in measure(int(sys.argv[1]) if sys.argv[1:] else QUICK_NODES):
        print_plainly([one])
