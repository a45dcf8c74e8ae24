"""The demo, many times: it never fails by chance, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.demo.test_demo import DemoRun, await_no_process_of

pytestmark = [pytest.mark.soak, pytest.mark.demo, pytest.mark.hub]

RUNS = int(os.environ.get("GPU_QUOTA_DEMO_RUNS", "50"))


@pytest.mark.timeout(420)
@pytest.mark.parametrize("number", range(1, RUNS + 1))
def test_every_demo_shows_every_fact(number: int, tmp_path: Path) -> None:
    run = DemoRun(tmp_path)
    code, report, printed = run.end()
    missing = {fact["name"]: fact["seen"] for fact in report.get("facts", ()) if fact["ok"] is not True}
    assert (code, missing) == (0, {}), printed
    await_no_process_of(tmp_path)
    assert list(tmp_path.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"
