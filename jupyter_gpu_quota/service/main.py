"""The hub-managed service: the web door in this process, the scheduler as its child."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer

from .. import bell
from ..bundle import BundleStore
from ..config import SERVICE_NAME, GPUQuota, database_url, settings_from_environment
from ..store.ids import new_ulid
from ..store.open import open_store
from ..store.protocol import StoreUnavailable
from .app import make_app
from .door import Door, StoreSlot, now_ms
from .foresight import Foresight
from .hub import Hub, RestHub
from .people import Accounts, People
from .predecessor import give_up, take_over
from .reconcile import keep_reconciling
from .scheduler_child import SchedulerChild
from .streams import Streams
from .world import World
from .writer import Writer

log = logging.getLogger(__name__)

TOKENS_REMEMBERED_S = 60
OPEN_AGAIN_S = 2.0
BIND_WITHIN_S = 15.0
LARGEST_HEADERS = 64 << 10


def main() -> int:
    """Serve until SIGTERM. Settings come from the environment that the hub gives its services."""
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s web door] %(message)s")
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    settings = settings_from_environment()
    state_dir = Path(settings.state_dir)
    take_over(state_dir)
    try:
        asyncio.run(serve(settings))
    finally:
        give_up(state_dir)
    return 0


async def serve(settings: GPUQuota) -> None:
    """Bind, open the store, keep the scheduler running; end all of it on SIGTERM or SIGINT."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    auth = hub_auth()
    hub = RestHub(auth.api_url, auth.api_token)
    scheduler = SchedulerChild()
    door = make_door(settings, auth, hub, StoreSlot())
    door.controller_alive = lambda: scheduler.alive
    server = await _listening(door)
    tasks = [
        _supervised(_open_store(door)),
        _supervised(scheduler.keep()),
        _supervised(_hear(door)),
        _supervised(keep_reconciling(door, hub)),
    ]
    await ending.wait()
    server.stop()
    door.streams.close()
    for task in tasks:
        task.cancel()
    await scheduler.end()
    close(door)


def hub_auth() -> HubOAuth:
    """The hub's way of saying who somebody is, from the JUPYTERHUB_* variables."""
    auth = HubOAuth(cache_max_age=TOKENS_REMEMBERED_S)
    service = os.environ.get("JUPYTERHUB_SERVICE_NAME", SERVICE_NAME)
    if not auth.access_scopes:
        auth.access_scopes = {"access:services", f"access:services!service={service}"}
    return auth


def make_door(settings: GPUQuota, auth: HubOAuth, hub: Hub, slot: StoreSlot) -> Door:
    """Put the parts together; needs a running event loop."""
    world = World(slot, now_ms)
    people = People(
        auth=auth,
        accounts=Accounts(hub),
        user_id=lambda name: world.read(slot().user_id, name, now=now_ms()),
        quota=lambda: world.quota_file,
    )
    door: Door
    writer = Writer(slot, now_ms, committed=lambda: door.committed())  # noqa: PLW0108 - made after this
    door = Door(
        settings=settings,
        slot=slot,
        people=people,
        world=world,
        foresight=Foresight(world),
        writer=writer,
        bundles=BundleStore(Path(settings.state_dir) / "bundles", limit_bytes=settings.bundle_limit_mib << 20),
        streams=Streams(),
        new_id=new_ulid,
    )
    return door


def close(door: Door) -> None:
    """Write what waits, then let go of the database."""
    door.writer.close()
    door.world.close()
    if door.slot.store is not None:
        door.slot.store.close()


async def _listening(door: Door) -> HTTPServer:
    """Bind where the hub expects us; a predecessor's socket may linger for a moment."""
    url = urlparse(os.environ.get("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:0"))
    app = make_app(door, cookie_secret=cookie_secret(door.state_dir))
    most = (door.settings.bundle_limit_mib + 32) << 20
    server = HTTPServer(
        app, xheaders=True, max_body_size=most, max_header_size=LARGEST_HEADERS, idle_connection_timeout=3600
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BIND_WITHIN_S
    while True:
        try:
            server.listen(url.port or 0, url.hostname or "127.0.0.1")
        except OSError as error:
            if loop.time() > deadline:
                raise
            log.warning("%s is not free yet: %s", url.netloc, error)
            await asyncio.sleep(0.2)
        else:
            log.info("listening at %s", url.netloc)
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
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret.hex())
    temporary.replace(path)
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
    """Look at the store whenever the scheduler says that it changed."""
    with bell.Bell.bind(door.state_dir / "web.sock") as ear:
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
