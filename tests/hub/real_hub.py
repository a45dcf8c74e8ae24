"""A real JupyterHub with its real proxy, for tests: on the loopback, in a folder of its own, of either release.

The stage is the demo's; here is what tests do on it: call the hub's API, log in as a browser does, start and stop
servers, run code in kernels, look into the process table. Only processes that it started are ended.
"""

from __future__ import annotations

import asyncio
import http.cookiejar
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from jupyter_gpu_quota.demo.users import Kernel, User
from tests.patience import until

SERVICE_TOKEN = "s" * 64
ADMIN_TOKEN = "a" * 64
HUB5_VARIABLE = "GPU_QUOTA_HUB5_PYTHON"

SLOW_S = 240
"""The time-out for the start of a server, and for a cell with the start of its kernel, on a slow machine."""

REAL = ("ann",)
"""Whose servers are real notebook servers; the others' are up at once and do nothing."""

QUOTA_FILE = """\
version: 1
pools:
  - {name: build, selector: {gpu_model: ["Fake 80G"]}, uses: [notebook, training]}
projects:
  - name: build
    members: {groups: [builders]}
    quota: {build: {notebook: 0.25, training: 0.5}}
"""

SETTINGS = """\
c.GPUQuota.api_token = {token!r}
c.GPUQuota.quota_file = {folder!r} + "/quota.yaml"
c.GPUQuota.simulated_devices = [{{"model": "Fake 80G", "memory_mib": 81920, "count": 1}}]
c.JupyterHub.services.append({{"name": "tests", "api_token": {admin!r}}})
c.JupyterHub.load_roles.append({{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "admin:server_state", "tokens", "access:servers", "list:users"]}})
c.JupyterHub.allow_named_servers = True
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.JupyterHub.log_level = "DEBUG"
c.Spawner.http_timeout = c.Spawner.start_timeout = 240

def small_unless_real(spawner):
    if spawner.user.name not in {real!r}:
        spawner.cmd, spawner.args = [{python!r}, {small!r}], []
c.Spawner.pre_spawn_hook = small_unless_real
"""

FAKE_SERVICE = """
c.JupyterHub.services[-1]["command"] = [{python!r}, {fake!r}]
"""


class Answer(NamedTuple):
    """What the hub or the service answered; ``body`` is JSON where it was, otherwise text."""

    status: int
    body: Any


class RealHub:
    """What a test does with a hub that is up."""

    def __init__(self, stage: TemporaryHub) -> None:
        self.stage = stage

    # Calls

    def call(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Answer:
        """One call of the hub's API, with an administrator's token unless another is given."""
        return _call(method, f"{self.stage.hub_api}{path}", token or ADMIN_TOKEN, body)

    def service(self, method: str, path: str, body: object = None, *, token: str = SERVICE_TOKEN) -> Answer:
        """One call of our service's API, with the token of the hub's spawner unless another is given."""
        return _call(method, f"{self.stage.service_api}{path}", token, body)

    def person(self, name: str) -> User:
        """Somebody with a token of their own."""
        self.call("POST", f"/users/{name}")
        answer = self.call("POST", f"/users/{name}/tokens", {"note": "test"})
        return User(name=name, token=answer.body["token"], url=self.stage.url)

    def browser(self, name: str) -> Browser:
        """Somebody who logged in on the hub's login page."""
        browser = Browser(self.stage.url)
        browser.post("/hub/login", {"username": name, "password": self.stage.users.user_password})
        return browser

    # Servers

    def begin(self, name: str, options: object, server: str = "") -> Answer:
        """Ask the hub to start a server; it answers at once."""
        path = f"/users/{name}/servers/{server}" if server else f"/users/{name}/server"
        return self.call("POST", path, options)

    def server(self, name: str, server: str = "") -> dict[str, Any]:
        """The hub's record of a server, {} when there is none."""
        answer = self.call("GET", f"/users/{name}")
        found: dict[str, Any] = answer.body.get("servers", {}).get(server, {}) if answer.status == 200 else {}
        return found

    def start(self, name: str, options: object, server: str = "") -> dict[str, Any]:
        """Start a server and wait until it is ready; returns the hub's record of it."""
        answer = self.begin(name, options, server)
        assert answer.status in (201, 202), answer
        until(lambda: self.server(name, server).get("ready") or not self.server(name, server), SLOW_S)
        record = self.server(name, server)
        assert record, f"{name}'s server did not start: {self.outcome(name, server)}"
        return record

    def outcome(self, name: str, server: str = "") -> str:
        """How the start of a server ended, as its progress page says it."""
        found: list[str] = []

        def ended() -> bool:
            found[:] = [
                event["message"] for event in self._progress(name, server) if {"failed", "ready"} & event.keys()
            ]
            return bool(found)

        until(ended)
        return found[-1]

    def _progress(self, name: str, server: str) -> list[dict[str, Any]]:
        path = f"/users/{name}/servers/{server}/progress" if server else f"/users/{name}/server/progress"
        return [
            json.loads(event) for event in re.findall(r"^data: (.*)$", str(self.call("GET", path).body), re.MULTILINE)
        ]

    def refused(self, name: str, options: object) -> str:
        """Start a server that must be refused; returns what the hub says of it."""
        answer = self.begin(name, options)
        said = self.outcome(name) if answer.status < 400 else str(answer.body["message"])
        assert not self.server(name).get("ready"), f"{name}'s server started: {said}"
        return said

    def stop(self, name: str, server: str = "") -> None:
        """Stop a server and wait until the hub has forgotten it."""
        path = f"/users/{name}/servers/{server}" if server else f"/users/{name}/server"
        self.call("DELETE", path)
        until(lambda: not self.server(name, server))

    def run_in_kernel(self, person: User, code: str) -> str:
        """Run a cell in a new kernel of the person's server; returns what it printed."""

        async def one_cell() -> str:
            kernel = await Kernel.start(person)
            try:
                return await kernel.run(code, SLOW_S)
            finally:
                kernel.close()

        return asyncio.run(one_cell())

    def slices(self, name: str | None = None) -> list[dict[str, Any]]:
        """The slices that are asked for or booked, of one person or of all."""
        items = self.service("GET", "/notebooks?limit=100").body["items"]
        live = [item for item in items if item["state"] in ("requested", "booked")]
        return [item for item in live if name in (None, item["user"])]

    # Processes

    def environment(self, pid: int) -> dict[str, str]:
        """The variables that a process was started with."""
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def service_pids(self) -> list[int]:
        """The processes of our service: the one that the hub started, and those that it keeps."""
        first = self.service_pid()
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]

    def service_pid(self) -> int:
        """The process that the hub started as our service."""
        hub = self.stage.hub
        assert hub is not None
        children = Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split()
        named = [int(child) for child in children if b"JUPYTERHUB_SERVICE_NAME=gpu-quota" in _environ(int(child))]
        assert len(named) == 1, named
        return named[0]

    def restart_after_kill(self) -> None:
        """Kill the hub as a crash would, and start it again."""
        hub = self.stage.hub
        assert hub is not None
        hub.kill()
        hub.wait()
        self.stage.start_hub()
        until(lambda: self.stage.is_ready() and self._service_is_new(), SLOW_S)

    def _service_is_new(self) -> bool:
        """Whether this hub's own service took over from the one that a killed hub left behind."""
        hub = self.stage.hub
        assert hub is not None
        try:
            known = json.loads((self.stage.state_dir / "service.json").read_text())["pid"]
        except (OSError, ValueError):
            return not self.stage.state_dir.exists()
        try:
            return f"PPid:\t{hub.pid}\n" in Path(f"/proc/{known}/status").read_text()
        except OSError:  # the older service ended between the two reads
            return False


class Browser:
    """Cookies, forms and the token that the hub wants with them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, path: str) -> str:
        with self._opener.open(f"{self.url}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, fields: dict[str, str]) -> str:
        """Submit a form of the page at ``path``."""
        form = self.get(path)
        token = re.search(r'(?:name="_xsrf" value="|[?&]_xsrf=)([^"&]+)', form)
        assert token is not None, form
        body = urllib.parse.urlencode({**fields, "_xsrf": urllib.parse.unquote(token[1])}).encode()
        try:
            with self._opener.open(f"{self.url}{path}", body, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _call(method: str, url: str, token: str, body: object) -> Answer:
    payload = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, payload, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(answer.status, _read(answer.read()))
    except urllib.error.HTTPError as error:
        return Answer(error.code, _read(error.read()))
    except OSError as error:
        return Answer(599, str(error))


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


class _TestStage(TemporaryHub):
    """The stage with lines after ``setup_gpu_quota(c)`` too."""

    after = ""

    def _config(self) -> str:
        return super()._config() + self.after


def python_of(release: str) -> str:
    """The interpreter that runs this release of JupyterHub; skips where there is none, which CI does not accept."""
    if release == "6":
        return sys.executable
    python = os.environ.get(HUB5_VARIABLE, "")
    if not python:
        missing = f"{HUB5_VARIABLE} does not name a Python with JupyterHub 5.5; `make test` sets one up"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    return python


@contextmanager
def real_hub(
    folder: Path,
    *,
    release: str = "6",
    fake_service: bool = False,
    before: str = "",
    after: str = "",
    users: HubUsers | None = None,
) -> Iterator[RealHub]:
    """A hub that is up, and its end. ``before`` and ``after`` are lines of its file before and behind ours."""
    python = python_of(release)
    builders = HubUsers(groups={"builders": ("ann", "ben", "cat", "dan", "eve", "fay")}, users=("outsider",))
    here = Path(__file__).parent
    settings = SETTINGS.format(
        token=SERVICE_TOKEN,
        admin=ADMIN_TOKEN,
        folder=str(folder),
        real=REAL,
        python=python,
        small=str(here / "small_server.py"),
    )
    stage = _TestStage(folder, users=users or builders, python=python, extra_config=settings + before)
    fake = str(here / "fake_service.py")
    stage.after = (FAKE_SERVICE.format(python=python, fake=fake) if fake_service else "") + after
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quota.yaml").write_text(QUOTA_FILE)
    try:
        stage.start()
        yield RealHub(stage)
    finally:
        stage.end()
