"""Routes of jobs: submit, list, show, change, clone and rerun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, get_args

from pydantic import ValidationError

from ...backends.protocol import JobRefused
from ...core.canonical import digest
from ...core.lifecycle import WAITING
from ...core.model import JobState
from ...store.records.calls import JobColumn, JobFilter, JobOrder, Page
from ...store.records.commands import ChangeJob, JobSpec, KeepBundle, SubmitJob, queue_full
from ...store.records.rows import JobRecord
from ...wire import CloneRequest, JobDetail, JobRequest, JobView, MetricsView, ProvenanceView
from ..access.permissions import (
    DEFAULT_PRIORITY,
    Person,
    may_change_work,
    may_raise_priority,
    may_see,
    may_see_project,
    may_submit_to,
)
from ..access.refusals import Refused, not_found, refused
from ..access.work_in_progress import ACCOUNT_CHECKS, DIRECTORY_CHECKS, OUTPUT_READS, Limit
from ..requests.call import Answer, Call, listed
from ..requests.resource import sentence_of
from ..views.explanations import dry_run
from ..views.outputs import check_storage
from ..views.provenance import provenance_view
from ..views.records import job_detail, job_view
from ..views.rendered_jobs import rendered_job
from ..views.series import metrics_view
from .bundles import bundle_size, kept_size, refuse_over_limit
from .submission import REQUESTED, data_of_job, quota_in_force, spec_of

P = ParamSpec("P")
R = TypeVar("R")

MAX_KEY_LENGTH = 200
CHECK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """One kind of check, with threads of its own. ``asked``: what answers it."""

    asked: str
    limit: Limit
    threads: ThreadPoolExecutor


DIRECTORY = _Check(
    asked="The file system of the directory",
    limit=DIRECTORY_CHECKS,
    threads=ThreadPoolExecutor(8, thread_name_prefix="directory-check"),
)
ACCOUNT = _Check(
    asked="The account database of this machine",
    limit=ACCOUNT_CHECKS,
    threads=ThreadPoolExecutor(8, thread_name_prefix="account-check"),
)


# --- submit -----------------------------------------------------------------------------------------------------------
async def submit(call: Call) -> Answer:
    """Queue a job, or with ``dry_run`` say what would happen; nothing is stored unless 201 is answered."""
    request: JobRequest = call.body
    sent = _sent(call, request)
    if not request.dry_run and (repeated := await _repeated(call, sent)) is not None:
        return repeated
    spec = await _checked_spec(call, request)
    if spec.bundle is not None and await kept_size(call.services, call.person, spec.bundle) is None:
        sentence = f"{call.person.name} has no kept bundle {spec.bundle}; PUT bundles/{spec.bundle} first."
        raise Refused(404, "no_such_bundle", sentence)
    if request.dry_run:
        return await _dry_run(call, spec)
    resolved = RESOLVED if request.data is not None else RESOLVED | {"data"}
    return await _queue(call, spec, request.secrets, sent, clone_of=None, resolved=resolved)


async def _checked_spec(call: Call, request: JobRequest) -> JobSpec:
    """The spec of a request, checked against the quota file, the devices and the backend. Raises Refused."""
    store_view, services = call.store_view, call.services
    spec = spec_of(request, call.person, store_view)
    if spec.live:
        live_directory = services.backend.submissions.live_directory
        spec = replace(spec, directory=await _checked(call, DIRECTORY, live_directory, _run_as(call), spec.directory))
    file = quota_in_force(store_view.usable_quota_file)
    data, groups = data_of_job(request.data, call.person, file, services.clock())
    spec = replace(spec, data=data, data_groups=groups)
    check_storage(store_view, call.person, spec.project)
    devices = store_view.devices_in(spec.pool)
    await services.offers.check(
        call.person,
        services.in_progress,
        pool=spec.pool,
        gpu_milli=spec.gpu_milli,
        devices=[device for device in devices if not spec.gpu_models or device.model in spec.gpu_models],
        least=file.least,
        project=spec.project,
    )
    return spec


def _run_as(call: Call) -> str | None:
    """The user that this person's jobs run as; None: the service's own."""
    return call.person.name if call.services.settings.accounts else None


async def _checked(call: Call, kind: _Check, check: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a check of the backend, which may wait. Raises Refused.

    A check without an answer counts for its sender until it ends, because it holds its thread.
    """
    in_progress, person = call.services.in_progress, call.person
    in_progress.begin(person, kind.limit)
    work = asyncio.get_running_loop().run_in_executor(kind.threads, partial(check, *args, **kwargs))
    work.add_done_callback(lambda _: in_progress.end(person, kind.limit))
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await asyncio.shield(work)
    except TimeoutError:
        sentence = f"{kind.asked} did not answer within {CHECK_TIMEOUT_S:.0f} s, so no job was stored for {person.name}"
        raise Refused(503, "not_checked", f"{sentence}. Try again later; an admin can see whether it works.") from None
    except JobRefused as error:
        raise Refused(400 if error.code == "path" else 409, error.code, str(error)) from None


async def _check_account(call: Call) -> None:
    run_as = _run_as(call)
    if run_as is not None:
        await _checked(call, ACCOUNT, call.services.backend.submissions.check_user, run_as)


async def _dry_run(call: Call, spec: JobSpec) -> Answer:
    """The effects of a job. Raises Refused where the checks before it is stored would refuse the job itself."""
    await _check_account(call)
    person, store_view = call.person, call.store_view
    waiting = await store_view.read(store_view.store.waiting_jobs, person.id)
    if (refusal := queue_full(person.name, waiting, call.services.settings.waiting_jobs_limit)) is not None:
        raise refused(refusal)
    return Answer(body=await dry_run(call, spec))


async def _queue(
    call: Call,
    spec: JobSpec,
    secrets: dict[str, str],
    sent: _Sent,
    *,
    clone_of: str | None,
    resolved: Set[str],
) -> Answer:
    services = call.services
    await _check_account(call)
    request = SubmitJob(
        job=services.new_id(services.clock()),
        user=call.person.id,
        account=_run_as(call),
        spec=spec,
        secrets=dict(secrets),
        idempotency_key=sent.key,
        sent=sent.fields,
        clone_of=clone_of,
        most_waiting=services.settings.waiting_jobs_limit,
    )
    try:
        recorded = await services.record(request)
    except Refused as refusal:  # the store knows people by their ids
        raise Refused(refusal.status, refusal.reason, refusal.message.replace(request.user, call.person.name)) from None
    if recorded.existed and (repeated := await _repeated(call, sent)) is not None:
        return repeated
    record = await record_of(call, recorded.id)
    if recorded.existed:
        _refuse_other_job(request, record, resolved)
    return _job_answer(call, record, 200 if recorded.existed else 201)


def _job_answer(call: Call, record: JobRecord, status: int) -> Answer:
    headers = {"Location": call.services.url_of(f"jobs/{record.job.id}")}
    return Answer(body=job_view(record, call.store_view), status=status, headers=headers)


# --- a request that is sent again -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """The idempotency key of a request, and a digest of each field that is not left at its default."""

    key: str | None
    fields: Mapping[str, str]


def _sent(call: Call, request: JobRequest | CloneRequest, **more: str) -> _Sent:
    """The request as it was sent, ``more`` fields included. Raises Refused for a header that cannot be a key.

    Of secrets it has the names: a digest of a short value would reveal it.
    """
    key = request.idempotency_key
    if key is None:
        key = call.resource.request.headers.get("Idempotency-Key")
        if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH):
            raise Refused(400, "invalid", f"Idempotency-Key has {len(key)} characters; it has 1 to {MAX_KEY_LENGTH}.")
    values = request.model_dump(exclude={"secrets", "idempotency_key", "dry_run"}, exclude_defaults=True) | more
    if request.secrets:
        values["secret_names"] = sorted(request.secrets)
    return _Sent(key=key, fields={name: digest(value) for name, value in values.items()})


async def _repeated(call: Call, sent: _Sent) -> Answer | None:
    """The job of a request that was sent before, whatever is in force now; None for a new key. Raises Refused.

    None also for a key that an older release stored: the specification is then compared (``_refuse_other_job``).
    """
    if sent.key is None:
        return None
    store_view = call.store_view
    known = await store_view.read(store_view.store.job_of_key, call.person.id, sent.key)
    if known is None or not known.sent:
        return None
    names = sorted(known.sent.keys() | sent.fields.keys())
    if others := [name for name in names if known.sent.get(name) != sent.fields.get(name)]:
        raise _key_reused(sent.key, known.job, others)
    return _job_answer(call, await record_of(call, known.job), 200)


def _key_reused(key: str | None, job: str, others: Sequence[str]) -> Refused:
    sentence = f"The idempotency key {key!r} was used for job {job}, which differs in {', '.join(others)}"
    return Refused(409, "key_reused", f"{sentence}; nothing was stored. Submit with another key.")


RESOLVED = frozenset({
    "project", "pool", "gpu_milli", "gpu_model", "cpu_milli", "memory_mib", "environment", "time_limit_s",
    "data_groups",
})  # fmt: skip
"""Fields that also depend on the quota file, the inventory and the groups of the user: a repeated request may resolve
them differently."""


def _refuse_other_job(request: SubmitJob, record: JobRecord, resolved: Set[str]) -> None:
    """Refuse a key that was used for another job; ``resolved``: the fields that the request did not set."""
    names = [field.name for field in fields(JobSpec) if field.name not in resolved]
    others = [name for name in names if getattr(request.spec, name) != getattr(record.spec, name)]
    if others:
        raise _key_reused(request.idempotency_key, record.job.id, others)


# --- read -------------------------------------------------------------------------------------------------------------
async def record_of(call: Call, job: str) -> JobRecord:
    """A job in any state. Raises Refused 404 for an unknown one."""
    record = await call.store_view.job(job)
    if record is None:
        raise not_found("job", job)
    return record


async def seen_job(call: Call) -> JobRecord:
    """The job of the path. One that this person may not see is answered as unknown."""
    record = await record_of(call, call.names["id"])
    if not may_see(call.person, record):
        raise not_found("job", call.names["id"])
    return record


async def show(call: Call) -> JobDetail:
    record, store_view = await seen_job(call), call.store_view
    ranks = await store_view.read(store_view.store.ranks, record.job.id)
    await _refresh_decisions(call, [record])
    return job_detail(record, ranks, store_view)


async def metrics(call: Call) -> MetricsView:
    """The series of one job."""
    record, store_view = await seen_job(call), call.store_view
    return metrics_view(await store_view.read(store_view.store.series, record.job.id))


async def provenance(call: Call) -> ProvenanceView:
    """What an attempt was made of; by default the newest one."""
    record = await seen_job(call)
    attempt = call.integer("attempt", record.job.attempt, least=0, most=10**6)
    if attempt > record.job.attempt:
        sentence = f"Job {record.job.id} has no attempt {attempt}; it has had {record.job.attempt}."
        raise Refused(404, "no_such_attempt", sentence)
    found = await call.read_files(OUTPUT_READS, call.services.backend.outputs.provenance, record.job.id, attempt)
    return provenance_view(record, attempt, found)


async def listing(call: Call, limit: int = 100) -> Answer:
    """A person's own jobs and those of their projects, for admins all, newest first; ``live=1``: only live ones."""
    page, wanted, store_view = call.page(limit), await _filter(call), call.store_view
    records, total = await store_view.read(store_view.store.jobs, wanted, page, _order(call))
    if not total and wanted.projects is not None:
        await _refuse_unknown_project(call, wanted, wanted.projects[0])
    await store_view.learn_names([user for record in records for user in record.people])
    await _refresh_decisions(call, records)
    return listed([rendered_job(record, store_view).document for record in records], total, page)


async def _refresh_decisions(call: Call, records: Sequence[JobRecord]) -> None:
    """Update the reasons and the queue positions, if one of these jobs waits."""
    if any(record.job.state in WAITING for record in records):
        await call.services.decisions.latest()
        await call.services.decisions.shares()


async def _refuse_unknown_project(call: Call, wanted: JobFilter, project: str) -> None:
    """Answer 404, not an empty list, for a project that is unknown or that this person may not see."""
    quota, store_view = call.store_view.usable_quota_file, call.store_view
    exists = quota is not None and any(each.name == project for each in quota.projects)
    if exists and may_see_project(call.person, project):
        return
    any_state = replace(wanted, user=None, live=False, states=(), since=None, search=None)
    _, ever = await store_view.read(store_view.store.jobs, any_state, Page(offset=0, limit=1))
    if not ever:
        raise not_found("project", project)


async def _filter(call: Call) -> JobFilter:
    """The requested jobs, limited to those that this person may see: always their own, of any project."""
    person, project = call.person, call.text("project")
    words = [word for word in (call.text("state") or "").split(",") if word]
    try:
        states = tuple(JobState(word) for word in words)
    except ValueError:
        known = ", ".join(JobState)
        raise Refused(400, "invalid", f"state was {','.join(words)[:80]!r}; it is one or more of {known}.") from None
    return JobFilter(
        projects=None if project is None else (project,),
        user=await _owner(call),
        live=call.flag("live"),
        states=states,
        reader=None if person.admin else person.id,
        member_of=tuple(sorted(person.roles)),
        led=person.leads,
        since=call.instant("since"),
        search=call.text("search"),
    )


async def _owner(call: Call) -> str | None:
    """The id of the owner that the request names; "" for an unknown user; None for all owners."""
    mine, name = call.flag("mine"), call.text("user")
    if mine and name not in (None, call.person.name):
        raise Refused(400, "invalid", f"mine and user={(name or '')[:80]!r} were given; give one of the two.")
    if mine or name is None:
        return call.person.id if mine else None
    return await call.store_view.read(call.store_view.store.user_named, name) or ""


def _order(call: Call) -> JobOrder:
    """The requested order, such as "-duration"."""
    word = call.text("sort") or "-submitted_at"
    by = word.removeprefix("-")
    if by not in get_args(JobColumn):
        known = ", ".join(get_args(JobColumn))
        raise Refused(400, "invalid", f"sort was {word[:40]!r}; it is one of {known}, with - before it for descending.")
    now = call.services.clock() if by == "duration" else 0
    return JobOrder(by=cast("JobColumn", by), descending=word.startswith("-"), now=now)


# --- change -----------------------------------------------------------------------------------------------------------
async def change(call: Call) -> JobView:
    """Hold, release or cancel; repeating a change changes nothing."""
    record, name = await changeable_job(call), call.names["change"]
    if name == "release":
        _check_release(call.person, record)
        await _check_data(call, record)
    await call.services.record(ChangeJob(job=record.job.id, actor=call.person.id, change=name))
    return job_view(await record_of(call, record.job.id), call.store_view)


async def changeable_job(call: Call) -> JobRecord:
    """The job of the path. Raises Refused for a person who may see it and not change it."""
    record = await seen_job(call)
    if not may_change_work(call.person, project=record.job.project, owner=record.job.user):
        owner = call.store_view.name_of(record.job.user)
        sentence = f"{call.person.name} may see {owner}'s job {record.job.id}, but only {owner}, leads of"
        raise Refused(403, "not_yours", f"{sentence} {record.job.project} and admins may change it.")
    return record


def _check_release(person: Person, record: JobRecord) -> None:
    """Refuse a release by a former member: it starts work in the project, as a submission does."""
    job = record.job
    if person.admin or may_submit_to(person, job.project):
        return
    sentence = (
        f"{person.name} is no longer a member of {job.project} and may not start work there, so job {job.id} was not"
        f" released; a lead of {job.project} or an admin may release it, or cancel it and submit it to another project."
    )
    raise Refused(403, "not_a_member", sentence)


async def _check_data(call: Call, record: JobRecord) -> None:
    """Refuse a release if the job's owner may not use its data any more."""
    if not record.spec.data:
        return
    owner = await call.services.people.by_name(call.store_view.name_of(record.job.user))
    groups = owner.groups.intersection(record.spec.data_groups) if owner else frozenset[str]()
    file = quota_in_force(call.store_view.usable_quota_file)
    data_of_job(record.spec.data, replace(owner or call.person, groups=groups), file, call.services.clock())


# --- clone and rerun --------------------------------------------------------------------------------------------------
async def repeat(call: Call) -> Answer:
    """Queue a new job from an old one's spec, for its caller and under today's quota file; ``clone`` may change it.

    Secrets are not kept, so a job that had some is refused with the advice to submit it again.
    """
    overrides: CloneRequest = call.body
    sent = _sent(call, overrides, clone_of=call.names["id"])
    if not overrides.dry_run and (repeated := await _repeated(call, sent)) is not None:
        return repeated
    record = await seen_job(call)
    old = record.spec
    if lacking := sorted(set(old.secret_names) - overrides.secrets.keys()):
        names = ", ".join(lacking)
        sentence = f"Job {record.job.id} had the secrets {names}, which are not kept; give them again (--secret)."
        raise Refused(409, "had_secrets", sentence)
    if old.live and record.job.user != call.person.id:
        sentence = f"Job {record.job.id} ran live in its owner's home, which {call.person.name}'s jobs cannot read."
        raise Refused(403, "not_yours", sentence)
    spec = await _checked_spec(call, _repeated_request(call.person, old, overrides))
    spec = replace(spec, name=overrides.name or old.name)
    bundle = None if spec.bundle is None else await _bundle_to_keep(call, record.job.id, spec.bundle)
    if overrides.dry_run:
        return await _dry_run(call, spec)
    if bundle is not None:
        await call.services.record(bundle)
    return await _queue(call, spec, overrides.secrets, sent, clone_of=record.job.id, resolved=RESOLVED)


def _repeated_request(person: Person, old: JobSpec, overrides: CloneRequest) -> JobRequest:
    """The old spec as a request; raises Refused.

    A lead's high priority becomes the usual one for others, unless they ask for it. An elastic job on fewer nodes has
    these as its least.
    """
    priority = old.priority if may_raise_priority(person, old.project) else min(old.priority, DEFAULT_PRIORITY)
    nodes = overrides.nodes or old.ranks // old.processes
    changed: dict[str, Any] = {
        "name": None,
        "command": list(old.command),
        "gpu": overrides.gpu or old.gpu_asked,
        "nodes": nodes,
        "min_nodes": None if old.min_ranks is None else min(nodes, old.min_ranks // old.processes),
        "cpu_milli": overrides.cpu_milli or (0 if overrides.gpu else old.cpu_milli * old.processes),
        "memory_mib": overrides.memory_mib or (0 if overrides.gpu else old.memory_mib * old.processes),
        "priority": priority if overrides.priority is None else overrides.priority,
        "variables": dict(old.variables),
        "secrets": overrides.secrets,
        "data": list(old.data) if overrides.data is None else overrides.data,
        "time_limit": overrides.time_limit or f"{old.time_limit_s}s",
    }
    try:
        return JobRequest(**{name: getattr(old, name) for name in REQUESTED} | changed)
    except ValidationError as error:
        raise Refused(400, "invalid", sentence_of(error)) from None


async def _bundle_to_keep(call: Call, job: str, digest: str) -> KeepBundle | None:
    """The request that keeps the bundle of a job for this person too; None if they have it. Raises Refused."""
    size = await call.store_view.read(bundle_size, call.services.bundles, digest)
    if size is None:
        raise Refused(410, "bundle_gone", f"The code of job {job} was deleted; submit it again.")
    if await kept_size(call.services, call.person, digest) is not None:
        return None
    await refuse_over_limit(call.services, call.person, size)
    return KeepBundle(digest=digest, user=call.person.id, size_bytes=size)
