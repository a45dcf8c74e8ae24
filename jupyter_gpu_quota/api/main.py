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
from pathlib import Path
from typing import Any

from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer

from ..backends.local.backend import LocalEnforcement, LocalOutputs
from ..bundle import BundleStore
from ..deployment.heartbeat import Heartbeat
from ..deployment.pid_file import lives
from ..deployment.supervisor import CONTROLLER
from ..hub_api import Hub, RestHub
from ..notifications.channels import channels_of
from ..settings import SERVICE_NAME, GPUQuota, database_url, settings_from_environment
from ..store import wakeup as bell
from ..store.open import open_store
from ..store.records.ids import new_ulid
from ..store.records.protocol import StoreUnavailable
from .access.people import Accounts, People
from .access.rate_limit import Pace
from .access.streams import Streams
from .app import make_app
from .requests.resource import LARGEST_DRAINED
from .requests.services import Door, StoreSlot, now_ms
from .requests.writer import Writer
from .state.decision_cache import Foresight
from .state.offers import Offers
from .state.stop_reasons import Stops
from .state.store_view import World

log = logging.getLogger(__name__)

TOKENS_REMEMBERED_S = 60
OPEN_AGAIN_S = 2.0
TURN_S = 1.0
LARGEST_HEADERS = 64 << 10
REPORTS_AT_ONCE, REPORT_EACH_MS = 60, 500
"""A server looks at itself once a second, and reports at most what it saw."""

WAKES_AT_ONCE, WAKE_EACH_MS = 10, 5_000
"""A slice that went back is requested so often in a row; each time it is queued, decided on and put into the audit."""


def main(listening: Sequence[int], heartbeat_fd: int | None = None) -> int:
    """Serve at the sockets that the supervisor bound, until SIGTERM, or until the supervisor is gone.

    Takes their descriptors, and the pipe for its heartbeats. Settings come from the
    environment that the hub gives its services.
    """
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s web door] %(message)s")
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    heartbeat = Heartbeat(heartbeat_fd)
    gc.freeze()  # what was imported stays: it need not be looked through for garbage during a call
    sockets = [socket.socket(fileno=fd) for fd in listening]
    asyncio.run(serve(settings_from_environment(), sockets, heartbeat))
    return 0


async def serve(settings: GPUQuota, sockets: Sequence[socket.socket], heartbeat: Heartbeat) -> None:
    """Answer at once, open the store, follow it; end all of it on SIGTERM, SIGINT or a closed standard input."""
    ending = _ending()
    auth = hub_auth()
    hub = RestHub(auth.api_url, auth.api_token)
    door = make_door(settings, auth, hub, StoreSlot())
    door.controller_alive = lambda: lives(door.state_dir, CONTROLLER)
    server = answering(door, sockets)
    tasks = [
        _supervised(_open_store(door)),
        _supervised(_hear(door)),
        _supervised(_turn(heartbeat)),
    ]
    await ending.wait()
    server.stop()
    door.streams.close()
    for task in tasks:
        task.cancel()
    close(door)


def _ending() -> asyncio.Event:
    """What is set when this process should end."""
    ending, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    loop.add_reader(sys.stdin.fileno(), ending.set)  # nobody writes there: readable means closed
    return ending


async def _turn(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.turned()
        await asyncio.sleep(TURN_S)


def hub_auth() -> HubOAuth:
    """The hub's way of saying who somebody is, from the JUPYTERHUB_* variables."""
    auth = HubOAuth(cache_max_age=TOKENS_REMEMBERED_S)
    service = os.environ.get("JUPYTERHUB_SERVICE_NAME", SERVICE_NAME)
    if not auth.access_scopes:
        auth.access_scopes = {"access:services", f"access:services!service={service}"}
    return auth


def make_door(settings: GPUQuota, auth: HubOAuth, hub: Hub, slot: StoreSlot) -> Door:
    """Put the parts together; needs a running event loop."""
    door: Door
    the_door = lambda: door  # noqa: E731 - made last
    world = World(slot, _clock(the_door))
    writer = Writer(slot, _clock(the_door), committed=lambda: door.committed())  # noqa: PLW0108 - made after this
    enforcement = LocalEnforcement(settings.state_dir, cgroup=settings.cgroup, mps=settings.mps)
    door = Door(
        settings=settings,
        slot=slot,
        people=_people(auth, hub, world, slot),
        world=world,
        foresight=Foresight(world),
        writer=writer,
        bundles=BundleStore(Path(settings.state_dir) / "bundles", limit_bytes=settings.bundle_limit_mib << 20),
        streams=Streams(),
        reports=Writer(slot, _clock(the_door)),
        channels=_channels(settings),
        offers=Offers(enforcement),
        outputs=LocalOutputs(settings.state_dir),
        stops=Stops(world),
        changes=Pace(_clock(the_door), at_once=settings.changes_at_once, each_ms=1000 / settings.changes_per_s),
        report_pace=Pace(_clock(the_door), at_once=REPORTS_AT_ONCE, each_ms=REPORT_EACH_MS),
        wake_pace=Pace(_clock(the_door), at_once=WAKES_AT_ONCE, each_ms=WAKE_EACH_MS),
        new_id=new_ulid,
    )
    return door


def _clock(door: Callable[[], Door]) -> Callable[[], int]:
    """The door's clock, which a test may set later."""
    return lambda: door().clock()


def _people(auth: HubOAuth, hub: Hub, world: World, slot: StoreSlot) -> People:
    return People(
        auth=auth,
        accounts=Accounts(hub),
        user_id=lambda name: world.read(slot().user_id, name, now=now_ms()),
        quota=lambda: world.quota_file,
    )


def _channels(settings: GPUQuota) -> list[tuple[str, str]]:
    """The channels that messages leave by: the name of each, and its other end. The controllers send."""
    made = channels_of(settings, now_ms)
    for channel in made:
        channel.close()
    return [(channel.name, channel.where) for channel in made]


def close(door: Door) -> None:
    """Write what waits, then let go of the database."""
    door.writer.close()
    door.reports.close()
    door.world.close()
    if door.slot.store is not None:
        door.slot.store.close()


def answering(door: Door, sockets: Sequence[socket.socket]) -> HTTPServer:
    """The server behind sockets that are bound already; connections may wait in them since before this process."""
    app = make_app(door, cookie_secret=cookie_secret(door.state_dir))
    server = HTTPServer(
        app,
        xheaders=True,
        max_body_size=LARGEST_DRAINED,  # uploads raise it for themselves; all others are held in memory
        max_header_size=LARGEST_HEADERS,
        idle_connection_timeout=3600,
    )
    for each in sockets:
        each.setblocking(False)
    server.add_sockets(sockets)
    return server


def cookie_secret(state_dir: Path) -> bytes:
    """What signs login cookies; kept, so that a restart logs nobody out."""
    path = state_dir / "cookie_secret"
    with contextlib.suppress(OSError, ValueError):
        secret = bytes.fromhex(path.read_text())
        if len(secret) >= 32:
            return secret
    secret = secrets.token_bytes(32)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secret.hex())
        temporary.replace(path)
    except OSError as error:
        log.error("%s cannot be written (%s): who is logged in will log in again after a restart", path, error.strerror)
    return secret


async def _open_store(door: Door) -> None:
    """Open and migrate; a database that cannot be used now is tried again, and requests say why until then."""
    while door.slot.store is None:
        try:
            store = await asyncio.get_running_loop().run_in_executor(None, open_store, database_url(door.settings))
        except StoreUnavailable as error:
            door.slot.why = str(error)
            log.error("the database cannot be opened: %s", error)
            await asyncio.sleep(OPEN_AGAIN_S)
        else:
            door.slot.store = store
            door.world.nudge()


async def _hear(door: Door) -> None:
    """Look at the store whenever the scheduler says that it changed; without a bell it is looked at on demand."""
    while True:
        try:
            ear = bell.Bell.bind(door.state_dir / "web.sock")
        except OSError as error:
            log.error("%s cannot be bound: %s", door.state_dir / "web.sock", error.strerror)
            await asyncio.sleep(OPEN_AGAIN_S)
            continue
        with ear:
            while True:
                await ear.heard()
                door.world.nudge()


def _supervised(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of the service's own life: if it fails, that is logged and the whole service ends, to be started again."""

    async def run() -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException:
            log.exception("a part of the service failed; it ends")
            os.kill(os.getpid(), signal.SIGTERM)

    return asyncio.create_task(run())
