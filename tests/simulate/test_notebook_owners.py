"""Notebooks of a simulated world whose cells run in bursts: freed, lent and woken by what is shipped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpu_quota.core.model import NotebookState
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.guarantee import GuaranteeWatch
from jupyter_gpu_quota.simulate.html_report import page
from jupyter_gpu_quota.simulate.notebook_owners import Wake
from jupyter_gpu_quota.simulate.replay import Replay
from jupyter_gpu_quota.simulate.report import Outcome, document, play
from jupyter_gpu_quota.store.records.protocol import Page
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
    every = [*replay.executor.runs, *replay.executor.under_way()]
    return [((run.began_at - begins) / 1000, (run.stopped_at - begins) / 1000) for run in every]


def told(replay: Replay) -> list[tuple[str, int]]:
    """What the audit tells of the notebook, as (kind, second)."""
    rows = replay.store.audit(page=Page(limit=10_000))[0]
    begins = replay.trace.begins_at
    return [(row.kind, (row.at - begins) // 1000) for row in reversed(rows) if row.subject == "n1"]


def seconds(replay: Replay, wake: Wake) -> tuple[float, float | None]:
    begins = replay.trace.begins_at
    return (wake.asked_at - begins) / 1000, None if wake.had_at is None else (wake.had_at - begins) / 1000


def test_a_slice_is_lent_once_it_is_unused_and_its_owner_was_warned() -> None:
    replay = replayed(idle_notebook(), borrower())
    assert [begin for begin, _ in runs(replay)] == [pytest.approx(LENT_AT, abs=2)]
    assert replay.owners.freed == replay.owners.loans == 1


def test_the_owner_comes_back_and_has_the_gpu_within_the_grace_of_borrowers_and_two_ticks() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    [wake] = replay.owners.wakes
    asked, had = seconds(replay, wake)
    assert asked == 60 * MINUTE and had is not None and SAVES_S <= had - asked <= GRACE_S + 2
    assert not wake.released
    assert runs(replay)[0][1] == pytest.approx(60 * MINUTE, abs=1), "the borrower is asked to leave at once"


def test_the_burst_of_who_woke_begins_when_the_slice_is_back_and_lasts_as_long() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    [(begin, end)] = replay.owners.used("n1", replay.clock.now)
    [wake] = replay.owners.wakes
    assert (begin, end - begin) == (wake.had_at, MINUTE * 1000)


def test_the_slice_is_lent_again_after_the_next_quiet_time() -> None:
    replay = replayed(idle_notebook((60, 61)), borrower())
    second = runs(replay)[1]
    assert second[0] == pytest.approx(61 * MINUTE + SAVES_S + LENT_AT, abs=4)
    assert replay.owners.loans == 2


def test_cells_that_run_often_enough_keep_the_gpu() -> None:
    replay = replayed(idle_notebook(*((at, at + 1) for at in range(0, 530, 15))), borrower())
    assert runs(replay) == [] and replay.owners.loans == replay.owners.freed == 0


def test_a_cell_that_runs_during_the_countdown_stops_it() -> None:
    replay = replayed(idle_notebook((23, 24)), borrower(), until_h=0.7)
    assert runs(replay) == [] and replay.owners.freed == 0


def test_while_nobody_waits_a_notebook_is_left_alone_for_longer() -> None:
    replay = replayed(idle_notebook(), until_h=2)
    assert replay.owners.freed == 0
    assert replayed(idle_notebook(), until_h=2.2).owners.freed == 1


def test_who_begins_to_wait_makes_it_idle_by_the_shorter_time() -> None:
    replay = replayed(idle_notebook(), borrower(submit_s=40 * MINUTE))
    assert runs(replay)[0][0] == pytest.approx(45 * MINUTE, abs=3), "quiet for long enough, the warning alone is left"


def test_a_slice_that_was_lent_for_long_goes_back_and_is_asked_for_again() -> None:
    replay = replayed(idle_notebook((200, 201)), borrower())
    [wake] = replay.owners.wakes
    asked, had = seconds(replay, wake)
    assert (asked, wake.released) == (200 * MINUTE, True)
    assert had is not None and had - asked <= GRACE_S + 2
    kinds = [kind for kind, _ in told(replay)]
    assert kinds.index("release") < kinds.index("notebook.ask_again") < len(kinds) - 1


def test_a_notebook_of_which_no_bursts_are_known_is_never_idle() -> None:
    replay = replayed(notebook("n1", 0, 9 * HOUR, gpu=1), borrower())
    assert runs(replay) == [] and replay.owners.loans == 0


def test_in_mode_report_nothing_is_freed_or_lent() -> None:
    replay = replayed(idle_notebook(), borrower(), text=QUOTA.replace("reclaim", "report"))
    assert runs(replay) == [] and replay.owners.freed == replay.owners.loans == 0


def test_a_lent_notebook_that_is_closed_ends_for_good() -> None:
    replay = replayed(idle_notebook((1, 2), hours=0.9), borrower(duration_s=HOUR))
    book = replay.store.notebook("n1")
    assert book is not None and book.notebook.state is NotebookState.RETURNED
    assert replay.owners.wakes == [] and runs(replay)[0][1] - runs(replay)[0][0] == HOUR


def outcome(*bursts: tuple[float, float]) -> Outcome:
    return play(trace(idle_notebook(*bursts), borrower(), nodes=NODES), quota(QUOTA), until_ms=8 * HOUR * 1000)


def test_the_report_tells_what_was_lent_and_how_long_who_woke_waited() -> None:
    found = outcome((60, 61))
    told = document([found])
    assert (told["slices_lent"], told["kernels_shut_down"], told["guarantee_violations"]) == (2, 2, 0)
    waits = told["woken_wait_s"]
    assert isinstance(waits, dict) and waits["p50"] == waits["max"] and 0 < waits["max"] <= GRACE_S + 2
    lent_h = (35 * MINUTE + SAVES_S + 120 * MINUTE) / HOUR
    assert told["gpu_hours_lent"] == pytest.approx(lent_h, abs=0.01), "until its owner woke, then until it was released"


def test_the_page_shows_what_was_lent_and_says_nothing_of_it_where_nothing_was() -> None:
    told, silent = (page(document([found])) for found in (outcome((60, 61)), outcome(*NEVER_IDLE)))
    for words in ("lent by notebooks", "woken notebook", "idle kernels shut down"):
        assert words in told and words not in silent


def test_a_notebook_is_counted_as_computing_during_its_bursts_alone() -> None:
    work = idle_notebook((10, 40), (100, 130), hours=4)
    found = document([play(trace(work, nodes=NODES), quota(QUOTA), until_ms=4 * HOUR * 1000)])
    assert found["gpu_utilisation_percent"] == 25.0


class _Seen:
    """Keeps what a watcher is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Changes, int]] = []

    def see(self, changes: Changes, now: int) -> None:
        self.told.append((changes, now))


@pytest.mark.parametrize(
    ("late_ms", "broken"),
    [
        pytest.param(GRACE_S * 1000, 0, id="as late as borrowers may be is no broken promise"),
        pytest.param(GRACE_S * 1000 + 60_000, 1, id="a minute later is one"),
    ],
)
def test_a_slice_that_comes_back_to_who_woke(late_ms: int, broken: int) -> None:
    seen, world = _Seen(), trace(idle_notebook((60, 61)), borrower(), nodes=NODES)
    replay = Replay(world, quota(QUOTA), watchers=[seen])
    replay.run(until=world.begins_at + 2 * HOUR * 1000)
    [wake] = replay.owners.wakes
    watch = GuaranteeWatch(quota(QUOTA).policy(1), 1000)
    for changes, now in seen.told:
        watch.see(changes, now if now < (wake.had_at or 0) else max(now, wake.asked_at + late_ms))
    assert len(watch.violations) == broken


@pytest.mark.parametrize(
    ("bursts", "told"),
    [
        pytest.param([[5, 5]], "the burst [5, 5] ends before it begins", id="one that takes no time"),
        pytest.param([[0, 9], [8, 10]], "the burst [8, 10] begins before the one before it ends", id="two at once"),
        pytest.param([[0, 61]], "ends after the notebook was closed, at 60 s", id="one that lasts too long"),
        pytest.param([[0, 1, 2]], "work.0.bursts_s.0: it has more than 2 parts", id="one of three instants"),
    ],
)
def test_bursts_are_refused_where_they_are_wrong(bursts: list[list[float]], told: str) -> None:
    found = tracefile.read(json.dumps({"work": [notebook("n1", 0, 60, bursts_s=bursts)]}))
    assert isinstance(found, list) and told in found[0] and found[0].startswith("work.0")
