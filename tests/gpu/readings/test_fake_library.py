"""The sampler on the fake library."""

from __future__ import annotations

import os

from jupyter_gpu_quota.core.model import Health
from tests.gpu.world import FakeGpu


# --- devices ------------------------------------------------------------------------------------------------------
def test_devices_are_named_as_nvml_names_them(fake: FakeGpu) -> None:
    fake.script.device(0)
    fake.script.device(1, model="NVIDIA T4", memory_mib=15_360)
    found = [(d.id, d.uuid, d.index, d.model, d.memory_mib, d.health, d.simulated) for d in fake.devices()]
    assert found == [
        ("GPU-0", "GPU-0", 0, "NVIDIA H200", 143_771, Health.HEALTHY, False),
        ("GPU-1", "GPU-1", 1, "NVIDIA T4", 15_360, Health.HEALTHY, False),
    ]


def test_an_idle_device_is_known_to_be_idle(fake: FakeGpu) -> None:
    fake.script.device(0)
    row = fake.row()
    assert (row.utilisation_percent, row.memory_used_mib, row.temperature_c, row.power_w) == (0, 0, 40, 120)
    assert (row.coverage_permille, row.simulated, row.foreign_mib, dict(row.why)) == (1000, False, 0, {})


def test_a_process_of_a_job_is_attributed_to_the_job(fake: FakeGpu) -> None:
    fake.script.device(0)
    pid = fake.start(2000, busy=True)
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.workload_memory_mib, row.foreign_mib) == ({"J": 60}, {"J": 2000}, 0)
    assert row.utilisation_percent == 60
    assert os.getpid() > 0
