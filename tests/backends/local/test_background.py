"""Background work: what is requested while it runs is run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.backends.local.host.background import Background
from tests.patience import PATIENCE_S, until


@pytest.fixture
def background() -> Iterator[Background]:
    found = Background(1)
    yield found
    found.close()


def test_a_task_that_is_requested_while_it_runs_is_run_once_more(background: Background) -> None:
    begun, may_end, runs = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        runs.append("first")
        begun.set()
        may_end.wait(PATIENCE_S)

    background.run("trash", first)
    assert begun.wait(PATIENCE_S)
    for name in ("second", "third"):
        background.run("trash", lambda name=name: runs.append(name))  # type: ignore[misc]
    background.run("another", lambda: runs.append("another"))
    may_end.set()
    until(lambda: not background._busy)
    assert sorted(runs) == ["another", "first", "third"], "one run has what both requests wanted"


def test_a_closed_background_runs_nothing_more(background: Background) -> None:
    begun, may_end, runs = threading.Event(), threading.Event(), list[str]()
    background.run("trash", lambda: (begun.set(), may_end.wait(PATIENCE_S)))
    assert begun.wait(PATIENCE_S)
    for key in ("trash", "another"):
        background.run(key, lambda: runs.append("again"))
    background.close()
    may_end.set()
    until(lambda: not background._busy)
    assert not runs
