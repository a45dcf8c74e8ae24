"""With ``suspend`` in the policy: the orders to the server for each kernel, and the messages to its user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from jupyter_gpu_quota.quotafile import parse
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.activity import KeepNotes
from jupyter_gpu_quota.store.records.idle_state import IdleState
from tests.api.world import QUOTA, build_devices, service_world, train_devices
from tests.controllers.setups.notebook import IDLE, SECOND, Watched

SPACE, STARTED, TICKS = "pid:[1]", 5_000, 10_000_000
ONE = ProcessUse(handle="9007", memory_mib=640, percent=0, places=((SPACE, 7, STARTED),))
TWO = ProcessUse(handle="9009", memory_mib=320, percent=0, places=((SPACE, 9, STARTED),))
WORKER = ProcessUse(handle="9008", memory_mib=64, percent=0, places=((SPACE, 8, 6_000), (SPACE, 7, STARTED)))


class Suspending(Watched):
    """A notebook whose processes on the device are known, and whose server reports whether it can suspend."""

    processes: tuple[ProcessUse, ...] | None = (ONE,)
    says: dict[str, Any] = {"suspension": "ready"}
    others: tuple[dict[str, Any], ...] = ()

    def send(self, who: str | None = "bob", **other: Any) -> Any:
        self.kernels = [self.kernel("k1", started=STARTED, suspended=bool(self.says.get("suspended"))), *self.others]
        said = {name: value for name, value in self.says.items() if name != "suspended"}
        return super().send(who, **{"namespace": SPACE, "ticks": TICKS, **said, **other})

    def read(self) -> None:
        held = None if self.processes is None else sum(process.memory_mib or 0 for process in self.processes)
        row = DeviceSample(
            node="node-1", device="build-0", at=self.now, utilisation_percent=0, memory_used_mib=held,
            coverage_permille=1000, simulated=False, workloads={self.id: self.percent},
            workload_memory_mib={self.id: held},
            processes={} if self.processes is None else {self.id: self.processes},
        )  # fmt: skip
        self.samples += 1
        self.world.store.add_samples("node-1", self.samples, [row], now=self.now)
        self.run_controller()


def notebook_of(folder: Path, policy: str) -> Iterator[Suspending]:
    with service_world(folder, store=MemoryStore()) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(QUOTA + policy, real)
        yield Suspending(world)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Suspending]:
    yield from notebook_of(tmp_path, IDLE.replace("MODE", "reclaim, suspend: true"))


@pytest.fixture
def ordinary(tmp_path: Path) -> Iterator[Suspending]:
    yield from notebook_of(tmp_path, IDLE.replace("MODE", "reclaim"))


def until_freeing(notebook: Suspending) -> Any:
    """The answer with the order to free the GPU."""
    for _ in range(80):
        answer = notebook.pass_(0.5)
        if answer["free"] is not None:
            return answer
    raise AssertionError("it was never freed")


def until_warned(notebook: Suspending) -> Any:
    """The answer shortly before the end of the countdown."""
    for _ in range(600):
        answer = step(notebook)
        if answer["idle"]["state"] == "warned" and answer["idle"]["free_in_ms"] <= 10 * SECOND:
            return answer
    raise AssertionError("there was no warning")


def step(notebook: Suspending) -> Any:
    """A reading, and the answer to a report after it."""
    notebook.now += 10 * SECOND
    notebook.read()
    return notebook.report().json


def reports_between_commits(notebook: Suspending, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers to the reports between each decision of the controller and its note."""
    answers, note = list[Any](), notebook.idleness._note

    def report_and_note(states: list[IdleState], now: int) -> None:
        notebook.world.run(notebook.world.services.store_view.refresh())
        answers.append(notebook.send().json)
        note(states, now)

    monkeypatch.setattr(notebook.idleness, "_note", report_and_note)
    return answers


def test_a_server_is_ordered_to_run_its_self_test(notebook: Suspending) -> None:
    assert notebook.report().json["suspend"] is True


def test_without_the_policy_kernels_are_shut_down_without_a_request(ordinary: Suspending) -> None:
    assert ordinary.report().json["suspend"] is False
    answer = until_freeing(ordinary)
    assert answer["free"]["kernels"] == ["k1"] and answer["free"]["suspend"] == {}


def test_a_kernel_alone_on_its_device_is_suspended_with_its_memory(notebook: Suspending) -> None:
    answer = until_freeing(notebook)
    assert answer["free"]["kernels"] == ["k1"] and answer["free"]["suspend"] == {"k1": 640}
    assert "being suspended" in answer["idle"]["message"]


def test_a_kernel_with_workers_on_the_device_is_shut_down(notebook: Suspending) -> None:
    notebook.processes = (ONE, WORKER)
    assert until_freeing(notebook)["free"]["suspend"] == {}


def test_a_report_before_the_note_of_a_decision_frees_no_kernel(
    notebook: Suspending, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_warned(notebook)
    between = reports_between_commits(notebook, monkeypatch)
    answer = step(notebook)
    assert (between[0]["idle"]["state"], between[0]["free"]) == ("freeing", None)
    assert between[0]["report_in_ms"] == SECOND
    assert answer["free"]["suspend"] == {"k1": 640}


def test_a_kernel_that_holds_the_gpu_too_is_freed_after_its_note(
    notebook: Suspending, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.others = (notebook.kernel("k2", pid=9, started=STARTED),)
    until_warned(notebook)
    assert step(notebook)["free"]["suspend"] == {"k1": 640}
    between = reports_between_commits(notebook, monkeypatch)
    notebook.processes = (ONE, TWO)
    answer = step(notebook)
    assert (between[0]["idle"]["kernels"], between[0]["free"]) == (["k1", "k2"], None)
    assert answer["free"]["suspend"] == {"k1": 640, "k2": 320}


HIDDEN = ProcessUse(handle="9007", memory_mib=640, percent=0)


@pytest.mark.parametrize(
    ("processes", "percent"),
    [
        pytest.param(None, None, id="the processes were not read"),
        pytest.param((HIDDEN,), 0, id="the owner of a process was not read"),
    ],
)
def test_a_kernel_waits_for_a_reading_with_its_process(
    notebook: Suspending, processes: tuple[ProcessUse, ...] | None, percent: int | None
) -> None:
    until_warned(notebook)
    notebook.processes, notebook.percent = processes, percent
    for _ in range(2):
        answer = step(notebook)
        assert (answer["idle"]["state"], answer["free"]) == ("freeing", None)
    notebook.processes, notebook.percent = (ONE,), 0
    assert step(notebook)["free"]["suspend"] == {"k1": 640}
    notebook.processes, notebook.percent = processes, percent
    assert step(notebook)["free"] is None


def test_a_kernel_whose_process_is_not_known_for_long_is_shut_down(notebook: Suspending) -> None:
    until_warned(notebook)
    notebook.processes = None
    orders = [step(notebook)["free"] for _ in range(5)]
    assert orders[:4] == [None] * 4 and orders[4]["suspend"] == {}


def test_without_a_note_no_kernel_is_freed(notebook: Suspending) -> None:
    until_freeing(notebook)
    notebook.world.store.record([KeepNotes(over=(("idle", notebook.id),))], now=notebook.now)
    notebook.world.services.store_view.idle = {}
    answer = notebook.send().json
    assert (answer["idle"]["state"], answer["free"]) == ("freeing", None)


def test_a_suspended_kernel_frees_its_slice_and_its_user_is_notified(
    notebook: Suspending,
) -> None:
    until_freeing(notebook)
    notebook.processes, notebook.says = (), {"suspension": "ready", "suspended": True}
    answer = notebook.pass_(1)
    assert (answer["idle"]["state"], answer["free"]) == ("freed", None)
    assert "Suspended kernels: 1" in answer["idle"]["message"]
    assert notebook.idleness.states[notebook.id].lendable
    wake = notebook.world.post(f"notebooks/{notebook.id}/actions/wake", "bob", {"kernel": "k1"}).json
    assert wake["state"] == "ready" and notebook.shown()["idle"]["state"] == "in_use"


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        pytest.param({"suspension": "ready"}, "their variables are kept", id="suspension is ready"),
        pytest.param(
            {"suspension": "unavailable", "suspension_why": "the driver is older than 570"},
            "their variables are lost: they cannot be suspended (the driver is older than 570)",
            id="suspension failed",
        ),
        pytest.param({}, "they cannot be suspended (its server has not tested suspension)", id="not tested"),
        pytest.param({"suspension": "testing"}, "its server is testing", id="the test is in progress"),
    ],
)
def test_a_warning_names_the_consequence_for_variables(
    notebook: Suspending, says: dict[str, Any], expected: str
) -> None:
    notebook.says = says
    for _ in range(60):
        answer = notebook.pass_(0.5)
        if answer["idle"]["state"] == "warned":
            break
    assert expected in answer["idle"]["message"] and answer["idle"]["state"] == "warned"


def test_only_booleans_are_accepted() -> None:
    errors = parse(QUOTA + IDLE.replace("MODE", 'reclaim, suspend: "yes"'))
    assert isinstance(errors, list) and "suspend" in str(errors[0])
