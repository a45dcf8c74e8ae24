"""Sentences about an edit of the quota file: every effect and every amount has its words."""

from __future__ import annotations

from dataclasses import fields

import pytest

from jupyter_gpu_quota.core.enforcement.levels import EnforcementLevel, EnforcementOffer, RequiredEnforcement
from jupyter_gpu_quota.core.explain.preview import Affected, Effect
from jupyter_gpu_quota.core.model import Amounts, Job
from jupyter_gpu_quota.messages.quota.edits import (
    AMOUNTS,
    EFFECTS,
    affected_sentence,
    edit_sentence,
    pool_offers_sentence,
    since_text,
    window_amounts_sentence,
    work_text,
)


def test_every_effect_on_work_has_a_sentence() -> None:
    assert EFFECTS.keys() == set(Effect)


def test_every_amount_has_a_text() -> None:
    assert AMOUNTS.keys() == {field.name for field in fields(Amounts)}


def test_a_lowered_limit_is_reported_with_its_window() -> None:
    when = since_text(0, 3_600_000, ["nights"])
    assert edit_sentence("limit_milli", owner="vision", used=2500, pool="train", becomes=125, when=when) == (
        "vision has 2.5 GPU in use in pool train, and its limit becomes 0.125 while nights is open, from"
        " 1970-01-01T01:00:00Z: running work continues, and nothing more starts above that."
    )


def test_a_sentence_without_its_figures_is_an_error() -> None:
    with pytest.raises(KeyError):
        edit_sentence("limit_milli", owner="vision")


JOB = Job(id="j", project="p", user="u", pool="a", gpu_milli=2000, submitted_at=0, preemptible=False)


@pytest.mark.parametrize(
    ("effect", "deadline_at", "words"),
    [
        pytest.param(
            Effect.DRAINS,
            None,
            "Job j keeps its GPUs. p uses 2 GPU that may not be preempted in pool a and its training quota becomes 1: "
            "1 GPU of that is over quota. It stays until it ends.",
            id="without a deadline",
        ),
        pytest.param(
            Effect.DRAINS,
            0,
            "Job j keeps its GPUs. p uses 2 GPU that may not be preempted in pool a and its training quota becomes 1: "
            "1 GPU of that is over quota. It stays until it ends, or the drain deadline 1970-01-01T00:00:00Z stops it.",
            id="until a deadline",
        ),
        pytest.param(
            Effect.PAUSED,
            0,
            "Job j runs now and is stopped by the drain deadline 1970-01-01T00:00:00Z and queued again at its old "
            "position; then it waits: Because.",
            id="stopped at once",
        ),
    ],
)
def test_the_drain_deadline_is_named_where_it_stops_a_job(effect: Effect, deadline_at: int | None, words: str) -> None:
    one = Affected(work=JOB, effect=effect, used_milli=2000, quota_milli=1000, had_milli=2000, deadline_at=deadline_at)
    assert affected_sentence(one, "Job j", before="", after="Because." if effect is Effect.PAUSED else "") == words


@pytest.mark.parametrize(
    ("jobs", "notebooks", "words"),
    [(1, 0, "1 job"), (2, 1, "2 jobs and 1 notebook slice"), (0, 3, "3 notebook slices")],
)
def test_work_is_counted(jobs: int, notebooks: int, words: str) -> None:
    assert work_text(jobs, notebooks) == words


def test_an_amount_of_a_window_is_listed_now_and_while_it_is_open() -> None:
    now, opens = Amounts(training_milli=3000), Amounts(training_milli=500)
    place = (False, "fraud", "big")
    words = window_amounts_sentence(
        "nights", place, ["training_milli"], now=now, then=now, was_open=None, opens=opens, others=["exam"]
    )
    assert words == (
        "Calendar nights, project fraud, pool big: training quota 3 now, 0.5 while it is open (with exam open, too)."
    )


def test_devices_that_can_enforce_what_a_file_requires_need_no_sentence() -> None:
    least = RequiredEnforcement(memory=EnforcementLevel.POLICED)
    able, weak = (EnforcementOffer(device=name, memory=EnforcementLevel(name)) for name in ("policed", "none"))
    assert pool_offers_sentence("train", least, [able], 0, []) == ""
    assert "1 of 2 devices can enforce this for a fraction" in pool_offers_sentence("train", least, [able, weak], 0, [])
