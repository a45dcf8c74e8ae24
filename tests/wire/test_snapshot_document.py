"""The documents of ``decide``: strict reading, the first wrong place by name, the same bytes whatever the order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.core.model import (
    Allocation,
    Amounts,
    Device,
    Job,
    JobState,
    Node,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Project,
    Reservation,
    Snapshot,
)
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument

NOW = 1_800_000_000_000


def device(index: int, pool: str = "train") -> Device:
    return Device(id=f"d{index}", node="n1", index=index, model="Sim 80G", memory_mib=81_920, pool=pool, simulated=True)


def job(name: str, project: str, **other: Any) -> Job:
    return Job(
        id=name,
        project=project,
        user=f"u-{project}",
        pool="train",
        gpu_milli=1000,
        submitted_at=NOW - 1000 * len(name),
        **other,
    )


def on(workload: str, index: int, milli: int = 1000) -> Allocation:
    return Allocation(
        id=f"a-{workload}",
        workload=workload,
        rank=0,
        device=f"d{index}",
        gpu_milli=milli,
        memory_mib=milli * 81_920 // 1000,
    )


def evening() -> tuple[Snapshot, Policy]:
    """Bob's four jobs fill the pool, two wait; patty claims two, and carol a slice."""
    long_ago = NOW - 10_000_000
    running = [job(f"b{i}", "bob", state=JobState.RUNNING, attempt=1, started_at=long_ago) for i in range(4)]
    waiting = [job("b44", "bob"), job("b55", "bob"), job("p1", "patty"), job("p2", "patty")]
    snapshot = Snapshot(
        version=7,
        now=NOW,
        nodes=(Node(id="n1", name="n1", cpu_milli=8000, memory_mib=64_000),),
        devices=(*(device(i) for i in range(4)), device(4, "build")),
        jobs=(*running, *waiting),
        notebooks=(
            Notebook(
                id="nb1",
                project="bob",
                user="u-bob",
                pool="build",
                gpu_milli=125,
                requested_at=1,
                state=NotebookState.BOOKED,
            ),
            Notebook(id="nb2", project="carol", user="u-carol", pool="build", gpu_milli=125, requested_at=2),
        ),
        allocations=(*(on(f"b{i}", i) for i in range(4)), on("nb1", 4, 125)),
    )
    half = Amounts(training_milli=2000)
    slices = Amounts(notebook_milli=250)
    policy = Policy(
        revision=3,
        pools=("train", "build"),
        projects=(
            Project(name="bob", amounts={"train": half, "build": slices}),
            Project(name="patty", amounts={"train": half}),
            Project(name="carol", amounts={"build": slices}),
        ),
    )
    return snapshot, policy


def document() -> dict[str, Any]:
    return json.loads(snapshotfile.write(*evening()))  # type: ignore[no-any-return]


def shuffled(found: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same facts with every array and every mapping in another order."""
    chance = random.Random(seed)
    snapshot = dict(found["snapshot"])
    for key in ("nodes", "devices", "jobs", "notebooks", "allocations", "reservations"):
        snapshot[key] = chance.sample(snapshot[key], len(snapshot[key]))
    policy = dict(found["policy"])
    policy["projects"] = chance.sample(policy["projects"], len(policy["projects"]))
    keys = chance.sample(sorted(snapshot), len(snapshot))
    return {"snapshot": {key: snapshot[key] for key in keys}, "policy": policy, "format": 1}


def test_a_snapshot_reads_back() -> None:
    snapshot, policy = evening()
    found = snapshotfile.read(snapshotfile.write(snapshot, policy))
    assert isinstance(found, SnapshotDocument)
    assert (found.snapshot, found.policy) == (snapshot, policy)


def test_the_recorded_plan_has_its_reasons() -> None:
    plan = snapshotfile.plan_document(decide(*evening()))
    found = sorted((action["action"], action["workload"]) for action in plan["actions"])  # type: ignore[index,call-overload,union-attr]
    assert ("start", "nb2") in found
    assert [kind for kind, _ in found].count("pause") == 2
    assert all(action["reason"]["message"] for action in plan["actions"])  # type: ignore[index,call-overload,union-attr]


def test_both_documents_follow_their_schemas() -> None:
    jsonschema.validate(document(), snapshotfile.snapshot_schema())
    plan = json.loads(json.dumps(snapshotfile.plan_document(decide(*evening()))))
    jsonschema.validate(plan, snapshotfile.plan_schema())
    plan["actions"][0]["action"] = "explode"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plan, snapshotfile.plan_schema())


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda d: d.update(x=1), "x: unexpected", id="an unknown key"),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][0].update(x=1),
            "snapshot.jobs.0.x: unexpected",
            id="an unknown key of a job",
        ),
        pytest.param(lambda d: d.update(format=2), "format: ", id="a format of the future"),
        pytest.param(
            lambda d: d["snapshot"].update(now="1"),
            "snapshot.now: '1' is not a whole number",
            id="a text for an instant",
        ),
        pytest.param(lambda d: d["snapshot"].update(now=1.5), "snapshot.now: ", id="a fraction of a millisecond"),
        pytest.param(lambda d: d["snapshot"].update(now=True), "snapshot.now: ", id="a truth value for an instant"),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][0].update(state="resting"),
            "snapshot.jobs.0.state",
            id="a state that is none",
        ),
        pytest.param(lambda d: d.pop("policy"), "policy: ", id="no policy"),
        pytest.param(
            lambda d: d["snapshot"]["jobs"].append(d["snapshot"]["jobs"][0]),
            "workload b0 is listed 2 times",
            id="a job twice",
        ),
        pytest.param(
            lambda d: d["snapshot"]["devices"].append(d["snapshot"]["devices"][0]),
            "device d0 is listed 2 times",
            id="a device twice",
        ),
        pytest.param(
            lambda d: d["snapshot"]["allocations"].append(d["snapshot"]["allocations"][0] | {"id": "a-x"}),
            "device d0: its allocations add up to 2000 milli",
            id="a device held twice",
        ),
        pytest.param(
            lambda d: d["snapshot"]["allocations"][4].update(memory_mib=90_000),
            "90000 MiB of 81920",
            id="more memory than there is",
        ),
        pytest.param(
            lambda d: d["snapshot"]["allocations"][0].update(device="d9"),
            "d9, which is not among the devices",
            id="an unknown device",
        ),
        pytest.param(
            lambda d: d["snapshot"]["allocations"][0].update(workload="gone"),
            "is of gone, which is not among the workloads",
            id="an allocation of a job that is gone",
        ),
        pytest.param(
            lambda d: d["snapshot"]["allocations"].pop(0),
            "b0 is running, and 0 of its 1 ranks have devices",
            id="a running job without a device",
        ),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][0].update(state="queued"),
            "b0, which is queued and has no devices",
            id="a queued job with a device",
        ),
        pytest.param(lambda d: d["snapshot"]["jobs"][4].update(state="failed"), "an ended job", id="an ended job"),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][4].update(gpu_milli=1500),
            "requests 1 x 1500 milli",
            id="a device and a half",
        ),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][4].update(gpu_milli=-1),
            "snapshot.jobs.4.gpu_milli is -1; it is from 0",
            id="less than nothing",
        ),
        pytest.param(
            lambda d: d["snapshot"]["jobs"][4].update(cpu_milli=-1),
            "snapshot.jobs.4.cpu_milli is -1",
            id="a job that gives CPU back",
        ),
        pytest.param(
            lambda d: d["snapshot"]["nodes"][0].update(memory_mib=-1),
            "snapshot.nodes.0.memory_mib is -1",
            id="a node with less than nothing",
        ),
        pytest.param(
            lambda d: d["snapshot"].update(
                demand=[{"gpu_milli": 1500, "cpu_milli": 0, "memory_mib": 0, "gpu_models": [], "count": 1}]
            ),
            "demand 0 is 1 times 1500 milli",
            id="demand for a device and a half",
        ),
        pytest.param(
            lambda d: d["snapshot"].update(
                demand=[{"gpu_milli": 500, "cpu_milli": 0, "memory_mib": 0, "gpu_models": [], "count": 0}]
            ),
            "demand 0 is 0 times",
            id="demand that was never seen",
        ),
        pytest.param(
            lambda d: d["snapshot"]["notebooks"][1].update(gpu_milli=1001),
            "requests 1001 milli",
            id="a slice beyond a device",
        ),
        pytest.param(
            lambda d: d["snapshot"]["notebooks"][1].update(lent_at=5),
            "a lent slice has both, and every other slice has neither",
            id="a slice that is lent and is not",
        ),
        pytest.param(
            lambda d: d["snapshot"]["notebooks"][1].update(activity="asleep"),
            "snapshot.notebooks.1.activity: ",
            id="a notebook that does what none does",
        ),
        pytest.param(
            lambda d: d["snapshot"]["nodes"][0].update(upkeep="gone"), "snapshot.nodes.0.upkeep: ", id="an odd upkeep"
        ),
        pytest.param(
            lambda d: d["snapshot"]["devices"][0].update(node="n2"), "node n2, which is not among", id="an unknown node"
        ),
        pytest.param(
            lambda d: d["snapshot"]["devices"][0].update(pool="x"),
            "pool x, which the policy does not have",
            id="an unknown pool",
        ),
        pytest.param(
            lambda d: d["policy"]["projects"][0]["amounts"]["train"].update(weight=-1),
            "policy.projects.0.amounts.train.weight is -1; it is from 0 to 1000000",
            id="a negative weight",
        ),
        pytest.param(
            lambda d: d["policy"].update(pools=["train", "train", "build"]),
            "pool train is listed 2 times",
            id="a pool twice",
        ),
        pytest.param(
            lambda d: d["policy"].update(patience_s=0), "policy.patience_s is 0; it is from 1 to", id="no patience"
        ),
        pytest.param(
            lambda d: d["policy"].update(within_project="luck"), "within_project is luck", id="an order that is none"
        ),
    ],
)
def test_an_invalid_document_is_refused_with_the_place(change: Change, words: str) -> None:
    broken = document()
    change(broken)
    found = snapshotfile.read(json.dumps(broken))
    assert isinstance(found, list)
    assert words in found[0]


def test_a_reservation_without_owner_or_devices_is_refused() -> None:
    snapshot, policy = evening()
    ghost = Reservation(
        workload="x", reserved_at=1, placements=(Placement(rank=0, device="d9", gpu_milli=1, memory_mib=1),)
    )
    text = snapshotfile.write(Snapshot(version=1, now=NOW, reservations=(ghost,)), policy)
    assert snapshotfile.read(text) == [
        "a reservation is for x, which is not among the workloads",
        "the reservation of x is on device d9, which is not among the devices",
    ]
    assert isinstance(snapshotfile.read(snapshotfile.write(snapshot, policy)), SnapshotDocument)


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_nothing_makes_the_reader_raise(text: str | bytes) -> None:
    assert isinstance(snapshotfile.read(text), list)


def decided(path: Path, seed: str, timezone: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": timezone}
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_quota", "decide", str(path)],
        env=environment,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_decide_prints_the_same_bytes_under_other_seeds_orders_and_time_zones(tmp_path: Path) -> None:
    printed = set()
    for seed, timezone in (("0", "UTC"), ("1", "America/New_York"), ("4242", "Asia/Kathmandu")):
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(shuffled(document(), int(seed))))
        printed.add(decided(path, seed, timezone))
    assert len(printed) == 1
    assert json.loads(printed.pop())["actions"]
