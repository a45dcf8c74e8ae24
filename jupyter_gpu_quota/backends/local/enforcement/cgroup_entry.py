"""Entering and killing a control group: for supervisors, which start often and so import little."""

from __future__ import annotations

import os


def join(cgroup: str) -> None:
    """Put this process, which has no threads beside, into a cgroup. Raises OSError where that cannot be."""
    fd = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def kill(cgroup: str) -> bool:
    """Kill all that is in a cgroup at once (Linux 5.14 on). Returns whether that could be asked for."""
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
