"""The quota file as values: what each section holds, and what the rest of the product asks of it.

The same classes read the file, write it and give its JSON Schema. Sections of the contract that this release cannot
enforce are fields too, so that they are refused by name and not as unknown keys.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ..core import model
from ..core.amounts import is_model
from ..core.enforcement import EnforcementLevel, RequiredEnforcement
from ..core.idle.activity import IdleMode, IdlePolicy
from ..core.model import Amounts, Department, Device, Policy, Preemption, Project, Window
from ..messages.validation import MOST_NUMBER
from .calendar import expand
from .calendar_section import CalendarSection, ChangedPerUser, DepartmentChange, ProjectChange, WhenSection
from .fields import (
    Amount,
    Ceiling,
    Count,
    HistoryStrength,
    Instant,
    InterpreterPath,
    ItemName,
    Milliseconds,
    ModelName,
    PersonName,
    Priority,
    Seconds,
    Section,
    Unenforced,
    Weight,
    refuse,
)

Kind = Literal["notebook", "training", "inference"]
Role = Literal["member", "lead"]
DAY_S = 86_400
HORIZON_DAYS = 60
"""So far ahead a policy knows the calendar; it is made anew before half of that is left."""


class Selector(Section):
    """Which devices a pool takes: those that match every key that is given, in one of its values."""

    gpu_model: Annotated[list[ModelName], Field(min_length=1)] | None = None
    node: Annotated[list[ModelName], Field(min_length=1)] | None = None

    def takes(self, device: Device, node_name: str) -> bool:
        by_model = self.gpu_model is None or any(is_model(asked, device.model) for asked in self.gpu_model)
        by_node = self.node is None or device.node in self.node or node_name in self.node
        return by_model and by_node

    def text(self) -> str:
        """The selector as people read it; empty where it takes every device."""
        keys = self.model_dump(mode="json", exclude_none=True)
        return " and ".join(f"{key}: [{', '.join(values)}]" for key, values in keys.items())


class PoolSection(Section):
    """A named set of devices. Without a selector it takes every device that no pool before it took."""

    name: ItemName
    selector: Selector = Selector()
    uses: Annotated[list[Kind], Field(min_length=1)] = ["notebook", "training", "inference"]
    cost_per_gpu_hour: Unenforced = None


class Members(Section):
    groups: list[PersonName] = []
    users: list[PersonName] = []
    leads: list[PersonName] = []


class PerUser(Section):
    """Ceilings for one user of a project or department in one pool; none without a number."""

    notebook: Ceiling = None
    jobs: Ceiling = None


class DepartmentAmounts(Section):
    """What a department has in one pool, its projects together. Source: docs/scheduling.md, section 1."""

    notebook: Amount = 0
    training: Amount = 0
    limit: Ceiling = None
    weight: Weight = 1
    per_user: PerUser = PerUser()

    def amounts(self) -> Amounts:
        return Amounts(
            notebook_milli=self.notebook,
            training_milli=self.training,
            limit_milli=self.limit,
            weight=self.weight,
            user_notebook_milli=self.per_user.notebook,
            user_jobs_milli=self.per_user.jobs,
        )


class AmountsSection(DepartmentAmounts):
    """What a project has in one pool."""


class DepartmentSection(Section):
    """A group of projects. A pool that ``quota`` does not name gives its projects nothing there."""

    name: ItemName
    priority: Priority = 50
    quota: dict[ItemName, DepartmentAmounts]


class KindPools(Section):
    notebook: ItemName | None = None
    training: ItemName | None = None
    inference: ItemName | None = None


def _positive(seconds: int) -> int:
    if not seconds:
        raise refuse("a time limit of 0 would end every job at once; write a duration such as 24h")
    return seconds


def _within_memory(seconds: int) -> int:
    if not 60 <= seconds <= DAY_S // 2:
        raise refuse("readings are looked back on for 12 hours at most; write a duration from 1m to 12h")
    return seconds


class Defaults(Section):
    environment: ItemName | None = None
    pool: KindPools = KindPools()
    time_limit: Annotated[Seconds, AfterValidator(_positive)] = DAY_S


class ProjectSection(Section):
    name: ItemName
    department: ItemName | None = None
    priority: Priority = 50
    members: Members = Members()
    quota: dict[ItemName, AmountsSection]
    defaults: Defaults = Defaults()
    storage: Unenforced = None


class EnvironmentSection(Section):
    """An interpreter that jobs may name; ``projects`` None means every project."""

    name: ItemName
    image: Unenforced = None
    python: InterpreterPath
    projects: list[ItemName] | None = None


class Idle(Section):
    """Idle notebooks. In mode report it is shown what would be freed, and nothing is; reclaim frees it.

    ``busy_notify_after``: whose kernel is busy for so long without using the GPU is told so; it is never freed.
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
    busy_notify_after: Annotated[Seconds, AfterValidator(_within_memory)] | None = None
    suspend: Annotated[bool, Field(strict=True)] = False
    maximum_lease: Unenforced = None

    def lending(self) -> model.Lending:
        """Slices of idle notebooks are lent where they are freed."""
        return model.Lending(enabled=self.mode == "reclaim", release_after_s=self.release_after)

    def policy(self) -> IdlePolicy:
        """What the judge and the ladder go by. A server reports more often where the waits are shorter."""
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
    per: Annotated[Seconds, AfterValidator(_positive)] = DAY_S


Strength = Literal["hardware", "driver", "mps", "policed", "cooperative", "none"]


class EnforcementSection(Section):
    """The weakest enforcement that a share may have, strongest first; shares that can only have less are refused.

    With ``memory: policed``, or something stronger, who holds more memory than its share is warned and then stopped.
    """

    memory: Strength = "none"
    compute: Strength = "none"


def _some_time(seconds: int) -> int:
    if not seconds:
        raise refuse("0 leaves no past to count; write a duration such as 2d, or k: 0 to turn history off")
    return seconds


class History(Section):
    """Decayed use in dividing the surplus; k = 0 turns it off."""

    k: HistoryStrength = 0
    half_life: Annotated[Seconds, AfterValidator(_some_time)] = 2 * DAY_S
    window: Annotated[Seconds, AfterValidator(_some_time)] = 7 * DAY_S


def _at_most_a_second(milliseconds: int) -> int:
    if not 10 <= milliseconds <= 1000:
        raise refuse("a tick is 10ms at least and 1s at most")
    return milliseconds


class PolicySection(Section):
    """``drain_by``: from then on work that may not be preempted leaves where it is above its quota; null: by itself."""

    idle: Idle = Idle()
    preemption: PreemptionSection = PreemptionSection()
    enforcement: EnforcementSection = EnforcementSection()
    history: History = History()
    within_project: Literal["users_in_turn", "first_come"] = "users_in_turn"
    tick_max: Annotated[Milliseconds, AfterValidator(_at_most_a_second)] = 1000
    drain_by: Instant | None = None


def _this_version(version: object) -> object:
    if version != 1 or isinstance(version, bool):
        raise refuse(f"{version!s:.40} is no version of the quota file that this release reads; write version: 1")
    return 1


class Document(Section):
    """All sections together, each of which can be read; whether they fit each other is checked of them."""

    version: Annotated[Literal[1], BeforeValidator(_this_version)]
    revision: Annotated[int, Field(strict=True, ge=0, le=MOST_NUMBER)] | None = None
    pools: list[PoolSection]
    departments: list[DepartmentSection] = []
    projects: list[ProjectSection]
    environments: list[EnvironmentSection] = []
    data: Unenforced = None
    calendar: list[CalendarSection] = []
    policy_section: Annotated[PolicySection, Field(alias="policy")] = PolicySection()

    # --- what the core sees ---------------------------------------------------------------------------------------
    def policy(self, revision: int, now: int | None = None, *, days: int = HORIZON_DAYS) -> Policy:
        """The policy of the core, at one revision.

        ``now`` (milliseconds) expands the calendar for so many days ahead, and back as far as history counts; None
        leaves it out.
        """
        times, past = self.policy_section.preemption, self.policy_section.history
        return Policy(
            revision=revision,
            pools=tuple(pool.name for pool in self.pools),
            projects=tuple(map(_project, self.projects)),
            preemption=Preemption(
                min_runtime_s=times.min_runtime,
                grace_s=times.grace,
                lent_grace_s=times.lent_grace,
                max_pauses=times.max_pauses,
                per_s=times.per,
            ),
            within_project=self.policy_section.within_project,
            departments=tuple(map(_department, self.departments)),
            windows=() if now is None else self._windows(now, days),
            history=model.History(k_milli=past.k, half_life_s=past.half_life, window_s=past.window),
            drain_by_at=self.policy_section.drain_by,
            lending=self.policy_section.idle.lending(),
        )

    def _windows(self, now: int, days: int) -> tuple[Window, ...]:
        past = self.policy_section.history
        back_s = past.window + past.half_life // 64 + DAY_S if past.k else 0  # its oldest part is counted whole
        entries = [section.entry() for section in self.calendar]
        return expand(entries, now - back_s * 1000, now + days * DAY_S * 1000)

    @property
    def idle(self) -> IdlePolicy:
        """When a notebook is idle, and what follows."""
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

    # --- people ---------------------------------------------------------------------------------------------------
    def membership(self, user: str, groups: Collection[str]) -> dict[str, Role]:
        """The projects of one person, by hub name and hub groups, with the role in each; a lead is no mere member."""
        found: dict[str, Role] = {}
        for project in self.projects:
            members = project.members
            if user in members.leads:
                found[project.name] = "lead"
            elif user in members.users or not set(members.groups).isdisjoint(groups):
                found[project.name] = "member"
        return found

    # --- devices and pools ----------------------------------------------------------------------------------------
    def pool_of(self, device: Device, node_name: str = "") -> str | None:
        """The first pool in the file whose selector takes this device; None if none does."""
        return next((pool.name for pool in self.pools if pool.selector.takes(device, node_name)), None)

    def allows(self, pool: str, kind: Kind) -> bool:
        """Whether a pool is for this kind of work."""
        return any(kind in each.uses for each in self.pools if each.name == pool)

    def default_pool(self, project: str, kind: Kind) -> str | None:
        """Where a project's work goes that names no pool; None where that is not clear and the person must say.

        It is the project's default, else the only pool for this kind of work, else the only such pool in which the
        project has quota for it.
        """
        section = self._project(project)
        named: str | None = getattr(section.defaults.pool, kind) if section else None
        if named or section is None:
            return named
        usable = [pool.name for pool in self.pools if kind in pool.uses]
        owned = [name for name in usable if name in section.quota and _quota_of(section.quota[name], kind)]
        return usable[0] if len(usable) == 1 else owned[0] if len(owned) == 1 else None

    # --- defaults and environments --------------------------------------------------------------------------------
    def time_limit_s(self, project: str) -> int:
        """The running time per attempt of a project's jobs that name none, in seconds."""
        section = self._project(project)
        return section.defaults.time_limit if section else DAY_S

    def default_environment(self, project: str) -> str | None:
        section = self._project(project)
        return section.defaults.environment if section else None

    def environments_of(self, project: str) -> tuple[str, ...]:
        """The names of the environments that a project's jobs may use."""
        return tuple(e.name for e in self.environments if e.projects is None or project in e.projects)

    def python_of(self, environment: str) -> str | None:
        """The interpreter of an environment; None for one that the file does not name."""
        return next((e.python for e in self.environments if e.name == environment), None)

    def _project(self, name: str) -> ProjectSection | None:
        return next((project for project in self.projects if project.name == name), None)


def _quota_of(amounts: AmountsSection, kind: Kind) -> int:
    return amounts.notebook if kind == "notebook" else amounts.training


def _project(section: ProjectSection) -> Project:
    return Project(
        name=section.name,
        priority=section.priority,
        amounts={pool: part.amounts() for pool, part in section.quota.items()},
        department=section.department,
    )


def _department(section: DepartmentSection) -> Department:
    return Department(
        name=section.name,
        priority=section.priority,
        amounts={pool: part.amounts() for pool, part in section.quota.items()},
    )


__all__ = [
    "CalendarSection",
    "ChangedPerUser",
    "DepartmentChange",
    "Document",
    "ProjectChange",
    "WhenSection",
]
