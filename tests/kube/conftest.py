"""One control plane for all tests of this folder. Without its programs they are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.build import find
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import DRIVER, device_class


def missing(*programs: str) -> str:
    """Why tests that need these programs are skipped; empty where all are built."""
    absent = [program for program in programs if find(program) is None]
    return f"not built: {', '.join(absent)}. `make kube` builds them in some minutes." if absent else ""


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-scheduler."""
    if why := missing("etcd", "kube-apiserver", "kube-scheduler", "helm"):
        pytest.skip(why)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def dra_plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with a DRA driver's class, and the controller-manager, which frees claims of ended pods."""
    if why := missing("kube-controller-manager"):
        pytest.skip(why)
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    control_plane.make(classes, device_class())
    control_plane.start_program("kube-controller-manager")
    yield control_plane
    control_plane.end("kube-controller-manager")
    control_plane.request("DELETE", f"{classes}/{DRIVER}")


@pytest.fixture(scope="session")
def west_plane(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A second control plane, which knows nothing of the first."""
    assert not missing("etcd", "kube-apiserver", "kube-scheduler")
    plane = ControlPlane(tmp_path_factory.mktemp("west"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
