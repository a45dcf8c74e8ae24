"""10,000 reads through the hub's proxy beside 200 refused requests a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.world import service_world
from tests.hub.proxied import proxy, reads_beside_refusals

READS = 10_000


@pytest.mark.soak
def test_no_read_fails_beside_refused_requests(tmp_path: Path) -> None:
    with service_world(tmp_path) as world, proxy(world) as port:
        found, _ = reads_beside_refusals(port, READS)
    assert found == {200: READS}
