"""The space of a project's outputs: real files, the refusal of jobs while it is used up, and the removal of outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.quota_edits.edit import Edit
from jupyter_gpu_quota.api.quota_edits.storage import storage_edits
from jupyter_gpu_quota.backends.job_files.disk_use import MAX_DEPTH
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.backends.protocol import TOO_DEEP_MIB
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.controllers.retention import DAY_MS, Retention, RetentionTimes
from jupyter_gpu_quota.core.model import Policy, Snapshot
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.backends.worlds import KINDS
from tests.controllers.test_retention import Bundles
from tests.patience import until
from tests.quotafile.texts import read

LIMITED = QUOTA.replace("leads: [lea]}", "leads: [lea]}\n    storage: {outputs: 2MiB, keep: 20d}")


class Site:
    """The API, and retention on the files of its state folder. ``full`` is a job of bob that left 3 MiB."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.jobs = world, LocalJobs(world.state_dir, simulated_devices=KINDS)
        leadership = world.controllers.leadership
        self.retention = Retention(world.store, leadership, self.jobs, Bundles(), RetentionTimes())
        self.full = self.leave("large.bin", 3 << 20)

    def leave(self, name: str, size: int) -> str:
        job: str = self.world.submit(name="left")["id"]
        outputs = Path(rank_paths(str(self.world.state_dir), job, 1, 0).outputs)
        outputs.mkdir(parents=True)
        (outputs / name).write_bytes(os.urandom(size))
        assert self.world.post(f"jobs/{job}/actions/cancel").status == 200
        return job

    def until_used(self, mib: int) -> None:
        """Run retention until the API shows so much space."""

        def used() -> bool:
            self.world.controllers.leadership.renew(self.world.clock())
            self.retention.run_once(self.world.clock())
            self.world.controllers.notify_api()
            return bool(self.storage()["used_mib"] == mib)

        until(used)

    def storage(self, who: str = "bob") -> Any:
        found = {each["name"]: each for each in self.world.get("projects", who).json["items"]}
        return found["vision"]["storage"]

    def warnings(self, text: str) -> list[str]:
        """The warnings of the preview of a quota file."""
        found = self.world.post("quota/preview", "ann", {"text": text})
        assert found.status == 200, found.json
        return list(found.json["warnings"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with service_world(tmp_path) as world:
        world.apply(LIMITED)
        site = Site(world)
        yield site
        site.jobs.close()


def test_space_is_unknown_until_it_was_measured(site: Site) -> None:
    assert site.storage() == {"limit_mib": 2, "used_mib": None, "keep_s": 20 * 86_400}
    site.world.submit()  # unknown is not full
    site.until_used(3)


def test_a_project_without_limits_shows_none(site: Site) -> None:
    assert site.world.get("projects", "patty").json["items"][0]["storage"] is None


@pytest.mark.parametrize("dry_run", [False, True])
def test_no_job_is_submitted_while_the_space_is_used_up(site: Site, dry_run: bool) -> None:
    site.until_used(3)
    refused = site.world.post("jobs", "bob", {"command": ["true"], "dry_run": dry_run})
    assert (refused.status, refused.json["reason"]) == (409, "storage_full")
    words = "bob asked to submit a job to vision. The outputs of its ended jobs use 3MiB, and its limit is 2MiB."
    assert refused.json["message"].startswith(words)
    again = site.world.post(f"jobs/{site.full}/actions/rerun", "bob")
    assert again.json["reason"] == "storage_full"
    assert site.world.post("jobs", "patty", {"command": ["true"]}).status == 201


def test_removed_outputs_free_the_space_and_are_listed_as_removed(site: Site) -> None:
    site.until_used(3)
    client = Client(f"http://127.0.0.1:{site.world.port}", "token-bob", environment={})
    assert [each.path for each in client.outputs(site.full)] == ["large.bin"]
    client.remove_outputs(site.full)
    client.remove_outputs(site.full)  # repeated
    site.until_used(0)
    found = client.outputs(site.full)
    assert list(found) == [] and found.removed_at is not None and found.removed_at.endswith("Z")
    assert site.world.submit()["state"] == "queued"
    kinds = [row["kind"] for row in site.world.get("audit", "ann").json["items"]]
    assert kinds.count("job.remove_outputs") == 1


def test_outputs_of_a_job_that_has_not_ended_are_refused(site: Site) -> None:
    job = site.world.submit()["id"]
    refused = site.world.call("DELETE", f"jobs/{job}/outputs")
    assert (refused.status, refused.json["reason"]) == (409, "in_use")


def test_outputs_are_removed_when_their_time_is_over(site: Site) -> None:
    site.until_used(3)
    now = site.world.hold_clock()
    site.world.clock = lambda: now + 20 * DAY_MS
    site.until_used(0)
    assert site.world.get(f"jobs/{site.full}/outputs").json["removed_at"] is not None
    assert site.world.get(f"jobs/{site.full}").status == 200


def test_links_in_outputs_are_neither_followed_nor_removed_with_their_targets(site: Site, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(bytes(9 << 20))
    outputs = Path(rank_paths(str(site.world.state_dir), site.full, 1, 0).outputs)
    (outputs / "link").symlink_to(tmp_path / "precious")
    site.until_used(4)  # the link itself has some bytes
    assert site.world.call("DELETE", f"jobs/{site.full}/outputs").status == 204
    site.until_used(0)
    until(lambda: not list((site.world.state_dir / "trash").iterdir()))
    assert (tmp_path / "precious" / "file").exists() and not outputs.exists()


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        pytest.param("keep: 1d", "removed 24h after the end of their job", id="a shorter time"),
        pytest.param("keep: 40d", None, id="a longer time"),
    ],
)
def test_a_preview_warns_of_outputs_that_are_removed_sooner(site: Site, keep: str, words: str | None) -> None:
    warnings = site.warnings(LIMITED.replace("keep: 20d", keep))
    assert any("Outputs of project vision" in each and str(words) in each for each in warnings) == (words is not None)


@pytest.mark.parametrize(
    ("keep", "warned"),
    [
        pytest.param("29d", True, id="less than jobs are listed"),
        pytest.param("40d", False, id="longer than jobs are listed"),
    ],
)
def test_a_first_limit_is_compared_with_how_long_jobs_are_listed(site: Site, keep: str, warned: bool) -> None:
    site.world.apply(QUOTA)
    warnings = site.warnings(LIMITED.replace("keep: 20d", f"keep: {keep}"))
    assert any("as long as their jobs were listed" in each for each in warnings) == warned


def test_a_new_project_has_no_outputs_that_could_be_removed_sooner(site: Site) -> None:
    new = "\n  - {name: new, priority: 1, members: {users: [bob]}, quota: {}, storage: {keep: 1d}}"
    assert not any("Outputs of" in each for each in site.warnings(LIMITED.replace("projects:", f"projects:{new}")))


def test_a_first_file_removes_no_outputs_sooner() -> None:
    nothing = Snapshot(version=1, now=0, nodes=(), devices=())
    edit = Edit(file=read(LIMITED), present=None, old=Policy(revision=0), snapshot=nothing, nodes={}, now=0)
    assert list(storage_edits(edit, keep_jobs_days=30)) == []


def test_folders_that_are_nested_too_deeply_are_over_the_limit(site: Site) -> None:
    outputs = Path(rank_paths(str(site.world.state_dir), site.full, 1, 0).outputs)
    outputs.joinpath(*["d"] * (MAX_DEPTH + 2)).mkdir(parents=True)
    site.until_used(TOO_DEEP_MIB)
    words = "its ended jobs have folders that are nested too deeply to be measured, and its limit is 2MiB."
    assert words in site.world.post("jobs", "bob", {"command": ["true"]}).json["message"]


WITH_VISION = "leads: [lea]}\n    storage: {keep: 365d}"
PAST_USE = "policy: {history: {window: 90d}}\n"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        pytest.param(
            QUOTA.replace("leads: [lea]}", WITH_VISION),
            QUOTA.replace("leads: [lea]}", WITH_VISION.replace("365d", "60d")),
            "removed 60d after their end, those that ended earlier at once. Until now they were kept for 365d",
            id="the longest keep is lowered",
        ),
        pytest.param(
            QUOTA.replace("leads: [lea]}", WITH_VISION),
            QUOTA,
            "removed 30d after their end, those that ended earlier at once. Until now they were kept for 365d",
            id="down to the setting",
        ),
        pytest.param(
            QUOTA.replace("leads: [lea]}", WITH_VISION) + PAST_USE,
            QUOTA + PAST_USE,
            "removed 91d after their end, those that ended earlier at once. Until now they were kept for 365d",
            id="down to the past use that counts",
        ),
        pytest.param(
            QUOTA + PAST_USE,
            QUOTA,
            "removed 30d after their end, those that ended earlier at once. Until now they were kept for 91d",
            id="less past use counts",
        ),
        pytest.param(QUOTA, QUOTA.replace("leads: [lea]}", WITH_VISION), None, id="a longer time"),
        pytest.param(
            QUOTA.replace("leads: [lea]}", WITH_VISION.replace("365d", "20d")), QUOTA, None, id="below the setting"
        ),
    ],
)
def test_jobs_that_are_kept_for_a_shorter_time_are_a_warning(before: str, after: str, words: str | None) -> None:
    nothing = Snapshot(version=1, now=0, nodes=(), devices=())
    present, file = read(before), read(after)
    edit = Edit(file=file, present=present, old=present.policy(1), snapshot=nothing, nodes={}, now=0)
    found = [each for each in storage_edits(edit, keep_jobs_days=30) if each.startswith("Ended jobs of all projects")]
    assert len(found) == (words is not None) and all(str(words) in each for each in found)
