"""The interface of a backend: it runs jobs, reads devices and logs, and enforces shares, on the machines of a cluster.

The types name jobs, attempts, ranks, notebooks and devices. Process ids, accounts, paths and addresses of a machine
stay inside the backend; a ``handle`` is an opaque name that only the backend interprets. Every call is idempotent. An
order returns nothing and may be lost: its effect is observed on a later tick, and until then it is repeated. Each order
carries the fencing number of its leader; the backend refuses numbers below the newest, and stores that number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, Protocol

from ..core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from ..core.facts import DeviceFact, RankFact
from ..core.frozen import fast_frozen
from ..core.model import Allocation, Device, Node, Placement
from ..core.recovery.differences import AttemptRecord
from ..core.samples import DeviceSample


class Inventory(NamedTuple):
    """Nodes and their devices, without pools. ``unread``: the clusters that are left out, as they cannot be read."""

    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    unread: frozenset[str] = frozenset()


TOO_DEEP_MIB = 1 << 40
"""The size of outputs whose folders are nested too deeply to be measured: it exceeds every limit."""

DeviceUsers = Mapping[Device, Sequence[Allocation]]
"""Each device with the allocations on it; an unused device has none.

A notebook that lent its slice has an allocation of 0 milli-GPU on the device where the slice is returned, so that a
sample also has its processes there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """A folder of data that a job has. ``variable`` has its path in the job.

    ``path`` is the folder on one machine; pods mount ``sub_path`` of the volume of ``claim`` at ``mount``.
    """

    variable: str
    path: str | None
    claim: str | None
    sub_path: str | None
    mount: str
    read_only: bool


# --- jobs -------------------------------------------------------------------------------------------------------------
@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Start one attempt of a job on devices that it owns.

    ``devices`` are the records that the placements name. ``run_as`` is the name of the job's user; None: the service's
    own. ``directory`` is relative to the code; with ``live`` it is the submitter's own folder. ``image`` and ``python``
    are those of its environment, None where that names none. ``cpu_milli`` and ``memory_mib`` are what each rank needs
    of its node, 0 where that is not stated. ``grace_s`` is the time to save if others than the service end it, such as
    a drain of its node; None: the default of its cluster.
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
    project: str = ""
    data: tuple[DataSource, ...] = ()
    image: str | None = None
    python: str | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    grace_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """End an attempt: notify it of the pause, send SIGTERM, and kill its remaining processes after ``grace_s``.

    ``devices`` are the ids of those that it owns, none where that is not known. ``ranks``: those up to this number end,
    also where none of them was ever started.
    """

    job: str
    attempt: int
    fencing: int
    grace_s: int
    reason: str
    devices: tuple[str, ...] = ()
    ranks: int = 1


class JobBackend(Protocol):
    """Runs jobs on the nodes of a cluster, or of several.

    The scheduling loop calls it while it holds a lease of seconds, so no call waits for a node: orders are carried out
    in the background. Only ``fence`` may wait, and raises OSError where the number cannot be stored.
    """

    def inventory(self) -> Inventory | None:
        """The present nodes and devices; None: they cannot be read now."""

    def start(self, order: StartOrder) -> None:
        """Start each rank that was never started. A rank that started or ended is not changed."""

    def has_code(self, job: str, bundle: str) -> bool:
        """Whether the code of a job is there: its bundle, or what an earlier attempt unpacked.

        Code that cannot be read now counts as there. It reads the disk of the state folder.
        """

    def stop(self, order: StopOrder) -> None:
        """End an attempt; one that has not started never starts. A repeated order does not extend the grace."""

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        """When the nodes of an attempt had its stop order, in ms since 1970; None: not all of them have it yet.

        The first of repeated orders counts; after a restart of the backend a later one may.
        """

    def observe(self) -> Sequence[RankFact]:
        """The facts of at least all ranks that changed, and of those that ended until they are settled.

        After ``fence`` it reports every rank that is not settled. A fact is never older than one before it.
        """

    def settled(self, job: str, attempt: int) -> None:
        """The end of this attempt is stored: ``observe`` may leave it out from now on."""

    def forget(self, job: str) -> None:
        """Remove all data of a job. Raises OSError where that cannot be done now, as while it may still run.

        After an error its caller keeps the job and repeats the call: nothing else names its data.
        """

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The sizes of these jobs' outputs in MiB; one that is left out is being measured until a later call.

        None: it could not be measured, and will be measured again. ``TOO_DEEP_MIB``: its folders are nested too deeply.
        """

    def remove_outputs(self, job: str) -> None:
        """Remove the outputs of a job, unless it still runs; its log stays. Raises OSError where it cannot now."""

    def fence(self, fencing: int) -> None:
        """Refuse orders of older leaders from now on; returns when that is durable. A lower number changes nothing."""


class AttemptRecords(Protocol):
    """The attempts that a backend recorded, for a database that may be older. Its calls change nothing."""

    def newest_fence(self) -> int:
        """The highest number that ``fence`` was called with; 0 before the first. A new term of leadership begins."""

    def left_out(self) -> Mapping[str, bool]:
        """The clusters without which this term began, as they could not be read; True: now they can.

        They get no orders, and their attempts are unknown, until another term begins.
        """

    def unsettled(self) -> Collection[tuple[str, int]]:
        """Every (job, attempt) that was ordered and is not settled."""

    def newest(self, jobs: Collection[str]) -> Sequence[AttemptRecord]:
        """The newest attempt of each of these jobs, and of each job with an attempt that is not settled.

        A job without a claimed rank is left out. A record that cannot be read is one of a running attempt.
        """


# --- samples ----------------------------------------------------------------------------------------------------------
class SampleBackend(Protocol):
    """Reads the use and the health of devices."""

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        """One sample per device; None: they are being read until a later tick. It does not wait.

        A stand-in is stored only where the agent of the device's node is silent.
        """

    def device_facts(self) -> Sequence[DeviceFact]:
        """Health and foreign use in the newest samples, where the store does not have them yet."""


# --- enforcement ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The best enforcement for a fraction of each requested device, in their order, as of ``read_at``."""

    offers: tuple[EnforcementOffer, ...]
    read_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotebookOrder:
    """Kill the processes of a notebook's server, which did not end when the hub stopped it."""

    notebook: str
    fencing: int
    reason: str


SIMULATED = "the device is simulated: there is nothing to enforce"
"""Why a share of a simulated device has no enforcement."""


class CapabilityReader(Protocol):
    """Reads how shares can be enforced. It changes nothing, and may wait some seconds for a driver."""

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """The best enforcement of a share of so many milli-GPU on each device; ``project`` None: a notebook's share."""


class EnforcementBackend(CapabilityReader, Protocol):
    """Reads how shares are enforced, and stops notebooks. Its calls may wait some seconds for a driver."""

    @property
    def lends_slices(self) -> bool:
        """Whether a job can have the devices of a slice while the notebook's server runs."""

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A label for each share, by allocation, from present evidence, never from what was configured.

        ``samples`` are the newest of the shares' devices, by allocation; one may be missing. ``policed``: work that
        exceeds its share is stopped. Evidence that cannot be read makes a label ``unsure``.
        """

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        """Kill the notebook's processes, if they exist."""

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Release what is left of notebooks that are not among these, such as limits on devices, given by UUID.

        ``notebooks`` may be older than the newest slice: what belongs to a slice that is just being used must stay.
        """


# --- logs and outputs -------------------------------------------------------------------------------------------------
class LogPart(NamedTuple):
    """A part of a log: ``data`` from ``offset`` on; ``next_offset`` is where to read on.

    ``dropped_bytes`` is the number of bytes between the requested offset and ``offset``, which were dropped. An
    ``offset`` below the requested one: the log was begun anew since, and what came after the requested offset is lost.
    """

    offset: int
    data: bytes
    next_offset: int
    dropped_bytes: int = 0


class LogUnavailable(Exception):
    """The log of a running rank cannot be read now; the message says why."""


class Output(NamedTuple):
    """One file; ``path`` is relative to the outputs folder, with / between its parts."""

    path: str
    size_bytes: int
    modified_at: int


class OutputRefused(Exception):
    """This output cannot be read; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """The state of a data folder at a start: the ``version`` that its owner wrote, else what its files were.

    ``newest_at`` is the newest modification; ``is_complete``: every file was looked at.
    """

    path: str
    version: str | None = None
    files: int | None = None
    bytes: int | None = None
    newest_at: int | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The conditions under which an attempt started. ``data`` is by the variable of the data.

    ``python_from``: whether the command is this Python, or a script of it, or neither: then it is that of its PATH.
    ``image`` is that of a pod by its digest; what is installed in it is not read.
    """

    python: str | None = None
    python_from: str | None = None
    version: str | None = None
    distributions: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, DataState] = field(default_factory=dict)
    image: str | None = None


class OutputList(NamedTuple):
    """Files of an outputs folder, by path; ``is_truncated``: there may be more."""

    files: Sequence[Output]
    is_truncated: bool = False


MAX_OUTPUTS = 10_000
"""How many files of a job are listed at most."""


class OutputReader(Protocol):
    """Reads the logs and files of jobs. It changes nothing, and any process may have one of its own."""

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset`` (since the attempt started); a negative offset counts from the end.

        Returns an empty part at the end of the log, and for a rank without one. Raises LogUnavailable.
        """

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        """The files of a job's outputs folder, ``limit`` at most, and fewer where it has very many other entries."""

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused with the reason."""

    def provenance(self, job: str, attempt: int) -> Provenance | None:
        """The conditions under which an attempt started; None where they were not recorded."""


# --- submission -------------------------------------------------------------------------------------------------------
class JobRefused(Exception):
    """This backend cannot run such a job; ``code`` is for programs, the message says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SubmissionChecks(Protocol):
    """The checks of a job before it is queued that need the backend. They change nothing."""

    def check_user(self, user: str) -> None:
        """Raise JobRefused where no job can run as this user."""

    def live_directory(self, user: str | None, directory: str) -> str:
        """The full path of a live job's directory; ``user`` None: the service's own. Raises JobRefused."""


# --- nodes ------------------------------------------------------------------------------------------------------------
class TokenRefused(Exception):
    """No agent of a node has this token; the message says why. ``is_valid``: unless it is a forged one, it is valid."""

    def __init__(self, message: str, *, is_valid: bool = True) -> None:
        super().__init__(message)
        self.is_valid = is_valid


class NodeUnverified(Exception):
    """Whether a token is that of a node's agent cannot be verified now; the message says why."""


class NodeTokens(Protocol):
    """Verifies the tokens of the agents of nodes."""

    def is_token(self, text: str) -> bool:
        """Whether a text has the form of such a token. It does not wait."""

    def node_of(self, token: str) -> str:
        """The node of the agent with this token. It may wait some seconds. Raises TokenRefused, NodeUnverified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReaders:
    """The parts of a backend that an API process uses; each process has its own. ``nodes`` None: it has no agents.

    ``in_pods``: jobs have the image of their environment and the claims of their data, not paths of a machine.
    """

    outputs: OutputReader
    capabilities: CapabilityReader
    submissions: SubmissionChecks
    nodes: NodeTokens | None = None
    in_pods: bool = False


# --- all of it --------------------------------------------------------------------------------------------------------
class Backend(Protocol):
    """All parts of one backend. Close it when done; jobs continue."""

    @property
    def jobs(self) -> JobBackend: ...
    @property
    def samples(self) -> SampleBackend: ...
    @property
    def enforcement(self) -> EnforcementBackend: ...
    @property
    def outputs(self) -> OutputReader: ...
    def close(self) -> None: ...


class ControllersBackend(Backend, Protocol):
    """The parts of a backend that the controllers use."""

    @property
    def attempts(self) -> AttemptRecords: ...
