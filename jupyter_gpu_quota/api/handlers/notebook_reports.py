"""How notebooks are used, at the REST door: their servers report it, and people postpone a warning."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.idle.activity import KernelRecord, KernelState, ProgramKind, ProgramRecord
from ...core.idle.history import Report
from ...core.idle.process_owners import Roots
from ...core.lifecycle import HOLDS_SLICE
from ...store.records.rows import NotebookRecord
from ...wire.activity import ActivityReport, KernelReport, ProgramReport
from ..access import changes_work
from ..refusals import Refused
from ..resource import Answer, Call
from .notebooks import seen_notebook

WHY_NOT = {"off": "its server has not tried whether it can", "testing": "its server is finding out whether it can"}
"""Why a server suspends no kernel, where it gives no reason itself."""

STATES = {"idle": KernelState.IDLE, "busy": KernelState.BUSY}


async def report(call: Call) -> Answer:
    """Take what a notebook's own server says of its kernels. Only the owner's token speaks for it."""
    record = await _booked(call)
    if record.notebook.user != call.person.id:
        raise Refused(403, "not_allowed", f"{call.person.name} does not own this notebook, so nothing was noted.")
    if not call.door.idleness.reports.takes(record.notebook.id):
        sentence = "This notebook's server reports more often than it can have looked; nothing was noted. Wait a bit."
        raise Refused(429, "too_often", sentence, {"Retry-After": "1"})
    body: ActivityReport = call.body
    return Answer(body=await call.door.idleness.report(record, report_of(body, call.door.clock())))


async def keep(call: Call) -> Answer:
    """Postpone an idle warning; the owner, leads of the project and admins may."""
    record = await _booked(call)
    notebook = record.notebook
    if not changes_work(call.person, project=notebook.project, owner=notebook.user):
        raise Refused(403, "not_allowed", f"{call.person.name} neither owns this notebook nor leads its project.")
    await call.door.idleness.keep(record, call.person.id)
    return Answer(body=call.door.idleness.view(record))


async def _booked(call: Call) -> NotebookRecord:
    record = await seen_notebook(call)
    if record.notebook.state not in HOLDS_SLICE:
        sentence = f"This notebook's slice is {record.notebook.state}, so its use is not judged."
        raise Refused(409, "not_booked", sentence)
    return record


def report_of(body: ActivityReport, now: int) -> Report:
    """A report with instants of this clock; a message is never dated earlier than it was."""
    return Report(
        instance=body.instance,
        sequence=body.sequence,
        at=now,
        started_at=now - body.running_ms,
        kernels=tuple(_kernel(kernel, now) for kernel in body.kernels),
        programs=tuple(_program(program) for program in body.programs),
        cpu_ms={
            **{kernel.id: kernel.cpu_ms for kernel in body.kernels if kernel.asks_gpu},
            **{f"{program.name} {program.pid}": program.cpu_ms for program in body.programs},
        },
        roots=roots_of(body),
        asks_first=body.asks_first,
        suspends=body.suspension == "ready",
        why_not=body.suspension_why or WHY_NOT.get(body.suspension, ""),
        suspended=sum(kernel.suspended for kernel in body.kernels),
    )


def roots_of(body: ActivityReport) -> Roots:
    """The processes that a report names; a kernel without one, such as a remote one, may be any process."""
    return Roots(
        namespace=body.namespace,
        ticks=body.ticks,
        by_process={(pid, started): name for name, pid, started in _named(body) if pid and started is not None},
        rootless=any(pid is None or started is None for _, pid, started in _named(body)),
    )


def _named(body: ActivityReport) -> Iterator[tuple[str, int | None, int | None]]:
    yield from ((kernel.id, kernel.pid, kernel.started) for kernel in body.kernels)
    yield from ((program.name, program.pid, program.started) for program in body.programs)


def _kernel(kernel: KernelReport, now: int) -> KernelRecord:
    return KernelRecord(
        id=kernel.id,
        state=None if kernel.state is None else STATES[kernel.state],
        started_at=None if kernel.running_ms is None else now - kernel.running_ms,
        last_message_at=None if kernel.quiet_ms is None else now - kernel.quiet_ms,
        holds_gpu=None if kernel.asks_gpu else False,
        connections=kernel.connections,
    )


def _program(program: ProgramReport) -> ProgramRecord:
    return ProgramRecord(name=program.name, kind=ProgramKind(program.kind), holds_gpu=None)
