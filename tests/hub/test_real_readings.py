"""A real hub, its service and scheduler with one device of the fake NVML library, the source of all readings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.cli import main
from tests.gpu.conftest import built  # noqa: F401 - a fixture
from tests.hub.real_gpu import DEVICE, MEMORY_MIB, GpuHub, GpuOwner, gpu_hub
from tests.hub.test_lending import COMES_BACK_S, comes_back, lives
from tests.notifications.receivers import WebReceiver, web_receiver
from tests.patience import until

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

POLICED = "{enforcement: {memory: policed}}"
READ_WITHIN_S = 40
QUARTER_MIB = (MEMORY_MIB - 512) // 4


@pytest.fixture
def hub(tmp_path: Path, built: Path) -> Iterator[GpuHub]:  # noqa: F811
    with gpu_hub(tmp_path, built, policy=POLICED) as made:
        yield made


def test_a_kernels_memory_is_read_and_unreadable_figures_are_unknown_with_a_reason(hub: GpuHub) -> None:
    ann = GpuOwner(hub)
    hub.now_uses(ann.pid, 2_000, 37)
    until(lambda: ann.slice()["utilised_milli"] == 370)
    device = hub.device()
    assert (device["id"], device["simulated"], device["foreign_milli"]) == (DEVICE, False, 0)
    assert (device["utilisation_percent"], device["memory_used_mib"]) == (37, 2_000)
    until(lambda: (ann.slice()["enforcement"] or {}).get("memory") == "policed")
    assert ann.slice()["enforcement"]["compute"] == "none"
    assert hub.holder("notebook")["enforcement"]["memory"] == "policed"
    assert hub.device_for("ann")["utilisation_percent"] == 37

    hub.script.put("0 percent 4000")
    until(lambda: "impossible" in (hub.device()["utilisation_unknown"] or ""))
    assert hub.device()["utilisation_percent"] is None

    hub.script.put("0 percent 0")
    hub.script.add("system hang nvmlDeviceGetUtilizationRates 600000")
    found = "the driver's library does not answer"
    until(lambda: hub.device()["utilisation_unknown"] == found, READ_WITHIN_S)
    slice_ = ann.slice()
    assert (slice_["utilised_milli"], slice_["utilised_unknown"]) == (None, found)
    assert hub.device_for("ann")["utilisation_unknown"] == found
    assert hub.notebook_for("ann", slice_["id"])["utilised_unknown"] == found
    assert hub.service("GET", "/health").status == 200
    hub.script.drop("system hang")
    until(lambda: hub.device()["utilisation_percent"] == 0, READ_WITHIN_S)


def test_a_notebook_above_its_share_is_warned_and_stopped_with_a_reason_and_its_neighbour_continues(
    tmp_path: Path,
    built: Path,  # noqa: F811
) -> None:
    with web_receiver() as hook:
        before = f"c.GPUQuota.notification_webhook_url = {hook.url!r}\n"
        with gpu_hub(tmp_path, built, policy=POLICED, before=before) as hub:
            stopped_for_its_memory(hub, hook)


def stopped_for_its_memory(hub: GpuHub, hook: WebReceiver) -> None:
    ann = GpuOwner(hub)
    job = hub.runs(hub.begin_job("import time; time.sleep(600)", gpu="1/2"))
    hub.uses(job, 20_000, None)
    hub.now_uses(ann.pid, QUARTER_MIB + 5_000, None)
    until(lambda: "more of the device's memory" in str(ann.slice()["enforcement"]["why"]))
    slice_ = ann.slice()
    assert slice_["warning"] and hub.notebook_for("ann", slice_["id"])["warning"]
    until(lambda: not hub.server("ann"), 240)
    assert lives(job), "the neighbour was stopped"
    until(lambda: not lives(ann.pid))

    used_mib = QUARTER_MIB + 5_000
    why = f"The service stopped this notebook's server: its processes used {used_mib} MiB of device GPU-0"
    stopped = lambda: hub.notebook_for("ann", slice_["id"])  # noqa: E731
    until(lambda: ((stopped().get("reason") or {}).get("message") or "").startswith(why), what=stopped)
    slices = ["--url", f"{hub.stage.url}/services/gpu-quota", "--token", ann.person.token]
    listed = CliRunner().invoke(main, ["notebooks", "--json", *slices])
    assert [each["reason"]["message"].startswith(why) for each in json.loads(listed.output)] == [True], listed.output
    form = hub.browser("ann").get("/hub/spawn/ann").replace("&#x27;", "'")
    assert why in form, form
    until(lambda: len(hook.posts) >= 2)
    found = [json.loads(post.body) for post in hook.posts]
    assert [each["type"] for each in found] == ["notebook.over_share", "notebook.stopped"]
    assert found[0]["data"]["stop_at"] and "free memory now" in found[0]["text"]
    assert found[1]["data"]["why"].startswith(why) and found[1]["data"]["user"] == "ann"


def test_an_idle_slice_is_freed_lent_and_returned_by_readings(tmp_path: Path, built: Path) -> None:  # noqa: F811
    idle = "{mode: reclaim, gpu_idle_after: 30s, kernel_idle_after: 30s, when_nobody_waits: 10m, warn_for: 3s}"
    policy = f"{{idle: {idle}, preemption: {{min_runtime: 0s, lent_grace: 3s, max_pauses: 100}}}}"
    with gpu_hub(tmp_path, built, policy=policy) as hub:
        ann = GpuOwner(hub)
        ann.run(ann.cpu, "kept = 43")
        job = hub.begin_job("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(600)")
        until(lambda: ann.kernels() == {ann.cpu}, 300)
        assert not lives(ann.pid)
        assert ann.slice()["state"] == "booked", "lent before a reading shows that nothing of it is there"
        hub.off(ann.pid)
        pid = hub.runs(job)
        assert ann.slice()["state"] == "lent"
        assert comes_back(ann, pid) <= COMES_BACK_S
        assert ann.run(ann.cpu, "print(kept)") == "43\n"
