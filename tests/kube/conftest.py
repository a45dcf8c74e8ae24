"""One control plane for all tests of this folder. Without its programs they are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.build import find
from tests.kube.control_plane import ControlPlane


def missing(*programs: str) -> str:
    """Why tests that need these programs are skipped; empty where all are built."""
    absent = [program for program in programs if find(program) is None]
    return f"not built: {', '.join(absent)}. `make kube` builds them in some minutes." if absent else ""


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-scheduler."""
    if why := missing("etcd", "kube-apiserver", "kube-scheduler"):
        pytest.skip(why)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
