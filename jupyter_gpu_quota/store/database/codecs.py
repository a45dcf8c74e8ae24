"""Rows to columns and back. Nested values are JSON text, checked on the way in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from ...core.idle.activity import ProcessUse
from ...core.model import (
    Activity,
    Allocation,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Reservation,
    Upkeep,
)
from ...core.plan import Reason
from ..records.commands import JobSpec, ShareLabel
from ..records.notifications import NoticeRecord
from ..records.rows import AuditRow, JobRecord, NotebookRecord, QuotaRevision, RankRecord, SampleRow
from .tables import (
    ALLOCATIONS,
    AUDIT,
    BATCHES,
    BUNDLES,
    DEVICES,
    HEAD,
    HOURS,
    IDEMPOTENCY,
    JOBS,
    LABELS,
    LATEST,
    NODES,
    NOTEBOOKS,
    NOTICES,
    QUOTA,
    RANKS,
    RESERVATIONS,
    SAMPLES,
    SECRETS,
    USERS,
    AllocationRow,
    BatchRow,
    BundleRow,
    DeviceRow,
    Head,
    HourRow,
    IdempotencyRow,
    NodeRow,
    RankRow,
    ReservationRow,
    SecretsRow,
    UserRow,
    private_to,
)

T = TypeVar("T")
R = TypeVar("R")
Columns = dict[str, Any]


class _Json(Generic[T]):
    """One type as JSON text."""

    def __init__(self, type_: Any) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(type_)

    def text(self, value: T) -> str:
        return self._adapter.dump_json(value).decode()

    def value(self, text: str) -> T:
        return self._adapter.validate_json(text)


SPEC: _Json[JobSpec] = _Json(JobSpec)
REASON: _Json[Reason] = _Json(Reason)
STAGE: _Json[Mapping[str, object]] = _Json(Mapping[str, object])
POLICY: _Json[Policy] = _Json(Policy)
PLACEMENTS: _Json[tuple[Placement, ...]] = _Json(tuple[Placement, ...])
INSTANTS: _Json[tuple[int, ...]] = _Json(tuple[int, ...])
NUMBERS: _Json[Mapping[str, float]] = _Json(dict[str, float])
TEXTS: _Json[Mapping[str, str]] = _Json(dict[str, str])
PROCESSES: _Json[Mapping[str, tuple[ProcessUse, ...]]] = _Json(dict[str, tuple[ProcessUse, ...]])
COUNTS: _Json[Mapping[str, int | None]] = _Json(dict[str, int | None])
DOCUMENT: _Json[Mapping[str, object]] = _Json(dict[str, Any])


def _reason_text(reason: Reason | None) -> str | None:
    return None if reason is None else REASON.text(reason)


def _reason(text: str | None) -> Reason | None:
    return None if text is None else REASON.value(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding(Generic[R]):
    """How one table's rows become columns, by name, and come back.

    ``changing``: the columns, the key's among them, that a row which is there already may still change; None: all.
    """

    columns: Callable[[R], Columns]
    row: Callable[[Columns], R]
    changing: Callable[[R], Columns] | None = None


def _flat(row_type: Callable[..., R], *names: str) -> Coding[R]:
    """A row whose fields are its columns."""

    def columns(row: R) -> Columns:
        return {name: getattr(row, name) for name in names}

    return Coding(columns=columns, row=lambda c: row_type(**{name: c[name] for name in names}))


# --- jobs -----------------------------------------------------------------------------------------------------------
JOB_CHANGING = (
    "id", "attempt", "started_at", "checkpoint_at", "pausing_since_at", "paused_for", "borrower", "held_ranks",
)  # fmt: skip
JOB_AS_IT_IS = (
    *JOB_CHANGING, "project", "user", "pool", "gpu_milli", "submitted_at", "ranks", "priority", "preemptible",
    "time_limit_s", "min_ranks", "cpu_milli", "memory_mib",
)  # fmt: skip
RECORD_CHANGING = ("retries_left", "ended_at", "exit_status", "done", "total", "pauses", "changed")
RECORD_AS_IT_IS = (*RECORD_CHANGING, "account", "clone_of", "cluster", "hub")
STATES = {state.value: state for state in JobState}
TARGETS = {target.value: target for target in JobTarget}


def _job_columns(row: JobRecord) -> Columns:
    """All of them: what was asked for, which stays, and what changes."""
    job = row.job
    columns: Columns = {name: getattr(job, name) for name in JOB_AS_IT_IS}
    columns |= {name: getattr(row, name) for name in RECORD_AS_IT_IS}
    columns |= {
        "gpu_model": ",".join(job.gpu_models) or None,
        "spec": SPEC.text(row.spec),
        "bundle": row.spec.bundle,
        "private_to": private_to(row),
    }
    return columns | _job_changing(row)


def _job_changing(row: JobRecord) -> Columns:
    job = row.job
    columns: Columns = {name: getattr(job, name) for name in JOB_CHANGING}
    for name in RECORD_CHANGING:
        columns[name] = getattr(row, name)
    columns["state"], columns["target"] = job.state.value, job.target.value
    columns["paused_at"] = INSTANTS.text(job.paused_at) if job.paused_at else "[]"
    columns["reason"] = _reason_text(row.reason)
    columns["metrics"] = NUMBERS.text(row.metrics) if row.metrics else "{}"
    return columns


def _job_row(c: Columns) -> JobRecord:
    job = Job(
        state=STATES[c["state"]],
        target=TARGETS[c["target"]],
        gpu_models=tuple(c["gpu_model"].split(",")) if c["gpu_model"] else (),
        paused_at=() if c["paused_at"] == "[]" else INSTANTS.value(c["paused_at"]),
        **{name: c[name] for name in JOB_AS_IT_IS},
    )
    return JobRecord(
        job=job,
        spec=SPEC.value(c["spec"]),
        reason=_reason(c["reason"]),
        metrics={} if c["metrics"] == "{}" else NUMBERS.value(c["metrics"]),
        **{name: c[name] for name in RECORD_AS_IT_IS},
    )


RANK_AS_IT_IS = (
    "job", "attempt", "rank", "node", "pid", "pid_started", "started_at", "ended_at", "exit_status", "fencing",
)  # fmt: skip
RANK_FLAGS = ("tree_gone", "pause_requested", "completed", "refused")


def _rank_columns(row: RankRow) -> Columns:
    columns: Columns = {name: getattr(row.record, name) for name in RANK_AS_IT_IS}
    return columns | {name: getattr(row, name) for name in RANK_FLAGS}


def _rank_row(c: Columns) -> RankRow:
    record = RankRecord(**{name: c[name] for name in RANK_AS_IT_IS})
    return RankRow(record=record, **{name: c[name] for name in RANK_FLAGS})


# --- notebooks ------------------------------------------------------------------------------------------------------
NOTEBOOK_AS_IT_IS = ("id", "project", "user", "pool", "gpu_milli", "requested_at", "seen_empty", "device", "lent_at")
NOTEBOOK_RECORD_AS_IT_IS = ("server", "booked_at", "ended_at", "changed", "cluster", "hub")


def _notebook_columns(row: NotebookRecord) -> Columns:
    columns: Columns = {name: getattr(row.notebook, name) for name in NOTEBOOK_AS_IT_IS}
    columns |= {name: getattr(row, name) for name in NOTEBOOK_RECORD_AS_IT_IS}
    state, activity = row.notebook.state.value, row.notebook.activity.value
    stage = None if row.stage is None else STAGE.text(row.stage)
    return columns | {"stage": stage, "state": state, "activity": activity, "reason": _reason_text(row.reason)}


def _notebook_row(c: Columns) -> NotebookRecord:
    notebook = Notebook(
        state=NotebookState(c["state"]),
        activity=Activity(c["activity"]),
        **{name: c[name] for name in NOTEBOOK_AS_IT_IS},
    )
    stage = None if c["stage"] is None else STAGE.value(c["stage"])
    as_it_is = {name: c[name] for name in NOTEBOOK_RECORD_AS_IT_IS}
    return NotebookRecord(notebook=notebook, reason=_reason(c["reason"]), stage=stage, **as_it_is)


NOTICE_AS_IT_IS = (
    "id", "notebook", "event", "channel", "at", "until", "state", "attempts", "next_at", "ended_at", "fault",
)  # fmt: skip


def _notice_columns(row: NoticeRecord) -> Columns:
    columns: Columns = {name: getattr(row, name) for name in NOTICE_AS_IT_IS}
    return columns | {"facts": DOCUMENT.text(row.facts)}


def _notice_row(c: Columns) -> NoticeRecord:
    return NoticeRecord(facts=DOCUMENT.value(c["facts"]), **{name: c[name] for name in NOTICE_AS_IT_IS})


# --- nodes, devices and what is held --------------------------------------------------------------------------------
NODE_AS_IT_IS = ("id", "name", "cpu_milli", "memory_mib", "schedulable", "drain_by_at")
DEVICE_AS_IT_IS = (
    "id", "node", "index", "model", "memory_mib", "pool", "uuid", "foreign_milli", "simulated", "trouble",
)  # fmt: skip
DEVICE_ROW_AS_IT_IS = ("changed", "fault", "fault_loaded")
ALLOCATION_AS_IT_IS = ("id", "workload", "rank", "device", "gpu_milli", "memory_mib")
ALLOCATION_ROW_AS_IT_IS = ("device_uuid", "attempt", "allocated_at", "released_at", "changed")


def _node_columns(row: NodeRow) -> Columns:
    columns: Columns = {name: getattr(row.node, name) for name in NODE_AS_IT_IS}
    return columns | {"upkeep": row.node.upkeep.value, "changed": row.changed}


def _node_row(c: Columns) -> NodeRow:
    node = Node(upkeep=Upkeep(c["upkeep"]), **{name: c[name] for name in NODE_AS_IT_IS})
    return NodeRow(node=node, changed=c["changed"])


def _device_columns(row: DeviceRow) -> Columns:
    columns: Columns = {name: getattr(row.device, name) for name in DEVICE_AS_IT_IS}
    columns |= {name: getattr(row, name) for name in DEVICE_ROW_AS_IT_IS}
    return columns | {"health": row.device.health.value}


def _device_row(c: Columns) -> DeviceRow:
    device = Device(health=Health(c["health"]), **{name: c[name] for name in DEVICE_AS_IT_IS})
    return DeviceRow(device=device, **{name: c[name] for name in DEVICE_ROW_AS_IT_IS})


def _allocation_columns(row: AllocationRow) -> Columns:
    columns: Columns = {name: getattr(row.allocation, name) for name in ALLOCATION_AS_IT_IS}
    return columns | {name: getattr(row, name) for name in ALLOCATION_ROW_AS_IT_IS}


def _allocation_changing(row: AllocationRow) -> Columns:
    return {
        "id": row.allocation.id,
        "device_uuid": row.device_uuid,
        "released_at": row.released_at,
        "changed": row.changed,
    }


def _allocation_row(c: Columns) -> AllocationRow:
    allocation = Allocation(**{name: c[name] for name in ALLOCATION_AS_IT_IS})
    return AllocationRow(allocation=allocation, **{name: c[name] for name in ALLOCATION_ROW_AS_IT_IS})


def _reservation_columns(row: ReservationRow) -> Columns:
    return {
        "workload": row.reservation.workload,
        "placements": PLACEMENTS.text(row.reservation.placements),
        "reserved_at": row.reservation.reserved_at,
        "dropped_at": row.dropped_at,
        "changed": row.changed,
    }


def _reservation_row(c: Columns) -> ReservationRow:
    placements = PLACEMENTS.value(c["placements"])
    reservation = Reservation(workload=c["workload"], placements=placements, reserved_at=c["reserved_at"])
    return ReservationRow(reservation=reservation, dropped_at=c["dropped_at"], changed=c["changed"])


# --- the rest -------------------------------------------------------------------------------------------------------
def _quota_columns(row: QuotaRevision) -> Columns:
    columns: Columns = {name: getattr(row, name) for name in ("revision", "text", "actor", "at", "comment")}
    return columns | {"document": DOCUMENT.text(row.document), "policy": POLICY.text(row.policy)}


def _quota_row(c: Columns) -> QuotaRevision:
    values = {name: c[name] for name in ("revision", "text", "actor", "at", "comment")}
    return QuotaRevision(document=DOCUMENT.value(c["document"]), policy=POLICY.value(c["policy"]), **values)


SAMPLE_AS_IT_IS = (
    "device", "at", "node", "utilisation_percent", "memory_used_mib", "coverage_permille", "simulated", "foreign_mib",
    "temperature_c", "power_w",
)  # fmt: skip


def _sample_columns(row: SampleRow) -> Columns:
    columns: Columns = {name: getattr(row, name) for name in SAMPLE_AS_IT_IS}
    memory = COUNTS.text(row.workload_memory_mib)
    texts = {"workloads": COUNTS.text(row.workloads), "workload_memory_mib": memory, "why": TEXTS.text(row.why)}
    return columns | texts


def _latest_columns(row: SampleRow) -> Columns:
    return _sample_columns(row) | {"processes": PROCESSES.text(row.processes) if row.processes else "{}"}


def _latest_row(c: Columns) -> SampleRow:
    processes = {} if c["processes"] == "{}" else PROCESSES.value(c["processes"])
    return replace(_sample_row(c), processes=processes)


def _sample_row(c: Columns) -> SampleRow:
    return SampleRow(
        workloads=COUNTS.value(c["workloads"]),
        workload_memory_mib=COUNTS.value(c["workload_memory_mib"]),
        why=TEXTS.value(c["why"]),
        **{name: c[name] for name in SAMPLE_AS_IT_IS},
    )


HEAD_AS_IT_IS = (
    "version", "quota_revision", "quota_changed", "audit_seq", "audit_hash", "holder", "fencing", "expires_at",
)  # fmt: skip


def _head_columns(row: Head) -> Columns:
    return {name: getattr(row, name) for name in HEAD_AS_IT_IS} | {"id": 1}


def _head_row(c: Columns) -> Head:
    return Head(**{name: c[name] for name in HEAD_AS_IT_IS})


def _secrets_columns(row: SecretsRow) -> Columns:
    return {"job": row.job, "values": TEXTS.text(row.values)}


def _secrets_row(c: Columns) -> SecretsRow:
    return SecretsRow(job=c["job"], values=TEXTS.value(c["values"]))


CODINGS: Mapping[str, Coding[Any]] = {
    HEAD.name: Coding(columns=_head_columns, row=_head_row),
    USERS.name: _flat(UserRow, "id", "name", "seen_at"),
    NODES.name: Coding(columns=_node_columns, row=_node_row),
    DEVICES.name: Coding(columns=_device_columns, row=_device_row),
    JOBS.name: Coding(columns=_job_columns, row=_job_row, changing=_job_changing),
    NOTEBOOKS.name: Coding(columns=_notebook_columns, row=_notebook_row),
    NOTICES.name: Coding(columns=_notice_columns, row=_notice_row),
    ALLOCATIONS.name: Coding(columns=_allocation_columns, row=_allocation_row, changing=_allocation_changing),
    RESERVATIONS.name: Coding(columns=_reservation_columns, row=_reservation_row),
    RANKS.name: Coding(columns=_rank_columns, row=_rank_row),
    SECRETS.name: Coding(columns=_secrets_columns, row=_secrets_row),
    IDEMPOTENCY.name: _flat(IdempotencyRow, "user", "key", "job"),
    BUNDLES.name: _flat(BundleRow, "digest", "user", "size_bytes", "kept_at"),
    QUOTA.name: Coding(columns=_quota_columns, row=_quota_row),
    AUDIT.name: _flat(AuditRow, "seq", "at", "actor", "kind", "subject", "project", "payload", "previous", "hash"),
    SAMPLES.name: Coding(columns=_sample_columns, row=_sample_row),
    LATEST.name: Coding(columns=_latest_columns, row=_latest_row),
    LABELS.name: _flat(ShareLabel, "allocation", "memory", "compute", "why", "read_at"),
    BATCHES.name: _flat(BatchRow, "node", "sequence", "at"),
    HOURS.name: _flat(
        HourRow,
        "hour_at",
        "workload",
        "device",
        "user",
        "project",
        "pool",
        "allocated_milli_s",
        "allocated_s",
        "used_milli_s",
        "seen_s",
    ),
}
