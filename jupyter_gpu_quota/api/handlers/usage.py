"""The route of usage: allocated and used GPU hours, and waits, by one of KEYS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from ...core.frozen import fast_frozen
from ...core.model import WHOLE_DEVICE
from ...hub_api import ScopeMissing
from ...store.records.calls import UsageReader
from ...store.records.rows import JobStart, UsageHour
from ...wire import CostView, UsageView
from ...wire.csv_text import usage_csv
from ..access.permissions import Person
from ..access.refusals import Refused
from ..requests.call import Answer, Call
from ..views.records import instant

HOUR_MS, DAY_H, MAX_HOURS = 3_600_000, 24, 31 * 24
HOUR_S = 3_600
UNREAD = "none of its devices was read in this time"

Price = tuple[int, str]
"""Of a GPU hour: thousandths of a currency, and the currency."""

Names = Callable[[UsageHour], Collection[str]]
"""The names under which an hour is counted; "" is that of work whose owner has none."""

STORED: Mapping[str, Names] = {
    "project": lambda row: (row.project,),
    "user": lambda row: (row.user,),
    "pool": lambda row: (row.pool,),
    "device": lambda row: (row.device,),
    "workload": lambda row: (row.workload,),
    "hour": lambda row: (f"{datetime.fromtimestamp(row.hour_at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",),
}
"""Keys that the rows have."""

KEYS = ("project", "department", "group", "user", "pool", "device", "job", "workload", "hour")
WITH_JOBS = frozenset({"job", "workload"})
"""Keys whose names are ids of jobs."""
PERSONAL = frozenset({"group", "user", *WITH_JOBS})
"""Keys that concern single people: shown to themselves, to leads of the project and to admins."""


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The hours that begin from ``begin`` up to ``end``, which is not in it; both are whole hours."""

    begin: int
    end: int


class _Sum:
    """The hours of one key. ``seen_milli_s``: its allocation in the time that readings cover."""

    def __init__(self) -> None:
        self.allocated_milli_s = self.allocated_s = self.used_milli_s = self.seen_s = self.seen_milli_s = 0
        self.simulated = False
        self.waits_ms: dict[str, int] = {}
        """The wait of each job that started, by its id."""
        self.costs = Counter[str]()
        """Milli-GPU seconds times the price, by currency."""

    def add(
        self, row: UsageHour, start: JobStart | None, *, simulated: bool, price: tuple[int, str] | None = None
    ) -> None:
        seen_s = min(row.seen_s, row.allocated_s)
        self.allocated_milli_s += row.allocated_milli_s
        self.allocated_s += row.allocated_s
        self.used_milli_s += row.used_milli_s
        self.seen_s += seen_s
        self.seen_milli_s += row.allocated_milli_s * seen_s // row.allocated_s if row.allocated_s else 0
        self.simulated |= simulated
        if price is not None:
            amount_milli, currency = price
            self.costs[currency] += row.allocated_milli_s * amount_milli
        if start is not None and start.started_at is not None and start.started_at // HOUR_MS * HOUR_MS == row.hour_at:
            self.waits_ms[row.workload] = max(0, start.started_at - start.submitted_at)

    def view(self, name: str, period: Period) -> UsageView:
        known, waits = self.seen_milli_s > 0, self.waits_ms.values()
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
            started_jobs=len(waits),
            wait_mean_s=sum(waits) // len(waits) // 1000 if waits else None,
            wait_max_s=max(waits) // 1000 if waits else None,
            costs=[
                CostView(currency=currency, amount_milli=amount // (WHOLE_DEVICE * HOUR_S))
                for currency, amount in sorted(self.costs.items())
            ],
            begins_at=instant(period.begin),
            ends_at=instant(period.end),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenHours:
    """The hours that a person sees, the ids of their workloads in order, and their owners."""

    rows: Sequence[UsageHour]
    workloads: Sequence[str]
    users: Set[str]


async def show(call: Call) -> Answer:
    """Sums of the hours that begin in a period, by default the last day; at most 31 days. ``csv=1``: all, as a file."""
    by = call.text("by") or "project"
    if by not in KEYS:
        raise Refused(400, "invalid", f"by was {by[:40]!r}; it is one of {', '.join(KEYS)}.")
    now = call.services.clock()
    period = _period(call, now)
    with call.slow_work():
        return await _answer(call, by, period, now)


async def _answer(call: Call, by: str, period: Period, now: int) -> Answer:
    store_view, sums = call.store_view, await _sums(call, by, period, now)
    if by == "user":
        await store_view.learn_names(sums)
        sums = {store_view.name_of(user): each for user, each in sums.items()}
    names = sorted(sums)
    job_names = await store_view.read_long(store_view.store.job_names, names) if by in WITH_JOBS else {}

    def view(name: str) -> UsageView:
        return sums[name].view(name, period).model_copy(update={"job_name": job_names.get(name)})

    if call.flag("csv"):
        return await call.compute_slow(lambda: _csv_file(by, period, map(view, names)))
    return call.listing(names, view)


async def _sums(call: Call, by: str, period: Period, now: int) -> dict[str, _Sum]:
    """The sums by name; rows are read and summed in threads, since there may be millions."""
    store_view = call.store_view
    reader = reader_of(call.person, by)
    found = await store_view.read_long(store_view.store.usage, period.begin, period.end, now=now, reader=reader)
    seen = await call.compute_slow(_seen_hours, found)
    starts = await store_view.read_long(store_view.store.job_starts, seen.workloads)
    simulated = frozenset(device.id for device in store_view.mirror.devices.values() if device.simulated)
    prices = store_view.quota_file.prices if store_view.quota_file else {}
    names_of = await _names_by(call, by, seen.users, starts)
    return await call.compute_slow(summed, seen.rows, names_of, starts, simulated, prices)


def _seen_hours(rows: Sequence[UsageHour]) -> _SeenHours:
    workloads = sorted({row.workload for row in rows})
    return _SeenHours(rows=rows, workloads=workloads, users={row.user for row in rows})


def _csv_file(by: str, period: Period, rows: Iterable[UsageView]) -> Answer:
    days = "_".join(f"{instant(at):%Y-%m-%d}" for at in (period.begin, period.end))
    headers = {"Content-Disposition": f'attachment; filename="usage-by-{by}_{days}.csv"'}
    return Answer(body=usage_csv(by, rows).encode(), content_type="text/csv; charset=utf-8", headers=headers)


def summed(
    rows: Iterable[UsageHour],
    names_of: Names,
    starts: Mapping[str, JobStart],
    simulated: Set[str] = frozenset(),
    prices: Mapping[str, Price] = MappingProxyType({}),
) -> dict[str, _Sum]:
    """The sums of hours by name; ``simulated`` are devices, ``prices`` are those of pools."""
    sums = dict[str, _Sum]()
    for row in rows:
        for name in names_of(row):
            one, is_simulated = sums.setdefault(name, _Sum()), row.device in simulated
            one.add(row, starts.get(row.workload), simulated=is_simulated, price=prices.get(row.pool))
    return sums


async def _names_by(call: Call, by: str, users: Set[str], starts: Mapping[str, JobStart]) -> Names:
    """The names of a key. Raises HubUnavailable where the groups of users cannot be read."""
    match by:
        case "group":
            return await _groups(call, users)
        case "department":
            quota = call.store_view.quota
            departments = {each.name: each.department or "" for each in (quota.policy.projects if quota else ())}
            return lambda row: (departments.get(row.project, ""),)
        case "job":
            return lambda row: (row.workload,) if row.workload in starts else ()
        case _:
            return STORED[by]


async def _groups(call: Call, users: Set[str]) -> Names:
    """The groups that the users had in the hub at most 10 s ago."""
    groups_of = (await call.services.people.accounts.recent_hub_users()).groups_of
    if groups_of is None:
        raise ScopeMissing("groups", "read:users:groups")
    await call.store_view.learn_names(users)
    known = {user: groups_of.get(call.store_view.name_of(user)) or ("",) for user in users}
    return lambda row: known[row.user]


def reader_of(person: Person, by: str) -> UsageReader | None:
    """The person as a reader of these sums; None: they see every hour."""
    if person.admin:
        return None
    return UsageReader(user=person.id, projects=person.leads if by in PERSONAL else tuple(sorted(person.roles)))


def _period(call: Call, now: int) -> Period:
    """The hours that begin from ``from`` up to ``to``: each hour is in one of two consecutive periods."""
    end_at, begin_at = call.instant("to"), call.instant("from")
    end = -(-(now if end_at is None else end_at) // HOUR_MS)
    begin = end - DAY_H if begin_at is None else -(-begin_at // HOUR_MS)
    if begin > end - 1 or end - begin > MAX_HOURS:
        sentence = "the beginning of a whole hour is between from and to, which are at most 31 days apart."
        raise Refused(400, "invalid", f"No such period: {sentence}")
    return Period(begin=begin * HOUR_MS, end=end * HOUR_MS)
