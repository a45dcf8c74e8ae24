"""The contract of backends, on a real API server with the real kube-scheduler, and a fake kubelet."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import test_contract as suite
from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.kube.world import KubernetesWorld

PARTS = {"world", "whole"}
"""The fixtures of the suite; its other tests make a backend of their own."""

globals().update({
    name: each
    for name, each in vars(suite).items()
    if name.startswith("test_") and PARTS & inspect.signature(each).parameters.keys()
})  # fmt: skip


@pytest.fixture
def world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Controller]:
    """A controller of the Kubernetes backend in a new namespace."""
    made = KubernetesWorld(control_plane, tmp_path)
    try:
        yield Controller(made)
    finally:
        made.close()


@pytest.fixture
def whole(world: Controller) -> Controller:
    """The same: this backend has all parts."""
    return world
