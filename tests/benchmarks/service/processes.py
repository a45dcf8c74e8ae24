"""CPU and memory of a process, as counted by the kernel."""

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
    """CPU seconds of a process and its threads, without its children."""
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
    """The highest resident memory of this process; ``ru_maxrss`` would include that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
