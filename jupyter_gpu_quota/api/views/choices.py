"""The choices that a person has for a job in a project: pools, environments, time limits, priority, remaining quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...quotafile import QuotaFile
from ...wire import DepartmentView, ModelView, ProjectPoolView, ProjectView, SubmitPoolView, SubmitView
from ..access.permissions import DEFAULT_PRIORITY, MAX_PRIORITY, Person, may_raise_priority, may_submit_to
from ..state.store_view import StoreView


def with_choices(view: ProjectView, person: Person, store_view: StoreView, now: int) -> ProjectView:
    """The project with the choices of this person, who must be a member to have any."""
    quota, name = store_view.usable_quota_file, view.name
    if quota is None or not may_submit_to(person, name):
        return view
    pools = [
        _pool(_levels(row, view.department), name, quota, store_view)
        for row in view.pools
        if quota.allows(row.pool, "training")
    ]
    default = quota.default_pool(name, "training")
    found = SubmitView(
        pools=pools,
        default_pool=default if any(pool.pool == default for pool in pools) else None,
        environments=list(quota.environments_of(name)),
        data=quota.usable_data(person.groups, now),
        default_environment=quota.default_environment(name),
        priority=DEFAULT_PRIORITY,
        max_priority=MAX_PRIORITY if may_raise_priority(person, name) else DEFAULT_PRIORITY,
    )
    return view.model_copy(update={"submit": found})


def _levels(row: ProjectPoolView, department: DepartmentView | None) -> list[ProjectPoolView]:
    """A project's row in a pool, and its department's; one that does not name the pool has a limit of 0 there."""
    if department is None:
        return [row]
    nothing = {"in_force_training_milli": 0, "limit_milli": 0, "user_jobs_milli": None}
    above = [each for each in department.pools if each.pool == row.pool]
    return [row, *(above or [row.model_copy(update=nothing)])]


def _pool(levels: list[ProjectPoolView], project: str, quota: QuotaFile, store_view: StoreView) -> SubmitPoolView:
    """One pool; ``levels``: the project's row in it, and its department's."""
    pool = levels[0].pool
    return SubmitPoolView(
        pool=pool,
        models=_models(pool, store_view),
        simulated=store_view.is_simulated(pool),
        time_limit_s=quota.time_limit_s(project, pool),
        max_time_limit_s=min(quota.max_time_limits(project, pool).values(), default=None),
        quota_left_milli=min(max(0, row.in_force_training_milli - _use(row)) for row in levels),
        limit_left_milli=_left((_limit(row), _use(row)) for row in levels),
        user_left_milli=_left((row.user_jobs_milli, row.own_jobs_milli) for row in levels),
    )


def _use(row: ProjectPoolView) -> int:
    return row.training_used_milli + row.borrowed_milli


def _limit(row: ProjectPoolView) -> int | None:
    """The limit of its jobs: without the notebook quota, which notebooks may request at any time."""
    if row.limit_milli is None:
        return None
    return max(0, row.limit_milli - max(row.notebook_milli, row.notebook_used_milli))


def _left(bounds: Iterable[tuple[int | None, int]]) -> int | None:
    """The least that is left below some bounds, each with what is used of it; None without a bound."""
    return min((max(0, bound - used) for bound, used in bounds if bound is not None), default=None)


def _models(pool: str, store_view: StoreView) -> list[ModelView]:
    count = Counter((device.model, device.memory_mib) for device in store_view.devices_in(pool))
    return [ModelView(model=model, memory_mib=mib, devices=devices) for (model, mib), devices in sorted(count.items())]
