"""``setup_gpu_quota(c)``: adds the service, the spawner, scopes and roles to a hub's configuration.

It appends to the file's own entries; a second call has no effect. Without the line, JupyterHub removes the service, its
tokens, its OAuth client and the roles from its database at the next start; only the state folder remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from inspect import isawaitable
from pathlib import Path
from typing import Any

from jupyterhub.app import JupyterHub
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from traitlets import TraitError
from traitlets.config.loader import Config, LazyConfigValue
from traitlets.utils.importstring import import_item

from ..notifications.settings import mistakes
from ..settings import (
    DATABASE_VARIABLE,
    SERVICE_NAME,
    SETTINGS_VARIABLE,
    GPUQuota,
    backend_mistakes,
    new_api_token,
    service_settings,
)
from .local_spawner import GPUQuotaLocalSpawner, GPUQuotaMixin
from .own_port import OwnPortMixin
from .ports import ReservedPort, reserve_ports

ACCESS_SCOPE = f"access:services!service={SERVICE_NAME}"
SCOPE_PREFIX = f"custom:{SERVICE_NAME}:"
READ_SCOPE, SUBMIT_SCOPE = f"{SCOPE_PREFIX}read", f"{SCOPE_PREFIX}submit"
AUDIT_SCOPE, ADMIN_SCOPE = f"{SCOPE_PREFIX}audit", f"{SCOPE_PREFIX}admin"

CUSTOM_SCOPES: Mapping[str, Mapping[str, object]] = {
    READ_SCOPE: {"description": "See the GPU quotas, devices, notebooks and jobs of one's own projects."},
    SUBMIT_SCOPE: {"description": "Submit GPU jobs and change one's own."},
    AUDIT_SCOPE: {"description": "Read every decision and edit of the GPU quota service."},
    ADMIN_SCOPE: {
        "description": "Administer the GPU quota service: all jobs, nodes, quotas, the audit log.",
        "subscopes": [READ_SCOPE, SUBMIT_SCOPE, AUDIT_SCOPE],
    },
}
USER_SCOPES = (ACCESS_SCOPE, READ_SCOPE, SUBMIT_SCOPE)
TOKEN_SCOPES = (*USER_SCOPES, AUDIT_SCOPE)
"""Our scopes of a notebook's token; the hub leaves out those that its user lacks."""

TOKEN_SETTING = "server_token_scopes"  # noqa: S105

SERVICE_ROLE = f"{SERVICE_NAME}-service"
SERVICE_SCOPES = ("list:users", "read:users:name", "read:users:groups", "read:servers", "delete:servers")
"""The service's rights at the hub: list users, groups and servers, and stop a server."""

ADMIN_ROLE = f"{SERVICE_NAME}-admin"
_SERVICE_PORTS: dict[str, ReservedPort] = {}
"""The reserved port of the service, by its state folder."""


class SetupError(ValueError):
    """A setting of ``jupyterhub_config.py`` is wrong; the message has the advice."""


def setup_gpu_quota(c: Config) -> None:
    """Add the GPU quota service, its spawner, scopes and roles to a hub's configuration.

    Takes the ``c`` of ``jupyterhub_config.py``, as the last line of that file; settings are ``c.GPUQuota``'s.
    Raises SetupError if a setting is unknown or not supported, another service has the name, or the spawner runs
    servers neither as processes of this machine nor as pods.
    """
    known = GPUQuota.class_trait_names(config=True)
    for name in c.GPUQuota if "GPUQuota" in c else ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f" Did you mean c.GPUQuota.{near[0]}?" if near else ""
            raise SetupError(f"c.GPUQuota.{name} is not a setting of jupyter_gpu_quota.{advice}")
    c.JupyterHub.spawner_class = wrapped_spawner(c.JupyterHub.get("spawner_class", LocalProcessSpawner))
    settings = _complete_settings(c)
    _refuse_unsupported(c, settings)
    _add_service(c, settings)
    c.JupyterHub.custom_scopes = {
        **_resolved_value(c.JupyterHub.get("custom_scopes", {}), {}),
        **{name: dict(scope) for name, scope in CUSTOM_SCOPES.items()},
    }
    _add_roles(c)
    _add_server_token_scopes(c)
    _schedule_check()


# Settings


def _complete_settings(c: Config) -> GPUQuota:
    """The settings with token, address and accounts, which the spawner reads from the configuration too."""
    try:
        settings = GPUQuota(config=c)
    except TraitError as error:
        raise SetupError(str(error)) from None
    if not settings.start_service:
        settings.service_url, settings.api_token = _external_service(c, settings)
    c.GPUQuota.api_token = settings.api_token = settings.api_token or new_api_token()
    c.GPUQuota.service_url = settings.service_url = settings.service_url or _service_url(c, settings)
    settings.accounts = settings.backend == "kubernetes" or (
        settings.job_account == "spawner" and spawner_drops_to_accounts(c.JupyterHub.spawner_class)
    )
    for sentence in mistakes(settings) + (backend_mistakes(settings) if settings.start_service else []):
        raise SetupError(sentence)
    if settings.backend == "kubernetes" and issubclass(c.JupyterHub.spawner_class, LocalProcessSpawner):
        raise SetupError(
            "c.GPUQuota.backend is 'kubernetes', and c.JupyterHub.spawner_class runs servers on the hub's machine, "
            "which has none of the cluster's devices: set it to 'gpu-quota-kube'."
        )
    if len(settings.api_token) < 32:
        raise SetupError("c.GPUQuota.api_token must have at least 32 characters; leave it empty for a new one.")
    return settings


def _refuse_unsupported(c: Config, settings: GPUQuota) -> None:
    """Raises SetupError for settings of the hub with which the service or its notebooks get no answer."""
    if _hub_setting(c, "internal_ssl"):
        raise SetupError(
            "c.JupyterHub.internal_ssl is True, which jupyter_gpu_quota does not support yet: remove it from the "
            "file or from the hub's command line."
        )
    is_local = issubclass(c.JupyterHub.spawner_class, LocalProcessSpawner)
    if is_local and _hub_setting(c, "subdomain_host") and not settings.notebook_service_url:
        raise SetupError(
            "c.JupyterHub.subdomain_host is set, and the hub's proxy then routes no request of a notebook on the "
            "loopback: set c.GPUQuota.notebook_service_url to the address of the service, such as "
            f"'https://{SERVICE_NAME}--service.hub.example.org/services/{SERVICE_NAME}/'."
        )


def _hub_setting(c: Config, name: str) -> Any:
    """A setting of the hub: of its command line, which overrides the files, or of the file that is being read."""
    if JupyterHub.initialized() and name in JupyterHub.instance().cli_config.get("JupyterHub", {}):
        return getattr(JupyterHub.instance(), name)
    return c.JupyterHub.get(name)


def _external_service(c: Config, settings: GPUQuota) -> tuple[str, str]:
    """The address and the token of a service that the hub does not start."""
    known = next((each for each in _resolved_list(c.JupyterHub, "services") if each.get("name") == SERVICE_NAME), {})
    url, token = settings.service_url or known.get("url"), settings.api_token or known.get("api_token")
    if not (url and token):
        raise SetupError(
            f"c.GPUQuota.start_service is False, and the {'token' if url else 'address'} of the service is unknown: "
            f"set c.GPUQuota.{'api_token' if url else 'service_url'}, or the entry {SERVICE_NAME!r} of "
            "c.JupyterHub.services."
        )
    return str(url), str(token)


def _service_url(c: Config, settings: GPUQuota) -> str:
    """A free loopback port, usually the same at each start, and not one that the configuration names.

    It stays reserved for the service while this process runs.
    """
    named = frozenset(int(number) for number in re.findall(r":(\d{2,5})\b", repr(c)))
    folder = str(Path(settings.state_dir).absolute())
    if folder not in _SERVICE_PORTS or _SERVICE_PORTS[folder].port in named:
        (_SERVICE_PORTS[folder],) = reserve_ports(folder, taken=named)
    return f"http://127.0.0.1:{_SERVICE_PORTS[folder].port}"


def spawner_drops_to_accounts(spawner: type[Spawner]) -> bool:
    """Whether this hub starts servers under the accounts of their users."""
    return os.geteuid() == 0 and not issubclass(spawner, SimpleLocalProcessSpawner)


# The spawner class


def wrapped_spawner(given: type[Spawner] | str) -> type[Spawner]:
    """A subclass of the spawner class that books a slice.

    Takes a class, a dotted path or a registered name such as 'simple'. Raises SetupError for classes that run servers
    neither as processes of this machine nor as pods.
    """
    spawner = _spawner_class(given)
    if issubclass(spawner, GPUQuotaMixin):
        return spawner
    if any(each.__module__.partition(".")[0] == "kubespawner" for each in spawner.__mro__):
        from .kube_spawner import wrap_spawner

        return wrap_spawner(spawner)
    if not issubclass(spawner, LocalProcessSpawner):
        raise SetupError(
            f"c.JupyterHub.spawner_class is {spawner.__module__}.{spawner.__name__}; jupyter_gpu_quota supports "
            "LocalProcessSpawner, KubeSpawner and their subclasses. Use one of those, or remove setup_gpu_quota(c) "
            "from the file."
        )
    if spawner is LocalProcessSpawner:
        return GPUQuotaLocalSpawner
    return type(f"GPUQuota{spawner.__name__}", (GPUQuotaMixin, OwnPortMixin, spawner), {"__module__": __name__})


def _spawner_class(given: type[Spawner] | str) -> type[Spawner]:
    if isinstance(given, str):
        registered = {entry.name.lower(): entry for entry in entry_points(group="jupyterhub.spawners")}
        given = registered[given.lower()].load() if given.lower() in registered else import_item(given)
    if not (isinstance(given, type) and issubclass(given, Spawner)):
        raise SetupError(f"c.JupyterHub.spawner_class is {given!r}, which is not a spawner class.")
    return given


# The service, its scopes and roles


def _add_service(c: Config, settings: GPUQuota) -> None:
    spec = service_spec(settings)
    services = _resolved_list(c.JupyterHub, "services")
    for number, known in enumerate(services):
        if known.get("name") == SERVICE_NAME:
            if known.get("command") != spec.get("command"):
                raise SetupError(f"c.JupyterHub.services already has a service named {SERVICE_NAME!r}; rename it.")
            services[number] = spec if settings.start_service else {**known, **spec}
            return
    services.append(spec)


def service_spec(settings: GPUQuota) -> dict[str, object]:
    """The service's entry of ``c.JupyterHub.services``; the hub proxies it, and starts it unless it runs elsewhere."""
    variables = {name: os.environ[name] for name in (DATABASE_VARIABLE,) if os.environ.get(name)}
    started = {
        "command": [sys.executable, "-m", "jupyter_gpu_quota", "serve"],
        "environment": {SETTINGS_VARIABLE: json.dumps(service_settings(settings)), **variables},
    }
    return {
        "name": SERVICE_NAME,
        "url": settings.service_url,
        **(started if settings.start_service else {}),
        "api_token": settings.api_token,
        "oauth_client_allowed_scopes": [ACCESS_SCOPE, *CUSTOM_SCOPES],
        "oauth_no_confirm": True,
        "display": True,
        "info": {"name": "GPU quota", "description": "GPU devices, quotas and jobs."},
    }


def _add_roles(c: Config) -> None:
    roles = _resolved_list(c.JupyterHub, "load_roles")
    _grant_users(c, roles)
    _put_role(
        roles,
        {
            "name": SERVICE_ROLE,
            "description": "The GPU quota service: list users, groups and servers, and stop servers",
            "scopes": list(SERVICE_SCOPES),
            "services": [SERVICE_NAME],
        },
    )
    admins = configured_admins(c)
    _put_role(
        roles,
        {
            "name": ADMIN_ROLE,
            "description": "Administrators of the GPU quota service; admins of the hub need no role",
            "scopes": [ACCESS_SCOPE, ADMIN_SCOPE],
            **({"users": admins} if admins else {}),
        },
    )


def _grant_users(c: Config, roles: list[dict[str, Any]]) -> None:
    """Grant every user access to the service: in a redefined role, by JupyterHub 6's setting, or beside ``self``."""
    role = next((role for role in roles if role.get("name") == "user"), None)
    if role is not None and "scopes" in role:
        role["scopes"] = _merge_scopes(role["scopes"], USER_SCOPES)
    elif JupyterHub.class_traits().get("extra_user_scopes") is not None:
        extra = _resolved_value(c.JupyterHub.get("extra_user_scopes", set()), set())
        c.JupyterHub.extra_user_scopes = {*extra, *USER_SCOPES}
    elif role is not None:
        role["scopes"] = ["self", *USER_SCOPES]
    else:
        roles.append({"name": "user", "description": "Standard user privileges", "scopes": ["self", *USER_SCOPES]})


def configured_admins(c: Config) -> list[str]:
    """The configured admins; none if an authenticator manages roles, since it refuses other entries."""
    sections = [
        section for name, section in c.items() if name.endswith("Authenticator") and isinstance(section, Config)
    ]
    if any(section.get("manage_roles") is True for section in sections):
        return []
    return sorted(
        {admin for section in sections for admin in _resolved_value(section.get("admin_users", set()), set())}
    )


def _put_role(roles: list[dict[str, Any]], role: dict[str, Any]) -> None:
    roles[:] = [known for known in roles if known.get("name") != role["name"]]
    roles.append(role)


# Tokens of servers


def _add_server_token_scopes(c: Config) -> None:
    """Grant a notebook's token access to the service: add our scopes to a list, or to a callable's result."""
    for section, given in {"Spawner": [], **_configured_token_scopes(c, c.JupyterHub.spawner_class)}.items():
        if not callable(given):
            c[section][TOKEN_SETTING] = _merge_scopes(given or _server_role_scopes(c), TOKEN_SCOPES)
        elif not isinstance(given, _ScopesAdded):
            c[section][TOKEN_SETTING] = _ScopesAdded(given)


def _configured_token_scopes(c: Config, spawner: type[Spawner]) -> dict[str, Any]:
    """The configured scopes of servers' tokens in each section of a spawner class; the last one is in force."""
    found: dict[str, Any] = {}
    given: Any = []
    for section in spawner.section_names():
        if TOKEN_SETTING in c.get(section, {}):
            found[section] = given = _resolved_value(c[section][TOKEN_SETTING], given)
    return found


class _ScopesAdded:
    """A configured callable of ``server_token_scopes`` with our scopes added to its result."""

    def __init__(self, given: Callable[[Spawner], Any]) -> None:
        self.given = given

    async def __call__(self, spawner: Spawner) -> list[str]:
        scopes = self.given(spawner)
        return _merge_scopes(await scopes if isawaitable(scopes) else scopes, TOKEN_SCOPES)


def _server_role_scopes(c: Config) -> list[str]:
    """The default scopes of a server's token: those of the role ``server``."""
    for role in _resolved_list(c.JupyterHub, "load_roles"):
        if role.get("name") == "server" and role.get("scopes"):
            return list(role["scopes"])
    return ["users:activity!user", "access:servers!server"]


def _merge_scopes(known: Any, wanted: tuple[str, ...]) -> list[str]:
    return [*known, *(scope for scope in wanted if scope not in known)]


def _resolved_list(section: Config, name: str) -> list[dict[str, Any]]:
    """A list of the configuration, to append to; a lazy value becomes a list."""
    section[name] = list(_resolved_value(section.get(name, []), []))
    found: list[dict[str, Any]] = section[name]
    return found


def _resolved_value(configured: Any, default: Any) -> Any:
    """A configured value; one that was only appended to so far is applied to the default."""
    return configured.get_value(default) if isinstance(configured, LazyConfigValue) else configured


# The check at start


def _schedule_check() -> None:
    """Check the hub's final configuration as soon as it has read its files and arguments.

    The hub reads its file inside its event loop. Without a loop, as when a configuration is printed, there is no check.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop().call_soon(_report_missing)


def _report_missing() -> None:
    if JupyterHub.initialized():
        hub = JupyterHub.instance()
        for sentence in missing_entries(hub):
            hub.log.error(
                "jupyter_gpu_quota: %s Make setup_gpu_quota(c) the last line of jupyterhub_config.py.", sentence
            )


def missing_entries(hub: JupyterHub) -> list[str]:
    """A sentence for each of our entries that is missing in the hub's settings."""
    found = []
    if not issubclass(hub.spawner_class, GPUQuotaMixin):
        found.append(f"the spawner class is {hub.spawner_class.__name__}, so that servers start without a GPU slice.")
    if not any(service.get("name") == SERVICE_NAME for service in hub.services):
        found.append(f"the service {SERVICE_NAME!r} is no longer in c.JupyterHub.services.")
    if not any(role.get("name") == SERVICE_ROLE for role in hub.load_roles):
        found.append(f"the role {SERVICE_ROLE!r} is no longer in c.JupyterHub.load_roles.")
    if not set(CUSTOM_SCOPES) <= set(hub.custom_scopes):
        found.append("the scopes custom:gpu-quota:* are no longer in c.JupyterHub.custom_scopes.")
    roles = [role["scopes"] for role in hub.load_roles if role.get("name") == "user" and "scopes" in role]
    if not set(USER_SCOPES) <= set(roles[0] if roles else getattr(hub, "extra_user_scopes", ())):
        found.append("users are no longer granted the GPU quota scopes.")
    section, scopes = list({"Spawner": (), **_configured_token_scopes(hub.config, hub.spawner_class)}.items())[-1]
    if not (isinstance(scopes, _ScopesAdded) or (not callable(scopes) and set(USER_SCOPES) <= set(scopes))):
        found.append(f"notebooks' tokens no longer reach the service: see c.{section}.{TOKEN_SETTING}.")
    if late := ", ".join(f"c.GPUQuota.{name}" for name in _set_too_late(hub)):
        found.append(f"{late} was set below setup_gpu_quota(c) and has no effect: make the call the last line.")
    return found


def _set_too_late(hub: JupyterHub) -> list[str]:
    """Settings that differ from those of the service; ``accounts`` is computed."""
    passed = [service.get("environment", {}) for service in hub.services if service.get("name") == SERVICE_NAME]
    if not passed or SETTINGS_VARIABLE not in passed[0]:
        return []
    then, now = json.loads(passed[0][SETTINGS_VARIABLE]), service_settings(GPUQuota(config=hub.config))
    return sorted(name for name, value in now.items() if name != "accounts" and value != then.get(name))
