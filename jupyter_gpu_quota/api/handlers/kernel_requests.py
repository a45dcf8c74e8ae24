"""The route with which a starting kernel requests its notebook's GPU."""

from __future__ import annotations

from ...backends.rendering.variables import confirmed_environment
from ...core.amounts import gpu_text
from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import Device, Health, Notebook, NotebookState
from ...core.reason_codes import ReasonCode
from ...messages.reasons import sentence
from ...store.records.activity import WakeNotebook
from ...store.records.commands import RequestSliceAgain
from ...store.records.rows import NotebookRecord
from ...wire.activity import WakeAnswer, WakeRequest
from ..access.permissions import Person, may_see
from ..access.refusals import Refused
from ..requests.call import Call
from ..state.store_view import StoreView
from ..views.records import notebook_view
from .notebooks import person_named, record_of, seen_notebook, waits_for_slice
from .submission import pool_of, project_of, quota_in_force

TRIES = 2
"""A slice may be released between the read of its state and the request."""


async def wake(call: Call) -> WakeAnswer:
    """Record that the owner needs the GPU, wait up to ``wait_s`` for the slice, and answer its state."""
    record = await seen_notebook(call)
    body: WakeRequest = call.body
    if record.notebook.user != call.person.id:
        raise Refused(403, "not_allowed", f"{call.person.name} does not own this notebook, so nothing was requested.")
    if record.notebook.state not in NOTEBOOK_FINAL or call.services.wake_limit.allows(record.notebook.id):
        requested = await _request_slice(call, record)
        if isinstance(requested, Refused):
            return WakeAnswer(state="refused", reason=requested.reason, message=requested.message)
        record = requested
    if record.notebook.state not in NOTEBOOK_FINAL and body.wait_s:
        await call.store_view.wait_until(lambda: not waits_for_slice(call, record.notebook.id), body.wait_s)
    record = await record_of(call, record.notebook.id)
    if record.notebook.state in (NotebookState.LENT, NotebookState.REQUESTED):
        await call.services.decisions.latest()
    return _answer(record, call.store_view, call.person)


async def _request_slice(call: Call, record: NotebookRecord) -> NotebookRecord | Refused:
    """Request the slice; one that was released is requested, and may be refused, like that of a new notebook.

    Raises Refused for a notebook whose server has ended.
    """
    name, person = record.notebook.id, call.person.id
    for left in reversed(range(TRIES)):
        if record.notebook.state in NOTEBOOK_FINAL:
            if refusal := await _refusal_of_new(call, record.notebook):
                return refusal
            await call.services.record(RequestSliceAgain(notebook=name, actor=person))
            record = await record_of(call, name)
        try:
            await call.services.record(WakeNotebook(notebook=name, actor=person))
        except Refused:
            record = await record_of(call, name)
            if not left or record.notebook.state not in NOTEBOOK_FINAL:
                raise
        else:
            break
    return record


async def _refusal_of_new(call: Call, notebook: Notebook) -> Refused | None:
    """Why the owner may not start such a notebook now; the secret of a slice does not say that they are a member."""
    try:
        owner = await person_named(call, call.person.name)
        project, quota = project_of(notebook.project, owner), quota_in_force(call.store_view.quota_file)
        pool_of(notebook.pool, project, quota, "notebook")
    except Refused as refusal:
        return refusal
    return None


def _answer(record: NotebookRecord, store_view: StoreView, person: Person) -> WakeAnswer:
    """The state of a requested slice."""
    view = notebook_view(record, store_view)
    code, why = (view.reason.code, view.reason.message) if view.reason else (None, None)
    match record.notebook.state:
        case NotebookState.BOOKED:
            return WakeAnswer(state="ready", reason="booked", message="", variables=confirmed_environment(view))
        case NotebookState.LENT:
            return WakeAnswer(state="waiting", reason="lent", message=_return_sentence(record, store_view, person))
        case NotebookState.REQUESTED:
            why = why or "It is requested again, as for a new notebook."
            return WakeAnswer(state="waiting", reason=code or "requested", message=why)
        case _:  # the idle notebook's slice was released
            why = why or "The notebook's server ended, so its slice went back."
            return WakeAnswer(state="refused", reason=code or "ended", message=why)


def _return_sentence(record: NotebookRecord, store_view: StoreView, person: Person) -> str:
    """The jobs that borrow a slice, and when it returns."""
    notebook, quota = record.notebook, store_view.quota
    grace_s = quota.policy.preemption.lent_grace_s if quota else 0
    device = store_view.mirror.devices.get(notebook.device or "")
    lent = f"Its slice of {gpu_text(notebook.gpu_milli)} GPU was lent while the notebook was idle."
    if device is not None and device.health is not Health.HEALTHY:
        return f"{lent} {_device_sentence(record, device, store_view)}"
    borrowers = _borrowers(notebook.device, store_view, person)
    if not borrowers:
        return f"{lent} It returns now."
    jobs = " and ".join(borrowers)
    return f"{lent} It returns when {jobs}, which borrows it, has saved and ended: within {grace_s} s."


def _device_sentence(record: NotebookRecord, device: Device, store_view: StoreView) -> str:
    """The next step for a slice on a device that cannot be allocated."""
    pool, waits = record.notebook.pool, store_view.waits.get(record.notebook.id)
    if any(each.health is Health.HEALTHY for each in store_view.devices_in(pool)):
        return f"Its device is {device.health}, so another one will be allocated."
    next_step = sentence(waits) if waits and waits.code in NO_DEVICE else "It returns when one can be allocated again."
    return f"Its device is {device.health}, and no other device of pool {pool} can be allocated. {next_step}"


NO_DEVICE = frozenset({ReasonCode.DEVICE_QUARANTINED, ReasonCode.DEVICE_UNAVAILABLE})


def _borrowers(device: str | None, store_view: StoreView, person: Person) -> list[str]:
    """The jobs that borrow on a device, by name where this person may see them."""
    names = sorted({part.workload for part in store_view.allocations.values() if part.device == device})
    records = [record for name in names if (record := store_view.mirror.jobs.get(name)) and record.job.borrower]
    return [
        f'{store_view.name_of(record.job.user)}\'s job "{record.spec.name}"'
        if may_see(person, record)
        else "a job of another project"
        for record in records
    ]
