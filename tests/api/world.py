"""The API on loopback for tests: the real application, the real database, a fake hub, a scheduler stepped by hand.

Fake here: the hub (a small tornado application with tokens, users and servers of its own) and the scheduler (one
decide and commit at a time, in this process). Everything else is what ships.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.api import main
from jupyter_gpu_quota.api.handlers import notebooks
from jupyter_gpu_quota.api.requests.services import Services, StoreSlot, now_ms
from jupyter_gpu_quota.core.canonical import digest
from jupyter_gpu_quota.core.facts import Fact, RankFact
from jupyter_gpu_quota.core.model import Device, Node
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.hub_api import RestHub
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Committed, Stale
from jupyter_gpu_quota.store.records.commands import ApplyQuota, Refusal, SetInventory
from jupyter_gpu_quota.store.transactions import Store
from tests.controllers.stepped import SteppedControllers
from tests.patience import PATIENCE_S
from tests.store.database.empty_database import make_empty_database

R = TypeVar("R")
PREFIX = "/services/gpu-quota/"
HUB_TOKEN = "service-token-" + "0" * 32
EVERY_SCOPE = ("access:services!service=gpu-quota",)

QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Simulated 16G]}, uses: [notebook]}
projects:
  - name: vision
    members: {users: [bob, olga], groups: [vision-team], leads: [lea]}
    quota: {train: {training: 2}, build: {notebook: 0.5}}
  - name: speech
    members: {users: [patty], leads: [leo]}
    quota: {train: {training: 2}, build: {notebook: 0.5}}
"""


@dataclass
class FakeAccount:
    groups: list[str] = field(default_factory=list)
    admin: bool = False
    scopes: tuple[str, ...] = ("read", "submit")
    servers: dict[str, dict[str, object]] = field(default_factory=dict)
    kind: str = "user"
    access: tuple[str, ...] = EVERY_SCOPE

    @property
    def all_scopes(self) -> list[str]:
        return [*self.access, *(f"custom:gpu-quota:{scope}" for scope in self.scopes)]


class FakeHub:
    """Users by name; the token of a user is ``token-NAME``, unless ``revoked``. ``away`` makes every answer a 503."""

    def __init__(self) -> None:
        self.users: dict[str, FakeAccount] = {}
        self.away = False
        self.revoked: set[str] = set()
        self.asked: list[str] = []

    def application(self) -> Application:
        return Application([(r"/hub/api/(.*)", _HubApi, {"hub": self})])


class _HubApi(RequestHandler):
    def initialize(self, hub: FakeHub) -> None:
        self.hub = hub

    def get(self, path: str) -> None:
        self.hub.asked.append(path)
        if self.hub.away:
            self.set_status(503)
            return
        token = self.request.headers["Authorization"].split()[1]
        if path == "user":
            self._who(token.removeprefix("token-"))
        elif token != HUB_TOKEN:
            self.set_status(403)
        elif path == "users":
            self._users()
        else:
            self._one(path.removeprefix("users/"))

    def delete(self, path: str) -> None:
        """Stop a server: users/NAME/server, or users/NAME/servers/SERVER."""
        _, user, _, *server = path.split("/")
        if self.hub.away:
            self.set_status(503)
        elif self.hub.users[user].servers.pop("".join(server), None) is None:
            self.set_status(404)
        else:
            self.set_status(204)

    def _who(self, name: str) -> None:
        account = self.hub.users.get(name)
        if account is None or f"token-{name}" in self.hub.revoked:
            self.set_status(403)
        else:
            self.write({"kind": account.kind, "name": name, "scopes": account.all_scopes})

    def _one(self, name: str) -> None:
        account = self.hub.users.get(name)
        if account is None:
            self.set_status(404)
        else:
            self.write(_model(name, account))

    def _users(self) -> None:
        offset, limit = int(self.get_argument("offset")), int(self.get_argument("limit"))
        every = self.get_argument("state", None) is None
        active = [_model(name, account) for name, account in self.hub.users.items() if every or account.servers]
        page = {"next": {} if offset + limit < len(active) else None}
        self.write({"items": active[offset : offset + limit], "_pagination": page})


def _model(name: str, account: FakeAccount) -> dict[str, object]:
    return {"name": name, "groups": account.groups, "admin": account.admin, "servers": account.servers}


def train_devices(count: int = 4) -> tuple[Device, ...]:
    return tuple(_device(f"train-{n}", n, "Simulated 80G", 81_920) for n in range(count))


def build_devices() -> tuple[Device, ...]:
    return (_device("build-0", 4, "Simulated 16G", 16_384),)


def _device(name: str, index: int, model: str, memory_mib: int) -> Device:
    return Device(
        id=name,
        node="node-1",
        index=index,
        model=model,
        memory_mib=memory_mib,
        pool=None,
        uuid=f"SIM-{name}",
        simulated=True,
    )


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def variables_of_service(settings: Mapping[str, object], hub_port: int, port: int) -> dict[str, str]:
    """The variables that the fake hub at a port starts the service with, which then listens at another."""
    return {
        **os.environ,
        "JUPYTER_GPU_QUOTA_SETTINGS": json.dumps(settings),
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": HUB_TOKEN,
        "JUPYTERHUB_CLIENT_ID": "service-gpu-quota",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_SERVICE_NAME": "gpu-quota",
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
    }


class ServiceWorld:
    """The API on its own thread and event loop; tests call it over HTTP from theirs.

    ``busy_timeout_ms``: how long one thread waits while another one writes. The API's own is shorter than a machine
    may stand still while somebody has the lock. ``store``: a store in memory, for tests of long times.
    """

    def __init__(
        self, folder: Path, *, busy_timeout_ms: int = 60_000, store: Store | None = None, **settings: object
    ) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.settings = GPUQuota(state_dir=str(self.state_dir), **settings)
        self.hub = FakeHub()
        if store is None and not self.settings.database_url:
            make_empty_database(self.state_dir / "gpu-quota.sqlite")
        self.store = store or open_store(database_url(self.settings), busy_timeout_ms=busy_timeout_ms)
        self.mirror = Mirror()
        self.clock: Callable[[], int] = now_ms
        self.loop = asyncio.new_event_loop()
        self._servers: list[HTTPServer] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="api", daemon=True)
        self._thread.start()
        self.services, self.port = self.run(self._serve())
        self.controllers = SteppedControllers(self)

    async def _serve(self) -> tuple[Services, int]:
        hub, hub_port = serving(self.hub.application())
        api_url = f"http://127.0.0.1:{hub_port}/hub/api"
        auth = HubOAuth(
            api_url=api_url, api_token=HUB_TOKEN, base_url=PREFIX, oauth_client_id="service-gpu-quota", cache_max_age=60
        )
        auth.access_scopes = {"access:services", "access:services!service=gpu-quota"}
        self.rest_hub = RestHub(api_url, HUB_TOKEN)
        services = main.make_services(self.settings, auth, self.rest_hub, StoreSlot(self.store), self.clock_now)
        sockets = bind_sockets(0, "127.0.0.1")
        self._servers += [hub, main.start_server(services, sockets)]
        return services, int(sockets[0].getsockname()[1])

    @property
    def patterns(self) -> list[str]:
        """The patterns of the paths that the application routes."""
        app = self._servers[-1].request_callback
        assert isinstance(app, Application)
        return [rule.matcher.regex.pattern for rule in app.wildcard_router.rules]

    def clock_now(self) -> int:
        return self.clock()

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float = PATIENCE_S) -> R:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    async def _stop(self) -> None:
        self.services.streams.close()
        for server in self._servers:
            server.stop()
            await server.close_all_connections()
        await main.close(self.services)
        AsyncHTTPClient().close()  # this loop's, which asked the hub for us; and what asked it for JupyterHub's library
        with suppress(ImportError):
            from jupyterhub.httpclient import JupyterHubHTTPClient

            await JupyterHubHTTPClient.loop_instance().close()

    # --- people and quota ---------------------------------------------------------------------------------------------
    def add(self, name: str, **account: Any) -> None:
        self.hub.users[name] = FakeAccount(**account)

    def apply(self, text: str = QUOTA, devices: tuple[Device, ...] | None = None) -> None:
        """Put a quota file in force and let the scheduler see the machine."""
        parsed = quotafile.parse(text)
        assert isinstance(parsed, QuotaFile), parsed
        self.record(
            ApplyQuota(
                actor="system:test",
                text=text,
                document=parsed.to_document(),
                policy=parsed.policy(1),
                expected_revision=None,
            )
        )
        self.quota = parsed
        self.inventory((*train_devices(), *build_devices()) if devices is None else devices)

    def inventory(self, devices: tuple[Device, ...]) -> None:
        from dataclasses import replace

        node = Node(id="node-1", name="one", cpu_milli=8000, memory_mib=65_536)
        placed = tuple(replace(device, pool=self.quota.pool_of(device, node)) for device in devices)
        self.record(SetInventory(nodes=(node,), devices=placed))

    def put_quota(self, text: str, **more: object) -> Reply:
        """Put a quota file in force through the API, as an admin who saw the current one."""
        revision = self.get("quota", "ann").json["revision"]
        return self.call("PUT", "quota", "ann", {"text": text} | more, headers={"If-Match": f'"{revision}"'})

    def record(self, request: Any) -> Any:
        """Straight into the store, as another process would."""
        (outcome,) = self.store.record([request], now=self.clock())
        assert not isinstance(outcome, Refusal), outcome
        self.loop.call_soon_threadsafe(self.services.store_view.notify)
        return outcome

    def store_live(self) -> list[str]:
        """The slices that have not ended."""
        return [each.notebook.id for each in self.store.notebooks()[0] if each.ended_at is None]

    def hold_clock(self) -> int:
        """The clock stands still from now on, so that no lease runs out between two lines; returns the instant."""
        now = self.clock()
        self.clock = lambda: now
        return now

    # --- the scheduler, one step at a time ----------------------------------------------------------------------------
    def step(self) -> int:
        """One decide and commit; returns how many actions it had."""
        actions, done = self._decided()
        assert not isinstance(done, Stale), done
        return actions

    def _decided(self) -> tuple[int, Committed | Stale | None]:
        """One decide and commit: how many actions the plan had, and what became of it; None where it had none."""
        now = self.clock()
        lease = self.store.acquire_lease("test", clock=lambda: now, ttl_ms=3000)
        assert lease is not None
        self.mirror.update(self.store)
        quota = self.store.quota()
        assert quota is not None
        snapshot = self.mirror.snapshot(now)
        plan, done = decide(snapshot, quota.policy), None
        if plan.actions:
            done = self.store.commit(plan, policy=quota.policy, snapshot_digest=digest(snapshot), lease=lease, now=now)
        self.loop.call_soon_threadsafe(self.services.store_view.notify)
        return len(plan.actions), done

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A scheduler that decides all the time, in the background; who asks for a slice waits for what it says.

        As the one that ships, it drops a plan that a request overtook, and decides again.
        """
        stop = threading.Event()
        granted_s, notebooks.DECISION_WAIT_S = notebooks.DECISION_WAIT_S, PATIENCE_S / 2

        def go() -> None:
            while not stop.wait(0.02):
                self._decided()

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)
            notebooks.DECISION_WAIT_S = granted_s

    def see(self, *facts: Fact) -> None:
        """The executor saw something."""
        now = self.clock()
        lease = self.store.acquire_lease("test", clock=lambda: now, ttl_ms=3000)
        assert lease is not None
        assert not isinstance(self.store.observe(facts, lease=lease, now=now), Stale)
        self.loop.call_soon_threadsafe(self.services.store_view.notify)

    def see_running(self, job: str, attempt: int = 1, **more: Any) -> None:
        self.see(RankFact(job=job, attempt=attempt, rank=0, handle="100", started_at=self.clock(), **more))

    # --- HTTP ---------------------------------------------------------------------------------------------------------
    def call(
        self,
        method: str,
        path: str,
        who: str | None = "bob",
        body: object = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """One request; ``who`` is a user's name, "hub" for the spawner's token, None for nobody."""
        sent = dict(headers or {})
        if who is not None:
            sent.setdefault("Authorization", f"token {HUB_TOKEN if who == 'hub' else f'token-{who}'}")
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, self.path(path), body=content, headers=sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @staticmethod
    def path(path: str) -> str:
        return path if path.startswith("/") else f"{PREFIX}api/v1/{path}"

    def get(self, path: str, who: str | None = "bob", **more: Any) -> Reply:
        return self.call("GET", path, who, **more)

    def post(self, path: str, who: str | None = "bob", body: object = None, **more: Any) -> Reply:
        return self.call("POST", path, who, {} if body is None else body, **more)

    def submit(self, who: str = "bob", **request: Any) -> Any:
        """Submit a job that is expected to be taken; its view."""
        reply = self.post("jobs", who, {"command": ["python", "train.py"], **request})
        assert reply.status == 201, reply.body
        return reply.json

    @contextmanager
    def stream(
        self, path: str, who: str = "bob", headers: dict[str, str] | None = None
    ) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream, as (event, data); after a minute with none it fails.

        ``last_event_id`` is the id of the event that was read last.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = {"Authorization": f"token {HUB_TOKEN if who == 'hub' else f'token-{who}'}", **(headers or {})}
        connection.request("GET", self.path(path), headers=sent)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield self._events(answer)
        finally:
            connection.close()
            answer.close()

    def _events(self, answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
        event, data = "", ""
        beats = 0
        for line in answer:
            beats += line.startswith(b":")
            assert beats < 6, "only heartbeats come: the event that is waited for does not exist"
            text = line.decode().rstrip("\n")
            if text.startswith("id: "):
                self.last_event_id = text.removeprefix("id: ")
            elif text.startswith("event: "):
                event = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data = text.removeprefix("data: ")
            elif not text and event:
                if event != "beat":
                    yield event, json.loads(data)
                event = ""


def serving(app: Application) -> tuple[HTTPServer, int]:
    """An application on a port of the loopback; stop its server when done."""
    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(app)
    server.add_sockets(sockets)
    return server, int(sockets[0].getsockname()[1])


@contextmanager
def service_world(
    folder: Path, *, busy_timeout_ms: int = 60_000, store: Store | None = None, **settings: object
) -> Iterator[ServiceWorld]:
    """An API with the usual users: bob, olga and their lead lea (vision); patty and lead leo (speech); ann; audrey."""
    world = ServiceWorld(folder, busy_timeout_ms=busy_timeout_ms, store=store, **settings)
    try:
        for name in ("bob", "olga", "patty", "leo", "outsider"):
            world.add(name)
        world.add("lea", groups=["vision-team"])
        world.add("ann", admin=True, scopes=("read", "submit", "admin", "audit"))
        world.add("audrey", scopes=("read", "audit"))
        world.apply()
        yield world
    finally:
        world.close()
