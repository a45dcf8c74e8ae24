"""Traces in which an earlier release starved a job or a project, replayed by the simulator."""

from __future__ import annotations

import pytest

from tests.traces.history import played
from tests.traces.streams import CASES, names

DAYS = {"never-paused": 2.0, "quarters": 0.5, "two-nodes": 2.0, "above-fair-share": 14.0}
"""The whole length of the traces with one job that waited."""
ENOUGH = {"never-paused": 0.1, "quarters": 0.25, "two-nodes": 0.2, "above-fair-share": 0.2}
"""The days in which its job starts."""


# R27, R28, R33
@pytest.mark.parametrize("name", names(endless=False))
def test_the_job_starts_no_later_than_the_planned_start_recorded_first(name: str) -> None:
    history = played(CASES[name], ENOUGH[name])
    assert history.started_s is not None, history.planned
    assert history.first_planned_s is not None and history.started_s <= history.first_planned_s


# R33
@pytest.mark.soak
@pytest.mark.parametrize("name", names(endless=False))
def test_its_planned_start_never_moves_later(name: str) -> None:
    history = played(CASES[name], DAYS[name])
    planned = [at for _, at in history.planned if at is not None]
    assert planned == sorted(planned, reverse=True), history.planned


# R20, R22
@pytest.mark.parametrize("name", names(endless=True))
@pytest.mark.parametrize("days", [1, pytest.param(14, marks=pytest.mark.soak)], ids=["a day", "two weeks"])
def test_the_lesser_project_gets_a_third_of_the_gpu_hours(name: str, days: int) -> None:
    hours = played(CASES[name], days).gpu_hours
    part = hours["a"] / sum(hours.values())
    assert 0.31 <= part <= 0.36, hours
