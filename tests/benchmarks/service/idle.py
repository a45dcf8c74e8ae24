"""CPU and memory of an idle service."""

from __future__ import annotations

import time

from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.benchmarks.figures import Figure
from tests.benchmarks.service.processes import cpu_s, memory
from tests.soak.killer import api_process, controller, supervisor

SETTLE_S, WATCHED_S = 5.0, 30.0


def figures(hub: TemporaryHub) -> list[Figure]:
    """CPU over half a minute and memory of the three processes, with a running hub and no users."""
    pids = {"supervisor": supervisor(hub), "API": api_process(hub), "controller": controller(hub)}
    living = {name: pid for name, pid in pids.items() if pid is not None}
    assert living.keys() == pids.keys(), f"a process of the service is not there: {pids}"
    time.sleep(SETTLE_S)
    before = {name: cpu_s(pid) for name, pid in living.items()}
    time.sleep(WATCHED_S)
    used = {name: (cpu_s(pid) - before[name]) / WATCHED_S * 100 for name, pid in living.items()}
    timed = f"user and system time in /proc/PID/stat over {WATCHED_S:.0f} s, no jobs, no servers"
    total = Figure(name="idle CPU, all three", value=sum(used.values()), unit="% of a core", timed=timed, bound=1.0)
    each = [
        Figure(name=f"idle CPU, {name}", value=value, unit="% of a core", timed=timed) for name, value in used.items()
    ]
    return [total, *each, *(figure for name, pid in living.items() for figure in _memory(name, pid))]


def _memory(name: str, pid: int) -> list[Figure]:
    seen = memory(pid)
    return [
        Figure(
            name=f"memory, {name}, resident",
            value=seen.rss_mib,
            unit="MiB",
            timed="Rss of smaps_rollup, idle",
            bound=300,
        ),
        Figure(
            name=f"memory, {name}, unique", value=seen.uss_mib, unit="MiB", timed="private pages of smaps_rollup, idle"
        ),
    ]
