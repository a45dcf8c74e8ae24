"""``doctor``: the checks of this machine and the service, with advice."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from ...client import URL_VARIABLES, Client, GPUQuotaError
from ...settings import database_url
from ..prose import wrapped
from ..session import DONE, FAILED, as_json, service_address
from ..tables import plain_text, print_json, print_table
from . import agents as agent_probes
from . import data as data_probes
from . import devices as device_probes
from . import hub as hub_probes
from . import hub_settings, probes
from . import notebook as notebook_probes
from . import notifications as notification_probes
from .hub_settings import KnownSettings
from .probes import Result

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "cyan"}
INDENT = 23
"""Columns before a result."""
NOTEBOOK_USER = "JUPYTERHUB_USER"
"""Set in a notebook server and its terminals, where the account is not the hub's."""


@click.command()
@hub_settings.CONFIG
@hub_settings.STATE_DIR
@click.option(
    "--quota",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Check only this quota file. Default: everything, with the quota file of the settings.",
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
    known = _known_settings(config_file, state_dir, url, token)
    url = url or os.environ.get(URL_VARIABLES[0]) or known.service_url or None
    if state_dir is not None:
        known.config.state_dir = str(state_dir)
    folder_known = known.complete or state_dir is not None
    results = _all_results(known, folder_known, url, token) if quota is None else _quota_results(quota, known)
    found: list[Result] = []
    for each in results:
        if not json_:
            explained = any(hub_settings.UNKNOWN in one.found + one.advice for one in found)
            _print(each, heading=not found or found[-1].where != each.where, explained=explained)
        found.append(each)
    if json_:
        print_json([dataclasses.asdict(each) for each in found])
    sys.exit(FAILED if any(each.verdict == "fail" for each in found) else DONE)


def _known_settings(
    config_file: Path | None, state_dir: Path | None, url: str | None, token: str | None
) -> KnownSettings:
    if config_file is not None:
        return hub_settings.with_running_service(hub_settings.settings_in_config_file(config_file))
    if os.environ.get(NOTEBOOK_USER):
        return hub_settings.settings_in_environment(os.environ)
    return hub_settings.find_settings(_client(url, token), asked_service=url is not None, state_dir=state_dir)


def _all_results(known: KnownSettings, folder_known: bool, url: str | None, token: str | None) -> Iterator[Result]:
    """The checks of this machine, then those of the service."""
    notebook = bool(os.environ.get(NOTEBOOK_USER))
    yield from _machine_results(known, folder_known, notebook)
    for each in _service_results(known, url, token, notebook):
        yield dataclasses.replace(each, where="service")


def _machine_results(known: KnownSettings, folder_known: bool, notebook: bool) -> Iterator[Result]:
    yield probes.python()
    if notebook:
        yield from notebook_probes.machine_results()
    else:
        yield _settings_result(known)
        yield from _backend_results(known)
        yield from _state_folder_results(known, folder_known)
        yield from hub_probes.unit()
        yield from notification_probes.machine_results(known.config, known=known.complete and not known.from_service)
    if known.config.quota_file:
        yield from _quota_results(Path(known.config.quota_file), known)


def _settings_result(known: KnownSettings) -> Result:
    """Where the settings come from, or which option to give."""
    if known.problem:
        advice = "correct the file, or give another with --config" if known.complete else hub_settings.UNKNOWN
        instead = f"; the settings are from {known.source}" if known.complete else ""
        return probes.warn("settings", f"{known.problem}{instead}", known.advice or advice)
    if known.complete:
        return probes.ok("settings", f"from {known.source}")
    return probes.skip("settings", f"skipped, because {hub_settings.UNKNOWN}")


def _backend_results(known: KnownSettings) -> Iterator[Result]:
    """The machine on which jobs run, or the cluster."""
    if known.config.backend == "kubernetes":
        from .cluster import clusters

        yield probes.hub()
        yield from clusters(known.config)
    else:
        yield from probes.machine(device_probes.gpus(known), known)


def _quota_results(file: Path, known: KnownSettings) -> Iterator[Result]:
    here = not os.environ.get(NOTEBOOK_USER) and known.config.backend == "local"
    yield hub_probes.quota(file, known, here=here)
    if here:
        yield from data_probes.data_of_file(file, known.own_accounts)


def _state_folder_results(known: KnownSettings, folder_known: bool) -> Iterator[Result]:
    """The state folder and the database, which may be elsewhere."""
    state, url = Path(known.config.state_dir).absolute(), database_url(known.config)
    folder = probes.sqlite_folder(url) or state
    checks = [
        ("state folder", partial(probes.state_dir, state, is_volume=known.config.backend == "kubernetes")),
        ("database", partial(probes.database, url)),
        ("disk", partial(probes.disk, state)),
        *([("disk", partial(probes.disk, folder, of_database=True))] if folder != state else []),
        ("fsync", partial(probes.fsync, folder)),
    ]
    for what, probe in checks:
        of_service = known.from_service and what in ("database", "fsync")
        why = hub_settings.DATABASE_UNKNOWN if of_service else hub_settings.UNKNOWN
        yield probe() if folder_known and not of_service else probes.skip(what, f"skipped, because {why}")


def _service_results(known: KnownSettings, url: str | None, token: str | None, notebook: bool) -> Iterator[Result]:
    yield from probes.service(url, token)
    client = _client(url, token)
    yield from notification_probes.service_results(client)
    if notebook:
        yield from hub_probes.service_results(client)
    elif known.config.backend == "kubernetes":
        yield from agent_probes.agents(client, known.config.kubernetes_agent_account)


def _client(url: str | None, token: str | None) -> Client | None:
    try:
        return Client(url, token, timeout_s=probes.PROBE_TIMEOUT_S)
    except GPUQuotaError:
        return None


HEADINGS = {
    "machine": f"This machine, {socket.gethostname()}, under this account",
    "service": "The service",
}


def _print(each: Result, *, heading: bool, explained: bool) -> None:
    """Print one result; ``explained``: an earlier result names the options for the hub's settings."""
    if heading:
        click.echo(click.style(wrapped(f"{HEADINGS[each.where]}:"), bold=True))
    verdict = click.style(each.verdict.ljust(4), fg=COLOURS[each.verdict], bold=True)
    found, advice = each.found, each.advice
    if explained:
        found, advice = (text.replace(hub_settings.UNKNOWN, hub_settings.UNKNOWN_AGAIN) for text in (found, advice))
    begin = f"  {each.verdict:4}  {each.what:13}  "
    click.echo(f"  {verdict}{begin[6:]}{wrapped(plain_text(found), indent=len(begin))}")
    if advice:
        click.echo(f"{'':{INDENT}}→ {wrapped(plain_text(advice), indent=INDENT + 2)}")
    if each.abilities:
        print_table(*device_probes.table(each.abilities))
