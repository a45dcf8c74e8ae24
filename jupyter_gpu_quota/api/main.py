"""The API process: the service supervisor starts it with its listening sockets, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer

from ..bundle import BundleStore
from ..deployment.heartbeat import Heartbeat
from ..deployment.pid_file import child_is_running
from ..deployment.selected_backend import BackendUnavailable, readers_of
from ..deployment.supervisor import CONTROLLER
from ..hub_api import Hub, RestHub
from ..notifications.channels import channels_of
from ..settings import SERVICE_NAME, GPUQuota, database_url, run_dir, settings_from_environment
from ..store import wakeup
from ..store.open import open_store
from ..store.records.calls import StoreUnavailable
from ..store.records.ids import new_ulid
from .access.people import Accounts, People
from .access.rate_limit import RateLimit
from .access.slice_secrets import SliceSecrets
from .access.streams import Streams
from .app import make_app
from .requests.resource import BODY_GRACE_S, IDLE_S, MAX_DRAINED
from .requests.services import ApiSettings, Services, StoreSlot, now_ms
from .requests.writer import Writer
from .state.decision_cache import DecisionCache
from .state.offers import EnforcementOffers
from .state.stop_reasons import StopReasons
from .state.store_view import StoreView

log = logging.getLogger(__name__)

TOKEN_CACHE_S = 60
RETRY_S = 2.0
HEARTBEAT_INTERVAL_S = 1.0
MAX_HEADERS = 64 << 10
REPORTS_AT_ONCE, REPORT_EACH_MS = 60, 500
"""A notebook's server checks itself once a second, and reports at most that often."""

WAKES_AT_ONCE, WAKE_EACH_MS = 10, 5_000
"""Repeated requests for a returned slice: each is queued, decided and audited."""


def main(listening: Sequence[int], heartbeat_fd: int | None = None, *, external_controllers: bool = False) -> int:
    """Serve at the sockets that the supervisor bound, until SIGTERM or the end of the supervisor.

    Takes their descriptors, and the pipe for heartbeats; ``external_controllers``: the supervisor starts none. Settings
    come from the environment that the hub gives its services.
    """
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s api] %(message)s")
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    heartbeat = Heartbeat(heartbeat_fd)
    gc.freeze()  # imports stay, so the garbage collector need not traverse them during a request
    sockets = [socket.socket(fileno=fd) for fd in listening]
    try:
        asyncio.run(serve(settings_from_environment(), sockets, heartbeat, external_controllers=external_controllers))
    except BackendUnavailable as error:
        log.error("%s", error)
        return 1
    return 0


async def serve(
    settings: GPUQuota, sockets: Sequence[socket.socket], heartbeat: Heartbeat, *, external_controllers: bool = False
) -> None:
    """Serve at once, open and follow the store; end on SIGTERM, SIGINT or a closed standard input.

    ``external_controllers``: the supervisor starts none, so that only their lease says whether they run.
    """
    ending, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    loop.add_reader(sys.stdin.fileno(), ending.set)  # nothing is written there: readable means closed
    auth = hub_auth()
    hub = RestHub(auth.api_url, auth.api_token)
    services = make_services(settings, auth, hub, StoreSlot())
    if not external_controllers:
        services.controller_alive = lambda: child_is_running(run_dir(settings), CONTROLLER)
    server = start_server(services, sockets)
    tasks = [
        _supervised(_open_store(services, database_url(settings))),
        _supervised(_follow_wakeups(services, run_dir(settings) / "web.sock")),
        _supervised(_send_heartbeats(heartbeat)),
    ]
    await ending.wait()
    server.stop()
    services.streams.close()
    for task in tasks:
        task.cancel()
    await close(services)


async def _send_heartbeats(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.note_turn()
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)


def hub_auth() -> HubOAuth:
    """The hub's authentication, from the JUPYTERHUB_* variables."""
    auth = HubOAuth(cache_max_age=TOKEN_CACHE_S)
    service = os.environ.get("JUPYTERHUB_SERVICE_NAME", SERVICE_NAME)
    if not auth.access_scopes:
        auth.access_scopes = {"access:services", f"access:services!service={service}"}
    return auth


def make_services(
    settings: GPUQuota, auth: HubOAuth, hub: Hub, slot: StoreSlot, clock: Callable[[], int] = now_ms
) -> Services:
    """Put the parts together; needs a running event loop."""
    backend = readers_of(settings)
    store_view = StoreView(slot, clock, in_pods=backend.in_pods)
    state_dir = Path(settings.state_dir)
    slice_secrets = SliceSecrets(
        lambda name: store_view.read(slot().service_key, name, now=clock()), lambda: store_view.mirror.notebooks
    )

    def committed() -> None:
        """The controller decides at once, and the store view follows."""
        wakeup.notify(run_dir(settings) / "controller.sock")
        store_view.notify()

    return Services(
        settings=_api_settings(settings),
        slot=slot,
        people=People(
            auth=auth,
            accounts=Accounts(hub),
            user_id=store_view.user_id,
            quota=lambda: store_view.quota_file,
            slices=slice_secrets,
            nodes=backend.nodes,
        ),
        slice_secrets=slice_secrets,
        store_view=store_view,
        decisions=DecisionCache(store_view),
        writer=Writer(slot, clock, committed),
        bundles=BundleStore(state_dir / "bundles", limit_bytes=settings.bundle_limit_mib << 20),
        streams=Streams(),
        reports=Writer(slot, clock),
        channels=_channels(settings),
        offers=EnforcementOffers(backend.capabilities, lambda: store_view.samples, clock),
        backend=backend,
        stop_reasons=StopReasons(store_view),
        change_limit=RateLimit(clock, burst=settings.changes_at_once, interval_ms=1000 / settings.changes_per_s),
        report_limit=RateLimit(clock, burst=REPORTS_AT_ONCE, interval_ms=REPORT_EACH_MS),
        wake_limit=RateLimit(clock, burst=WAKES_AT_ONCE, interval_ms=WAKE_EACH_MS),
        new_id=new_ulid,
        clock=clock,
    )


def _api_settings(settings: GPUQuota) -> ApiSettings:
    known = {each.name: getattr(settings, each.name) for each in fields(ApiSettings) if each.name != "host"}
    return ApiSettings(host=socket.gethostname(), **known)


def _channels(settings: GPUQuota) -> list[tuple[str, str]]:
    """(name, destination) of the notification channels, which the controllers use."""
    channels = channels_of(settings, now_ms)
    for channel in channels:
        channel.close()
    return [(channel.name, channel.where) for channel in channels]


async def close(services: Services) -> None:
    """Write the waiting requests, end every task, and close the database."""
    services.writer.close()
    services.reports.close()
    await services.store_view.close()
    if services.slot.store is not None:
        services.slot.store.close()


def start_server(services: Services, sockets: Sequence[socket.socket]) -> HTTPServer:
    """The server at sockets that are bound already, where connections may already wait."""
    app = make_app(services, cookie_secret=cookie_secret(services.state_dir))
    server = HTTPServer(
        app,
        xheaders=True,
        max_body_size=MAX_DRAINED,  # uploads raise it for themselves; all others are in memory
        max_header_size=MAX_HEADERS,
        idle_connection_timeout=IDLE_S,
        body_timeout=BODY_GRACE_S,
    )
    for each in sockets:
        each.setblocking(False)
    server.add_sockets(sockets)
    return server


def cookie_secret(state_dir: Path) -> bytes:
    """The secret that signs login cookies; kept in a file, so that a restart logs nobody out.

    Processes that start together, also on several machines, all take the one that is published first.
    """
    path = state_dir / "cookie_secret"
    if (kept := _kept_secret(path)) is not None:
        return kept
    secret = secrets.token_bytes(32)
    try:
        _publish(secret, path)
    except OSError as error:
        log.error("%s cannot be written (%s): users will have to log in again after a restart", path, error.strerror)
    return _kept_secret(path) or secret


def _kept_secret(path: Path) -> bytes | None:
    """The secret in this file; None where it has none."""
    with contextlib.suppress(OSError, ValueError):
        secret = bytes.fromhex(path.read_text())
        if len(secret) >= 32:
            return secret
    return None


def _publish(secret: bytes, path: Path) -> None:
    """Write a secret for this account only, whole at once, unless the file has one. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret.hex())
        with contextlib.suppress(OSError):  # there is a file, or the file system has no hard links
            os.link(temporary, path)
        if _kept_secret(path) is None:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


async def _open_store(services: Services, url: str) -> None:
    """Open and migrate the database, with retries; until then requests are refused with the reason."""
    while services.slot.store is None:
        try:
            store = await asyncio.get_running_loop().run_in_executor(None, open_store, url)
        except StoreUnavailable as error:
            if services.slot.why != str(error):
                log.error("the database cannot be opened: %s", error.log_text())
            services.slot.why = str(error)
            await asyncio.sleep(RETRY_S)
        else:
            services.slot.store = store
            services.store_view.notify()


async def _follow_wakeups(services: Services, path: Path) -> None:
    """Refresh the store view after each wakeup; without a socket it is refreshed on demand."""
    while True:
        try:
            wakeups = wakeup.WakeupSocket(path)
        except OSError as error:
            log.error("%s cannot be bound: %s", path, error.strerror)
            await asyncio.sleep(RETRY_S)
            continue
        with wakeups:
            while True:
                await wakeups.received()
                services.store_view.notify()


def _supervised(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that the process needs: if it fails, the process ends, and the supervisor starts it again."""

    async def run() -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException:
            log.exception("a part of the service failed; it ends")
            os.kill(os.getpid(), signal.SIGTERM)

    return asyncio.create_task(run())
