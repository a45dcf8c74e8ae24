"""What there is and who holds it, at the REST door: me, projects, pools, nodes, devices, samples."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Container, Iterable

from ...core.model import WHOLE_DEVICE, Allocation, Health, NotebookState, Policy, Project
from ...core.quota.in_force import in_force
from ...core.samples import DeviceSample
from ...store.records.protocol import Page
from ...store.records.rows import JobRecord, NotebookRecord
from ...wire import ChoiceView, DeviceView, NodeView, PoolView, ProjectView
from ...wire.samples import IngestedView, SampleBatch, SampleIn
from ...wire.status import ChannelView, DeploymentView, MeView, StopView
from ..access.permissions import Person, sees_project
from ..access.refusals import Refused
from ..requests.resource import Answer, Call
from ..requests.services import Door
from ..state.utilisation import AHEAD_MS, of_devices
from ..views.records import department_views, device_view, instant, node_view, reason_view, rows_by_owner, sample_view
from .jobs import listed, page_of
from .notebooks import person_called

HOUR_MS = 3_600_000
Held = dict[str, list[tuple[Allocation, JobRecord | NotebookRecord | None]]]


def held_by_device(door: Door) -> Held:
    """Every allocation by device, each with the work it belongs to."""
    mirror, held = door.world.mirror, defaultdict[str, list[tuple[Allocation, JobRecord | NotebookRecord | None]]](list)
    for part in sorted(door.world.allocations.values(), key=lambda a: (a.device, a.id)):
        held[part.device].append((part, mirror.jobs.get(part.workload) or mirror.notebooks.get(part.workload)))
    return dict(held)


def device_views(door: Door, person: Person, names: Iterable[str] | None = None) -> list[DeviceView]:
    """Devices as one person sees them, all or those named, by node and index."""
    mirror, held = door.world.mirror, held_by_device(door)
    wanted = mirror.devices.values() if names is None else [mirror.devices[n] for n in names if n in mirror.devices]
    order = sorted(wanted, key=lambda device: (device.pool or "", device.node, device.index, device.id))
    views = (device_view(device, held.get(device.id, []), person, door.world, door.where) for device in order)
    nodes = door.world.nodes
    return [
        view.model_copy(update={"upkeep": nodes[view.node].upkeep}) if view.node in nodes else view for view in views
    ]


# --- me ---------------------------------------------------------------------------------------------------------------
async def me(call: Call) -> Answer:
    """Who asks; the hub's spawner may ask for another with ``user``."""
    await call.door.world.fresh()
    asked = call.text("user")
    person = call.person
    if asked is not None and asked != person.name:
        if not person.is_hub:
            raise Refused(403, "not_allowed", f"{person.name} may ask about nobody else.")
        person = await person_called(call, asked)
    deployment = await _deployment(call.door) if person.admin else None
    return Answer(body=me_view(call.door, person, await stops_of(call.door, person), deployment))


async def stops_of(door: Door, person: Person) -> list[StopView]:
    """Why the last runs of somebody's servers were stopped, those of late."""
    recent = [record for record in await door.stops.recent() if record.notebook.user == person.id]
    return [
        StopView(server=record.server, at=instant(record.ended_at), reason=reason_view(record.reason, door.world))
        for record in recent
        if record.ended_at is not None and record.reason is not None
    ]


def me_view(door: Door, person: Person, stopped: list[StopView], deployment: DeploymentView | None) -> MeView:
    return MeView(
        name=person.name,
        admin=person.admin,
        scopes=sorted(f"custom:gpu-quota:{scope}" for scope in person.scopes),
        projects=dict(person.roles),
        notebook_choices=choices(door, person),
        hub_token=person.is_hub,
        own_accounts=door.settings.accounts,
        deployment=deployment,
        stopped=stopped,
    )


async def _deployment(door: Door) -> DeploymentView:
    settings = door.settings
    return DeploymentView(
        host=socket.gethostname(),
        state_dir=str(door.state_dir.absolute()),
        quota_file=settings.quota_file,
        simulated_devices=[dict(device) for device in settings.simulated_devices],
        channels=[await _channel(door, name, where) for name, where in door.channels],
    )


async def _channel(door: Door, name: str, where: str) -> ChannelView:
    """A channel with its queue; ``fault``: how the newest attempt of what waits failed, else the last one."""
    store = door.world.store
    pending, waiting = await door.world.read(store.notifications, name, pending=True, page=Page(limit=100))
    last, _ = await door.world.read(store.notifications, name, page=Page(limit=1))
    tried = [row.fault for row in pending if row.attempts] or [row.fault for row in last]
    return ChannelView(name=name, where=where, waiting=waiting, fault=next(filter(None, tried), ""))


def choices(door: Door, person: Person) -> list[ChoiceView]:
    """The projects and pools in which this person may have a notebook slice."""
    revision = door.world.quota
    if revision is None:
        return []
    policy = in_force(revision.policy, door.clock())
    return [
        _choice(door, project.name, pool, amounts.notebook_milli, _left_to(door, person, policy, project, pool))
        for project in policy.projects
        if project.name in person.roles
        for pool, amounts in sorted(project.amounts.items())
        if amounts.notebook_milli
    ]


def _left_to(door: Door, person: Person, policy: Policy, project: Project, pool: str) -> int | None:
    """What the ceilings for each user leave this person in a pool: the project's and its department's."""
    owners = [(project.amounts, {project.name})]
    for one in policy.departments:
        if one.name == project.department:
            owners.append((one.amounts, {each.name for each in policy.projects if each.department == one.name}))
    left = [
        max(0, ceiling - _notebook_use(door, projects, pool, person.id))
        for amounts, projects in owners
        if pool in amounts and (ceiling := amounts[pool].user_notebook_milli) is not None
    ]
    return min(left, default=None)


def _choice(door: Door, project: str, pool: str, quota_milli: int, left_milli: int | None) -> ChoiceView:
    devices = door.devices_in(pool)
    models = {(device.model, device.memory_mib) for device in devices}
    model, memory_mib = next(iter(models)) if len(models) == 1 else (None, None)
    return ChoiceView(
        project=project,
        pool=pool,
        quota_milli=quota_milli,
        used_milli=_notebook_use(door, {project}, pool),
        device_model=model,
        device_memory_mib=memory_mib,
        devices=sum(device.health is Health.HEALTHY for device in devices),
        user_left_milli=left_milli,
    )


def _notebook_use(door: Door, projects: Container[str], pool: str, user: str | None = None) -> int:
    """What the notebooks of these projects have booked in a pool; those of one person, where one is named."""
    return sum(
        record.notebook.gpu_milli
        for record in door.world.mirror.notebooks.values()
        if record.notebook.project in projects
        and record.notebook.pool == pool
        and user in (None, record.notebook.user)
        and record.notebook.state in (NotebookState.BOOKED, NotebookState.LENT, NotebookState.REQUESTED)
    )


# --- projects and pools -----------------------------------------------------------------------------------------------
async def projects(call: Call) -> Answer:
    """The projects of this person, every one for admins: quota, use, fair share, what waits."""
    await call.door.world.fresh()
    await call.door.world.sampled()
    views = await project_views(call.door, call.person)
    page = page_of(call)
    return listed(views[page.offset : page.offset + page.limit], len(views), page)


async def project_views(door: Door, person: Person) -> list[ProjectView]:
    revision = door.world.quota
    if revision is None:
        return []
    standings = await door.foresight.standings()
    departments = department_views(revision.policy, standings.departments)
    rows = rows_by_owner(standings.projects)
    return [
        ProjectView(
            name=project.name,
            priority=project.priority,
            role=person.roles.get(project.name),
            pools=rows.get(project.name, []),
            department=departments.get(project.department or ""),
        )
        for project in sorted(revision.policy.projects, key=lambda project: project.name)
        if sees_project(person, project.name)
    ]


async def pools(call: Call) -> Answer:
    await call.door.world.fresh()
    await call.door.world.sampled()
    views, page = pool_views(call.door), page_of(call)
    return listed(views[page.offset : page.offset + page.limit], len(views), page)


def pool_views(door: Door) -> list[PoolView]:
    revision = door.world.quota
    used = defaultdict[str, int](int)
    for part in door.world.allocations.values():
        used[part.device] += part.gpu_milli
    return [_pool_view(pool, door, used) for pool in (revision.policy.pools if revision else ())]


def _pool_view(pool: str, door: Door, used: dict[str, int]) -> PoolView:
    devices = door.devices_in(pool)
    utilised = of_devices(devices, door.world.samples, door.clock())
    healthy = [device for device in devices if device.health is Health.HEALTHY]
    free = sum(max(0, WHOLE_DEVICE - device.foreign_milli - used.get(device.id, 0)) for device in healthy)
    return PoolView(
        name=pool,
        devices=len(devices),
        capacity_milli=sum(WHOLE_DEVICE - device.foreign_milli for device in healthy),
        free_milli=free,
        models=sorted({device.model for device in devices}),
        simulated=any(device.simulated for device in devices),
        utilised_milli=utilised.milli,
        utilised_unknown=utilised.why,
    )


async def nodes(call: Call) -> Answer:
    await call.door.world.fresh()
    views, page = node_views(call.door), page_of(call)
    return listed(views[page.offset : page.offset + page.limit], len(views), page)


def node_views(door: Door) -> list[NodeView]:
    mirror = door.world.mirror
    count = defaultdict[str, int](int)
    for device in mirror.devices.values():
        count[device.node] += 1
    order = sorted(door.world.nodes.values(), key=lambda node: (node.name, node.id))
    return [node_view(node, count[node.id], door.where) for node in order]


async def devices(call: Call) -> Answer:
    await call.door.world.fresh()
    await call.door.world.sampled()
    views, page = device_views(call.door, call.person), page_of(call)
    return listed(views[page.offset : page.offset + page.limit], len(views), page)


# --- samples ----------------------------------------------------------------------------------------------------------
async def samples(call: Call) -> Answer:
    """The newest reading of every device."""
    await call.door.world.sampled()
    rows = call.door.world.samples
    views, page = [sample_view(rows[device]) for device in sorted(rows)], page_of(call)
    return listed(views[page.offset : page.offset + page.limit], len(views), page)


async def ingest(call: Call) -> Answer:
    """One node's readings; a batch that was seen already is accepted and ignored."""
    batch: SampleBatch = call.body
    world = call.door.world
    rows, now = [_sample_row(batch.node, sample) for sample in batch.samples], call.door.clock()
    _dated(rows, now, keep_ms=call.door.settings.keep_samples_hours * HOUR_MS)
    new = await world.read(world.store.add_samples, batch.node, batch.sequence, rows, now=now)
    return Answer(body=IngestedView(accepted=new))


def _dated(rows: Iterable[DeviceSample], now: int, *, keep_ms: int) -> None:
    """Refuse readings that nobody can have taken: of the future, or older than any that is kept."""
    for row in rows:
        if not now - keep_ms <= row.at <= now + AHEAD_MS:
            when = "ahead of" if row.at > now else "behind"
            raise Refused(
                400,
                "invalid",
                f"samples: the reading of {row.device} is dated {abs(row.at - now) // 1000} s {when} this service's "
                f"clock ({instant(now):%Y-%m-%dT%H:%M:%SZ}); from {keep_ms // 1000} s behind to {AHEAD_MS // 1000} s "
                f"ahead is taken. Nothing of the batch was kept: set the clock of {row.node} and send new readings.",
            )


def _sample_row(node: str, sample: SampleIn) -> DeviceSample:
    if sample.at.tzinfo is None:
        raise Refused(
            400, "invalid", "samples: each `at` is an instant with its time zone, such as 2027-01-01T00:00:00Z."
        )
    return DeviceSample(
        node=node,
        device=sample.device,
        at=int(sample.at.timestamp() * 1000),
        utilisation_percent=sample.utilisation_percent,
        memory_used_mib=sample.memory_used_mib,
        coverage_permille=None,
        simulated=sample.simulated,
    )
