"""The service's health, readiness and version, and its recovery after an older database was restored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ... import __version__
from ...messages.recovery import COMMAND, difference_texts, evidence_text
from ...quotafile.from_path import HOW_TO_APPLY, read_path
from ...store.records.activity import LOOP_STATUS_EVERY_MS, Note
from ...store.records.calls import StoreUnavailable
from ...store.records.recovery import AcceptRecovery
from ...wire.status import HealthView, ReadyView, RecoveryEdit, RecoveryView, VersionView
from ..requests.call import Answer, Call
from ..requests.services import Services
from ..views.records import instant

API = "v1"
FULL = "the volume of c.GPUQuota.state_dir is full: free space on it; until then no scheduler can become leader"
HOW_TO_RECOVER = f"an admin continues with {COMMAND}"


async def health(call: Call) -> HealthView:
    return HealthView()


async def version(call: Call) -> VersionView:
    return VersionView(version=__version__, api=API)


async def ready(call: Call) -> Answer:
    """200 once the store is migrated, a controller has the lease and a node was seen; else 503 with the reasons."""
    view = await ready_view(call.services)
    return Answer(body=view, status=200 if view.ready else 503)


async def ready_view(services: Services) -> ReadyView:
    store_view, store, lease, hold, failing = services.store_view, True, None, None, list[str]()
    try:
        await store_view.refresh_if_stale()
        lease = await store_view.read(store_view.store.lease)
        hold = await store_view.read(store_view.store.hold)
        failing = _failing(await store_view.read(store_view.store.notes, "loop"), services.clock())
    except StoreUnavailable:
        store = False
    led = lease is not None and lease.expires_at > services.clock()
    observed = bool(store_view.nodes)
    controller = services.controller_alive()
    in_force = not store or store_view.quota is not None
    full = FULL if await services.state_volume.is_full(services.state_dir) else ""
    wrong = "" if in_force else await store_view.read(why_not_in_force, services.settings.quota_file)
    lacks = [
        sentence
        for holds, sentence in (
            (store, "the database cannot be used"),
            (controller, "the scheduler's process is being restarted"),
            (led, "no scheduler holds the lease"),
            (led or not full, full),
            (observed, "no node has been seen yet"),
            (hold is None, f"the database is older than the running work, so no decision is made: {HOW_TO_RECOVER}"),
            (not store_view.quota_fault, store_view.quota_fault),
            (not wrong, f"no quota file is in force, so no GPU is allocated: {wrong}"),
        )
        if not holds
    ]
    return ReadyView(
        ready=not lacks,
        store=store,
        lease=led,
        observed=observed,
        controller=controller,
        held=hold is not None,
        quota=in_force,
        failing=failing,
        message=_message(lacks, failing, full, in_force=in_force),
    )


async def recovery(call: Call) -> RecoveryView:
    """The hold with its reasons and differences; not held where decisions are made."""
    view, store = call.store_view, call.store_view.store
    hold, unknown = await view.read(store.hold), await view.read(store.unknown_work)
    running = [f"{each.job} (attempt {each.attempt})" for each in unknown]
    if hold is None:
        return RecoveryView(held=False, unknown_work=running)
    return RecoveryView(
        held=True,
        since=instant(hold.since),
        why=[evidence_text(each) for each in hold.why],
        differences=difference_texts(hold.differences, hold.without_code),
        accepted=hold.accepted is not None,
        unknown_work=running,
    )


async def accept_recovery(call: Call) -> RecoveryView:
    """Record that an admin continues. The scheduler changes the jobs at once; until then the answer is still held."""
    edit: RecoveryEdit = call.body
    await call.services.record(AcceptRecovery(actor=call.person.id, stop_unknown=edit.stop_unknown))
    return await recovery(call)


def _failing(loops: Sequence[Note], now: int) -> list[str]:
    """The control loops whose last run failed. The leader stores the status of each every minute."""
    return sorted(
        note.subject
        for note in loops
        if note.document["failing_since"] is not None and now - note.at < 3 * LOOP_STATUS_EVERY_MS
    )


def _message(lacks: list[str], failing: list[str], full: str, *, in_force: bool) -> str:
    if lacks:
        return f"Not ready: {'; '.join(lacks)}. Running jobs continue."
    limits = [] if in_force else [f"no quota file is in force, so no GPU is allocated: {HOW_TO_APPLY}"]
    limits += [full] if full else []
    limits += [f"the {name} loop fails; the service's log has the error" for name in failing]
    return f"Ready, but {'; '.join(limits)}." if limits else "Ready."


def why_not_in_force(path: str) -> str:
    """Why the deployment's quota file is not in force; empty where none is named. Reads the file.

    Its folder is left out, because everybody may read this.
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
    """The reason, read again only when the file changed."""
    first = read_path(path)
    if not isinstance(first, str):
        return f"{path.name} is put in force when the service starts; or {HOW_TO_APPLY}"
    return f"{path.name}: {first.rstrip('.')}; correct it and restart the hub, or {HOW_TO_APPLY}"
