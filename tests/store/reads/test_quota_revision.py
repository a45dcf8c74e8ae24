"""The last readable quota file stays in force while a stored one cannot be read, and the fault is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.controllers import main as scheduler
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.settings import GPUQuota
from jupyter_gpu_quota.store.reads.quota_revision import in_force, with_readable_quota
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.commands import ApplyQuota
from tests.api.world import QUOTA, ServiceWorld, service_world

BROKEN_DRAIN = {"drain_by": "1-01-01T00:00:00Z"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.run(made.services.store_view.refresh())
        yield made


def store_unreadable(world: ServiceWorld, times: int = 1) -> None:
    """As an earlier release stored it: a document that says a year without its zeros."""
    read = quotafile.parse(QUOTA)
    assert isinstance(read, QuotaFile)
    for _ in range(times):
        document = {**read.to_document(), "policy": BROKEN_DRAIN}
        policy = replace(read.policy(2), drain_by_at=-62_135_596_800_000)
        text = QUOTA + "policy: {drain_by: '0001-01-01T00:00:00Z'}\n"
        world.record(
            ApplyQuota(actor="system:test", text=text, document=document, policy=policy, expected_revision=None)
        )
    world.run(world.services.store_view.refresh())


def test_the_api_answers_under_the_last_readable_file_and_reports_it(world: ServiceWorld) -> None:
    store_unreadable(world)
    assert world.get("jobs").status == 200
    job = world.submit("bob", project="vision")["id"]
    assert world.get(f"jobs/{job}").json["project"] == "vision"
    quota = world.get("quota", "ann")
    assert (quota.status, quota.json["revision"]) == (200, 2)
    assert "drain_by" not in quota.json["text"] and "so revision 1 stays in force" in quota.json["comment"]
    ready = world.get("ready")
    assert ready.status == 503
    assert "revision 2 of the quota file cannot be read" in ready.json["message"]
    assert "so revision 1 stays in force" in ready.json["message"]


def test_an_admin_reverts_to_the_readable_revision(world: ServiceWorld) -> None:
    store_unreadable(world, times=2)
    refused = world.post("quota/revisions/2/actions/revert", "ann")
    assert refused.status == 400 and "is in the year 1" in refused.json["message"]
    assert world.post("quota/revisions/1/actions/revert", "ann").status == 200
    newest = world.store.quota()
    assert newest is not None and newest.revision == 4, "a new revision, although the text is the one in force"
    assert QuotaFile.from_document(newest.document)
    assert "quota file" not in world.get("ready").json["message"]


def test_another_file_is_applied_on_the_number_of_the_unreadable_one(world: ServiceWorld) -> None:
    store_unreadable(world)
    put = world.call("PUT", "quota", "ann", {"text": QUOTA + "# fixed\n"}, headers={"If-Match": '"2"'})
    assert (put.status, put.json["revision"]) == (200, 3)


def test_the_scheduler_plans_under_the_last_readable_file(
    world: ServiceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.store.quota()
    store_unreadable(world, times=25)
    mirror = Mirror()
    with caplog.at_level(logging.ERROR):
        assert mirror.update(with_readable_quota(world.store))
    policy = mirror.policy_at(world.clock())
    assert first is not None and policy == replace(first.policy, revision=26), "of the number that commits compare"
    assert "revision 26 of the quota file cannot be read" in caplog.text
    assert world.store.quota_revisions is not None and with_readable_quota(world.store).version() == mirror.version


def test_without_a_readable_revision_no_policy_is_in_force(world: ServiceWorld) -> None:
    newest = world.store.quota()
    assert newest is not None
    broken = replace(newest, document={"version": 1})

    class Only:
        def quota_revisions(self, page: object) -> tuple[list[object], int]:
            return [broken], 1

    found = in_force(Only(), broken)  # type: ignore[arg-type]
    assert (found.revision, found.file) == (None, None)
    assert "nor any before it" in found.fault


@pytest.mark.parametrize("instant", ["0001-01-01T00:00:00Z", "0202-01-31T18:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_mistyped_year_is_refused_before_anything_is_stored(world: ServiceWorld, instant: str) -> None:
    text = QUOTA + f"policy:\n  drain_by: '{instant}'\n"
    assert world.post("quota/preview", "ann", {"text": text}).status == 400
    put = world.call("PUT", "quota", "ann", {"text": text}, headers={"If-Match": '"1"'})
    assert put.status == 400 and "line 13" in put.json["message"] and "2000 to 2100" in put.json["message"]
    newest = world.store.quota()
    assert newest is not None and newest.revision == 1


def test_a_file_that_would_not_be_read_back_is_not_recorded(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1})
    put = world.call("PUT", "quota", "ann", {"text": QUOTA + "# more\n"}, headers={"If-Match": '"1"'})
    assert put.status == 400 and "Nothing was put in force: the file would not be read back" in put.json["message"]
    newest = world.store.quota()
    assert newest is not None and newest.revision == 1


def test_the_first_quota_file_is_not_recorded_if_it_would_not_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(QUOTA)
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1})

    class Empty:
        def quota(self) -> None:
            return None

    config = GPUQuota(state_dir=str(tmp_path), quota_file=str(file))
    scheduler._apply_first_quota(config, Empty())  # type: ignore[arg-type]
    assert "would not be read back from the database" in caplog.text
