"""Members of a quota file whom the hub does not know: warned of by name and line, and never refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from jupyter_gpu_quota import hub_api as hub_module
from jupyter_gpu_quota.api.quota_edits import unknown_members
from jupyter_gpu_quota.hub_api import HubUnavailable, HubUsers
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import cpu_s

BOB, GROUP, LEA = "users: [bob, olga]", "groups: [vision-team]", "leads: [lea]"
NAMES = ["ada", "bernd", "carla", "david", "elena", "frank", "greta", "hannes", "irene", "jonas"]
UNKNOWN = "Whether the hub knows the users and groups that the file names as members was not checked"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceWorld]:
    with service_world(tmp_path_factory.mktemp("hub")) as made:
        made.add("Zoe")
        made.run(made.services.store_view.refresh())
        yield made


def warned(world: ServiceWorld, text: str) -> list[str]:
    seen = world.post("quota/preview", "ann", {"text": text})
    assert seen.status == 200 and seen.json["refusals"] == [], seen.body
    return list(seen.json["warnings"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(
            BOB,
            "users: [bbo, olga]",
            "line 7: project vision, users: the hub knows no user bbo; did you mean bob?",
            id="a user's name has two letters exchanged",
        ),
        pytest.param(
            GROUP,
            "groups: [visoin-team]",
            "line 7: project vision, groups: no user of the hub is in a group visoin-team; did you mean vision-team?",
            id="a group's name has two letters exchanged",
        ),
        pytest.param(
            LEA,
            "leads: [leah]",
            "line 7: project vision, leads: the hub knows no user leah; did you mean lea?",
            id="a lead's name has a letter too many",
        ),
        pytest.param(
            BOB,
            "users: [bob, zoe]",
            "line 7: project vision, users: the hub knows no user zoe; did you mean Zoe?",
            id="the hub's user is written with a capital",
        ),
        pytest.param(
            BOB,
            "users: [bob, qqqqqq]",
            "line 7: project vision, users: the hub knows no user qqqqqq as yet",
            id="somebody who comes next week",
        ),
        pytest.param(
            BOB,
            "users: [bob, vision-team]",
            "line 7: project vision, users: the hub knows no user vision-team; it has a group of this name",
            id="a group stands among the users",
        ),
        pytest.param(
            GROUP,
            "groups: [olga]",
            "line 7: project vision, groups: no user of the hub is in a group olga; it has a user of this name",
            id="a user stands among the groups",
        ),
    ],
)
def test_a_preview_lists_an_unknown_member(world: ServiceWorld, old: str, new: str, said: str) -> None:
    assert warned(world, QUOTA.replace(old, new)) == [said]


def test_a_preview_lists_an_unknown_group_of_data(world: ServiceWorld) -> None:
    row = "data: [{name: images, path: /data/images, groups: [vision-team, visoin-team]}]\n"
    said = "data images, groups: no user of the hub is in a group visoin-team; did you mean vision-team?"
    (found,) = warned(world, QUOTA + row)
    assert found.endswith(said) and found.startswith("line ")


def test_known_members_give_no_warning(world: ServiceWorld) -> None:
    assert warned(world, QUOTA) == []


def test_a_file_without_members_sends_no_request_to_the_hub(world: ServiceWorld) -> None:
    text = QUOTA.replace(f"{BOB}, {GROUP}, {LEA}", "").replace("users: [patty], leads: [leo]", "")
    world.hub.asked.clear()
    assert warned(world, text) == [] and "users" not in world.hub.asked


def test_unknown_members_beyond_the_limit_are_counted(world: ServiceWorld) -> None:
    names = ", ".join(f"qqqq{n}" for n in range(30))
    found = warned(world, QUOTA.replace(BOB, f"users: [bob, {names}]"))
    assert len(found) == 21 and found[-1] == "10 more names of members are not known to the hub."


def test_the_nearest_of_thousands_of_mail_addresses_is_found_at_once(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = "@students.some-university.example.edu"
    people = [f"{first}.{last}{n}{at}" for first in NAMES for last in NAMES for n in range(50)]
    wrong = [f"{first[::-1]}.{first}{at}" for first in NAMES] * 2

    async def hub_users() -> HubUsers:
        return HubUsers(users=frozenset(people), groups_of=None)

    monkeypatch.setattr(world.services.people.accounts, "hub_users", hub_users)
    before = time.process_time()
    found = warned(world, QUOTA.replace(BOB, f"users: [carla.lda3{at}, {', '.join(wrong)}]"))
    assert found[0].endswith(f"the hub knows no user carla.lda3{at}; did you mean carla.ada3{at}?")
    assert time.process_time() - before < cpu_s(2), "every address was compared letter by letter: that took 5 s"


def test_apply_and_revert_put_it_in_force_and_warn_likewise(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.run(world.services.store_view.refresh())
        assert world.put_quota(QUOTA + "# more\n").json["warnings"] == []
        put = world.put_quota(QUOTA.replace(BOB, "users: [bob, ogla]"))
        assert (put.status, put.json["revision"], put.json["unchanged"]) == (200, 3, False)
        said = "project vision, users: the hub knows no user ogla; did you mean olga?"
        assert put.json["warnings"] == [f"line 7: {said}"]
        assert world.put_quota(QUOTA).status == 200
        back = world.post("quota/revisions/3/actions/revert", "ann")
        assert (back.status, [each.endswith(said) for each in back.json["warnings"]]) == (200, [True])


def test_an_edit_between_preview_and_revert_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service_world(tmp_path) as world:
        world.run(world.services.store_view.refresh())
        assert world.put_quota(QUOTA + "# second\n").status == 200
        usual = world.rest_hub._users

        async def meanwhile(**only: str) -> list[Mapping[str, Any]]:
            monkeypatch.setattr(world.rest_hub, "_users", usual)
            assert (await asyncio.to_thread(world.put_quota, QUOTA + "# third\n")).status == 200
            return await usual(**only)

        monkeypatch.setattr(world.rest_hub, "_users", meanwhile)
        reverted = world.post("quota/revisions/1/actions/revert", "ann")
        assert (reverted.status, reverted.json["reason"]) == (409, "stale")
        assert world.get("quota", "ann").json["text"].endswith("# third\n")


def test_without_the_hub_members_are_neither_known_nor_unknown(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.run(world.services.store_view.refresh())
        assert warned(world, QUOTA) == []
        world.hub.away = True  # who asks is still remembered
        [found] = warned(world, QUOTA.replace(BOB, "users: [bbo]"))
        assert found == f"{UNKNOWN}: the hub answered 503 to GET users."


def test_a_hub_that_exceeds_the_time_limit_is_unavailable(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(only: object) -> list[dict[str, object]]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(hub_module, "ALL_USERS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(world.rest_hub, "_read_pages", never)
    [found] = warned(world, QUOTA)
    assert found.startswith(f"{UNKNOWN}: the hub did not list all of its users within")
    with pytest.raises(HubUnavailable, match="the hub did not list all of its users within"):
        world.run(world.rest_hub.servers())


def test_a_request_without_an_answer_is_not_reported_as_an_answer_with_code_599() -> None:
    timeout = hub_module._unavailable("GET users", HTTPClientError(599, "Timeout while connecting"))
    assert "did not answer GET users" in str(timeout) and "answered 599" not in str(timeout)
    assert str(hub_module._unavailable("GET users", HTTPClientError(500))) == "the hub answered 500 to GET users"


def test_every_page_of_the_hub_s_users_is_read(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PAGE_SIZE", 2)
    hub_users = world.run(world.rest_hub.hub_users())
    groups_of = {name: frozenset(account.groups) for name, account in world.hub.users.items()}
    assert hub_users == HubUsers(users=frozenset(world.hub.users), groups_of=groups_of)
    assert hub_users.groups == {"vision-team"}


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        pytest.param("groups", [unknown_members.GROUPS_UNKNOWN], id="who is in which group"),
        pytest.param("name", [UNKNOWN], id="what its users are called"),
    ],
)
def test_an_answer_without_groups_leaves_them_unknown(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, lacks: str, expected: list[str]
) -> None:
    async def some(**_: str) -> list[dict[str, object]]:
        every = [{"name": name, "groups": each.groups} for name, each in world.hub.users.items()]
        return [{key: value for key, value in each.items() if key != lacks} for each in every]

    monkeypatch.setattr(world.rest_hub, "_users", some)
    said = warned(world, QUOTA.replace(GROUP, "groups: [nobody-s]"))
    assert [each.startswith(start) for each, start in zip(said, expected, strict=True)] == [True]


def test_more_users_than_the_limit_are_an_error(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PAGE_SIZE", 2)
    monkeypatch.setattr(hub_module, "MAX_PAGES", 2)
    with pytest.raises(HubUnavailable, match="more than 4 users"):
        world.run(world.rest_hub.hub_users())
