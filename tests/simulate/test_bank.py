"""The generated bank, small: 40 users on 4 GPUs for a day, with one GPU each, and with slices and a queue.

Idle slices are lent, or not.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest

from jupyter_gpu_quota.simulate import bank, worlds
from jupyter_gpu_quota.simulate.bank import VARIANTS, smaller
from jupyter_gpu_quota.simulate.report import Outcome, figures, simulate_trace, utilisation_percent

DAY_MS = 86_400_000
SMALL = {name: smaller(variant, people=40, gpus=4, days=1) for name, variant in VARIANTS.items()}


@cache
def baseline(name: str) -> Outcome:
    trace = bank.baseline_trace(SMALL[name], seed=1)
    return simulate_trace(trace, worlds.own_quota(trace), until_ms=2 * DAY_MS)


@cache
def ours(name: str, lending: bool) -> Outcome:
    trace = bank.day_trace(SMALL[name], seed=1, lending=lending)
    return simulate_trace(trace, worlds.own_quota(trace), until_ms=2 * DAY_MS)


@pytest.mark.parametrize("lending", [False, True])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_notebook_starts_within_its_bound_and_every_training_is_done(name: str, lending: bool) -> None:
    after = ours(name, lending)
    waits = [
        book.allocated_at - book.asked_at for book in after.record.notebooks.values() if book.allocated_at is not None
    ]
    assert len(waits) == len(after.record.notebooks) > 10, "within the quota, no notebook is refused"
    assert max(waits) <= 10_000 + 2 * 1000
    found = figures([after])
    assert found["jobs_finished"] == found["jobs_total"] and found["guarantee_violations"] == 0


@pytest.mark.parametrize("name", list(VARIANTS))
def test_a_lent_slice_is_returned_to_its_user_within_the_same_bound(name: str) -> None:
    after = ours(name, True)
    waits = [wake.allocated_at - wake.asked_at for wake in after.wakes if wake.allocated_at is not None]
    assert len(waits) == len(after.wakes) > 10 and max(waits) <= 10_000 + 2 * 1000
    assert after.slices_lent >= len(waits) and ours(name, False).slices_lent == 0


@pytest.mark.parametrize("name", list(VARIANTS))
def test_gpus_are_used_several_times_as_much_as_with_one_gpu_each(name: str) -> None:
    before, after = baseline(name), ours(name, False)
    assert (utilisation_percent(after) or 0) > 2 * (utilisation_percent(before) or 0) > 0


def test_equal_seeds_give_equal_days_and_others_do_not() -> None:
    usual = SMALL["usual"]
    assert bank.day_trace(usual, seed=7) == bank.day_trace(usual, seed=7) != bank.day_trace(usual, seed=8)
    assert bank.sessions(SMALL["deadline"], 7) != bank.sessions(usual, 7)


def test_both_worlds_have_the_same_users_and_work() -> None:
    usual = SMALL["usual"]
    sessions = bank.sessions(usual, 3)
    ours, baseline = bank.day_trace(usual, seed=3), bank.baseline_trace(usual, seed=3)
    assert {work.id for work in baseline.work} == {session.id for session in sessions}
    assert len(ours.work) == len(sessions) + sum(len(session.work) for session in sessions)
    for session in sessions:
        inside = bank.training_in_notebook(session)
        assert inside.keys() == {str(work.id) for work in session.work}
        assert all(end - begin >= work.duration_ms for work in session.work for begin, end in [inside[str(work.id)]])


def test_cells_run_at_the_configured_rate_while_their_user_is_present() -> None:
    sessions = bank.sessions(VARIANTS["usual"], 3)
    counted = open_ms = 0
    for session in sessions:
        spans = bank.bursts(session, random.Random(session.id))
        hours = [(begin - session.opens_at, end - session.opens_at) for begin, end in session.present]
        counted += len(spans)
        open_ms += sum(end - begin for begin, end in hours)
        assert all(end - begin == 600_000 for begin, end in spans), "30 s of a GPU on a twentieth of one"
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(begin >= hours[0][0] and begin < session.closes_at - session.opens_at for begin, _ in spans)
    assert counted / (open_ms / 3_600_000) == pytest.approx(bank.parameters()["notebook"]["bursts_per_h"], rel=0.05)


def test_lending_changes_neither_users_nor_work() -> None:
    plain, lent = (bank.day_trace(SMALL["usual"], seed=3, lending=lending) for lending in (False, True))
    assert plain.work == lent.work and plain.quotas != lent.quotas


def test_every_parameter_of_the_work_has_its_place() -> None:
    keys = {"per_person_day", "gpu", "median_s", "mean_s", "use_percent", "checkpoint_every_s", "saves_in_s", "when"}
    for row in bank.parameters()["work"].values():
        assert keys <= row.keys() <= keys | {"trials"}
        assert row["mean_s"] > row["median_s"] > 0
