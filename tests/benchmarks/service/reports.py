"""The cost of 400 reporting notebooks: ``python tests/benchmarks/service/reports.py [SERVERS] [SECONDS]``.

API, scheduler and supervisor are the shipped processes with the shipped database; the hub is a small fake in this
process. Each server reports every 30 s, in an open loop: at its instant, whether or not others were answered. Some
request their GPU before a kernel start, some postpone a warning, and users list notebooks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from jupyter_gpu_quota.backends.rendering.variables import SECRET_HEADER
from jupyter_gpu_quota.hub.ports import free_ports
from tests.api.world import HUB_TOKEN, PREFIX, FakeAccount, FakeHub, serving, variables_of_service
from tests.benchmarks.figures import Figure, print_plainly
from tests.benchmarks.service.processes import cpu_s

SERVERS, REPORT_S, WATCHED_S = 400, 30.0, 30.0
SLICES = 8
"""Notebooks of one device."""

CONNECTIONS, STARTING_AT_ONCE = 64, 32
WAKE_EVERY_S, KEEP_EVERY_S, LIST_EVERY_S = 1.0, 2.0, 1.0

QUOTA = """\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: [Simulated 16G]}}, uses: [notebook]}}
projects:
  - name: vision
    members: {{groups: [team]}}
    quota: {{build: {{notebook: {devices}}}}}
"""


@dataclass(slots=True)
class Server:
    """One notebook's server, as seen by the service. Every third has a busy kernel."""

    user: str
    number: int
    notebook: str = ""
    secret: str = ""
    sequence: int = 0
    began: float = field(default_factory=time.monotonic)

    def report(self) -> bytes:
        running_ms, busy = round((time.monotonic() - self.began) * 1000), self.number % 3 == 0
        states = ["busy" if busy else "idle", "idle", "idle"]
        kernels = [
            {
                "id": f"{self.user}-kernel-{number}", "name": "python3", "state": state,
                "quiet_ms": running_ms, "running_ms": running_ms, "pid": 1000 + number, "asks_gpu": not number,
                "cpu_ms": running_ms if busy else 0, "connections": 1,
            }
            for number, state in enumerate(states)
        ]  # fmt: skip
        self.sequence += 1
        report = {"instance": "i", "sequence": self.sequence, "running_ms": running_ms, "kernels": kernels}
        return json.dumps({**report, "programs": []}).encode()


class Connection:
    """One keep-alive connection that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, token: str, body: bytes = b"", secret: str = "") -> tuple[int, bytes]:
        """(status, body) of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {PREFIX}api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: token {token}\r\n"
        head += f"{SECRET_HEADER}: {secret}\r\n" if secret else ""
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head_read = await reader.readuntil(b"\r\n\r\n")
        length = int(head_read.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return int(head_read.split(b" ", 2)[1]), await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Load:
    """Requests on a few connections, timed from their due times."""

    def __init__(self, port: int) -> None:
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()
        self._connections = [Connection(port) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            self._idle.put_nowait(connection)
        self.took: dict[str, list[float]] = {}
        self.refused: dict[tuple[str, int], int] = {}

    async def ask(
        self, kind: str, due: float, method: str, path: str, token: str, body: bytes = b"", secret: str = ""
    ) -> bytes:
        connection = await self._idle.get()
        status, answer = await connection.send(method, path, token, body, secret)
        self._idle.put_nowait(connection)
        self.took.setdefault(kind, []).append(time.perf_counter() - due)
        if status >= 300:
            self.refused[kind, status] = self.refused.get((kind, status), 0) + 1
        return answer

    def forget(self) -> None:
        self.took, self.refused = {}, {}

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


async def measure(count: int = SERVERS, watched_s: float = WATCHED_S) -> list[Figure]:
    """Book the slices, let each server report once, then measure CPU time and latency."""
    with tempfile.TemporaryDirectory() as folder:
        hub, servers = FakeHub(), [Server(user=f"user-{number}", number=number) for number in range(count)]
        for server in servers:
            running = {"": {"name": "", "stopped": False}}
            hub.users[server.user] = FakeAccount(groups=["team"], servers=running)
        hub_port, port = serving(hub.application())[1], free_ports(folder)[0]
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "jupyter_gpu_quota", "serve", env=_environment(Path(folder), hub_port, port, count)
        )
        load = Load(port)
        try:
            await _until_ready(port)
            await _booked(load, servers)
            await _reported_once(load, servers)
            return await _watched(load, servers, watched_s, Path(folder) / "state", supervisor.pid, hub)
        finally:
            load.close()
            supervisor.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(supervisor.wait(), 20)


def _environment(folder: Path, hub_port: int, port: int, count: int) -> dict[str, str]:
    devices = -(-count // SLICES)
    (folder / "quota.yaml").write_text(QUOTA.format(devices=devices))
    settings = {
        "state_dir": str(folder / "state"),
        "quota_file": str(folder / "quota.yaml"),
        "simulated_devices": [{"model": "Simulated 16G", "memory_mib": 16_384, "count": devices}],
    }
    return variables_of_service(settings, hub_port, port)


async def _until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            if (await Connection(port).send("GET", "ready", HUB_TOKEN))[0] == 200:
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the service is not ready")
        await asyncio.sleep(0.2)


async def _booked(load: Load, servers: list[Server]) -> None:
    starting = asyncio.Semaphore(STARTING_AT_ONCE)

    async def start(server: Server) -> None:
        digest = hashlib.sha256(f"token-{server.user}".encode()).hexdigest()
        slice_ = {"user": server.user, "project": "vision", "gpu": "1/8", "server": "", "token_digest": digest}
        asked = json.dumps(slice_).encode()
        async with starting:
            answer = await load.ask("slice", time.perf_counter(), "POST", "notebooks", HUB_TOKEN, asked)
        booked = json.loads(answer)
        server.notebook, server.secret = booked["id"], booked["secret"]

    await asyncio.gather(*map(start, servers))
    deadline = time.monotonic() + 30
    while True:
        answer = await load.ask("list", time.perf_counter(), "GET", "notebooks?limit=1000", HUB_TOKEN)
        items = json.loads(answer)["items"]
        if sum(item["state"] == "booked" for item in items) == len(servers):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not every slice was booked: {[item['state'] for item in items][:5]}")
        await asyncio.sleep(0.2)


async def _reported_once(load: Load, servers: list[Server]) -> None:
    """The first classification of each is stored; later ones mostly change nothing."""
    now = time.perf_counter()
    await asyncio.gather(*(_report(load, server, now) for server in servers))


async def _report(load: Load, server: Server, due: float) -> None:
    path, token = f"notebooks/{server.notebook}/activity", f"token-{server.user}"
    await load.ask("report", due, "POST", path, token, server.report(), server.secret)


async def _watched(
    load: Load, servers: list[Server], watched_s: float, state: Path, supervisor: int, hub: FakeHub
) -> list[Figure]:
    children = json.loads((state / "service.json").read_text())["children"]
    pids = {
        "the API": children["api"]["pid"],
        "the scheduler": children["controller"]["pid"],
        "the supervisor": supervisor,
    }
    load.forget()
    hub.asked.clear()
    before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    tasks = []
    for due, request in sorted(_requests(load, servers, watched_s), key=lambda each: each[0]):
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(request(began + due)))
    await asyncio.gather(*tasks)
    await asyncio.sleep(max(0.0, began + watched_s - time.perf_counter()))
    lasted = time.perf_counter() - began
    spent = {name: (cpu_s(pid) - before[name]) / lasted * 100 for name, pid in pids.items()}
    return [*_costs(spent, len(servers), lasted), *_latencies(load), *_asked(hub, lasted)]


Request = Callable[[float], Awaitable[object]]


def _requests(load: Load, servers: list[Server], watched_s: float) -> Iterator[tuple[float, Request]]:
    """(seconds from the beginning, request)."""
    for at, server in enumerate(servers):
        due = at / len(servers) * REPORT_S
        while due < watched_s:
            yield due, lambda due, server=server: _report(load, server, due)
            due += REPORT_S
    for kind, every_s, body in (("wake", WAKE_EVERY_S, b'{"kernel": "new"}'), ("keep", KEEP_EVERY_S, b"{}")):
        for at in range(int(watched_s / every_s)):
            server = servers[at * 7 % len(servers)]
            path, token = f"notebooks/{server.notebook}/actions/{kind}", f"token-{server.user}"
            yield (
                (at + 0.3) * every_s,
                lambda due, kind=kind, path=path, token=token, body=body, secret=server.secret: load.ask(
                    kind, due, "POST", path, token, body, secret
                ),
            )
    for at in range(int(watched_s / LIST_EVERY_S)):
        token = f"token-{servers[at % len(servers)].user}"
        yield (
            (at + 0.6) * LIST_EVERY_S,
            lambda due, token=token: load.ask("list", due, "GET", "notebooks?limit=50", token),
        )


def _costs(spent: dict[str, float], count: int, lasted: float) -> Iterator[Figure]:
    timed = (
        f"user and system time over {lasted:.0f} s; {count} servers with 3 kernels report every {REPORT_S:.0f} s, one "
        "a second wakes, one in two seconds keeps, one a second lists; simulated devices"
    )
    yield Figure(name=f"CPU for {count} reporting notebooks, all three", value=sum(spent.values()), unit="% of a core",
                 timed=timed)  # fmt: skip
    for name, value in spent.items():
        yield Figure(name=f"CPU for {count} reporting notebooks, {name}", value=value, unit="% of a core", timed=timed)


def _asked(hub: FakeHub, lasted: float) -> Iterator[Figure]:
    """The requests to the hub: those of people, who list with their tokens, apart from all others."""
    people = sum(path.startswith(("user", "users/")) and path != "users" for path in hub.asked)
    timed = f"over {lasted:.0f} s; reports, wakes and keeps have the secrets of their slices"
    for name, count in (("people who list", people), ("all other requests", len(hub.asked) - people)):
        yield Figure(name=f"requests to the hub per second, {name}", value=count / lasted, unit="requests",
                     timed=timed)  # fmt: skip


def _latencies(load: Load) -> Iterator[Figure]:
    for kind, took in sorted(load.took.items()):
        took.sort()
        others = ", ".join(f"{n} answered {status}" for (of, status), n in load.refused.items() if of == kind)
        timed = f"over HTTP, from the due time to the answer; {len(took)} of them{f', {others}' if others else ''}"
        yield Figure(name=f"{kind}, median", value=took[len(took) // 2] * 1000, unit="ms", timed=timed)
        yield Figure(name=f"{kind}, 99th percentile", value=took[len(took) * 99 // 100] * 1000, unit="ms", timed=timed)
    refused = sum(n for (kind, _), n in load.refused.items() if kind == "report")
    yield Figure(name="reports that were refused", value=refused, unit="reports", timed="any status but 200", bound=0)


def figures(quick: bool) -> list[Figure]:
    return asyncio.run(measure(80, 15.0) if quick else measure())


if __name__ == "__main__":
    words = sys.argv[1:]
    print_plainly(asyncio.run(measure(*(int(word) for word in words[:1]), *(float(word) for word in words[1:2]))))
