"""The whole demo, run by its command and observed by the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.demo.observer import Observation, ProcessObserver, belongs_to
from jupyter_gpu_quota.demo.progress_bars import progress_of
from jupyter_gpu_quota.demo.scenario import FACTS
from jupyter_gpu_quota.demo.temporary_hub import processes_of
from tests.patience import until

pytestmark = [pytest.mark.demo, pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(420)]

ENDS_WITHIN_S = 360


class DemoRun:
    """One run of ``demo --once`` below a folder of the test, and an observer beside the demo's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.report = folder, folder / "report.json"
        command = [sys.executable, "-m", "jupyter_gpu_quota", "demo", "--once", "--report", str(self.report)]
        self.observer = ProcessObserver(belongs_to(folder, "no hub is known by its address"))
        self.observer.start()
        # A child inherits that SIGINT is ignored: so does what a script starts in its background.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with (folder / "output").open("wb") as output:
            environment = {**os.environ, "TMPDIR": str(folder)}
            self.demo = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        signal.signal(signal.SIGINT, before)

    def end(self) -> tuple[int, dict[str, Any], str]:
        """(exit code, report, output) after the demo ended by itself."""
        try:
            code = self.demo.wait(ENDS_WITHIN_S)
        finally:
            self.demo.terminate()
            self.observer.stop()
        printed = (self.folder / "output").read_text()
        return code, json.loads(self.report.read_text()) if self.report.exists() else {}, printed


def await_no_process_of(folder: Path) -> None:
    """Fail with the command lines of the processes that stay behind; one that is ending may take a moment."""
    until(
        lambda: not any(processes_of(folder)), what=lambda: f"an end of {[*map(_command_line, processes_of(folder))]}"
    )


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def test_every_fact_of_the_scenario_is_observed_and_no_device_is_overcommitted(tmp_path: Path) -> None:
    run = DemoRun(tmp_path)
    code, report, printed = run.end()
    missing = {fact["name"]: fact["seen"] for fact in report.get("facts", ()) if fact["ok"] is not True}
    assert (code, missing) == (0, {}), printed
    assert [fact["key"] for fact in report["facts"]] == list(FACTS)
    assert run.observer.violations == []
    assert run.observer.highest == 1000
    await_no_process_of(tmp_path)
    assert list(tmp_path.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"


def test_killing_one_of_bobs_trainers_is_noticed(tmp_path: Path) -> None:
    run = DemoRun(tmp_path)
    os.kill(min(first_trainer(run).pids), signal.SIGKILL)
    code, report, printed = run.end()
    assert code == 1, printed
    assert not report["ok"]
    assert "finished" in {fact["key"] for fact in report["facts"] if fact["ok"] is not True}
    await_no_process_of(tmp_path)


def test_ctrl_c_ends_all_started_processes(tmp_path: Path) -> None:
    run = DemoRun(tmp_path)
    first_trainer(run)
    run.demo.send_signal(signal.SIGINT)
    code, _, printed = run.end()
    assert code == 130, printed
    await_no_process_of(tmp_path)
    assert list(tmp_path.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"


def first_trainer(run: DemoRun) -> Observation:
    """The first of Bob's trainers that is training."""

    def found() -> Observation | None:
        assert run.demo.poll() is None, (run.folder / "output").read_text()
        for observation in run.observer.ranks():
            done, total = progress_of(observation)
            if observation.present and 2 <= done < total:
                return observation
        return None

    return until(found, ENDS_WITHIN_S, what=(run.folder / "output").read_text)
