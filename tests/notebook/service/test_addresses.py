"""Which address of the service a front end's request gets, and which path is refused."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.notebook.service.addresses import MAX_LENGTH, BadPath, api_path


@pytest.mark.parametrize(
    ("raw", "query", "sent"),
    [
        pytest.param("jobs", "", "jobs", id="a listing"),
        pytest.param("jobs/01J/logs", "follow=1&rank=0", "jobs/01J/logs?follow=1&rank=0", id="a followed log"),
        pytest.param("jobs/1/outputs/a%20b/%C3%BC%23%3F.txt", "", "jobs/1/outputs/a%20b/%C3%BC%23%3F.txt", id="a file"),
        pytest.param("jobs/1/outputs/a..b", "", "jobs/1/outputs/a..b", id="two dots in a name"),
        pytest.param("jobs/%252e%252e", "", "jobs/%252e%252e", id="quoted twice stays quoted"),
        pytest.param("jobs", "state=&live=1", "jobs?state=&live=1", id="an empty value"),
        pytest.param("jobs", "token=secret&_xsrf=2&no_track_activity=1&mine=1", "jobs?mine=1", id="this server's own"),
        pytest.param("jobs", "mine=1&1790000000000", "jobs?mine=1", id="a number against caches"),
        pytest.param("usage", "from=2027-01-01T00%3A00%3A00%2B01%3A00", "usage?from=2027-01-01T00%3A00%3A00%2B01%3A00",
                     id="a plus sign stays one"),
    ],
)  # fmt: skip
def test_a_path_below_the_api_is_sent(raw: str, query: str, sent: str) -> None:
    assert api_path(raw, query) == sent


@pytest.mark.parametrize(
    "raw",
    [
        "", "/", "jobs/", "jobs//1", "..", "../ready", "jobs/../../hub/api/users", "jobs/%2e%2e/%2E%2e/x", "jobs/.",
        "http://evil.example/", "//evil.example/x", "http:%2F%2Fevil.example", "..%5c..%5chub", "jobs\\..\\x",
        "jobs/%00", "jobs/a%0d%0aX-Evil:%201", "jobs/%7f", "jobs/%ff%fe", "a" * (MAX_LENGTH + 1),
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(raw: str) -> None:
    with pytest.raises(BadPath):
        api_path(raw)


def test_a_query_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadPath):
        api_path("jobs", "name=%ff")
    with pytest.raises(BadPath):
        api_path("jobs", "a=1&" * 200)
