"""The whole story, played by the command that people type and watched by a witness of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.demo.observer import Sighting, Witness, belongs_to
from jupyter_gpu_quota.demo.progress_bars import progress_of
from jupyter_gpu_quota.demo.story import FACTS
from jupyter_gpu_quota.demo.temporary_hub import processes_of
from tests.patience import until

pytestmark = [pytest.mark.demo, pytest.mark.hub, pytest.mark.timeout(420)]

ENDS_WITHIN_S = 360


class Evening:
    """One run of ``demo --once`` below a folder of the test, and a witness beside the demo's own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.report = folder, folder / "report.json"
        command = [sys.executable, "-m", "jupyter_gpu_quota", "demo", "--once", "--report", str(self.report)]
        self.witness = Witness(belongs_to(folder, "no hub is known by its address"))
        self.witness.start()
        # A child inherits that SIGINT is ignored: so does what a script starts in its background.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with (folder / "output").open("wb") as output:
            environment = {**os.environ, "TMPDIR": str(folder)}
            self.demo = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        signal.signal(signal.SIGINT, before)

    def end(self) -> tuple[int, dict[str, Any], str]:
        """(exit code, report, what it printed) when the demo has ended by itself."""
        try:
            code = self.demo.wait(ENDS_WITHIN_S)
        finally:
            self.demo.terminate()
            self.witness.leave()
        printed = (self.folder / "output").read_text()
        return code, json.loads(self.report.read_text()) if self.report.exists() else {}, printed


def test_every_fact_of_the_story_is_seen_and_no_device_is_over_full(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    code, report, printed = evening.end()
    missing = {fact["name"]: fact["seen"] for fact in report.get("facts", ()) if fact["ok"] is not True}
    assert (code, missing) == (0, {}), printed
    assert [fact["key"] for fact in report["facts"]] == list(FACTS)
    assert evening.witness.violations == []
    assert evening.witness.highest == 1000
    assert list(processes_of(tmp_path)) == [], "the demo left processes behind"
    assert list(tmp_path.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"


@pytest.mark.slow
def test_killing_one_of_bobs_trainers_is_noticed(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    os.kill(min(first_trainer(evening).pids), signal.SIGKILL)
    code, report, printed = evening.end()
    assert code == 1, printed
    assert not report["ok"]
    assert "finished" in {fact["key"] for fact in report["facts"] if fact["ok"] is not True}
    assert list(processes_of(tmp_path)) == [], "the demo left processes behind"


@pytest.mark.slow
def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    first_trainer(evening)
    evening.demo.send_signal(signal.SIGINT)
    code, _, printed = evening.end()
    assert code == 130, printed
    assert list(processes_of(tmp_path)) == [], "the demo left processes behind"
    assert list(tmp_path.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"


def first_trainer(evening: Evening) -> Sighting:
    """The first of Bob's trainers that is in the middle of its work."""

    def found() -> Sighting | None:
        assert evening.demo.poll() is None, (evening.folder / "output").read_text()
        for sighting in evening.witness.ranks():
            done, total = progress_of(sighting)
            if sighting.present and 2 <= done < total:
                return sighting
        return None

    return until(found, ENDS_WITHIN_S, what=(evening.folder / "output").read_text)
