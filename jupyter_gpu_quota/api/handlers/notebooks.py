"""Notebook slices at the REST door: the hub's spawner asks and gives back, people look."""

from __future__ import annotations

import asyncio

from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import NotebookState
from ...store.records.activity import WakeNotebook
from ...store.records.commands import RequestNotebook, ReturnNotebook
from ...store.records.rows import NotebookRecord
from ...wire import NotebookRequest, NotebookView
from ..access.permissions import Person, sees_work
from ..access.refusals import Refused, not_found
from ..requests.resource import Answer, Call
from ..state.offers import Wish
from ..views.idle_states import shown
from ..views.records import notebook_view
from .jobs import listed, page_of
from .ranks import milli_of_slice
from .submission import pool_of, project_of, quota_in_force

DECISION_WAIT_S = 2.0
LONGEST_WAIT_S = 30
LOOK_AGAIN_S = 1.0
EVERY_STATE = tuple(NotebookState)


async def request(call: Call) -> Answer:
    """Ask for a slice; waits up to 2 s for the decision. The same server asking again for the same gets the same."""
    asked: NotebookRequest = call.body
    door = call.door
    await door.world.fresh()
    person = await person_called(call, asked.user)
    milli, pool = _checked(call, asked, person)
    await _can_be_held(call, asked, milli, pool)
    recorded = await door.record(
        RequestNotebook(
            notebook=door.new_id(door.clock()),
            user=person.id,
            server=asked.server,
            project=asked.project,
            pool=pool,
            gpu_milli=milli,
        )
    )
    lent = door.world.mirror.notebooks.get(recorded.id)
    if lent is not None and lent.notebook.state is NotebookState.LENT:
        await door.record(WakeNotebook(notebook=recorded.id, actor=person.id))
    await door.world.wait_until(lambda: not _undecided(call, recorded.id), DECISION_WAIT_S)
    record = await record_of(call, recorded.id)
    location = f"{door.people.auth.base_url}api/v1/notebooks/{recorded.id}"
    return Answer(body=notebook_view(record, door.world), status=201, headers={"Location": location})


def _undecided(call: Call, notebook: str) -> bool:
    """Whether a slice waits: it was asked for, or was lent and its server asks for it back."""
    record = call.door.world.mirror.notebooks.get(notebook)
    return record is not None and record.notebook.state in (NotebookState.REQUESTED, NotebookState.LENT)


async def person_called(call: Call, name: str) -> Person:
    """A hub user by name, for the spawner that asks in their place."""
    person = await call.door.people.named(name)
    if person is None:
        raise Refused(404, "no_such_user", f"The hub knows no user {name[:80]!r}.")
    return person


def _checked(call: Call, asked: NotebookRequest, person: Person) -> tuple[int, str]:
    """(milli-GPU, pool) of a request that may be booked; raises Refused."""
    quota = quota_in_force(call.door.world.quota_file)
    project = project_of(asked.project, person)
    pool = pool_of(asked.pool, project, quota, "notebook")
    return milli_of_slice(asked.gpu, pool, tuple(call.door.world.mirror.devices.values())), pool


async def _can_be_held(call: Call, asked: NotebookRequest, gpu_milli: int, pool: str) -> None:
    """Refuse a slice that no device of the pool could hold to its share as the policy wants it."""
    quota = quota_in_force(call.door.world.quota_file)
    wish = Wish(who=asked.user, project=None, pool=pool, gpu_milli=gpu_milli)
    why = await call.door.offers.why_refused(wish, quota.least, call.door.devices_in(pool))
    if why is not None:
        raise Refused(409, "enforcement_too_weak", why)


async def record_of(call: Call, notebook: str) -> NotebookRecord:
    world = call.door.world
    record = world.mirror.notebooks.get(notebook) or await world.read(world.store.notebook, notebook)
    if record is None:
        raise not_found("notebook", notebook)
    await world.learn_names([record.notebook.user])
    return record


async def seen_notebook(call: Call) -> NotebookRecord:
    """A slice that this person may see; any other is answered as if there were none."""
    name = call.names["id"]
    await call.door.world.fresh()
    record = await record_of(call, name)
    if not sees_work(call.person, project=record.notebook.project, owner=record.notebook.user):
        raise not_found("notebook", name)
    return record


async def show(call: Call) -> Answer:
    """One slice. With ``wait_s`` the answer comes when state or reason differ from what was seen, or after so long."""
    record = await seen_notebook(call)
    wait_s = call.integer("wait_s", 0, least=0, most=LONGEST_WAIT_S)
    if wait_s and record.notebook.state not in NOTEBOOK_FINAL:
        await _news(call, record.notebook.id, (call.text("seen_state"), call.text("seen_reason")), wait_s)
        record = await record_of(call, record.notebook.id)
    return Answer(body=_shown(call, record))


def _shown(call: Call, record: NotebookRecord) -> NotebookView:
    """A slice with how it is judged, and what the police of shares says to it."""
    return shown(record, call.door.world)


async def _news(call: Call, notebook: str, seen: tuple[str | None, str | None], wait_s: int) -> None:
    """Wait until state or reason are others. Why a slice waits is thought of again each second: nobody else may ask."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        await call.door.foresight.think()
        if _seen_as(call, notebook) != seen or loop.time() >= deadline:
            return
        rest_s = min(LOOK_AGAIN_S, deadline - loop.time())
        await call.door.world.wait_until(lambda: _seen_as(call, notebook) != seen, rest_s)


def _seen_as(call: Call, notebook: str) -> tuple[str | None, str | None] | None:
    """(state, reason's code) as the mirror has it, None once the slice is over."""
    record = call.door.world.mirror.notebooks.get(notebook)
    if record is None:
        return None
    reason = notebook_view(record, call.door.world).reason
    return record.notebook.state.value, reason.code if reason else None


async def listing(call: Call, *, stopped: bool = False) -> Answer:
    """The live slices that this person may see, newest first; ``stopped``: behind them those stopped lately, too."""
    world, page = call.door.world, page_of(call)
    await world.fresh()
    ended = await call.door.stops.recent() if stopped or call.flag("stopped") else []
    live = sorted(world.mirror.notebooks.values(), key=lambda r: (r.notebook.requested_at, r.notebook.id), reverse=True)
    seen = [
        record
        for record in (*(each for each in live if each.notebook.state not in NOTEBOOK_FINAL), *ended)
        if sees_work(call.person, project=record.notebook.project, owner=record.notebook.user)
    ]
    items = [_shown(call, record) for record in seen[page.offset : page.offset + page.limit]]
    return listed(items, len(seen), page)


async def give_back(call: Call) -> Answer:
    """Return a slice; one that is unknown or returned already is fine."""
    notebook = call.names["id"]
    world = call.door.world
    if await world.read(world.store.notebook, notebook) is not None:
        await call.door.record(ReturnNotebook(notebook=notebook, actor=call.person.id, why="the hub's server stopped"))
    return Answer(status=204)
