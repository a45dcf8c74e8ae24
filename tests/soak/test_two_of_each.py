"""Two api and two controllers processes on PostgreSQL, killed and frozen at random: no job is lost or runs twice.

Fake here: the hub, which answers whose token it is. The processes, their database and the jobs are real.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.api.world import PREFIX, FakeAccount, FakeHub, serving, variables_of_service
from tests.patience import PATIENCE_S, until
from tests.soak.checks import broken_promises, check_audit, wait_for_rest
from tests.soak.rest_calls import ask
from tests.soak.stream import Stream
from tests.store.database.postgresql_server import database, why_missing

SEED = int(os.environ.get("GPU_QUOTA_SEED", "42"))
PROCESSES = ("api 1", "api 2", "controllers 1", "controllers 2")
LEASE_MS = 3_000
QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
projects:
  - {name: red, members: {users: [ann]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - {name: blue, members: {users: [ben]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
policy:
  preemption: {min_runtime: 0s, grace: 1s, lent_grace: 1s, max_pauses: 50, per: 24h}
"""


class Deployment:
    """Four processes with one state folder and one database; the API is called at both addresses in turn."""

    def __init__(self, folder: Path, database_url: str, hub_port: int) -> None:
        state = folder / "state"
        state.mkdir()
        (folder / "quota.yaml").write_text(QUOTA)
        settings: dict[str, object] = {
            "state_dir": str(state), "database_url": database_url, "quota_file": str(folder / "quota.yaml"),
            "simulated_devices": [{"model": "Simulated 80G", "memory_mib": 81_920, "count": 2}],
            "lease_ms": LEASE_MS, "validate_state": True, "changes_per_s": 1000, "changes_at_once": 1000,
        }  # fmt: skip
        self.folder, self.admin_token, self.hub_api = folder, "token-root", f"http://127.0.0.1:{hub_port}/hub/api"
        self.sockets = {name: _listening() for name in PROCESSES if name.startswith("api")}
        ports = {name: each.getsockname()[1] for name, each in self.sockets.items()}
        self._environment = variables_of_service(settings, hub_port, ports["api 1"])
        self._addresses = itertools.cycle([f"http://127.0.0.1:{port}{PREFIX}api/v1" for port in ports.values()])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def service_api(self) -> str:
        return next(self._addresses)

    def start(self, name: str) -> None:
        arguments, passed = ["controller"], ()
        if name in self.sockets:
            passed = (self.sockets[name].fileno(),)
            arguments = ["api", "--listening", str(passed[0])]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "jupyter_gpu_quota", *arguments],
                env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=passed,
            )  # fmt: skip

    def has_quota(self) -> bool:
        """Whether both APIs know the quota file, which a controller puts in force."""
        return all(ask("GET", f"{self.service_api}/quota", self.admin_token).status == 200 for _ in self.sockets)

    def logs(self) -> str:
        return "".join((self.folder / f"{name}.log").read_text() for name in PROCESSES)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.communicate(timeout=PATIENCE_S)
        for each in self.sockets.values():
            each.close()


def _listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=128)


@contextmanager
def fake_hub() -> Iterator[int]:
    """The port of a hub that knows ann, ben and an admin."""
    hub, loop, ready = FakeHub(), asyncio.new_event_loop(), list[int]()
    hub.users = {"ann": FakeAccount(), "ben": FakeAccount(), "root": FakeAccount(admin=True)}

    async def serve() -> None:
        ready.append(serving(hub.application())[1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(serve(), loop).result(PATIENCE_S)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    if (why := why_missing()) is not None:
        pytest.skip(why)
    with ExitStack() as stack:
        url, port = stack.enter_context(database()), stack.enter_context(fake_hub())
        made = Deployment(tmp_path, url, port)
        stack.callback(made.close)
        for name in PROCESSES:
            made.start(name)
        until(made.has_quota, what=made.logs)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_faults_of_two_processes_each_lose_nothing(deployment: Deployment) -> None:
    run_with_faults(deployment, faults=10)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_sixty_faults_of_two_processes_each_lose_nothing(deployment: Deployment) -> None:
    run_with_faults(deployment, faults=60)


def run_with_faults(deployment: Deployment, *, faults: int) -> None:
    diary, rng = deployment.folder / "diary", random.Random(f"faults {SEED}")
    stream = Stream(deployment, diary, {"ann": "token-ann", "ben": "token-ben"}, seed=SEED, with_servers=False)
    stream.start()
    done = [_fault(deployment, rng) for _ in range(faults) if not stream.faults]
    stream.end()
    known = wait_for_rest(deployment, stream.sent, 180)
    print(f"seed {SEED}: {len(done)} faults, {len(stream.sent)} jobs")
    assert stream.faults == [] and len(done) == faults
    assert list(broken_promises(stream.sent, known, diary)) == []
    assert stream.sent
    check_audit(deployment.service_api, deployment.admin_token)
    logs = deployment.logs()
    assert "violates an invariant" not in logs and "Traceback" not in logs, logs[-4000:]


def _fault(deployment: Deployment, rng: random.Random) -> str:
    """Kill one process and start it again, or freeze it for longer than a lease; drawn by seed."""
    name, freezes = rng.choice(PROCESSES), rng.random() < 0.4
    time.sleep(rng.uniform(0.0, 2.0))
    process = deployment.processes[name]
    if freezes:
        process.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_MS / 1000 + rng.uniform(0.5, 2.0))
        process.send_signal(signal.SIGCONT)
    else:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        deployment.start(name)
    return name
