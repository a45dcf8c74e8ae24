"""The ETags of reads: a request that names the present ETag is answered 304, without rendering the answer.

An ETag is a hash of everything that an answer depends on: the reader, the query, the edition of the store view, and the
moment of the decision. An answer that changes with time alone has no ETag and is rendered for each request.
"""

from __future__ import annotations

import hashlib

from ...core.lifecycle import WAITING
from ..access.permissions import may_see
from .call import Call

DAY_MS = 86_400_000


def etag_of(call: Call, *more: object) -> str:
    """The ETag of the present answer; ``more``: what it depends on beside the store view, which must be up to date."""
    view, person = call.store_view, call.person
    reader = person.id, person.name, person.is_hub, person.admin, sorted(person.scopes), sorted(person.roles.items())
    state = view.origin, view.edition, view.moment(), call.services.stop_reasons.edition
    parts = call.resource.request.uri, reader, state, more
    return f'"{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"'


async def of_me(call: Call) -> str | None:
    """None for another user, whose rights are read from the hub, and for an admin, who sees the notification queues."""
    if call.text("user") is not None or call.person.admin:
        return None
    await call.services.stop_reasons.refresh()
    return etag_of(call)


async def of_projects(call: Call) -> str | None:
    await call.services.decisions.shares()
    return etag_of(call, sorted(call.person.groups), call.services.clock() // DAY_MS)  # by which data may be used


async def of_jobs(call: Call) -> str | None:
    """None for jobs ordered by duration, which changes with time."""
    if "duration" in (call.text("sort") or ""):
        return None
    records = call.store_view.mirror.jobs.values()
    if any(record.job.state in WAITING and may_see(call.person, record) for record in records):
        await call.services.decisions.latest()
        await call.services.decisions.shares()
    return etag_of(call)


async def of_notebooks(call: Call) -> str | None:
    """None if a notebook has a classification, because its idle time changes."""
    view = call.store_view
    if any(name in view.idle and may_see(call.person, record) for name, record in view.mirror.notebooks.items()):
        return None
    if call.flag("stopped"):
        await call.services.stop_reasons.refresh()
    return etag_of(call)
