"""Jobs at the REST door: submit, list, look, change, run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.lifecycle import WAITING
from ...core.model import JobState
from ...store.records.commands import ChangeJob, JobSpec, KeepBundle, SubmitJob
from ...store.records.protocol import JobFilter, Page
from ...store.records.rows import JobRecord
from ...wire import CloneRequest, JobRequest
from ..access.permissions import Person, changes_work, raises_priority, sees_project, sees_work, submits_to
from ..access.refusals import Refused, not_found
from ..requests.resource import Answer, Call
from ..state.offers import Wish
from ..views.explanations import dry_run
from ..views.records import job_detail, job_view
from .bundles import bundle_size, refuse_without_room
from .submission import USUAL_PRIORITY, Ground, account_of, quota_in_force, spec_of

LONGEST_KEY = 200
MOST_PER_PAGE = 1000


async def submit(call: Call) -> Answer:
    """Queue a job, or with ``dry_run`` say what would happen; nothing is stored unless 201 is answered."""
    request: JobRequest = call.body
    await call.door.world.fresh()
    spec = spec_of(request, _ground(call))
    await _can_be_held(call, spec)
    if spec.bundle is not None:
        await _owns_bundle(call, spec.bundle)
    if request.dry_run:
        return Answer(body=await dry_run(call.door, call.person, spec))
    return await _queue(call, spec, request.secrets, request.idempotency_key, clone_of=None)


async def _can_be_held(call: Call, spec: JobSpec) -> None:
    """Refuse what no device of its pool could hold to its share as the policy wants it."""
    quota = quota_in_force(call.door.world.quota_file)
    devices = [
        device for device in call.door.devices_in(spec.pool) if not spec.gpu_models or device.model in spec.gpu_models
    ]
    wish = Wish(who=call.person.name, project=spec.project, pool=spec.pool, gpu_milli=spec.gpu_milli)
    why = await call.door.offers.why_refused(wish, quota.least, devices)
    if why is not None:
        raise Refused(409, "enforcement_too_weak", why)


def _ground(call: Call) -> Ground:
    world = call.door.world
    return Ground(
        person=call.person,
        quota=world.quota_file,
        devices=tuple(world.mirror.devices.values()),
        accounts=call.door.settings.accounts,
        nodes=world.mirror.nodes(),
    )


async def _owns_bundle(call: Call, digest: str) -> None:
    world = call.door.world
    if not await world.read(world.store.bundle_owned, digest, call.person.id):
        sentence = f"There is no bundle {digest} that {call.person.name} put here; PUT bundles/{digest} first."
        raise Refused(404, "no_such_bundle", sentence)


async def _queue(
    call: Call, spec: JobSpec, secrets: dict[str, str], key: str | None, *, clone_of: str | None
) -> Answer:
    door = call.door
    request = SubmitJob(
        job=door.new_id(door.clock()),
        user=call.person.id,
        account=account_of(call.person, door.settings.accounts),
        spec=spec,
        secrets=dict(secrets),
        idempotency_key=key or _key_of_header(call),
        clone_of=clone_of,
        most_waiting=door.settings.waiting_jobs_limit,
    )
    try:
        recorded = await door.record(request)
    except Refused as refusal:  # the store knows people by their ids
        raise Refused(refusal.status, refusal.reason, refusal.message.replace(request.user, call.person.name)) from None
    record = await record_of(call, recorded.id)
    if recorded.existed:
        _same_job(request, record)
    location = f"{door.people.auth.base_url}api/v1/jobs/{recorded.id}"
    body = job_view(record, door.world)
    return Answer(body=body, status=200 if recorded.existed else 201, headers={"Location": location})


AS_ASKED = (
    "command", "gpu_asked", "ranks", "min_ranks", "processes", "name", "priority", "preemptible", "variables",
    "secret_names", "directory", "live", "bundle", "retries", "private",
)  # fmt: skip
"""What of a job is as its request said: no quota file or inventory of another day makes it differ."""


def _same_job(request: SubmitJob, record: JobRecord) -> None:
    """Refuse a key that was used for a job of another kind: its answer would be taken for the new job."""
    others = [name for name in AS_ASKED if getattr(request.spec, name) != getattr(record.spec, name)]
    if others:
        raise Refused(
            409,
            "key_reused",
            f"The idempotency key {request.idempotency_key!r} was used for job {record.job.id}, which differs in"
            f" {', '.join(others)}; nothing was stored. Submit with another key.",
        )


def _key_of_header(call: Call) -> str | None:
    key = call.resource.request.headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= LONGEST_KEY):
        raise Refused(400, "invalid", f"Idempotency-Key has {len(key)} characters; it has 1 to {LONGEST_KEY}.")
    return key


async def record_of(call: Call, job: str) -> JobRecord:
    """A job in any state, from the mirror or, if it is over, the store. Raises Refused 404 where there is none."""
    world = call.door.world
    record = world.mirror.jobs.get(job) or await world.read(world.store.job, job)
    if record is None:
        raise not_found("job", job)
    await world.learn_names([record.job.user])
    return record


async def seen_job(call: Call, job: str | None = None) -> JobRecord:
    """A job that this person may see; any other is answered as if there were none."""
    name = job or call.names["id"]
    await call.door.world.fresh()
    record = await record_of(call, name)
    if not sees_work(call.person, project=record.job.project, owner=record.job.user, private=record.spec.private):
        raise not_found("job", name)
    return record


async def changeable_job(call: Call) -> JobRecord:
    """A job that this person may change."""
    record = await seen_job(call)
    if not changes_work(call.person, project=record.job.project, owner=record.job.user):
        owner = call.door.world.name_of(record.job.user)
        who = f"{owner}, leads of {record.job.project} and admins"
        sentence = f"{call.person.name} may see {owner}'s job {record.job.id}; only {who} change it."
        raise Refused(403, "not_yours", sentence)
    return record


async def show(call: Call) -> Answer:
    record = await seen_job(call)
    world = call.door.world
    ranks = await world.read(world.store.ranks, record.job.id)
    if record.job.state in WAITING:
        await call.door.foresight.think()
    return Answer(body=job_detail(record, ranks, world))


async def listing(call: Call, limit: int = 100) -> Answer:
    """One's own jobs and those of one's projects, for admins all, newest first; ``live=1`` leaves out ended ones."""
    page = page_of(call, limit)
    which, world = filter_of(call), call.door.world
    await world.fresh()
    records, total = await world.read(world.store.jobs, which, page)
    if not total:
        await _refuse_unknown_project(call, which)
    await world.learn_names([record.job.user for record in records])
    if any(record.job.state in WAITING for record in records):
        await call.door.foresight.think()
    return listed([job_view(record, world) for record in records], total, page)


async def _refuse_unknown_project(call: Call, which: JobFilter) -> None:
    """An empty list says that a project has no such jobs: not of one that is not there, or not for this person."""
    if which.projects is None:
        return
    (project,), quota, world = which.projects, call.door.world.quota_file, call.door.world
    if (
        quota is not None
        and any(each.name == project for each in quota.projects)
        and sees_project(call.person, project)
    ):
        return
    _, ever = await world.read(
        world.store.jobs, replace(which, user=None, live=False, states=()), Page(offset=0, limit=1)
    )
    if not ever:
        raise not_found("project", project)


def page_of(call: Call, limit: int = 100) -> Page:
    """The window that was asked for, ``limit`` long where nothing was said."""
    offset = call.integer("offset", 0, least=0, most=10**9)
    return Page(offset=offset, limit=call.integer("limit", limit, least=1, most=MOST_PER_PAGE))


def listed(items: Sequence[object], total: int, page: Page, **more: bool) -> Answer:
    pagination = {"offset": page.offset, "limit": page.limit, "total": total}
    return Answer(body={"items": items, "_pagination": pagination, **more})


def filter_of(call: Call) -> JobFilter:
    """What of the jobs was asked for, cut to what this person may see: always their own, of whatever project."""
    person, project = call.person, call.text("project")
    return JobFilter(
        projects=None if project is None else (project,),
        user=person.id if call.flag("mine") else None,
        live=call.flag("live"),
        states=_states(call),
        reader=None if person.admin else person.id,
        member_of=tuple(sorted(person.roles)),
        led=person.leads,
    )


def _states(call: Call) -> tuple[JobState, ...]:
    words = (call.text("state") or "").split(",")
    try:
        return tuple(JobState(word) for word in words if word)
    except ValueError:
        known = ", ".join(JobState)
        raise Refused(400, "invalid", f"state was {','.join(words)[:80]!r}; it is one or more of {known}.") from None


async def change(call: Call) -> Answer:
    """Hold, release or cancel; repeating a change changes nothing. Who releases a job starts it, as who submits one."""
    record = await changeable_job(call)
    if call.names["change"] == "release":
        _may_release(call.person, record)
    await call.door.record(ChangeJob(job=record.job.id, actor=call.person.id, change=call.names["change"]))
    return Answer(body=job_view(await record_of(call, record.job.id), call.door.world))


def _may_release(person: Person, record: JobRecord) -> None:
    """Whoever is a member no more keeps their work there and starts nothing new; leads and admins release it."""
    job = record.job
    if person.admin or submits_to(person, job.project):
        return
    sentence = (
        f"{person.name} is no member of {job.project} any more and starts nothing there, so job {job.id} is not"
        f" released; a lead of {job.project} or an admin may release it, or cancel it and submit it to another project."
    )
    raise Refused(403, "not_a_member", sentence)


async def again(call: Call) -> Answer:
    """A new job from an old one's spec, as its caller and under the quota file of now; ``clone`` may change settings.

    Secrets are not kept, so a job that had some is refused with the advice to submit it again.
    """
    record = await seen_job(call)
    overrides: CloneRequest = call.body
    _may_repeat(call.person, record)
    asked = spec_of(_request_again(call.person, record.spec, overrides), _ground(call))
    await _can_be_held(call, asked)
    spec = replace(asked, name=overrides.name or record.spec.name)
    if overrides.dry_run:
        return Answer(body=await dry_run(call.door, call.person, spec))
    if spec.bundle is not None:
        await _take_over_bundle(call, record.job.id, spec.bundle)
    return await _queue(call, spec, {}, overrides.idempotency_key, clone_of=record.job.id)


def _may_repeat(person: Person, record: JobRecord) -> None:
    old = record.spec
    if old.secret_names:
        names = ", ".join(old.secret_names)
        sentence = f"Job {record.job.id} had the secrets {names}, which are not kept; submit it again with them."
        raise Refused(409, "had_secrets", sentence)
    if old.live and record.job.user != person.id:
        sentence = f"Job {record.job.id} ran live in its owner's home, which {person.name}'s jobs do not see."
        raise Refused(403, "not_yours", sentence)


def _request_again(person: Person, old: JobSpec, overrides: CloneRequest) -> JobRequest:
    """The old spec as a request; a priority that was a lead's is the usual one in another's hands, unless they ask."""
    priority = old.priority if raises_priority(person, old.project) else min(old.priority, USUAL_PRIORITY)
    return JobRequest(
        command=list(old.command),
        gpu=overrides.gpu or old.gpu_asked,
        nodes=overrides.nodes or old.ranks // old.processes,
        processes=old.processes,
        min_nodes=None if old.min_ranks is None else old.min_ranks // old.processes,
        project=old.project,
        pool=old.pool,
        gpu_model=old.gpu_model,
        cpu_milli=overrides.cpu_milli or (0 if overrides.gpu else old.cpu_milli * old.processes),
        memory_mib=overrides.memory_mib or (0 if overrides.gpu else old.memory_mib * old.processes),
        priority=priority if overrides.priority is None else overrides.priority,
        preemptible=old.preemptible,
        variables=dict(old.variables),
        environment=old.environment,
        directory=old.directory,
        live=old.live,
        bundle=old.bundle,
        time_limit=overrides.time_limit or f"{old.time_limit_s}s",
        retries=old.retries,
        private=old.private,
    )


async def _take_over_bundle(call: Call, job: str, digest: str) -> None:
    """Who sees a job may run its code again: the bundle is put under their name too, so that it is kept for them."""
    size = await call.door.world.read(bundle_size, call.door.bundles, digest)
    if size is None:
        raise Refused(410, "bundle_gone", f"The code of job {job} is not kept any more; submit it anew.")
    await refuse_without_room(call.door, call.person, digest, size)
    await call.door.record(KeepBundle(digest=digest, user=call.person.id, size_bytes=size))
