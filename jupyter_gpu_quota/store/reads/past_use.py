"""The past use of each project above its quota, with decay: integers, from the stored allocations of jobs.

Time is divided into buckets that are the same for all projects. The use above quota in a bucket is an exact integer,
independent of the order of reads, and the weight of a bucket depends only on its age and the half-life. So the figure
for an instant is a function of the stored rows: every process and every kind of store computes the same.

The quota is that of the revision now in force, with its calendar: an edit of the quota also applies to the past.
Source: docs/scheduling.md, section 2.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import lru_cache
from itertools import pairwise

from ...core.model import History, Policy, Usage
from ...core.quota.in_force import in_force
from ..records.rows import Holding
from ..transactions import Store

MINUTE_MS = 60_000
BUCKETS_PER_HALF_LIFE = 64
SETTLED_MS = 5 * MINUTE_MS
"""A bucket that ended this long ago is final: nothing is recorded so late."""

ONE = 1 << 64
"""The weight of the present."""

Place = tuple[str, str]
"""A project and a pool."""


@dataclass(slots=True)
class _Counted:
    """Use under one policy. The use before ``until`` is in ``buckets`` and final."""

    policy: Policy
    until: int
    version: int = 0
    held: dict[str, Holding] = field(default_factory=dict)
    buckets: defaultdict[Place, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, version: int, holdings: Iterable[Holding]) -> None:
        """Add holdings, as of a version of the store."""
        self.version = version
        self.held.update((holding.id, holding) for holding in holdings)

    def settle(self, fresh: Mapping[Place, Mapping[int, int]], until: int, first: int) -> None:
        """Store the buckets that end before an instant; remove holdings that ended before it, and old buckets."""
        if until <= self.until:
            return
        each_ms, self.until = bucket_ms(self.policy.history), until
        self.held = {id: one for id, one in self.held.items() if one.ended_at is None or one.ended_at > until}
        for place, amounts in fresh.items():
            self.buckets[place].update((b, amount) for b, amount in amounts.items() if (b + 1) * each_ms <= until)
        for place, kept in self.buckets.items():
            self.buckets[place] = {bucket: amount for bucket, amount in kept.items() if bucket >= first}


class PastUse:
    """The past use that counts under a policy, updated every minute; the queue's order needs it with k = 0, too.

    ``usage`` is as of the last update; ``news`` counts the updates that changed it.
    Rule R20.
    """

    def __init__(self) -> None:
        self.usage: tuple[Usage, ...] = ()
        self.news = 0
        self._counted: _Counted | None = None
        self._updated: tuple[Policy, int] | None = None

    def follow(self, store: Store, policy: Policy, now: int) -> bool:
        """Update ``usage`` to the whole minute before ``now``; once a minute for each policy.

        Returns whether a plan may change by that alone: it changed, and shares depend on it, or a bucket has ended.
        Raises StoreUnavailable, with everything as it was: the next call reads again.
        """
        at = now // MINUTE_MS * MINUTE_MS
        before = self._updated
        is_same_policy = before is not None and before[0] is policy
        if before is not None and is_same_policy and before[1] == at:
            return False
        self._counted, self._updated = self._read(store, policy, at), (policy, at)
        changed = self._set(_usage(self._counted, at))
        is_due = not is_same_policy or before is None or next_update_at(policy.history, before[1]) <= at
        return changed and is_due

    def _set(self, usage: tuple[Usage, ...]) -> bool:
        changed, self.usage = usage != self.usage, usage
        self.news += changed
        return changed

    def _read(self, store: Store, policy: Policy, at: int) -> _Counted:
        """Read the new holdings; all of them after another policy, a clock that was set back, or a restored backup."""
        counted = self._counted
        if counted is not None and counted.policy is policy and counted.until <= at:
            version, holdings = store.holdings(counted.version, ended_after=0)
            if version >= counted.version:
                counted.add(version, holdings)
                return counted
        begins_at = _first_bucket(policy.history, at) * bucket_ms(policy.history)
        counted = _Counted(policy, begins_at)
        counted.add(*store.holdings(0, ended_after=begins_at))
        return counted


def next_update_at(history: History, now: int) -> int:
    """When past use alone may change a plan: the next whole minute if shares depend on it, else the next bucket."""
    each_ms = MINUTE_MS if history.k_milli else bucket_ms(history)
    return (now // each_ms + 1) * each_ms


def bucket_ms(history: History) -> int:
    """The length of a bucket: whole minutes, so few that the decay inside is negligible."""
    return max(1, history.half_life_s * 1000 // BUCKETS_PER_HALF_LIFE // MINUTE_MS) * MINUTE_MS


def _first_bucket(history: History, at: int) -> int:
    """The oldest bucket that counts at an instant."""
    return (at - history.window_s * 1000) // bucket_ms(history)


def _usage(counted: _Counted, at: int) -> tuple[Usage, ...]:
    history = counted.policy.history
    each_ms, first = bucket_ms(history), _first_bucket(history, at)
    fresh = _above_quota(counted, at, each_ms)
    counted.settle(fresh, (at - SETTLED_MS) // each_ms * each_ms, first)
    weights = _weights(history.half_life_s, each_ms, at // each_ms - first + 1)
    found = []
    for place in sorted(fresh.keys() | counted.buckets.keys()):
        buckets = counted.buckets.get(place, {}) | fresh.get(place, {})
        ages = ((at // each_ms - bucket, amount) for bucket, amount in buckets.items() if bucket >= first)
        milli_s = sum(amount * weights[age] for age, amount in ages if age < len(weights)) // (1000 * ONE)
        if milli_s:
            found.append(Usage(project=place[0], pool=place[1], milli_s=milli_s))
    return tuple(found)


@lru_cache(maxsize=8)
def _weights(half_life_s: int, each_ms: int, most: int) -> Sequence[int]:
    """The weight of a bucket, in parts of ONE, by its age in buckets, at most ``most`` of them; older ones have none.

    The decimal library rounds ln and exp correctly, so the integers are the same on every machine.
    """
    context, weights = Context(prec=50), [ONE]
    each = context.divide(context.multiply(context.ln(Decimal(2)), Decimal(each_ms)), Decimal(half_life_s * 1000))
    while weights[-1] and len(weights) < most:
        decay = context.exp(context.multiply(each, Decimal(-len(weights))))
        weights.append(int(context.multiply(decay, Decimal(ONE))))
    return weights


# --- buckets --------------------------------------------------------------------------------------------------------
def _above_quota(counted: _Counted, at: int, each_ms: int) -> dict[Place, dict[int, int]]:
    """Milli-GPU times milliseconds above quota in each bucket that is not settled, by place."""
    quotas = _quotas(counted.policy, counted.until, at)
    by_place = defaultdict[Place, list[Holding]](list)
    for holding in counted.held.values():
        by_place[holding.project, holding.pool].append(holding)
    return {
        place: _use_above_quota(
            _deltas(holdings, counted.until, at), [(since, row[place]) for since, row in quotas], at, each_ms
        )
        for place, holdings in by_place.items()
        if place in quotas[0][1]
    }


def _quotas(policy: Policy, begins_at: int, ends_at: int) -> list[tuple[int, Mapping[Place, int]]]:
    """The training quotas, by place, from each instant at which a window begins or ends. Every pool has one."""
    instants = {at for window in policy.windows for at in (window.begins_at, window.ends_at)}
    return [
        (
            at,
            {
                (project.name, pool): amounts.training_milli if (amounts := project.amounts.get(pool)) else 0
                for project in in_force(policy, at).projects
                for pool in policy.pools
            },
        )
        for at in [begins_at, *sorted(at for at in instants if begins_at < at < ends_at)]
    ]


def _deltas(holdings: Iterable[Holding], begins_at: int, ends_at: int) -> Counter[int]:
    """The changes of the use, by instant, within a period."""
    deltas = Counter[int]({begins_at: 0, ends_at: 0})
    for holding in holdings:
        ended_at = ends_at if holding.ended_at is None else min(holding.ended_at, ends_at)
        began_at = max(holding.began_at, begins_at)
        if began_at < ended_at:
            deltas[began_at] += holding.gpu_milli
            deltas[ended_at] -= holding.gpu_milli
    return deltas


def _use_above_quota(
    deltas: Counter[int], quotas: Sequence[tuple[int, int]], ends_at: int, each_ms: int
) -> dict[int, int]:
    """The use above quota in each bucket where there is any."""
    begins_at = min(deltas)
    cuts = range(begins_at // each_ms * each_ms + each_ms, ends_at, each_ms)
    quota_from = dict(quotas)
    buckets, use, quota = defaultdict[int, int](int), 0, 0
    for at, until in pairwise(sorted({*deltas, *quota_from, *cuts})):
        use += deltas[at]
        quota = quota_from.get(at, quota)
        if use > quota:
            buckets[at // each_ms] += (use - quota) * (until - at)
    return buckets
