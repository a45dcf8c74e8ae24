"""The hub's settings for ``doctor`` and ``backup``: from its configuration file, the environment, or its service."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import click

from ...client import Client, GPUQuotaError
from ...settings import SERVICE_NAME, SETTINGS_VARIABLE, GPUQuota, settings_from_environment

UNKNOWN_AGAIN = "the hub's settings are unknown here (see above)"
UNKNOWN = (
    "the hub's settings are unknown here; give --config jupyterhub_config.py, or on the hub's machine --url and"
    " --token of an admin"
)


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
    """The settings; not ``whole``: only the options of this command and the defaults.

    ``own_accounts``: whether jobs run under their submitters' accounts; None if unknown. ``from_service``: the service
    reported them, without its secrets.
    """

    config: GPUQuota
    whole: bool
    own_accounts: bool | None
    from_service: bool = False


def settings_in_config_file(path: Path) -> KnownSettings:
    """The settings from ``setup_gpu_quota(c)`` in a hub's configuration file, which is run as the hub runs it."""
    from traitlets.config.loader import PyFileConfigLoader

    try:
        c = PyFileConfigLoader(path.name, path=str(path.absolute().parent)).load_config()
    except Exception as error:  # noqa: BLE001 - a configuration may raise anything
        raise click.UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from None
    services = c.JupyterHub.get("services", [])
    for service in services if isinstance(services, list) else ():
        if service.get("name") == SERVICE_NAME:
            config = settings_from_environment(service["environment"])
            return KnownSettings(config=config, whole=True, own_accounts=config.accounts)
    raise click.UsageError(f"{path} does not call setup_gpu_quota(c), so this hub has no gpu-quota service")


def settings_in_environment(environment: dict[str, str]) -> KnownSettings:
    """The settings from the environment of the service; elsewhere the defaults."""
    from traitlets import TraitError

    try:
        config = settings_from_environment(environment)
    except (TraitError, ValueError, TypeError) as error:
        raise click.UsageError(f"the settings in {SETTINGS_VARIABLE} cannot be read: {error}") from None
    whole = SETTINGS_VARIABLE in environment
    return KnownSettings(config=config, whole=whole, own_accounts=config.accounts if whole else None)


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
        return KnownSettings(config=otherwise.config, whole=False, own_accounts=found.own_accounts)
    config = GPUQuota(
        state_dir=reported.state_dir,
        quota_file=reported.quota_file,
        simulated_devices=list(reported.simulated_devices),
    )
    return KnownSettings(config=config, whole=True, own_accounts=found.own_accounts, from_service=True)
