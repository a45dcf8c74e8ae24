"""A real JupyterHub and its real proxy in one folder, for the demo and for tests.

Everything is started and ended by its process id. The proxy is a process of its own, as in a deployment, so that the
hub can be killed and started again behind it. This does only what an administrator can do, with
``jupyterhub_config.py`` and a shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ..hub.ports import reserve_ports
from ..settings import SERVICE_NAME
from .proxy import find_or_install_proxy

READY_WITHIN_S = 180.0
"""How long hub, proxy and service may take until the service answers through the proxy; half a core needs 70 s."""

ENDS_WITHIN_S = 20.0
"""How long a hub may take to stop its servers and its service before it is killed."""

FOLDER_VARIABLE = "GPU_QUOTA_TEMPORARY_HUB"
"""The folder, in the variables of processes that have it in no other: by it they are found and ended."""

LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Calls of this machine: the proxy that http_proxy names would get the passwords."""

POLL_S = 0.1
MIN_FREE_BYTES = 1 << 20
"""With less space on its disk a hub fails with errors that do not name the disk."""


class HubFailed(RuntimeError):
    """The hub or its proxy did not start; the message is a sentence, a note has the last lines of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the loopback: the public one, the hub's own, and the proxy's API."""

    public: int
    hub: int
    proxy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubUsers:
    """The users and their groups; ``user_password`` has 8 characters or more, ``admin_password`` 32."""

    groups: Mapping[str, tuple[str, ...]]
    admins: tuple[str, ...] = ("admin",)
    users: tuple[str, ...] = ()
    user_password: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    admin_password: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def everybody(self) -> tuple[str, ...]:
        """All users but the admins, by name."""
        members = {name for names in self.groups.values() for name in names}
        return tuple(sorted(members | set(self.users)))


HUB_CONFIG = """\
# Written by jupyter_gpu_quota: a temporary hub on the loopback, all of it under one account.
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{ports.public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{ports.hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports.proxy}"
c.ConfigurableHTTPProxy.auth_token = {proxy_token!r}
c.ConfigurableHTTPProxy.should_start = False
c.JupyterHub.db_url = "sqlite:///{folder}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.pid_file = "{folder}/jupyterhub.pid"
c.JupyterHub.load_groups = {groups!r}
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = {users.user_password!r}
c.SharedPasswordAuthenticator.admin_password = {users.admin_password!r}
c.Authenticator.allowed_users = {allowed!r}
c.Authenticator.admin_users = {admins!r}
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/people/{{username}}"
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.Spawner.args = {args!r}
c.Spawner.http_timeout = 120
c.Spawner.start_timeout = 120
c.GPUQuota.state_dir = "{folder}/state"
{extra}
from jupyter_gpu_quota import setup_gpu_quota
setup_gpu_quota(c)
"""


class TemporaryHub:
    """One hub, one proxy, one folder. ``extra_config`` is lines of jupyterhub_config.py that go before the last one.

    ``python`` is the interpreter that runs the hub, for a second release of it. ``hub_api`` and ``service_api`` are
    addresses through the proxy, without a slash at the end.
    """

    def __init__(self, folder: Path, *, users: HubUsers, extra_config: str = "", python: str = sys.executable) -> None:
        self.folder, self.users, self.extra_config, self.python = folder.absolute(), users, extra_config, python
        self._proxy_token, self._tokens = secrets.token_hex(32), dict[str, str]()
        self._reserved = reserve_ports(str(self.folder), 3)
        public, hub, proxy = (each.port for each in self._reserved)
        self.ports = Ports(public=public, hub=hub, proxy=proxy)
        self.url = f"http://127.0.0.1:{self.ports.public}"
        self.hub_api = f"{self.url}/hub/api"
        self.service_api = f"{self.url}/services/{SERVICE_NAME}/api/v1"
        self.hub: subprocess.Popen[bytes] | None = None
        self.proxy: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    def home(self, user: str) -> Path:
        """The folder in which a user's server runs."""
        return self.folder / "people" / user

    # --- start ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start everything; returns when the service answers through the proxy. Raises HubFailed."""
        self._prepare()
        self.start_proxy()
        self.start_hub()
        self.wait_until_ready()

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for user in {*self.users.everybody, *self.users.admins}:
            self.home(user).mkdir(parents=True, exist_ok=True)
            # A notebook's terminal is a login shell, and Debian's profile forgets the PATH of the server around it.
            profile = f'export PATH="{Path(self.python).parent}:$PATH"\n'
            (self.home(user) / ".profile").write_text(profile)
        (self.folder / "jupyterhub_config.py").write_text(self._config())

    def _config(self) -> str:
        return HUB_CONFIG.format(
            ports=self.ports,
            proxy_token=self._proxy_token,
            folder=self.folder,
            groups={name: {"users": list(users)} for name, users in self.users.groups.items()},
            users=self.users,
            allowed=set(self.users.everybody) | set(self.users.admins),
            admins=set(self.users.admins),
            args=["--allow-root"] if os.geteuid() == 0 else [],
            extra=self.extra_config,
        )

    def start_proxy(self) -> None:
        """Start the proxy. Its routes are in memory: a new one gets them when the hub next updates activity."""
        hub = f"http://127.0.0.1:{self.ports.hub}"
        command = [
            *find_or_install_proxy(),
            *("--ip", "127.0.0.1", "--port", str(self.ports.public)),
            *("--api-ip", "127.0.0.1", "--api-port", str(self.ports.proxy)),
            *("--default-target", hub, "--error-target", f"{hub}/hub/error"),
        ]
        self.proxy = self._popen(command, "proxy.log", {"CONFIGPROXY_AUTH_TOKEN": self._proxy_token})

    def start_hub(self) -> None:
        command = [self.python, "-m", "jupyterhub", "--config", str(self.folder / "jupyterhub_config.py")]
        self.hub = self._popen(command, "hub.log", {})

    def _popen(self, command: list[str], log: str, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self._environment(), FOLDER_VARIABLE: str(self.folder), **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches the demo alone
            )

    def _environment(self) -> dict[str, str]:
        """This process's variables, without those of a surrounding hub, kernel or job."""
        foreign = re.compile(r"JUPYTERHUB_|JUPYTER_|JPY_|GPU_QUOTA_(?!PROXY)|CONFIGPROXY_|CUDA_VISIBLE_DEVICES$")
        kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
        kept["PATH"] = os.pathsep.join([str(Path(self.python).parent), kept.get("PATH", os.defpath)])
        return kept

    def wait_until_ready(self, within_s: float | None = None) -> None:
        """Wait, ``READY_WITHIN_S`` by default, until the service of this hub answers through the proxy."""
        within_s = READY_WITHIN_S if within_s is None else within_s
        deadline = time.monotonic() + within_s
        while not (ready := self.is_ready()) or not self._is_own_hub():
            for name, process in (("hub", self.hub), ("proxy", self.proxy)):
                if process is not None and process.poll() is not None:
                    raise self._failure(f"the {name} ended with status {process.returncode}", name)
            if time.monotonic() > deadline:
                why = (
                    "another hub answers at its address"
                    if ready
                    else f"the service was not ready: {self._why_not_ready()}"
                )
                raise self._failure(f"after {within_s:.0f} s {why}", "hub")
            time.sleep(POLL_S)

    def _failure(self, what: str, log: str) -> HubFailed:
        cause = error_in(self.log_tail(log, 200))
        if shutil.disk_usage(self.folder).free < MIN_FREE_BYTES:
            cause = f"no space left on the disk of {self.folder.parent}"
        failure = HubFailed(f"{what}: {cause}" if cause else what)
        failure.add_note(self.log_tail(log))
        return failure

    def is_ready(self) -> bool:
        """Whether the service says, through the proxy, that it is."""
        try:
            with LOCAL.open(f"{self.service_api}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError, HTTPException):
            return False

    def _is_own_hub(self) -> bool:
        """Whether the hub that answers has this hub's passwords, which no other has."""
        try:
            return bool(self.admin_token)
        except (OSError, ValueError, HTTPException):
            return False

    def _why_not_ready(self) -> str:
        """Why the service is not ready: its own message if it answers."""
        try:
            with LOCAL.open(f"{self.service_api}/ready", timeout=5):
                return "it became ready too late"
        except urllib.error.HTTPError as error:
            with contextlib.suppress(ValueError, LookupError, TypeError, OSError):
                return str(json.loads(error.read())["message"])
            return f"it answers {error.code}"
        except (OSError, HTTPException) as error:
            return f"it does not answer ({error})"

    def log_tail(self, name: str, lines: int = 25) -> str:
        """The end of a log: ``hub`` (the service writes there too) or ``proxy``."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return f"({name}.log was not written)"

    # --- end ------------------------------------------------------------------------------------------------------
    def end(self) -> list[int]:
        """Stop servers, hub, service, proxy and every job, in any state; returns the ids it had to kill.

        Raises HubFailed with the processes that could not be killed.
        """
        self._cancel_jobs()
        for process in (self.hub, self.proxy):
            if process is not None:
                end_process(process, ENDS_WITHIN_S)
        killed = end_processes_of(self.folder)
        for each in self._reserved:
            each.release()
        if left := [f"{pid} ({command_line(pid)})" for pid in processes_of(self.folder)]:
            raise HubFailed(f"these processes of the hub could not be ended: {', '.join(left)}")
        return killed

    def _cancel_jobs(self) -> None:
        if self.hub is None or self.hub.poll() is not None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, HTTPException):
            token = self.admin_token
            for job in self.ask("GET", f"{self.service_api}/jobs?limit=1000", token)["items"]:
                if job["ended_at"] is None:
                    self.ask("POST", f"{self.service_api}/jobs/{job['id']}/actions/cancel", token, {})

    # --- log-ins --------------------------------------------------------------------------------------------------
    def token_of(self, name: str) -> str:
        """A token of a user, by their password. Raises OSError without a hub."""
        if name not in self._tokens:
            password = self.users.admin_password if name in self.users.admins else self.users.user_password
            body = {"auth": {"username": name, "password": password}, "note": "temporary hub"}
            self._tokens[name] = str(self.ask("POST", f"{self.hub_api}/users/{name}/tokens", None, body)["token"])
        return self._tokens[name]

    @property
    def admin_token(self) -> str:
        """The token of the first administrator."""
        return self.token_of(self.users.admins[0])

    def ask(self, method: str, url: str, token: str | None, body: object = None) -> Any:
        """One JSON call. Raises OSError for anything but 2xx."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"token {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, headers=headers, data=data)  # noqa: S310
        with LOCAL.open(request, timeout=20) as answer:
            return json.loads(answer.read() or b"{}")


_END_OF_TRACEBACK = re.compile(r"^ *[\w.]*(?:Error|Exception|Exit|Interrupt): (?P<what>\S.*)", re.MULTILINE)
_ERROR_LINE = re.compile(r"^\[[EC] [^]]*\] (?P<what>\S.*)", re.MULTILINE)


def error_in(log: str) -> str:
    """The error in the log of a hub or a proxy: the end of its last traceback, or its last line of an error."""
    found = list(_END_OF_TRACEBACK.finditer(log)) or list(_ERROR_LINE.finditer(log))
    return found[-1]["what"] if found else ""


def end_process(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Send SIGTERM, and SIGKILL to a process that does not end in time; one may still end after that, too."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)


# --- processes of a folder ----------------------------------------------------------------------------------------
def end_processes_of(folder: Path, within_s: float = 5.0) -> list[int]:
    """Kill every process of this account that has this folder in a variable; returns their ids.

    A process that just starts a program has no variables for a moment: only two readings without a process end this.
    """
    killed: list[int] = []
    deadline, empty_readings = time.monotonic() + within_s, 0
    while empty_readings < 2 and time.monotonic() <= deadline:
        left = list(processes_of(folder))
        empty_readings = 0 if left else empty_readings + 1
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed += [pid for pid in left if pid not in killed]
        time.sleep(POLL_S)
    return killed


def processes_of(folder: Path) -> Iterator[int]:
    """Processes with this folder in a variable or, of this package, in their command line, but our own ancestors.

    The working directory of a shell does not count: a user may have changed to the folder.
    """
    needle, spared = re.compile(re.escape(os.fsencode(folder)) + rb"(?![\w.-])"), _ancestors()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        with contextlib.suppress(OSError):
            texts = (entry / "environ").read_bytes().split(b"\0")
            texts += [line] if b"jupyter_gpu_quota" in (line := (entry / "cmdline").read_bytes()) else []
            if any(needle.search(one) and not one.startswith((b"PWD=", b"OLDPWD=")) for one in texts):
                yield int(entry.name)


def command_line(pid: int) -> str:
    """The command line of a process; empty for one that ended."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")).strip()
    return ""


def _ancestors() -> set[int]:
    found, pid = {os.getpid()}, os.getppid()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
        while pid > 0:
            found.add(pid)
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[1])
    return found
