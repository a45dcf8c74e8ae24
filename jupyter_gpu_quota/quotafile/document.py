"""The sections of the quota file, and the values that the rest of the package reads from them.

The same classes read the file, write it and give its JSON Schema. Sections of the contract that this release cannot
enforce are fields too, so that they are refused by name and not as unknown keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints

from ..core import model
from ..core.amounts import matches_model
from ..core.enforcement.levels import EnforcementLevel, RequiredEnforcement
from ..core.idle.activity import IdleMode, IdlePolicy
from ..core.model import OWN_CLUSTER, Amounts, Department, Device, Node, Policy, PreemptionPolicy, Project, Window
from ..core.reasons import DataUnavailable
from ..messages.validation import MAX_NUMBER, shown
from .calendar import expand
from .calendar_section import AmountsChange, CalendarSection, ChangedPerUser, WhenSection, core_amounts
from .data_section import DataSection, data_variable
from .fields import (
    Amount,
    Ceiling,
    Count,
    HistoryStrength,
    Image,
    Instant,
    InterpreterPath,
    ItemName,
    Milliseconds,
    ModelName,
    PersonName,
    Price,
    Priority,
    Seconds,
    Section,
    Size,
    Unenforced,
    Weight,
    Whole,
    refuse,
    within,
)

Kind = Literal["notebook", "training", "inference"]
Role = Literal["member", "lead"]
DAY_S = 86_400
HORIZON_DAYS = 60
"""A policy has the calendar this far ahead; it is made again before half of that is left."""


class Selector(Section):
    """Which devices a pool takes: those of one cluster that match every key that is given, in one of its values.

    So a job, which runs in one pool, runs in one cluster. Without a ``cluster`` it is the hub's own.
    """

    gpu_model: Annotated[list[ModelName], Field(min_length=1)] | None = None
    node: Annotated[list[ModelName], Field(min_length=1)] | None = None
    cluster: ItemName | None = None

    def takes(self, device: Device, node: Node | None) -> bool:
        """Whether it takes a device of this node; None: of the hub's own cluster, by its id."""
        names = {device.node} if node is None else {node.id, node.name}
        by_model = self.gpu_model is None or any(matches_model(asked, device.model) for asked in self.gpu_model)
        by_node = self.node is None or not names.isdisjoint(self.node)
        return by_model and by_node and (self.cluster or OWN_CLUSTER) == (node.cluster if node else OWN_CLUSTER)

    def text(self) -> str:
        """The selector as people read it; empty where it takes every device."""
        lists = {"gpu_model": self.gpu_model, "node": self.node}
        parts = [f"{key}: [{', '.join(values)}]" for key, values in lists.items() if values is not None]
        return " and ".join([*parts, *([f"cluster: {self.cluster}"] if self.cluster else [])])

    @property
    def takes_all(self) -> bool:
        """Whether it takes every device of its cluster."""
        return self.gpu_model is None and self.node is None


class Maximum(Section):
    """The most that one job may request; null: no maximum."""

    time_limit: (
        Annotated[Seconds, within(1, None, "a maximum of 0 would refuse every job; write a duration such as 7d")] | None
    ) = None


class CostSection(Section):
    """The price of one GPU for an hour, for the costs in the usage."""

    amount: Price
    currency: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Z]{3}$")]


class PoolSection(Section):
    """A named set of devices of one cluster. Without a selector it has all of the hub's that no pool before it took."""

    name: ItemName
    selector: Selector = Selector()
    uses: Annotated[list[Kind], Field(min_length=1)] = ["notebook", "training", "inference"]
    maximum: Maximum = Maximum()
    cost_per_gpu_hour: CostSection | None = None


class Members(Section):
    groups: list[PersonName] = []
    users: list[PersonName] = []
    leads: list[PersonName] = []


class PerUser(Section):
    """Ceilings for one user of a project or department in one pool; none without a number."""

    notebook: Ceiling = None
    jobs: Ceiling = None


class AmountsSection(Section):
    """The amounts of a project, or of a department, in one pool. Source: docs/scheduling.md, section 1."""

    notebook: Amount = 0
    training: Amount = 0
    limit: Ceiling = None
    weight: Weight = 1
    per_user: PerUser = PerUser()

    def amounts(self) -> Amounts:
        return Amounts(**core_amounts(self))

    def quota(self, kind: Kind) -> int:
        """The quota for a kind of work, in milli-GPU."""
        return self.notebook if kind == "notebook" else self.training


class DepartmentSection(Section):
    """A group of projects. A pool that ``quota`` does not name gives its projects nothing there."""

    name: ItemName
    priority: Priority = 50
    quota: dict[ItemName, AmountsSection]


class KindPools(Section):
    notebook: ItemName | None = None
    training: ItemName | None = None
    inference: ItemName | None = None


class Defaults(Section):
    environment: ItemName | None = None
    pool: KindPools = KindPools()
    time_limit: Annotated[
        Seconds, within(1, None, "a time limit of 0 would end every job at once; write a duration such as 24h")
    ] = DAY_S


class StorageSection(Section):
    """How much space the outputs of a project's ended jobs may take, and for how long they are kept; null: no limit."""

    outputs: (
        Annotated[Size, within(1, None, "with no space no job could be submitted; write one such as 50GiB")] | None
    ) = None
    keep: Annotated[Seconds, within(60, None, "outputs are kept for a minute at least; write 30d or 12h")] | None = None


def _or_empty(value: object) -> object:
    """A section of null, as earlier releases stored it, as an empty one."""
    return {} if value is None else value


class ProjectSection(Section):
    name: ItemName
    department: ItemName | None = None
    priority: Priority = 50
    members: Members = Members()
    quota: dict[ItemName, AmountsSection]
    defaults: Defaults = Defaults()
    maximum: Maximum = Maximum()
    storage: Annotated[StorageSection, BeforeValidator(_or_empty)] = StorageSection()


class EnvironmentSection(Section):
    """Runs the jobs that name it: an image in pods, and an interpreter on one machine or in that image.

    ``projects`` None means every project.
    """

    name: ItemName
    image: Image | None = None
    python: InterpreterPath | None = None
    projects: list[ItemName] | None = None


READINGS_KEPT = "readings are kept for 12 hours; write a duration from 1m to 12h"


class Idle(Section):
    """Idle notebooks. Mode report shows the GPUs that would be freed; mode reclaim frees them.

    ``busy_notify_after``: the owner of a kernel that is busy for so long without using the GPU is notified; the GPU is
    not freed.
    ``suspend``, experimental: a kernel is suspended with its variables rather than shut down, where its server can.
    """

    mode: Literal["report", "reclaim"] = "report"
    gpu_idle_after: Seconds = 1200
    kernel_idle_after: Seconds = 1200
    when_nobody_waits: Seconds = 7200
    warn_for: Seconds = 300
    keep_at_most: Count = 3
    release_after: Seconds = 7200
    stop_server_after: Seconds = 43_200
    busy_notify_after: Annotated[Seconds, within(60, DAY_S // 2, READINGS_KEPT)] | None = None
    suspend: Annotated[bool, Field(strict=True)] = False
    maximum_lease: Unenforced = None

    def policy(self) -> IdlePolicy:
        """The policy of idle detection. A server reports more often where the waits are shorter."""
        shortest = min(self.gpu_idle_after, self.kernel_idle_after)
        return IdlePolicy(
            grace_s=min(300, shortest),
            report_every_s=max(3, min(30, shortest // 10)),
            mode=IdleMode(self.mode),
            gpu_idle_after_s=self.gpu_idle_after,
            kernel_idle_after_s=self.kernel_idle_after,
            when_nobody_waits_s=self.when_nobody_waits,
            warn_for_s=self.warn_for,
            keep_at_most=self.keep_at_most,
            release_after_s=self.release_after,
            stop_server_after_s=self.stop_server_after,
            busy_notify_after_s=self.busy_notify_after,
            suspend=self.suspend,
        )


class PreemptionSection(Section):
    min_runtime: Seconds = 600
    grace: Seconds = 60
    lent_grace: Seconds = 10
    max_pauses: Count = 4
    per: Annotated[Seconds, within(1, None, "a period of 0 counts no pause; write a duration such as 24h")] = DAY_S


Strength = Literal["hardware", "driver", "mps", "policed", "cooperative", "none"]


class EnforcementSection(Section):
    """The weakest enforcement that a share may have, strongest first; shares that can only have less are refused.

    With ``memory: policed``, or stronger, a workload that uses more memory than its share is warned and then stopped.
    """

    memory: Strength = "none"
    compute: Strength = "none"


NO_PAST = "0 leaves no past to count; write a duration such as 2d"


class History(Section):
    """Decayed use above quota. It orders the queue; with k above 0 it also divides the surplus."""

    k: HistoryStrength = 0
    half_life: Annotated[Seconds, within(1, None, NO_PAST)] = 2 * DAY_S
    window: Annotated[Seconds, within(1, None, NO_PAST)] = 7 * DAY_S


class PolicySection(Section):
    """``drain_by``: from then on non-preemptible jobs above a quota are stopped; null: they run to their end.

    ``patience``: a job that has waited so long and never started is not overtaken by younger jobs of its project.
    """

    idle: Idle = Idle()
    preemption: PreemptionSection = PreemptionSection()
    enforcement: EnforcementSection = EnforcementSection()
    history: History = History()
    within_project: Literal["users_in_turn", "first_come"] = "users_in_turn"
    patience: Annotated[
        Seconds, within(1, None, "with 0 no job could overtake another; write a duration such as 24h")
    ] = DAY_S
    tick_max: Annotated[Milliseconds, within(10, 1000, "a tick is 10ms at least and 1s at most")] = 1000
    drain_by: Instant | None = None


def _this_version(version: object) -> object:
    if version != 1 or isinstance(version, bool):
        raise refuse(f"{shown(version)} is not a version of the quota file that this release reads; write version: 1")
    return 1


class Document(Section):
    """All sections together, each of them valid; ``conflicts`` checks that they fit each other."""

    version: Annotated[Literal[1], BeforeValidator(_this_version)]
    revision: Annotated[Whole, Field(ge=0, le=MAX_NUMBER)] | None = None
    pools: list[PoolSection]
    departments: list[DepartmentSection] = []
    projects: list[ProjectSection]
    environments: list[EnvironmentSection] = []
    data: list[DataSection] = []
    calendar: list[CalendarSection] = []
    policy_section: Annotated[PolicySection, Field(alias="policy")] = PolicySection()

    # --- the policy of the core ---------------------------------------------------------------------------------------
    def policy(self, revision: int, now: int | None = None, *, days: int = HORIZON_DAYS) -> Policy:
        """The policy of the core, at one revision.

        ``now`` (milliseconds) expands the calendar for so many days ahead, and back as far as past use counts; None
        leaves it out.
        """
        times, past, idle = self.policy_section.preemption, self.policy_section.history, self.policy_section.idle
        return Policy(
            revision=revision,
            pools=tuple(pool.name for pool in self.pools),
            projects=tuple(
                Project(name=row.name, priority=row.priority, amounts=_amounts(row.quota), department=row.department)
                for row in self.projects
            ),
            preemption=PreemptionPolicy(
                min_runtime_s=times.min_runtime,
                grace_s=times.grace,
                lent_grace_s=times.lent_grace,
                max_pauses=times.max_pauses,
                per_s=times.per,
            ),
            within_project=self.policy_section.within_project,
            departments=tuple(
                Department(name=row.name, priority=row.priority, amounts=_amounts(row.quota))
                for row in self.departments
            ),
            windows=() if now is None else self._windows(now, days),
            history=model.History(k_milli=past.k, half_life_s=past.half_life, window_s=past.window),
            drain_by_at=self.policy_section.drain_by,
            lending=model.Lending(enabled=idle.mode == "reclaim", release_after_s=idle.release_after),
            patience_s=self.policy_section.patience,
        )

    def _windows(self, now: int, days: int) -> tuple[Window, ...]:
        past = self.policy_section.history
        back_s = past.window + past.half_life // 64 + DAY_S  # its oldest part is counted whole
        entries = [section.entry() for section in self.calendar]
        return expand(entries, now - back_s * 1000, now + days * DAY_S * 1000)

    @cached_property
    def idle(self) -> IdlePolicy:
        """The policy of idle detection."""
        return self.policy_section.idle.policy()

    @property
    def least(self) -> RequiredEnforcement:
        """The weakest enforcement that a share may have."""
        section = self.policy_section.enforcement
        return RequiredEnforcement(memory=EnforcementLevel(section.memory), compute=EnforcementLevel(section.compute))

    @property
    def tick_max_ms(self) -> int:
        """The longest time between two ticks, in milliseconds."""
        return self.policy_section.tick_max

    @property
    def prices(self) -> dict[str, tuple[int, str]]:
        """The price of a GPU hour by pool: thousandths of a currency, and the currency."""
        costs = {pool.name: pool.cost_per_gpu_hour for pool in self.pools}
        return {name: (cost.amount, cost.currency) for name, cost in costs.items() if cost}

    # --- people ---------------------------------------------------------------------------------------------------
    def membership(self, user: str, groups: Collection[str]) -> dict[str, Role]:
        """The projects of one person, by hub name and hub groups, with the role in each."""
        found: dict[str, Role] = {}
        for project in self.projects:
            members = project.members
            if user in members.leads:
                found[project.name] = "lead"
            elif user in members.users or not set(members.groups).isdisjoint(groups):
                found[project.name] = "member"
        return found

    # --- devices and pools ----------------------------------------------------------------------------------------
    def pool_of(self, device: Device, node: Node | None = None) -> str | None:
        """The first pool in the file whose selector takes this device of this node; None if none does."""
        return next((pool.name for pool in self.pools if pool.selector.takes(device, node)), None)

    def allows(self, pool: str, kind: Kind) -> bool:
        """Whether a pool is for this kind of work."""
        return any(kind in each.uses for each in self.pools if each.name == pool)

    def default_pool(self, project: str, kind: Kind) -> str | None:
        """The pool of a project's work that names none; None where that is ambiguous and the request must name one.

        It is the project's default, else the only pool for this kind of work, else the only such pool in which the
        project has quota for it.
        """
        section = self._project(project)
        named: str | None = getattr(section.defaults.pool, kind) if section else None
        if named or section is None:
            return named
        usable = [pool.name for pool in self.pools if kind in pool.uses]
        owned = [name for name in usable if name in section.quota and section.quota[name].quota(kind)]
        return usable[0] if len(usable) == 1 else owned[0] if len(owned) == 1 else None

    # --- defaults and environments --------------------------------------------------------------------------------
    def time_limit_s(self, project: str, pool: str) -> int:
        """The running time per attempt of a project's jobs that name none, in seconds."""
        section = self._project(project)
        default = section.defaults.time_limit if section else DAY_S
        return min([default, *self.max_time_limits(project, pool).values()])

    def max_time_limits(self, project: str, pool: str) -> dict[str, int]:
        """The maximum time limits of a project's jobs in a pool, in seconds, by what has it: "project fraud"."""
        found = {f"project {each.name}": each.maximum.time_limit for each in self.projects if each.name == project}
        found |= {f"pool {each.name}": each.maximum.time_limit for each in self.pools if each.name == pool}
        return {owner: most for owner, most in found.items() if most is not None}

    def storage_of(self, project: str) -> StorageSection:
        """The limits of a project's outputs; none for a project that the file does not have."""
        section = self._project(project)
        return section.storage if section else StorageSection()

    @property
    def keeps_outputs_s(self) -> int:
        """The longest time for which a project's outputs are kept, in seconds."""
        return max((each.storage.keep or 0 for each in self.projects), default=0)

    def default_environment(self, project: str) -> str | None:
        section = self._project(project)
        return section.defaults.environment if section else None

    def environments_of(self, project: str) -> tuple[str, ...]:
        """The names of the environments that a project's jobs may use."""
        return tuple(e.name for e in self.environments if e.projects is None or project in e.projects)

    def environment_named(self, name: str | None) -> EnvironmentSection | None:
        return next((each for each in self.environments if each.name == name), None)

    def usable(self, *, in_pods: bool) -> Self:
        """The file with only the environments and data that jobs have in pods, or on one machine.

        The ``path`` of data is then that of a job, and no environment of one machine has an image.
        """
        paths = [(each, each.path_of_job(in_pods=in_pods)) for each in self.data]
        data = [each.model_copy(update={"path": path}) for each, path in paths if path is not None]
        if in_pods:
            environments = [each for each in self.environments if each.image]
        else:
            environments = [each.model_copy(update={"image": None}) for each in self.environments if each.python]
        return self.model_copy(update={"data": data, "environments": environments})

    # --- data ---------------------------------------------------------------------------------------------------------
    def data_of(self, groups: Collection[str]) -> tuple[DataSection, ...]:
        """The data that a user in these groups of the hub may use, ended ones included."""
        return tuple(each for each in self.data if each.is_for(groups))

    def usable_data(self, groups: Collection[str], now: int) -> list[str]:
        """The names of the data with which a job of such a user may start at an instant (ms)."""
        return [each.name for each in self.data_of(groups) if not each.has_ended(now)]

    def data_named(self, name: str) -> DataSection | None:
        return next((each for each in self.data if each.name == name), None)

    def data_in(self, names: Collection[str]) -> list[DataSection]:
        """The data with these names that the file has."""
        return [each for each in self.data if each.name in names]

    def data_refusal(self, name: str, groups: Collection[str], now: int) -> DataUnavailable | None:
        """Why no job of such a user may start with this data at an instant (ms); None if it may."""
        section = self.data_named(name)
        if section is None or not section.is_for(groups):
            return DataUnavailable(data=name)
        return DataUnavailable(data=name, last_day=str(section.until)) if section.has_ended(now) else None

    def _project(self, name: str) -> ProjectSection | None:
        return next((project for project in self.projects if project.name == name), None)


def _amounts(quota: Mapping[str, AmountsSection]) -> dict[str, Amounts]:
    return {pool: section.amounts() for pool, section in quota.items()}


__all__ = [
    "AmountsChange",
    "CalendarSection",
    "ChangedPerUser",
    "DataSection",
    "Document",
    "WhenSection",
    "data_variable",
]
