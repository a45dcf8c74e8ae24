"""Jobs with data: their variables, holds before a start that would be too late, and the audit of their use."""

from __future__ import annotations

import json

import pytest

from jupyter_gpu_quota.controllers.leadership.lease import FencedStore
from jupyter_gpu_quota.controllers.reconciliation import Reconciliation
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reasons import DataUnavailable
from jupyter_gpu_quota.hub_api import Account
from jupyter_gpu_quota.store.reads.followed_store import FollowedStore
from jupyter_gpu_quota.store.records.calls import Page
from tests.controllers.setups.scheduling import QUOTA, World

DATA = """
data:
  - {name: images, path: /data/images, groups: [vision-team], until: 2000-01-01}
  - {name: labels, path: /data/labels, groups: [vision-team]}
"""
FIRST_MS, DAY_MS = 946_684_800_000, 86_400_000
"""The begin of the year 2000 in UTC, and a day."""
WITH = {"data": ("images", "labels"), "data_groups": ("vision-team",)}


def world_with_data() -> World:
    world = World()
    world.now = FIRST_MS
    world.apply_quota(QUOTA + DATA)
    return world


def audited(world: World, kind: str) -> list[tuple[str, str, dict[str, object]]]:
    rows, _ = world.store.audit(page=Page(limit=1000))
    return [(row.actor, row.subject, json.loads(row.payload)) for row in reversed(rows) if row.kind == kind]


def test_a_job_has_the_folders_of_its_data_in_variables() -> None:
    world = world_with_data()
    world.submit("bob", "b1", **WITH)
    world.submit("bob", "b2")
    world.turn()
    orders = {order.job: {each.variable: each.path for each in order.data} for order in world.executor.starts}
    assert orders == {
        "b1": {"GPU_QUOTA_DATA_IMAGES": "/data/images", "GPU_QUOTA_DATA_LABELS": "/data/labels"},
        "b2": {},
    }


@pytest.mark.parametrize(
    ("file", "at", "why"),
    [
        pytest.param(DATA, DAY_MS, DataUnavailable(data="images", last_day="2000-01-01"), id="after its last day"),
        pytest.param("", 0, DataUnavailable(data="labels"), id="when the file has it no more"),
        pytest.param(
            DATA.replace("vision-team", "other"), 0, DataUnavailable(data="labels"), id="when it is for other groups"
        ),
    ],
)
def test_a_waiting_job_is_held_before_it_starts(file: str, at: int, why: DataUnavailable) -> None:
    world = world_with_data()
    world.submit("bob", "b1", **WITH)
    world.submit("bob", "b2")
    world.apply_quota(QUOTA + file)
    world.now += at
    world.turn(2)
    record = world.store.job("b1")
    assert record is not None and (record.job.state, record.reason) == (JobState.HELD, why)
    assert world.executor.running() == {"b2"}


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (("everyone", "card-team"), None),
        (("everyone",), DataUnavailable(data="cards")),
        (("card-team",), DataUnavailable(data="public")),
        ((), DataUnavailable(data="cards")),
        (("everyone", "later-team"), DataUnavailable(data="cards")),  # not among the groups at the submission
    ],
)
def test_a_user_needs_a_group_of_each_data_of_a_waiting_job(groups: tuple[str, ...], why: object) -> None:
    world = World()
    cards = "{name: cards, path: /data/cards, groups: [card-team, later-team]}"
    public = "{name: public, path: /data/public, groups: [everyone]}"
    world.apply_quota(f"{QUOTA}\ndata: [{cards}, {public}]\n")
    world.submit("bob", "b1", data=("cards", "public"), data_groups=("card-team", "everyone"))
    leadership = world.controller.leadership
    leadership.renew(world.now)
    account = Account(name="bob", groups=groups, admin=False)
    store = FencedStore(world.store, leadership, lambda: world.now)
    reconciliation = Reconciliation(FollowedStore(world.store), store, list, lambda: [account])
    reconciliation.run_once(world.now)
    assert world.state("b1") is JobState.QUEUED, "one list alone holds no job"
    reconciliation.run_once(world.now)
    record = world.store.job("b1")
    assert record is not None
    assert (record.job.state, record.reason) == ((JobState.HELD, why) if why else (JobState.QUEUED, None))


def test_a_job_that_runs_on_the_last_day_runs_on_and_does_not_resume_after_it() -> None:
    world = world_with_data()
    world.submit("bob", "b1", "b2", "b3", "b4", **WITH, time_limit_s=864_000)
    world.turn(2)
    world.now += DAY_MS - 60_000
    world.turn(2)
    assert len(world.executor.running()) == 4
    world.submit("patty", "p1")
    world.now += 120_000
    world.turn(4)
    states = sorted(world.states().values())
    assert states == ["held", "running", "running", "running", "running"], "the paused one was held at once"
    world.executor.end("p1", 0, completed=True)
    world.turn(3)
    assert len(world.executor.running()) == 3


def test_the_audit_has_who_used_which_data_from_the_start_to_the_end_of_each_attempt() -> None:
    world = world_with_data()
    world.submit("bob", "b1", **WITH)
    world.submit("bob", "b2")
    world.turn(2)
    revision = world.store.quota()
    assert revision is not None
    used = {"attempt": 1, "data": ["images", "labels"]}
    assert audited(world, "data.use") == [(world.users["bob"], "b1", {**used, "revision": revision.revision})]
    assert audited(world, "data.end") == []
    world.executor.end("b1", 0, completed=True)
    world.turn(2)
    assert audited(world, "data.end") == [(world.users["bob"], "b1", used)]


def test_an_ended_job_is_no_longer_among_those_with_data() -> None:
    world = world_with_data()
    world.submit("bob", "b1", **WITH)
    world.turn(2)
    assert set(world.controller.mirror.jobs_with_data) == {("images", ("vision-team",)), ("labels", ("vision-team",))}
    world.executor.end("b1", 0, completed=True)
    world.turn(2)
    assert world.controller.mirror.jobs_with_data == {}
