"""A backend for the contract suite: it calls another one through a queue that delays, loses, repeats and reorders.

The client keeps nothing but what it received: a new client finds everything again. The agent at the other end keeps the
newest fact of each rank and sends all of them at every beat, until they are settled. An order is one message, and may
be lost; the controller repeats it. A question is repeated until it is answered, or until the time for that is over.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import BinaryIO, TypeVar

from jupyter_gpu_quota.backends.protocol import (
    MAX_OUTPUTS,
    Backend,
    Capabilities,
    DeviceUsers,
    Inventory,
    LogPart,
    OutputList,
    OutputRefused,
    StartOrder,
    StopNotebookOrder,
    StopOrder,
)
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from jupyter_gpu_quota.core.facts import DeviceFact, RankFact
from jupyter_gpu_quota.core.model import Device
from jupyter_gpu_quota.core.samples import DeviceSample

T = TypeVar("T")
Rank = tuple[str, int, int]

STEP_MS, BEAT_MS, ASK_AGAIN_MS, ANSWER_WITHIN_MS = 10, 200, 400, 60_000
UNREACHED = "the node does not answer"


@dataclass
class Clock:
    """Virtual time in milliseconds; messages arrive while it passes."""

    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Network:
    """Messages on their way. ``down``: all are lost. ``handlers`` run once per step."""

    clock: Clock
    chance: random.Random
    lost: float = 0.3
    repeated: float = 0.3
    longest_ms: int = 1_500
    down: bool = False
    _entries: int = 0
    _due: list[tuple[int, int, Callable[[], object]]] = field(default_factory=list)

    def send(self, deliver: Callable[[], object]) -> None:
        """Send one message; it arrives never, once or twice, in any order."""
        for _ in range(1 + (self.chance.random() < self.repeated)):
            if not self.down and self.chance.random() >= self.lost:
                self.send_after(self.chance.randrange(self.longest_ms), deliver)

    def send_after(self, delay_ms: int, deliver: Callable[[], object]) -> None:
        """Send one message that arrives after this time."""
        self._entries += 1
        heappush(self._due, (self.clock.now + delay_ms, self._entries, deliver))

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and messages arrive."""
        until = self.clock.now + duration_ms
        while self._due and self._due[0][0] <= until:
            at, _, deliver = heappop(self._due)
            self.clock.now = max(self.clock.now, at)
            deliver()
        self.clock.now = until

    def ask(self, question: Callable[[], T]) -> T | None:
        """Send a request until an answer arrives; None: none arrived in time."""
        answers: list[T] = []
        until = self.clock.now + ANSWER_WITHIN_MS

        def answer() -> None:
            found = question()
            self.send(lambda: answers.append(found))

        while not answers and self.clock.now < until:
            self.send(answer)
            for _ in range(ASK_AGAIN_MS // STEP_MS):
                self.pass_ms(STEP_MS)
                if answers:
                    break
        return answers[0] if answers else None


class Agent:
    """The agent: it carries out orders on its backend, and sends the observed facts to the present client."""

    def __init__(self, backend: Backend, network: Network) -> None:
        self.backend, self.network = backend, network
        self.receive: Callable[[int, Sequence[RankFact]], None] = lambda number, facts: None
        self._known: dict[Rank, RankFact] = {}
        self._number = 0
        self._beat()

    def _beat(self) -> None:
        for fact in self.backend.jobs.observe():
            self._known[fact.job, fact.attempt, fact.rank] = fact
        self._number += 1
        number, facts = self._number, tuple(self._known.values())
        self.network.send(lambda: self.receive(number, facts))
        self.network.send_after(BEAT_MS, self._beat)

    def settled(self, job: str, attempt: int) -> None:
        """An attempt is settled only after all its ranks ended."""
        ours = [key for key in self._known if key[:2] == (job, attempt)]
        if all(self._known[key].tree_gone for key in ours):
            self.backend.jobs.settled(job, attempt)
            for key in ours:
                del self._known[key]

    def forget(self, job: str) -> str:
        """Returns why the data of a job cannot be removed now."""
        try:
            self.backend.jobs.forget(job)
        except OSError as error:
            return str(error)
        return ""

    def remove_outputs(self, job: str) -> None:
        with suppress(OSError):
            self.backend.jobs.remove_outputs(job)

    def fence(self, fencing: int) -> bool:
        self.backend.jobs.fence(fencing)
        return True


class RemoteJobs:
    """The client's end. Of each rank only the newest fact counts; settled facts are not reported again."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.network = agent, agent.network
        self._numbers: dict[Rank, int] = {}
        self._facts: dict[Rank, RankFact] = {}
        self._news: dict[Rank, None] = {}
        self._settled: set[tuple[str, int]] = set()
        agent.receive = self._receive

    def inventory(self) -> Inventory | None:
        return self.network.ask(self.agent.backend.jobs.inventory)

    def start(self, order: StartOrder) -> None:
        self.network.send(lambda: self.agent.backend.jobs.start(order))

    def stop(self, order: StopOrder) -> None:
        self.network.send(lambda: self.agent.backend.jobs.stop(order))

    def has_code(self, job: str, bundle: str) -> bool:
        return self.agent.backend.jobs.has_code(job, bundle)

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        return self.network.ask(lambda: self.agent.backend.jobs.stop_ordered_at(job, attempt))

    def observe(self) -> Sequence[RankFact]:
        found = [self._facts[key] for key in self._news]
        self._news = {key: None for key in self._news if self._facts[key].ended_at is not None}
        return found

    def settled(self, job: str, attempt: int) -> None:
        self._settled.add((job, attempt))
        self._news = {key: None for key in self._news if key[:2] != (job, attempt)}
        self.network.send(lambda: self.agent.settled(job, attempt))

    def forget(self, job: str) -> None:
        why = self.network.ask(lambda: self.agent.forget(job))
        if why is None:
            raise TimeoutError(UNREACHED)
        if why:
            raise OSError(why)

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        return self.network.ask(lambda: self.agent.backend.jobs.output_sizes(jobs)) or {}

    def remove_outputs(self, job: str) -> None:
        self.network.send(lambda: self.agent.remove_outputs(job))

    def fence(self, fencing: int) -> None:
        self.agent.receive = self._receive
        if self.network.ask(lambda: self.agent.fence(fencing)) is None:
            raise TimeoutError(UNREACHED)

    def _receive(self, number: int, facts: Sequence[RankFact]) -> None:
        for fact in facts:
            key = (fact.job, fact.attempt, fact.rank)
            if number <= self._numbers.get(key, 0):
                continue
            self._numbers[key] = number
            if key[:2] in self._settled:
                self.settled(*key[:2])  # the message that said so was lost
            elif self._facts.get(key) != fact:
                self._facts[key], self._news[key] = fact, None


class RemoteSamples:
    """Samples are requested at each call, and returned when an answer to an earlier request arrived."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.network = agent, agent.network
        self._arrived: dict[str, DeviceSample] = {}
        self._facts: Sequence[DeviceFact] = ()

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        self.network.send(lambda: self._read(users))
        found, self._arrived = list(self._arrived.values()), {}
        return found or None

    def device_facts(self) -> Sequence[DeviceFact]:
        return self._facts

    def _read(self, users: DeviceUsers) -> None:
        found = self.agent.backend.samples.samples(users, now=self.network.clock.now)
        facts = self.agent.backend.samples.device_facts()
        if found is not None:
            self.network.send(lambda: self._receive(found, facts))

    def _receive(self, samples: Sequence[DeviceSample], facts: Sequence[DeviceFact]) -> None:
        self._facts = facts
        for each in samples:
            before = self._arrived.get(each.device)
            if before is None or before.at <= each.at:
                self._arrived[each.device] = each


class RemoteEnforcement:
    """Without an answer the enforcement is unknown."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.network = agent, agent.network
        self.lends_slices = agent.backend.enforcement.lends_slices

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        there = self.agent.backend.enforcement
        found = self.network.ask(lambda: there.capabilities(devices, gpu_milli=gpu_milli, project=project))
        unknown = tuple(EnforcementOffer(device=each.id, why=UNREACHED, unsure=True) for each in devices)
        return found or Capabilities(offers=unknown, read_at=self.network.clock.now)

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        there = self.agent.backend.enforcement
        found = self.network.ask(lambda: there.read_back(shares, samples, policed=policed, now=now))
        return found or dict.fromkeys(shares, EnforcementLabel(why=UNREACHED, unsure=True))

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        self.network.send(lambda: self.agent.backend.enforcement.stop_notebook(order))

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        self.network.send(lambda: self.agent.backend.enforcement.sweep(notebooks, devices))


class RemoteOutputs:
    """A log that cannot be reached is empty for now; an output that cannot be reached is refused."""

    def __init__(self, agent: Agent) -> None:
        self.there, self.network = agent.backend.outputs, agent.network

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        found = self.network.ask(lambda: self.there.log(job, attempt, rank, offset, limit))
        return found or LogPart(max(0, offset), b"", max(0, offset))

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        return self.network.ask(lambda: self.there.outputs(job, limit)) or OutputList(())

    def open_output(self, job: str, path: str) -> BinaryIO:
        def content() -> bytes | OutputRefused:
            try:
                with self.there.open_output(job, path) as file:
                    return file.read()
            except OutputRefused as refused:
                return refused

        found = self.network.ask(content)
        if isinstance(found, OutputRefused):
            raise found
        if found is None:
            raise OutputRefused(f"{path!r} cannot be read: {UNREACHED}.")
        return io.BytesIO(found)


class RemoteBackend:
    """One client; a later one takes over from it."""

    def __init__(self, agent: Agent) -> None:
        self.jobs, self.samples = RemoteJobs(agent), RemoteSamples(agent)
        self.enforcement, self.outputs = RemoteEnforcement(agent), RemoteOutputs(agent)

    def close(self) -> None:
        """Nothing to release."""
