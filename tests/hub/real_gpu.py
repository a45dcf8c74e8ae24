"""A real hub over real readings: its service asks the real nvidia-ml-py, which loads the fake library of the GPU tests.

Kernels and jobs are real processes; what they use of the device is what the script says of their numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu
from tests.hub.real_hub import RealHub, real_hub
from tests.hub.test_lending import Owner
from tests.patience import until

MODEL, MEMORY_MIB = "NVIDIA H200", 143_771
DEVICE = "GPU-0"
QUOTA = """\
version: 1
pools:
  - {{name: build, selector: {{gpu_model: ["NVIDIA H200"]}}, uses: [notebook, training]}}
projects:
  - name: build
    members: {{groups: [builders]}}
    quota: {{build: {{notebook: 0.5, training: 0.5}}}}
policy: {policy}
"""
REAL_DEVICES = """
c.GPUQuota.simulated_devices = []
c.GPUQuota.quota_file = {folder!r} + "/real.yaml"
"""
LIBRARY = """
for _service in c.JupyterHub.services:
    if _service["name"] == "gpu-quota":
        _service["environment"].update({variables!r})
"""
KERNEL_PID = "import os; print(os.getpid())"
SLOW_S = 120


class GpuHub(RealHub):
    """Steps of a test with such a hub: put processes on the device, read the reports of it."""

    def __init__(self, hub: RealHub, script: Script) -> None:
        super().__init__(hub.stage)
        self.script = script

    def uses(self, pid: int, mib: int, percent: int | None) -> None:
        """Put a process on the device: MiB, and how busy it is; None: no sample of it."""
        FakeGpu(self.script).uses(pid, mib, percent)

    def now_uses(self, pid: int, mib: int, percent: int | None) -> None:
        """A process that is on the device uses it otherwise from now on."""
        self.off(pid)
        self.uses(pid, mib, percent)

    def off(self, pid: int) -> None:
        """Take a process off the device; its memory is free again, and nobody is busy."""
        gone = next(line for line in self.script.lines if line.startswith(f"0 process {pid} "))
        total, used = (int(part) for part in FakeGpu(self.script).line("0", "memory"))
        self.script.drop(f"0 process {pid}")
        self.script.put(f"0 memory {total} {used - int(gone.split()[3])}", "0 percent 0")

    def device(self) -> dict[str, Any]:
        """The device, as the API tells it."""
        (found,) = self.service("GET", "/devices", token=self.stage.admin_token).body["items"]
        return dict(found)

    def device_for(self, name: str) -> dict[str, Any]:
        """The device, as the pages of a user read it."""
        (found,) = self.service("GET", "/devices", token=self.person(name).token).body["items"]
        return dict(found)

    def notebook_for(self, name: str, notebook: str) -> dict[str, Any]:
        """A notebook, as the pages of a user read it; {} where they do not list it."""
        items = self.service("GET", "/notebooks?stopped=1", token=self.person(name).token).body["items"]
        return next((dict(item) for item in items if item["id"] == notebook), {})

    def holder(self, kind: str) -> dict[str, Any]:
        """The holder of this kind, as the device's row tells it to an administrator; {} where there is none."""
        devices = self.service("GET", "/devices", token=self.stage.admin_token).body["items"]
        found = [holder for device in devices for holder in device["holders"] if holder["kind"] == kind]
        return dict(found[0]) if found else {}

    def begin_job(self, code: str, *, gpu: str = "1", user: str = "ben") -> str:
        """Somebody submits a job."""
        body = {"command": [sys.executable, "-S", "-c", code], "gpu": gpu, "project": "build", "pool": "build"}
        answer = self.service("POST", "/jobs", body, token=self.person(user).token)
        assert answer.status == 201, answer
        return str(answer.body["id"])

    def runs(self, job: str) -> int:
        """The process of a job, once it runs."""
        path, token = f"/jobs/{job}", self.stage.admin_token
        until(lambda: self.service("GET", path, token=token).body["state"] == "running", SLOW_S)
        return int(self.service("GET", path, token=token).body["rank_records"][0]["handle"])


@contextmanager
def gpu_hub(folder: Path, built: Path, *, policy: str = "{}", before: str = "") -> Iterator[GpuHub]:
    """A hub whose machine has one device, of the fake library in ``built``; ``policy`` is YAML of one line."""
    folder.mkdir(parents=True, exist_ok=True)
    script = Script(folder / "script")
    script.add("system driver 615.71.01")
    script.device(0, model=MODEL, memory_mib=MEMORY_MIB)
    (folder / "real.yaml").write_text(QUOTA.format(policy=policy))
    variables = {"LD_LIBRARY_PATH": str(built), "FAKE_NVML_SCRIPT": str(script.path)}
    settings = REAL_DEVICES.format(folder=str(folder)) + before
    with real_hub(folder, before=settings, after=LIBRARY.format(variables=variables)) as hub:
        yield GpuHub(hub, script)


class GpuOwner(Owner):
    """Ann, whose kernel holds memory of the device."""

    def __init__(self, hub: GpuHub, mib: int = 2_000) -> None:
        super().__init__(hub)
        self.pid = int(self.run(self.gpu, KERNEL_PID))
        hub.uses(self.pid, mib, None)
