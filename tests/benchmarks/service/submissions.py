"""Submissions per second to the API: ``python tests/benchmarks/service/submissions.py [SECONDS] [RATE]``.

Timed over HTTP on loopback, from the first byte sent to the 201 read, in an open loop: a job is sent at its instant
whether or not earlier ones were answered. The API and its scheduler are the shipped processes with the shipped
database; the hub is a small fake in this process, whose answer the API caches. The client shares the machine's cores
with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from jupyter_gpu_quota.hub.ports import free_ports
from tests.api.world import PREFIX, QUOTA, FakeAccount, FakeHub, serving, variables_of_service
from tests.benchmarks.figures import Figure, show

CONNECTIONS = 64
PROMISED_PER_S = 200.0
BODY = json.dumps(
    {
        "command": ["python", "train.py", "--epochs", "30", "--note", "x" * 800],
        "gpu": "1",
        "project": "vision",
        "name": "benchmark",
        "variables": {"SEED": "1", "MODE": "full"},
    }
).encode()


async def measure(seconds: float = 30.0, rate: float = PROMISED_PER_S) -> list[Figure]:
    """Submit ``rate`` jobs a second; figures of the answers."""
    with tempfile.TemporaryDirectory() as folder:
        hub = FakeHub()
        hub.users["bob"] = FakeAccount()
        hub_port, port = serving(hub.application())[1], free_ports(folder)[0]
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "jupyter_gpu_quota", "serve", env=_environment(Path(folder), hub_port, port)
        )
        try:
            await _until(lambda: _status(port, "ready"), 200)
            return await _load(port, seconds, rate, Path(folder) / "state")
        finally:
            service.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(service.wait(), 20)


def _environment(folder: Path, hub_port: int, port: int) -> dict[str, str]:
    (folder / "quota.yaml").write_text(QUOTA)
    settings = {
        "state_dir": str(folder / "state"),
        "waiting_jobs_limit": 10**9,
        "changes_per_s": 10**6,
        "changes_at_once": 10**6,
        "quota_file": str(folder / "quota.yaml"),
        "simulated_devices": [
            {"model": "Simulated 80G", "memory_mib": 81_920, "count": 4},
            {"model": "Simulated 16G", "memory_mib": 16_384, "count": 1},
        ],
    }
    return variables_of_service(settings, hub_port, port)


class _Connection:
    """One keep-alive connection that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        self.writer.write(
            f"{method} {PREFIX}api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: token token-bob\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return int(head.split(b" ", 2)[1]), await self.reader.readexactly(length)


async def _status(port: int, path: str) -> int:
    try:
        return (await _Connection(port).send("GET", path))[0]
    except OSError:
        return 0


async def _until(ask: Callable[[], object], wanted: object, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while await ask() != wanted:  # type: ignore[misc]
        if time.monotonic() > deadline:
            raise TimeoutError("the service is not ready")
        await asyncio.sleep(0.2)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpus(state: Path) -> dict[str, float]:
    """CPU seconds so far of the three processes."""
    kept = json.loads((state / "service.json").read_text())["children"]
    spent = {name: _cpu_s(kept[key]["pid"]) for name, key in (("the API", "api"), ("the scheduler", "controller"))}
    return {**spent, "the client": time.process_time()}


async def _load(port: int, seconds: float, rate: float, state: Path) -> list[Figure]:
    idle: asyncio.Queue[_Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(_Connection(port))
    await _Connection(port).send("POST", "jobs", BODY)
    took, refused = [], []

    async def submit(due: float) -> None:
        connection = await idle.get()
        status, _ = await connection.send("POST", "jobs", BODY)
        idle.put_nowait(connection)
        (took if status == 201 else refused).append(time.perf_counter() - due)

    before = _cpus(state)
    started, tasks = time.perf_counter(), []
    for number in range(int(seconds * rate)):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(submit(due)))
    await asyncio.gather(*tasks)
    lasted = time.perf_counter() - started
    spent = {name: (now - before[name]) / len(took) * 1000 for name, now in _cpus(state).items()}
    _, listing = await _Connection(port).send("GET", "jobs?limit=1")
    stored = json.loads(listing)["_pagination"]["total"] - 1
    return [*_figures(took, refused, stored, lasted, rate), *map(_spent, spent.items())]


def _spent(part: tuple[str, float]) -> Figure:
    timed = "processor time over the whole load, by its number of jobs; independent of other load on the machine"
    return Figure(name=f"a submission costs {part[0]}", value=part[1], unit="ms", timed=timed)


def _figures(took: list[float], refused: list[float], stored: int, lasted: float, rate: float) -> list[Figure]:
    took.sort()
    timed = f"POST over HTTP, {len(BODY)} B body, {rate:g}/s for {lasted:.1f} s, token cached, committed before 201"
    missed = max(0.0, rate - len(took) / lasted)
    return [
        Figure(name="submissions answered 201", value=len(took) / lasted, unit="1/s", timed=timed),
        Figure(name="submissions short of the rate", value=missed, unit="1/s", bound=rate * 0.01, timed=timed),
        Figure(name="submissions refused", value=len(refused), unit="jobs", bound=0, timed=timed),
        Figure(name="201 without a stored job", value=len(took) - stored, unit="jobs", bound=0, timed=timed),
        Figure(name="a submission, median", value=took[len(took) // 2] * 1000, unit="ms", timed=timed),
        Figure(name="a submission, 99th percentile", value=took[len(took) * 99 // 100] * 1000, unit="ms", timed=timed),
    ]


if __name__ == "__main__":
    from rich.console import Console

    arguments = [float(word) for word in sys.argv[1:]]
    show(Console(width=160), "submissions", asyncio.run(measure(*arguments)))
