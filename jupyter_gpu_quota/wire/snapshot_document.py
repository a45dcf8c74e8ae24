"""The documents that ``decide`` reads and prints: a snapshot with its policy, and a plan.

Both are canonical JSON. The reader is strict about keys and types, then checks that the world it describes can be one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ..core.amounts import MOST_DEVICES, MOST_SECONDS
from ..core.canonical import Plain, canonical, plain
from ..core.lifecycle import FINAL, HOLDS_GPU, NOTEBOOK_FINAL
from ..core.model import (
    WHOLE_DEVICE,
    Allocation,
    Department,
    Job,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Project,
    Reservation,
    Snapshot,
    Window,
)
from ..core.plan import Action, Lend, Pause, Plan, Refuse, Release, Reserve, Resume, Start, Stop, Unreserve
from ..core.reasons import RECORDS, OtherReason, ReasonCode
from ..messages.reasons import sentence
from ..messages.validation import number_text, words_of
from . import json_input as intake

ACTIONS: dict[type[Action], str] = {
    Start: "start",
    Resume: "resume",
    Pause: "pause",
    Stop: "stop",
    Refuse: "refuse",
    Lend: "lend",
    Release: "release",
    Reserve: "reserve",
    Unreserve: "unreserve",
}
"""The word that a plan's document has for each action."""

MOST_FAULTS = 20

MOST_AT = 7_258_118_400_000
"""The first moment of 2200."""

RANGES = {
    "now": (0, MOST_AT),
    "paused_at": (0, MOST_AT),
    "cpu_milli": (0, 1 << 40),
    "k_milli": (0, 10_000),
    "milli_s": (0, 10**18),
    "half_life_s": (1, MOST_SECONDS),
    "window_s": (1, MOST_SECONDS),
    "priority": (0, 100),
    "weight": (0, 1_000_000),
    "max_pauses": (0, 1_000_000),
    "min_ranks": (1, 10**8),
    "held_ranks": (1, 10**8),
}
"""The least and the most of integers by the name of their field."""

RANGES_OF_UNITS = {
    "_at": (0, MOST_AT),
    "_milli": (0, MOST_DEVICES * WHOLE_DEVICE),
    "_mib": (0, 1 << 40),
    "_s": (0, MOST_SECONDS),
    "ranks": (1, 10**8),
}
"""Of the others, by what their name ends in."""

OTHER_RANGE = (0, 10**18)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """What ``snapshot`` saves and ``decide`` reads."""

    snapshot: Snapshot
    policy: Policy
    format: Literal[1] = 1
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # the core's own classes inside follow it


@cache
def _reader() -> TypeAdapter[SnapshotDocument]:
    return TypeAdapter(SnapshotDocument)


@cache
def _hasty() -> SchemaValidator:
    """The reader, but of each list it tells the first wrong item alone.

    The library collects all errors, a kilobyte each: of a million wrong items that would be gigabytes and minutes.
    """
    return SchemaValidator(_hastened(_reader().core_schema))


def _hastened(schema: Any) -> Any:
    if isinstance(schema, dict):
        haste = {"fail_fast": True} if schema.get("type") in ("list", "tuple") else {}
        return {key: _hastened(value) for key, value in schema.items()} | haste
    return type(schema)(map(_hastened, schema)) if isinstance(schema, list | tuple) else schema


def read(document: str | bytes) -> SnapshotDocument | list[str]:
    """Read a snapshot document. Answers it, or sentences that name what is wrong, the first place first."""
    try:
        text = intake.text_of(document) if isinstance(document, bytes) else document
        intake.check_json(text)
        found = _hasty().validate_json(text)
    except intake.Refused as refused:
        return [f"the document: {refused}"]
    except ValidationError as error:
        return [_told(each) for each in error.errors(include_url=False)[:MOST_FAULTS]]
    return _first(_excesses(found)) or _first(_faults(found.snapshot, found.policy)) or found


def _first(faults: Iterator[str]) -> list[str]:
    return [intake.said(fault) for fault in islice(faults, MOST_FAULTS)]


def write(snapshot: Snapshot, policy: Policy) -> bytes:
    """The snapshot document of a running system; ``read`` gives the same values back."""
    return canonical(SnapshotDocument(snapshot=snapshot, policy=policy)) + b"\n"


def plan_document(plan: Plan) -> dict[str, Plain]:
    """A plan as plain JSON values, every action with the word for what it is and its reason in words."""
    return {"format": 1, **_fields(plan), "actions": [_action(action) for action in plan.actions]}


def _action(action: Action) -> Plain:
    reason = {**_fields(action.reason), "message": sentence(action.reason)}
    return {"action": ACTIONS[type(action)], **_fields(action), "reason": reason}


def snapshot_schema() -> dict[str, object]:
    """The JSON Schema of the snapshot document, from the classes that read it."""
    return _reader().json_schema()


def plan_schema() -> dict[str, object]:
    """The JSON Schema of what ``decide`` prints."""
    schema = TypeAdapter(Plan).json_schema()
    definitions = {name: one for name, one in schema["$defs"].items() if name not in _RECORDS}
    for kind, word in ACTIONS.items():
        _require(definitions[kind.__name__], "action", {"const": word, "title": "Action"})
        definitions[kind.__name__]["properties"]["reason"] = {"$ref": "#/$defs/Reason"}
    definitions["Reason"] = _reason_schema()
    _require(schema, "format", {"const": 1, "title": "Format"})
    return {**schema, "$defs": definitions}


_RECORDS = frozenset(kind.__name__ for kind in (*RECORDS.values(), OtherReason))


def _reason_schema() -> dict[str, object]:
    """A reason inside a plan: its code, pairs of figures, and the sentence."""
    schema = TypeAdapter(OtherReason).json_schema() | {"title": "Reason", "required": ["code", "figures"]}
    schema["properties"]["code"] = {"enum": list(ReasonCode), "title": "Code"}
    _require(schema, "message", {"type": "string", "title": "Message"})
    return schema


def _require(schema: dict[str, Any], key: str, what: dict[str, Any]) -> None:
    schema["properties"] = {key: what, **schema["properties"]}
    schema["required"] = [key, *schema.get("required", [])]


def _fields(value: object) -> dict[str, Plain]:
    found = plain(value)
    assert isinstance(found, dict), "plans and actions are dataclasses"
    return found


def _told(error: Any) -> str:
    return intake.said(f"{intake.place(error['loc'])}: {words_of(error)}")


# --- whether each number can be one -------------------------------------------------------------------------------
def _excesses(value: object, place: str = "", name: str = "") -> Iterator[str]:
    """The integers that are outside of their range, by their place; what follows may add and multiply the others."""
    for step, part in _parts(value):
        key = step if isinstance(step, str) else name
        if isinstance(part, int):
            low, high = _range(key)
            if not low <= part <= high and not isinstance(part, bool):
                yield f"{_below(place, step)} is {number_text(part)}; it is from {low} to {high}"
        elif isinstance(part, tuple | Mapping) or is_dataclass(part):
            yield from _excesses(part, _below(place, step), key)


def _below(place: str, step: str | int) -> str:
    return f"{place}.{step}" if place else str(step)


def _parts(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, tuple):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    kind: Any = type(value)
    return ((name, getattr(value, name)) for name in _names(kind))


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache(maxsize=1000)
def _range(name: str) -> tuple[int, int]:
    units = (found for unit, found in RANGES_OF_UNITS.items() if name.endswith(unit))
    return RANGES.get(name) or next(units, OTHER_RANGE)


# --- whether the world that is described can be one ---------------------------------------------------------------
def _faults(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    yield from _twice("node", [node.id for node in snapshot.nodes])
    yield from _twice("device", [device.id for device in snapshot.devices])
    yield from _twice("workload", [workload.id for workload in _workloads(snapshot)])
    yield from _twice("allocation", [allocation.id for allocation in snapshot.allocations])
    yield from _twice("reservation of workload", [reservation.workload for reservation in snapshot.reservations])
    yield from _twice("pool", policy.pools)
    yield from _twice("project", [project.name for project in policy.projects])
    yield from _twice("department", [department.name for department in policy.departments])
    yield from _faulty_demand(snapshot)
    yield from _faulty_devices(snapshot, policy)
    yield from _faulty_workloads(snapshot)
    yield from _faulty_allocations(snapshot)
    yield from _faulty_reservations(snapshot)
    yield from _faulty_policy(policy)


def _workloads(snapshot: Snapshot) -> list[Job | Notebook]:
    return [*snapshot.jobs, *snapshot.notebooks]


def _twice(what: str, ids: Iterable[str]) -> Iterator[str]:
    for name, times in sorted(Counter(ids).items()):
        if times > 1:
            yield f"{what} {name} stands {times} times; it can be there once"


def _faulty_devices(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    nodes = {node.id for node in snapshot.nodes}
    for device in snapshot.devices:
        if device.node not in nodes:
            yield f"device {device.id} is on node {device.node}, which is not among the nodes"
        if device.pool is not None and device.pool not in policy.pools:
            yield f"device {device.id} is in pool {device.pool}, which the policy does not have"
        if device.memory_mib < 1 or not 0 <= device.foreign_milli <= WHOLE_DEVICE:
            yield f"device {device.id} has {device.memory_mib} MiB and {device.foreign_milli} milli of foreign use"


def _faulty_demand(snapshot: Snapshot) -> Iterator[str]:
    for at, row in enumerate(snapshot.demand):
        amounts = row.gpu_milli == 0 or _is_amount(row.gpu_milli)
        if not amounts or row.count < 1:
            yield (
                f"demand {at} is {row.count} times {row.gpu_milli} milli, {row.cpu_milli} milli of CPU and"
                f" {row.memory_mib} MiB; a shape was asked for once or more"
            )


def _faulty_workloads(snapshot: Snapshot) -> Iterator[str]:
    for job in snapshot.jobs:
        if job.state in FINAL:
            yield f"job {job.id} is {job.state}: an ended job is no part of a snapshot"
        if not _is_amount(job.gpu_milli):
            yield (
                f"job {job.id} asks for {job.ranks} x {job.gpu_milli} milli: a part of a device or whole"
                " devices, once or more"
            )
        if job.min_ranks is not None and not 1 <= job.min_ranks <= job.ranks:
            yield f"job {job.id} runs with {job.min_ranks} to {job.ranks} ranks; its minimum is from 1 to all of them"
        if job.held_ranks is not None and not job.least_ranks <= job.held_ranks <= job.ranks:
            yield f"job {job.id} has {job.held_ranks} ranks, and runs with {job.least_ranks} to {job.ranks}"
        if job.time_limit_s < 1:
            yield f"job {job.id} has a time limit of {job.time_limit_s} s"
    for notebook in snapshot.notebooks:
        if notebook.state in NOTEBOOK_FINAL:
            yield f"notebook {notebook.id} is {notebook.state}: an ended slice is no part of a snapshot"
        lent = notebook.state is NotebookState.LENT
        if lent != (notebook.device is not None) or lent != (notebook.lent_at is not None):
            yield (
                f"notebook {notebook.id} is {notebook.state}, lent since {notebook.lent_at} from device"
                f" {notebook.device}: a slice that is lent has both, and no other has one"
            )
        if not 1 <= notebook.gpu_milli <= WHOLE_DEVICE:
            yield f"notebook {notebook.id} asks for {notebook.gpu_milli} milli; a slice is 1 to {WHOLE_DEVICE}"


def _is_amount(milli: int) -> bool:
    return 1 <= milli <= WHOLE_DEVICE or (milli > 0 and milli % WHOLE_DEVICE == 0)


def _holds(workload: Job | Notebook) -> bool:
    return workload.state in HOLDS_GPU or workload.state is NotebookState.BOOKED


def _faulty_allocations(snapshot: Snapshot) -> Iterator[str]:
    workloads = {workload.id: workload for workload in _workloads(snapshot)}
    yield from _overfull(snapshot)
    ranks: dict[str, set[int]] = defaultdict(set)
    for held in snapshot.allocations:
        owner = workloads.get(held.workload)
        if owner is None:
            yield f"allocation {held.id} belongs to {held.workload}, which is gone"
        elif not _holds(owner):
            yield f"allocation {held.id} belongs to {held.workload}, which is {owner.state} and holds nothing"
        else:
            yield from _faulty_part(f"allocation {held.id}", held, _ranks(owner))
            ranks[owner.id].add(held.rank)
    for workload in workloads.values():
        if _holds(workload) and workload.id not in ranks:
            yield f"{workload.id} is {workload.state} and holds no device"
        elif _holds(workload) and len(ranks[workload.id]) < _ranks(workload):
            had = len(ranks[workload.id])
            yield f"{workload.id} is {workload.state}, and of its {_ranks(workload)} ranks {had} hold devices"


def _ranks(workload: Job | Notebook) -> int:
    """How many ranks it has where it holds devices."""
    return 1 if isinstance(workload, Notebook) else workload.held_ranks or workload.ranks


def _faulty_part(what: str, part: Allocation | Placement, ranks: int) -> Iterator[str]:
    if not 1 <= part.gpu_milli <= WHOLE_DEVICE:
        yield f"{what} holds {part.gpu_milli} milli and {part.memory_mib} MiB of one device"
    if not part.rank < ranks:
        yield f"{what} is of rank {part.rank}; its workload has {ranks}, counted from 0"


def _overfull(snapshot: Snapshot) -> Iterator[str]:
    """Devices that carry more than they have: promise P1 of the contract."""
    devices = {device.id: device for device in snapshot.devices}
    milli: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for held in snapshot.allocations:
        if held.device not in devices:
            yield f"allocation {held.id} is on device {held.device}, which is not among the devices"
        milli[held.device] += held.gpu_milli
        memory[held.device] += held.memory_mib
    for name, device in devices.items():
        if milli[name] > WHOLE_DEVICE:
            yield f"device {name} is held twice: its allocations add to {milli[name]} milli of {WHOLE_DEVICE}"
        if memory[name] > device.memory_mib:
            yield f"device {name} is held twice: its allocations add to {memory[name]} MiB of {device.memory_mib}"


def _faulty_reservations(snapshot: Snapshot) -> Iterator[str]:
    devices = {device.id for device in snapshot.devices}
    workloads = {workload.id: workload for workload in _workloads(snapshot)}
    for reservation in snapshot.reservations:
        if reservation.workload not in workloads:
            yield f"a reservation is for {reservation.workload}, which is gone"
        yield from _faulty_placements(reservation, workloads.get(reservation.workload), devices)


def _faulty_placements(reservation: Reservation, owner: Job | Notebook | None, devices: Set[str]) -> Iterator[str]:
    what = f"the reservation of {reservation.workload}"
    for placement in reservation.placements:
        if placement.device not in devices:
            yield f"{what} names device {placement.device}, which is not there"
        elif owner is not None:
            yield from _faulty_part(what, placement, 1 if isinstance(owner, Notebook) else owner.ranks)


# --- the policy ---------------------------------------------------------------------------------------------------
def _faulty_policy(policy: Policy) -> Iterator[str]:
    if policy.within_project not in ("users_in_turn", "first_come"):
        yield f"policy: within_project is {policy.within_project}; it can be users_in_turn or first_come"
    for project in policy.projects:
        yield from _faulty_amounts(f"project {project.name}", project, policy)
        yield from _faulty_membership(project, policy)
    for department in policy.departments:
        yield from _faulty_amounts(f"department {department.name}", department, policy)
    for window in policy.windows:
        yield from _faulty_window(window, policy)


def _faulty_amounts(who: str, owner: Project | Department, policy: Policy) -> Iterator[str]:
    for pool, amounts in owner.amounts.items():
        if pool not in policy.pools:
            yield f"{who} has amounts in pool {pool}, which the policy does not have"
        quotas = amounts.notebook_milli + amounts.training_milli
        if amounts.limit_milli is not None and amounts.limit_milli < quotas:
            yield f"{who} has a limit of {amounts.limit_milli} milli in pool {pool}, below its quotas of {quotas}"


def _faulty_membership(project: Project, policy: Policy) -> Iterator[str]:
    if project.department is None and policy.departments:
        yield f"project {project.name} is in no department; where there are departments, every project is in one"
    elif project.department is not None and project.department not in {row.name for row in policy.departments}:
        yield f"project {project.name} is in department {project.department}, which the policy does not have"


def _faulty_window(window: Window, policy: Policy) -> Iterator[str]:
    if window.ends_at <= window.begins_at:
        yield f"window {window.name} ends at {window.ends_at}, not after its begin at {window.begins_at}"
    owners = {False: {row.name for row in policy.projects}, True: {row.name for row in policy.departments}}
    for change in window.changes:
        if change.owner not in owners[change.department]:
            kind = "department" if change.department else "project"
            yield f"window {window.name} changes {kind} {change.owner}, which the policy does not have"
        if change.pool not in policy.pools:
            yield f"window {window.name} changes amounts in pool {change.pool}, which the policy does not have"
