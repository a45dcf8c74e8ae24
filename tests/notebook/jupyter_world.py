"""A real Jupyter server with our extension, and a stand-in for the service that it reports to."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado import web
from tornado.httpserver import HTTPServer

from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.hub.ports import ReservedPort, reserve_ports
from jupyter_gpu_quota.wire import IdleView
from jupyter_gpu_quota.wire.activity import ActivityAnswer, ActivityReport, FreeOrder, WakeAnswer
from tests.patience import PATIENCE_S, until

TOKEN, SERVER_TOKEN = "tokenofannsserver", "t" * 20
NOTEBOOK = "nb-1"
PREFIX = "/services/gpu-quota/api/v1/"


@dataclass
class Service:
    """The answers of the fake service, and the requests that it received. ``silent``: it answers 503."""

    port: int
    reports: list[ActivityReport] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    idle: dict[str, Any] = field(default_factory=dict)
    free: FreeOrder | None = None
    suspend: bool = False
    silent: bool = False
    keep_status: int = 200
    kept: int = 0
    slice: WakeAnswer = field(default_factory=lambda: WakeAnswer(state="ready", reason="booked", message=""))
    woken_for: list[str] = field(default_factory=list)

    @property
    def last(self) -> ActivityReport:
        return self.reports[-1]

    def view(self) -> IdleView:
        facts = {"verdict": "busy", "reason": "recent_message", "message": "In use.", "state": "in_use"}
        return IdleView(**{**facts, "mode": "reclaim", **self.idle})

    def next(self, true: Callable[[ActivityReport], bool] = lambda report: True) -> ActivityReport:
        """The first report from now on of which something holds."""
        begin = len(self.reports)
        return until(lambda: next((r for r in self.reports[begin:] if true(r)), None))

    def kernel(self, name: str) -> Any:
        return next((k for k in self.last.kernels if k.id == name), None) if self.reports else None


class _Activity(web.RequestHandler):
    def initialize(self, service: Service) -> None:
        self.service = service

    def post(self, what: str) -> None:
        service = self.service
        service.tokens.add(self.request.headers.get("Authorization", ""))
        if what == "actions/keep":
            service.kept += 1
            self.set_status(service.keep_status)
            message = "It was kept 3 times already."
            refused = json.dumps({"status": 409, "reason": "kept_enough", "message": message})
            self.finish(service.view().model_dump_json() if service.keep_status == 200 else refused)
            return
        if service.silent:
            raise web.HTTPError(503)
        if what == "actions/wake":
            service.woken_for.append(json.loads(self.request.body)["kernel"])
            self.finish(service.slice.model_dump_json())
            return
        service.reports.append(ActivityReport.model_validate_json(self.request.body))
        answer = ActivityAnswer(idle=service.view(), free=service.free, suspend=service.suspend, report_in_ms=1_000)
        self.finish(answer.model_dump_json())


@contextmanager
def service_at(service: Service) -> Iterator[Service]:
    """The stand-in, in a thread of its own."""
    ready, loops = threading.Event(), list[asyncio.AbstractEventLoop]()

    async def serve() -> None:
        routes = [
            (f"{PREFIX}notebooks/{NOTEBOOK}/(activity|actions/keep|actions/wake)", _Activity, {"service": service})
        ]
        server = HTTPServer(web.Application(routes))
        server.listen(service.port, "127.0.0.1")
        over = asyncio.Event()
        loops.append(asyncio.get_running_loop())
        stops.append(over)
        ready.set()
        await over.wait()
        server.stop()
        await server.close_all_connections()

    stops: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield service
    finally:
        loops[0].call_soon_threadsafe(stops[0].set)
        thread.join(PATIENCE_S)


def free_port() -> int:
    """A port for a server that starts later. No outgoing connection takes it, and no other test of this machine."""
    (reserved,) = reserve_ports(f"the tests in process {os.getpid()}")
    RESERVED.append(reserved)
    return reserved.port


RESERVED: list[ReservedPort] = []
"""They are reserved until this process ends."""


class JupyterServer:
    """A server that runs, and its REST API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: object = None, *, token: str = SERVER_TOKEN) -> tuple[int, Any]:
        sent = None if body is None and method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, method=method, data=sent)
        if token:
            request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def send(
        self, method: str, path: str, body: bytes | None = None, *, token: str = SERVER_TOKEN, **headers: str
    ) -> http.client.HTTPResponse:
        """One request as it is, without an escape or a redirect; the answer is open for reading."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Authorization": f"token {token}", **sent} if token else sent)
        return connection.getresponse()

    def start_kernel(self) -> str:
        return str(self.call("POST", "/api/kernels", {"name": "python3"})[1]["id"])

    def kernels(self) -> set[str]:
        return {kernel["id"] for kernel in self.call("GET", "/api/kernels")[1]}

    def last_activity(self) -> str:
        return str(self.call("GET", "/api/status")[1]["last_activity"])


CONFIG = """
import subprocess, sys
c.ServerApp.jpserver_extensions = {"jupyter_gpu_quota.notebook": True, "jupyter_server_terminals": True}
c.IdentityProvider.token = %r
c.ServerApp.disable_check_xsrf = False
subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE)  # a program beside it
"""


@contextmanager
def jupyter_server(folder: Path, service_port: int, *options: str, **variables: str | None) -> Iterator[JupyterServer]:
    """A real ``jupyter server`` whose environment is what the hub's spawner sets; a variable of None is not set."""
    port, config = free_port(), folder / "jupyter_server_config.py"
    config.write_text(CONFIG % SERVER_TOKEN)
    environment: dict[str, str | None] = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_GPU_QUOTA_URL": f"http://127.0.0.1:{service_port}/services/gpu-quota/",
        "JUPYTERHUB_API_TOKEN": TOKEN,
        SHARE_VARIABLE: json.dumps({"notebook": NOTEBOOK, "gpu_milli": 125, "memory_mib": 10_240}),
        **variables,
    }
    arguments = [
        f"--config={config}",
        f"--port={port}",
        "--ip=127.0.0.1",
        "--no-browser",
        f"--ServerApp.root_dir={folder}",
        *options,
    ]
    given = {name: value for name, value in environment.items() if value is not None}
    with (folder / "server.log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *arguments, "--allow-root"],
            env=given, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            server = JupyterServer(port)
            until(lambda: _up(server))
            yield server
        finally:
            running.terminate()
            running.wait(PATIENCE_S)


def _up(server: JupyterServer) -> bool:
    try:
        return server.call("GET", "/api/status")[0] == 200
    except OSError:
        return False
