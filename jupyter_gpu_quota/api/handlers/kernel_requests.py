"""A kernel is about to start and asks for its notebook's GPU: the answer, or who it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...backends.rendering.variables import notebook_environment
from ...core.amounts import gpu_text
from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import Device, Health, NotebookState
from ...core.reasons import ReasonCode
from ...messages.reasons import sentence
from ...store.records.activity import WakeNotebook
from ...store.records.commands import RequestSliceAgain
from ...store.records.rows import JobRecord, NotebookRecord
from ...wire.activity import WakeAnswer, WakeRequest
from ..access.permissions import Person, sees_work
from ..access.refusals import Refused
from ..requests.resource import Answer, Call
from ..views.records import notebook_view
from .notebooks import record_of, seen_notebook

if TYPE_CHECKING:
    from ..state.store_view import World

TRIES = 2
"""A slice may be released between being looked at and being asked for."""


async def wake(call: Call) -> Answer:
    """Note that the owner wants the GPU, wait for the slice as long as was asked, and say how it is."""
    record, body = await seen_notebook(call), call.body
    assert isinstance(body, WakeRequest)
    if record.notebook.user != call.person.id:
        raise Refused(403, "not_allowed", f"{call.person.name} does not own this notebook, so nothing was asked for.")
    if record.notebook.state not in NOTEBOOK_FINAL or call.door.wake_pace.takes(record.notebook.id):
        record = await _asked(call, record)
    if record.notebook.state not in NOTEBOOK_FINAL and body.wait_s:
        await call.door.world.wait_until(lambda: not _waits(call, record.notebook.id), body.wait_s)
    return Answer(body=await answer(call, await record_of(call, record.notebook.id)))


async def _asked(call: Call, record: NotebookRecord) -> NotebookRecord:
    """Ask for the slice; for one that was released meanwhile, like a new notebook. Raises Refused."""
    name, person = record.notebook.id, call.person.id
    for left in reversed(range(TRIES)):
        if record.notebook.state in NOTEBOOK_FINAL:
            await call.door.record(RequestSliceAgain(notebook=name, actor=person))
            record = await record_of(call, name)
        try:
            await call.door.record(WakeNotebook(notebook=name, actor=person))
        except Refused:
            record = await record_of(call, name)
            if not left or record.notebook.state not in NOTEBOOK_FINAL:
                raise
        else:
            break
    return record


def _waits(call: Call, notebook: str) -> bool:
    record = call.door.world.mirror.notebooks.get(notebook)
    return record is not None and record.notebook.state in (NotebookState.REQUESTED, NotebookState.LENT)


async def answer(call: Call, record: NotebookRecord) -> WakeAnswer:
    """How a slice is that was asked for."""
    world = call.door.world
    match record.notebook.state:
        case NotebookState.BOOKED:
            variables = notebook_environment(notebook_view(record, world))
            return WakeAnswer(state="ready", reason="booked", message="", variables=variables)
        case NotebookState.LENT:
            await call.door.foresight.think()
            return WakeAnswer(state="waiting", reason="lent", message=_comes_back(record, world, call.person))
        case NotebookState.REQUESTED:
            await call.door.foresight.think()
            reason = notebook_view(record, world).reason
            why = reason.message if reason else "It is asked for anew, as for a new notebook."
            return WakeAnswer(state="waiting", reason=reason.code if reason else "requested", message=why)
        case _:
            return _no_slice(record, world)


def _no_slice(record: NotebookRecord, world: World) -> WakeAnswer:
    """Its slice had gone back while it was idle, and there is none for it now."""
    reason = notebook_view(record, world).reason
    why = reason.message if reason else "The notebook's server ended, so its slice went back."
    return WakeAnswer(state="refused", reason=reason.code if reason else "ended", message=why)


def _comes_back(record: NotebookRecord, world: World, person: Person) -> str:
    """Who borrows a slice, and by when they are gone."""
    notebook, quota = record.notebook, world.quota
    grace_s = quota.policy.preemption.lent_grace_s if quota else 0
    device = world.device(notebook.device or "")
    lent = f"Its slice of {gpu_text(notebook.gpu_milli)} GPU was lent while the notebook was idle."
    if device is not None and device.health is not Health.HEALTHY:
        return f"{lent} {_out(record, device, world)}"
    borrowers = _borrowers(notebook.device, world)
    if not borrowers:
        return f"{lent} It comes back now."
    who = " and ".join(_named(each, world, person) for each in borrowers)
    return f"{lent} It comes back when {who}, which borrows it, has saved and left: within {grace_s} s."


def _out(record: NotebookRecord, device: Device, world: World) -> str:
    """What is done for a slice whose device cannot be given out: another one, or it waits, and for what."""
    pool, waits = record.notebook.pool, world.wait_of(record.notebook.id)
    if any(each.health is Health.HEALTHY for each in world.devices_in(pool)):
        return f"Its device is {device.health}, so another one is looked for."
    told = sentence(waits) if waits is not None and waits.code in NOWHERE else "It comes back when one can be again."
    return f"Its device is {device.health}, and no other device of pool {pool} can be given out. {told}"


NOWHERE = frozenset({ReasonCode.DEVICE_QUARANTINED, ReasonCode.DEVICE_UNAVAILABLE})


def _borrowers(device: str | None, world: World) -> list[JobRecord]:
    names = sorted({part.workload for part in world.allocations.values() if part.device == device})
    jobs = [world.mirror.jobs.get(name) for name in names]
    return [job for job in jobs if job is not None and job.job.borrower]


def _named(record: JobRecord, world: World, person: Person) -> str:
    job = record.job
    if not sees_work(person, project=job.project, owner=job.user, private=record.spec.private):
        return "a job of another project"
    return f'{world.name_of(job.user)}\'s job "{record.spec.name}"'
