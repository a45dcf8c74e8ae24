"""Simulated notebooks whose cells run in bursts: freed, lent and returned by the shipped controllers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpu_quota.core.model import NotebookState
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.guarantee import GuaranteeMonitor
from jupyter_gpu_quota.simulate.html_report import page
from jupyter_gpu_quota.simulate.notebook_servers import Wake
from jupyter_gpu_quota.simulate.replay import Replay
from jupyter_gpu_quota.simulate.report import Outcome, document, simulate_trace
from jupyter_gpu_quota.store.records.calls import Page
from jupyter_gpu_quota.store.records.rows import Changes
from tests.simulate.worlds import job, notebook, quota, trace

MINUTE, HOUR = 60, 3600
SAVES_S, GRACE_S = 2, 5
NODES = [{"name": "one", "gpus": 1}]
QUOTA = """
version: 1
pools: [{name: all}]
projects:
  - {name: vision, quota: {all: {notebook: 1}}}
  - {name: speech, quota: {all: {training: 0}}}
policy:
  preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s}
  idle: {mode: reclaim, gpu_idle_after: 20m, kernel_idle_after: 20m, when_nobody_waits: 2h, warn_for: 5m}
"""
NEVER_IDLE = [(at, at + 1) for at in range(0, 530, 15)]
LENT_AT = 25 * MINUTE
"""Twenty minutes without use, and five of warning."""


def idle_notebook(*bursts: tuple[float, float], hours: float = 9) -> dict[str, Any]:
    """The only GPU is a notebook's, whose cells use it in these minutes."""
    spans = [[begin * MINUTE, end * MINUTE] for begin, end in bursts]
    return notebook("n1", 0, hours * HOUR, gpu=1, use_percent=100, bursts_s=spans)


def borrower(submit_s: float = 1, duration_s: float = 24 * HOUR, **more: Any) -> dict[str, Any]:
    return job("b1", submit_s, duration_s, "speech", saves_in_s=SAVES_S, **more)


def replayed(*work: dict[str, Any], text: str = QUOTA, until_h: float = 8) -> Replay:
    replay = Replay(trace(*work, nodes=NODES), quota(text))
    replay.run(until=replay.trace.begins_at + round(until_h * HOUR * 1000))
    return replay


def runs(replay: Replay) -> list[tuple[float, float]]:
    """When the job ran, in seconds, what is under way included."""
    begins = replay.trace.begins_at
    every = [*replay.executor.runs, *replay.executor.unfinished_runs()]
    return [((run.began_at - begins) / 1000, (run.stopped_at - begins) / 1000) for run in every]


def events_of(replay: Replay) -> list[tuple[str, int]]:
    """What the audit tells of the notebook, as (kind, second)."""
    rows = replay.store.audit(page=Page(limit=10_000))[0]
    begins = replay.trace.begins_at
    return [(row.kind, (row.at - begins) // 1000) for row in reversed(rows) if row.subject == "n1"]


def seconds(replay: Replay, wake: Wake) -> tuple[float, float | None]:
    begins = replay.trace.begins_at
    return (wake.asked_at - begins) / 1000, None if wake.allocated_at is None else (wake.allocated_at - begins) / 1000


def test_a_slice_is_lent_once_it_is_unused_and_its_user_was_warned() -> None:
    replay = replayed(idle_notebook(), borrower())
    assert [begin for begin, _ in runs(replay)] == [pytest.approx(LENT_AT, abs=2)]
    assert replay.servers.freed == replay.servers.slices_lent == 1


def test_a_user_who_returns_has_the_gpu_within_the_grace_of_borrowers_and_two_ticks() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    [wake] = replay.servers.wakes
    asked, had = seconds(replay, wake)
    assert asked == 60 * MINUTE and had is not None and SAVES_S <= had - asked <= GRACE_S + 2
    assert not wake.released
    assert runs(replay)[0][1] == pytest.approx(60 * MINUTE, abs=1), "the borrower is paused at once"


def test_a_burst_on_a_lent_slice_is_delayed_and_keeps_its_length() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    [(begin, end)] = replay.servers.used(replay.clock.now)["n1"]
    [wake] = replay.servers.wakes
    assert (begin, end - begin) == (wake.allocated_at, MINUTE * 1000)


def test_the_slice_is_lent_again_after_the_next_quiet_time() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    second = runs(replay)[1]
    assert second[0] == pytest.approx(61 * MINUTE + SAVES_S + LENT_AT, abs=4)
    assert replay.servers.slices_lent == 2


def test_cells_that_run_often_enough_keep_the_gpu() -> None:
    replay = replayed(idle_notebook(*((at, at + 1) for at in range(0, 530, 15))), borrower())
    assert runs(replay) == [] and replay.servers.slices_lent == replay.servers.freed == 0


def test_a_cell_that_runs_during_the_countdown_stops_it() -> None:
    replay = replayed(idle_notebook((23, 24)), borrower(), until_h=0.7)
    assert runs(replay) == [] and replay.servers.freed == 0


def test_while_no_work_waits_a_notebook_becomes_idle_later() -> None:
    replay = replayed(idle_notebook(), until_h=2)
    assert replay.servers.freed == 0
    assert replayed(idle_notebook(), until_h=2.2).servers.freed == 1


def test_work_that_begins_to_wait_makes_a_notebook_idle_by_the_shorter_time() -> None:
    replay = replayed(idle_notebook(), borrower(submit_s=40 * MINUTE))
    assert runs(replay)[0][0] == pytest.approx(45 * MINUTE, abs=3), "quiet for long enough, the warning alone is left"


def test_a_slice_that_was_lent_for_long_is_released_and_requested_again() -> None:
    replay = replayed(idle_notebook((200, 201)), borrower())
    [wake] = replay.servers.wakes
    asked, had = seconds(replay, wake)
    assert (asked, wake.released) == (200 * MINUTE, True)
    assert had is not None and had - asked <= GRACE_S + 2
    kinds = [kind for kind, _ in events_of(replay)]
    assert kinds.index("release") < kinds.index("notebook.ask_again") < len(kinds) - 1


def test_a_notebook_without_bursts_is_never_idle() -> None:
    replay = replayed(notebook("n1", 0, 9 * HOUR, gpu=1), borrower())
    assert runs(replay) == [] and replay.servers.slices_lent == 0


def test_in_mode_report_nothing_is_freed_or_lent() -> None:
    replay = replayed(idle_notebook(), borrower(), text=QUOTA.replace("reclaim", "report"))
    assert runs(replay) == [] and replay.servers.freed == replay.servers.slices_lent == 0


def test_a_lent_notebook_that_is_closed_ends_for_good() -> None:
    replay = replayed(idle_notebook((1, 2), hours=0.9), borrower(duration_s=HOUR))
    book = replay.store.notebook("n1")
    assert book is not None and book.notebook.state is NotebookState.RETURNED
    assert replay.servers.wakes == [] and runs(replay)[0][1] - runs(replay)[0][0] == HOUR


def outcome(*bursts: tuple[float, float]) -> Outcome:
    return simulate_trace(
        trace(idle_notebook(*bursts), borrower(), nodes=NODES), quota(QUOTA), until_ms=8 * HOUR * 1000
    )


def test_the_report_shows_the_lent_slices_and_the_waits_of_users_who_returned() -> None:
    found = outcome((60, 61))
    report = document([found])
    assert (report["slices_lent"], report["kernels_shut_down"], report["guarantee_violations"]) == (2, 2, 0)
    waits = report["woken_wait_s"]
    assert isinstance(waits, dict) and waits["p50"] == waits["max"] and 0 < waits["max"] <= GRACE_S + 2
    lent_h = (35 * MINUTE + SAVES_S + 120 * MINUTE) / HOUR
    assert report["gpu_hours_lent"] == pytest.approx(lent_h, abs=0.01), (
        "until its owner woke, then until it was released"
    )


def test_the_page_shows_lending_only_where_slices_were_lent() -> None:
    lending, silent = (page(document([found])) for found in (outcome((60, 61)), outcome(*NEVER_IDLE)))
    for words in ("lent by notebooks", "woken notebook", "idle kernels shut down"):
        assert words in lending and words not in silent


def test_a_notebook_computes_only_during_its_bursts() -> None:
    work = idle_notebook((10, 40), (100, 130), hours=4)
    found = document([simulate_trace(trace(work, nodes=NODES), quota(QUOTA), until_ms=4 * HOUR * 1000)])
    assert found["gpu_utilisation_percent"] == 25.0


class _Seen:
    """Keeps the arguments of a watcher."""

    def __init__(self) -> None:
        self.calls: list[tuple[Changes, int]] = []

    def observe(self, changes: Changes, now: int) -> None:
        self.calls.append((changes, now))


@pytest.mark.parametrize(
    ("late_ms", "broken"),
    [
        pytest.param(GRACE_S * 1000, 0, id="the bound of borrowers is no violation"),
        pytest.param(GRACE_S * 1000 + 60_000, 1, id="a minute later is a violation"),
    ],
)
def test_a_lent_slice_is_returned_within_the_grace_of_borrowers(late_ms: int, broken: int) -> None:
    seen, world = _Seen(), trace(idle_notebook((60, 61)), borrower(), nodes=NODES)
    replay = Replay(world, quota(QUOTA), observers=[seen])
    replay.run(until=world.begins_at + 2 * HOUR * 1000)
    [wake] = replay.servers.wakes
    watch = GuaranteeMonitor(quota(QUOTA).policy(1), 1000)
    for changes, now in seen.calls:
        watch.observe(changes, now if now < (wake.allocated_at or 0) else max(now, wake.asked_at + late_ms))
    assert len(watch.violations) == broken


@pytest.mark.parametrize(
    ("bursts", "expected"),
    [
        pytest.param([[5, 5]], "the burst [5, 5] ends before it begins", id="one that takes no time"),
        pytest.param([[0, 9], [8, 10]], "the burst [8, 10] begins before the one before it ends", id="two at once"),
        pytest.param([[0, 61]], "ends after the notebook was closed, at 60 s", id="one that lasts too long"),
        pytest.param([[0, 1, 2]], "work.0.bursts_s.0: it has more than 2 parts", id="one of three instants"),
    ],
)
def test_invalid_bursts_are_refused(bursts: list[list[float]], expected: str) -> None:
    found = tracefile.read(json.dumps({"work": [notebook("n1", 0, 60, bursts_s=bursts)]}))
    assert isinstance(found, list) and expected in found[0] and found[0].startswith("work.0")


def test_a_server_stopped_as_idle_starts_again_with_a_new_slice() -> None:
    text = QUOTA.replace("warn_for: 5m", "warn_for: 5m, stop_server_after: 3h")
    replay = replayed(idle_notebook((1, 2), (5 * 60, 5 * 60 + 1), hours=6), text=text, until_h=7)
    stopped, again = replay.store.notebook("n1"), replay.store.notebook("n1+2")
    assert stopped is not None and again is not None and stopped.server == again.server == "n1"
    begins = replay.trace.begins_at
    assert (stopped.ended_at or 0) - begins == pytest.approx((3 * 60 + 2) * MINUTE * 1000, abs=3_000)
    burst_at = begins + 5 * HOUR * 1000
    assert replay.servers.used(replay.clock.now)["n1+2"] == [(burst_at, burst_at + MINUTE * 1000)]
    assert again.ended_at == begins + 6 * HOUR * 1000


def test_a_notebook_that_is_quiet_when_work_begins_to_wait_is_idle_after_the_shorter_time() -> None:
    replay = replayed(idle_notebook(), borrower(submit_s=10 * MINUTE))
    assert runs(replay)[0][0] == pytest.approx(LENT_AT, abs=2)


@pytest.mark.parametrize("broken", ["classify", "transition", "may_stay_lent"])
def test_an_idleness_controller_that_raises_fails_the_simulation(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    class Broken(Exception):
        pass

    def fails(*given: object, **named: object) -> object:
        raise Broken

    monkeypatch.setattr(f"jupyter_gpu_quota.controllers.idleness.{broken}", fails)
    with pytest.raises(Broken):
        replayed(idle_notebook((60, 61)), borrower())


def test_without_classifications_no_slice_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.controllers.idleness.Idleness.classify_due", lambda self, booked, now: None)
    replay = replayed(idle_notebook(), borrower())
    assert runs(replay) == [] and replay.servers.freed == replay.servers.slices_lent == 0
