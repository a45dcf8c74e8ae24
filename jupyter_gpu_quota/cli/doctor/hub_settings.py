"""The hub's settings as ``doctor`` can know them: from its configuration file, its environment, or its service."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import click

from ...client import Client, GPUQuotaError
from ...settings import SERVICE_NAME, SETTINGS_VARIABLE, GPUQuota, settings_from_environment

UNKNOWN = (
    "the hub's settings are not known here; give --config jupyterhub_config.py, or --url and --token of an admin"
    " on the hub's machine"
)

AGAIN = "the hub's settings are not known here (see above)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The settings and what of them is known: ``whole``, or only the words of this command and the defaults.

    ``own_accounts``: whether jobs run under their submitters' accounts; None where nothing says so. ``told``: the
    service told of them, which keeps some to itself.
    """

    config: GPUQuota
    whole: bool
    own_accounts: bool | None
    told: bool = False


def of_the_file(path: Path) -> Known:
    """What ``setup_gpu_quota(c)`` in a hub's configuration tells the service. The file is run, as the hub runs it."""
    from traitlets.config.loader import PyFileConfigLoader

    try:
        c = PyFileConfigLoader(path.name, path=str(path.absolute().parent)).load_config()
    except Exception as error:  # noqa: BLE001 - whatever somebody's configuration raises
        raise click.UsageError(f"{path} cannot be read as the hub reads it: {type(error).__name__}: {error}") from None
    services = c.JupyterHub.get("services", [])
    for service in services if isinstance(services, list) else ():
        if service.get("name") == SERVICE_NAME:
            config = settings_from_environment(service["environment"])
            return Known(config=config, whole=True, own_accounts=config.accounts)
    raise click.UsageError(f"{path} does not call setup_gpu_quota(c), so this hub has no gpu-quota service")


def of_the_environment(environment: dict[str, str]) -> Known:
    """What the hub hands its service; only the defaults where this is no such environment."""
    from traitlets import TraitError

    try:
        config = settings_from_environment(environment)
    except (TraitError, ValueError, TypeError) as error:
        raise click.UsageError(f"the settings in {SETTINGS_VARIABLE} cannot be read: {error}") from None
    whole = SETTINGS_VARIABLE in environment
    return Known(config=config, whole=whole, own_accounts=config.accounts if whole else None)


def of_the_service(client: Client | None, otherwise: Known) -> Known:
    """What the service tells an admin on its own machine; to others it says whose accounts jobs have."""
    if client is None:
        return otherwise
    try:
        found = client.me()
    except GPUQuotaError:
        return otherwise
    told = found.deployment
    if told is None or told.host != socket.gethostname():
        return Known(config=otherwise.config, whole=False, own_accounts=found.own_accounts)
    config = GPUQuota(
        state_dir=told.state_dir, quota_file=told.quota_file, simulated_devices=list(told.simulated_devices)
    )
    return Known(config=config, whole=True, own_accounts=found.own_accounts, told=True)
