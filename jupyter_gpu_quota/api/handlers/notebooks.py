"""Routes of notebook slices: the hub's spawner requests and returns them, people read them."""

from __future__ import annotations

import asyncio

from ...core.lifecycle import NOTEBOOK_FINAL
from ...core.model import NotebookState
from ...store.records.activity import WakeNotebook
from ...store.records.commands import RequestNotebook, ReturnNotebook
from ...store.records.rows import NotebookRecord
from ...wire import NotebookRequest, NotebookView, PodDevicesView, RequestedSliceView
from ..access.permissions import Person, may_see
from ..access.refusals import Refused, not_found
from ..requests.call import Answer, Call
from ..requests.services import ApiSettings
from ..views.idle_states import classified_view
from ..views.records import notebook_view
from .ranks import milli_of_slice
from .submission import pool_of, project_of, quota_in_force

DECISION_WAIT_S = 2.0
MAX_WAIT_S = 30
EXPLAIN_INTERVAL_S = 1.0


async def request(call: Call) -> Answer:
    """Request a slice; waits up to 2 s for the decision. A start that repeats its request gets the same slice."""
    body: NotebookRequest = call.body
    services, store_view = call.services, call.store_view
    person = await person_named(call, body.user)
    quota = quota_in_force(store_view.quota_file)
    pool = pool_of(body.pool, project_of(body.project, person), quota, "notebook")
    milli = milli_of_slice(body.gpu, pool, tuple(store_view.mirror.devices.values()))
    await services.offers.check(
        person,
        services.in_progress,
        pool=pool,
        gpu_milli=milli,
        devices=store_view.devices_in(pool),
        least=quota.least,
    )
    recorded = await services.record(
        RequestNotebook(
            notebook=services.new_id(services.clock()),
            user=person.id,
            server=body.server,
            project=body.project,
            pool=pool,
            gpu_milli=milli,
            token_digest=body.token_digest,
        )
    )
    lent = store_view.mirror.notebooks.get(recorded.id)
    if lent is not None and lent.notebook.state is NotebookState.LENT:
        await services.record(WakeNotebook(notebook=recorded.id, actor=person.id))
    await store_view.wait_until(lambda: not waits_for_slice(call, recorded.id), DECISION_WAIT_S)
    found = notebook_view(await record_of(call, recorded.id), store_view)
    secret = await services.slice_secrets.secret_of(recorded.id, body.token_digest)
    pod_devices = pod_devices_of(services.settings)
    view = RequestedSliceView.model_construct(**dict(found), secret=secret, pod_devices=pod_devices)
    return Answer(body=view, status=201, headers={"Location": services.url_of(f"notebooks/{recorded.id}")})


def pod_devices_of(settings: ApiSettings) -> PodDevicesView | None:
    """The settings of notebooks' pods, so that the hub needs no copy of them; None where servers are no pods."""
    if settings.backend != "kubernetes":
        return None
    return PodDevicesView(
        driver=settings.kubernetes_driver,
        device_class=settings.kubernetes_device_class,
        fractions=settings.kubernetes_fractions,
    )


def waits_for_slice(call: Call, notebook: str) -> bool:
    """Whether a slice is requested, or lent while its server waits for it."""
    record = call.store_view.mirror.notebooks.get(notebook)
    return record is not None and record.notebook.state in (NotebookState.REQUESTED, NotebookState.LENT)


async def person_named(call: Call, name: str) -> Person:
    """A hub user by name, for whom the spawner sends a request."""
    person = await call.services.people.by_name(name)
    if person is None:
        raise Refused(404, "no_such_user", f"The hub knows no user {name[:80]!r}.")
    return person


async def record_of(call: Call, notebook: str) -> NotebookRecord:
    record = await call.store_view.notebook(notebook)
    if record is None:
        raise not_found("notebook", notebook)
    return record


async def seen_notebook(call: Call) -> NotebookRecord:
    """The slice of the path. One that this person may not see is answered as unknown."""
    record = await record_of(call, call.names["id"])
    if not may_see(call.person, record):
        raise not_found("notebook", call.names["id"])
    return record


async def show(call: Call) -> NotebookView:
    """One slice. ``wait_s``: answer when state or reason differ from ``seen_*``, at the latest after that time."""
    record = await seen_notebook(call)
    wait_s = call.integer("wait_s", 0, least=0, most=MAX_WAIT_S)
    if wait_s and record.notebook.state not in NOTEBOOK_FINAL:
        await _wait_for_change(call, record.notebook.id, (call.text("seen_state"), call.text("seen_reason")), wait_s)
        record = await record_of(call, record.notebook.id)
    return classified_view(record, call.store_view)


async def _wait_for_change(call: Call, notebook: str, seen: tuple[str | None, str | None], wait_s: int) -> None:
    """Wait until state or reason change. The reason is computed again each second, because time changes it too."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        await call.services.decisions.latest()
        if _state_and_reason(call, notebook) != seen or loop.time() >= deadline:
            return
        rest_s = min(EXPLAIN_INTERVAL_S, deadline - loop.time())
        await call.store_view.wait_until(lambda: _state_and_reason(call, notebook) != seen, rest_s)


def _state_and_reason(call: Call, notebook: str) -> tuple[str | None, str | None] | None:
    """(state, reason's code) in the store view; None for an ended slice."""
    record = call.store_view.mirror.notebooks.get(notebook)
    if record is None:
        return None
    reason = notebook_view(record, call.store_view).reason
    return record.notebook.state.value, reason.code if reason else None


async def listing(call: Call, *, stopped: bool = False) -> Answer:
    """The live slices that this person may see, newest first; ``stopped``: then those stopped lately."""
    ended = await call.services.stop_reasons.recent() if stopped or call.flag("stopped") else []
    live = [each for each in call.store_view.mirror.notebooks.values() if each.notebook.state not in NOTEBOOK_FINAL]
    live.sort(key=lambda each: (each.notebook.requested_at, each.notebook.id), reverse=True)
    seen = [record for record in [*live, *ended] if may_see(call.person, record)]
    return call.listing(seen, lambda record: classified_view(record, call.store_view))


async def return_slice(call: Call) -> Answer:
    """Return a slice; an unknown or returned one is fine."""
    notebook = call.names["id"]
    if await call.store_view.notebook(notebook) is not None:
        why = "the hub's server stopped"
        await call.services.record(ReturnNotebook(notebook=notebook, actor=call.person.id, why=why))
    return Answer(status=204)
