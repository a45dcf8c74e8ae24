"""Enters, kills and reads a cgroup, for job supervisors: they start often, so they import little."""

from __future__ import annotations

import os


def join(cgroup: str) -> None:
    """Put this process, which has one thread, into a cgroup. Raises OSError where that is not possible."""
    fd = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def kill(cgroup: str) -> bool:
    """Kill all processes in a cgroup at once (Linux 5.14 on). Returns whether the kernel accepted it."""
    try:
        fd = os.open(f"{cgroup}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"1")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def machine_oom_kills(vmstat: str = "/proc/vmstat") -> int:
    """How many processes the kernel has killed since it started because memory was exhausted; 0 if it does not say."""
    try:
        with open(vmstat, encoding="ascii") as file:
            return int(dict(line.split() for line in file).get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def had_oom_kill(cgroup: str) -> bool:
    """Whether the kernel killed a process of it because memory was exhausted, of the cgroup or of the machine.

    False also where the cgroup does not have the memory controller. Source: memory.events in cgroup-v2.rst.
    """
    try:
        with open(f"{cgroup}/memory.events", encoding="ascii") as file:
            events = dict(line.split() for line in file)
        return int(events.get("oom_kill", 0)) > 0
    except (OSError, ValueError):
        return False
