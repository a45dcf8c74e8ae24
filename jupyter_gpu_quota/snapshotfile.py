"""The documents that ``decide`` reads and prints: a snapshot with its policy, and a plan.

Both are canonical JSON. The reader is strict about keys and types, then checks that the world it describes can be one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from .core.canonical import Plain, canonical, plain
from .core.lifecycle import FINAL, HOLDS_GPU, NOTEBOOK_FINAL
from .core.model import WHOLE_DEVICE, Job, Notebook, NotebookState, Policy, Snapshot
from .core.plan import Action, Lend, Pause, Plan, Refuse, Release, Reserve, Resume, Start, Stop, Unreserve
from .core.sentences import sentence

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


def read(document: str | bytes) -> SnapshotDocument | list[str]:
    """Read a snapshot document. Answers it, or sentences that name what is wrong, the first place first."""
    try:
        found = _reader().validate_json(document)
    except ValidationError as error:
        return [_told(each) for each in error.errors(include_url=False)[:MOST_FAULTS]]
    faults = [fault for _, fault in zip(range(MOST_FAULTS), _faults(found.snapshot, found.policy), strict=False)]
    return faults or found


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
    for kind, word in ACTIONS.items():
        _require(schema["$defs"][kind.__name__], "action", {"const": word, "title": "Action"})
    _require(schema, "format", {"const": 1, "title": "Format"})
    _require(schema["$defs"]["Reason"], "message", {"type": "string", "title": "Message"})
    return schema


def _require(schema: dict[str, Any], key: str, what: dict[str, Any]) -> None:
    schema["properties"] = {key: what, **schema["properties"]}
    schema["required"] = [key, *schema.get("required", [])]


def _fields(value: object) -> dict[str, Plain]:
    found = plain(value)
    assert isinstance(found, dict), "plans and actions are dataclasses"
    return found


def _told(error: Any) -> str:
    place = ".".join(str(step) for step in error["loc"]) or "the document"
    return f"{place}: {error['msg'][:1].lower()}{error['msg'][1:]}"


# --- whether the world that is described can be one ---------------------------------------------------------------
def _faults(snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    yield from _twice("node", [node.id for node in snapshot.nodes])
    yield from _twice("device", [device.id for device in snapshot.devices])
    yield from _twice("workload", [workload.id for workload in _workloads(snapshot)])
    yield from _twice("allocation", [allocation.id for allocation in snapshot.allocations])
    yield from _twice("reservation of workload", [reservation.workload for reservation in snapshot.reservations])
    yield from _twice("pool", policy.pools)
    yield from _twice("project", [project.name for project in policy.projects])
    yield from _faulty_hosts(snapshot)
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


def _faulty_hosts(snapshot: Snapshot) -> Iterator[str]:
    for node in snapshot.nodes:
        if node.cpu_milli < 0 or node.memory_mib < 0:
            yield f"node {node.id} has {node.cpu_milli} milli of CPU and {node.memory_mib} MiB"
    for job in snapshot.jobs:
        if job.cpu_milli < 0 or job.memory_mib < 0:
            yield f"job {job.id} asks for {job.cpu_milli} milli of CPU and {job.memory_mib} MiB; 0 is not stated"
    for at, row in enumerate(snapshot.demand):
        amounts = row.gpu_milli == 0 or _is_amount(row.gpu_milli)
        if not amounts or row.cpu_milli < 0 or row.memory_mib < 0 or row.count < 1:
            yield (
                f"demand {at} is {row.count} times {row.gpu_milli} milli, {row.cpu_milli} milli of CPU and"
                f" {row.memory_mib} MiB; a shape was asked for once or more"
            )


def _faulty_workloads(snapshot: Snapshot) -> Iterator[str]:
    for job in snapshot.jobs:
        if job.state in FINAL:
            yield f"job {job.id} is {job.state}: an ended job is no part of a snapshot"
        if not _is_amount(job.gpu_milli) or job.ranks < 1:
            yield (
                f"job {job.id} asks for {job.ranks} x {job.gpu_milli} milli: a part of a device or whole"
                " devices, once or more"
            )
        if job.min_ranks is not None and not 1 <= job.min_ranks <= job.ranks:
            yield f"job {job.id} runs with {job.min_ranks} to {job.ranks} ranks; its minimum is from 1 to all of them"
        if job.held_ranks is not None and not job.least_ranks <= job.held_ranks <= job.ranks:
            yield f"job {job.id} has {job.held_ranks} ranks, and runs with {job.least_ranks} to {job.ranks}"
        if job.time_limit_s < 1 or not 0 <= job.priority <= 100:
            yield f"job {job.id} has a time limit of {job.time_limit_s} s and priority {job.priority}"
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
    for held in snapshot.allocations:
        owner = workloads.get(held.workload)
        if owner is None:
            yield f"allocation {held.id} belongs to {held.workload}, which is gone"
        elif not _holds(owner):
            yield f"allocation {held.id} belongs to {held.workload}, which is {owner.state} and holds nothing"
        if not 1 <= held.gpu_milli <= WHOLE_DEVICE or held.memory_mib < 0:
            yield f"allocation {held.id} holds {held.gpu_milli} milli and {held.memory_mib} MiB of one device"
    owners = {held.workload for held in snapshot.allocations}
    for workload in workloads.values():
        if _holds(workload) and workload.id not in owners:
            yield f"{workload.id} is {workload.state} and holds no device"


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
    workloads = {workload.id for workload in _workloads(snapshot)}
    for reservation in snapshot.reservations:
        if reservation.workload not in workloads:
            yield f"a reservation is for {reservation.workload}, which is gone"
        for placement in reservation.placements:
            if placement.device not in devices:
                yield f"the reservation of {reservation.workload} names device {placement.device}, which is not there"


def _faulty_policy(policy: Policy) -> Iterator[str]:
    if policy.within_project not in ("users_in_turn", "first_come"):
        yield f"policy: within_project is {policy.within_project}; it can be users_in_turn or first_come"
    for project in policy.projects:
        for pool, amounts in project.amounts.items():
            if pool not in policy.pools:
                yield f"project {project.name} has amounts in pool {pool}, which the policy does not have"
            low = min(amounts.notebook_milli, amounts.training_milli, amounts.limit_milli or 0, amounts.weight)
            if low < 0:
                yield f"project {project.name} has an amount of {low} in pool {pool}; amounts are 0 or more"
