"""One real node beside one control plane for all tests of this folder. Where that is impossible, they are skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.build import PROGRAMS as CONTROL_PLANE
from tests.kube.build import find as find_of_control_plane
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import DRIVER, device_class
from tests.node.build import PROGRAMS, find
from tests.node.images import job_image, pause_image
from tests.node.node import RealNode
from tests.node.world import NodeWorld

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NEEDED = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "helm")

LOST_SOON = ("--node-monitor-grace-period=16s", "--node-monitor-period=1s")
"""A node is lost when its kubelet has not answered for so long: 50 s by default."""


def why_no_node() -> str:
    """Why this machine can have no real node; empty: it can."""
    if os.geteuid() != 0:
        return "a real node needs root: it makes namespaces, cgroups and mounts"
    if absent := [name for name in ("unshare", "nsenter", "ldd") if shutil.which(name) is None]:
        return f"this machine has no {', '.join(absent)}"
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        return "this machine's cgroups cannot be written"
    absent = [name for name in CONTROL_PLANE if name in NEEDED and find_of_control_plane(name) is None]
    absent += [name for name in (*PROGRAMS, "runc") if find(name) is None]
    return f"not built: {', '.join(absent)}. `make node` builds them" if absent else ""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver, kube-scheduler and kube-controller-manager."""
    if why := why_no_node():
        pytest.skip(why)
    made = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        made.start()
        made.start_program("kube-controller-manager", *LOST_SOON)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The archives of the images of sandboxes and of jobs."""
    folder = tmp_path_factory.mktemp("images")
    return [pause_image(folder), job_image(folder)]


@pytest.fixture(scope="session")
def node(plane: ControlPlane, images: list[Path]) -> Iterator[RealNode]:
    """A node with two fake GPUs that a device plugin counts."""
    with running(RealNode(plane, 2), images) as made:
        yield made


@pytest.fixture(scope="session")
def driver_class(plane: ControlPlane) -> Iterator[None]:
    """The class of the devices of the DRA driver."""
    plane.make(CLASSES, device_class())
    yield
    plane.request("DELETE", f"{CLASSES}/{DRIVER}")


@pytest.fixture(scope="session")
def driver_node(plane: ControlPlane, driver_class: None, images: list[Path]) -> Iterator[RealNode]:
    """A node with two fake GPUs of a DRA driver."""
    with running(RealNode(plane, 3, has_driver=True), images) as made:
        yield made


@contextlib.contextmanager
def running(node: RealNode, images: list[Path]) -> Iterator[RealNode]:
    try:
        node.start(images)
        yield node
    finally:
        node.stop()


@pytest.fixture
def world(plane: ControlPlane, node: RealNode, tmp_path: Path) -> Iterator[NodeWorld]:
    """A backend whose jobs run on the node with a device plugin."""
    made = NodeWorld(plane, tmp_path, node)
    try:
        yield made
    finally:
        made.close()
