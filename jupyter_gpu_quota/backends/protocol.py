"""What a backend does: it runs jobs, reads devices and logs, and enforces shares, on the machines that it knows.

The types name jobs, attempts, ranks, notebooks and devices. Process ids, accounts, paths and addresses of a machine
stay inside the backend. Every call is idempotent. An order returns nothing and may be lost on its way: its effect is
observed on a later tick, and until then the order is repeated. Each order carries the fencing number of the leader that
gives it; the backend refuses numbers below the newest that it has seen, and keeps that number over restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol

from ..core.enforcement import DeviceShare, EnforcementLabel, EnforcementOffer
from ..core.facts import DeviceFact, RankFact
from ..core.frozen import fast_frozen
from ..core.model import Allocation, Device, Node, Placement
from ..core.samples import DeviceSample

Inventory = tuple[tuple[Node, ...], tuple[Device, ...]]
"""Nodes and their devices, without pools."""

DeviceUsers = Mapping[Device, Sequence[Allocation]]
"""Each device with the allocations on it; an unused device has none.

A notebook that lent its slice has an allocation of 0 milli-GPU where the slice comes back to, so that its own processes
are looked for there.
"""


# --- jobs -------------------------------------------------------------------------------------------------------------
@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Start one attempt of a job on devices that it owns.

    ``devices`` are the records that the placements name. ``run_as`` is the user that it runs as, by name; None: the
    service's own. ``directory`` is where it begins, below its code; with ``live`` it is the submitter's own folder.
    ``python`` is the interpreter of its environment, if it named one. ``project`` is the job's project.
    """

    job: str
    attempt: int
    fencing: int
    command: tuple[str, ...]
    placements: tuple[Placement, ...]
    devices: tuple[Device, ...]
    run_as: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    bundle: str | None = None
    directory: str = "."
    live: bool = False
    ranks: int = 1
    outputs_limit_mib: int | None = None
    python: str | None = None
    project: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOrder:
    """End an attempt: tell it that it is paused, send SIGTERM, and kill what is left of it after ``grace_s``."""

    job: str
    attempt: int
    fencing: int
    grace_s: int
    reason: str


class JobBackend(Protocol):
    """Runs jobs on the nodes of one cluster."""

    def inventory(self) -> Inventory | None:
        """The nodes and devices that are there now; None: they cannot be read now."""

    def start(self, order: StartOrder) -> None:
        """Start each rank that was never started. A rank that began, or ended, is left as it is."""

    def leave(self, order: LeaveOrder) -> None:
        """End an attempt; one that has not begun never begins. A repeated order does not extend the grace."""

    def observe(self) -> Sequence[RankFact]:
        """At least the ranks of which something is new, and all that ended until they are settled.

        After ``fence`` it begins anew with all that is not settled. A fact never goes back behind an earlier one.
        """

    def settled(self, job: str, attempt: int) -> None:
        """The end of this attempt is stored: ``observe`` may leave it out from now on."""

    def forget(self, job: str) -> None:
        """Remove everything kept for a job. A job that still runs is not forgotten."""

    def fence(self, fencing: int) -> None:
        """Refuse orders of older leaders from now on; returns when that is durable. A lower number changes nothing."""


# --- samples ----------------------------------------------------------------------------------------------------------
class SampleBackend(Protocol):
    """Reads how devices are used, and whether they work."""

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        """One sample per device; None: they are being read, ask again at the next tick. It does not wait."""

    def device_facts(self) -> Sequence[DeviceFact]:
        """Health and foreign use, where the newest samples show something that is not stored yet."""


# --- enforcement ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The best enforcement for a fraction of each device that was asked about, in that order, as of ``read_at``."""

    offers: tuple[EnforcementOffer, ...]
    read_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """Kill the processes of a notebook's server, which did not end when the hub stopped it."""

    notebook: str
    fencing: int
    reason: str


SIMULATED = "the device is simulated: there is nothing to hold"
"""Why a share of a simulated device has no enforcement."""


class EnforcementBackend(Protocol):
    """Tells how shares can be enforced and are enforced. Its calls may wait some seconds for a driver."""

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """What a share of so many milli-GPU can have on each device; ``project`` None: a notebook's share."""

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A label for each share, by allocation, from what can be read now; never from what was configured.

        ``samples`` are the newest of the shares' devices, by allocation; one may be missing. ``policed``: work that
        exceeds its share is stopped. What cannot be read makes a label ``unsure``.
        """

    def stop_notebook(self, order: StopOrder) -> None:
        """Carry out a stop order; one that is not there is fine."""

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Release what is left of notebooks that are not among these, on devices given by UUID."""


# --- logs and outputs -------------------------------------------------------------------------------------------------
class LogPart(NamedTuple):
    """A part of a log. ``offset`` is where ``data`` begins, ``next_offset`` where to read on.

    ``dropped_bytes`` stood between the offset that was asked for and ``offset``, and are gone.
    """

    offset: int
    data: bytes
    next_offset: int
    dropped_bytes: int = 0


class Output(NamedTuple):
    """One file; ``path`` is relative to the outputs folder, with / between its parts."""

    path: str
    size_bytes: int
    modified_at: int


class OutputRefused(Exception):
    """This output cannot be given; the message says why."""


MOST_OUTPUTS = 10_000
"""So many files of a job are listed at most."""


class OutputReader(Protocol):
    """Reads what jobs wrote. It changes nothing, and any process may have one of its own."""

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset`` (since the attempt began); a negative offset counts from the end.

        Returns an empty part at the end of what there is, and for a rank without a log.
        """

    def outputs(self, job: str, most: int = MOST_OUTPUTS) -> Sequence[Output]:
        """The files of a job's outputs folder, by path, ``most`` at most."""

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused where it cannot be given."""


# --- all of it --------------------------------------------------------------------------------------------------------
class Backend(Protocol):
    """All parts of one backend. Close it when done; what runs, runs on."""

    @property
    def jobs(self) -> JobBackend: ...
    @property
    def samples(self) -> SampleBackend: ...
    @property
    def enforcement(self) -> EnforcementBackend: ...
    @property
    def outputs(self) -> OutputReader: ...
    def close(self) -> None: ...
