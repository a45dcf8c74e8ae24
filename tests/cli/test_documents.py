"""``snapshot``, ``decide`` and ``schema``."""

from __future__ import annotations

import json

import pytest

from jupyter_gpu_quota.quotafile import QuotaFile, parse
from tests.cli.commands import run
from tests.client.fake_service import QUOTA_TEXT, World


def test_a_snapshot_is_saved_as_canonical_json(world: World) -> None:
    assert run("snapshot").stdout == '{"format":1,"policy":{},"snapshot":{"now":1}}\n'


def test_decide_refuses_an_invalid_snapshot() -> None:
    done = run("decide", "-", stdin="{}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is not a snapshot: snapshot: it is required" in done.stderr


@pytest.mark.parametrize("document", ["snapshot", "plan", "quota"])
def test_schemas_are_printed(document: str) -> None:
    assert json.loads(run("schema", document).stdout)["type"] == "object"


def test_a_schema_of_a_later_release_is_wrong_usage() -> None:
    assert run("schema", "sweep").exit_code == 2


def test_a_first_quota_file_of_the_schema_s_keys_parses() -> None:
    keys = set(json.loads(run("schema", "quota").stdout)["properties"])
    assert keys == {
        "version",
        "revision",
        "pools",
        "departments",
        "projects",
        "environments",
        "data",
        "calendar",
        "policy",
    }
    assert isinstance(parse(QUOTA_TEXT), QuotaFile)
