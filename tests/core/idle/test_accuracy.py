"""The labelled sessions of the benchmark, two of each kind: no used GPU is freed, idle ones are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.idle_detection import accuracy
from tests.benchmarks.idle_detection.accuracy import play
from tests.benchmarks.idle_detection.sessions import BUSY, GAPS, IDLE, LENGTH, Session, sessions

FEW = tuple(sessions(seed=7, of_each=2))


def test_the_benchmark_has_two_hundred_sessions_of_every_kind() -> None:
    assert len(BUSY + IDLE + GAPS) * accuracy.OF_EACH >= 200
    assert {session.label for session in FEW} == {"busy", "idle"}


def test_the_same_seed_gives_the_same_sessions() -> None:
    assert list(sessions(seed=7, of_each=2)) == list(FEW)
    assert list(sessions(seed=8, of_each=2)) != list(FEW)


@pytest.mark.parametrize("session", FEW, ids=lambda session: f"{session.kind} {session.number}")
def test_no_used_gpu_is_freed(session: Session) -> None:
    result = play(session)
    assert not result.wrong
    if session.label == "idle" and not session.gaps:
        assert result.freed_at is not None


def test_without_the_rule_of_holes_used_gpus_would_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = replace(accuracy.POLICY, missed_at_most=10_000, coverage_percent=0)
    monkeypatch.setattr(accuracy, "POLICY", blind)
    hidden = [session for session in FEW if session.kind == "busy_in_a_hole"]
    assert any(play(session).wrong for session in hidden)


def test_the_label_follows_the_end_of_the_script() -> None:
    for session in FEW:
        ends = [end for _, end in (*session.gpu, *session.busy)] + session.messages
        last = max(at for at in ends)
        assert session.idle_from == last if session.label == "idle" else last > LENGTH - 26 * 60_000
