"""Routes for reports of notebook servers, and for postponing an idle warning."""

from __future__ import annotations

from ....core.lifecycle import HOLDS_SLICE
from ....store.records.activity import PostponeWarning, RecordReport
from ....store.records.commands import Recorded
from ....store.records.rows import NotebookRecord
from ....wire.activity import ActivityAnswer, ActivityReport
from ...access.permissions import may_change_work
from ...access.refusals import Refused, refused
from ...requests.call import Answer, Call
from ...views.idle_states import activity_answer, idle_view, policy_of
from ..notebooks import record_of, seen_notebook


async def report(call: Call) -> ActivityAnswer:
    """Record a server's report of its kernels, and answer the classification. Only the owner's token may report."""
    record = await _active_notebook(call)
    name = record.notebook.id
    if record.notebook.user != call.person.id:
        raise Refused(
            403, "not_allowed", f"{call.person.name} does not own this notebook, so the report was not stored."
        )
    if not call.services.report_limit.allows(name):
        sentence = "This notebook's server exceeds the rate limit of reports; the report was not stored. Wait 1 s."
        raise Refused(429, "too_often", sentence, {"Retry-After": "1"})
    body: ActivityReport = call.body
    document = body.model_dump(mode="json")
    outcome = await call.services.reports.record(
        RecordReport(notebook=name, instance=body.instance, sequence=body.sequence, body=document)
    )
    if not isinstance(outcome, Recorded):
        raise refused(outcome)
    return activity_answer(call.store_view.mirror.notebooks.get(name, record), call.store_view)


async def keep(call: Call) -> Answer:
    """Postpone an idle warning; for the owner, leads of the project and admins."""
    record = await _active_notebook(call)
    notebook, store_view = record.notebook, call.store_view
    if not may_change_work(call.person, project=notebook.project, owner=notebook.user):
        raise Refused(403, "not_allowed", f"{call.person.name} neither owns this notebook nor leads its project.")
    most = policy_of(store_view).keep_at_most
    await call.services.record(PostponeWarning(notebook=notebook.id, actor=call.person.id, keep_at_most=most))
    return Answer(body=idle_view(await record_of(call, notebook.id), store_view))


async def _active_notebook(call: Call) -> NotebookRecord:
    """The notebook of the path, which must have its slice or have lent it."""
    record = await seen_notebook(call)
    if record.notebook.state not in HOLDS_SLICE:
        sentence = f"This notebook's slice is {record.notebook.state}, so its use is not tracked."
        raise Refused(409, "not_booked", sentence)
    return record
