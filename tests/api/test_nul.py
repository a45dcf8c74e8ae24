"""The character NUL in requests, on PostgreSQL, which can neither store it nor search for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.world import PREFIX, QUOTA, ServiceWorld, service_world
from tests.store.database.postgresql_server import database, why_missing

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=why_missing() or "there is one")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with database() as url, service_world(tmp_path_factory.mktemp("nul"), database_url=url) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "jobs/a%00", id="a job"),
        pytest.param("GET", "jobs/%00/logs", id="the log of a job"),
        pytest.param("GET", "jobs/%00/outputs/a", id="an output of a job"),
        pytest.param("POST", "jobs/%00/actions/cancel", id="the cancellation of a job"),
        pytest.param("GET", "notebooks/%00", id="a slice"),
        pytest.param("GET", "explain/%00", id="an explanation"),
        pytest.param("GET", f"{PREFIX}jobs/%00", id="the page of a job"),
    ],
)
def test_a_path_with_a_nul_is_unknown(world: ServiceWorld, method: str, path: str) -> None:
    answer = world.call(method, path)
    assert answer.status == 404
    assert b"The path has a NUL character, which no name here has." in answer.body


def test_a_nul_in_the_comment_of_a_quota_edit_is_refused(world: ServiceWorld) -> None:
    answer = world.put_quota(QUOTA, comment="a\0b")
    assert (answer.status, answer.json["reason"]) == (400, "invalid")
    assert "comment" in answer.json["message"] and "the character NUL" in answer.json["message"]
