"""``setup_gpu_quota(c)``: what it adds to a hub's configuration, and that it takes nothing away."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from traitlets.config import Config, LazyConfigValue

import jupyter_gpu_quota.hub.setup as setup_room
from jupyter_gpu_quota import setup_gpu_quota
from jupyter_gpu_quota.hub.local_spawner import GPUQuotaLocalSpawner, GPUQuotaMixin
from jupyter_gpu_quota.hub.setup import (
    ADMIN_ROLE,
    CUSTOM_SCOPES,
    SERVICE_ROLE,
    TOKEN_SCOPES,
    USER_SCOPES,
    SetupError,
    missing_entries,
)
from jupyter_gpu_quota.settings import DATABASE_VARIABLE, SETTINGS_VARIABLE, settings_from_environment

IS_HUB_6 = hasattr(JupyterHub, "extra_user_scopes")


class OwnLocalSpawner(LocalProcessSpawner):
    """A hub's own subclass."""


class RemoteSpawner(Spawner):
    """A spawner whose servers run elsewhere."""

    async def start(self) -> None: ...
    async def stop(self, now: bool = False) -> None: ...
    async def poll(self) -> int | None: ...


def ready(**sections: dict[str, Any]) -> Config:
    """A configuration with these sections, after setup_gpu_quota."""
    c = Config()
    for section, values in sections.items():
        for name, value in values.items():
            setattr(c[section], name, value)
    setup_gpu_quota(c)
    return c


def role(c: Config, name: str) -> dict[str, Any]:
    return next(role for role in c.JupyterHub.load_roles if role["name"] == name)


def granted_to_users(c: Config) -> set[str]:
    roles = [role for role in c.JupyterHub.load_roles if role["name"] == "user" and "scopes" in role]
    return set(roles[0]["scopes"]) if roles else {"self", *c.JupyterHub.extra_user_scopes}


def taken_by_hub(c: Config) -> JupyterHub:
    return JupyterHub(config=c)


# What is added


def test_an_empty_file_gets_service_spawner_scopes_and_roles() -> None:
    c = ready()
    hub = taken_by_hub(c)
    assert hub.spawner_class is GPUQuotaLocalSpawner
    (service,) = hub.services
    assert service["name"] == "gpu-quota"
    assert service["url"].startswith("http://127.0.0.1:")
    assert service["command"] == [sys.executable, "-m", "jupyter_gpu_quota", "serve"]
    assert service["oauth_no_confirm"] is True
    assert set(service["oauth_client_allowed_scopes"]) == {"access:services!service=gpu-quota", *CUSTOM_SCOPES}
    assert set(hub.custom_scopes) == {f"custom:gpu-quota:{name}" for name in ("read", "submit", "audit", "admin")}
    assert granted_to_users(c) == {"self", *USER_SCOPES}
    assert role(c, SERVICE_ROLE)["services"] == ["gpu-quota"]
    assert missing_entries(hub) == []


def test_the_service_may_ask_the_hub_for_names_groups_and_servers_only() -> None:
    scopes = set(role(ready(), SERVICE_ROLE)["scopes"])
    assert scopes == {"list:users", "read:users:name", "read:users:groups", "read:servers", "delete:servers"}


def test_the_service_gets_its_settings_and_no_other_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    c = ready(GPUQuota={"state_dir": "state", "tick_ms": 250, "spawn_timeout_s": 7})
    found = c.JupyterHub.services[0]["environment"][SETTINGS_VARIABLE]
    assert json.loads(found)["state_dir"] == str(tmp_path / "state")
    assert settings_from_environment({SETTINGS_VARIABLE: found}).tick_ms == 250
    assert "api_token" not in json.loads(found)
    assert c.JupyterHub.services[0]["api_token"] == c.GPUQuota.api_token
    assert len(c.JupyterHub.services[0]["environment"]) == 1


def test_the_service_gets_the_address_of_its_database_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://quota:pw-1@db/quota")
    environment = ready().JupyterHub.services[0]["environment"]
    assert settings_from_environment(environment).database_url == "postgresql://quota:pw-1@db/quota"
    assert "pw-1" not in environment[SETTINGS_VARIABLE]


def test_a_notebooks_token_reads_submits_and_audits_and_keeps_its_own_scopes() -> None:
    scopes = ready().Spawner.server_token_scopes
    ours = [*USER_SCOPES, "custom:gpu-quota:audit"]
    assert scopes == ["users:activity!user", "access:servers!server", *ours], "an admin's token cannot administer"


def test_a_repeated_call_of_setup_changes_nothing() -> None:
    c = ready()
    first = copy.deepcopy(c)
    setup_gpu_quota(c)
    assert c == first


def test_every_hub_has_a_token_of_its_own() -> None:
    assert ready().GPUQuota.api_token != ready().GPUQuota.api_token
    assert ready(GPUQuota={"api_token": "t" * 32}).JupyterHub.services[0]["api_token"] == "t" * 32


# What was there stays


def test_existing_services_roles_scopes_and_hooks_stay() -> None:
    def hook(spawner: Spawner) -> None: ...

    def kept_form(spawner: Spawner) -> str:
        return ""

    own_service, own_role = {"name": "culler", "api_token": "x" * 32}, {"name": "culler", "scopes": ["list:users"]}
    c = ready(
        JupyterHub={
            "services": [own_service],
            "load_roles": [own_role],
            "custom_scopes": {"custom:mine": {"description": "mine"}},
        },
        Spawner={"pre_spawn_hook": hook, "post_stop_hook": hook, "auth_state_hook": hook, "options_form": kept_form},
    )
    assert c.JupyterHub.services[0] == own_service
    assert c.JupyterHub.load_roles[0] == own_role
    assert "custom:mine" in c.JupyterHub.custom_scopes
    assert (c.Spawner.pre_spawn_hook, c.Spawner.post_stop_hook, c.Spawner.auth_state_hook) == (hook, hook, hook)
    assert c.Spawner.options_form is kept_form


def test_a_setting_that_was_only_appended_to_stays() -> None:
    c = Config()
    c.JupyterHub.services.append({"name": "culler", "api_token": "x" * 32})
    c.JupyterHub.load_roles.extend([{"name": "culler", "scopes": ["list:users"]}])
    c.JupyterHub.custom_scopes.update({"custom:mine": {"description": "mine"}})
    c.Spawner.server_token_scopes.append("read:hub")
    setup_gpu_quota(c)
    hub = taken_by_hub(c)
    assert [service["name"] for service in hub.services] == ["culler", "gpu-quota"]
    assert {"culler", SERVICE_ROLE, ADMIN_ROLE} <= {role["name"] for role in hub.load_roles}
    assert "custom:mine" in hub.custom_scopes
    assert c.Spawner.server_token_scopes == ["read:hub", *TOKEN_SCOPES]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        pytest.param([], {"self"}, id="no role named user"),
        pytest.param([{"name": "user", "scopes": ["self", "shares"]}], {"self", "shares"}, id="user gives shares too"),
        pytest.param([{"name": "user", "scopes": ["self"]}], {"self"}, id="user as it is by default"),
        pytest.param([{"name": "user", "description": "People"}], {"self"}, id="user with a description only"),
    ],
)
def test_users_keep_what_they_may_and_reach_the_service(roles: list[dict[str, Any]], expected: set[str]) -> None:
    assert granted_to_users(ready(JupyterHub={"load_roles": roles})) == expected | set(USER_SCOPES)


@pytest.mark.skipif(not IS_HUB_6, reason="extra_user_scopes is JupyterHub 6's")
def test_extra_scopes_of_users_are_added_to() -> None:
    c = ready(JupyterHub={"extra_user_scopes": {"shares"}})
    assert taken_by_hub(c).extra_user_scopes == {"shares", *USER_SCOPES}


@pytest.mark.skipif(not IS_HUB_6, reason="extra_user_scopes is JupyterHub 6's")
def test_users_get_a_role_on_a_hub_without_extra_user_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = {name: trait for name, trait in JupyterHub.class_traits().items() if name != "extra_user_scopes"}
    monkeypatch.setattr(JupyterHub, "class_traits", classmethod(lambda cls, **_: traits))
    assert role(ready(), "user")["scopes"] == ["self", *USER_SCOPES]


async def test_our_scopes_are_added_to_the_result_of_a_scopes_callable() -> None:
    async def own(spawner: Spawner) -> list[str]:
        return ["read:hub"]

    c = ready(Spawner={"server_token_scopes": own})
    setup_gpu_quota(c)
    assert await c.Spawner.server_token_scopes(None) == ["read:hub", *TOKEN_SCOPES]


def test_token_scopes_extend_the_configured_server_role() -> None:
    c = ready(JupyterHub={"load_roles": [{"name": "server", "scopes": ["users:activity!user"]}]})
    assert c.Spawner.server_token_scopes == ["users:activity!user", *TOKEN_SCOPES]


def appended(scope: str) -> LazyConfigValue:
    """What ``c.Section.setting.append(scope)`` leaves."""
    found = LazyConfigValue()
    found.append(scope)
    return found


@pytest.mark.parametrize(
    ("scopes_of", "expected"),
    [
        pytest.param({"LocalProcessSpawner": ["a"]}, ["a"], id="of a base class alone"),
        pytest.param(
            {"Spawner": ["a"], "OwnLocalSpawner": ["b"]}, ["b"], id="of the class rather than of all spawners"
        ),
        pytest.param(
            {"Spawner": ["a"], "OwnLocalSpawner": appended("b")}, ["a", "b"], id="of the class beside those of all"
        ),
    ],
)
def test_our_scopes_are_added_to_the_section_in_force(scopes_of: dict[str, Any], expected: list[str]) -> None:
    sections = {section: {"server_token_scopes": scopes} for section, scopes in scopes_of.items()}
    c = ready(JupyterHub={"spawner_class": OwnLocalSpawner}, **sections)
    setup_gpu_quota(c)
    hub = taken_by_hub(c)
    assert hub.spawner_class(config=c).server_token_scopes == [*expected, *TOKEN_SCOPES]
    assert missing_entries(hub) == []


@pytest.mark.parametrize(
    ("sections", "admins"),
    [
        pytest.param({"Authenticator": {"admin_users": {"root", "ada"}}}, ["ada", "root"], id="admins of the file"),
        pytest.param({"PAMAuthenticator": {"admin_users": {"ada"}}}, ["ada"], id="admins of one authenticator"),
        pytest.param({}, [], id="no admins named"),
        pytest.param(
            {"Authenticator": {"admin_users": {"ada"}, "manage_roles": True}}, [], id="the authenticator manages roles"
        ),
    ],
)
def test_admins_of_the_file_may_edit_quotas(sections: dict[str, dict[str, Any]], admins: list[str]) -> None:
    assert role(ready(**sections), ADMIN_ROLE).get("users", []) == admins


# The spawner class


@pytest.mark.parametrize(
    ("given", "base"),
    [
        pytest.param("simple", SimpleLocalProcessSpawner, id="by its registered name"),
        pytest.param("jupyterhub.spawner.SimpleLocalProcessSpawner", SimpleLocalProcessSpawner, id="by its path"),
        pytest.param(OwnLocalSpawner, OwnLocalSpawner, id="a class of the hub's own"),
        pytest.param("gpu-quota-local", GPUQuotaLocalSpawner, id="ours by name"),
        pytest.param(LocalProcessSpawner, GPUQuotaLocalSpawner, id="the default"),
    ],
)
def test_a_local_spawner_is_wrapped(given: object, base: type) -> None:
    c = ready(JupyterHub={"spawner_class": given})
    wrapped = taken_by_hub(c).spawner_class
    assert issubclass(wrapped, GPUQuotaMixin)
    assert issubclass(wrapped, base)
    setup_gpu_quota(c)
    assert c.JupyterHub.spawner_class is wrapped


def test_settings_of_the_wrapped_class_reach_it() -> None:
    c = ready(
        JupyterHub={"spawner_class": "simple"}, SimpleLocalProcessSpawner={"home_dir_template": "/srv/{username}"}
    )
    assert c.JupyterHub.spawner_class(config=c).home_dir_template == "/srv/{username}"


def test_a_spawner_that_runs_elsewhere_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="RemoteSpawner; jupyter_gpu_quota supports"):
        ready(JupyterHub={"spawner_class": RemoteSpawner})


@pytest.mark.parametrize(
    ("uid", "spawner", "setting", "accounts"),
    [
        pytest.param(0, LocalProcessSpawner, "spawner", True, id="root's hub drops to accounts"),
        pytest.param(1000, LocalProcessSpawner, "spawner", False, id="a hub without root has one account"),
        pytest.param(0, "simple", "spawner", False, id="the simple spawner keeps one account"),
        pytest.param(0, LocalProcessSpawner, "service", False, id="the file says jobs run as the service"),
    ],
)
def test_jobs_run_as_the_spawner_runs_servers(
    monkeypatch: pytest.MonkeyPatch, uid: int, spawner: object, setting: str, accounts: bool
) -> None:
    monkeypatch.setattr(setup_room.os, "geteuid", lambda: uid)
    c = ready(JupyterHub={"spawner_class": spawner}, GPUQuota={"job_account": setting})
    found = json.loads(c.JupyterHub.services[0]["environment"][SETTINGS_VARIABLE])
    assert found["accounts"] is accounts


# What is refused, and what is missed


def test_an_unknown_setting_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(SetupError, match=r"c.GPUQuota.state_dri .* Did you mean c.GPUQuota.state_dir\?"):
        ready(GPUQuota={"state_dri": "/srv"})


@pytest.mark.parametrize(
    "device",
    [
        pytest.param({"model": "A", "memory": 1}, id="an unknown key"),
        pytest.param({"model": "A"}, id="no memory"),
        pytest.param({"model": "A", "memory_mib": "80G"}, id="memory in words"),
        pytest.param({"model": "A", "memory_mib": 1024, "count": 0}, id="no device"),
    ],
)
def test_an_incomplete_simulated_device_is_refused_with_an_example(device: dict[str, object]) -> None:
    with pytest.raises(SetupError, match=r"simulated_devices: entry 2 is .*'memory_mib': 81920"):
        ready(GPUQuota={"simulated_devices": [{"model": "A", "memory_mib": 1024}, device]})


def test_a_short_token_is_refused() -> None:
    with pytest.raises(SetupError, match="at least 32 characters"):
        ready(GPUQuota={"api_token": "short"})


def test_internal_ssl_is_refused() -> None:
    with pytest.raises(SetupError, match=r"c\.JupyterHub\.internal_ssl is True, .* not support yet: remove it"):
        ready(JupyterHub={"internal_ssl": True})
    ready(JupyterHub={"internal_ssl": False})


def test_a_hub_with_subdomains_needs_the_address_of_the_service_for_notebooks() -> None:
    from kubespawner import KubeSpawner

    host = {"subdomain_host": "https://hub.example.org"}
    with pytest.raises(SetupError, match=r"subdomain_host is set, .* set c\.GPUQuota\.notebook_service_url"):
        ready(JupyterHub=host)
    ready(JupyterHub=host, GPUQuota={"notebook_service_url": "https://gpu-quota--service.hub.example.org/"})
    ready(JupyterHub={"spawner_class": KubeSpawner, **host})


@pytest.fixture
def hub_of_the_process() -> Iterator[JupyterHub]:
    """The hub that reads the configuration file, before it reads it."""
    assert not JupyterHub.initialized()
    yield JupyterHub.instance()
    JupyterHub.clear_instance()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        pytest.param("--JupyterHub.internal_ssl=True", r"internal_ssl is True, .* the hub's command line", id="ssl"),
        pytest.param("--JupyterHub.subdomain_host=https://hub.example.org", "subdomain_host is set", id="subdomains"),
    ],
)
def test_a_setting_on_the_command_line_is_refused_as_in_the_file(
    hub_of_the_process: JupyterHub, option: str, said: str
) -> None:
    hub_of_the_process.parse_command_line([option])
    with pytest.raises(SetupError, match=said):
        ready()


def test_a_command_line_that_turns_internal_ssl_off_overrides_the_file(hub_of_the_process: JupyterHub) -> None:
    with pytest.raises(SetupError, match="internal_ssl"):
        ready(JupyterHub={"internal_ssl": True})
    hub_of_the_process.parse_command_line(["--JupyterHub.internal_ssl=False"])
    ready(JupyterHub={"internal_ssl": True})


def test_a_foreign_service_with_our_name_is_not_replaced() -> None:
    with pytest.raises(SetupError, match="already has a service named 'gpu-quota'"):
        ready(JupyterHub={"services": [{"name": "gpu-quota", "command": ["other"]}]})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        pytest.param(
            "spawner_class", LocalProcessSpawner, "the spawner class is LocalProcessSpawner", id="spawner class"
        ),
        pytest.param("services", [], "the service 'gpu-quota' is no longer", id="services"),
        pytest.param("custom_scopes", {}, "custom:gpu-quota", id="scopes"),
        pytest.param(
            "load_roles", [{"name": "user", "scopes": ["self"]}], "users are no longer granted", id="user role"
        ),
        pytest.param("server_token_scopes", [], "notebooks' tokens no longer", id="scopes of servers' tokens"),
        pytest.param("load_roles", [], "the role 'gpu-quota-service'", id="roles"),
    ],
)
def test_an_entry_removed_by_a_later_line_is_reported(name: str, value: object, said: str) -> None:
    c = ready()
    setattr(c["Spawner" if name == "server_token_scopes" else "JupyterHub"], name, value)
    assert said in " ".join(missing_entries(taken_by_hub(c)))


@pytest.mark.parametrize("scopes", [["read:hub"], lambda spawner: []], ids=["a list", "a callable"])
def test_token_scopes_that_a_later_line_sets_for_one_spawner_are_reported(scopes: Any) -> None:
    c = ready()
    c.LocalProcessSpawner.server_token_scopes = scopes
    (sentence,) = missing_entries(taken_by_hub(c))
    assert sentence.endswith("no longer reach the service: see c.LocalProcessSpawner.server_token_scopes.")


def test_a_setting_below_the_call_is_named_for_it_does_not_count() -> None:
    c = ready()
    c.GPUQuota.log_limit_mib = 7
    assert "c.GPUQuota.log_limit_mib was set below setup_gpu_quota(c)" in " ".join(missing_entries(taken_by_hub(c)))


def test_a_hub_without_our_entries_logs_that_at_start(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "from jupyter_gpu_quota import setup_gpu_quota\n"
        "setup_gpu_quota(c)\n"
        "c.JupyterHub.spawner_class = 'simple'\n"
        "c.Spawner.server_token_scopes = []\n"
        "c.ConfigurableHTTPProxy.command = ['/nowhere/at/all']\n"
        f"c.JupyterHub.db_url = 'sqlite:///{tmp_path}/hub.sqlite'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "jupyterhub", "-f", "late.py", "--JupyterHub.hub_port=0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "the spawner class is SimpleLocalProcessSpawner" in done.stderr
    assert "notebooks' tokens no longer reach the service" in done.stderr


def test_a_service_elsewhere_keeps_its_entry_and_is_not_started() -> None:
    entry = {"name": "gpu-quota", "url": "http://gpu-quota:10901", "api_token": "t" * 32, "admin": False}
    c = ready(JupyterHub={"services": [entry]}, GPUQuota={"start_service": False})
    (found,) = c.JupyterHub.services
    assert (found["url"], found["api_token"], found["admin"]) == ("http://gpu-quota:10901", "t" * 32, False)
    assert not {"command", "environment"} & found.keys()
    assert found["oauth_client_allowed_scopes"], "the hub gives it what a started one gets"
    assert (c.GPUQuota.service_url, c.GPUQuota.api_token) == (found["url"], found["api_token"]), "for the spawner"


def test_a_service_elsewhere_needs_an_address() -> None:
    with pytest.raises(SetupError, match=r"address of the service is unknown: set c\.GPUQuota\.service_url"):
        ready(GPUQuota={"start_service": False})


def test_a_backend_without_its_settings_is_refused_at_the_start() -> None:
    with pytest.raises(SetupError, match=r"c\.GPUQuota\.kubernetes_image is empty"):
        ready(GPUQuota={"backend": "kubernetes"})


def test_kubespawner_and_its_subclasses_get_a_slice() -> None:
    from kubespawner import KubeSpawner

    from jupyter_gpu_quota.hub.kube_spawner import GPUQuotaKubeSpawner, GPUQuotaPodMixin

    class OwnKubeSpawner(KubeSpawner):
        """A hub's own subclass."""

    assert ready(JupyterHub={"spawner_class": KubeSpawner}).JupyterHub.spawner_class is GPUQuotaKubeSpawner
    own = ready(JupyterHub={"spawner_class": OwnKubeSpawner}).JupyterHub.spawner_class
    assert issubclass(own, GPUQuotaPodMixin) and issubclass(own, OwnKubeSpawner)


def test_servers_on_the_hub_s_machine_with_the_devices_of_a_cluster_are_refused() -> None:
    known = {"kubernetes_image": "i", "kubernetes_volume_claim": "jobs"}
    with pytest.raises(SetupError, match="set it to 'gpu-quota-kube'"):
        ready(GPUQuota={"backend": "kubernetes", **known})
