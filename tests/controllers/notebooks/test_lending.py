"""Idle slices are lent and returned, through the API: the start and end of a loan, and the answers to its users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.controllers.reconciliation import Reconciliation
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Health, JobState, NotebookState
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.activity import WakeNotebook
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world, train_devices
from tests.controllers.setups.notebook import IDLE, MINUTE, NOW, SECOND, Watched
from tests.patience import until

LENDS = QUOTA.replace("uses: [notebook]", "uses: [notebook, training]") + IDLE.replace("MODE", "reclaim").replace(
    "stop_server_after: 30m", "stop_server_after: 12h, release_after: 25m"
)


class Lent(Watched):
    """Bob's notebook, idle and freed, whose slice is lent to a job of patty that has the whole device."""

    def __init__(self, world: ServiceWorld) -> None:
        super().__init__(world)
        self.memory_mib = 0
        self.kernels = [self.kernel("cpu", asks_gpu=False)]

    def idle(self) -> None:
        for _ in range(30):
            self.pass_(1)
            if self.shown()["idle"]["state"] == "freed":
                return
        raise AssertionError(self.shown())

    def lend(self) -> str:
        self.idle()
        job = str(self.world.submit("patty", project="speech", pool="build", gpu="1")["id"])
        self.decide()
        assert self.state is NotebookState.LENT
        self.world.see_running(job)
        return job

    def decide(self) -> None:
        while self.world.step():
            self.now += SECOND
        self.world.run(self.world.services.store_view.refresh())

    @property
    def record(self) -> Any:
        found = self.world.store.notebook(self.id)
        assert found is not None
        return found

    @property
    def state(self) -> NotebookState:
        return NotebookState(self.record.notebook.state)

    def job(self, name: str) -> JobState:
        found = self.world.store.job(name)
        assert found is not None
        return found.job.state

    def leaves(self, job: str) -> None:
        """The borrower's processes ended."""
        self.world.see_running(job, ended_at=self.now, exit_status=75, tree_gone=True, pause_requested=True)
        self.decide()

    def set_aside(self, health: Health) -> None:
        """Quarantine a device, as for a job that cannot be killed."""
        lease = self.world.store.acquire_lease("test", clock=lambda: self.now, ttl_ms=3000)
        assert lease is not None
        self.world.store.observe([DeviceFact(device="build-0", health=health)], lease=lease, now=self.now)
        self.world.run(self.world.services.store_view.refresh())

    def wake(self, who: str = "bob", **body: Any) -> Any:
        return self.world.post(f"notebooks/{self.id}/actions/wake", who, {"kernel": "k9", **body})


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Lent]:
    with service_world(tmp_path, store=MemoryStore()) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(LENDS, real)
        yield Lent(world)


def test_an_idle_slice_is_lent_and_returns_when_a_kernel_requests_it(notebook: Lent) -> None:
    job = notebook.lend()
    found = notebook.wake().json
    assert found["state"] == "waiting" and found["variables"] == {}
    assert "a job of another project, which borrows it, has saved and ended: within 10 s" in found["message"]
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING
    assert notebook.wake().json["state"] == "waiting"
    notebook.leaves(job)
    ready = notebook.wake().json
    assert (ready["state"], ready["variables"]["CUDA_VISIBLE_DEVICES"]) == ("ready", "SIM-build-0")
    assert notebook.audited().count("notebook.woken") == 1
    notebook.pass_(5)
    notebook.decide()
    assert (notebook.state, notebook.job(job)) == (NotebookState.BOOKED, JobState.PAUSED)


def test_the_name_of_the_borrower_is_shown_to_users_who_may_see_it(notebook: Lent) -> None:
    notebook.idle()
    job = notebook.world.submit("olga", project="vision", pool="build", gpu="1", name="digits")["id"]
    notebook.decide()
    notebook.world.see_running(job)
    notebook.world.run(notebook.world.services.store_view.refresh())
    assert 'when olga\'s job "digits", which borrows it' in notebook.wake().json["message"]


def test_an_unborrowed_slice_returns_within_a_tick(notebook: Lent) -> None:
    notebook.idle()
    notebook.decide()
    assert notebook.state is NotebookState.LENT
    with notebook.world.stepping():
        assert notebook.wake(wait_s=30).json["state"] == "ready"


def test_the_slice_of_a_server_that_does_not_ask_first_is_not_lent(notebook: Lent) -> None:
    said = notebook.report

    def silent(who: str | None = "bob", **other: Any) -> Any:
        return said(who, **{"asks_first": False, **other})

    notebook.report = silent  # type: ignore[method-assign]
    notebook.idle()
    notebook.decide()
    assert notebook.state is NotebookState.BOOKED


def without_lending(notebook: Lent) -> None:
    """The next leader has a backend that lends no slices, such as that of a cluster."""
    notebook.world.controllers.enforcement_backend.lends_slices = False
    notebook.world.controllers.take_over()


def test_a_backend_that_lends_no_slices_still_stops_an_idle_server(notebook: Lent) -> None:
    notebook.world.apply(LENDS.replace("stop_server_after: 12h", "stop_server_after: 30m"))
    without_lending(notebook)
    notebook.idle()
    notebook.decide()
    assert notebook.state is NotebookState.BOOKED
    notebook.pass_(30)
    assert notebook.shown()["idle"]["state"] == "stopping"


def test_a_loan_ends_where_the_next_leader_has_a_backend_that_lends_no_slices(notebook: Lent) -> None:
    job = notebook.lend()
    without_lending(notebook)
    notebook.pass_(1)
    notebook.decide()
    notebook.leaves(job)
    assert (notebook.state, notebook.job(job)) == (NotebookState.BOOKED, JobState.PAUSED)


@pytest.mark.parametrize(
    "memory_mib", [pytest.param(300, id="that holds memory"), pytest.param(None, id="with unknown memory")]
)
def test_a_slice_with_a_process_is_not_lent(notebook: Lent, memory_mib: int | None) -> None:
    notebook.memory_mib = memory_mib
    notebook.pass_(30)
    notebook.decide()
    assert notebook.state is NotebookState.BOOKED


# --- the end of a loan ----------------------------------------------------------------------------------------------
def test_gpu_use_of_the_owner_from_a_terminal_ends_the_loan(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.percent, notebook.memory_mib = 40, 500
    notebook.pass_(0.5)
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING
    notebook.leaves(job)
    assert notebook.state is NotebookState.BOOKED
    assert notebook.shown()["idle"]["state"] == "in_use"


def test_gpu_memory_of_the_owner_ends_the_loan(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.memory_mib = 500
    notebook.pass_(0.5)
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING


def test_work_in_a_kernel_without_a_gpu_does_not_end_the_loan(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.kernels = [notebook.kernel("cpu", asks_gpu=False, state="busy")]
    for _ in range(10):
        notebook.used_at = notebook.now
        notebook.pass_(1)
        notebook.decide()
    assert (notebook.state, notebook.job(job)) == (NotebookState.LENT, JobState.RUNNING)
    shown = notebook.shown()["idle"]
    assert (shown["verdict"], shown["reason"]) == ("idle", "kernel_busy"), "idle is its GPU, and that is what is lent"


def test_the_loan_continues_when_the_owner_stops_waiting(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.pass_(20)
    notebook.decide()
    assert (notebook.state, notebook.job(job)) == (NotebookState.LENT, JobState.RUNNING)


@pytest.mark.parametrize(
    ("silent_s", "after"),
    [
        pytest.param(60, NotebookState.LENT, id="two missing reports do not end the loan"),
        pytest.param(240, NotebookState.BOOKED, id="a silent server gets its slice back"),
    ],
)
def test_a_silent_server(notebook: Lent, silent_s: int, after: NotebookState) -> None:
    notebook.idle()
    notebook.decide()
    for _ in range(silent_s // 10):
        notebook.now += 10 * SECOND
        notebook.read()
        notebook.decide()
    assert notebook.state is after


@pytest.mark.parametrize("asks_gpu", [False, True], ids=["a kernel without the GPU", "a suspended kernel"])
def test_a_loan_ends_once_the_use_was_unknown_for_longer_than_readings_may_be_missing(
    notebook: Lent, asks_gpu: bool
) -> None:
    notebook.kernels = [notebook.kernel("k1", asks_gpu=asks_gpu)]
    job = notebook.lend()
    notebook.pass_(1)
    known_at = notebook.now
    notebook.percent, notebook.memory_mib = None, None
    while notebook.job(job) is JobState.RUNNING:
        notebook.now += 10 * SECOND
        notebook.read()
        notebook.report()
        notebook.decide()
    assert 35 * SECOND < notebook.now - known_at < 50 * SECOND


def test_a_loan_without_figures_ends_in_time_after_the_clock_was_set_back(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.set_back(60 * MINUTE)
    notebook.percent, notebook.memory_mib = None, None
    notebook.pass_(2)
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING


def test_a_restart_of_the_service_does_not_end_the_loan(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.world.controllers.take_over()
    notebook.now += 10 * SECOND
    notebook.read()
    notebook.pass_(5)
    notebook.decide()
    assert (notebook.state, notebook.job(job)) == (NotebookState.LENT, JobState.RUNNING)
    for _ in range(20):
        notebook.now += 10 * SECOND
        notebook.read()
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING


def test_a_restarted_service_without_reports_ends_the_loan_in_time(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.world.controllers.take_over()
    for _ in range(9):
        notebook.now += 10 * SECOND
        notebook.read()
    notebook.decide()
    assert notebook.job(job) is JobState.RUNNING
    for _ in range(4):
        notebook.now += 10 * SECOND
        notebook.read()
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING


def test_a_restarted_service_ends_the_loan_at_once_when_the_owner_uses_the_device(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.world.controllers.take_over()
    notebook.memory_mib = 500
    notebook.pass_(0.5)
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING


def test_a_request_of_the_owner_survives_a_restart_of_the_service(notebook: Lent) -> None:
    job = notebook.lend()
    notebook.wake()
    notebook.world.controllers.take_over()
    notebook.pass_(0.5)
    notebook.decide()
    notebook.leaves(job)
    notebook.pass_(0.5)
    notebook.decide()
    assert notebook.state is NotebookState.BOOKED


def test_a_starting_borrower_is_stopped_for_the_owner(notebook: Lent) -> None:
    notebook.idle()
    job = notebook.world.submit("patty", project="speech", pool="build", gpu="1")["id"]
    notebook.decide()
    assert notebook.job(job) is JobState.STARTING
    notebook.wake()
    notebook.decide()
    assert notebook.job(job) is JobState.PAUSING
    notebook.leaves(job)
    assert notebook.wake().json["state"] == "ready"


def test_a_waiting_kernel_gets_the_reason_when_its_device_is_quarantined(notebook: Lent) -> None:
    notebook.lend()
    notebook.wake()
    home, other = (replace(build_devices()[0], simulated=False, id=f"build-{n}", index=n) for n in (0, 1))
    notebook.world.inventory((*train_devices(), replace(home, health=Health.QUARANTINED), other))
    notebook.world.run(notebook.world.services.store_view.refresh())
    assert "Its device is quarantined, so another one will be allocated." in notebook.wake().json["message"]


def test_a_kernel_waits_for_the_borrower_and_its_name_is_shown(notebook: Lent) -> None:
    """The killed borrower is still observed: no other work gets the device, and the reason is unchanged."""
    job = notebook.lend()
    notebook.wake()
    notebook.decide()
    notebook.now += 21 * SECOND
    notebook.set_aside(Health.QUARANTINED)
    assert "and no other device of pool build can be allocated" in notebook.wake().json["message"]
    gone = f"processes of {job}, attempt 1, were killed but still exist. It starts when they are gone."
    until(lambda: gone in notebook.wake().json["message"])  # why it waits is thought of again each second
    assert "another one is looked for" not in notebook.wake().json["message"]
    assert notebook.shown()["reason"]["code"] == "device_quarantined"
    explained = notebook.world.get(f"explain/{notebook.id}").json["reason"]["message"]
    assert gone.replace(job, job[-8:]) in explained
    notebook.decide()
    assert (notebook.state, notebook.job(job)) == (NotebookState.LENT, JobState.PAUSING), "no other job starts there"
    notebook.leaves(job)
    notebook.set_aside(Health.HEALTHY)
    notebook.decide()
    assert notebook.wake().json["state"] == "ready"


# --- a returned slice -----------------------------------------------------------------------------------------------
def released(notebook: Lent) -> None:
    notebook.idle()
    notebook.decide()
    notebook.pass_(26)
    notebook.decide()
    assert notebook.state is NotebookState.RETURNED


def test_after_release_after_a_kernel_requests_a_slice_like_a_new_notebook(notebook: Lent) -> None:
    released(notebook)
    assert notebook.wake().json["state"] == "waiting"
    notebook.decide()
    ready = notebook.wake().json
    assert ready["state"] == "ready" and ready["variables"]["CUDA_VISIBLE_DEVICES"] == "SIM-build-0"
    assert "notebook.ask_again" in notebook.audited() and notebook.state is NotebookState.BOOKED
    assert notebook.report().status == 200
    assert notebook.world.call("DELETE", f"notebooks/{notebook.id}", "hub").status == 204
    assert notebook.state is NotebookState.RETURNED


@pytest.mark.parametrize(
    ("changed", "reason", "words"),
    [
        pytest.param(LENDS.replace("[bob, olga]", "[olga]"), "no_such_project", "not a member", id="the project"),
        pytest.param(
            LENDS.replace("uses: [notebook, training]", "uses: [training]").replace(", build: {notebook: 0.5}", ""),
            "pool_not_for_this", "not for notebook", id="the pool",
        ),
    ],
)  # fmt: skip
def test_a_released_slice_is_requested_again_only_where_a_new_one_may_be(
    notebook: Lent, changed: str, reason: str, words: str
) -> None:
    released(notebook)
    notebook.world.apply(changed)
    refused = notebook.wake()
    assert (refused.status, refused.json["state"], refused.json["reason"]) == (200, "refused", reason)
    assert words in refused.json["message"]
    assert notebook.state is NotebookState.RETURNED
    notebook.world.apply(LENDS)
    assert notebook.wake().json["state"] == "waiting"


def test_a_released_slice_may_be_in_use_by_another_notebook(notebook: Lent) -> None:
    released(notebook)
    with notebook.world.stepping():
        for server in ("", "big"):
            asked = {"user": "olga", "project": "vision", "gpu": "1/4", "server": server}
            assert notebook.world.post("notebooks", "hub", asked).json["state"] == "booked"
    for _ in range(2):
        assert notebook.wake().json["state"] == "waiting"
        notebook.decide()
        assert notebook.state is NotebookState.REFUSED
    refused = notebook.world.get(f"notebooks/{notebook.id}").json
    assert "notebook quota" in refused["reason"]["message"]
    for item in notebook.world.get("notebooks", "hub").json["items"]:
        notebook.world.call("DELETE", f"notebooks/{item['id']}", "hub")
    notebook.wake()
    notebook.decide()
    assert notebook.wake().json["state"] == "ready"


def test_repeated_requests_of_a_server_are_audited_once(notebook: Lent) -> None:
    released(notebook)
    with notebook.world.stepping():
        for server in ("", "big"):
            asked = {"user": "olga", "project": "vision", "gpu": "1/4", "server": server}
            assert notebook.world.post("notebooks", "hub", asked).json["state"] == "booked"
    began = notebook.now
    for _ in range(30):
        assert notebook.wake().status == 200
        notebook.decide()
    more = (notebook.now - began) // (5 * SECOND)
    assert 10 <= notebook.audited().count("notebook.ask_again") <= 10 + more < 20
    found = notebook.wake().json
    assert (found["state"], "notebook quota" in found["message"]) == ("refused", True)
    notebook.now += 5 * SECOND
    assert notebook.wake().json["state"] == "waiting"


def test_a_release_during_a_request_is_answered_with_a_new_request(
    notebook: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice is released after the request saw it lent and before its wake is noted."""
    notebook.idle()
    notebook.decide()
    record = notebook.record
    services = notebook.world.services
    record_one = services.writer.record

    async def late(request: Any) -> Any:
        if isinstance(request, WakeNotebook) and not calls:
            calls.append(1)
            notebook.now += 3_600 * SECOND
            assert notebook.world.step()
            await services.store_view.refresh()
        return await record_one(request)

    calls = list[int]()
    monkeypatch.setattr(services.writer, "record", late)
    assert record.notebook.state is NotebookState.LENT
    assert notebook.wake().json["state"] == "waiting"
    assert notebook.state is NotebookState.REQUESTED


@pytest.mark.parametrize("when", ["lent", "released"])
def test_no_slice_is_requested_after_the_server_ended(notebook: Lent, when: str) -> None:
    released(notebook) if when == "released" else notebook.lend()
    assert notebook.world.call("DELETE", f"notebooks/{notebook.id}", "hub").status == 204
    refused = notebook.wake()
    assert (refused.status, refused.json["reason"]) == (409, "ended")
    assert notebook.state is NotebookState.RETURNED


RUNS = {"": {"name": "", "ready": True, "stopped": False}}


def after_retention(notebook: Lent, reconciler: Reconciliation) -> bool:
    """Two lists of the hub and retention, a month later. Returns whether the slice was removed."""
    notebook.now += 31 * 24 * 60 * MINUTE
    for _ in range(2):
        notebook.now += MINUTE
        notebook.world.controllers.turn(reconciler)
    notebook.world.store.forget(now=notebook.now, jobs_ended_before=notebook.now, samples_before=0)
    return notebook.world.store.notebook(notebook.id) is None


def test_a_released_slice_is_kept_while_its_server_runs(notebook: Lent) -> None:
    released(notebook)
    notebook.world.hub.users["bob"].servers = RUNS
    reconciler = notebook.world.controllers.factory.reconciliation()
    assert not after_retention(notebook, reconciler)
    assert notebook.wake().json["state"] == "waiting"
    notebook.decide()
    assert notebook.wake().json["state"] == "ready"


@pytest.mark.parametrize("is_known", [True, False], ids=["a user of the hub", "a user whose name was erased"])
def test_a_released_slice_whose_server_is_gone_ends_and_is_removed(notebook: Lent, is_known: bool) -> None:
    released(notebook)
    reconciler = notebook.world.controllers.factory.reconciliation()
    notebook.world.hub.users["bob"].servers = {}
    if not is_known:
        assert notebook.world.store.erase_name(notebook.record.notebook.user, actor="ann", now=notebook.now)
    assert after_retention(notebook, reconciler)
    assert notebook.audited()[-1] == "notebook.return"


def test_a_released_slice_that_was_requested_again_is_returned_once(notebook: Lent) -> None:
    """Its server ends after ended slices were read, and before they are read again."""
    released(notebook)
    notebook.world.hub.users["bob"].servers = RUNS
    reconciler = notebook.world.controllers.factory.reconciliation()
    notebook.world.controllers.turn(reconciler)
    notebook.wake()
    notebook.decide()
    notebook.world.hub.users["bob"].servers = {}
    for _ in range(4):
        notebook.now += MINUTE + 1
        notebook.world.controllers.turn(reconciler)
    assert notebook.state is NotebookState.RETURNED and notebook.audited().count("notebook.return") == 1


def test_the_newest_start_of_a_server_has_the_slice(notebook: Lent) -> None:
    released(notebook)
    with notebook.world.stepping():
        asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
        assert notebook.world.post("notebooks", "hub", asked).json["id"] != notebook.id
        assert notebook.wake().status == 409


def test_a_restarted_server_gets_its_lent_slice_back(notebook: Lent) -> None:
    job = notebook.lend()
    asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
    assert notebook.world.post("notebooks", "hub", asked).json["id"] == notebook.id
    notebook.pass_(0.5)
    notebook.decide()
    notebook.leaves(job)
    assert notebook.state is NotebookState.BOOKED


# --- permissions ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("who", "status"),
    [
        pytest.param("bob", 200, id="its owner"),
        pytest.param("olga", 403, id="another member"),
        pytest.param("lea", 403, id="the lead of the project"),
        pytest.param("patty", 404, id="a member of another project"),
    ],
)
def test_senders_that_may_request_a_slice(notebook: Lent, who: str, status: int) -> None:
    assert notebook.wake(who).status == status


def test_a_request_for_a_slice_in_use_is_answered_at_once(notebook: Lent) -> None:
    assert notebook.wake().json["state"] == "ready"
    assert notebook.record.idle_state["asked_at"] == NOW
    assert notebook.wake(wait_s=31).status == 400
