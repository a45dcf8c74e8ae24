"""How often the hub is asked for accounts: by name for a few people, in one list for many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.access.people import FRESH_S, MAX_STALE_S, MIN_SAVED_REQUESTS, Accounts
from jupyter_gpu_quota.hub_api import PAGE_SIZE, Account, HubUnavailable, HubUsers, Server
from tests.api.world import ServiceWorld, service_world

MANY = 30


class Hub:
    """A hub with users; ``asked`` has the names of the requests, "*" for a page of the list."""

    def __init__(self, *names: str) -> None:
        self.users = {name: Account(name=name, groups=("team",), admin=False) for name in names}
        self.asked: list[str] = []
        self.away = self.lists_nothing = False

    async def account(self, name: str) -> Account | None:
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.away:
            raise HubUnavailable("away")
        return self.users.get(name)

    async def accounts(self) -> Sequence[Account]:
        found = list(self.users.values())
        self.asked += ["*"] * -(-len(found) // PAGE_SIZE)
        await asyncio.sleep(0)
        if self.away or self.lists_nothing:
            raise HubUnavailable("away")
        return found

    async def hub_users(self) -> HubUsers:
        self.asked.append("all users")
        await asyncio.sleep(0)
        if self.away:
            raise HubUnavailable("away")
        return HubUsers(users=frozenset(self.users), groups_of={name: frozenset({"team"}) for name in self.users})

    async def servers(self) -> Sequence[Server]: ...  # type: ignore[empty-body]
    async def stop(self, user: str, server: str) -> None: ...


class Readers:
    """Accounts with a clock of their own."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.now = hub, 0.0
        self.accounts = Accounts(hub, lambda: self.now)

    async def read(self, count: int, *, later_s: float = 0) -> list[str]:
        """The requests that so many readers cause at once, some time later."""
        self.now += later_s
        self.hub.asked.clear()
        await asyncio.gather(*(self.accounts.get(f"user-{number}") for number in range(count)))
        return list(self.hub.asked)


def hub_of(count: int) -> Hub:
    return Hub(*(f"user-{number}" for number in range(count)))


async def test_many_readers_cost_one_list_in_ten_seconds() -> None:
    readers = Readers(hub_of(MANY))
    assert "*" in await readers.read(MANY)
    for _ in range(5):
        assert await readers.read(MANY, later_s=FRESH_S / 2) in (["*"], [])
        assert len(await readers.read(MANY, later_s=FRESH_S / 2)) <= 1


async def test_a_few_readers_are_requested_by_name() -> None:
    readers = Readers(hub_of(MANY))
    for _ in range(3):
        assert await readers.read(MIN_SAVED_REQUESTS, later_s=FRESH_S) == [
            f"user-{number}" for number in range(MIN_SAVED_REQUESTS)
        ]


async def test_a_long_list_is_not_read_for_fewer_names_than_it_has_pages() -> None:
    readers = Readers(hub_of(100 * PAGE_SIZE))
    await readers.read(MANY)
    assert "*" not in await readers.read(MANY, later_s=FRESH_S)


async def test_a_change_is_seen_after_ten_seconds_also_by_a_list() -> None:
    readers = Readers(hub_of(MANY))
    await readers.read(MANY)
    await readers.read(MANY, later_s=FRESH_S)
    readers.hub.users["user-3"] = Account(name="user-3", groups=(), admin=True)
    del readers.hub.users["user-4"]
    await readers.read(MANY, later_s=FRESH_S)
    changed = await readers.accounts.get("user-3")
    assert changed is not None and (changed.admin, changed.groups) == (True, ())
    assert await readers.accounts.get("user-4") is None


async def test_a_new_user_that_the_list_lacks_is_requested_by_name() -> None:
    readers = Readers(hub_of(MANY))
    await readers.read(MANY)
    readers.hub.users["new"] = Account(name="new", groups=(), admin=False)
    assert await readers.accounts.get("new") == readers.hub.users["new"]


async def test_a_hub_that_lists_nobody_is_asked_for_each_name() -> None:
    readers = Readers(hub_of(MANY))
    readers.hub.lists_nothing = True
    found = await readers.read(MANY)
    assert set(found) >= {f"user-{number}" for number in range(MANY)}


async def test_known_accounts_stay_for_ten_minutes_while_the_hub_is_away() -> None:
    readers = Readers(hub_of(MANY))
    await readers.read(MANY)
    await readers.read(MANY, later_s=FRESH_S)
    readers.hub.away = True
    await readers.read(MANY, later_s=MAX_STALE_S / 2)
    with pytest.raises(HubUnavailable):
        await readers.read(1, later_s=MAX_STALE_S)


async def test_all_users_are_requested_once_in_ten_seconds() -> None:
    readers = Readers(hub_of(2))
    first = await asyncio.gather(*(readers.accounts.recent_hub_users() for _ in range(MANY)))
    assert set(first[0].users) == {"user-0", "user-1"} and readers.hub.asked == ["all users"]
    readers.now += FRESH_S
    await readers.accounts.recent_hub_users()
    assert readers.hub.asked == ["all users"] * 2


async def test_all_users_are_requested_again_after_a_failure() -> None:
    readers = Readers(hub_of(2))
    readers.hub.away = True
    with pytest.raises(HubUnavailable):
        await readers.accounts.recent_hub_users()
    readers.hub.away = False
    assert (await readers.accounts.recent_hub_users()).users == {"user-0", "user-1"}


# --- the real API ---------------------------------------------------------------------------------------------------
@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def test_people_who_read_through_the_service_are_listed_at_once(world: ServiceWorld) -> None:
    people = [f"reader-{number}" for number in range(MANY)]
    for name in people:
        world.add(name, groups=["vision-team"])
    later = 0.0
    clock, accounts = world.services.people.accounts._clock, world.services.people.accounts
    accounts._clock = lambda: clock() + later
    for _ in range(2):
        world.hub.asked.clear()
        for name in people:
            assert world.get("me", name).json["projects"] == {"vision": "member"}
        later += FRESH_S
    assert [path for path in world.hub.asked if path != "user"] == ["users"]


def test_a_token_that_the_hub_does_not_verify_is_answered_with_the_log_that_has_the_cause(world: ServiceWorld) -> None:
    world.hub.away = True
    refused = world.get("me")
    assert (refused.status, refused.json["reason"]) == (503, "hub_away")
    why = "the hub did not answer or refused this service's token; see the log of the gpu-quota service."
    assert why in refused.json["message"]
