"""The route of usage: allocated and used GPU hours by project, user, pool, device, workload or hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from ...store.records.rows import UsageHour
from ...wire import UsageView
from ..access.permissions import Person, may_see_project
from ..access.refusals import Refused
from ..requests.call import Answer, Call

HOUR_MS, DAY_H, MAX_HOURS = 3_600_000, 24, 31 * 24
HOUR_S = 3_600
UNREAD = "none of its devices was read in this time"

KEYS: Mapping[str, Callable[[UsageHour], str]] = {
    "project": lambda row: row.project,
    "user": lambda row: row.user,
    "pool": lambda row: row.pool,
    "device": lambda row: row.device,
    "workload": lambda row: row.workload,
    "hour": lambda row: f"{datetime.fromtimestamp(row.hour_at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
}
PERSONAL = frozenset({"user", "workload"})
"""Keys that concern single people: shown to themselves, to leads of the project and to admins."""


@dataclass(slots=True)
class _Sum:
    """The hours of one key. ``seen_milli_s``: its allocation in the time that readings cover."""

    allocated_milli_s: int = 0
    allocated_s: int = 0
    used_milli_s: int = 0
    seen_s: int = 0
    seen_milli_s: int = 0
    simulated: bool = False

    def add(self, row: UsageHour) -> None:
        seen_s = min(row.seen_s, row.allocated_s)
        self.allocated_milli_s += row.allocated_milli_s
        self.allocated_s += row.allocated_s
        self.used_milli_s += row.used_milli_s
        self.seen_s += seen_s
        self.seen_milli_s += row.allocated_milli_s * seen_s // row.allocated_s if row.allocated_s else 0

    def view(self, name: str) -> UsageView:
        known = self.seen_milli_s > 0
        return UsageView(
            name=name,
            allocated_milli_h=self.allocated_milli_s // HOUR_S,
            used_milli_h=self.used_milli_s // HOUR_S if known else None,
            utilisation_percent=min(100, self.used_milli_s * 100 // self.seen_milli_s) if known else None,
            used_unknown=None if known else UNREAD,
            coverage_percent=self.seen_s * 100 // self.allocated_s if self.allocated_s else 0,
            simulated=self.simulated,
            allocated_milli_s=self.allocated_milli_s,
            used_milli_s=self.used_milli_s if known else None,
        )


async def show(call: Call) -> Answer:
    """Sums over whole hours, by default of the last day; at most 31 days."""
    store_view, now = call.store_view, call.services.clock()
    by = call.text("by") or "project"
    if by not in KEYS:
        raise Refused(400, "invalid", f"by was {by[:40]!r}; it is one of {', '.join(KEYS)}.")
    begin, end = _whole_hours(call, now)
    found = await store_view.read(store_view.store.usage, begin, end, now=now)
    simulated = frozenset(device.id for device in store_view.mirror.devices.values() if device.simulated)
    sums = summed((row for row in found if _is_seen(call.person, row, by)), by, simulated)
    if by == "user":
        await store_view.learn_names(sums)
        sums = {store_view.name_of(user): each for user, each in sums.items()}
    return call.listing(sorted(sums), lambda name: sums[name].view(name))


def summed(rows: Iterable[UsageHour], by: str, simulated: Set[str] = frozenset()) -> dict[str, _Sum]:
    """The sums of hours by one of KEYS; ``simulated`` are devices."""
    sums, key_of = dict[str, _Sum](), KEYS[by]
    for row in rows:
        each = sums.setdefault(key_of(row), _Sum())
        each.add(row)
        each.simulated |= row.device in simulated
    return sums


def _is_seen(person: Person, row: UsageHour, by: str) -> bool:
    if person.admin or row.user == person.id:
        return True
    return person.roles.get(row.project) == "lead" or (by not in PERSONAL and may_see_project(person, row.project))


def _whole_hours(call: Call, now: int) -> tuple[int, int]:
    """The hours from ``since`` to ``until``, rounded to whole hours that contain both."""
    until, since = call.instant("until"), call.instant("since")
    end = -(-(now if until is None else until) // HOUR_MS)
    begin = end - DAY_H if since is None else since // HOUR_MS
    if not begin < end <= begin + MAX_HOURS:
        raise Refused(400, "invalid", "since and until are in this order, and 31 days apart at most.")
    return begin * HOUR_MS, end * HOUR_MS
