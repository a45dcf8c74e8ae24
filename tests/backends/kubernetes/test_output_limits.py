"""The limit of outputs is enforced again after an error of the volume."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.jobs import output_limits
from jupyter_gpu_quota.backends.kubernetes.jobs.output_limits import OutputLimits
from tests.patience import until_in_loop


class Running:
    """Two attempts with a limit. The folder of the first cannot be measured, that of the second is above its limit."""

    def __init__(self) -> None:
        self.measured, self.stopped = list[str](), set[str]()
        self.records = self
        self.objects = {
            job: {
                "metadata": {"labels": {"gpu-quota.jupyter.org/job": job, "gpu-quota.jupyter.org/attempt": "1"}},
                "data": {"order": json.dumps({"ranks": 1, "outputs_limit_mib": 5})},
            }
            for job in ("A", "B")
        }

    def pods_of(self, job: str, attempt: int) -> list[dict[str, Any]]:
        return [{"metadata": {"name": job}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}]

    def excess(self, job: str, limit_mib: int) -> str:
        self.measured.append(job)
        if job == "A":
            raise OSError(116, "Stale file handle")
        return "too much"

    async def delete(self, pod: dict[str, Any], *_: object) -> None:
        self.stopped.add(pod["metadata"]["name"])


async def test_a_folder_that_cannot_be_measured_ends_no_enforcement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_limits, "EVERY_S", 0.0)
    running = Running()
    limits = asyncio.create_task(OutputLimits(running, running, lambda: 1).run())  # type: ignore[arg-type]
    await until_in_loop(lambda: running.measured.count("A") >= 2)
    assert running.stopped == {"B"} and not limits.done()
    limits.cancel()
