"""How much host memory is left for what a suspended kernel brings from its GPU, by the machine and control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
KIB_A_MIB = 1 << 10
RESERVE_MIB = 512
"""What is left to everything else."""


def room_mib(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """MiB that may still be used here; None where nothing tells. The tightest limit counts."""
    known = [mib for mib in (_of_the_machine(proc), *_of_the_groups(proc, groups)) if mib is not None]
    return max(0, min(known) - RESERVE_MIB) if known else None


def _of_the_machine(proc: Path) -> int | None:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) // KIB_A_MIB for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_the_groups(proc: Path, groups: Path) -> Iterator[int | None]:
    """Each control group from ours upwards, of either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            yield from _upwards(groups, path, "memory.max", "memory.current")
        elif "memory" in kinds.split(","):
            yield from _upwards(groups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _upwards(root: Path, path: str, limit: str, used: str) -> Iterator[int | None]:
    place = Path(path.lstrip("/"))
    for group in (place, *place.parents):
        yield _left(root / group, limit, used)


def _left(group: Path, limit: str, used: str) -> int | None:
    """What a group may still take; pages of files that nobody uses are given back when they are needed."""
    try:
        most = (group / limit).read_text().strip()
        taken = int((group / used).read_text())
        if most == "max":
            return None
        return (int(most) - taken + _inactive(group)) // MIB
    except (OSError, ValueError):
        return None


def _inactive(group: Path) -> int:
    lines = (group / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
