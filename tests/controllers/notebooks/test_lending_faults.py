"""Lent slices and faults, on a virtual clock, with the shipped controller, store and core."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.idle.state_document import to_document
from jupyter_gpu_quota.core.idle.state_machine import Freed, InUse
from jupyter_gpu_quota.core.model import JobState, NotebookState
from jupyter_gpu_quota.store.records.commands import (
    Recorded,
    RecordIdleState,
    Refusal,
    Request,
    RequestNotebook,
    RequestSliceAgain,
    ReturnNotebook,
)
from jupyter_gpu_quota.store.records.rows import NotebookRecord
from tests.backends.fake_executor import Script
from tests.controllers.setups.scheduling import World

LENDS = """
version: 1
pools:
  - {name: train, selector: {gpu_model: [Big]}, uses: [notebook, training]}
projects:
  - {name: vision, quota: {train: {notebook: 1}}, members: {users: [bob]}}
  - {name: speech, quota: {train: {training: 2}}, members: {users: [patty]}}
policy:
  idle: {mode: reclaim, release_after: 10m}
  preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s, max_pauses: 4, per: 24h}
"""
STUBBORN = Script(on_stop=None, lingers_ms=600_000)


class Lent(World):
    """Bob's notebook lent its slice; patty's job p4 borrows it, her others are on the other devices."""

    def __init__(self, borrower: Script = Script(), jobs: int = 4) -> None:  # noqa: B008 - a frozen value
        super().__init__(script=lambda order: borrower if order.job == "p4" else Script())
        self.apply_quota(LENDS)
        bob = self.users["bob"]
        self.ask(RequestNotebook(notebook="nb", user=bob, server="", project="vision", pool="train", gpu_milli=1000))
        self.turn(2)
        self.home = self.devices("nb")
        self.set_idle(idle=True)
        self.submit("patty", *[f"p{number}" for number in range(1, jobs + 1)])
        self.turn(3)
        assert self.notebook.notebook.state is NotebookState.LENT
        if jobs == 4:
            assert self.borrowers() == {"p4"} and self.devices("p4") == self.home

    def ask(self, request: Request) -> Recorded | Refusal:
        (outcome,) = self.store.record([request], now=self.now)
        return outcome

    def set_idle(self, *, idle: bool) -> None:
        """The notebook is idle without a process, or a kernel requests its slice, as the API records it."""
        stage = Freed(at=self.now, idle_since=self.now) if idle else InUse(asked_at=self.now)
        said = "idle" if idle else "busy"
        self.ask(RecordIdleState(notebook="nb", activity=said, seen_empty=idle, state=to_document(stage)))

    @property
    def notebook(self) -> NotebookRecord:
        found = self.store.notebook("nb")
        assert found is not None
        return found

    def devices(self, workload: str) -> set[str]:
        return {part.device for part in self.controller.mirror.allocations() if part.workload == workload}

    def borrowers(self) -> set[str]:
        return {name for name, record in self.controller.mirror.jobs.items() if record.job.borrower}

    def back_within(self, ticks: int) -> bool:
        for _ in range(ticks):
            if self.notebook.notebook.state is NotebookState.BOOKED:
                return True
            self.turn()
        return self.notebook.notebook.state is NotebookState.BOOKED


def test_the_slice_returns_within_lent_grace_and_two_ticks_after_the_borrower_ended() -> None:
    world = Lent(Script(stops_after_ms=4_000))
    world.set_idle(idle=False)
    assert world.back_within(5 + 2)
    assert world.devices("nb") == world.home and "p4" not in world.executor.running()


def test_a_borrower_that_ignores_sigterm_is_killed_in_time() -> None:
    world = Lent(Script(on_stop=None))
    world.set_idle(idle=False)
    assert world.back_within(5 + 2)


def test_the_device_of_a_borrower_that_cannot_be_killed_is_quarantined_and_the_owner_gets_another() -> None:
    world = Lent(STUBBORN)
    world.set_idle(idle=False)
    world.turn(3)
    world.executor.end("p1", 0, completed=True)
    world.submit("patty", "p5")
    assert world.back_within(60)
    assert world.devices("nb") and world.devices("nb").isdisjoint(world.home)
    assert world.state("p4") is JobState.PAUSING, "only this job has the device"


def test_a_controller_killed_between_loan_and_start_of_the_borrower_is_replaced() -> None:
    world = Lent(jobs=3)
    world.submit("patty", "p4")
    world.controller.leadership.resign()
    world.controller = world.another("second")
    world.turn(3)
    assert world.borrowers() == {"p4"}
    world.set_idle(idle=False)
    world.controller.leadership.resign()
    world.controller = world.another("third")
    assert world.back_within(5 + 2)


def test_an_owner_who_returns_while_the_borrower_starts_gets_the_slice_in_time() -> None:
    world = Lent(Script(starts_after_ms=2_000), jobs=3)
    world.submit("patty", "p4")
    world.turn()
    assert world.state("p4") is JobState.STARTING
    world.set_idle(idle=False)
    assert world.back_within(5 + 2)


def test_two_requests_of_the_owner_pause_the_borrower_once() -> None:
    world = Lent(Script(stops_after_ms=3_000))
    for _ in range(3):
        world.set_idle(idle=False)
        world.turn()
    assert world.back_within(5)
    record = world.store.job("p4")
    assert record is not None and record.pauses == 1


def test_a_borrower_continues_when_the_owners_server_dies() -> None:
    world = Lent()
    world.ask(ReturnNotebook(notebook="nb", actor="system:hub", why="it died"))
    world.turn(5)
    assert world.notebook.notebook.state is NotebookState.RETURNED
    assert world.state("p4") is JobState.RUNNING


@pytest.mark.parametrize("wakes_first", [True, False], ids=["a wake before the release", "a wake after it"])
def test_a_release_and_a_request_of_the_owner_at_the_same_time(wakes_first: bool) -> None:
    world = Lent()
    world.now += 600_000
    if wakes_first:
        world.set_idle(idle=False)
    world.turn()
    if not wakes_first:
        assert world.notebook.notebook.state is NotebookState.RETURNED
        assert isinstance(world.ask(RequestSliceAgain(notebook="nb", actor="bob")), Recorded)
        world.set_idle(idle=False)
    assert world.back_within(5 + 2)
    assert world.notebook.ended_at is None
    states = {row.kind for row in world.store.audit()[0] if row.subject == "nb"}
    assert ("notebook.ask_again" in states) is not wakes_first


def test_the_slice_returns_when_lending_is_turned_off() -> None:
    world = Lent()
    world.apply_quota(LENDS.replace("mode: reclaim", "mode: report"))
    assert world.back_within(5 + 2)
