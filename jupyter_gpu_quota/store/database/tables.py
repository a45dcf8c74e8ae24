"""The only declaration of every table: schema, conversions and indexes are derived from it.

A backend (:mod:`..memory`, :mod:`.sql`) stores rows and does not interpret them. The functions of ``store.writes``
change them through a :class:`.unit_of_work.UnitOfWork`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from ...core.frozen import fast_frozen
from ...core.model import Allocation, Device, Node, Reservation
from ...core.samples import DeviceSample
from ..records.activity import Note, NotebookReport
from ..records.calls import Page
from ..records.commands import AllocationLabel
from ..records.notifications import NotificationRecord
from ..records.rows import AuditRow, JobRecord, JobSeries, NotebookRecord, QuotaRevision, RankRecord, UsageHour
from .codecs import NAMES, REASON, Codec, Coding, ColumnSpec, coding_of, columns_of, tuple_of

R = TypeVar("R")
Key = tuple[str | int, ...]
Value = str | int | None


# --- rows that only the store uses ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The row that every writer reads first: version, newest revision, end of the audit chain, lease."""

    version: int = 0
    quota_revision: int = 0
    quota_changed: int = 0
    audit_seq: int = 0
    audit_hash: str = ""
    holder: str | None = None
    fencing: int = 0
    expires_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """A person; ``name`` is None after it was erased. No other table has names of people."""

    id: str
    name: str | None
    seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """``gone_at``: since when no reading reports it. A removed node stays as a row; a reading brings it back."""

    node: Node
    changed: int
    gone_at: int | None = None
    removed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """``fault`` is a fatal error under the driver ``fault_loaded``; another driver or an admin clears it.

    ``gone_at``: since when no reading reports it. A removed device stays as a row, which past allocations refer to; a
    reading brings it back.
    """

    device: Device
    changed: int
    fault: str | None = None
    fault_loaded: str | None = None
    gone_at: int | None = None
    removed_at: int | None = None


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A part of a device, allocated until ``released_at``; ``device_uuid`` is None until it was read back."""

    allocation: Allocation
    device_uuid: str | None
    attempt: int
    allocated_at: int
    released_at: int | None
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    """A workload's newest reservation; a dropped one stays as a tombstone until retention removes it."""

    reservation: Reservation
    dropped_at: int | None
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsRow:
    """The secret variables of a job that has not ended."""

    job: str
    values: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKeyRow:
    """A random key that all processes of the service share; ``value`` has 64 hexadecimal digits."""

    name: str
    value: str = field(repr=False)
    made_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRow:
    """The job of a user's key. ``sent``: as in the request; empty if an older release stored it."""

    user: str
    key: str
    job: str
    sent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    digest: str
    user: str
    size_bytes: int
    kept_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One stored batch of samples; each sequence number of a node is stored once."""

    node: str
    sequence: int
    at: int


# --- tables ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Generic[R]):
    """One table: the only declaration of a record's columns.

    The columns are those of the fields of ``record`` and of the records in its ``nested`` fields. ``codecs`` has the
    fields that are not stored by their type; ``omitted`` fields are not stored; ``computed`` columns are
    written for queries (type, value). ``changing``: the columns that may change after the row was inserted; None: all.
    ``in_cluster``: it has the columns cluster and hub, whether the record has such fields or not.

    ``indexes`` and ``live_indexes`` are the columns of :meth:`Scope.find`, which finds live rows only by the latter;
    ``ended`` names the column that is NULL while a row is live; ``order`` is the order of listings, newest first.
    ``sql_indexes``, ``checks``, ``unique`` and ``parents`` (column: "table.column") are those of the database.
    """

    name: str
    record: type[R]
    keys: tuple[str, ...]
    nested: tuple[str, ...] = ()
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    computed: Mapping[str, tuple[type, bool, Callable[[R], Value]]] = field(default_factory=dict)
    changing: tuple[str, ...] | None = None
    in_cluster: bool = True
    indexes: tuple[str, ...] = ()
    live_indexes: tuple[str, ...] = ()
    ended: str | None = None
    order: tuple[str, ...] = ()
    sql_indexes: tuple[tuple[str, ...], ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """All columns that this code writes, from the types of the record's fields."""
        stored = columns_of(self.record, self.nested, self.codecs)
        return (
            *(column for column in stored if column.name not in self.omitted),
            *(
                ColumnSpec(name=name, type=kind, null=null, computed=compute)
                for name, (kind, null, compute) in self.computed.items()
            ),
        )

    @cached_property
    def coding(self) -> Coding[R]:
        """How a record becomes its columns and comes back."""
        names = [column.name for column in self.columns]
        changing = names if self.changing is None else (*self.keys, *self.changing)
        return coding_of(self.record, self.nested, self.columns, changing)

    @cached_property
    def fields(self) -> Mapping[str, Callable[[R], Any]]:
        """The value of each column that queries compare, from a record, by the column's name."""
        return {column.name: column.value_of for column in self.columns}

    @cached_property
    def key(self) -> Callable[[R], Key]:
        """The key of a record."""
        return tuple_of([column for name in self.keys for column in self.columns if column.name == name])


MAX_SEARCHED = 4_000
"""Characters of a job's name and command that a search reads."""


def searched(row: JobRecord) -> str:
    """The text of a job that a search reads, in lower case."""
    return "\n".join([row.spec.name, *row.spec.command])[:MAX_SEARCHED].lower()


def private_to(row: JobRecord) -> str:
    """The owner of a private job, "" for one that its whole project sees."""
    return row.job.user if row.spec.private else ""


HEAD: Table[Head] = Table(
    name="head", record=Head, keys=("id",), computed={"id": (int, False, lambda row: 1)}, in_cluster=False,
    checks={"one_row": "id = 1"},
)  # fmt: skip
HEAD_KEY: Key = (1,)

USERS: Table[UserRow] = Table(name="users", record=UserRow, keys=("id",), indexes=("name",), unique=("name",))
NODES: Table[NodeRow] = Table(name="nodes", record=NodeRow, nested=("node",), keys=("id",), sql_indexes=(("changed",),))
DEVICES: Table[DeviceRow] = Table(
    name="devices", record=DeviceRow, nested=("device",), keys=("id",), parents={"node": "nodes.id"},
    sql_indexes=(("changed",),),
)  # fmt: skip
JOBS: Table[JobRecord] = Table(
    name="jobs",
    record=JobRecord,
    nested=("job",),
    keys=("id",),
    codecs={"gpu_models": NAMES, "reason": REASON},
    computed={
        "bundle": (str, True, lambda row: row.spec.bundle),
        "private_to": (str, False, private_to),
        "searched": (str, False, searched),
    },
    changing=(
        "state", "target", "attempt", "started_at", "checkpoint_at", "pausing_since_at", "paused_for", "paused_at",
        "borrower", "held_ranks", "reason", "retries_left", "ended_at", "exit_status", "done", "total", "metrics",
        "pauses", "first_started_at", "changed",
    ),
    ended="ended_at",
    order=("submitted_at", "id"),
    sql_indexes=(("changed",), ("ended_at",), ("submitted_at", "id"), ("project", "submitted_at"), ("bundle",)),
    checks={"asks_for_something": "gpu_milli > 0 AND ranks > 0"},
)  # fmt: skip
NOTEBOOKS: Table[NotebookRecord] = Table(
    name="notebooks",
    record=NotebookRecord,
    nested=("notebook",),
    keys=("id",),
    codecs={"reason": REASON},
    live_indexes=("user",),
    ended="ended_at",
    order=("requested_at", "id"),
    sql_indexes=(("changed",), ("user",), ("ended_at",)),
    checks={"asks_for_something": "gpu_milli > 0"},
)
NOTIFICATIONS: Table[NotificationRecord] = Table(
    name="notifications", record=NotificationRecord, keys=("id",), ended="ended_at", order=("at", "id"),
    sql_indexes=(("channel", "ended_at"), ("ended_at",)),
)  # fmt: skip
ALLOCATIONS: Table[AllocationRow] = Table(
    name="allocations",
    record=AllocationRow,
    nested=("allocation",),
    keys=("id",),
    changing=("device_uuid", "released_at", "changed"),
    live_indexes=("device", "workload"),
    ended="released_at",
    sql_indexes=(("changed",), ("device", "released_at"), ("workload", "released_at"), ("released_at",)),
    checks={"within_a_device": "gpu_milli BETWEEN 1 AND 1000 AND memory_mib >= 0"},
    parents={"device": "devices.id"},
)
RESERVATIONS: Table[ReservationRow] = Table(
    name="reservations", record=ReservationRow, nested=("reservation",), keys=("workload",), ended="dropped_at",
    sql_indexes=(("changed",),),
)  # fmt: skip
RANKS: Table[RankRecord] = Table(
    name="ranks", record=RankRecord, keys=("job", "attempt", "rank"), indexes=("job",), parents={"job": "jobs.id"}
)
SECRETS: Table[SecretsRow] = Table(
    name="secrets", record=SecretsRow, keys=("job",), in_cluster=False, parents={"job": "jobs.id"}
)
SERVICE_KEYS: Table[ServiceKeyRow] = Table(name="service_keys", record=ServiceKeyRow, keys=("name",), in_cluster=False)
IDEMPOTENCY: Table[IdempotencyRow] = Table(
    name="idempotency", record=IdempotencyRow, keys=("user", "key"), in_cluster=False, indexes=("job",),
    sql_indexes=(("job",),), parents={"job": "jobs.id"},
)  # fmt: skip
BUNDLES: Table[BundleRow] = Table(name="bundles", record=BundleRow, keys=("digest", "user"), indexes=("user",))
QUOTA: Table[QuotaRevision] = Table(
    name="quota_revisions", record=QuotaRevision, keys=("revision",), in_cluster=False, order=("revision",)
)
AUDIT: Table[AuditRow] = Table(
    name="audit", record=AuditRow, keys=("seq",), in_cluster=False, order=("seq",),
    sql_indexes=(("at",), ("project", "seq")),
)  # fmt: skip
SAMPLES: Table[DeviceSample] = Table(
    name="samples",
    record=DeviceSample,
    keys=("device", "at"),
    omitted=("processes",),
    order=("at",),
    sql_indexes=(("at",),),
)
LATEST: Table[DeviceSample] = Table(name="latest_samples", record=DeviceSample, keys=("device",))
BATCHES: Table[BatchRow] = Table(
    name="sample_batches", record=BatchRow, keys=("node", "sequence"), sql_indexes=(("at",),)
)
HOURS: Table[UsageHour] = Table(
    name="usage_hours", record=UsageHour, keys=("hour_at", "workload", "device"), indexes=("hour_at",)
)
SERIES: Table[JobSeries] = Table(
    name="job_series", record=JobSeries, keys=("job",), changing=("width_ms", "series"), parents={"job": "jobs.id"}
)
LABELS: Table[AllocationLabel] = Table(name="enforcement_labels", record=AllocationLabel, keys=("allocation",))
REPORTS: Table[NotebookReport] = Table(
    name="notebook_reports", record=NotebookReport, keys=("notebook",), order=("at",), sql_indexes=(("at",),)
)
NOTES: Table[Note] = Table(
    name="controller_notes", record=Note, keys=("kind", "subject", "slot"), indexes=("subject",), order=("at",),
    sql_indexes=(("subject",), ("kind", "at")),
)  # fmt: skip

TABLES: tuple[Table[Any], ...] = (
    HEAD, USERS, NODES, DEVICES, JOBS, NOTEBOOKS, NOTIFICATIONS, ALLOCATIONS, RESERVATIONS, RANKS, SECRETS, IDEMPOTENCY,
    BUNDLES, QUOTA, AUDIT, SAMPLES, LATEST, BATCHES, HOURS, SERIES, LABELS, REPORTS, NOTES, SERVICE_KEYS,
)  # fmt: skip
"""In the order of their foreign keys: a row's parent is in a table before it."""


# --- backends -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrites:
    """The writes of one transaction to one table: new rows, changed rows, keys of deleted rows."""

    table: Table[Any]
    inserts: list[Any]
    updates: list[Any]
    deletes: list[Key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Conditions that must all hold: a field is one of some values; a field is at least, or below, an instant.

    Each of ``either`` is one condition: one of the fields it names must be one of its values. ``text`` is one, too: one
    of its fields contains the text, or begins with it where the second value is True.
    """

    among: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    either: Sequence[Mapping[str, Sequence[Value]]] = ()
    at_least: Mapping[str, int] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    live: bool = False
    text: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


class Scope(Protocol):
    """One transaction on the rows: a consistent view until it is left."""

    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]: ...

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        """Rows whose indexed column has one of these values; only live rows for one of the live indexes."""

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        """Rows whose ``changed`` is above ``since``; ``live`` leaves out ended ones."""

    def listing(self, table: Table[R], where: Where, page: Page) -> tuple[list[R], int]:
        """One page, newest first, and how many there are in all."""

    def ended(self, table: Table[R], before: int, limit: int, after: tuple[int, str] | None = None) -> list[R]:
        """At most ``limit`` rows that ended before an instant and after a position, those that ended first.

        Their order, and that of positions, is the end in ms, then the key.
        """

    def ended_after(
        self, table: Table[R], after: tuple[int, str], column: str, values: Sequence[Value], limit: int
    ) -> list[R]:
        """At most ``limit`` rows that ended after a position, in its order, with ``column`` in ``values``."""

    def distinct(self, table: Table[R], column: str) -> set[Value]: ...

    def pick(self, table: Table[R], columns: Sequence[str], where: Where) -> list[tuple[Any, ...]]:
        """Some columns of all rows for which conditions hold, in any order: cheaper than whole rows."""

    def scan(self, table: Table[R]) -> Iterator[R]:
        """Every row in the order of its key, without loading all at once."""


class WriteScope(Scope, Protocol):
    """A transaction that may write: when the scope ends, all writes are stored, or none."""

    def apply(self, writes: Sequence[TableWrites]) -> None: ...

    def delete_below(self, table: Table[R], column: str, value: int, limit: int) -> int:
        """Delete at most ``limit`` rows whose column is below ``value``; returns their number."""


class Rows(Protocol):
    """The storage of rows: a database or memory."""

    def reading(self) -> AbstractContextManager[Scope]: ...

    def writing(self, *, repeatable: bool = False) -> AbstractContextManager[WriteScope]:
        """``repeatable``: lost writes would be made again, so the transaction need not wait for this machine's disk.

        A database server may lose them while this process continues, so there each transaction waits.
        """

    def settle(self) -> bool:
        """Remove deleted rows from the files, without waiting; False: try again later."""

    def close(self) -> None: ...
