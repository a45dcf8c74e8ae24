"""Orders, scripts of jobs, and a local backend with real processes for the tests."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.backends.protocol import StartOrder, StopOrder
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Device, Placement
from tests.backends.fake_executor import Script
from tests.patience import until

T = TypeVar("T")
KINDS = [{"model": "Simulated 80G", "memory_mib": 81_920, "count": 2}]

LOOP = "while :; do sleep 0.02; done"
COMPLETE = 'echo \'{"done": 3, "total": 3}\' > "$GPU_QUOTA_PROGRESS_FILE"'
ACTS: Mapping[str, tuple[str, Script]] = {
    "runs on": ("exec sleep 1000", Script(on_stop=-15)),
    "ends with 0": ("exit 0", Script(runs_for_ms=0)),
    "ends with 3": ("exit 3", Script(runs_for_ms=0, exit_status=3)),
    "completes and ends": (f"{COMPLETE}; exit 0", Script(runs_for_ms=0, completes=True)),
    "writes": (
        'printf "one\\ntwo\\n"; cd "$GPU_QUOTA_OUTPUT_DIR"; mkdir a; printf weights > a/model; printf n > notes',
        Script(runs_for_ms=0),
    ),
    "writes and runs on": (
        'printf n > "$GPU_QUOTA_OUTPUT_DIR/notes"; echo ready; exec sleep 1000',
        Script(on_stop=-15, outputs_mib=1),
    ),
    "saves and stops": (f"trap 'exit 75' TERM; echo ready; {LOOP}", Script(on_stop=75)),
    "ignores SIGTERM": (f"trap '' TERM; echo ready; {LOOP}", Script(on_stop=None)),
    "completes when stopped": (
        f"trap '{COMPLETE.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}; exit 0' TERM; echo ready; {LOOP}",
        Script(on_stop=0, completes=True),
    ),
}
"""What a job does: as a shell script, and as the fake's script."""

TRAPS = frozenset({"saves and stops", "ignores SIGTERM", "completes when stopped", "writes and runs on"})
"""Those that log that they are ready."""


def order(job: str, acts: str, *, attempt: int = 1, fencing: int = 1, ranks: int = 1, **more: Any) -> StartOrder:
    """A start order for one of ACTS; ``command`` may be given instead."""
    device = Device(
        id="d0", node="here", index=0, model="S", memory_mib=1000, pool="train", uuid="SIM-0", simulated=True
    )
    placements = tuple(Placement(rank=rank, device="d0", gpu_milli=250, memory_mib=250) for rank in range(ranks))
    command = more.pop("command", ("sh", "-c", ACTS[acts][0], acts) if acts else ())
    return StartOrder(
        job=job, attempt=attempt, fencing=fencing, command=command, placements=placements, devices=(device,),
        ranks=ranks, **more,
    )  # fmt: skip


def shell(job: str, script: str, **more: Any) -> StartOrder:
    """A start order for a shell script."""
    return order(job, "", command=("sh", "-c", script), **more)


@contextmanager
def passable_folder() -> Iterator[Path]:
    """A state folder that other accounts may pass through: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="gpu-quota-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def stop(job: str, *, attempt: int = 1, fencing: int = 1, grace_s: int = 600, ranks: int = 1) -> StopOrder:
    return StopOrder(job=job, attempt=attempt, fencing=fencing, grace_s=grace_s, reason="reclaimed", ranks=ranks)


class LocalWorld:
    """Real processes, real time, polled with a deadline."""

    def __init__(self, state_dir: Path, **settings: Any) -> None:
        self.state_dir = state_dir
        self.executor = LocalJobs(state_dir, simulated_devices=KINDS, **settings)

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def until(self, seen: Callable[[RankFact], bool]) -> RankFact:
        return until(lambda: list(filter(seen, self.executor.observe())), what=self.executor.observe)[0]

    def pass_ms(self, duration_ms: int) -> None:
        until_ms = self.now() + duration_ms
        until(lambda: self.now() >= until_ms)

    def ready(self, job: str, acts: str) -> RankFact:
        """Wait until the job's process exists, and set its trap if it has one."""
        fact = self.until(lambda fact: fact.job == job and fact.handle is not None)
        if acts in TRAPS:
            self.logged("ready", job, fact.attempt)
        return fact

    def logged(self, text: str, job: str = "J", attempt: int = 1) -> None:
        """Wait for a text in a log, and observe meanwhile, as the controllers do: that repeats orders."""
        until(lambda: self.executor.observe() and text in self.log(job, attempt), what=self.executor.observe)

    def log(self, job: str, attempt: int = 1, rank: int = 0) -> str:
        folder = Path(rank_paths(str(self.state_dir), job, attempt, rank).log)
        return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*")))

    def status(self, job: str, attempt: int = 1, rank: int = 0) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(
            Path(rank_paths(str(self.state_dir), job, attempt, rank).status).read_text()
        )
        return record

    def supervisor(self, job: str, attempt: int = 1) -> int:
        return int(self.status(job, attempt)["supervisor"]["pid"])

    def close(self) -> None:
        """End everything that still runs, so that no test leaves a process behind."""
        last = LocalJobs(self.state_dir, simulated_devices=KINDS)
        for fact in last.observe():
            if not fact.tree_gone:
                last.stop(stop(fact.job, attempt=fact.attempt, fencing=10**6, grace_s=0))
        until(lambda: all(fact.tree_gone for fact in last.observe()), what=last.observe)
        for executor in (last, self.executor):
            executor.close()
            until(lambda executor=executor: not (executor._background._busy or executor._stops._busy))  # type: ignore[misc]
        last._enforcement.sweep(lambda *rank: False, ())


def pid_of(fact: RankFact) -> int:
    """The first process of a rank that has begun, on this machine."""
    assert fact.handle is not None
    return int(fact.handle)


def is_alive(pid: int) -> bool:
    """Whether a process of this id is alive; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_root() -> bool:
    return os.getuid() == 0
