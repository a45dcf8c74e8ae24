"""The host memory available for the GPU memory of suspended kernels, by the machine and its cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
KIB_A_MIB = 1 << 10
RESERVE_MIB = 512
"""Memory that stays free for other uses."""


def available_mib(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Available MiB by the tightest limit; None if no limit can be read."""
    known = [mib for mib in (_available_on_machine(proc), *_available_in_cgroups(proc, groups)) if mib is not None]
    return max(0, min(known) - RESERVE_MIB) if known else None


def _available_on_machine(proc: Path) -> int | None:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) // KIB_A_MIB for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _available_in_cgroups(proc: Path, groups: Path) -> Iterator[int | None]:
    """Each cgroup from ours upwards, of either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            root, limit, used = groups, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit, used = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            yield _available_in_cgroup(root / group, limit, used)


def _available_in_cgroup(group: Path, limit: str, used: str) -> int | None:
    """Available MiB of a cgroup; its inactive file pages count as available."""
    try:
        most = (group / limit).read_text().strip()
        taken = int((group / used).read_text())
        if most == "max":
            return None
        lines = (group / "memory.stat").read_text().splitlines()
        inactive = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
        return (int(most) - taken + inactive) // MIB
    except (OSError, ValueError):
        return None
