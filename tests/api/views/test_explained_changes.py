"""The changes that an explanation names are those that the service accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.api.world import ServiceWorld
from tests.controllers.setups.enforcement import DEVICES, EnforcementSetup, policy, setup

__all__ = ["setup"]


SHARED = (replace(DEVICES[0], foreign_milli=500),)
"""One device, half of which is used by work that is not the service's."""


def waiting(world: ServiceWorld, kind: str) -> str:
    """A job or a notebook that wants the whole device."""
    if kind == "training":
        return str(world.submit(gpu="1", preemptible=False)["id"])
    return str(world.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1"}).json["id"])


@pytest.mark.parametrize(
    ("memory", "sizes"),
    [
        pytest.param("policed", [500], id="a part of a device may be asked for"),
        pytest.param("driver", [], id="no device enforces a part as required"),
    ],
)
@pytest.mark.parametrize("kind", ["training", "notebook"])
def test_a_part_of_a_device_is_named_only_where_it_is_accepted(
    setup: EnforcementSetup, kind: str, memory: str, sizes: list[int]
) -> None:
    other = {"training": "notebook", "notebook": "training"}[kind]
    quota = f"{{train: {{{kind}: 1, {other}: 0}}}}"
    setup.world.apply(policy(memory).replace("{train: {training: 1, notebook: 1}}", quota), SHARED)
    found = setup.world.get(f"explain/{waiting(setup.world, kind)}").json["would_start"]
    assert [change["to_milli"] for change in found if change["kind"] == "size"] == sizes, found
