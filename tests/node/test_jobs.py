"""Jobs of the Kubernetes backend as real pods of a real kubelet, on fake GPUs."""

from __future__ import annotations

import json

import pytest

from jupyter_gpu_quota.job import CHECKPOINTED
from tests.backends.contract import Controller
from tests.backends.worlds import stop
from tests.node.world import NodeWorld

COUNTS = """
import json, os, signal, time
from jupyter_gpu_quota import job
terminated = []
signal.signal(signal.SIGTERM, lambda *_: terminated.append(True))
path = job.checkpoint_path("state.json")
first = json.loads(path.read_text())["next"] if path.exists() else 0
seen = {name: os.environ.get(name) for name in ("NVIDIA_VISIBLE_DEVICES", "GPU_QUOTA_MILLI", "GPU_QUOTA_ATTEMPT")}
print(json.dumps({"first": first, "uid": os.getuid(), **seen}), flush=True)
for step in range(first, 100_000):
    if terminated and job.pause_requested():
        reason = open(os.environ["GPU_QUOTA_PAUSE_FILE"]).read().strip()
        with job.saving(path) as part:
            open(part, "w").write(json.dumps({"next": step, "reason": reason}))
        raise SystemExit(job.CHECKPOINTED)
    job.report_progress(step + 1, 100_000)
    if first:
        break
    time.sleep(0.05)
job.output_path("result.txt").write_text(f"from {first}")
job.complete()
"""
"""Counts until SIGTERM and the pause file; the second attempt begins where the first ended, and completes."""

FILLS_MEMORY = "filled = [bytearray(1 << 24) for _ in range(1000)]"


@pytest.fixture
def controller(world: NodeWorld) -> Controller:
    return Controller(world)


def test_a_job_is_paused_and_resumed_from_its_checkpoint(world: NodeWorld, controller: Controller) -> None:
    controller.give(world.order("J", "python", "-c", COUNTS))
    controller.until(lambda fact: (fact.done or 0) > 3)
    controller.give(stop("J", grace_s=60))
    first = controller.until(lambda fact: fact.tree_gone)
    assert (first.exit_status, first.pause_requested, first.refused) == (CHECKPOINTED, True, None), world.log("J")
    seen = json.loads(world.log("J"))
    assert seen == {
        "first": 0, "uid": 1000, "NVIDIA_VISIBLE_DEVICES": seen["NVIDIA_VISIBLE_DEVICES"], "GPU_QUOTA_MILLI": "1000",
        "GPU_QUOTA_ATTEMPT": "1",
    }  # fmt: skip
    assert seen["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-fake-"), "the device plugin's"
    world.backend.jobs.settled("J", 1)
    controller.orders.clear()
    controller.give(world.order("J", "python", "-c", COUNTS, attempt=2))
    second = controller.until(lambda fact: fact.attempt == 2 and fact.tree_gone)
    assert (second.exit_status, second.completed, second.pause_requested) == (0, True, False), world.log("J", 2)
    saved = json.loads((world.folder / "jobs/J/checkpoint/state.json").read_text())
    assert saved["reason"] == "reclaimed" and json.loads(world.log("J", 2))["first"] == saved["next"] > 3
    world.backend.jobs.settled("J", 2)
    world.until(lambda: not world.pods())
    assert (world.folder / "jobs/J/outputs/result.txt").read_text() == f"from {saved['next']}"
    assert world.log("J", 2), "kept after its pod is gone"


def test_a_job_over_its_memory_limit_is_reported_as_such(world: NodeWorld, controller: Controller) -> None:
    controller.give(world.order("M", "python", "-c", FILLS_MEMORY, memory_mib=64))
    fact = controller.gone("M")
    assert (fact.exit_status, fact.cause) == (-9, "out_of_memory")


def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(world: NodeWorld, controller: Controller) -> None:
    controller.give(world.order("I", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"))
    controller.began("I", "ignores SIGTERM")
    controller.give(stop("I", grace_s=1))
    fact = controller.gone("I")
    assert (fact.exit_status, fact.pause_requested) == (-9, True)


def test_an_exit_status_and_its_log_are_kept(world: NodeWorld, controller: Controller) -> None:
    controller.give(world.order("E", "sh", "-c", "echo what it said; exit 3"))
    fact = controller.gone("E")
    assert (fact.exit_status, world.log("E")) == (3, "what it said\n")
