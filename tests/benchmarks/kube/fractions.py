"""Fractions as claims of a DRA driver's devices on kwok nodes: from the requests to running pods.

Pods and claims are rendered and created by the spawner's own code, without a hub: each slice names its device, as one
of our scheduler does. ``python -m tests.benchmarks.kube.fractions [NODES]`` prints the figures.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes_asyncio.client import ApiClient, Configuration, CoreV1Api, ResourceV1Api
from kubernetes_asyncio.config import load_kube_config

from jupyter_gpu_quota.backends.rendering.notebooks import CLAIM, notebook_pod
from jupyter_gpu_quota.backends.rendering.pods import PodSettings, pinned
from jupyter_gpu_quota.hub.pod_claim import PodClaim
from tests.benchmarks.figures import Figure, print_plainly, spread
from tests.benchmarks.kube.cluster import CONTROLLERS, EACH, KwokCluster, Pods, kwok_cluster, missing
from tests.kube.fractions.devices import MEMORY_MIB, device, device_class, resource_slice
from tests.kube.fractions.test_dra import consumed_in
from tests.patience import until_in_loop

Json = dict[str, Any]

NODES, QUICK_NODES = 500, 20
NOTEBOOKS, SINGLES, AT_ONCE = 400, 50, 32
EIGHTH = 125
RESOURCES = "/apis/resource.k8s.io/v1"
WITHIN_S, SINGLE_S = 60.0, 1.0


@dataclass(frozen=True)
class Part:
    device: str
    device_uuid: str
    gpu_milli: int = EIGHTH
    memory_mib: int = MEMORY_MIB // EACH
    device_memory_mib: int | None = MEMORY_MIB


@dataclass(frozen=True)
class Slice:
    """The booked slice of one notebook."""

    id: str
    allocations: tuple[Part, ...]


def slice_of(number: int, nodes: int) -> Slice:
    """Eight notebooks on each device, the devices of a node before the next."""
    slot = number // 8 % (nodes * EACH)
    node, name = f"n{slot // EACH:04d}", f"gpu-{slot % EACH}"
    return Slice(id=f"N{number}", allocations=(Part(device=f"{node}/{name}", device_uuid=f"GPU-{node}-{name}"),))


class Notebooks:
    """Creates the pods of notebooks with their claims."""

    def __init__(self, plane_config: Configuration, namespace: str) -> None:
        self._client = ApiClient(plane_config)
        self._core, self._resources = CoreV1Api(self._client), ResourceV1Api(self._client)
        self._settings = PodSettings(namespace=namespace, hub="local", image="", volume_claim="")

    async def start(self, booked: Slice) -> str:
        """The name of the pod."""
        patch, name = notebook_pod(booked, self._settings, simulated=False), f"jupyter-{booked.id.lower()}"
        assert patch.claim is not None and patch.node is not None
        claims = [{"name": CLAIM, "resourceClaimName": patch.claim["metadata"]["name"]}]
        container = {"name": "notebook", "image": "none", "resources": {"claims": [{"name": CLAIM}]}}
        spec = {
            "containers": [container], "resourceClaims": claims, "affinity": pinned({}, patch.node),
            "automountServiceAccountToken": False,
        }  # fmt: skip
        metadata = {"name": name, "labels": patch.labels}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = await self._core.create_namespaced_pod(self._settings.namespace, body)
        pod = {"metadata": {"name": name, "uid": made.metadata.uid}}
        await PodClaim(self._resources, patch.claim, pod, 10.0).create(60.0)
        return name

    async def close(self) -> None:
        await self._client.close()


@contextmanager
def cluster(nodes: int) -> Iterator[KwokCluster]:
    """Nodes with devices as NVIDIA's driver publishes them with consumableShares=memory."""
    with tempfile.TemporaryDirectory() as folder, kwok_cluster(Path(folder)) as made:
        made.plane.make(f"{RESOURCES}/deviceclasses", device_class())
        made.plane.start_program("kube-controller-manager", f"--controllers={','.join(CONTROLLERS)}")
        names = [f"n{number:04d}" for number in range(nodes)]
        made.add_nodes(names, {}, {})
        for name in names:
            devices = [device(f"gpu-{index}") for index in range(EACH)]
            for each in devices:
                each["attributes"]["uuid"] = {"string": f"GPU-{name}-{each['name']}"}
            made.plane.make(f"{RESOURCES}/resourceslices", resource_slice(name, *devices))
        yield made


async def measure(made: KwokCluster, nodes: int) -> list[Figure]:
    namespace = "notebooks"
    made.plane.make("/api/v1/namespaces", {"metadata": {"name": namespace}})
    made.plane.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    config = Configuration()
    await load_kube_config(made.plane.kubeconfig("admin"), client_configuration=config)
    pods, notebooks = Pods(made.plane, namespace), Notebooks(config, namespace)
    try:
        singles = [await _one(pods, notebooks, slice_of(number, nodes)) for number in range(SINGLES)]
        took_s = await _many(pods, notebooks, [slice_of(SINGLES + number, nodes) for number in range(NOTEBOOKS)])
    finally:
        pods.close()
        await notebooks.close()
    used = consumed_in(made.plane, namespace)
    parts = Counter(len(amounts) for amounts in used.values())
    assert sum(map(len, used.values())) == SINGLES + NOTEBOOKS, f"claims that are not allocated: {parts}"
    timed = f"{nodes} kwok nodes x {EACH}; pod, then claim, as the spawner creates them, to the pod Running"
    name = f"kube, {NOTEBOOKS} notebooks of 1/8 at once"
    return [
        *spread("kube, pinned fraction of 1/8, claim to running pod", singles, "s", timed, median_at_most=SINGLE_S),
        Figure(name=name, value=took_s, unit="s", bound=WITHIN_S, timed=f"{timed}; {AT_ONCE} requests at a time"),
    ]


async def _one(pods: Pods, notebooks: Notebooks, booked: Slice) -> float:
    began = time.monotonic()
    name = await notebooks.start(booked)
    await until_in_loop(lambda: name in pods.ran_at, what="the pod runs")
    return pods.ran_at[name] - began


async def _many(pods: Pods, notebooks: Notebooks, booked: list[Slice]) -> float:
    began, allowed = time.monotonic(), asyncio.Semaphore(AT_ONCE)

    async def start(one: Slice) -> str:
        async with allowed:
            return await notebooks.start(one)

    names = await asyncio.gather(*map(start, booked))
    await until_in_loop(lambda: pods.ran_at.keys() >= set(names), 600.0, "all pods run")
    return max(pods.ran_at[name] for name in names) - began


def figures(quick: bool) -> list[Figure]:
    """None where the programs are not built."""
    if missing():
        return []
    nodes = QUICK_NODES if quick else NODES
    with cluster(nodes) as made:
        return asyncio.run(measure(made, nodes))


if __name__ == "__main__":
    size = int(sys.argv[1]) if sys.argv[1:] else QUICK_NODES
    with cluster(size) as running:
        print_plainly(asyncio.run(measure(running, size)))
