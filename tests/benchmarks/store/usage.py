"""The cost of a month of use: 400 notebooks on 100 devices, read, summed and deleted by the shipped store.

The clock is virtual. The size of the sums does not depend on the number of readings, so all but the last hours are read
twice each; the last ones, whose readings are kept, every ten seconds. Each notebook lives for a day.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from jupyter_gpu_quota.api.handlers.usage import STORED, summed
from jupyter_gpu_quota.core.model import Amounts, Device, Node, Placement, Policy, Project
from jupyter_gpu_quota.core.plan import Plan, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from jupyter_gpu_quota.settings import GPUQuota
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import Committed
from jupyter_gpu_quota.store.records.commands import ApplyQuota, RequestNotebook, ReturnNotebook, SetInventory
from jupyter_gpu_quota.store.transactions import Store
from tests.benchmarks.figures import Figure, print_plainly

NOTEBOOKS, SHARES, PROJECTS, DAYS = 400, 4, 20, 30
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
BEGIN = 1_800_000_000_000 // DAY * DAY
WITHIN = reason_from(ReasonCode.WITHIN_NOTEBOOK_QUOTA)
SIZE_MB, QUERY_MS = 500.0, 200.0
POLICY = Policy(
    revision=1,
    pools=("train",),
    projects=tuple(
        Project(name=f"project-{number:02d}", amounts={"train": Amounts(notebook_milli=10_000)})
        for number in range(PROJECTS)
    ),
)
DEVICES = tuple(
    Device(
        id=f"GPU-00000000-0000-4000-8000-{number:012d}", node=f"node-{number // 8:02d}", index=number % 8,
        model="NVIDIA H200", memory_mib=143_771, pool="train",
    )
    for number in range(NOTEBOOKS // SHARES)
)  # fmt: skip


class Month:
    """One database, filled day by day."""

    def __init__(self, store: Store) -> None:
        self.store, self.now, self.sequence = store, BEGIN, 0
        self.held: dict[str, list[str]] = {}
        nodes = tuple(Node(id=name, name=name, cpu_milli=1, memory_mib=1) for name in {one.node for one in DEVICES})
        quota = ApplyQuota(
            actor="admin", text="version: 1", document={"version": 1}, policy=POLICY, expected_revision=0
        )
        self.store.record([SetInventory(nodes=nodes, devices=DEVICES), quota], now=self.now)

    def book(self, day: int) -> None:
        """Stop and start every server."""
        ended = [each for names in self.held.values() for each in names]
        self.store.record([ReturnNotebook(notebook=each, actor="hub", why="stopped") for each in ended], now=self.now)
        names = [f"01KMONTH{day:03d}{number:015d}" for number in range(NOTEBOOKS)]
        self.store.record([_request(name, number) for number, name in enumerate(names)], now=self.now)
        self.held = {device.id: names[place * SHARES : (place + 1) * SHARES] for place, device in enumerate(DEVICES)}
        starts = tuple(_start(name, device) for device, those in self.held.items() for name in those)
        lease = self.store.acquire_lease("scheduler", clock=lambda: self.now, ttl_ms=3_000)
        assert lease is not None
        plan = Plan(seen_version=self.store.version(), now=self.now, actions=starts)
        outcome = self.store.commit(plan, policy=POLICY, snapshot_digest="", lease=lease, now=self.now)
        assert isinstance(outcome, Committed), outcome

    def read(self) -> None:
        self.sequence += 1
        rows = [_row(device, self.held[device.id], self.now, self.sequence) for device in DEVICES]
        assert self.store.add_samples("scheduler", self.sequence, rows, now=self.now)

    def hour(self, every_s: int, times: int) -> None:
        """One hour with ``times`` readings, and the retention that runs once an hour."""
        begin = self.now
        for _ in range(times):
            self.now += every_s * SECOND
            self.read()
        self.now = begin + HOUR
        settings = GPUQuota()
        self.store.forget(
            now=self.now,
            jobs_ended_before=self.now - settings.keep_jobs_days * DAY,
            samples_before=self.now - settings.keep_samples_hours * HOUR,
            usage_before=self.now - settings.keep_usage_days * DAY,
        )

    def fill(self, days: int) -> None:
        whole = GPUQuota().keep_samples_hours
        for day in range(days):
            self.book(day)
            for hour in range(24):
                last = day == days - 1 and hour >= 24 - whole
                self.hour(*((10, 359) if last else (30, 2)))


def _request(name: str, number: int) -> RequestNotebook:
    return RequestNotebook(
        notebook=name, user=f"01KPERSON{number:017d}", server="", project=f"project-{number % PROJECTS:02d}",
        pool="train", gpu_milli=250,
    )  # fmt: skip


def _start(name: str, device: str) -> Start:
    part = Placement(rank=0, device=device, gpu_milli=250, memory_mib=35_000)
    return Start(workload=name, attempt=0, placements=(part,), borrower=False, reason=WITHIN)


def _row(device: Device, held: Sequence[str], now: int, turn: int) -> DeviceSample:
    use = {name: (turn * 7 + place * 13) % 60 for place, name in enumerate(held)}
    processes = {
        name: tuple(
            ProcessUse(
                handle=str(10_000 + depth),
                memory_mib=9_000,
                percent=use[name],
                places=(("pid:[4026531836]", 7, 99),) * 6,
            )
            for depth in range(2)
        )
        for name in held
    }
    return DeviceSample(
        node=device.node, device=device.id, at=now, utilisation_percent=50, memory_used_mib=72_000,
        coverage_permille=1000, simulated=False, workloads=use, workload_memory_mib=dict.fromkeys(held, 18_000),
        processes=processes, foreign_mib=0, temperature_c=60, power_w=500,
    )  # fmt: skip


def figures(quick: bool) -> list[Figure]:
    """The database after a month, the query of a day, and the cost of one reading."""
    days = 3 if quick else DAYS
    gc.freeze()  # as the service does
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder)}/gpu-quota.sqlite")
        month = Month(store)
        month.fill(days)
        asked = [_asked(store, BEGIN + day * DAY, month.now) for day in (0, days // 2, days - 1) for _ in range(3)]
        reading_s = _timed(month.read)
        store.close()
        size_mb = sum(each.stat().st_size for each in Path(folder).iterdir()) / 1e6
    size = f"{NOTEBOOKS} notebooks on {len(DEVICES)} devices, {days} days, SQLite"
    return [
        Figure(
            name="the database after a month of use", value=size_mb, unit="MB", bound=SIZE_MB,
            timed=f"all its files; {size}; single readings of the last hours at 10 s, sums of every hour",
        ),
        Figure(
            name="query of a day of use", value=max(asked) * 1000, unit="ms", bound=QUERY_MS,
            timed=f"the slowest of nine: the first, a middle and the last day, read and summed by project; {size}",
        ),
        Figure(
            name="a reading, stored and summed", value=reading_s * 1000, unit="ms",
            timed=f"median of 20, sums written with one in six; {size}",
        ),
    ]  # fmt: skip


def _asked(store: Store, begin: int, now: int) -> float:
    began = time.perf_counter()
    found = summed(store.usage(begin, begin + DAY, now=now), STORED["project"], {})
    took = time.perf_counter() - began
    assert len(found) == PROJECTS, "a project has no use"
    assert all(each.used_milli_s and each.allocated_s for each in found.values())
    return took


def _timed(read: Callable[[], None]) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        read()
        times.append(time.perf_counter() - began)
    return median(times)


if __name__ == "__main__":
    print_plainly(figures(quick=False))
