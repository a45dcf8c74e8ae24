"""The hub's settings for ``doctor`` and ``backup``.

Without options they come from the environment, the configuration file in the working directory, the service that runs
on this machine under this account, or the service's answer to an admin.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ...backends.local.host.processes import processes, read_proc, user_of, variables_of
from ...client import Client, GPUQuotaError
from ...settings import DATABASE_VARIABLE, SERVICE_NAME, SETTINGS_VARIABLE, GPUQuota, settings_from_environment

UNKNOWN_AGAIN = "the hub's settings are unknown here (see above)"
UNKNOWN = (
    "the hub's settings are unknown here; give --config jupyterhub_config.py, or on the hub's machine --url and"
    " --token of an admin"
)
DATABASE_UNKNOWN = (
    "the service does not report where its database is; give --config jupyterhub_config.py, or leave out --url under"
    " the service's account"
)
HUB_CONFIG = "jupyterhub_config.py"
"""The configuration file that JupyterHub reads in its working directory."""

SERVICE_COMMAND = (b"-m", b"jupyter_gpu_quota", b"serve")

CONFIG = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="The hub's jupyterhub_config.py; it is run to get the settings.",
)
STATE_DIR = click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: from the settings."
)
"""The options of the commands that need the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSettings:
    """The settings; not ``complete``: only the options of this command and the defaults.

    ``source``: where they were found. ``own_accounts``: whether jobs run under their submitters' accounts; None if
    unknown. ``from_service``: the service reported them, without its secrets and its database. ``problem``: why the
    configuration file of the working directory, or a running service, was not used; ``advice``: how to choose one of
    several services. ``service_url``: the address of the service that runs here with these settings, without the hub's
    proxy; empty if none is known.
    """

    config: GPUQuota
    complete: bool
    own_accounts: bool | None
    source: str = ""
    from_service: bool = False
    problem: str = ""
    advice: str = ""
    service_url: str = ""


def find_settings(client: Client | None, *, asked_service: bool, state_dir: Path | None = None) -> KnownSettings:
    """The settings without --config.

    ``asked_service``: the user named the service. ``state_dir``: the state directory that the user named, which is of
    no other service on this machine.
    """
    known = settings_in_environment(os.environ)
    if known.complete:
        return known
    if state_dir is not None:
        running = _settings_of_running_services()
        known = next((each for each in running if Path(each.config.state_dir) == state_dir.absolute()), known)
    elif not asked_service:
        known = _settings_on_this_machine(known)
    return known if known.complete else settings_at_service(client, known)


def _settings_on_this_machine(otherwise: KnownSettings) -> KnownSettings:
    """From the configuration file in the working directory, or else of the one service that runs here."""
    file, running = Path(HUB_CONFIG).absolute(), list(_settings_of_running_services())
    problem = advice = ""
    if file.is_file():
        try:
            _check_owner(file)
            known = settings_in_config_file(file)
        except click.UsageError as error:
            problem = error.message
        else:
            return _with_service(known, running)
    if len(running) > 1 and not problem:
        of = ", ".join(
            f"{each.source.split(', ')[-1]} with state directory {each.config.state_dir}" for each in running
        )
        problem = f"{len(running)} services with different settings run here: {of}"
        advice = "choose one by --state-dir DIR, or by --config with its jupyterhub_config.py"
    known = running[0] if len(running) == 1 else otherwise
    return replace(known, problem=problem, advice=advice)


def with_running_service(known: KnownSettings) -> KnownSettings:
    """The settings, with the address of the service that runs here with their state directory."""
    return _with_service(known, _settings_of_running_services())


def _with_service(known: KnownSettings, running: Iterable[KnownSettings]) -> KnownSettings:
    urls = [each.service_url for each in running if each.config.state_dir == known.config.state_dir]
    return replace(known, service_url=urls[0] if urls else "")


def _check_owner(file: Path) -> None:
    """Raises UsageError for a file that another account could have put here: it would be run."""
    found = file.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o002:
        raise click.UsageError(f"{file} is not run: another account can write it; check it, then give --config {file}")


def _settings_of_running_services() -> Iterator[KnownSettings]:
    """Of each service that runs here under this account; a service without settings of a hub is not one of a hub."""
    seen = set()
    for pid in processes():
        command = tuple((read_proc(pid, "cmdline") or b"").split(b"\0"))
        if SERVICE_COMMAND not in (command[1:4], command[2:5]) or user_of(pid) != os.geteuid():
            continue
        variables = variables_of(pid) or {}
        wanted = tuple(variables.get(name) for name in (SETTINGS_VARIABLE, DATABASE_VARIABLE))
        if wanted[0] is not None and wanted not in seen:
            seen.add(wanted)
            yield replace(settings_in_environment(variables), source=f"the running service, process {pid}")


def settings_in_config_file(path: Path) -> KnownSettings:
    """The settings from ``setup_gpu_quota(c)`` in a hub's configuration file, which is run as the hub runs it.

    That takes seconds, because JupyterHub is imported: a terminal shows a line meanwhile, on stderr.
    """
    from rich.console import Console
    from traitlets.config.loader import PyFileConfigLoader

    try:
        with Console(stderr=True).status(f"Running {path.name} for the hub's settings"):
            c = PyFileConfigLoader(path.name, path=str(path.absolute().parent)).load_config()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a configuration may raise anything
        raise click.UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from None
    services = c.JupyterHub.get("services", [])
    for service in services if isinstance(services, list) else ():
        if service.get("name") == SERVICE_NAME:
            if SETTINGS_VARIABLE not in service.get("environment", {}):
                raise click.UsageError(f"{path}: the hub does not start the service; run this where the service runs")
            config = settings_from_environment(service["environment"])
            known = KnownSettings(config=config, complete=True, own_accounts=config.accounts, source=str(path))
            return _with_doubt(known, c.GPUQuota.get("state_dir", GPUQuota().state_dir), path)
    raise click.UsageError(f"{path} does not call setup_gpu_quota(c), so this hub has no gpu-quota service")


def _with_doubt(known: KnownSettings, state_dir: str, path: Path) -> KnownSettings:
    """The settings; a relative ``state_dir`` begins where the hub runs: usually, but not surely, beside the file."""
    if Path(state_dir).is_absolute() or path.parent.resolve() == Path.cwd().resolve():
        return known
    problem = f"c.GPUQuota.state_dir is relative, and {Path.cwd()} need not be the folder in which the hub runs"
    return replace(known, problem=problem, advice="run this in that folder, or set an absolute path")


def settings_in_environment(environment: Mapping[str, str]) -> KnownSettings:
    """The settings from the environment of the service; elsewhere the defaults."""
    from traitlets import TraitError

    try:
        config = settings_from_environment(environment)
    except (TraitError, ValueError, TypeError) as error:
        raise click.UsageError(f"the settings in {SETTINGS_VARIABLE} cannot be read: {error}") from None
    complete = SETTINGS_VARIABLE in environment
    if not complete:
        return KnownSettings(config=config, complete=False, own_accounts=None)
    return KnownSettings(
        config=config,
        complete=True,
        own_accounts=config.accounts,
        source=SETTINGS_VARIABLE,
        service_url=_own_address(environment),
    )


def _own_address(environment: Mapping[str, str]) -> str:
    """Where the service of this environment listens; empty if it does not say. All addresses include the loopback."""
    address = environment.get("JUPYTERHUB_SERVICE_URL", "").replace("//0.0.0.0:", "//127.0.0.1:")
    return address + environment.get("JUPYTERHUB_SERVICE_PREFIX", "") if address else ""


def settings_at_service(client: Client | None, otherwise: KnownSettings) -> KnownSettings:
    """The settings from the service: all of them for an admin on its machine, for others only the accounts of jobs."""
    if client is None:
        return otherwise
    try:
        found = client.me()
    except GPUQuotaError:
        return otherwise
    reported = found.deployment
    if reported is None or reported.host != socket.gethostname():
        return replace(otherwise, own_accounts=found.own_accounts)
    config = GPUQuota(
        state_dir=reported.state_dir,
        quota_file=reported.quota_file,
        simulated_devices=list(reported.simulated_devices),
    )
    return KnownSettings(
        config=config,
        complete=True,
        own_accounts=found.own_accounts,
        source="the service, for an admin",
        from_service=True,
        problem=otherwise.problem,
        advice=otherwise.advice,
    )
