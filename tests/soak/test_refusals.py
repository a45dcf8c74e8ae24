"""10,000 reads through the hub's proxy beside 200 refused requests a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.world import service_world
from tests.hub.proxied import TOO_LARGE_STATUS, proxy, reads_beside_refusals

READS, REFUSED_A_SECOND = 10_000, 200
KINDS = {400, 401, 403, 404, 405, TOO_LARGE_STATUS}


@pytest.mark.soak
def test_no_read_fails_beside_200_refused_requests_a_second(tmp_path: Path) -> None:
    with service_world(tmp_path) as world, proxy(world) as port:
        load = reads_beside_refusals(port, READS)
    assert load.read == {200: READS}
    assert load.refused.total() >= REFUSED_A_SECOND * load.seconds, "the load was not kept: run it on a quieter machine"
    assert set(load.refused) == KINDS
