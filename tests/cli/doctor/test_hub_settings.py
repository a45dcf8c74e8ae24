"""Where ``doctor`` and ``backup`` find the settings of the hub of this machine without an option."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.host import processes as every
from jupyter_gpu_quota.cli.doctor import hub_settings
from jupyter_gpu_quota.client import connection
from jupyter_gpu_quota.wire.status import DeploymentView
from tests.cli.commands import run, shown_on_terminal
from tests.client.fake_service import TOKEN, World, served

CONFIG = """\
c.JupyterHub.spawner_class = "simple"
c.GPUQuota.state_dir = "of_the_file"
from jupyter_gpu_quota import setup_gpu_quota
setup_gpu_quota(c)
"""

ELSEWHERE = """\
c.JupyterHub.services = [{"name": "gpu-quota", "url": "http://x:10901", "api_token": "a" * 64, "environment": {}}]
c.GPUQuota.start_service = False
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    monkeypatch.chdir(tmp_path)
    for name in ("URL", "SETTINGS", "DATABASE_URL"):
        monkeypatch.delenv(f"JUPYTER_GPU_QUOTA_{name}", raising=False)
    for name in ("JUPYTERHUB_PUBLIC_HUB_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)


def doctor(*options: str) -> dict[str, dict[str, str]]:
    done = run("doctor", "--json", *options)
    assert done.exit_code in (0, 1), done.output
    return {each["what"]: each for each in json.loads(done.stdout)}


@contextmanager
def running_services(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_dirs: Sequence[str], url: str = ""
) -> Iterator[list[int]]:
    """Processes with the command and the variables of services; other processes of the machine are not seen."""
    (tmp_path / "jupyter_gpu_quota.py").write_text("print(flush=True); input()\n")
    hub = {"JUPYTERHUB_SERVICE_URL": url, "JUPYTERHUB_SERVICE_PREFIX": "/services/gpu-quota/"} if url else {}
    with ExitStack() as stack:
        started = []
        for state_dir in state_dirs:
            settings = json.dumps({"state_dir": str(tmp_path / state_dir)})
            one = subprocess.Popen(
                [sys.executable, "-m", "jupyter_gpu_quota", "serve"],
                cwd=tmp_path,
                env={**os.environ, **hub, "JUPYTER_GPU_QUOTA_SETTINGS": settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(one)
            stack.callback(one.kill)
            assert one.stdout is not None and one.stdout.readline()
            started.append(one.pid)
        monkeypatch.setattr(hub_settings, "processes", lambda: {pid: every.process(pid) for pid in started})
        yield started


def test_the_configuration_file_of_the_working_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    found = doctor()
    assert found["settings"]["found"] == f"from {tmp_path / 'jupyterhub_config.py'}"
    assert str(tmp_path / "of_the_file") in found["state folder"]["found"]


def test_the_running_service_of_this_account_is_used_in_any_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running_services(monkeypatch, tmp_path, ["running"]) as started:
        found = doctor()
    assert found["settings"]["found"] == f"from the running service, process {started[0]}"
    assert str(tmp_path / "running") in found["state folder"]["found"]


def test_a_state_directory_that_is_named_is_not_that_of_a_running_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running_services(monkeypatch, tmp_path, ["running"]):
        found = doctor("--state-dir", str(tmp_path / "named"))
    assert found["settings"]["verdict"] == "skip" and str(tmp_path / "named") in found["state folder"]["found"]


@pytest.mark.parametrize("as_admin", [False, True], ids=["without a token", "with an admin's token"])
def test_of_two_running_services_both_are_named_with_the_option_that_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_admin: bool
) -> None:
    shown = DeploymentView(
        host=socket.gethostname(), state_dir=str(tmp_path / "one"), quota_file="", simulated_devices=[]
    )
    with served(World(deployment=shown)) as world, running_services(monkeypatch, tmp_path, ["one", "two"]) as started:
        if as_admin:
            monkeypatch.setenv("JUPYTER_GPU_QUOTA_URL", world.url)
            monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        found = doctor()["settings"]
        chosen = doctor("--state-dir", "two")
    named = [
        f"process {pid} with state directory {tmp_path / name}"
        for pid, name in zip(started, ("one", "two"), strict=True)
    ]
    said = f"2 services with different settings run here: {', '.join(named)}"
    said += "; the settings are from the service, for an admin" if as_admin else ""
    assert (found["verdict"], found["found"]) == ("warn", said)
    assert found["advice"].startswith("choose one by --state-dir DIR")
    assert chosen["settings"]["found"] == f"from the running service, process {started[1]}"
    assert str(tmp_path / "two") in chosen["state folder"]["found"]


@pytest.mark.parametrize(
    ("file", "options"),
    [
        pytest.param("jupyterhub_config.py", (), id="of the configuration file here"),
        pytest.param("hub.py", ("--config", "hub.py"), id="of the configuration file that is named"),
        pytest.param("", (), id="without one"),
    ],
)
def test_the_running_service_is_asked_at_its_own_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, options: Sequence[str]
) -> None:
    if file:
        (tmp_path / file).write_text(CONFIG)
    with served(World()) as world, running_services(monkeypatch, tmp_path, ["of_the_file"], url=world.url):
        found = doctor(*options)
    assert (found["service"]["verdict"], world.url in found["service"]["found"]) == ("ok", True)


def test_a_service_of_another_account_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub_settings, "user_of", lambda pid: os.geteuid() + 1)
    with running_services(monkeypatch, tmp_path, ["running"]):
        assert doctor()["settings"]["verdict"] == "skip"


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        pytest.param("c = get_config()\n", 0o644, "does not call setup_gpu_quota(c)", id="without our setup"),
        pytest.param(ELSEWHERE + CONFIG, 0o644, "the hub does not start the service", id="of a service elsewhere"),
        pytest.param("1 / 0\n", 0o644, "ZeroDivisionError", id="that fails"),
        pytest.param(
            "import sys; sys.exit(3)\n", 0o644, "jupyterhub_config.py cannot be loaded: SystemExit: 3", id="that ends"
        ),
        pytest.param(CONFIG, 0o646, "another account can write it", id="that others can write, which is not run"),
    ],
)
def test_a_file_in_the_working_directory_that_cannot_be_used_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, mode: int, said: str
) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(text)
    (tmp_path / "jupyterhub_config.py").chmod(mode)
    found = doctor()["settings"]
    assert (found["verdict"], said in found["found"], "give --config" in found["advice"]) == ("warn", True, True)
    with running_services(monkeypatch, tmp_path, ["running"]):
        found = doctor()
    assert found["settings"]["verdict"] == "warn" and str(tmp_path / "running") in found["state folder"]["found"]


@pytest.mark.parametrize(("state_dir", "verdict"), [("of_the_file", "warn"), ("/srv/of_the_file", "ok")])
def test_a_relative_state_folder_of_a_file_elsewhere_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_dir: str, verdict: str
) -> None:
    (tmp_path / "hub.py").write_text(CONFIG.replace("of_the_file", state_dir))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = doctor("--config", "../hub.py")["settings"]
    assert (found["verdict"], "state_dir is relative" in found["found"]) == (verdict, verdict == "warn")


def test_with_an_address_the_settings_are_those_of_that_service(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    shown = DeploymentView(
        host=socket.gethostname(), state_dir=str(tmp_path / "asked"), quota_file="", simulated_devices=[]
    )
    with served(World(own_accounts=False, deployment=shown)) as world:
        found = doctor("--url", world.url, "--token", TOKEN)
    assert found["settings"]["found"] == "from the service, for an admin"
    assert str(tmp_path / "asked") in found["state folder"]["found"]
    for what in ("database", "fsync"):
        assert found[what]["verdict"] == "skip" and "does not report where its database is" in found[what]["found"]


@pytest.mark.parametrize("words", [("doctor",), ("backup", "copy"), ("restore", "copy")], ids=lambda words: words[0])
def test_a_service_that_the_hub_does_not_start_is_not_of_its_configuration(words: Sequence[str]) -> None:
    Path("hub.py").write_text(ELSEWHERE + CONFIG)
    done = run(*words, "--config", "hub.py")
    assert (done.exit_code, "run this where the service runs" in done.stderr) == (2, True), done.output


def test_a_backup_is_of_the_hub_whose_configuration_file_is_here(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    done = run("backup", str(tmp_path / "copy"))
    assert done.exit_code == 1 and str(tmp_path / "of_the_file" / "gpu-quota.sqlite") in done.stderr


def test_a_terminal_shows_that_the_configuration_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG)
    done, shown = shown_on_terminal("backup", "copy")
    assert (done.returncode, b"Running jupyterhub_config.py for the hub's settings" in shown) == (1, True)


def test_a_backup_by_state_directory_is_of_the_database_of_the_service_that_runs_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_DATABASE_URL", f"sqlite:///{tmp_path}/fast.sqlite")
    with running_services(monkeypatch, tmp_path, ["running"]):
        monkeypatch.delenv("JUPYTER_GPU_QUOTA_DATABASE_URL")
        done = run("backup", "--state-dir", "running", str(tmp_path / "copy"))
    assert done.exit_code == 1 and f"There is no database {tmp_path}/fast.sqlite" in done.stderr
