"""Whether the service lives, whether it does its work, and what it is: open to everybody."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ... import __version__
from ...quotafile.first_revision import HOW_TO_APPLY, read_first
from ...store.records.protocol import StoreUnavailable
from ...wire.status import HealthView, ReadyView, VersionView
from ..requests.resource import Answer, Call
from ..requests.services import Door

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
    in_force = not store or door.world.quota is not None
    wrong = "" if in_force else await door.world.read(why_not_in_force, door.settings.quota_file)
    lacks = [
        sentence
        for holds, sentence in (
            (store, "the database cannot be used"),
            (controller, "the scheduler's process is being restarted"),
            (lease, "no scheduler holds the lease"),
            (observed, "no node has been seen yet"),
            (not door.world.quota_fault, door.world.quota_fault),
            (not wrong, f"no quota file is in force, so nothing is given out: {wrong}"),
        )
        if not holds
    ]
    return ReadyView(
        ready=not lacks,
        store=store,
        lease=lease,
        observed=observed,
        controller=controller,
        quota=in_force,
        message=_message(lacks, in_force=in_force),
    )


def _message(lacks: list[str], *, in_force: bool) -> str:
    if lacks:
        return f"Not ready: {'; '.join(lacks)}. Running jobs run on."
    return "Ready." if in_force else f"Ready, but no quota file is in force, so nothing is given out: {HOW_TO_APPLY}."


def why_not_in_force(path: str) -> str:
    """Why the deployment's quota file is not in force; empty where none is named. Reads the file.

    Its folder is left out: everybody may ask.
    """
    if not path:
        return ""
    try:
        changed_at = Path(path).stat().st_mtime_ns
    except OSError:
        changed_at = 0
    return _why_not(Path(path), changed_at)


@lru_cache(maxsize=1)
def _why_not(path: Path, changed_at: int) -> str:
    """Read once for each change of the file, however often somebody asks."""
    first = read_first(path)
    if not isinstance(first, str):
        return f"{path.name} is put in force when the service starts; or {HOW_TO_APPLY}"
    return f"{path.name}: {first.rstrip('.')}; mend it and restart the hub, or {HOW_TO_APPLY}"


async def _store_and_lease(door: Door) -> tuple[bool, bool]:
    try:
        await door.world.fresh()
        lease = await door.world.read(door.world.store.lease)
    except StoreUnavailable:
        return False, False
    return True, lease is not None and lease.expires_at > door.clock()
