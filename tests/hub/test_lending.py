"""An idle notebook lends its slice and gets it back, on a real hub with a real server, real kernels and a real job."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_gpu_quota.demo.lending import CPU_KERNEL
from jupyter_gpu_quota.demo.users import Kernel, User
from tests.hub import real_hub as hubs
from tests.hub.real_hub import RealHub, real_hub
from tests.patience import Stopwatch, stays, until

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

LENDS = (
    hubs.QUOTA_FILE
    + """
policy:
  idle: {mode: reclaim, gpu_idle_after: 6s, kernel_idle_after: 6s, when_nobody_waits: 10m, warn_for: 3s}
  preemption: {min_runtime: 0s, lent_grace: 3s, max_pauses: 100}
"""
)
COMES_BACK_S = 3 + 17
"""The grace of a borrower, and what a slow machine needs to start a kernel. The figure is that of `make bench`."""
YIELDS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(600)"
STAYS = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
QUARTER = {"gpu_project": "build", "gpu_size": "1/4"}
SLOW_S = 120


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHub]:
    monkeypatch.setattr(hubs, "QUOTA_FILE", LENDS)
    with real_hub(tmp_path) as made:
        yield made


class Owner:
    """Ann, with a server of her own, a kernel that has the GPU and one that wants none."""

    def __init__(self, hub: RealHub) -> None:
        self.hub, self.person = hub, hub.person("ann")
        spec = hub.stage.home("ann") / ".local" / "share" / "jupyter" / "kernels" / "cpu"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(json.dumps(CPU_KERNEL))
        hub.start("ann", QUARTER)
        self.gpu, self.cpu = self.start("python3"), self.start("cpu")
        self.run(self.gpu, "model = list(range(1_000))")
        self.run(self.cpu, "kept = 42")

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = hubs._call(method, f"{self.person.server_url}{path}", self.person.token, body)
        assert answer.status < 300, answer
        return answer.body

    def start(self, name: str) -> str:
        return str(self.call("POST", "/api/kernels", {"name": name})["id"])

    def kernels(self) -> set[str]:
        return {kernel["id"] for kernel in self.call("GET", "/api/kernels")}

    def run(self, kernel: str, code: str) -> str:
        return asyncio.run(_run(self.person, kernel, code))

    def slice(self) -> dict[str, Any]:
        items = self.hub.service("GET", "/notebooks").body["items"]
        return next(dict(item) for item in items if item["user"] == "ann")


async def _run(person: User, kernel: str, code: str) -> str:
    address = f"{person.server_url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
    request = HTTPRequest(address, headers={"Authorization": f"token {person.token}"}, request_timeout=60)
    found = Kernel(await websocket_connect(request), kernel)
    try:
        return await found.run(code, SLOW_S)
    finally:
        found.close()


def borrower(hub: RealHub, code: str) -> int:
    """Ben submits a job for the whole device; the process of it, once it runs."""
    body = {"command": [sys.executable, "-S", "-c", code], "gpu": "1", "project": "build", "pool": "build"}
    token = hub.person("ben").token
    job = hub.service("POST", "/jobs", body, token=token).body["id"]
    until(lambda: hub.service("GET", f"/jobs/{job}", token=token).body["state"] == "running", SLOW_S)
    pid = hub.service("GET", f"/jobs/{job}", token=token).body["rank_records"][0]["handle"]
    assert lives(pid)
    return int(pid)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def comes_back(owner: Owner, pid: int) -> float:
    """Start a kernel; the borrower must be gone before it. Returns the seconds until the server says it is there."""
    with Stopwatch() as watch:
        kernel = owner.start("python3")
    assert not lives(pid)
    found = owner.run(kernel, "import os; print(os.environ['GPU_QUOTA_MILLI'], os.environ['CUDA_VISIBLE_DEVICES'])")
    (part,) = owner.slice()["allocations"]
    assert found.split() == ["250", part["device_uuid"]]
    return watch.seconds


def test_a_loan_survives_a_restart_of_the_hub_and_the_slice_returns_for_a_kernel(hub: RealHub) -> None:
    owner = Owner(hub)
    pid = borrower(hub, YIELDS)
    assert owner.kernels() == {owner.cpu}
    assert owner.slice()["state"] == "lent"
    hub.restart_after_kill()
    until(lambda: hub.server("ann").get("ready"))
    # the service that started anew looks meanwhile, and takes nothing back for that
    assert stays(lambda: lives(pid) and owner.slice()["state"] == "lent", 5)
    assert comes_back(owner, pid) <= COMES_BACK_S
    assert owner.run(owner.cpu, "print(kept)") == "42\n"


def test_a_borrower_that_does_not_leave_is_killed_before_the_owner_has_its_kernel(hub: RealHub) -> None:
    owner = Owner(hub)
    pid = borrower(hub, STAYS)
    assert comes_back(owner, pid) <= COMES_BACK_S
    assert owner.slice()["state"] == "booked"
