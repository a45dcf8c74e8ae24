"""A cgroup (v2) for each rank and each notebook server: it lists, limits and kills the processes in it.

    <the service's own group>/jupyter-gpu-quota-<state folder, hashed>/job.<id>.<attempt>.<rank>
                                                                      /notebook.<id>

An admin's limits on the service's own group cover its jobs and servers too; ``within`` names another group. Where no
group can be made, work runs without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from .cgroup_entry import kill

if TYPE_CHECKING:
    from ....core.enforcement.levels import DeviceShare

MOUNTS = "/proc/self/mountinfo"
DRIVER_ROOT = Path("/sys/fs/cgroup")
"""Where the driver expects cgroup v2."""

CONTROLLERS = ("dmem", "memory")
"""The kernel's controller of device memory (from 6.14 on), without which the driver counts the memory, and the one of
host memory, which says whether the kernel killed a process because memory was exhausted."""

MAKE_TRIES = 3
"""A removal of the last cgroup may take the parent with it while another is made."""

_NAME = re.compile(r"(job|notebook)\.[0-9A-Za-z._-]{1,128}\Z")


def mounted(mounts: str = MOUNTS) -> Path | None:
    """Where cgroup v2 is mounted; None where it is not."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    return None


def own_group(proc: str = "/proc/self/cgroup") -> str:
    """The cgroup of this process, as a path below where cgroup v2 is mounted."""
    with contextlib.suppress(OSError):
        for line in Path(proc).read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return "/"


def _enable(folder: Path, controller: str) -> None:
    """Enable a controller for the groups in a folder; nothing where the kernel or its owner does not allow it."""
    with contextlib.suppress(OSError):
        if controller in (folder / "cgroup.controllers").read_text().split():
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def job_cgroup(job: str, attempt: int, rank: int) -> str:
    return f"job.{job}.{attempt}.{rank}"


def notebook_cgroup(notebook: str) -> str:
    return f"notebook.{notebook}"


def cgroup_of(share: DeviceShare) -> str:
    """The cgroup of a share's processes."""
    return notebook_cgroup(share.workload) if share.notebook else job_cgroup(share.workload, share.attempt, share.rank)


class Cgroups:
    """The cgroups of one state folder. ``root``: where cgroup v2 is mounted, if that is known."""

    def __init__(self, state_dir: str | os.PathLike[str], root: Path | None = None, within: str = "") -> None:
        self.root = root or mounted()
        self._within = None if self.root is None else self.root / (within or own_group()).strip("/")
        folder = hashlib.sha256(os.fsencode(Path(state_dir).absolute())).hexdigest()[:8]
        self._parent = None if self._within is None else self._within / f"jupyter-gpu-quota-{folder}"

    @property
    def why_not(self) -> str:
        """Why no cgroup can be made; empty where one can."""
        if self._within is None or self.root is None:
            return "cgroup v2 is not mounted"
        if ".." in self._within.relative_to(self.root).parts or "\0" in str(self._within):
            return f"{str(self._within)!r} is no path below {self.root}"
        return "" if os.access(self._within, os.W_OK) else f"{self._within} cannot be written to"

    @property
    def why_no_limits(self) -> str:
        """Why the driver can limit none of these cgroups; empty where it can. Source: as in :mod:`.mechanisms`."""
        if self.why_not or self.root == DRIVER_ROOT:
            return self.why_not
        return f"cgroup v2 is mounted at {self.root}, and the driver expects it at {DRIVER_ROOT}"

    def path(self, name: str) -> Path:
        """The folder of a cgroup. Raises ValueError where no workload can have this name."""
        if not _NAME.match(name) or self._parent is None:
            raise ValueError(f"{name!r} is not the name of a workload's cgroup")
        return self._parent / name

    def exists(self, name: str) -> bool:
        return self._parent is not None and self.path(name).is_dir()

    def make(self, name: str) -> str:
        """Make a cgroup, with those of :data:`CONTROLLERS` that there are. Returns why that failed, or ""."""
        if self.why_not or self._parent is None or self._within is None:
            return self.why_not
        for tries_left in range(MAKE_TRIES - 1, -1, -1):
            try:
                self._parent.mkdir(mode=0o755, exist_ok=True)
                for folder, controller in product((self._within, self._parent), CONTROLLERS):
                    _enable(folder, controller)
                self.path(name).mkdir(mode=0o755, exist_ok=True)
            except OSError as error:
                if not tries_left or not isinstance(error, FileNotFoundError):
                    return f"{self.path(name)} cannot be made: {error.strerror}"
            else:
                break
        return ""

    def names(self) -> list[str]:
        """Every cgroup that exists."""
        try:
            found = [] if self._parent is None else sorted(path.name for path in self._parent.iterdir())
        except OSError:
            return []
        return [name for name in found if _NAME.match(name) and self.exists(name)]

    def processes(self, name: str) -> frozenset[int]:
        """The processes in a cgroup; none where it does not exist."""
        with contextlib.suppress(OSError, ValueError):
            return frozenset(map(int, (self.path(name) / "cgroup.procs").read_text().split()))
        return frozenset()

    def kill(self, name: str) -> bool:
        """Kill all processes in a cgroup. Returns whether the kernel accepted it."""
        return self.exists(name) and kill(str(self.path(name)))

    def remove(self, name: str) -> bool:
        """Remove an empty cgroup, and the parent of all cgroups with the last one. Returns False for one in use."""
        try:
            self.path(name).rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        with contextlib.suppress(OSError):  # it contains others
            assert self._parent is not None
            self._parent.rmdir()
        return True
