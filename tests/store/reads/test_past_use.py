"""Past use: the use of each project above its quota, with decay, from the stored allocations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.model import Amounts, Change, History, Policy, Project, Usage, Window
from jupyter_gpu_quota.store.reads.past_use import PastUse, bucket_ms, next_update_at
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ReturnNotebook
from jupyter_gpu_quota.store.records.rows import Holding
from tests.store.worlds import KINDS, POLICY, T0, World, opened

MINUTE = 60_000
HOUR = 60 * MINUTE
HISTORY = History(k_milli=1000, half_life_s=6 * 3600, window_s=86_400)
FLAT = History(k_milli=1000, half_life_s=10_000_000, window_s=86_400)
"""The first half hour after T0 decays not at all."""


def policy(history: History = FLAT, *windows: Window, training_milli: int = 2000) -> Policy:
    project = Project(name="p", amounts={"t": Amounts(training_milli=training_milli)})
    return Policy(revision=1, pools=("t", "u"), projects=(project,), history=history, windows=windows)


@dataclass
class Disk:
    """A store of holdings only; each row has the version at which it last changed."""

    rows: dict[str, tuple[int, Holding]] = field(default_factory=dict)
    version: int = 1
    asked: list[int] = field(default_factory=list)
    is_away: bool = False

    def hold(self, began_at: int, ended_at: int | None = None, milli: int = 1000, pool: str = "t") -> str:
        self.version += 1
        id = f"a{len(self.rows)}"
        row = Holding(id=id, project="p", pool=pool, gpu_milli=milli, began_at=began_at, ended_at=ended_at)
        self.rows[id] = (self.version, row)
        return id

    def release(self, id: str, ended_at: int) -> None:
        self.version += 1
        self.rows[id] = (self.version, replace(self.rows[id][1], ended_at=ended_at))

    def holdings(self, since: int, *, ended_after: int) -> tuple[int, list[Holding]]:
        self.asked.append(since)
        if self.is_away:
            raise StoreUnavailable("away")
        rows = [(changed, row) for changed, row in self.rows.values() if changed > since]
        if since:
            return self.version, [row for _, row in rows]
        return self.version, [row for _, row in rows if row.ended_at is None or row.ended_at > ended_after]


def used(disk: Disk, now: int, rules: Policy | None = None) -> int:
    """Milli-GPU times seconds above quota in pool t, as a reader that has just come finds them."""
    past = PastUse()
    past.follow(disk, rules or policy(), now)  # type: ignore[arg-type]
    assert all((one.project, one.pool) in (("p", "t"), ("p", "u")) for one in past.usage)
    return sum(one.milli_s for one in past.usage if one.pool == "t")


# --- what counts --------------------------------------------------------------------------------------------------
# R20
@pytest.mark.parametrize(
    ("held", "milli_s"),
    [
        pytest.param([2000], 0, id="exactly its quota is not above it"),
        pytest.param([2001], 60, id="one milli above for a minute"),
        pytest.param([1000, 1000, 500], 30_000, id="several jobs are added up"),
    ],
)
def test_only_use_above_the_quota_counts(held: list[int], milli_s: int) -> None:
    disk = Disk()
    for milli in held:
        disk.hold(T0, T0 + MINUTE, milli)
    assert used(disk, T0 + MINUTE) == milli_s


def test_use_of_the_same_minute_is_only_above_quota_while_it_is_at_once() -> None:
    disk = Disk()
    disk.hold(T0, T0 + 30_000, 2000)
    disk.hold(T0 + 20_000, T0 + 50_000, 2000)
    assert used(disk, T0 + MINUTE) == 2000 * 10


# R20
def test_a_half_life_later_it_counts_half() -> None:
    disk = Disk()
    disk.hold(T0, T0 + MINUTE, 3000)
    assert used(disk, T0 + MINUTE, policy(HISTORY)) == pytest.approx(60_000, rel=0.003)
    assert used(disk, T0 + MINUTE + HISTORY.half_life_s * 1000, policy(HISTORY)) == pytest.approx(30_000, rel=0.003)


# R20
def test_beyond_the_window_it_counts_nothing() -> None:
    disk = Disk()
    disk.hold(T0, T0 + MINUTE, 3000)
    last = T0 + HISTORY.window_s * 1000
    assert used(disk, last - bucket_ms(HISTORY), policy(HISTORY)) > 0
    assert used(disk, last + 2 * bucket_ms(HISTORY), policy(HISTORY)) == 0


def test_live_holdings_count_up_to_now() -> None:
    disk = Disk()
    disk.hold(T0, None, 3000)
    assert [used(disk, T0 + n * MINUTE) for n in (0, 1, 2)] == [0, 60_000, 120_000]


def test_a_window_that_raised_the_quota_is_taken_into_account() -> None:
    disk = Disk()
    disk.hold(T0, T0 + 10 * MINUTE, 3000)
    night = Change(owner="p", pool="t", training_milli=2500)
    window = Window(name="night", begins_at=T0 + 2 * MINUTE, ends_at=T0 + 5 * MINUTE + 30_000, changes=(night,))
    assert used(disk, T0 + 10 * MINUTE, policy(FLAT, window)) == 1000 * 2 * 60 + 500 * 210 + 1000 * 270


def test_pools_are_counted_separately_and_removed_projects_are_not_counted() -> None:
    disk = Disk()
    disk.hold(T0, T0 + MINUTE, 1000, pool="u")
    disk.hold(T0, T0 + MINUTE, 1000, pool="gone")
    past = PastUse()
    past.follow(disk, policy(), T0 + MINUTE)  # type: ignore[arg-type]
    assert past.usage == (Usage(project="p", pool="u", milli_s=60_000),)


# --- when it is looked at -----------------------------------------------------------------------------------------
def test_past_use_is_counted_without_history_too() -> None:
    """The order between projects needs it. Rule R20."""
    disk, past = Disk(), PastUse()
    disk.hold(T0, None, 3000)
    assert past.follow(disk, policy(History()), T0 + HOUR) and past.usage  # type: ignore[arg-type]


def test_past_use_is_updated_once_a_minute_and_reads_only_changes() -> None:
    disk, past, rules = Disk(), PastUse(), policy()
    disk.hold(T0, None, 3000)
    news = [past.follow(disk, rules, T0 + HOUR + second * 1000) for second in range(121)]  # type: ignore[arg-type]
    assert [second for second, is_news in enumerate(news) if is_news] == [0, 60, 120]
    assert disk.asked == [0, disk.version, disk.version]


def test_past_use_that_could_not_be_read_is_read_at_the_next_call() -> None:
    disk, past, rules = Disk(is_away=True), PastUse(), policy()
    disk.hold(T0, None, 3000)
    with pytest.raises(StoreUnavailable):
        past.follow(disk, rules, T0 + HOUR)  # type: ignore[arg-type]
    disk.is_away = False
    assert past.follow(disk, rules, T0 + HOUR + 1) and past.usage  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("k_milli", "each_ms"),
    [pytest.param(1000, MINUTE, id="shares depend on it"), pytest.param(0, 45 * MINUTE, id="the order alone does")],
)
def test_the_next_update_that_may_change_a_plan(k_milli: int, each_ms: int) -> None:
    history = History(k_milli=k_milli)
    begins = T0 // each_ms * each_ms
    assert next_update_at(history, begins + 1) == begins + each_ms == next_update_at(history, begins + each_ms - 1)


def test_an_edit_of_the_quota_reevaluates_past_use() -> None:
    disk, past = Disk(), PastUse()
    disk.hold(T0, T0 + MINUTE, 3000)
    past.follow(disk, policy(), T0 + HOUR)  # type: ignore[arg-type]
    assert past.follow(disk, policy(training_milli=4000), T0 + HOUR)  # type: ignore[arg-type]
    assert past.usage == ()


# --- everybody finds the same -------------------------------------------------------------------------------------
sittings = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 90), st.integers(1, 3000), st.integers(0, 59_999)), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(sittings, st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from([60, 3600, 6 * 3600]))
def test_an_incremental_and_a_fresh_reader_agree(
    rows: list[tuple[int, int, int, int]], steps: list[int], half_life_s: int
) -> None:
    """Both equal the sum over single seconds, in milli-GPU times seconds."""
    rules = policy(History(k_milli=1, half_life_s=half_life_s, window_s=3600))
    events = sorted((T0 + begins * MINUTE + odd, lasts, milli) for begins, lasts, milli, odd in rows)
    disk, past, now, live = Disk(), PastUse(), T0, list[tuple[int, str]]()
    for step in steps:
        now += step * MINUTE
        for at, lasts, milli in [event for event in events if event[0] <= now]:
            live.append((at + lasts * 45_000, disk.hold(at, None, milli)))
        events = [event for event in events if event[0] > now]
        for ends_at, id in [one for one in live if one[0] <= now]:
            disk.release(id, ends_at)
        live = [one for one in live if one[0] > now]
        past.follow(disk, rules, now)  # type: ignore[arg-type]
        assert sum(one.milli_s for one in past.usage) == used(disk, now, rules)
    bucket_s = bucket_ms(rules.history) / 1000
    assert used(disk, now, rules) == pytest.approx(added_up(disk, now, half_life_s, bucket_s), rel=1e-6, abs=1)


def added_up(disk: Disk, now: int, half_life_s: int, bucket_s: float) -> float:
    """The same by another way: in floats, second by second."""
    total, first = 0.0, (now / 1000 - 3600) // bucket_s
    edges = sorted({now, *(t for _, h in disk.rows.values() for t in (h.began_at, h.ended_at or now) if t < now)})
    each_ms = int(bucket_s * 1000)
    edges = sorted({*edges, *range((now - 2 * HOUR) // each_ms * each_ms, now, each_ms)})
    for begins, ends in pairwise(edges):
        held = sum(h.gpu_milli for _, h in disk.rows.values() if h.began_at <= begins < (h.ended_at or now))
        bucket = begins / 1000 // bucket_s
        age_s = (now / 1000 // bucket_s - bucket) * bucket_s
        if bucket >= first:
            total += max(0, held - 2000) * (ends - begins) / 1000 * 2 ** (-age_s / half_life_s)
    return total


# --- in every store -----------------------------------------------------------------------------------------------
@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


def test_a_store_lists_present_and_past_holdings_of_jobs(world: World) -> None:
    world.submit("long")
    world.submit("gang", ranks=2)
    world.ask_notebook("n")
    world.run("long", "d0")
    before = world.store.version()
    world.now += 1000
    world.run("gang", "d1", "d2")
    world.now += 1000
    world.see(*(world.gone("gang", 0, rank=rank) for rank in range(2)))
    world.record(ReturnNotebook(notebook="n", actor="bob", why="stop"))

    def found(since: int, ended_after: int = 0) -> list[tuple[int, int, int | None]]:
        version, rows = world.store.holdings(since, ended_after=ended_after)
        assert version == world.store.version()
        assert {(row.project, row.pool) for row in rows} <= {("bob-lab", "train")}
        return sorted((row.gpu_milli, row.began_at - T0, row.ended_at and row.ended_at - T0) for row in rows)

    gang = (1000, 1000, 2000)
    assert found(0) == [(1000, 0, None), gang, gang]
    assert found(before) == [gang, gang], "only what changed since"
    assert found(world.store.version()) == []
    assert found(0, ended_after=T0 + 2000) == [(1000, 0, None)]
    assert len(found(0, ended_after=T0 + 1999)) == 3


def test_a_snapshot_carries_the_past_use_and_a_restart_finds_the_same(world: World) -> None:
    rules = replace(POLICY, history=FLAT)
    world.record(ApplyQuota(actor="a", text="", document={}, policy=rules, expected_revision=None))
    world.policy = replace(rules, revision=2)
    for number in range(3):
        world.submit(f"j{number}")
        world.run(f"j{number}", f"d{number}")
    mirror = Mirror()
    mirror.update(world.store)
    assert mirror.snapshot(T0).usage == ()
    world.now = T0 + 10 * MINUTE
    assert mirror.follow_use(world.store, world.now)
    assert mirror.snapshot(world.now).usage == (Usage(project="bob-lab", pool="train", milli_s=600_000),)
    world.lease = world.lead("leader")
    world.see(world.gone("j0", 0))
    world.now += 60 * MINUTE
    mirror.update(world.store)
    mirror.follow_use(world.store, world.now)
    again = Mirror()
    again.update(world.store)
    again.follow_use(world.store, world.now)
    assert again.snapshot(world.now).usage == mirror.snapshot(world.now).usage != ()
