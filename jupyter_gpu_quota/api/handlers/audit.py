"""Routes of the audit, of explanations and of the snapshot."""

from __future__ import annotations

from ...messages.audit import ACTIONS, PARTS, matching_actions, no_action_text
from ...store.records.calls import AuditFilter
from ...wire import AuditActionView, ExplainView, VerifiedView, snapshot_document
from ..access.permissions import audited_projects, may_see
from ..access.refusals import Refused, not_found
from ..requests.call import Answer, Call, listed
from ..views.audit import audit_view, subjects_of
from ..views.explanations import explanation


async def rows(call: Call) -> Answer:
    """Decisions and edits, newest first: all for admins and auditors, their projects' for leads."""
    store_view, page = call.store_view, call.page()
    found, total = await store_view.read(store_view.store.audit, await _filter(call), page=page)
    subjects = await store_view.read(subjects_of, store_view.store, found)
    people = [user for record in subjects.values() for user in record.people]
    await store_view.learn_names([*(row.actor for row in found), *people])
    return listed([audit_view(row, subjects, store_view) for row in found], total, page)


async def _filter(call: Call) -> AuditFilter:
    """The requested rows, limited to those that this person may see."""
    project, projects = call.text("project"), audited_projects(call.person)
    if project is not None:
        projects = (project,) if projects is None or project in projects else ()
    return AuditFilter(
        since=call.instant("since"),
        until=call.instant("until"),
        projects=projects,
        actors=await _actors(call),
        kinds=_kinds(call),
    )


def _kinds(call: Call) -> tuple[str, ...] | None:
    """The kinds of the requested action, None for all. Raises Refused with all kinds for one that matches none."""
    text = (call.text("action") or "").strip()
    if not text:
        return None
    if kinds := matching_actions(text):
        return kinds
    raise Refused(400, "invalid", no_action_text(text))


async def actions(call: Call) -> Answer:
    """The kinds of rows, with their words."""
    return call.listing([AuditActionView(kind=kind, words=words) for kind, words in ACTIONS.items()])


async def _actors(call: Call) -> tuple[str, ...] | None:
    """The ids of the actor that the request names, a user or a part of the service; none for an unknown one."""
    name = (call.text("actor") or "").strip()
    if not name:
        return None
    parts = [actor for actor, words in PARTS.items() if name in (actor, words)]
    user = await call.store_view.read(call.store_view.store.user_named, name)
    return (*parts, *([name] if name.startswith("system:") else []), *([user] if user else []))


async def verify(call: Call) -> VerifiedView:
    """Check the hash chain; only for people who read all rows."""
    if audited_projects(call.person) is not None:
        raise Refused(
            403,
            "not_allowed",
            f"{call.person.name} may read only a part of the audit; verification needs all of it, with the scope"
            " custom:gpu-quota:audit. An admin of the hub can grant it with a role.",
        )
    async with call.services.verifying:
        found = await call.store_view.read_long(call.store_view.store.audit_verify)
    if isinstance(found, int):
        intact = "The only row is intact." if found == 1 else f"All {found} rows are intact."
        return VerifiedView(intact=True, rows=found, message=intact)
    return VerifiedView(intact=False, rows=None, message=str(found))


async def explain(call: Call) -> ExplainView:
    """Why a job or a notebook has its state, and what would change it."""
    name, store_view = call.names["id"], call.store_view
    record = await store_view.job(name) or await store_view.notebook(name)
    if record is None or not may_see(call.person, record):
        raise not_found("job or notebook", name)
    return await explanation(call.services, call.person, record)


async def snapshot(call: Call) -> Answer:
    """The snapshot that ``decide`` would get now, with the policy in force."""
    await call.store_view.refresh()
    revision = call.store_view.quota
    if revision is None:
        raise Refused(409, "no_quota", "No quota file is in force yet, so nothing is decided.")
    snapshot = call.store_view.mirror.snapshot(call.services.clock())
    return Answer(body=snapshot_document.write(snapshot, revision.policy))
