"""Small worlds for the tests of the simulator: a few lines of JSON and a quota file."""

from __future__ import annotations

import json
from typing import Any

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.tracefile import Trace

QUOTA = """
version: 1
pools:
  - {name: train, selector: {gpu_model: [Big]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Small]}, uses: [notebook]}
projects:
  - {name: vision, quota: {train: {training: 2}, build: {notebook: 0.5}}}
  - {name: speech, quota: {train: {training: 2}, build: {notebook: 0.5}}}
policy:
  preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s}
"""
NODES = [{"name": "big", "gpus": 4, "gpu_model": "Big"}, {"name": "small", "gpus": 1, "gpu_model": "Small"}]


def quota(text: str = QUOTA) -> QuotaFile:
    found = quotafile.parse(text)
    assert isinstance(found, QuotaFile), found
    return found


def job(
    id: str, submit_s: float, duration_s: float, project: str = "vision", gpu: Any = 1, **more: Any
) -> dict[str, Any]:
    row = {"kind": "training", "id": id, "submit_s": submit_s, "project": project, "gpu": gpu, "duration_s": duration_s}
    return {**row, "user": project, "saves_in_s": 2, **more}


def notebook(id: str, submit_s: float, duration_s: float, gpu: Any = "1/4", **more: Any) -> dict[str, Any]:
    row = {
        "kind": "notebook",
        "id": id,
        "submit_s": submit_s,
        "project": "vision",
        "gpu": gpu,
        "duration_s": duration_s,
    }
    return {**row, "user": "vision", **more}


def trace(*work: dict[str, Any], **more: Any) -> Trace:
    found = tracefile.read(json.dumps({"nodes": NODES, "work": list(work), **more}))
    assert isinstance(found, Trace), found
    return found
