"""The ETags of reads: a request that names the present ETag is answered 304, without rendering the answer.

An ETag is a hash of everything that an answer depends on: the reader, the query, and the state that the answer shows.
The state of ``me`` and ``jobs`` is that of the reader's projects and of the reader; the other reads depend on the
changes of the whole store view and on the moment of the decision. An answer that changes with time alone has no ETag
and is rendered for each request.
"""

from __future__ import annotations

import hashlib

from ..access.permissions import may_see
from ..state.generations import EVERY
from .call import Call

DAY_MS = 86_400_000


def etag_of(call: Call, *more: object) -> str:
    """The ETag of an answer from the whole store view, which must be up to date; ``more``: what else it depends on."""
    view, ended = call.store_view, call.services.stop_reasons.generation
    return _hash(call, _common(call), view.view_changes, view.moment(), ended, more)


def _hash(call: Call, *state: object) -> str:
    person = call.person
    reader = person.id, person.name, person.is_hub, person.admin, sorted(person.scopes), sorted(person.roles.items())
    parts = call.resource.request.uri, reader, call.store_view.origin, state
    return f'"{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"'


def _common(call: Call) -> tuple[int, ...]:
    """The state that every answer may show: devices, known names of users, the quota file in force."""
    view = call.store_view
    return view.generations.common, len(view.names), view.quota.revision if view.quota else 0


async def of_me(call: Call) -> str | None:
    """None for another user, whose rights are read from the hub, and for an admin, who sees the notification queues."""
    person, stop_reasons = call.person, call.services.stop_reasons
    if call.text("user") is not None or person.admin:
        return None
    await stop_reasons.refresh()
    slices = call.store_view.generations.slices
    used = [slices[owner] for owner in (*sorted(person.roles), person.id)]
    return _hash(call, _common(call), call.store_view.calendar_change_at(), used, stop_reasons.ended_of(person.id))


async def of_projects(call: Call) -> str | None:
    await call.services.decisions.shares()
    return etag_of(call, sorted(call.person.groups), call.services.clock() // DAY_MS)  # by which data may be used


async def of_jobs(call: Call) -> str | None:
    """None for jobs ordered by duration, which changes with time."""
    if "duration" in (call.text("sort") or ""):
        return None
    person, view = call.person, call.store_view
    owners = [EVERY] if person.admin else [*sorted(person.roles), person.id]
    if not view.generations.waiting(view.mirror).isdisjoint(owners):
        await call.services.decisions.latest()
        await call.services.decisions.shares()
    if call.text("user") or call.text("search"):  # names of users in the store may change without a job
        return etag_of(call)
    return _hash(call, _common(call), [view.generations.jobs[owner] for owner in owners])


async def of_notebooks(call: Call) -> str | None:
    """None if a notebook has a classification, because its idle time changes."""
    view = call.store_view
    if any(name in view.idle and may_see(call.person, record) for name, record in view.mirror.notebooks.items()):
        return None
    if call.flag("stopped"):
        await call.services.stop_reasons.refresh()
    return etag_of(call)
