"""A real hub as root: each person's server and jobs under an account of their own, as LocalProcessSpawner does.

The people are accounts that every Debian has; none is made. What a job must not reach, it tries to read.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.host.servers import Servers
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from tests.hub.real_hub import ADMIN_TOKEN, QUOTA_FILE, SERVICE_TOKEN, Answer, RealHub
from tests.patience import until

SYSTEM_PYTHON = "/usr/bin/python3"
"""A python that any account may run: the one of the tests may lie below a closed home."""

PEOPLE = ("daemon", "games")
EIGHTH = {"gpu_project": "build", "gpu_size": "1/8"}

SETTINGS = """\
c.GPUQuota.api_token = {token!r}
c.GPUQuota.quota_file = {folder!r} + "/quota.yaml"
c.GPUQuota.simulated_devices = [{{"model": "Fake 80G", "memory_mib": 81920, "count": 1}}]
c.JupyterHub.services.append({{"name": "tests", "api_token": {admin!r}}})
c.JupyterHub.load_roles.append({{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "admin:server_state", "tokens", "access:servers", "list:users"]}})
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.cmd = [{python!r}, {server!r}]
c.Spawner.args = []
"""

SERVER = """\
import http.server, os, urllib.parse
where = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
class Nothing(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
http.server.ThreadingHTTPServer((where.hostname, where.port), Nothing).serve_forever()
"""


def _without_accounts() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    if os.geteuid() != 0:
        return "a hub that gives each person an account of their own runs as root"
    if not set(PEOPLE) <= names:
        return f"this machine has no accounts named {' and '.join(PEOPLE)}"
    return "" if Path(SYSTEM_PYTHON).exists() else f"there is no {SYSTEM_PYTHON} that any account may run"


pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(_without_accounts()), reason=_without_accounts()),
]


@pytest.fixture(scope="module")
def hub() -> Iterator[RealHub]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-quota-accounts-"))
    folder.chmod(0o711)  # pytest's own folders are closed to other accounts
    (folder / "server.py").write_text(SERVER)
    (folder / "quota.yaml").write_text(QUOTA_FILE)
    settings = SETTINGS.format(
        token=SERVICE_TOKEN,
        admin=ADMIN_TOKEN,
        folder=str(folder),
        python=SYSTEM_PYTHON,
        server=str(folder / "server.py"),
    )
    stage = TemporaryHub(folder, users=HubUsers(groups={"builders": (*PEOPLE, "ghost", "root")}), extra_config=settings)
    try:
        stage.start()
        yield RealHub(stage)
    finally:
        stage.end()
        shutil.rmtree(folder)


def submit(hub: RealHub, name: str, script: str, **more: object) -> dict[str, Any]:
    body = {"command": ["sh", "-c", script], "gpu": "1/4", **more}
    answer = hub.service("POST", "/jobs", body, token=hub.person(name).token)
    assert answer.status == 201, answer
    job: dict[str, Any] = answer.body
    return job


def asked(hub: RealHub, name: str, path: str) -> Answer:
    return hub.service("GET", path, token=hub.person(name).token)


def log_of(hub: RealHub, name: str, job: str) -> str:
    """What a job wrote, once it has ended."""
    until(lambda: asked(hub, name, f"/jobs/{job}").body["state"] in ("succeeded", "failed"))
    return str(asked(hub, name, f"/jobs/{job}/logs").body)


def test_a_job_runs_as_its_submitter_without_access_to_other_files(hub: RealHub) -> None:
    theirs = submit(hub, "games", "echo mine > note; echo mine > $GPU_QUOTA_OUTPUT_DIR/o; echo up; exec sleep 600")
    until(lambda: "up" in str(asked(hub, "games", f"/jobs/{theirs['id']}/logs").body))
    state = hub.stage.state_dir
    hidden = [
        *(str(path) for path in state.iterdir()), *(f"/proc/{pid}/environ" for pid in hub.service_pids()),
        *(str(path) for path in (state / "jobs" / theirs["id"]).rglob("*")),
    ]  # fmt: skip
    assert len(hidden) > 12 and any(path.endswith("note") for path in hidden)
    tries = "; ".join(f"cat {path} > /dev/null 2>&1 && echo LEAK {path}" for path in hidden)
    listed = "; ".join(f"ls {path} > /dev/null 2>&1 && echo LEAK {path}" for path in (state, state / "jobs"))
    mine = submit(hub, "daemon", f"id -un; {tries}; {listed}; env | grep -c JUPYTERHUB; echo end")
    log = log_of(hub, "daemon", mine["id"])
    assert log.split() == ["daemon", "0", "end"], log
    for path in (f"/jobs/{theirs['id']}/outputs/o", f"/jobs/{theirs['id']}/logs"):
        assert asked(hub, "games", path).status == 200
    hub.service("POST", f"/jobs/{theirs['id']}/actions/cancel", {}, token=hub.person("games").token)


def test_a_job_of_one_person_cannot_signal_the_job_of_another_or_the_service(hub: RealHub) -> None:
    theirs = submit(hub, "games", "echo up; exec sleep 600")
    until(lambda: "up" in str(asked(hub, "games", f"/jobs/{theirs['id']}/logs").body))
    targets = " ".join(map(str, hub.service_pids()))
    mine = submit(hub, "daemon", f"kill -9 {targets} 2>/dev/null; kill -9 -1; echo end")
    until(lambda: asked(hub, "daemon", f"/jobs/{mine['id']}").body["state"] in ("succeeded", "failed"))
    assert asked(hub, "games", f"/jobs/{theirs['id']}").body["state"] == "running"
    hub.service("POST", f"/jobs/{theirs['id']}/actions/cancel", {}, token=hub.person("games").token)


def test_a_notebook_with_a_slice_runs_under_its_persons_account(hub: RealHub) -> None:
    pid = hub.start("daemon", EIGHTH)["state"]["pid"]
    assert Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam("daemon").pw_uid
    assert hub.environment(pid)["CUDA_VISIBLE_DEVICES"] != ""
    (booked,) = hub.slices("daemon")
    assert (booked["state"], booked["gpu_milli"]) == ("booked", 125)
    server = Servers(hub.stage.state_dir).of(booked["id"])
    assert server is not None and (server.pid, server.account.uid) == (pid, pwd.getpwnam("daemon").pw_uid)
    hub.stop("daemon")
    until(lambda: not hub.slices("daemon"))
    assert Servers(hub.stage.state_dir).of(booked["id"]) is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ghost", id="somebody without an account on the machine"),
        pytest.param("root", id="somebody whose jobs would run as root"),
    ],
)
def test_cannot_submit_and_gets_the_reason(hub: RealHub, name: str) -> None:
    answer = hub.service("POST", "/jobs", {"command": ["true"], "gpu": "1/4"}, token=hub.person(name).token)
    assert answer.status in (403, 409) and name in answer.body["message"], answer
    assert not hub.service("GET", "/jobs?mine=true", token=hub.person(name).token).body["items"]
