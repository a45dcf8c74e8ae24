"""Signals that end the demo: one sentence, no traceback, and nothing is left, whenever they come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.demo import command, temporary_hub
from jupyter_gpu_quota.demo.end_signals import END_SIGNALS, EndSignals
from jupyter_gpu_quota.demo.facts import Facts
from jupyter_gpu_quota.demo.observer import Observation, RankId
from jupyter_gpu_quota.demo.scenario import Scenario
from jupyter_gpu_quota.demo.scenario_context import NotObserved, ScenarioContext
from jupyter_gpu_quota.demo.temporary_hub import HubFailed, HubUsers, TemporaryHub, end_processes_of, processes_of
from tests.patience import until

pytestmark = [pytest.mark.demo, pytest.mark.timeout(120)]


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


# The whole command


@pytest.mark.parametrize("number", END_SIGNALS, ids=lambda each: each.name)
def test_a_demo_that_is_stopped_in_its_last_check_ends_with_a_sentence(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    @contextlib.contextmanager
    def no_hub(folder: Path, *rest: object) -> Iterator[SimpleNamespace]:
        users = HubUsers(groups={})
        yield SimpleNamespace(folder=tmp_path, users=users, url="", ports=SimpleNamespace(hub=1))

    endless = ("python", "train.py", "--epochs", "1000000", "--step-ms", "200", "--width", "192", "--seed", "1")
    paused = [
        Observation(RankId(job=job, attempt=1, rank=0), 0, 0, (), 1000, {}, endless, set(), 0) for job in ("a", "b")
    ]
    monkeypatch.setattr(command, "_hub", no_hub)
    monkeypatch.setattr(command, "_show_log_ins", lambda *_: None)
    monkeypatch.setattr(Scenario, "_steps", lambda self: self.show("same", self._compare_losses(paused)))

    def stop() -> None:
        until(lambda: len(list(processes_of(tmp_path))) == 2)
        interrupt(number)
        interrupt(number)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert command.main(["--once"]) == 130
    stopping.join()
    printed = capfd.readouterr()
    assert (printed.err, caplog.text) == ("", "")
    assert printed.out.splitlines()[-1] == "The demo was stopped; nothing of it is left."
    results = [line.split()[-2] for line in printed.out.splitlines() if line.startswith("│")]
    assert results.count("reached") == len(command.FACTS) and "missing" not in results
    assert list(processes_of(tmp_path)) == []


# The signals


def test_only_the_first_signal_interrupts() -> None:
    signals = EndSignals()
    with signals.handled():
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        for number in END_SIGNALS:
            interrupt(number)
    assert signal.getsignal(signal.SIGINT) is not signals._on_signal


def test_no_signal_interrupts_the_end() -> None:
    signals = EndSignals()
    with signals.handled():
        with signals.ignored_after():
            assert not signals.ignored
        interrupt()
    assert signals.ignored


def test_a_signal_cancels_the_scenario_and_its_cleanup_runs_to_the_end() -> None:
    signals, done = EndSignals(), list[str]()

    async def play() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        finally:
            interrupt()
            await asyncio.sleep(0)
            done.append("cleanup")

    with signals.handled(), pytest.raises(KeyboardInterrupt):
        signals.run(play)
    assert done == ["cleanup"]


def test_a_signal_at_the_end_of_the_scenario_is_not_lost() -> None:
    signals = EndSignals()

    async def play() -> None:
        interrupt()

    with signals.handled(), pytest.raises(KeyboardInterrupt):
        signals.run(play)


# Facts of a demo that ended early


def test_a_fact_of_a_step_that_failed_is_missing_and_a_later_one_was_not_reached() -> None:
    facts = Facts({"seen": "seen", "failed": "failed", "cancelled": "cancelled", "later": "later"})
    context = ScenarioContext(None, None, facts, None)  # type: ignore[arg-type]

    async def fail() -> None:
        raise NotObserved("nothing was observed")

    async def play() -> None:
        facts.note("seen", "so")
        async with asyncio.TaskGroup() as steps:
            steps.create_task(context.show("cancelled", asyncio.Event().wait()))
            steps.create_task(context.show("failed", fail()))

    with pytest.raises(ExceptionGroup):
        asyncio.run(play())
    assert [(row.seen, row.ok) for row in facts.rows.values()] == [
        ("so", True), ("not seen", False), ("", None), ("", None)
    ]  # fmt: skip
    results = [str(cell).split("]")[1].split("[")[0] for cell in facts.table().columns[3].cells]
    assert results == ["ok", "missing", "not reached", "not reached"]


# Processes


def test_a_process_that_is_not_yet_in_the_first_reading_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a process starts a program, it has no variables."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        readings = iter([[], [process.pid], [], []])
        monkeypatch.setattr(temporary_hub, "processes_of", lambda folder: next(readings))
        assert end_processes_of(tmp_path) == [process.pid]
    assert process.returncode == -signal.SIGKILL


def test_processes_that_stay_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = TemporaryHub(tmp_path, users=HubUsers(groups={}))
    monkeypatch.setattr(temporary_hub, "processes_of", lambda folder: [os.getpid()])
    monkeypatch.setattr(temporary_hub, "end_processes_of", lambda folder: [])
    with pytest.raises(HubFailed, match=rf"these processes of the hub could not be ended: {os.getpid()} \(.*python"):
        hub.end()


def test_a_folder_with_a_longer_name_is_another(tmp_path: Path) -> None:
    ours, other = tmp_path / "demo", tmp_path / "demo2"
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={"FOLDER": f"{other}/state"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline()
        assert list(processes_of(ours)) == []
        assert list(processes_of(other)) == [process.pid]
        process.kill()
