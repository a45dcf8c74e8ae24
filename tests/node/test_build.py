"""The programs of a real node."""

from __future__ import annotations

import re

from tests.kube.build import HERE
from tests.node.build import TOOLS


def test_a_real_node_has_the_release_of_the_control_plane() -> None:
    version = re.compile(r"^(?:require )?\s*k8s\.io/kubernetes (v\S+)", re.MULTILINE)
    places = (HERE / "tools/kubernetes/go.mod", TOOLS / "kubelet/go.mod")
    assert len({version.findall(place.read_text())[0] for place in places}) == 1
