"""Routes of the cluster: me, projects, pools, nodes, devices, samples."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from ...core.lifecycle import HOLDS_GPU, WAITING
from ...core.model import WHOLE_DEVICE, Allocation, Device, JobState, NotebookState, Policy, Project
from ...core.quota.in_force import in_force
from ...core.samples import DeviceSample
from ...store.database.tables import AllocationRow
from ...store.records.calls import Page
from ...wire import ChoiceView, DepartmentView, DeviceView, PoolView, ProjectView
from ...wire.samples import SampleView
from ...wire.status import ChannelView, DeploymentView, MeView, StopView
from ..access.permissions import Person, may_see_project
from ..access.refusals import Refused, not_found
from ..requests.call import Answer, Call, listed
from ..requests.services import Services
from ..state.store_view import StoreView
from ..state.utilisation import of_devices
from ..views.choices import with_choices
from ..views.outputs import storage_view
from ..views.records import device_view, instant, node_view, reason_view, sample_view
from .notebooks import person_named

MAX_HISTORY = 1_000
"""Readings of a device in an answer that names no limit."""
JOB_PYTHON = str(Path(sys.prefix, "bin", "python"))
"""The environment of the service is the first in the PATH of jobs."""


def device_views(services: Services, person: Person, names: Iterable[str]) -> list[DeviceView]:
    """The named devices as one person sees them, by pool, node and index."""
    known = services.store_view.mirror.devices
    return _views_of(services, person, _ordered(known[name] for name in names if name in known))


def _ordered(devices: Iterable[Device]) -> list[Device]:
    return sorted(devices, key=lambda device: (device.pool or "", device.node, device.index, device.id))


def _views_of(services: Services, person: Person, devices: Sequence[Device]) -> list[DeviceView]:
    store_view, wanted = services.store_view, {device.id for device in devices}
    parts = defaultdict[str, list[Allocation]](list)
    for part in store_view.allocations.values():
        if part.device in wanted:
            parts[part.device].append(part)
    for held in parts.values():
        held.sort(key=lambda part: part.id)
    return [device_view(device, parts[device.id], person, store_view, services.where) for device in devices]


# --- me ---------------------------------------------------------------------------------------------------------------
async def me(call: Call) -> MeView:
    """The sender; the hub's spawner may name another person with ``user``."""
    services, person, named = call.services, call.person, call.text("user")
    if named is not None and named != person.name:
        if not person.is_hub:
            raise Refused(
                403,
                "not_allowed",
                f"{person.name} may not read the rights of another user; only the hub's spawner may.",
            )
        person = await person_named(call, named)
    return MeView(
        name=person.name,
        admin=person.admin,
        scopes=sorted(f"custom:gpu-quota:{scope}" for scope in person.scopes),
        projects=dict(person.roles),
        notebook_choices=choices(services, person),
        hub_token=person.is_hub,
        own_accounts=services.settings.accounts,
        job_python=None if services.backend.in_pods else JOB_PYTHON,
        deployment=await _deployment(services) if person.admin else None,
        stopped=[
            StopView(
                server=record.server, at=instant(record.ended_at), reason=reason_view(record.reason, call.store_view)
            )
            for record in await services.stop_reasons.recent()
            if record.notebook.user == person.id and record.ended_at is not None and record.reason is not None
        ],
    )


async def _deployment(services: Services) -> DeploymentView:
    settings = services.settings
    return DeploymentView(
        host=settings.host,
        state_dir=str(services.state_dir.absolute()),
        quota_file=settings.quota_file,
        simulated_devices=[dict(device) for device in settings.simulated_devices],
        channels=[await _channel(services, name, where) for name, where in services.channels],
    )


async def _channel(services: Services, name: str, where: str) -> ChannelView:
    """A channel with its queue; ``fault``: the failure of the newest pending notification, else of the last one."""
    store = services.store_view.store
    pending, waiting = await services.store_view.read(store.notifications, name, pending=True, page=Page(limit=100))
    last, _ = await services.store_view.read(store.notifications, name, page=Page(limit=1))
    tried = [row.fault for row in pending if row.attempts] or [row.fault for row in last]
    return ChannelView(name=name, where=where, waiting=waiting, fault=next(filter(None, tried), ""))


def choices(services: Services, person: Person) -> list[ChoiceView]:
    """The projects and pools where this person may have a notebook slice."""
    revision = services.store_view.quota
    if revision is None:
        return []
    policy = in_force(revision.policy, services.clock())
    return [
        _choice(services, person, policy, project, pool)
        for project in policy.projects
        if project.name in person.roles
        for pool, amounts in sorted(project.amounts.items())
        if amounts.notebook_milli
    ]


def _choice(services: Services, person: Person, policy: Policy, project: Project, pool: str) -> ChoiceView:
    """One choice; ``user_left_milli``: the rest of this person's ceilings, of the project and of its department."""
    owners = [(project.amounts, {project.name})]
    for one in policy.departments:
        if one.name == project.department:
            owners.append((one.amounts, {each.name for each in policy.projects if each.department == one.name}))
    left = [
        max(0, ceiling - _notebook_use(services, projects, pool, person.id))
        for amounts, projects in owners
        if pool in amounts and (ceiling := amounts[pool].user_notebook_milli) is not None
    ]
    devices = services.store_view.devices_in(pool)
    models = {(device.model, device.memory_mib) for device in devices}
    model, memory_mib = next(iter(models)) if len(models) == 1 else (None, None)
    return ChoiceView(
        project=project.name,
        pool=pool,
        quota_milli=project.amounts[pool].notebook_milli,
        used_milli=_notebook_use(services, {project.name}, pool),
        device_model=model,
        device_memory_mib=memory_mib,
        devices=sum(map(services.store_view.is_available, devices)),
        user_left_milli=min(left, default=None),
    )


def _notebook_use(services: Services, projects: Container[str], pool: str, user: str | None = None) -> int:
    """The slices of these projects in a pool in milli-GPU; of one user, where one is named."""
    return sum(
        record.notebook.gpu_milli
        for record in services.store_view.mirror.notebooks.values()
        if record.notebook.project in projects
        and record.notebook.pool == pool
        and user in (None, record.notebook.user)
        and record.notebook.state in (NotebookState.BOOKED, NotebookState.LENT, NotebookState.REQUESTED)
    )


# --- projects and pools -----------------------------------------------------------------------------------------------
async def projects(call: Call) -> Answer:
    """The projects of this person, every one for admins: quota, use, fair share, queued jobs."""
    return call.listing(await project_views(call.services, call.person))


async def project_views(services: Services, person: Person) -> list[ProjectView]:
    revision = services.store_view.quota
    if revision is None:
        return []
    of_projects, of_departments = await services.decisions.quota_states()
    departments = {
        one.name: DepartmentView(name=one.name, priority=one.priority, pools=of_departments.of(one.name, person.id))
        for one in revision.policy.departments
    }
    views = [
        ProjectView(
            name=project.name,
            priority=project.priority,
            role=person.roles.get(project.name),
            pools=of_projects.of(project.name, person.id),
            department=departments.get(project.department or ""),
            storage=storage_view(services.store_view, project.name),
            position=position,
        )
        for position, project in sorted(enumerate(revision.policy.projects), key=lambda one: one[1].name)
        if may_see_project(person, project.name)
    ]
    return [with_choices(view, person, services.store_view, services.clock()) for view in views]


async def pools(call: Call) -> Answer:
    return call.listing(pool_views(call.services))


def pool_views(services: Services) -> list[PoolView]:
    store_view = services.store_view
    used = Counter[str]()
    for part in store_view.allocations.values():
        used[part.device] += part.gpu_milli
    views, counts = [], _job_counts(store_view)
    for pool in store_view.quota.policy.pools if store_view.quota else ():
        devices = store_view.devices_in(pool)
        healthy = [device for device in devices if store_view.is_available(device)]
        open_ = [device for device in healthy if store_view.takes_work(device)]
        utilised = of_devices(healthy, store_view.samples, services.clock())
        view = PoolView(
            name=pool,
            devices=len(devices),
            capacity_milli=sum(WHOLE_DEVICE - device.foreign_milli for device in open_),
            free_milli=sum(max(0, WHOLE_DEVICE - each.foreign_milli - used[each.id]) for each in open_),
            allocated_milli=sum(used[device.id] for device in devices),
            models=sorted({device.model for device in devices}),
            simulated=any(device.simulated for device in devices),
            utilised_milli=utilised.milli,
            utilised_unknown=utilised.why,
            **counts[pool],
        )
        views.append(view)
    return views


JOB_COUNTS: Mapping[str, Container[JobState]] = {
    "running_jobs": HOLDS_GPU,
    "waiting_jobs": WAITING,
    "held_jobs": {JobState.HELD},
}


def _job_counts(store_view: StoreView) -> defaultdict[str, Counter[str]]:
    """The jobs of each pool in each group of states, of all projects: numbers do not disclose work of others."""
    counts = defaultdict[str, Counter[str]](Counter)
    for record in store_view.mirror.jobs.values():
        for name, states in JOB_COUNTS.items():
            counts[record.job.pool][name] += record.job.state in states
    return counts


async def nodes(call: Call) -> Answer:
    store_view, where = call.store_view, call.services.where
    count = Counter(device.node for device in store_view.mirror.reported_devices())
    order = sorted(store_view.nodes.values(), key=lambda node: (node.name, node.id))
    return call.listing(order, lambda node: node_view(node, count[node.id], store_view, where))


async def devices(call: Call) -> Answer:
    """One part of the devices; the views of the others are not made."""
    page, order = call.page(), _ordered(call.store_view.mirror.devices.values())
    shown = order[page.offset : page.offset + page.limit]
    return listed(_views_of(call.services, call.person, shown), len(order), page)


# --- samples ----------------------------------------------------------------------------------------------------------
async def samples(call: Call) -> Answer:
    """The newest reading of every device; with ``device``, its readings in a period, newest first."""
    rows, store_view, device = call.store_view.samples, call.store_view, call.text("device")
    begin, end = call.instant("from"), call.instant("to")
    if device is not None:
        if device not in store_view.mirror.devices:
            raise not_found("device", device)
        page = call.page(MAX_HISTORY)
        period = (device, begin or 0, call.services.clock() + 1 if end is None else end)
        found, total = await store_view.read(store_view.store.samples, *period, page)
        first = min((row.at for row in found), default=0)
        parts = await store_view.read(store_view.store.allocations_of_device, device, first, period[2])
        return listed([_with_allocated(row, parts) for row in found], total, page)
    if begin is not None or end is not None:
        raise Refused(400, "invalid", "from and to need a device, whose readings they limit.")
    return call.listing([rows[device] for device in sorted(rows)], sample_view)


def _with_allocated(row: DeviceSample, parts: Sequence[AllocationRow]) -> SampleView:
    """A reading with what was allocated of its device at that instant."""
    then = [each for each in parts if each.allocated_at <= row.at and (each.released_at or row.at + 1) > row.at]
    return sample_view(row).model_copy(update={"allocated_milli": sum(each.allocation.gpu_milli for each in then)})
