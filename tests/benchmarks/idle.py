"""What the service costs when nothing happens."""

from __future__ import annotations

import time

from jupyter_gpu_quota.demo.temporary_hub import Stage
from tests.benchmarks.figures import Figure
from tests.benchmarks.processes import cpu_s, memory
from tests.soak.killer import controller, keeper, web_door

SETTLE_S, WATCHED_S = 5.0, 30.0


def figures(stage: Stage) -> list[Figure]:
    """CPU over half a minute and memory of the three processes, hub up, nobody there."""
    pids = {"keeper": keeper(stage), "web door": web_door(stage), "controller": controller(stage)}
    living = {name: pid for name, pid in pids.items() if pid is not None}
    assert living.keys() == pids.keys(), f"a process of the service is not there: {pids}"
    time.sleep(SETTLE_S)
    before = {name: cpu_s(pid) for name, pid in living.items()}
    time.sleep(WATCHED_S)
    used = {name: (cpu_s(pid) - before[name]) / WATCHED_S * 100 for name, pid in living.items()}
    told = f"user and system time in /proc/PID/stat over {WATCHED_S:.0f} s, no jobs, no servers"
    total = Figure(name="idle CPU, all three", value=sum(used.values()), unit="% of a core", timed=told, bound=1.0)
    each = [
        Figure(name=f"idle CPU, {name}", value=value, unit="% of a core", timed=told) for name, value in used.items()
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
