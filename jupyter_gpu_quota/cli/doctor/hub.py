"""``doctor``'s checks of the quota file and the hub's unit, and in a notebook those that the service answers.

In a notebook the relevant account, folders and rights are the hub's. Checks that the service cannot answer are skipped
with the reason.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...client import Client, GPUQuotaError
from ...core.amounts import counted
from ...core.model import WHOLE_DEVICE, Device
from ...quotafile import QuotaFile
from ...quotafile.from_path import read_path
from ...settings import GPUQuota
from .hub_settings import UNKNOWN, KnownSettings
from .notebook import release, slice_of_server
from .probes import OWN_ACCOUNTS, PROBE_TIMEOUT_S, Result, fail, ok, skip, warn

SYSTEMD = Path("/run/systemd/system")
"""It exists while systemd runs this machine; see sd_booted(3)."""


# --- in a notebook ------------------------------------------------------------------------------------------------
def service_results(client: Client | None) -> Iterator[Result]:
    """The slice, the devices, and the accounts of jobs, from the service; a notebook's own account is not relevant."""
    if client is None:
        what = ", ".join(AT_SERVICE)
        yield skip("at service", f"skipped, because the service's address is unknown: {what}; give it with --url")
        return
    for name, check in AT_SERVICE.items():
        yield _check_at_service(name, client, check)
    yield skip("enforcement", "`job`, `notebooks` and `devices` show the enforcement of each share")


def _check_at_service(what: str, client: Client, check: Callable[[Client], Result]) -> Result:
    try:
        return check(client)
    except GPUQuotaError as error:
        return skip(what, f"skipped, because the service does not answer: {error.message}")


def _gpus(client: Client) -> Result:
    devices = client.devices()
    if not devices:
        return warn("gpus", "the service has no device", "run doctor on the hub's machine")
    simulated = sum(device.simulated for device in devices)
    return ok("gpus", f"{counted(len(devices), 'device')}, {simulated} simulated")


def _job_python(client: Client) -> Result:
    """The interpreter of `python` at the beginning of a job's command."""
    by_project = {project: each for each in client.environments() for project in each.default_of}
    found = [
        f"{each.python or f'that of image {each.image}'} for {project} (environment {each.name})"
        for project, each in sorted(by_project.items())
    ]
    rest = client.me().job_python
    others = " for all others" if found else ""
    return ok("job python", "; ".join([*found, *([f"{rest}{others}"] if rest else [])]) or "unknown")


def _accounts(client: Client) -> Result:
    own = client.me().own_accounts
    if own is None:
        return skip("accounts", "skipped, because this service is older and does not report it")
    if own:
        return ok("accounts", OWN_ACCOUNTS)
    advice = "all jobs run under the service's own account, so only the API separates users"
    return warn("accounts", "the service's own account for all jobs", advice)


AT_SERVICE: Mapping[str, Callable[[Client], Result]] = {
    "release": release,
    "slice": slice_of_server,
    "gpus": _gpus,
    "accounts": _accounts,
    "job python": _job_python,
}
"""The checks that the service answers."""


# --- the quota file -----------------------------------------------------------------------------------------------
def quota(path: Path, known: KnownSettings, *, here: bool) -> Result:
    """Whether a quota file is valid and fits the devices; ``here``: this is the hub's machine."""
    from ...backends.local.sampling.machine import devices_here

    found = read_path(path)
    if isinstance(found, str):
        return fail("quota file", f"{path}: {found}", "correct it, or give the path of a quota file with --quota")
    if not here:
        return ok("quota file", f"{path} is valid; whether it fits: jupyter gpu-quota quota preview {path}")
    return _check_fit(path, found.file, devices_here(socket.gethostname(), known.config.simulated_devices), known)


def _check_fit(path: Path, file: QuotaFile, devices: Sequence[Device], known: KnownSettings) -> Result:
    from ...api.quota_edits.arithmetic import arithmetic_of_file

    placed = [replace(device, pool=file.pool_of(device)) for device in devices]
    found = arithmetic_of_file(file, placed, int(time.time() * 1000))
    if found.refusals:
        advice = "correct a selector, lower a quota or add devices; or apply it with --accept-overcommit"
        if not found.acceptable:
            advice = "correct the file; apply refuses what contradicts itself"
        return fail("quota file", f"{path}: {' '.join(found.refusals)}", advice)
    if not placed:
        why = "" if known.complete else f"; {UNKNOWN}"
        return warn(
            "quota file", f"{path} is valid", f"no device is visible here, so it is unknown whether it fits{why}"
        )
    empty = sorted({pool.name for pool in file.pools} - {device.pool for device in placed})
    if empty:
        advice = "no work starts in a pool without a device: change its selector, or remove it"
        return warn("quota file", f"{path} is valid; no device here is in the pool {', '.join(empty)}", advice)
    fits = f"{path} is valid and fits the {counted(len(placed), 'device')} here"
    weak = _weak_devices_text(file, placed, known.config)
    if weak:
        advice = "to share devices, lower policy.enforcement, or fix the causes in the table's rows *could enforce*"
        return warn("quota file", f"{fits}; {weak}", advice)
    return ok("quota file", fits)


def _weak_devices_text(file: QuotaFile, devices: Sequence[Device], config: GPUQuota) -> str:
    """On how many devices the enforcement is weaker than policy.enforcement; empty if on none."""
    from ...backends.local.enforcement_backend import LocalEnforcement

    if not file.least.is_set:
        return ""
    enforcement = LocalEnforcement(config.state_dir, cgroup=config.cgroup, mps=config.mps)
    found = enforcement.capabilities(devices, gpu_milli=WHOLE_DEVICE // 2, project=None)
    short = sum(not each.is_enough(file.least) for each in found.offers)
    if not short:
        return ""
    needed = f"memory {file.least.memory} and compute {file.least.compute}"
    have = counted(short, "of them has", "of them have")
    return f"but policy.enforcement requires {needed}, and {have} weaker enforcement for a fraction"


# --- systemd ------------------------------------------------------------------------------------------------------
def unit(booted: Path = SYSTEMD) -> Iterator[Result]:
    """Warnings if jobs end with a restart of the hub's systemd unit; none without systemd."""
    if not booted.is_dir():
        return
    advice = "add KillMode=process to the [Service] section of the hub's unit: otherwise its restart ends every job"
    units = _systemctl("list-units", "--all", "--plain", "--no-legend", "--type=service", "*jupyterhub*")
    names = [line.split()[0] for line in (units or "").splitlines() if line.split()]
    if not names:
        why = "systemctl does not answer" if units is None else "no unit has jupyterhub in its name"
        yield warn("hub's unit", f"it cannot be read: {why}", f"if systemd runs the hub, {advice}")
    for name in names:
        mode = (_systemctl("show", "--property=KillMode", "--value", name) or "").strip()
        if mode != "process":
            yield warn("hub's unit", f"{name} has KillMode={mode or 'unknown'}", advice)


def _systemctl(*words: str) -> str | None:
    """The output of systemctl; None if it cannot run."""
    try:
        done = subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
