"""The audit, explanations and the snapshot, at the REST door."""

from __future__ import annotations

from datetime import datetime

from ...store.records.rows import JobRecord
from ...wire import VerifiedView
from ...wire import snapshot_document as snapshotfile
from ..access.permissions import audited_projects, sees_work
from ..access.refusals import Refused, not_found
from ..requests.resource import Answer, Call
from ..views.audit import audit_view, subjects_of
from ..views.explanations import explanation
from .jobs import listed, page_of


async def rows(call: Call) -> Answer:
    """Every decision and edit, newest first: all for admins and auditors, their projects' for leads."""
    world, page = call.door.world, page_of(call)
    since = _since(call)
    found, total = await world.read(world.store.audit, since=since, projects=audited_projects(call.person), page=page)
    subjects = await world.read(subjects_of, world.store, found)
    owners = [one.job.user if isinstance(one, JobRecord) else one.notebook.user for one in subjects.values()]
    await world.learn_names([*(row.actor for row in found), *owners])
    return listed([audit_view(row, subjects, world) for row in found], total, page)


def _since(call: Call) -> int | None:
    word = call.text("since")
    if word is None:
        return None
    try:
        at = datetime.fromisoformat(word[:40])
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Refused(400, "invalid", f"since was {word[:40]!r}; it is an instant such as 2027-01-01T00:00:00Z.")
    return int(at.timestamp() * 1000)


async def verify(call: Call) -> Answer:
    """Whether every row follows from the one before; for those who read all of them."""
    if audited_projects(call.person) is not None:
        raise Refused(
            403,
            "not_allowed",
            f"{call.person.name} reads a part of the audit; verifying needs all of it, with the scope"
            " custom:gpu-quota:audit. An admin of the hub gives it with a role.",
        )
    world = call.door.world
    found = await world.read(world.store.audit_verify)
    whole = isinstance(found, int)
    message = f"All {found} rows follow from the one before." if whole else str(found)
    return Answer(body=VerifiedView(whole=whole, rows=found if isinstance(found, int) else None, message=message))


async def explain(call: Call) -> Answer:
    """Why a job or a notebook is where it is, and what would change it."""
    name, world = call.names["id"], call.door.world
    await world.fresh()
    job = world.mirror.jobs.get(name) or await world.read(world.store.job, name)
    if job is not None:
        seen = sees_work(call.person, project=job.job.project, owner=job.job.user, private=job.spec.private)
        if seen:
            return Answer(body=await explanation(call.door, job))
        raise not_found("job or notebook", name)
    notebook = world.mirror.notebooks.get(name) or await world.read(world.store.notebook, name)
    if notebook is None or not sees_work(call.person, project=notebook.notebook.project, owner=notebook.notebook.user):
        raise not_found("job or notebook", name)
    return Answer(body=await explanation(call.door, notebook))


async def snapshot(call: Call) -> Answer:
    """The document that ``decide`` reads: what it would see now, and the policy it would see it under."""
    await call.door.world.refresh()
    revision = call.door.world.quota
    if revision is None:
        raise Refused(409, "no_quota", "No quota file is in force yet, so nothing is decided.")
    seen = call.door.world.mirror.snapshot(call.door.clock())
    return Answer(body=snapshotfile.write(seen, revision.policy))
