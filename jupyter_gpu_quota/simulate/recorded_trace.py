"""A recorded audit, as ``audit --json`` prints it: the trace of its requests, and the states of its work."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import median_low
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, FailFast, TypeAdapter, ValidationError

from ..core.amounts import counted
from ..core.lifecycle import CHECKPOINTED
from ..core.model import JobState, NotebookState
from ..messages.validation import error_text, path_text
from ..wire import json_input
from .tracefile import NodeSpec, Trace, checked


class Row(BaseModel):
    """One row of the audit; other members are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seq: int
    at: AwareDatetime
    actor: str
    kind: str
    subject: str
    project: str | None
    payload: dict[str, Any]

    @property
    def at_ms(self) -> int:
        return int(self.at.timestamp() * 1000)


@dataclass(slots=True)
class _Work:
    """One job or notebook of the rows; instants and durations in ms."""

    request: Row
    started: bool = False
    started_at: int | None = None
    stopping_at: int | None = None
    ran_ms: int = 0
    saves_in_ms: int = 0
    ended_at: int | None = None
    cancelled_at: int | None = None
    state: str = "queued"

    @property
    def is_timed(self) -> bool:
        """Whether the audit tells how long it lasts: it ended after a start, runs, or has saved some work."""
        return self.started and (self.ended_at is not None or self.started_at is not None or self.ran_ms > 0)


@dataclass(slots=True)
class _Audit:
    """The content of the rows."""

    jobs: dict[str, _Work] = field(default_factory=dict)
    notebooks: dict[str, _Work] = field(default_factory=dict)
    machines: Row | None = None
    devices: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: str = ""
    """The sentence where the rows begin after devices were first listed, which are in none of them."""
    last_at: int = 0


def read(text: str) -> Trace | list[str]:
    """The trace of an audit: its work lasts as long as it ran, or, if it had not ended, until the last row.

    Work that never started, or lost what it did, lasts as long as the ended work of its project and kind, in the
    median, else as that of all projects; where none has ended it is left out. The trace has a note about it.
    Work that a pause without a checkpoint discarded is left out. Work that was never paused saves in no time; that,
    and how busy it was, is not in the audit, nor are the quotas. Rows of releases that did not note which models of
    device a job asked for leave it any model.
    """
    rows = rows_of(text)
    if rows and isinstance(rows[0], str):
        return [str(row) for row in rows]
    try:
        audit = _audit_of([row for row in rows if isinstance(row, Row)])
        if audit.machines is None:
            return ["the audit: no row tells which nodes and devices there were (kind inventory)"]
        return [f"the audit: {audit.missing}"] if audit.missing else _trace(audit, audit.machines)
    except InvalidRow as error:
        return [f"the audit: {error}"]


def rows_of(text: str) -> list[Row] | list[str]:
    """The rows, oldest first, or what is wrong with them."""
    try:
        rows = TypeAdapter(Annotated[list[Row], FailFast()]).validate_python(json_input.plain_json(text))
    except json_input.Refused as refused:
        return [f"the audit: {refused}"]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return [json_input.printable(f"{path_text(first['loc']) or 'the audit'}: {error_text(first)}")]
    rows.sort(key=lambda row: row.seq)
    fault = _sequence_fault(rows) if rows else "it has no rows"
    return [f"the audit: {fault}"] if fault else rows


def _sequence_fault(rows: Sequence[Row]) -> str:
    """A sentence about the first missing or duplicate row; empty where there is none."""
    for before, after in pairwise(rows):
        if after.seq == before.seq:
            return f"row {after.seq} is there twice"
        if after.seq != before.seq + 1:
            return f"the row before {after.seq} is missing"
    return ""


class InvalidRow(ValueError):
    """A row that does not have the format of this release."""


@contextmanager
def _reading(row: Row) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        fault = f"row {row.seq} ({row.kind:.40}) is not as this release writes it: {lacks:.200}"
        raise InvalidRow(json_input.printable(fault)) from error


def states(rows: Iterable[Row]) -> dict[str, str]:
    """The state of each job and notebook after the last row; nothing is decided again.

    Raises InvalidRow.
    """
    audit = _audit_of(rows)
    return {name: work.state for name, work in (audit.jobs | audit.notebooks).items()}


# --- rows to work ---------------------------------------------------------------------------------------------------
def _audit_of(rows: Iterable[Row]) -> _Audit:
    audit = _Audit()
    for row in rows:
        with _reading(row):
            _apply(audit, row)
    return audit


def _apply(audit: _Audit, row: Row) -> None:
    audit.last_at = row.at_ms
    if row.kind == "inventory":
        _apply_inventory(audit, row)
    elif row.kind in ("device.remove", "node.remove"):
        _remove_devices(audit, row)
    elif row.kind == "job.submit":
        audit.jobs[row.subject] = _Work(request=row)
    elif row.kind == "notebook.request":
        audit.notebooks[row.subject] = _Work(request=row, state=NotebookState.REQUESTED)
    elif row.subject in audit.jobs:
        _apply_to_job(audit.jobs[row.subject], row)
    elif row.subject in audit.notebooks:
        _apply_to_notebook(audit.notebooks[row.subject], row)


def _apply_inventory(audit: _Audit, row: Row) -> None:
    """The devices after a reading: a row has those that changed, or in earlier releases all of them."""
    changed = {str(device["id"]): device for device in row.payload["devices"]}
    audit.devices = audit.devices | changed if "listed" in row.payload else changed
    listed, found = row.payload.get("listed", {}).get("devices", 0), len(audit.devices)
    audit.missing = f"its rows name {found} of the {listed} devices: begin with an earlier row" * (found < listed)
    audit.machines = row


def _remove_devices(audit: _Audit, row: Row) -> None:
    by_name = "node" if row.kind == "node.remove" else "id"
    audit.devices = {id: device for id, device in audit.devices.items() if device[by_name] != row.subject}


def _apply_to_job(work: _Work, row: Row) -> None:
    match row.kind:
        case "start" | "resume":
            work.state, work.started = JobState.STARTING, True
        case "job.running":
            work.state, work.started_at = JobState.RUNNING, int(row.payload["started_at"])
        case "pause" | "stop":
            work.state, work.stopping_at = JobState.PAUSING, row.at_ms
        case "job.hold" | "job.release" | "job.cancel":
            work.state = row.payload["is"]
            if row.kind == "job.cancel":
                work.cancelled_at = row.at_ms
        case "job.end" | "attempt.end":
            _end_attempt(work, row)


def _end_attempt(work: _Work, row: Row) -> None:
    work.state = row.payload["state"]
    checkpointed = row.payload["exit_status"] == CHECKPOINTED
    stopped_at = row.at_ms if work.stopping_at is None else work.stopping_at
    if work.started_at is not None and (checkpointed or row.kind == "job.end"):
        work.ran_ms += max(0, stopped_at - work.started_at)
    if checkpointed:
        work.saves_in_ms = max(work.saves_in_ms, row.at_ms - stopped_at)
    work.started_at = work.stopping_at = None
    work.ended_at = row.at_ms if row.kind == "job.end" else None


def _apply_to_notebook(work: _Work, row: Row) -> None:
    match row.kind:
        case "start":
            work.state, work.started = NotebookState.BOOKED, True
            work.started_at = work.started_at or row.at_ms  # a notebook whose slice was lent starts again
        case "lend":
            work.state = NotebookState.LENT
        case "release":
            work.state, work.ended_at = NotebookState.RETURNED, row.at_ms
        case "refuse":
            work.state, work.ended_at = NotebookState.REFUSED, row.at_ms
        case "notebook.ask_again":
            work.state, work.ended_at = NotebookState.REQUESTED, None
        case "notebook.return":
            work.state, work.ended_at = NotebookState.RETURNED, row.at_ms


# --- work to a trace ------------------------------------------------------------------------------------------------
def _trace(audit: _Audit, machines: Row) -> Trace | list[str]:
    everything = [*audit.jobs.values(), *audit.notebooks.values()]
    begins = min((work.request.at_ms for work in everything), default=machines.at_ms)
    with _reading(machines):
        first = datetime.fromtimestamp(begins / 1000, machines.at.tzinfo).isoformat()
        nodes = [node.model_dump(by_alias=True) for node in _nodes(audit.devices.values())]
    jobs, notebooks = _lasting(audit.jobs.values(), audit.last_at), _lasting(audit.notebooks.values(), audit.last_at)
    work = [
        *(_build(_job, work, begins, lasted_ms) for work, lasted_ms in jobs),
        *(_build(_notebook, work, begins, lasted_ms) for work, lasted_ms in notebooks),
    ]
    found = checked(json.loads(json.dumps({"begins_at": first, "nodes": nodes, "work": work})))
    return found if isinstance(found, list) else found.recorded(_note_on_untimed(audit, len(everything) - len(work)))


def _build(make: Callable[[_Work, int, int], dict[str, object]], work: _Work, begins: int, lasted_ms: int) -> object:
    with _reading(work.request):
        return make(work, begins, lasted_ms)


# --- durations ------------------------------------------------------------------------------------------------------
def _lasting(works: Collection[_Work], last_at: int) -> Iterator[tuple[_Work, int]]:
    """The jobs or notebooks with their durations in ms, without those whose duration nothing tells."""
    by_project, every = defaultdict[str | None, list[int]](list), list[int]()
    for work in works:
        if work.is_timed and work.ended_at is not None:
            by_project[work.request.project].append(_lasted_ms(work, last_at))
            every.append(by_project[work.request.project][-1])
    for work in works:
        if work.is_timed:
            yield work, _lasted_ms(work, last_at)
        elif every:
            yield work, median_low(by_project.get(work.request.project) or every)


def _lasted_ms(work: _Work, last_at: int) -> int:
    """How long work ran until it ended, or until the last row."""
    if work.started_at is None:
        return max(1, work.ran_ms)
    return max(1, work.ran_ms + (last_at if work.ended_at is None else work.ended_at) - work.started_at)


def _note_on_untimed(audit: _Audit, left_out: int) -> str:
    """A sentence about the work of unknown duration, ``left_out`` of it left out; empty where there is none."""
    kinds = ((audit.jobs, "job"), (audit.notebooks, "notebook"))
    unknown = {noun: sum(not work.is_timed for work in works.values()) for works, noun in kinds}
    if not any(unknown.values()):
        return ""
    named = " and ".join(counted(count, noun) for noun, count in unknown.items() if count)
    parts = []
    if sum(unknown.values()) > left_out:
        parts.append("each has the median duration of ended work of its kind, of its project where there is some")
    if left_out:
        which = f"{left_out} of them {'is' if left_out == 1 else 'are'}" if parts else "they are"
        parts.append(f"{which} left out, as no work of the kind ended")
    return f"{named} of the audit never started, or lost what they did; their durations are unknown: {'; '.join(parts)}"


# --- keys of a trace ------------------------------------------------------------------------------------------------
def _nodes(devices: Iterable[Mapping[str, Any]]) -> list[NodeSpec]:
    """One node for each machine with devices; for a machine with several models, one for each model."""
    models: dict[str, dict[str, list[int]]] = {}
    for device in devices:
        models.setdefault(device["node"], {}).setdefault(device["model"], []).append(device["memory_mib"])
    return [
        NodeSpec(
            name=node if len(found) == 1 else f"{node}/{model}",
            machine=None if len(found) == 1 else node,
            gpus=len(memory_mib),
            gpu_model=model,
            gpu_memory_mib=min(memory_mib),
        )
        for node, found in sorted(models.items())
        for model, memory_mib in sorted(found.items())
    ]


def _job(work: _Work, begins: int, lasted_ms: int) -> dict[str, object]:
    row, request = work.request, work.request.payload
    found = {
        **_common_keys(row, begins),
        "kind": "training",
        "gpu": request["gpu_milli"] / 1000,
        "duration_s": lasted_ms / 1000,
        "gpu_model": request.get("gpu_model"),
        "ranks": request["ranks"],
        "priority": request["priority"],
        "preemptible": request["preemptible"],
        "time_limit_s": request["time_limit_s"],
        "saves_in_s": work.saves_in_ms / 1000,
    }
    if work.cancelled_at is not None:
        found["cancel_s"] = (work.cancelled_at - begins) / 1000
    return found


def _notebook(work: _Work, begins: int, lasted_ms: int) -> dict[str, object]:
    return {
        **_common_keys(work.request, begins),
        "kind": "notebook",
        "gpu": work.request.payload["gpu_milli"] / 1000,
        "duration_s": lasted_ms / 1000,
    }


def _common_keys(row: Row, begins: int) -> dict[str, object]:
    return {
        "id": row.subject,
        "submit_s": (row.at_ms - begins) / 1000,
        "project": row.project,
        "user": row.actor,
        "pool": row.payload["pool"],
    }
