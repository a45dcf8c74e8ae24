"""The weighted mixes of the packing benchmark on a tiny cluster, and the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jupyter_gpu_quota.simulate.packing.fill import capacity_milli
from jupyter_gpu_quota.simulate.packing.trace import ClusterTrace, TraceNode, TraceTask
from tests.benchmarks.packing import weighted
from tests.benchmarks.packing.openb import PLACEMENT

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def trace() -> ClusterTrace:
    """Two nodes of each of two models, and tasks that request about what the nodes have."""
    random = Random(1)
    nodes = [
        TraceNode(name=f"{model}{at}", cpu_milli=64_000, memory_mib=256_000, gpus=8, model=model)
        for model in ("T4", "G2")
        for at in range(2)
    ]
    tasks = [
        TraceTask(
            name=f"t{at}", cpu_milli=2000, memory_mib=4000, gpu_milli=random.choice([250, 500, 1000, 1000, 2000, 8000])
        )
        for at in range(40)
    ]
    return ClusterTrace(nodes=tuple(nodes), tasks=tuple(tasks))


def test_a_mix_requests_98_percent_with_so_many_times_the_tasks_of_several_gpus(trace: ClusterTrace) -> None:
    many = [sum(task.gpu_milli > 1000 for task in trace.tasks) / len(trace.tasks)]
    for times in (1, 2):
        made = [weighted.more_multi_gpu(trace, times, seed).tasks for seed in range(60)]
        assert all(sum(task.gpu_milli for task in tasks) >= capacity_milli(trace.nodes) * 98 // 100 for tasks in made)
        drawn = [task for tasks in made for task in tasks]
        many.append(sum(task.gpu_milli > 1000 for task in drawn) / len(drawn))
    assert many[1] == pytest.approx(many[0], abs=0.07) and many[2] > 1.4 * many[1]


@pytest.mark.parametrize("percent", [0, 100])
def test_so_many_percent_of_the_gpu_tasks_are_tied(trace: ClusterTrace, percent: int) -> None:
    made = weighted.tied(trace, percent, 1, weighted.by_devices(trace)).tasks
    assert sum(bool(task.models) for task in made) == len(made) * percent // 100
    assert {task.models for task in made} == ({("T4",), ("G2",)} if percent else {()})


def test_a_run_is_repeated_only_if_the_file_does_not_have_it(
    trace: ClusterTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighted, "read_trace", lambda: trace)
    file, policies = tmp_path / "rows.jsonl", ["FGD", PLACEMENT]
    weighted.measure(file, ["33 % tied"], policies[:1], [42])
    weighted.measure(file, ["33 % tied"], policies, [42])
    weighted.measure(file, ["33 % tied"], policies, [42])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["policy"] for row in rows] == policies
    for row in rows:
        assert len(row["percent"]) == len(weighted.LOADS) and row["percent"] == sorted(row["percent"])
        assert 50 < row["percent"][0] < 75 and row["percent"][-1] <= 100


def _row(policy: str, seed: int, percent: float) -> dict[str, Any]:
    return {"mix": "default", "policy": policy, "seed": seed, "percent": [percent] * len(weighted.LOADS)}


def test_means_are_of_the_seeds_that_all_placements_have() -> None:
    rows = [_row("FGD", 42, 90), _row("FGD", 43, 80), _row(PLACEMENT, 42, 88), _row(PLACEMENT, 44, 99)]
    means = weighted.paired(rows)
    assert {policy: (each[0], seeds) for (_, policy), (each, seeds) in means.items()} == {
        "FGD": (90, 1), PLACEMENT: (88, 1),
    }  # fmt: skip
    fgd, shipped = weighted.table(means).splitlines()[2:]
    assert "| 90.00 | 90.00 |" in fgd and "| **88.00** | **88.00** |" in shipped


def test_the_page_shows_the_stored_runs() -> None:
    rows = [json.loads(line) for line in (DOCS / "figures" / "weighted.jsonl").read_text().splitlines()]
    assert f"\n{weighted.table(weighted.paired(rows))}\n" in (DOCS / "explanation" / "packing.md").read_text()
