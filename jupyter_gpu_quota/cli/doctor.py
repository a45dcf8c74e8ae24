"""``doctor``: what this machine is fit for, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ..client import Client, GPUQuotaError
from ..config import GPUQuota, settings_from_environment
from . import device_probes, hub_probes, probes
from .probes import Finding
from .session import DONE, FAILED, as_json, service_address
from .tables import plain_text, print_json, print_table

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "cyan"}
NOTEBOOK_OF = "JUPYTERHUB_USER"
"""Set in a server that a hub has started, and in its terminals: there this is not the hub's own account."""


@click.command()
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: the settings', else here."
)
@click.option(
    "--quota",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Check this quota file. Default: the settings', if they name one.",
)
@as_json
@service_address
def doctor(state_dir: Path | None, quota: Path | None, json_: bool, url: str | None, token: str | None) -> None:
    """Check this machine: programs, devices, isolation, disk, quota file, service. Exit code 1 if something fails."""
    config = _settings()
    if state_dir is not None:
        config.state_dir = str(state_dir)
    if quota is not None:
        config.quota_file = str(quota)
    found: list[Finding] = []
    for each in _findings(config, url, token):
        if not json_:
            _print(each, heading=not found or found[-1].where != each.where)
        found.append(each)
    if json_:
        print_json([dataclasses.asdict(each) for each in found])
    sys.exit(FAILED if any(each.verdict == "fail" for each in found) else DONE)


def _settings() -> GPUQuota:
    from traitlets import TraitError

    try:
        return settings_from_environment()
    except (TraitError, ValueError, TypeError) as error:
        raise click.UsageError(f"the settings in JUPYTER_GPU_QUOTA_SETTINGS cannot be read: {error}") from None


def _findings(config: GPUQuota, url: str | None, token: str | None) -> Iterator[Finding]:
    """What this machine shows, then what the service answers; in a notebook it alone knows of the hub's machine."""
    notebook = bool(os.environ.get(NOTEBOOK_OF))
    yield from _here(config, notebook)
    for each in _by_the_service(url, token, notebook):
        yield dataclasses.replace(each, where="service")


def _here(config: GPUQuota, notebook: bool) -> Iterator[Finding]:
    yield probes.python()
    if notebook:
        yield from hub_probes.skipped_in_a_notebook()
    else:
        yield from probes.machine(config, device_probes.gpus)
        yield from hub_probes.unit()
    if config.quota_file:
        yield hub_probes.quota(Path(config.quota_file), config, here=not notebook)


def _by_the_service(url: str | None, token: str | None, notebook: bool) -> Iterator[Finding]:
    yield from probes.service(url, token)
    if notebook:
        client = _client(url, token)
        yield hub_probes.gpus_by_the_service(client)
        yield probes.enforcement()
        yield hub_probes.accounts_by_the_service(client)


def _client(url: str | None, token: str | None) -> Client | None:
    try:
        return Client(url, token, timeout_s=probes.PROBE_TIMEOUT_S)
    except GPUQuotaError:
        return None


HEADINGS = {
    "machine": f"This machine, {socket.gethostname()}, as this account sees it",
    "service": "The service, by its own answers",
}


def _print(each: Finding, *, heading: bool) -> None:
    if heading:
        click.echo(click.style(f"{HEADINGS[each.where]}:", bold=True))
    verdict = click.style(each.verdict.ljust(4), fg=COLOURS[each.verdict], bold=True)
    click.echo(f"  {verdict}  {each.what.ljust(12)}  {plain_text(each.found)}")
    if each.advice:
        click.echo(f"{'':22}→ {plain_text(each.advice)}")
    if each.abilities:
        print_table(*device_probes.table(each.abilities))
