"""A dry run is refused with the answer of the job itself; the checks before it store nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.handlers.jobs.test_submitting import send_bundle
from tests.api.world import QUOTA, ServiceWorld, service_world


def refusal(world: ServiceWorld, path: str, who: str) -> tuple[int, str]:
    """The refusal of a dry run, which is that of the real request too."""
    body = {} if "actions" in path else {"command": ["x"]}
    before = world.store.version()
    dry, real = (world.post(path, who, body | {"dry_run": dry_run}) for dry_run in (True, False))
    assert (dry.status, dry.json) == (real.status, real.json)
    assert world.store.version() == before
    return dry.status, dry.json["reason"]


@pytest.fixture
def job(world: ServiceWorld, tmp_path: Path) -> str:
    """Bob's job, with a bundle."""
    return str(world.submit(bundle=send_bundle(world, tmp_path))["id"])


def test_a_dry_run_at_the_limit_of_waiting_jobs_is_refused(tmp_path: Path) -> None:
    with service_world(tmp_path, waiting_jobs_limit=2) as small:
        job, held = (small.submit()["id"] for _ in range(2))
        small.post(f"jobs/{held}/actions/hold")
        for path in ("jobs", f"jobs/{job}/actions/rerun"):
            assert refusal(small, path, "bob") == (429, "queue_full")
        assert small.post("jobs", "olga", {"command": ["x"], "dry_run": True}).status == 200
        small.post(f"jobs/{held}/actions/cancel")
        assert small.post("jobs", "bob", {"command": ["x"], "dry_run": True}).status == 200


def test_a_dry_run_without_an_account_to_run_under_is_refused(tmp_path: Path) -> None:
    with service_world(tmp_path, accounts=True) as world:
        world.add("root")
        world.apply(QUOTA.replace("users: [bob, olga]", "users: [bob, olga, root]"))
        assert refusal(world, "jobs", "root") == (409, "no_account")


def test_a_dry_run_of_a_clone_whose_bundle_was_deleted_is_refused(world: ServiceWorld, job: str) -> None:
    world.services.bundles.path(world.get(f"jobs/{job}").json["bundle"]).unlink()
    assert refusal(world, f"jobs/{job}/actions/clone", "olga") == (410, "bundle_gone")


def test_a_dry_run_of_a_clone_without_room_for_its_bundle_is_refused(world: ServiceWorld, job: str) -> None:
    olga = world.run(world.services.store_view.user_id("olga"))
    world.services.arriving[olga] = world.settings.bundles_limit_mib << 20
    assert refusal(world, f"jobs/{job}/actions/clone", "olga") == (409, "bundles_full")


def test_a_dry_run_of_a_clone_keeps_no_bundle(world: ServiceWorld, job: str) -> None:
    before = world.store.version()
    assert world.post(f"jobs/{job}/actions/clone", "olga", {"dry_run": True}).status == 200
    assert world.store.version() == before
    assert world.store.bundles_of(world.run(world.services.store_view.user_id("olga"))) == {}
