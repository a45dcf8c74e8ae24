"""The start of a kernel whose slice is lent: a real hub and service, real jobs, the real provisioner.

This program reports for the servers of the notebooks that nothing runs in them, so that their slices are lent. Then the
provisioner starts one kernel after the other, each time while eight jobs have the whole device, and an observer checks
in the process table that no device is ever overcommitted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.demo.observer import ProcessObserver, belongs_to
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from jupyter_gpu_quota.notebook import PROVISIONER
from jupyter_gpu_quota.notebook.slice_requests import requester
from tests.benchmarks.figures import Figure, spread
from tests.soak.rest_calls import ask

USERS = tuple(f"user{number}" for number in range(8))
TOKEN = "b" * 64
LENT_GRACE_S, TICK_S = 2, 1
QUOTA = f"""\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: [Simulated 16G]}}, uses: [notebook, training]}}
projects:
  - {{name: red, members: {{users: [ann]}}, quota: {{build: {{weight: 1}}}}, defaults: {{pool: {{training: build}}}}}}
  - {{name: blue, members: {{users: [{", ".join(USERS)}]}}, quota: {{build: {{notebook: 1}}}}}}
policy:
  idle: {{mode: reclaim, gpu_idle_after: 3s, kernel_idle_after: 3s, when_nobody_waits: 3s, warn_for: 1s}}
  preemption: {{min_runtime: 0s, grace: 5s, lent_grace: {LENT_GRACE_S}s, max_pauses: 10000, per: 24h}}
"""
CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.api_token = "{token}"
c.GPUQuota.simulated_devices = [{{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}}]
"""
YIELDS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(600)"
STAYS = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
REPORT_S = 2.1
WITHIN_S = 120.0


def figures(quick: bool) -> Sequence[Figure]:
    """With borrowers that end at once, and with borrowers that have to be killed."""
    rounds = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder, _hub(Path(folder)) as hub:
        observer = ProcessObserver(belongs_to(hub.folder, f"http://127.0.0.1:{hub.ports.hub}/"))
        observer.start()
        try:
            at_once = [took for _ in range(rounds) for took in _round(hub, YIELDS)]
            killed = _round(hub, STAYS)
        finally:
            observer.stop()
    bound = LENT_GRACE_S + 2 * TICK_S
    timed = "kernel start requested from the provisioner until its process exists, 8 borrowers on the device"
    return [
        *spread("wake-up, the borrower ends at once", at_once, "s", timed, median_at_most=1.0, worst_at_most=bound),
        _at("wake-up, the borrower ends at once, 90 %", sorted(at_once)[len(at_once) * 9 // 10], timed),
        *spread("wake-up, the borrower must be killed", killed, "s", f"{timed}; lent_grace 2 s", worst_at_most=bound),
        Figure(
            name="wake-up, an overcommitted device", value=len(observer.violations), unit="times", bound=0,
            timed=f"{observer.reads} readings of the process table, at most {observer.highest} milli-GPU on a device",
        ),
    ]  # fmt: skip


def _at(name: str, value: float, timed: str) -> Figure:
    return Figure(name=name, value=value, unit="s", timed=timed)


@contextmanager
def _hub(folder: Path) -> Iterator[TemporaryHub]:
    quota = folder / "quota.yaml"
    quota.write_text(QUOTA)
    config = CONFIG.format(quota=quota, token=TOKEN)
    hub = TemporaryHub(folder / "hub", users=HubUsers(groups={}, users=("ann", *USERS)), extra_config=config)
    try:
        hub.start()
        yield hub
    finally:
        hub.end()


def _round(hub: TemporaryHub, code: str) -> list[float]:
    """Book eight slices, wait until they are lent to eight jobs, and start a kernel of each owner; seconds of each."""
    notebooks = {user: _book(hub, user) for user in USERS}
    jobs = [_submit(hub, code) for _ in USERS]
    leaving = threading.Event()
    reports = threading.Thread(target=_report, args=(hub, notebooks, leaving), daemon=True)
    reports.start()
    try:
        _until(lambda: _running(hub) == set(jobs))
    finally:
        leaving.set()
        reports.join(10)
    took = [asyncio.run(_woken(hub, user, notebook)) for user, notebook in notebooks.items()]
    for notebook in notebooks.values():
        ask("DELETE", f"{hub.service_api}/notebooks/{notebook}", TOKEN)
    for job in jobs:
        ask("POST", f"{hub.service_api}/jobs/{job}/actions/cancel", hub.token_of("ann"), {})
    _until(lambda: not _running(hub))
    return took


def _book(hub: TemporaryHub, user: str) -> str:
    hub.token_of(user)
    body = {"user": user, "server": "", "project": "blue", "pool": "build", "gpu": "1/8"}
    answer = ask("POST", f"{hub.service_api}/notebooks", TOKEN, body, 30)
    assert answer.status == 201, answer.text
    return str(answer.body["id"])


def _submit(hub: TemporaryHub, code: str) -> str:
    body = {"command": [sys.executable, "-S", "-c", code], "gpu": "1/8", "project": "red", "pool": "build"}
    answer = ask("POST", f"{hub.service_api}/jobs", hub.token_of("ann"), body, 30)
    assert answer.status == 201, answer.text
    return str(answer.body["id"])


def _running(hub: TemporaryHub) -> set[str]:
    answer = ask("GET", f"{hub.service_api}/jobs?live=1", hub.token_of("ann"))
    return {job["id"] for job in answer.body["items"] if job["state"] in ("running", "starting", "pausing")}


def _report(hub: TemporaryHub, notebooks: dict[str, str], leaving: threading.Event) -> None:
    """Report for eight servers in which nothing runs."""
    sequence = 0
    while not leaving.is_set():
        body: dict[str, Any] = {"instance": "played", "sequence": sequence, "running_ms": 60_000 + sequence * 2_100}
        body |= {"kernels": [], "programs": [], "asks_first": True}
        for user, notebook in notebooks.items():
            ask("POST", f"{hub.service_api}/notebooks/{notebook}/activity", hub.token_of(user), body)
        sequence += 1
        leaving.wait(REPORT_S)


async def _woken(hub: TemporaryHub, user: str, notebook: str) -> float:
    """Start a kernel as the server of this user would; seconds until its process exists."""
    requester.cache_clear()
    KernelProvisionerFactory.clear_instance()
    os.environ |= {
        "JUPYTER_GPU_QUOTA_URL": f"{hub.url}/services/gpu-quota/",
        "JUPYTERHUB_API_TOKEN": hub.token_of(user),
        "JUPYTERHUB_SERVICE_PREFIX": f"/user/{user}/",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.ports.hub}/hub/api",
        SHARE_VARIABLE: json.dumps({"notebook": notebook, "gpu_milli": 125, "memory_mib": 2048}),
    }
    KernelProvisionerFactory.instance().default_provisioner_name = PROVISIONER
    requester().may_be_lent = True
    kernel = AsyncKernelManager(kernel_name="python3")
    began = time.perf_counter()
    await kernel.start_kernel()
    took_s = time.perf_counter() - began
    assert await kernel.is_alive()
    await kernel.shutdown_kernel(now=True)
    return took_s


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
