"""The tags of reads (ETag): a read whose tag is the one that its reader has is answered 304, and not rendered.

A tag names all that an answer is made from: the reader, the query, the edition of the store view, and the moment of the
decision. What changes with time alone has no tag: its answer is rendered each time.
"""

from __future__ import annotations

import hashlib

from ...core.lifecycle import WAITING
from ..access.permissions import may_see
from .call import Call

DAY_MS = 86_400_000


def tag_of(call: Call, *more: object) -> str:
    """The tag of the present answer; what it is made from must be up to date. ``more`` is what else it is made from."""
    view, person = call.store_view, call.person
    reader = person.id, person.name, person.is_hub, person.admin, sorted(person.scopes), sorted(person.roles.items())
    state = view.origin, view.edition, view.moment(), call.services.stop_reasons.edition
    parts = call.resource.request.uri, reader, state, more
    return f'"{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"'


async def of_me(call: Call) -> str | None:
    """Without one: another person, whose rights the hub knows, and an admin, who sees the queues of notifications."""
    if call.text("user") is not None or call.person.admin:
        return None
    await call.services.stop_reasons.refresh()
    return tag_of(call)


async def of_projects(call: Call) -> str | None:
    await call.services.decisions.shares()
    return tag_of(call, sorted(call.person.groups), call.services.clock() // DAY_MS)  # by which data may be used


async def of_jobs(call: Call) -> str | None:
    """Without one: jobs in the order of their duration, which time changes."""
    if "duration" in (call.text("sort") or ""):
        return None
    records = call.store_view.mirror.jobs.values()
    if any(record.job.state in WAITING and may_see(call.person, record) for record in records):
        await call.services.decisions.latest()
        await call.services.decisions.shares()
    return tag_of(call)


async def of_notebooks(call: Call) -> str | None:
    """Without one: notebooks with a classification, which says for how long they are idle."""
    view = call.store_view
    if any(name in view.idle and may_see(call.person, record) for name, record in view.mirror.notebooks.items()):
        return None
    if call.flag("stopped"):
        await call.services.stop_reasons.refresh()
    return tag_of(call)
