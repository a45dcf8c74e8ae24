"""The proxy uses a connection to the service for requests of all users."""

from __future__ import annotations

from pathlib import Path

from tests.api.world import service_world
from tests.hub.proxied import proxy, reads_beside_refusals


def test_refused_requests_break_no_request_of_others(tmp_path: Path) -> None:
    with service_world(tmp_path) as world, proxy(world) as port:
        load = reads_beside_refusals(port, 400)
    assert load.read == {200: 400}
    assert load.refused.total() > 50
