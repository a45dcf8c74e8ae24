"""``doctor``: what this machine is fit for, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ...client import Client, GPUQuotaError
from ..session import DONE, FAILED, as_json, service_address
from ..tables import plain_text, print_json, print_table
from . import devices as device_probes
from . import hub as hub_probes
from . import hub_settings, probes
from . import notifications as notice_probes
from .hub_settings import Known
from .probes import Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "cyan"}
NOTEBOOK_OF = "JUPYTERHUB_USER"
"""Set in a server that a hub has started, and in its terminals: there this is not the hub's own account."""


@click.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="The hub's jupyterhub_config.py, which is run to know its settings.",
)
@click.option("--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: the settings'.")
@click.option(
    "--quota",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Check this quota file. Default: the settings', if they name one.",
)
@as_json
@service_address
def doctor(
    config_file: Path | None,
    state_dir: Path | None,
    quota: Path | None,
    json_: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Check this machine: programs, devices, isolation, disk, quota file, service. Exit code 1 if something fails."""
    known = _known(config_file, url, token)
    if state_dir is not None:
        known.config.state_dir = str(state_dir)
    if quota is not None:
        known.config.quota_file = str(quota)
    found: list[Finding] = []
    for each in _findings(known, known.whole or state_dir is not None, url, token):
        if not json_:
            shown = _shorter(each) if any(_tells_how(one) for one in found) else each
            _print(shown, heading=not found or found[-1].where != each.where)
        found.append(each)
    if json_:
        print_json([dataclasses.asdict(each) for each in found])
    sys.exit(FAILED if any(each.verdict == "fail" for each in found) else DONE)


def _tells_how(each: Finding) -> bool:
    return hub_settings.UNKNOWN in each.found or hub_settings.UNKNOWN in each.advice


def _shorter(each: Finding) -> Finding:
    """The same without saying once more how the hub's settings can be known."""
    found, advice = (text.replace(hub_settings.UNKNOWN, hub_settings.AGAIN) for text in (each.found, each.advice))
    return dataclasses.replace(each, found=found, advice=advice)


def _known(config_file: Path | None, url: str | None, token: str | None) -> Known:
    if config_file is not None:
        return hub_settings.of_the_file(config_file)
    known = hub_settings.of_the_environment(dict(os.environ))
    if known.whole or os.environ.get(NOTEBOOK_OF):
        return known
    return hub_settings.of_the_service(_client(url, token), known)


def _findings(known: Known, folder_known: bool, url: str | None, token: str | None) -> Iterator[Finding]:
    """What this machine shows, then what the service answers; in a notebook it alone knows of the hub's machine."""
    notebook = bool(os.environ.get(NOTEBOOK_OF))
    yield from _here(known, folder_known, notebook)
    for each in _by_the_service(url, token, notebook):
        yield dataclasses.replace(each, where="service")


def _here(known: Known, folder_known: bool, notebook: bool) -> Iterator[Finding]:
    yield probes.python()
    if notebook:
        yield from hub_probes.skipped_in_a_notebook()
    else:
        yield from probes.machine(device_probes.gpus(known), known.own_accounts)
        yield from _folder(Path(known.config.state_dir).absolute(), folder_known)
        yield from hub_probes.unit()
        yield from notice_probes.here(known.config, known=known.whole and not known.told)
    if known.config.quota_file:
        yield hub_probes.quota(Path(known.config.quota_file), known, here=not notebook)


def _folder(state: Path, folder_known: bool) -> Iterator[Finding]:
    for what, probe in {"state folder": probes.state_dir, "disk": probes.disk, "fsync": probes.fsync}.items():
        yield probe(state) if folder_known else probes.skip(what, f"skipped, because {hub_settings.UNKNOWN}")


def _by_the_service(url: str | None, token: str | None, notebook: bool) -> Iterator[Finding]:
    yield from probes.service(url, token)
    yield from notice_probes.by_the_service(_client(url, token))
    if notebook:
        client = _client(url, token)
        yield hub_probes.gpus_by_the_service(client)
        yield probes.skip("enforcement", "each share says how it is held: see `job`, `notebooks` and `devices`")
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
