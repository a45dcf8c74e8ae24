"""The generated bank, small: 40 people on 4 GPUs for a day, with one GPU each and with slices and a queue."""

from __future__ import annotations

from functools import cache

import pytest

from jupyter_gpu_quota.simulate import bank, worlds
from jupyter_gpu_quota.simulate.bank import VARIANTS, smaller
from jupyter_gpu_quota.simulate.report import Outcome, figures, play, utilisation_percent

DAY_MS = 86_400_000
SMALL = {name: smaller(variant, people=40, gpus=4, days=1) for name, variant in VARIANTS.items()}


@cache
def played(name: str) -> tuple[Outcome, Outcome]:
    traces = bank.baseline_trace(SMALL[name], seed=1), bank.day_trace(SMALL[name], seed=1)
    before, after = (play(trace, worlds.own_quota(trace), until_ms=2 * DAY_MS) for trace in traces)
    return before, after


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_notebook_starts_within_its_bound_and_every_training_is_done(name: str) -> None:
    _, after = played(name)
    waits = [book.had_at - book.asked_at for book in after.record.notebooks.values() if book.had_at is not None]
    assert len(waits) == len(after.record.notebooks) > 10, "within the quota, nobody is refused"
    assert max(waits) <= 10_000 + 2 * 1000
    found = figures([after])
    assert found["jobs_finished"] == found["jobs_total"] and found["guarantee_violations"] == 0


@pytest.mark.parametrize("name", list(VARIANTS))
def test_gpus_are_used_several_times_as_much_as_with_one_gpu_each(name: str) -> None:
    before, after = played(name)
    assert (utilisation_percent(after) or 0) > 2 * (utilisation_percent(before) or 0) > 0


def test_equal_seeds_give_equal_days_and_others_do_not() -> None:
    usual = SMALL["usual"]
    assert bank.day_trace(usual, seed=7) == bank.day_trace(usual, seed=7) != bank.day_trace(usual, seed=8)
    assert bank.sessions(SMALL["deadline"], 7) != bank.sessions(usual, 7)


def test_both_worlds_are_of_the_same_people_and_the_same_work() -> None:
    usual = SMALL["usual"]
    sessions = bank.sessions(usual, 3)
    ours, baseline = bank.day_trace(usual, seed=3), bank.baseline_trace(usual, seed=3)
    assert {work.id for work in baseline.work} == {session.id for session in sessions}
    assert len(ours.work) == len(sessions) + sum(len(session.work) for session in sessions)
    for session in sessions:
        inside = bank.inside_notebook(session)
        assert inside.keys() == {str(work.id) for work in session.work}
        assert all(end - begin >= work.duration_ms for work in session.work for begin, end in [inside[str(work.id)]])


def test_every_parameter_of_the_work_has_its_place() -> None:
    keys = {"per_person_day", "gpu", "median_s", "mean_s", "use_percent", "checkpoint_every_s", "saves_in_s", "when"}
    for row in bank.parameters()["work"].values():
        assert keys <= row.keys() <= keys | {"trials"}
        assert row["mean_s"] > row["median_s"] > 0
