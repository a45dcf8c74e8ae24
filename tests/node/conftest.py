"""One real node beside one control plane for all tests of this folder. Where that is impossible, they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.build import PROGRAMS as CONTROL_PLANE
from tests.kube.build import find as find_of_control_plane
from tests.kube.control_plane import ControlPlane
from tests.node.build import PROGRAMS, find
from tests.node.images import job_image, pause_image
from tests.node.node import RealNode
from tests.node.world import NodeWorld

NEEDED = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "helm")


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
        made.start(("kube-scheduler", "kube-controller-manager"))
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def node(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node with two fake GPUs, and the image of jobs."""
    made = RealNode(plane, 2)
    try:
        made.start([pause_image(tmp_path_factory.mktemp("image")), job_image()])
        yield made
    finally:
        made.stop()


@pytest.fixture
def world(plane: ControlPlane, node: RealNode, tmp_path: Path) -> Iterator[NodeWorld]:
    made = NodeWorld(plane, tmp_path)
    try:
        yield made
    finally:
        made.close()
