"""Jobs on a virtual clock, with durations from a trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ...core.facts import RankFact
from ...core.lifecycle import CHECKPOINTED
from ...core.model import Device, Node
from ..protocol import Inventory, StartOrder, StopOrder

TERMINATED, KILLED = -15, -9


@dataclass(slots=True)
class Clock:
    """Virtual time, in milliseconds since 1970."""

    now: int

    def __call__(self) -> int:
        return self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The behaviour of a job on its devices; durations in milliseconds.

    ``work_ms``: its whole running time. ``starts_after_ms``: from the order to its first process, in each attempt.
    ``saves_in_ms``: the time to save and exit on SIGTERM; None: SIGTERM ends it at once, and it loses the work since
    its last checkpoint. ``checkpoint_every_ms``: the interval of checkpoints, which take no time; None: there are none.
    ``saved_exit_status`` is its exit status after it saved on SIGTERM. ``completes``: an exit with 0 means that its
    work is complete. ``log`` is written by each rank when it starts, ``outputs`` are its files.
    """

    work_ms: int
    starts_after_ms: int = 0
    saves_in_ms: int | None = None
    checkpoint_every_ms: int | None = None
    exit_status: int = 0
    saved_exit_status: int = CHECKPOINTED
    completes: bool = True
    log: bytes = b""
    outputs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One attempt of a job. ``had_ms`` is the work in its checkpoint at the start, ``saved_ms`` at the newest save."""

    job: str
    attempt: int
    ranks: int
    nodes: frozenset[str]
    behaviour: Behaviour
    first_handle: int | None
    begins_at: int
    ends_at: int
    exit_status: int | None
    initial_ms: int
    saved_ms: int
    saved_at: int | None = None
    stop_at: int | None = None
    kill_at: int | None = None
    started: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The work of one attempt: from its first process until it ended, or its stop order arrived.

    ``lost_ms``: the work that was lost, because it was not saved.
    """

    job: str
    began_at: int
    stopped_at: int
    lost_ms: int = 0


@dataclass(eq=False)
class SimulatedJobs:
    """Jobs on a virtual clock. ``behaviour_of`` returns the behaviour of a job.

    ``observe`` reports changes, and each end until it is settled; after ``fence`` it reports everything again.
    ``runs`` is the work of attempts that ended.
    """

    clock: Callable[[], int]
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    behaviour_of: Callable[[str], Behaviour]
    runs: list[Run] = field(default_factory=list)
    inventory_changed: bool = False
    removed_outputs: set[str] = field(default_factory=set)
    fencing: int = 0
    _lost_nodes: set[str] = field(default_factory=set)
    _attempts: dict[tuple[str, int], _Attempt] = field(default_factory=dict)
    _saved_ms: dict[str, int] = field(default_factory=dict)
    _changed: dict[tuple[str, int], None] = field(default_factory=dict)
    _instants: list[tuple[int, int, tuple[str, int]]] = field(default_factory=list)
    _checkpoints: list[tuple[int, int, tuple[str, int]]] = field(default_factory=list)
    _newest_begun: dict[str, int] = field(default_factory=dict)
    _next_handle: int = 1
    _entries: int = 0

    # --- the protocol of jobs ------------------------------------------------------------------------------------
    def inventory(self) -> Inventory:
        self.inventory_changed = False
        nodes = tuple(node for node in self.nodes if node.id not in self._lost_nodes)
        return Inventory(nodes, tuple(device for device in self.devices if device.node not in self._lost_nodes))

    def start(self, order: StartOrder) -> None:
        key = order.job, order.attempt
        nodes = frozenset(device.node for device in order.devices)
        if order.fencing < self.fencing or key in self._attempts or nodes & self._lost_nodes:
            return  # an order to a lost node does not arrive
        behaviour = self.behaviour_of(order.job)
        initial_ms = self._saved_ms.get(order.job, 0)
        begins_at = self.clock() + behaviour.starts_after_ms
        attempt = self._attempts[key] = _Attempt(
            job=order.job, attempt=order.attempt, ranks=order.ranks, nodes=nodes, behaviour=behaviour,
            first_handle=self._next_handle, begins_at=begins_at,
            ends_at=begins_at + max(0, behaviour.work_ms - initial_ms), exit_status=behaviour.exit_status,
            initial_ms=initial_ms, saved_ms=initial_ms,
        )  # fmt: skip
        self._next_handle += order.ranks
        self._schedule(key, begins_at)
        self._schedule(key, attempt.ends_at)
        if behaviour.checkpoint_every_ms is not None:
            self._schedule_checkpoint(attempt)

    def has_code(self, job: str, bundle: str) -> bool:
        """Simulated jobs have no code."""
        return True

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        stopping = self._attempts.get((job, attempt))
        return None if stopping is None else stopping.stop_at

    def stop(self, order: StopOrder) -> None:
        now = self.clock()
        attempt = self._attempts.get((order.job, order.attempt))
        if order.fencing < self.fencing or (attempt is not None and attempt.ended):
            return
        if attempt is None:
            self._end_unstarted(order, now)
            return
        kill_at = now + order.grace_s * 1000
        attempt.kill_at = kill_at if attempt.kill_at is None else min(kill_at, attempt.kill_at)
        if attempt.stop_at is None:
            attempt.stop_at = now
            if attempt.started:
                self._changed[order.job, order.attempt] = None
        self._plan_end(attempt, attempt.stop_at, attempt.kill_at)

    def observe(self) -> Sequence[RankFact]:
        self._advance()
        facts = [fact for key in list(self._changed) for fact in _facts(self._attempts[key])]
        self._changed = {key: None for key in self._changed if self._attempts[key].ended}
        return facts

    def settled(self, job: str, attempt: int) -> None:
        self._changed.pop((job, attempt), None)
        self._attempts.pop((job, attempt), None)

    def forget(self, job: str) -> None:
        self._check_ended(job)
        self._saved_ms.pop(job, None)
        if not any(key[0] == job for key in self._attempts):
            self._newest_begun.pop(job, None)

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The files that the behaviour describes, until they are removed."""
        kept = {job: self.behaviour_of(job).outputs for job in jobs if job not in self.removed_outputs}
        return {job: -(-sum(map(len, kept.get(job, {}).values())) // (1 << 20)) for job in jobs}

    def remove_outputs(self, job: str) -> None:
        self._check_ended(job)
        self.removed_outputs.add(job)

    def has_begun(self, job: str, attempt: int) -> bool:
        """Whether an attempt had a process, and so has a log."""
        self._advance()
        return attempt <= self._newest_begun.get(job, 0)

    def fence(self, fencing: int) -> None:
        if fencing > self.fencing:
            self.fencing = fencing
            self._changed = {key: None for key, attempt in self._attempts.items() if attempt.started}

    # --- events of the simulation --------------------------------------------------------------------------------
    def next_event_at(self) -> int | None:
        """The next start or end of an attempt that the controller has not observed."""
        while self._instants:
            at, _, key = self._instants[0]
            attempt = self._attempts.get(key)
            is_due = attempt and not attempt.ended and at == (attempt.ends_at if attempt.started else attempt.begins_at)
            if is_due:
                return at
            heappop(self._instants)
        return None

    def unfinished_runs(self) -> list[Run]:
        """The work of attempts that have not ended, up to now."""
        present = (one for one in self._attempts.values() if one.started and not one.ended)
        return [Run(job=one.job, began_at=one.begins_at, stopped_at=one.stop_at or self.clock()) for one in present]

    def lose_node(self, node: str) -> None:
        """A node fails: every attempt with a rank on it ends now, with unknown exit status."""
        self._lost_nodes.add(node)
        self.inventory_changed = True
        for attempt in self._attempts.values():
            if node in attempt.nodes and not attempt.ended:
                self._end_at(attempt, self.clock(), None)

    def restore_node(self, node: str) -> None:
        """A lost node is available again, without processes."""
        self._lost_nodes.discard(node)
        self.inventory_changed = True

    # --- private --------------------------------------------------------------------------------------------------
    def _check_ended(self, job: str) -> None:
        if not all(attempt.ended for key, attempt in self._attempts.items() if key[0] == job):
            raise OSError(f"job {job} still runs")

    def _end_unstarted(self, order: StopOrder, now: int) -> None:
        """End an attempt whose start order did not arrive."""
        key, saved_ms = (order.job, order.attempt), self._saved_ms.get(order.job, 0)
        self._attempts[key] = _Attempt(
            job=order.job, attempt=order.attempt, ranks=order.ranks, nodes=frozenset(),
            behaviour=self.behaviour_of(order.job), first_handle=None, begins_at=now, ends_at=now,
            exit_status=TERMINATED, initial_ms=saved_ms, saved_ms=saved_ms, stop_at=now,
        )  # fmt: skip
        self._schedule(key, now)

    def _schedule(self, key: tuple[str, int], at: int) -> None:
        self._entries += 1
        heappush(self._instants, (at, self._entries, key))

    def _schedule_checkpoint(self, attempt: _Attempt) -> None:
        every = attempt.behaviour.checkpoint_every_ms
        assert every is not None
        self._entries += 1
        at = (attempt.saved_at or attempt.begins_at) + every
        heappush(self._checkpoints, (at, self._entries, (attempt.job, attempt.attempt)))

    def _end_at(self, attempt: _Attempt, at: int, exit_status: int | None) -> None:
        attempt.ends_at, attempt.exit_status = max(at, attempt.begins_at), exit_status
        self._schedule((attempt.job, attempt.attempt), attempt.ends_at)

    def _plan_end(self, attempt: _Attempt, stop_at: int, kill_at: int) -> None:
        saves_in = attempt.behaviour.saves_in_ms
        if saves_in is None:
            at, status = stop_at, TERMINATED
        elif stop_at + saves_in <= kill_at:
            at, status = stop_at + saves_in, attempt.behaviour.saved_exit_status
        else:
            at, status = kill_at, KILLED
        if at < attempt.begins_at:
            attempt.begins_at, attempt.first_handle = at, None
            self._schedule((attempt.job, attempt.attempt), at)
        if at < attempt.ends_at:
            self._end_at(attempt, at, status)

    def _advance(self) -> None:
        now = self.clock()
        self._save_checkpoints(now)
        while (at := self.next_event_at()) is not None and at <= now:
            key = heappop(self._instants)[2]
            attempt = self._attempts[key]
            self._changed[key] = None
            attempt.started = True
            if attempt.first_handle is not None:
                self._newest_begun[attempt.job] = max(attempt.attempt, self._newest_begun.get(attempt.job, 0))
            if attempt.ends_at <= at:
                self._end_attempt(attempt)

    def _save_checkpoints(self, now: int) -> None:
        while self._checkpoints and self._checkpoints[0][0] <= now:
            at, _, key = heappop(self._checkpoints)
            attempt = self._attempts.get(key)
            if attempt is None or attempt.ended or attempt.stop_at is not None or at >= attempt.ends_at:
                continue
            every = attempt.behaviour.checkpoint_every_ms
            assert every is not None
            attempt.saved_at = at + (min(now, attempt.ends_at - 1) - at) // every * every  # the last one up to now
            attempt.saved_ms = attempt.initial_ms + attempt.saved_at - attempt.begins_at
            self._changed[key] = None
            self._schedule_checkpoint(attempt)

    def _end_attempt(self, attempt: _Attempt) -> None:
        attempt.ended = True
        ended_by_itself = attempt.exit_status == attempt.behaviour.exit_status
        stopped_at = attempt.ends_at if ended_by_itself or attempt.stop_at is None else attempt.stop_at
        stopped_at = max(attempt.begins_at, stopped_at)
        done_ms = attempt.initial_ms + stopped_at - attempt.begins_at
        if attempt.exit_status == CHECKPOINTED:
            attempt.saved_ms, attempt.saved_at = done_ms, attempt.ends_at
        lost_ms = 0 if ended_by_itself else done_ms - attempt.saved_ms
        self._saved_ms[attempt.job] = 0 if ended_by_itself else attempt.saved_ms
        if attempt.first_handle is not None:
            self.runs.append(Run(job=attempt.job, began_at=attempt.begins_at, stopped_at=stopped_at, lost_ms=lost_ms))


def _facts(attempt: _Attempt) -> list[RankFact]:
    """The facts of an attempt, rank by rank; all ranks start and end together."""
    first = attempt.first_handle
    completed = attempt.ended and attempt.behaviour.completes and attempt.exit_status == 0
    return [
        RankFact(
            job=attempt.job, attempt=attempt.attempt, rank=rank, handle=None if first is None else str(first + rank),
            started_at=None if first is None else attempt.begins_at,
            ended_at=attempt.ends_at if attempt.ended else None,
            exit_status=attempt.exit_status if attempt.ended else None, tree_gone=attempt.ended,
            pause_requested=attempt.stop_at is not None, completed=completed, saved_at=attempt.saved_at,
        )
        for rank in range(attempt.ranks)
    ]  # fmt: skip
