"""What a process costs, as the kernel counts it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident and unique (private) memory, in MiB."""

    rss_mib: float
    uss_mib: float


def cpu_s(pid: int) -> float:
    """Seconds of CPU a process has used, its own threads, not its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory(pid: int) -> Memory:
    """Read from smaps_rollup."""
    kib: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        kib[name] = int(value.split()[0])
    return Memory(rss_mib=kib["Rss"] / 1024, uss_mib=(kib["Private_Clean"] + kib["Private_Dirty"]) / 1024)


def peak_mib() -> float:
    """The most that this process was resident with; ``ru_maxrss`` also has what the process that started it was."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
