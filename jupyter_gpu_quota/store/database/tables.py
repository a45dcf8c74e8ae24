"""The tables, as typed rows and the few facts about them that a backend must know.

A backend (:mod:`.memory`, :mod:`.sql`) keeps rows and knows nothing of their meaning; what a request, a plan or a
fact changes is written once, in :mod:`.requests`, :mod:`.commit` and :mod:`.observe`, over :class:`.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ...core.frozen import quickly_made
from ...core.model import Allocation, Device, Node, Reservation
from ..records.commands import ShareLabel
from ..records.notifications import NoticeRecord
from ..records.protocol import Page
from ..records.rows import AuditRow, JobRecord, NotebookRecord, QuotaRevision, RankRecord, SampleRow

R = TypeVar("R")
Key = tuple[str | int, ...]
Value = str | int | None


# --- rows that the protocol's records do not already say ------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The one row every writer reads first: version, newest revision, end of the audit chain, the lease."""

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
    """A person; ``name`` is None once it was erased. No other table holds a name."""

    id: str
    name: str | None
    seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    node: Node
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """``fault`` ended the device under the driver that was loaded then; another driver, or an admin, clears it."""

    device: Device
    changed: int
    fault: str | None = None
    fault_loaded: str | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A device slice that is owned until ``released_at``; ``device_uuid`` is None until it was read back."""

    allocation: Allocation
    device_uuid: str | None
    attempt: int
    allocated_at: int
    released_at: int | None
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    """A workload's newest reservation; dropped ones stay as tombstones until retention takes them."""

    reservation: Reservation
    dropped_at: int | None
    changed: int


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank of one attempt, with what judging its end needs."""

    record: RankRecord
    tree_gone: bool = False
    pause_requested: bool = False
    completed: bool = False
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsRow:
    """The secret variables of a job that has not ended."""

    job: str
    values: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRow:
    user: str
    key: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    digest: str
    user: str
    size_bytes: int
    kept_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One ingested batch of samples: each node's sequence number counts once."""

    node: str
    sequence: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRow:
    """What one workload had and used of one device within one hour, which begins at ``hour_at``.

    ``used_milli_s`` is milli-GPU times seconds, by readings that speak for ``seen_s``. ``allocated_milli_s``, and the
    seconds for which it had any, are those of allocations that are no longer kept; those that are, say it themselves.
    """

    hour_at: int
    workload: str
    device: str
    user: str
    project: str
    pool: str
    allocated_milli_s: int = 0
    allocated_s: int = 0
    used_milli_s: int = 0
    seen_s: int = 0


# --- tables ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table(Generic[R]):
    """One table. ``fields`` are the columns a backend may be asked to compare, by name.

    ``ended`` names the field that is None while the row is live; ``live_indexes`` find live rows only.
    ``order`` is the listing order, newest first.
    """

    name: str
    keys: tuple[str, ...]
    key: Callable[[R], Key]
    fields: Mapping[str, Callable[[R], Value]] = field(default_factory=dict)
    indexes: tuple[str, ...] = ()
    live_indexes: tuple[str, ...] = ()
    ended: str | None = None
    order: tuple[str, ...] = ()


def private_to(row: JobRecord) -> str:
    """The owner of a private job, "" for one that its whole project sees."""
    return row.job.user if row.spec.private else ""


HEAD: Table[Head] = Table(name="head", keys=("id",), key=lambda row: (1,))
HEAD_KEY: Key = (1,)

USERS: Table[UserRow] = Table(
    name="users", keys=("id",), key=lambda row: (row.id,), fields={"name": lambda row: row.name}, indexes=("name",)
)
NODES: Table[NodeRow] = Table(
    name="nodes", keys=("id",), key=lambda row: (row.node.id,), fields={"changed": lambda row: row.changed}
)
DEVICES: Table[DeviceRow] = Table(
    name="devices", keys=("id",), key=lambda row: (row.device.id,), fields={"changed": lambda row: row.changed}
)
JOBS: Table[JobRecord] = Table(
    name="jobs",
    keys=("id",),
    key=lambda row: (row.job.id,),
    fields={
        "id": lambda row: row.job.id,
        "project": lambda row: row.job.project,
        "pool": lambda row: row.job.pool,
        "user": lambda row: row.job.user,
        "state": lambda row: row.job.state.value,
        "submitted_at": lambda row: row.job.submitted_at,
        "bundle": lambda row: row.spec.bundle,
        "private_to": private_to,
        "ended_at": lambda row: row.ended_at,
        "changed": lambda row: row.changed,
    },
    ended="ended_at",
    order=("submitted_at", "id"),
)
NOTEBOOKS: Table[NotebookRecord] = Table(
    name="notebooks",
    keys=("id",),
    key=lambda row: (row.notebook.id,),
    fields={
        "id": lambda row: row.notebook.id,
        "user": lambda row: row.notebook.user,
        "project": lambda row: row.notebook.project,
        "pool": lambda row: row.notebook.pool,
        "state": lambda row: row.notebook.state.value,
        "requested_at": lambda row: row.notebook.requested_at,
        "ended_at": lambda row: row.ended_at,
        "changed": lambda row: row.changed,
    },
    live_indexes=("user",),
    ended="ended_at",
    order=("requested_at", "id"),
)
NOTICES: Table[NoticeRecord] = Table(
    name="notices",
    keys=("id",),
    key=lambda row: (row.id,),
    fields={
        "id": lambda row: row.id,
        "channel": lambda row: row.channel,
        "at": lambda row: row.at,
        "ended_at": lambda row: row.ended_at,
    },
    ended="ended_at",
    order=("at", "id"),
)
ALLOCATIONS: Table[AllocationRow] = Table(
    name="allocations",
    keys=("id",),
    key=lambda row: (row.allocation.id,),
    fields={
        "id": lambda row: row.allocation.id,
        "workload": lambda row: row.allocation.workload,
        "device": lambda row: row.allocation.device,
        "gpu_milli": lambda row: row.allocation.gpu_milli,
        "allocated_at": lambda row: row.allocated_at,
        "released_at": lambda row: row.released_at,
        "changed": lambda row: row.changed,
    },
    live_indexes=("device", "workload"),
    ended="released_at",
)
RESERVATIONS: Table[ReservationRow] = Table(
    name="reservations",
    keys=("workload",),
    key=lambda row: (row.reservation.workload,),
    fields={"dropped_at": lambda row: row.dropped_at, "changed": lambda row: row.changed},
    ended="dropped_at",
)
RANKS: Table[RankRow] = Table(
    name="ranks",
    keys=("job", "attempt", "rank"),
    key=lambda row: (row.record.job, row.record.attempt, row.record.rank),
    fields={"job": lambda row: row.record.job},
    indexes=("job",),
)
SECRETS: Table[SecretsRow] = Table(name="secrets", keys=("job",), key=lambda row: (row.job,))
IDEMPOTENCY: Table[IdempotencyRow] = Table(
    name="idempotency",
    keys=("user", "key"),
    key=lambda row: (row.user, row.key),
    fields={"job": lambda row: row.job},
    indexes=("job",),
)
BUNDLES: Table[BundleRow] = Table(
    name="bundles",
    keys=("digest", "user"),
    key=lambda row: (row.digest, row.user),
    fields={"user": lambda row: row.user},
    indexes=("user",),
)
QUOTA: Table[QuotaRevision] = Table(
    name="quota_revisions",
    keys=("revision",),
    key=lambda row: (row.revision,),
    fields={"revision": lambda row: row.revision},
    order=("revision",),
)
AUDIT: Table[AuditRow] = Table(
    name="audit",
    keys=("seq",),
    key=lambda row: (row.seq,),
    fields={"seq": lambda row: row.seq, "at": lambda row: row.at, "project": lambda row: row.project},
    order=("seq",),
)
SAMPLES: Table[SampleRow] = Table(
    name="samples", keys=("device", "at"), key=lambda row: (row.device, row.at), fields={"at": lambda row: row.at}
)
LATEST: Table[SampleRow] = Table(
    name="latest_samples", keys=("device",), key=lambda row: (row.device,), fields={"at": lambda row: row.at}
)
BATCHES: Table[BatchRow] = Table(
    name="sample_batches",
    keys=("node", "sequence"),
    key=lambda row: (row.node, row.sequence),
    fields={"at": lambda row: row.at},
)
HOURS: Table[HourRow] = Table(
    name="usage_hours",
    keys=("hour_at", "workload", "device"),
    key=lambda row: (row.hour_at, row.workload, row.device),
    indexes=("hour_at",),
    fields={
        "hour_at": lambda row: row.hour_at,
        "workload": lambda row: row.workload,
        "device": lambda row: row.device,
        "user": lambda row: row.user,
        "project": lambda row: row.project,
        "pool": lambda row: row.pool,
        "allocated_milli_s": lambda row: row.allocated_milli_s,
        "allocated_s": lambda row: row.allocated_s,
        "used_milli_s": lambda row: row.used_milli_s,
        "seen_s": lambda row: row.seen_s,
    },
)

LABELS: Table[ShareLabel] = Table(name="share_labels", keys=("allocation",), key=lambda row: (row.allocation,))

TABLES: tuple[Table[Any], ...] = (
    HEAD, USERS, NODES, DEVICES, JOBS, NOTEBOOKS, NOTICES, ALLOCATIONS, RESERVATIONS, RANKS, SECRETS, IDEMPOTENCY,
    BUNDLES, QUOTA, AUDIT, SAMPLES, LATEST, BATCHES, HOURS, LABELS,
)  # fmt: skip
"""In the order of their foreign keys: a row's parent is in a table before it."""


# --- what a backend can do ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrites:
    """What one transaction does to one table: rows that were not there, rows that were, keys to drop."""

    table: Table[Any]
    inserts: list[Any]
    updates: list[Any]
    deletes: list[Key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Conditions that must all hold: a field is one of some values; a field is at least, or below, an instant.

    Each of ``either`` is one condition: one of the fields it names must be one of its values.
    """

    among: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    either: Sequence[Mapping[str, Sequence[Value]]] = ()
    at_least: Mapping[str, int] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    live: bool = False


class Scope(Protocol):
    """One transaction on the rows: a consistent view until it is left."""

    def get_many(self, table: Table[R], keys: Sequence[Key]) -> dict[Key, R]: ...

    def find(self, table: Table[R], column: str, values: Sequence[Value]) -> list[R]:
        """Rows whose indexed column has one of these values; of live rows only where the index says so."""

    def changed(self, table: Table[R], since: int, *, live: bool) -> list[R]:
        """Rows whose ``changed`` is above ``since``; ``live`` leaves out those that are over."""

    def listing(self, table: Table[R], where: Where, page: Page) -> tuple[list[R], int]:
        """One page, newest first, and how many there are in all."""

    def distinct(self, table: Table[R], column: str) -> set[Value]: ...

    def pick(self, table: Table[R], columns: Sequence[str], where: Where) -> list[tuple[Value, ...]]:
        """Some columns of all rows for which conditions hold, in any order: what needs no whole rows is cheap."""

    def scan(self, table: Table[R]) -> Iterator[R]:
        """Every row in the order of its key, without holding them all."""


class WriteScope(Scope, Protocol):
    """A transaction that may write: everything applied is there when the scope is left, or nothing is."""

    def apply(self, writes: Sequence[TableWrites]) -> None: ...

    def delete_below(self, table: Table[R], column: str, value: int, limit: int) -> int:
        """Drop at most ``limit`` rows whose column is below ``value``; returns how many."""


class Rows(Protocol):
    """Where rows are kept."""

    def reading(self) -> AbstractContextManager[Scope]: ...

    def writing(self, *, seen_again: bool = False) -> AbstractContextManager[WriteScope]:
        """``seen_again``: what is written would be seen once more, so it need not be on disk before the next write."""

    def settle(self) -> bool:
        """Let nothing that was deleted stay readable in the files, without waiting; False: try again later."""

    def close(self) -> None: ...
