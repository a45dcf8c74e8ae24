"""Reports of notebooks' servers, and people who postpone a warning: recorded, and answered from what is stored."""

from __future__ import annotations

from ...core.lifecycle import HOLDS_SLICE
from ...store.records.activity import PostponeWarning, RecordReport
from ...store.records.commands import Recorded
from ...store.records.rows import NotebookRecord
from ...wire.activity import ActivityReport
from ..access.permissions import changes_work
from ..access.refusals import Refused, refused
from ..requests.resource import Answer, Call
from ..views.idle_states import activity_answer, idle_view, policy_of
from .notebooks import record_of, seen_notebook


async def report(call: Call) -> Answer:
    """Record what a notebook's own server says of its kernels. Only the owner's token speaks for it."""
    record = await _booked(call)
    name = record.notebook.id
    if record.notebook.user != call.person.id:
        raise Refused(403, "not_allowed", f"{call.person.name} does not own this notebook, so nothing was noted.")
    if not call.door.report_pace.takes(name):
        sentence = "This notebook's server reports more often than it can have looked; nothing was noted. Wait a bit."
        raise Refused(429, "too_often", sentence, {"Retry-After": "1"})
    body: ActivityReport = call.body
    document = body.model_dump(mode="json")
    outcome = await call.door.reports.record(
        RecordReport(notebook=name, instance=body.instance, sequence=body.sequence, body=document)
    )
    if not isinstance(outcome, Recorded):
        raise refused(outcome)
    await call.door.world.fresh()
    return Answer(body=activity_answer(call.door.world.mirror.notebooks.get(name, record), call.door.world))


async def keep(call: Call) -> Answer:
    """Postpone an idle warning; the owner, leads of the project and admins may."""
    record = await _booked(call)
    notebook, world = record.notebook, call.door.world
    if not changes_work(call.person, project=notebook.project, owner=notebook.user):
        raise Refused(403, "not_allowed", f"{call.person.name} neither owns this notebook nor leads its project.")
    most = policy_of(world).keep_at_most
    await call.door.record(PostponeWarning(notebook=notebook.id, actor=call.person.id, keep_at_most=most))
    return Answer(body=idle_view(await record_of(call, notebook.id), world))


async def _booked(call: Call) -> NotebookRecord:
    record = await seen_notebook(call)
    if record.notebook.state not in HOLDS_SLICE:
        sentence = f"This notebook's slice is {record.notebook.state}, so its use is not judged."
        raise Refused(409, "not_booked", sentence)
    return record
