"""Whether the service lives, whether it does its work, and what it is: open to everybody."""

from __future__ import annotations

from .. import __version__
from ..store.protocol import StoreUnavailable
from ..wire import HealthView, ReadyView, VersionView
from .door import Door
from .resource import Answer, Call

API = "v1"


async def health(call: Call) -> Answer:
    return Answer(body=HealthView())


async def version(call: Call) -> Answer:
    return Answer(body=VersionView(version=__version__, api=API))


async def ready(call: Call) -> Answer:
    """200 once the store is migrated, a scheduler holds the lease and a node was seen; else 503 with what lacks."""
    view = await ready_view(call.door)
    return Answer(body=view, status=200 if view.ready else 503)


async def ready_view(door: Door) -> ReadyView:
    store, lease = await _store_and_lease(door)
    observed = bool(door.world.nodes)
    controller = door.controller_alive()
    lacks = [
        sentence
        for holds, sentence in (
            (store, "the database cannot be used"),
            (controller, "the scheduler's process is being restarted"),
            (lease, "no scheduler holds the lease"),
            (observed, "no node has been seen yet"),
        )
        if not holds
    ]
    message = f"Not ready: {'; '.join(lacks)}. Running jobs run on." if lacks else "Ready."
    return ReadyView(
        ready=not lacks, store=store, lease=lease, observed=observed, controller=controller, message=message
    )


async def _store_and_lease(door: Door) -> tuple[bool, bool]:
    try:
        await door.world.fresh()
        lease = await door.world.read(door.world.store.lease)
    except StoreUnavailable:
        return False, False
    return True, lease is not None and lease.expires_at > door.clock()
