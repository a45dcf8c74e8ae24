"""What ``doctor`` looks at beside the machine: the quota file, the hub's unit; in a notebook, what the service says.

In a notebook the doctor stands on the wrong side of the door: the account, the folders and the rights that count are
those of the hub. What the service tells of them is told; the rest is skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ... import quotafile
from ...client import Client, GPUQuotaError
from ...core.model import Device
from ...settings import GPUQuota
from .hub_settings import UNKNOWN, Known
from .probes import PROBE_TIMEOUT_S, Finding, fail, ok, skip, warn

SYSTEMD = Path("/run/systemd/system")
"""There while systemd runs this machine; see sd_booted(3)."""

OF_THE_HUB = ("hub", "proxy", "suspension", "cgroups", "subreaper", "state folder", "disk", "fsync")
"""Probes that say something only where the hub runs, under its account."""

MOST_ERRORS = 5


# --- in a notebook ------------------------------------------------------------------------------------------------
def skipped_in_a_notebook() -> Iterator[Finding]:
    for what in OF_THE_HUB:
        yield skip(what, "skipped, because this is a notebook: run doctor where the hub runs, as its account")


def accounts_by_the_service(client: Client | None) -> Finding:
    """Whose accounts jobs run under, from the service: a notebook's own account says nothing about that."""
    what = "accounts"
    if client is None:
        return skip(what, "skipped, because no service is known that could be asked; give its address with --url")
    try:
        own = client.me().own_accounts
    except GPUQuotaError as error:
        return skip(what, f"skipped, because the service does not say: {error.message}")
    if own is None:
        return skip(what, "skipped, because this service is older and does not say")
    if own:
        return ok(what, "jobs run under the account that the hub's spawner uses for their submitter")
    advice = "all jobs run under the service's own account, so only the REST door separates people"
    return warn(what, "the service's own account for everybody", advice)


def gpus_by_the_service(client: Client | None) -> Finding:
    if client is None:
        return skip("gpus", "skipped, because no service is known that could be asked; give its address with --url")
    try:
        devices = client.devices()
    except GPUQuotaError as error:
        return skip("gpus", f"skipped, because the service does not say: {error.message}")
    if not devices:
        return warn("gpus", "the service sees no device", "run doctor where the hub runs")
    simulated = sum(device.simulated for device in devices)
    told = f"{len(devices)} {'device' if len(devices) == 1 else 'devices'}, {simulated} simulated"
    return ok("gpus", told)


# --- the quota file -----------------------------------------------------------------------------------------------
def quota(path: Path, known: Known, *, here: bool) -> Finding:
    """Whether a quota file can be read and fits the devices of this machine; ``here``: this is the hub's machine."""
    try:
        parsed = quotafile.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return fail("quota file", f"{path} cannot be read: {error}", "give the path of a quota file with --quota")
    if isinstance(parsed, list):
        told = "; ".join(f"line {error.line}: {error.message}" for error in parsed[:MOST_ERRORS])
        more = f"; and {len(parsed) - MOST_ERRORS} more" if len(parsed) > MOST_ERRORS else ""
        return fail("quota file", f"{path}: {told}{more}", "mend these lines; it would be refused as it is")
    if not here:
        return ok("quota file", f"{path} reads well; whether it fits: jupyter gpu-quota quota preview {path}")
    return _fits(path, parsed, _devices(known.config), known)


def _fits(path: Path, file: quotafile.QuotaFile, devices: Sequence[Device], known: Known) -> Finding:
    from ...api.quota_edits.arithmetic import arithmetic_of_file

    placed = [replace(device, pool=file.pool_of(device, device.node)) for device in devices]
    refusals = arithmetic_of_file(file, placed, int(time.time() * 1000)).refusals
    if refusals:
        advice = "lower a quota or add devices; apply it with --accept-overcommit if that is meant"
        return fail("quota file", f"{path}: {' '.join(refusals)}", advice)
    if not placed:
        why = "" if known.whole else f"; {UNKNOWN}"
        return warn("quota file", f"{path} reads well", f"no device is seen here, so whether it fits is not known{why}")
    empty = sorted({pool.name for pool in file.pools} - {device.pool for device in placed})
    if empty:
        advice = "nothing starts in a pool without a device: change its selector, or take it out"
        return warn("quota file", f"{path} reads well; no device here is in the pool {', '.join(empty)}", advice)
    told = f"{path} reads well and fits the {len(placed)} devices here"
    short = _cannot_hold(file, placed, known.config)
    if short:
        advice = (
            "to give out parts of devices, accept less in policy.enforcement, or mend what *could hold a share* says"
        )
        return warn("quota file", f"{told}; {short}", advice)
    return ok("quota file", told)


def _cannot_hold(file: quotafile.QuotaFile, devices: Sequence[Device], config: GPUQuota) -> str:
    """Of how many devices parts would be refused, as policy.enforcement asks; empty of none."""
    from ...api.state.offers import Offers
    from ...backends.local.backend import LocalEnforcement

    if not file.least.is_set:
        return ""
    offers = Offers(LocalEnforcement(config.state_dir, cgroup=config.cgroup, mps=config.mps))
    found, _ = asyncio.run(offers.of_fractions(devices))
    short = sum(not each.is_enough(file.least) for each in found)
    asked = f"memory {file.least.memory} and compute {file.least.compute}"
    return f"but policy.enforcement asks for {asked}, and {short} of them cannot be seen to hold a part so" * bool(
        short
    )


def _devices(config: GPUQuota) -> Sequence[Device]:
    from ...backends.local.sampling.machine import devices_here

    return devices_here(socket.gethostname(), config.simulated_devices)


# --- systemd ------------------------------------------------------------------------------------------------------
def unit(booted: Path = SYSTEMD) -> Iterator[Finding]:
    """Whether jobs outlive a restart of the hub's unit; says nothing where they do, or where systemd is not there."""
    if not booted.is_dir():
        return
    advice = "add KillMode=process to the [Service] part of the hub's unit: otherwise its restart ends every job"
    units = _systemctl("list-units", "--all", "--plain", "--no-legend", "--type=service", "*jupyterhub*")
    names = [line.split()[0] for line in (units or "").splitlines() if line.split()]
    if not names:
        why = "systemctl does not answer" if units is None else "no unit here is named after jupyterhub"
        yield warn("hub's unit", f"it cannot be read: {why}", f"if systemd runs the hub, {advice}")
    for name in names:
        mode = (_systemctl("show", "--property=KillMode", "--value", name) or "").strip()
        if mode != "process":
            yield warn("hub's unit", f"{name} has KillMode={mode or 'unknown'}", advice)


def _systemctl(*words: str) -> str | None:
    """What systemctl prints; None where it cannot be asked."""
    try:
        done = subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
