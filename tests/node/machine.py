"""What a real node could leave behind on this machine: mounts, links, addresses, cgroups and kernel parameters."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
PARAMETERS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding",
)  # fmt: skip
"""What a kubelet and the plugins for networks set."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The state of a machine that a node must not change."""

    mounts: frozenset[str]
    links: frozenset[str]
    addresses: frozenset[str]
    parameters: tuple[tuple[str, str], ...]


def machine() -> Machine:
    mounts = (line.split(" - ")[0].split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    values = ((name, Path("/proc/sys", name)) for name in PARAMETERS)
    parameters = tuple((name, path.read_text()) for name, path in values if path.exists())
    links = frozenset(path.name for path in Path("/sys/class/net").iterdir())
    addresses = (line.strip() for line in Path("/proc/net/fib_trie").read_text().splitlines() if "|--" in line)
    return Machine(frozenset(mounts), links, frozenset(addresses), parameters)


def restore_parameters(before: Machine) -> None:
    """Set the kernel parameters that changed back."""
    for name, value in before.parameters:
        path = Path("/proc/sys", name)
        if path.read_text() != value:
            path.write_text(value)


def is_unified() -> bool:
    """Whether this machine has the one hierarchy of cgroup v2."""
    return (CGROUPS / "cgroup.controllers").exists()


def cgroups_of(name: str) -> list[Path]:
    """The cgroups with this name below the roots of all hierarchies."""
    return [path for path in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if path.is_dir()]


def processes_of(cgroup: str) -> list[int]:
    """The processes in the cgroups whose name begins so, without those that wait for their parents."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"/{cgroup}" in (path / "cgroup").read_text() and "State:\tZ" not in (path / "status").read_text():
                found.append(int(path.name))
    return found


def programs_file(cgroup: str) -> Path:
    """The file by which a process enters the cgroup of the programs of a node."""
    folder = (CGROUPS if is_unified() else CGROUPS / "pids") / f"{cgroup}-programs"
    folder.mkdir(exist_ok=True)
    return folder / "cgroup.procs"


def make_cgroups(name: str) -> None:
    """Make the cgroup below which a kubelet makes those of its pods."""
    if is_unified():
        (CGROUPS / name).mkdir(exist_ok=True)
        return
    for controller in CONTROLLERS:
        if (CGROUPS / controller).is_dir():
            (CGROUPS / controller / name).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / name / file).write_text((CGROUPS / "cpuset" / file).read_text())


def remove_cgroups(name: str) -> bool:
    """Remove the cgroups from the innermost on; returns whether none is left."""
    for top in cgroups_of(name):
        for path in sorted((p for p in (top, *top.rglob("*")) if p.is_dir()), key=lambda p: -len(p.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()
    return not cgroups_of(name)


def processes_in(namespace: str) -> list[int]:
    """The processes of a pid namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(OSError):
            if str(path.readlink()) == namespace:
                found.append(int(path.parts[2]))
    return found
