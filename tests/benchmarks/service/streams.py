"""The cost of 420 open front ends: ``python tests/benchmarks/service/streams.py [CLIENTS] [SECONDS]``.

Each has the event stream open and reads ``me`` and ``jobs`` every 10 s at a random phase, with the entity tag of its
last answer, as the server extension of a notebook does. The users are in 20 projects, and see the jobs of their own.
API, scheduler and supervisor are the shipped processes with the shipped database; the hub is a small fake in this
process. In a second period jobs change.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from jupyter_gpu_quota.backends.rendering.variables import SECRET_HEADER
from jupyter_gpu_quota.hub.ports import free_ports
from tests.api.world import PREFIX, FakeAccount, FakeHub, serving
from tests.benchmarks.figures import Figure, print_plainly
from tests.benchmarks.service.processes import cpu_s, memory
from tests.benchmarks.service.reports import SLICES, Load, Server, _booked, _environment, _until_ready

CLIENTS, WATCHED_S, READ_EVERY_S, CHANGE_EVERY_S = 420, 30.0, 10.0, 5.0
READS = ("me", "jobs?limit=200")
JOBS = 100
PROJECTS = 20
POOL = """\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: [Simulated 16G]}}, uses: [notebook, training]}}
projects:
  - {{name: vision, members: {{groups: [team]}}, quota: {{build: {{notebook: {devices}}}}}}}
"""
PROJECT = "  - {{name: p-{number}, members: {{groups: [team-{number}]}}, quota: {{build: {{training: 1}}}}}}\n"
CPU_PERCENT, MEMORY_MIB, READ_MS = 15.0, 100.0, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a period of reads cost, and how each was answered. ``took``: seconds, in order."""

    cpu_percent: float
    hub_per_s: float
    took: list[float]
    statuses: list[int]
    events: int


class Reader:
    """One front end: its stream, and its reads on a connection of their own."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self.tags: dict[str, str] = {}
        self.events = 0
        self.statuses: list[int] = []
        self.took: list[float] = []

    def _head(self, path: str, more: str = "") -> bytes:
        server = self.server
        head = f"GET {PREFIX}api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: token token-{server.user}\r\n"
        return f"{head}{SECRET_HEADER}: {server.secret}\r\n{more}\r\n".encode()

    async def follow(self) -> None:
        """Read the stream until it is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self._head("events?without_devices=1", "Accept: text/event-stream\r\n"))
            while line := await reader.readline():
                self.events += line.startswith(b"event: changed")
        finally:
            writer.close()

    async def read(self, began: float, until: float) -> None:
        """Read every path at its instants, in an open loop."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        due = began + random.uniform(0, READ_EVERY_S)
        try:
            while due < until:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                for path in READS:
                    await self._read(path, reader, writer)
                due += READ_EVERY_S
        finally:
            writer.close()

    async def _read(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = time.perf_counter()
        tag = self.tags.get(path)
        writer.write(self._head(path, f"If-None-Match: {tag}\r\n" if tag else ""))
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        await reader.readexactly(int(headers.get("content-length", 0)))
        self.took.append(time.perf_counter() - asked)
        self.statuses.append(int(lines[0].split(" ", 2)[1]))
        self.tags[path] = headers.get("etag", "")


async def measure(count: int = CLIENTS, watched_s: float = WATCHED_S) -> list[Figure]:
    """Book the slices, open the streams, then measure CPU time, memory and latency."""
    with tempfile.TemporaryDirectory() as folder:
        hub, servers = FakeHub(), [Server(user=f"user-{number}", number=number) for number in range(count)]
        for server in servers:
            hub.users[server.user] = FakeAccount(
                groups=["team", f"team-{server.number % PROJECTS}"], servers={"": {"name": "", "stopped": False}}
            )
        hub_port, port = serving(hub.application())[1], free_ports(folder)[0]
        devices = -(-count // SLICES)
        variables = _environment(Path(folder), hub_port, port, (devices + PROJECTS) * SLICES)
        projects = (PROJECT.format(number=number) for number in range(PROJECTS))
        (Path(folder) / "quota.yaml").write_text(POOL.format(devices=devices) + "".join(projects))
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "jupyter_gpu_quota", "serve", env=variables
        )
        load = Load(port)
        try:
            await _until_ready(port)
            await _booked(load, servers)
            api = json.loads((Path(folder) / "state" / "service.json").read_text())["children"]["api"]["pid"]
            return await _watched(load, [Reader(server, port) for server in servers], api, hub, watched_s)
        finally:
            load.close()
            supervisor.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(supervisor.wait(), 20)


async def _watched(load: Load, readers: Sequence[Reader], api: int, hub: FakeHub, watched_s: float) -> list[Figure]:
    jobs = [await _submit(load, readers[number % len(readers)]) for number in range(JOBS)]
    before = memory(api).uss_mib
    streams = [asyncio.ensure_future(reader.follow()) for reader in readers]
    await _reads(readers, 2 * READ_EVERY_S)  # the first reads have no tags
    quiet = await _phase(readers, api, hub, watched_s)
    changes = asyncio.ensure_future(_changes(load, jobs))
    busy = await _phase(readers, api, hub, watched_s)
    after = memory(api)
    for task in (changes, *streams):
        task.cancel()
    await asyncio.gather(changes, *streams, return_exceptions=True)
    more = Figure(name="memory of the API for open front ends", value=after.uss_mib - before, unit="MiB",
                  timed=f"unique memory above that before the streams; {after.rss_mib:.0f} MiB resident",
                  bound=MEMORY_MIB)  # fmt: skip
    return [more, *_figures("nothing changes", readers, quiet), *_figures("jobs change", readers, busy)]


async def _phase(readers: Sequence[Reader], api: int, hub: FakeHub, watched_s: float) -> Phase:
    for reader in readers:
        reader.took, reader.statuses, reader.events = [], [], 0
    hub.asked.clear()
    cpu, began = cpu_s(api), time.perf_counter()
    await _reads(readers, watched_s)
    lasted = time.perf_counter() - began
    return Phase(
        cpu_percent=(cpu_s(api) - cpu) / watched_s * 100,
        hub_per_s=len(hub.asked) / lasted,
        took=sorted(seconds for reader in readers for seconds in reader.took),
        statuses=[status for reader in readers for status in reader.statuses],
        events=sum(reader.events for reader in readers),
    )


def _reads(readers: Sequence[Reader], for_s: float) -> Awaitable[Any]:
    began = time.perf_counter()
    return asyncio.gather(*(reader.read(began, began + for_s) for reader in readers))


async def _submit(load: Load, reader: Reader) -> tuple[Reader, str]:
    body = json.dumps(
        {"command": ["sleep", "600"], "gpu": "1", "project": f"p-{reader.server.number % PROJECTS}"}
    ).encode()
    token, secret = f"token-{reader.server.user}", reader.server.secret
    answer = await load.ask("submit", time.perf_counter(), "POST", "jobs", token, body, secret)
    return reader, json.loads(answer)["id"]


async def _changes(load: Load, jobs: Sequence[tuple[Reader, str]]) -> None:
    for reader, job in jobs:
        await asyncio.sleep(CHANGE_EVERY_S)
        path, token = f"jobs/{job}/actions/cancel", f"token-{reader.server.user}"
        await load.ask("cancel", time.perf_counter(), "POST", path, token, b"{}", reader.server.secret)


def _figures(when: str, readers: Sequence[Reader], found: Phase) -> list[Figure]:
    took, statuses = found.took, found.statuses
    unchanged = statuses.count(304) / len(statuses) * 100
    changes = f"a job changes every {CHANGE_EVERY_S:.0f} s, {found.events} events" if found.events else "no job changes"
    timed = (
        f"{len(readers)} streams, each client reads me and jobs every {READ_EVERY_S:.0f} s; {JOBS} jobs in {PROJECTS} "
        f"projects, {changes}; {len(took)} reads, {unchanged:.0f} % of them answered 304"
    )
    failed = sum(status not in (200, 304) for status in statuses)
    return [
        Figure(name=f"CPU of the API for open front ends, {when}", value=found.cpu_percent, unit="% of a core",
               timed=f"user and system time over the time in which the reads are due; {timed}", bound=CPU_PERCENT),
        Figure(name=f"read of an open front end, {when}, median", value=took[len(took) // 2] * 1000, unit="ms",
               timed=timed),
        Figure(name=f"read of an open front end, {when}, 99th percentile", value=took[len(took) * 99 // 100] * 1000,
               unit="ms", timed=timed, bound=READ_MS),
        Figure(name=f"reads that failed, {when}", value=failed, unit="reads", timed=timed, bound=0),
        Figure(name=f"requests to the hub for open front ends, {when}", value=found.hub_per_s,
               unit="requests per second", timed="all requests of the service; clients have the secrets of slices",
               bound=1.0),
    ]  # fmt: skip


def figures(quick: bool) -> list[Figure]:
    return asyncio.run(measure(80, 20.0) if quick else measure())


if __name__ == "__main__":
    words = sys.argv[1:]
    print_plainly(asyncio.run(measure(*(int(word) for word in words[:1]), *(float(word) for word in words[1:2]))))
