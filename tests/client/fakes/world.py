"""What the fake of the API knows and what it saw, and the views that it answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jupyter_gpu_quota import wire
from jupyter_gpu_quota.wire import status as wire_status

TOKEN = "a-token-of-ann"
AT = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
PREFIX = "/services/gpu-quota/api/v1/"
OFTEN = {"Retry-After": "7"}
QUOTA_TEXT = "version: 1\nrevision: 4\npools: []\nprojects: []\n"


def reason(
    code: str = "no_free_gpu", message: str = "4 of 4 GPUs are in use; it starts when 1 is freed."
) -> wire.ReasonView:
    return wire.ReasonView(code=code, figures={"asked_milli": 1000}, message=message)


def job_view(id_: str, **other: Any) -> wire.JobDetail:
    facts: dict[str, Any] = {
        "id": id_,
        "name": "python train.py",
        "project": "fraud",
        "pool": "big",
        "user": "ann",
        "state": "queued",
        "target": "running",
        "reason": reason(),
        "command": ["python", "train.py"],
        "gpu": "1",
        "gpu_milli": 1000,
        "ranks": 1,
        "gpu_model": None,
        "priority": 50,
        "preemptible": True,
        "private": False,
        "live": False,
        "bundle": None,
        "directory": ".",
        "environment": None,
        "variables": {},
        "secret_names": [],
        "time_limit_s": 86_400,
        "retries": 0,
        "retries_left": 0,
        "attempt": 0,
        "pauses": 0,
        "submitted_at": AT,
        "started_at": None,
        "ended_at": None,
        "exit_status": None,
        "progress": None,
        "metrics": {},
        "allocations": [],
        "borrower": False,
        "enforcement": None,
        "clone_of": None,
        "simulated": True,
        "cluster": "local",
        "hub": "local",
        "rank_records": [],
    }
    return wire.JobDetail(**(facts | other))


def device_view(id_: str, pool: str, node: str, index: int, **other: Any) -> wire.DeviceView:
    facts: dict[str, Any] = {
        "uuid": id_,
        "model": "S",
        "memory_mib": 81_920,
        "health": "healthy",
        "simulated": pool == "small",
        "foreign_milli": 0,
        "free_milli": 250,
        "holders": [],
        "utilisation_percent": None,
        "sampled_at": None,
        "cluster": "local",
        "hub": "local",
    }
    return wire.DeviceView(id=id_, pool=pool, node=node, index=index, **(facts | other))


@dataclass
class World:
    """What the fake knows, and what it saw. ``seen`` holds (method, path, query, body) of every request."""

    jobs: dict[str, wire.JobDetail] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    bundles: dict[str, bytes] = field(default_factory=dict)
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
    outputs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    script: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    breaks: int = 0
    lost: int = 0
    away: int = 0
    unready: int = 0
    often: int = 0
    cut: int = 0
    refuse: wire.ErrorView | None = None
    audit_is_intact: bool = True
    audit_rows: int = 1
    written_meanwhile: int = 0
    """Rows of the audit that are written after each request for some."""
    own_accounts: bool | None = None
    failing: list[str] = field(default_factory=list)
    deployment: wire_status.DeploymentView | None = None
    devices: list[wire.DeviceView] = field(default_factory=list)
    explanation: str = "4 of 4 GPUs are in use; it starts when 1 is freed."
    long_sentences: bool = False
    """Every text of several words in an answer is longer than a line of a terminal."""
    url: str = ""

    def paths(self, method: str) -> list[str]:
        return [path for each, path, _, _ in self.seen if each == method]
