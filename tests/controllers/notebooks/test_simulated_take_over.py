"""Take-overs beside a notebook on a simulated device: a report that the previous leader did not see is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.idle.activity import GpuSample
from jupyter_gpu_quota.store.memory import MemoryStore
from tests.api.world import QUOTA, service_world
from tests.controllers.setups.notebook import IDLE, MINUTE, NOW, SECOND, Watched

REPORT_EVERY_MS = 30 * SECOND


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Watched]:
    with service_world(tmp_path, store=MemoryStore()) as world:
        world.apply(QUOTA + IDLE.replace("MODE", "reclaim"))
        yield Watched(world)


def report(notebook: Watched, *, unseen: bool = False, cpu_ms: int = 0) -> None:
    """One report and one run; ``unseen``: the leader ends before it sees the report."""
    notebook.now += REPORT_EVERY_MS
    notebook.kernels = [notebook.kernel("k1", cpu_ms=cpu_ms)]
    notebook.send()
    if unseen:
        notebook.world.controllers.take_over()
    notebook.run_controller()


def samples(notebook: Watched) -> tuple[GpuSample, ...]:
    return notebook.idleness.histories.activity(notebook.id, kept_at=None, holding=()).samples


@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_take_over_loses_no_sample(notebook: Watched, every: int) -> None:
    for step in range(10):
        report(notebook, unseen=bool(every) and step % every == 0)
    assert [sample.at - NOW for sample in samples(notebook)] == [n * REPORT_EVERY_MS for n in range(2, 11)]
    assert {sample.percent for sample in samples(notebook)} == {0}


def test_the_use_since_the_last_noted_report_is_counted(notebook: Watched) -> None:
    report(notebook)
    report(notebook, unseen=True, cpu_ms=REPORT_EVERY_MS // 2)
    assert [sample.percent for sample in samples(notebook)] == [50]


def test_a_chain_of_take_overs_withdraws_no_warning(notebook: Watched) -> None:
    while "notebook.warned" not in notebook.audited():
        report(notebook)
        assert notebook.now < NOW + 30 * MINUTE
    for _ in range(9):
        report(notebook, unseen=True)
    assert "notebook.withdrawn" not in notebook.audited()
    for _ in range(2):
        report(notebook, unseen=True)
    kinds = [kind for kind in notebook.audited() if kind.endswith(("warned", "withdrawn", "freeing"))]
    assert kinds == ["notebook.warned", "notebook.freeing"]
