"""Each permission that the chart grants to the controllers is needed: without it the jobs of this scenario fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jupyter_gpu_quota.backends.kubernetes.permissions import PERMISSIONS, Permission
from tests.backends.contract import Controller
from tests.kube.chart.release import PATHS, rules
from tests.kube.conftest import missing
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES, share
from tests.kube.world import KubernetesWorld
from tests.patience import until

T = TypeVar("T")

pytestmark = pytest.mark.skipif(bool(missing("helm")), reason=missing("helm"))


def test_the_chart_grants_the_permissions_that_are_needed() -> None:
    for kind, cluster_scoped in (("Role", False), ("ClusterRole", True)):
        assert set(rules(kind)) == {each[:3] for each in PERMISSIONS if each.cluster_scoped is cluster_scoped}


class Denials(logging.Handler):
    """The requests that the API server denied, as the log of the controllers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def denials() -> Iterator[list[str]]:
    handler, log = Denials(), logging.getLogger("jupyter_gpu_quota")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler.texts
    log.setLevel(level)
    log.removeHandler(handler)


@pytest.fixture
def node(dra_plane: ControlPlane) -> Iterator[None]:
    slices = f"{RESOURCES}/resourceslices"
    dra_plane.make(slices, resource_slice("here", device("gpu-0"), device("gpu-1")))
    yield
    dra_plane.request("DELETE", f"{slices}/here")


def without(plane: ControlPlane, namespace: str, permission: Permission) -> None:
    """Take one verb from the role of the controllers."""
    kind = "ClusterRole" if permission.cluster_scoped else "Role"
    name = f"{namespace}.gpu-quota-controllers" if permission.cluster_scoped else "gpu-quota-controllers"
    path = f"{PATHS[kind].format(namespace)}/{name}"
    kept = [
        {
            **rule,
            "verbs": [
                each
                for each in rule["verbs"]
                if permission.resource not in rule["resources"] or each != permission.verb
            ],
        }
        for rule in plane.get(path)["rules"]
    ]
    plane.patch(path, {"rules": [rule for rule in kept if rule["verbs"]]})
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = permission.review(namespace)
    until(lambda: not plane.make(reviews, review, user=namespace)["status"]["allowed"], what="the permission is gone")


class Denied(Exception):
    """A request of the scenario was denied."""


class Scenario(KubernetesWorld):
    """A world that raises Denied as soon as the log or the reason of a rank has a denied request."""

    def __init__(self, *about: Any, denials: list[str], **more: Any) -> None:
        self._denials = denials
        super().__init__(*about, kubelet={}, **more)

    def until(self, seen: Callable[[], T]) -> T:
        def found() -> T:
            backend = getattr(self, "backend", None)
            refused = [fact.refused or "" for fact in backend.jobs.facts.newest.values()] if backend else []
            for text in [*self._denials, *refused]:
                if "forbidden: User" in text:
                    raise Denied(text)
            return seen()

        return until(found)

    def run(self) -> None:
        """A gang with secrets ends, a job is stopped, the pod of another is removed by force; all are settled."""
        controller, jobs = Controller(self), self.backend.jobs
        jobs.fence(1)
        alone = share(self, "J", 500, "gpu-0", command="exit 0")
        parts = (*alone.placements, replace(alone.placements[0], rank=1))
        controller.give(replace(alone, ranks=2, placements=parts, secrets={"TOKEN": "hunter2"}))
        controller.gone("J")
        controller.until(lambda fact: fact.rank == 1 and fact.tree_gone)
        controller.give(share(self, "K", 500, "gpu-1"))
        controller.until(lambda fact: fact.job == "K" and fact.started_at is not None)
        controller.stop("K", grace_s=1)
        controller.gone("K")
        controller.give(share(self, "L", 500, "gpu-1"))
        controller.until(lambda fact: fact.job == "L" and fact.started_at is not None)
        path = f"/api/v1/namespaces/{self.namespace}/pods/gq-l-1-0"
        self.plane.patch(path, {"metadata": {"finalizers": None}})
        self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        controller.gone("L")
        controller.orders.clear()
        for job in ("J", "K", "L"):
            jobs.settled(job, 1)
        self.until(lambda: not self.pods() and not self.backend.attempts.unsettled())


def test_with_all_permissions_every_job_ends_and_is_settled(
    dra_plane: ControlPlane, node: None, tmp_path: Path, denials: list[str]
) -> None:
    scenario = Scenario(dra_plane, tmp_path, denials=denials)
    try:
        scenario.run()
    finally:
        scenario.close()


@pytest.mark.parametrize(
    "permission", [pytest.param(each, id=f"without {each} {each.consequence}") for each in PERMISSIONS]
)
def test_a_missing_permission_is_named_by_the_log(
    dra_plane: ControlPlane, node: None, tmp_path: Path, denials: list[str], permission: Permission
) -> None:
    def kubeconfig(namespace: str) -> str:
        without(dra_plane, namespace, permission)
        return dra_plane.kubeconfig(namespace)

    opened: list[Scenario] = []

    def run_scenario() -> None:
        opened.append(Scenario(dra_plane, tmp_path, denials=denials, kubeconfig=kubeconfig))
        opened[0].run()

    try:
        with pytest.raises((Denied, OSError), match=f'cannot {permission.verb} resource "{permission.resource}"'):
            run_scenario()
    finally:
        for each in opened:
            each.close()
