"""CPU, host memory and models: a rank is placed where all of it fits, and stopping work counts until it has ended."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import (
    Allocation,
    Amounts,
    Demand,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Policy,
    PreemptionPolicy,
    Project,
    Snapshot,
)
from jupyter_gpu_quota.core.placement.fragmentation import SEQUENCES, FragmentationScore, NodeKind, NodeState
from jupyter_gpu_quota.core.placement.ledger import Ledger
from jupyter_gpu_quota.core.placement.node_classes import costs
from jupyter_gpu_quota.core.placement.place import (
    EmptyPool,
    Fit,
    Piece,
    Refusal,
    Request,
    occupy,
    place,
    reserve,
    vacate,
)
from jupyter_gpu_quota.core.placement.workload_profile import ObservedDemand, commonest_requests, profile_of_jobs
from jupyter_gpu_quota.core.plan import Pause, Plan, Reserve, Start
from jupyter_gpu_quota.core.scheduling.decide import decide, decide_and_explain
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from jupyter_gpu_quota.messages.reasons import sentence

NOW = 1_000_000_000
SOME = (
    Demand(gpu_milli=810, cpu_milli=3000, memory_mib=5000, gpu_models=(), count=5),
    Demand(gpu_milli=1000, cpu_milli=12_000, memory_mib=40_000, gpu_models=(), count=5),
    Demand(gpu_milli=470, cpu_milli=12_000, memory_mib=40_000, gpu_models=(), count=3),
    Demand(gpu_milli=0, cpu_milli=12_000, memory_mib=40_000, gpu_models=(), count=2),
    Demand(gpu_milli=4000, cpu_milli=32_000, memory_mib=90_000, gpu_models=("A",), count=1),
)


def node(name: str, cpu: int = 0, memory: int = 0) -> Node:
    return Node(id=name, name=name, cpu_milli=cpu, memory_mib=memory)


def devices(name: str, models: str, pool: str = "t") -> list[Device]:
    return [
        Device(id=f"{name}{at}", node=name, index=at, model=model, memory_mib=1000, pool=pool)
        for at, model in enumerate(models)
    ]


def where(ledger: Ledger, request: Request) -> list[str]:
    fit = place(ledger, request)
    return [ledger.devices[piece.device].id for piece in fit.pieces] if isinstance(fit, Fit) else []


def two_nodes() -> Ledger:
    return Ledger([*devices("a", "XX"), *devices("b", "XY")], [node("a", 8000, 100), node("b", 16_000, 50)])


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        # R73
        pytest.param(Request(1000, 1, (), 8000), ["a0"], id="CPU that a node has exactly"),
        # R73
        pytest.param(Request(1000, 1, (), 8001), ["b0"], id="one milli more goes to the larger node"),
        pytest.param(Request(1000, 1, (), 16_001), [], id="more than any node has"),
        pytest.param(Request(1000, 1, (), 0, 51), ["a0"], id="memory counts too"),
        pytest.param(Request(1000, 1, (), 8001, 51), [], id="CPU on one node and memory on another are none"),
        pytest.param(Request(1000, 2, (), 8001), [], id="two ranks never share the same resources"),
        pytest.param(Request(1000, 3, (), 8000), ["a0", "b0", "b1"], id="each rank has its own resources"),
        pytest.param(Request(2000, 1, (), 8000), ["a0", "a1"], id="a rank of two devices needs its CPU once"),
        pytest.param(Request(500, 1, ("Y",), 100), ["b1"], id="one model of a mixed node"),
        pytest.param(Request(500, 1, ("Y", "Z")), ["b1"], id="several models, one of them there"),
        pytest.param(Request(2000, 1, ("X",), 16_000), [], id="two of a model on a node that has one"),
        pytest.param(Request(0, 1, (), 9000), ["b0"], id="work without a GPU finds a node"),
    ],
)
def test_a_request_is_placed_on_a_node_with_room_for_all_of_it(request_: Request, expected: list[str]) -> None:
    assert where(two_nodes(), request_) == expected


def test_an_amount_that_a_node_does_not_state_is_unlimited() -> None:
    assert where(Ledger(devices("a", "X"), [node("a")]), Request(1000, 1, (), 1 << 30, 1 << 30)) == ["a0"]
    assert where(Ledger(devices("a", "X"), []), Request(1000, 1, (), 1 << 30, 1 << 30)) == ["a0"]


# R73
def test_stopping_work_counts_until_it_is_gone_and_reserved_work_at_once() -> None:
    ledger = Ledger(devices("a", "XX"), [node("a", 8000)])
    running = [Piece(0, 0, 1000, 6000, 0)]
    occupy(ledger, running, borrowed=False)
    assert where(ledger, Request(1000, 1, (), 2000)) == ["a1"]
    assert where(ledger, Request(1000, 1, (), 2001)) == []
    vacate(ledger, running, borrowed=False)
    assert where(ledger, Request(1000, 1, (), 2001)) == []
    reserve(ledger, [Piece(0, 0, 1000, 5000, 0)], borrowed=False)
    assert where(ledger, Request(1000, 1, (), 2000)) == ["a1"]
    assert not ledger.is_overfull(0)
    reserve(ledger, [Piece(1, 1, 1000, 3001, 0)], borrowed=False)
    assert ledger.is_overfull(0)


def test_the_empty_pool_counts_cpu_by_node() -> None:
    empty = EmptyPool(two_nodes())
    assert [empty.ranks(Request(1000, 1, (), cpu)) for cpu in (0, 4000, 8000, 8001)] == [4, 4, 3, 1]
    assert [empty.ranks(Request(100, 1, (), 1000, memory)) for memory in (1, 10, 60)] == [24, 13, 1]
    assert not empty.fits(Request(1000, 1, (), -1))


def test_work_without_a_cpu_request_starts_on_a_node_whose_cpu_is_overcommitted() -> None:
    ledger = Ledger(devices("a", "XX"), [node("a", 4000)])
    occupy(ledger, [Piece(0, 0, 1000, 5000, 0)], borrowed=False)
    assert where(ledger, Request(1000, 1, (), 1)) == []
    assert where(Ledger(devices("a", "XX"), [node("a", 4000)], demand=SOME), Request(1000)) == ["a0"]
    ledger.set_demand(SOME)
    assert where(ledger, Request(1000)) == ["a1"]


# R73
def test_a_node_in_two_pools_gives_each_its_part() -> None:
    ledger = Ledger(devices("a", "X"), [node("a", 9000)], parts={"a": (1, 3)})
    assert where(ledger, Request(1000, 1, (), 3000)) == ["a0"]
    assert where(ledger, Request(1000, 1, (), 3001)) == []


@pytest.mark.parametrize("seed", range(12))
def test_updated_node_classes_equal_new_ones(seed: int) -> None:
    random = Random(seed)
    nodes = [node(name, 1000 * random.randint(8, 96), 1000 * random.randint(60, 400)) for name in "abcdef"]
    rows = [device for name in "abcdef" for device in devices(name, random.choice(["AAAA", "BB", "AB", "AAAAAAAA"]))]
    kept, taken = Ledger(rows, nodes, demand=SOME), list[tuple[Piece, ...]]()
    for _ in range(80):
        request = Request(random.choice([110, 470, 810, 1000, 4000]), 1, random.choice([(), ("A",)]),
                          random.choice([0, 3000, 12_500]), random.choice([0, 5000, 90_000]))  # fmt: skip
        fresh = Ledger(rows, nodes, demand=SOME)
        fresh.prices = kept.prices
        for pieces in taken:
            occupy(fresh, pieces, borrowed=False)
        mark, fit, anew = kept.mark(), place(kept, request), place(fresh, request)
        assert isinstance(fit, Fit) == isinstance(anew, Fit)
        if isinstance(fit, Fit) and isinstance(anew, Fit):
            assert _cost(fresh, fit.pieces, request) == _cost(fresh, anew.pieces, request)
            occupy(kept, fit.pieces, borrowed=False)
            if random.random() < 0.4:
                kept.undo(mark)
            else:
                taken.append(fit.pieces)


def _cost(ledger: Ledger, pieces: tuple[Piece, ...], request: Request) -> int:
    """The least that a request costs on the number of the node where it went, on a device as full as that one."""
    ledger.node_classes(borrowed=False).best((0, 0, 0, ()))
    classes = ledger.node_classes(borrowed=False)
    free = ledger.plain_now(pieces[0].device)
    shape = (request.gpu_milli, request.cpu_milli, request.memory_mib, request.gpu_models)
    number = classes._class_of[ledger.node_of[pieces[0].device]]
    return min(cost for cost, amount in costs(classes._states[number], shape, classes._worth) if amount == free)


@pytest.mark.parametrize("seed", range(8))
def test_plentiful_cpu_changes_no_placement(seed: int) -> None:
    random = Random(seed)
    rows = [device for name in "abcd" for device in devices(name, "XXXX")]
    plain, stated = Ledger(rows, []), Ledger(rows, [node(name, 1 << 30, 1 << 30) for name in "abcd"])
    for _ in range(40):
        milli = random.choice([125, 250, 500, 1000, 2000, 4000])
        one, other = place(plain, Request(milli)), place(stated, Request(milli, 1, (), 1))
        assert isinstance(one, Fit) == isinstance(other, Fit)
        if isinstance(one, Fit) and isinstance(other, Fit):
            assert plain.plain_now(one.pieces[0].device) == stated.plain_now(other.pieces[0].device)
            occupy(plain, one.pieces, borrowed=False)
            occupy(stated, [piece._replace(cpu_milli=1) for piece in one.pieces], borrowed=False)


# --- demand ---------------------------------------------------------------------------------------------------------
def test_the_observed_demand_is_renewed_in_growing_steps() -> None:
    seen, found = ObservedDemand(), []
    for number in range(40):
        rows = seen.note((1000 if number % 3 else 470, 1000, 1000, ()))
        if rows is not None:
            found.append((number + 1, sum(row.count for row in rows)))
    assert found == [(number, number) for number in (1, 2, 3, 4, 6, 9, 13, 19, 28)]


def test_the_workload_profile_counts_the_jobs_of_the_pool_by_rank() -> None:
    jobs = [job("a", "ann", 100), job("b", "ann", 100, ranks=2, state=JobState.RUNNING), job("c", "bob", 0)]
    assert {(row.gpu_milli, row.cpu_milli): row.count for row in profile_of_jobs(jobs)} == {
        (1000, 100): 3,
        (1000, 0): 1,
    }
    assert profile_of_jobs(reversed(jobs)) == profile_of_jobs(jobs)
    assert profile_of_jobs([job("a", "ann", 0)]) == ()


def test_one_more_job_seldom_changes_the_workload_profile() -> None:
    made = [profile_of_jobs([job(f"j{n}", "ann", 100) for n in range(count)]) for count in range(1, 101)]
    assert [row.count for (row,) in made[:14]] == [1, 2, 3, 4, 4, 6, 6, 8, 8, 8, 8, 12, 12, 12]
    assert len(set(made)) == 13


# R74
def test_decide_leaves_the_node_free_that_a_waiting_job_will_need() -> None:
    rows = (*devices("a", "X"), *devices("b", "X"))
    waiting = (job("small", "ann", 1000, gpu_milli=500), job("large", "bob", 8000, at=1))
    made = Snapshot(version=1, now=NOW, nodes=(node("a", 8000), node("b", 2000)), devices=rows, jobs=waiting)
    starts = {a.workload: a.placements[0].device for a in decide(made, POLICY).actions if isinstance(a, Start)}
    assert starts == {"small": "b0", "large": "a0"}


def test_a_profile_keeps_the_requests_that_ask_for_most_gpu() -> None:
    counts = {(milli, 0, 0, ()): 1 + (milli == 500) for milli in range(900, 100, -1)}
    rows = commonest_requests(counts)
    assert [row.gpu_milli for row in rows[:3]] == [500, 900, 899]
    assert len(rows) == 512


# R74
def test_the_score_counts_expected_work_and_whole_nodes_score_more_for_large_work() -> None:
    one = (Demand(gpu_milli=300, cpu_milli=1000, memory_mib=0, gpu_models=(), count=1),)
    kind = NodeKind(("X",), 1, 1, 2, 10_000, 0)
    states = [NodeState(kind, cpu, 0, free) for cpu, free in [(10_000, (1000,)), (2000, (1000,)), (10_000, (299,))]]
    assert [FragmentationScore(one).of(state) // SEQUENCES for state in states] == [900, 600, 0]
    large = (Demand(gpu_milli=2000, cpu_milli=1, memory_mib=0, gpu_models=(), count=1),)
    apart, together = (NodeState(kind, 100, 0, free) for free in [(0, 1000), (1000, 1000)])
    assert FragmentationScore(large).of(apart) == 0
    assert FragmentationScore(large).of(together) == 2000 * SEQUENCES


def test_demand_for_one_model_does_not_count_on_another() -> None:
    rows = (Demand(gpu_milli=500, cpu_milli=0, memory_mib=0, gpu_models=("A",), count=1),)
    ledger = Ledger([*devices("a", "A"), *devices("b", "B")], [node("a"), node("b")], demand=rows)
    assert where(ledger, Request(1000)) == ["b0"]


def test_plain_demand_keeps_the_plain_rule() -> None:
    rows = (Demand(gpu_milli=500, cpu_milli=0, memory_mib=0, gpu_models=(), count=9),)
    assert Ledger(devices("a", "X"), [], demand=rows).score is None


# --- decide -------------------------------------------------------------------------------------------------------
POLICY = Policy(
    revision=1,
    pools=("t",),
    projects=(
        Project(name="ann", amounts={"t": Amounts(training_milli=2000)}),
        Project(name="bob", amounts={"t": Amounts(training_milli=1000)}),
    ),
    preemption=PreemptionPolicy(min_runtime_s=0),
)


def job(name: str, project: str, cpu: int, at: int = 0, **more: object) -> Job:
    made = Job(id=name, project=project, user="u", pool="t", gpu_milli=1000, submitted_at=at, cpu_milli=cpu)
    return replace(made, **more)  # type: ignore[arg-type]


def running(name: str, project: str, cpu: int, device: str, **more: object) -> tuple[Job, Allocation]:
    made = job(name, project, cpu, state=JobState.RUNNING, started_at=NOW - 1000, **more)
    return made, Allocation(id=name, workload=name, rank=0, device=device, gpu_milli=1000, memory_mib=1000)


def plan(waiting: list[Job], rows: list[tuple[Job, Allocation]], cpu: int = 8000, **more: object) -> Plan:
    made = Snapshot(
        version=1,
        now=NOW,
        nodes=(node("a", cpu),),
        devices=tuple(devices("a", "XXX")),
        jobs=(*waiting, *(job for job, _ in rows)),
        allocations=tuple(allocation for _, allocation in rows),
    )
    return decide(replace(made, **more), POLICY)  # type: ignore[arg-type]


def said(plan: Plan) -> list[tuple[str, str]]:
    actions = [one for one in plan.actions if not isinstance(one, Reserve) or one.starts_at is None]
    return [(type(action).__name__.lower(), getattr(action, "workload", "")) for action in actions]


def test_a_job_waits_for_cpu_that_runs_elsewhere_on_the_node() -> None:
    assert said(plan([job("q", "ann", 4000)], [running("r", "ann", 4000, "a0")])) == [("start", "q")]
    assert said(plan([job("q", "ann", 4001)], [running("r", "ann", 4000, "a0")])) == []


def test_a_pausing_job_occupies_its_cpu_until_it_has_ended() -> None:
    leaves = running("r", "ann", 6000, "a0", target=JobTarget.PAUSED)
    leaves = (replace(leaves[0], state=JobState.PAUSING), leaves[1])
    assert ("start", "q") not in said(plan([job("q", "ann", 4000)], [leaves]))
    assert ("start", "q") in said(plan([job("q", "ann", 2000)], [leaves]))


# R73
@pytest.mark.parametrize("health", [Health.QUARANTINED, Health.UNHEALTHY])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSING])
def test_work_on_an_unavailable_device_occupies_the_cpu_of_its_node(state: JobState, health: Health) -> None:
    target = JobTarget.RUNNING if state is JobState.RUNNING else JobTarget.PAUSED
    one, allocation = running("r", "ann", 6000, "a0", preemptible=False, target=target)
    on = [(replace(one, state=state), allocation)]
    first, *others = devices("a", "XXX")
    out = (replace(first, health=health), *others)
    assert ("start", "q") not in said(plan([job("q", "bob", 4000)], on, devices=out))
    assert ("start", "q") in said(plan([job("q", "bob", 2000)], on, devices=out))


def test_a_smaller_job_starts_where_the_first_finds_no_cpu() -> None:
    found = said(plan([job("q", "ann", 9000), job("s", "ann", 1000, at=1)], []))
    assert found == [("start", "s")]


def test_a_claim_pauses_the_work_on_the_device_and_cpu_that_it_needs() -> None:
    rows = [running("r1", "bob", 3000, "a0"), running("r2", "bob", 3000, "a1"), running("r3", "bob", 2000, "a2")]
    made = plan([job("q", "ann", 3000)], rows)
    assert {type(action) for action in made.actions} == {Pause, Reserve}
    paused = [action.workload for action in made.actions if isinstance(action, Pause)]
    assert len(paused) == 1
    assert paused[0] in ("r1", "r2")


def test_a_claim_pauses_as_many_jobs_as_its_cpu_needs() -> None:
    rows = [running("r1", "bob", 2500, "a0"), running("r2", "bob", 2500, "a1"), running("r3", "bob", 2500, "a2")]
    assert [name for name, _ in said(plan([job("q", "ann", 3001)], rows))] == ["pause", "pause", "reserve"]
    assert [name for name, _ in said(plan([job("q", "ann", 3000)], rows))] == ["pause", "reserve"]


def situation(waiting: Job, rows: list[tuple[Job, Allocation]], *more: Device) -> Snapshot:
    return Snapshot(
        version=1,
        now=NOW,
        nodes=(node("a", 8000),),
        devices=(*devices("a", "XXX"), *more),
        jobs=(waiting, *(job for job, _ in rows)),
        allocations=tuple(held for _, held in rows),
    )


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        pytest.param(4001, "no node has 4.001 CPU and 0 MiB", id="a GPU is free, and CPU is short"),
        pytest.param(8001, "no node has 8.001 CPU and 0 MiB", id="no node is large enough"),
    ],
)
def test_the_reason_of_a_job_that_waits_for_cpu_names_cpu(cpu: int, words: str) -> None:
    made = situation(job("q", "ann", cpu), [running("r", "ann", 4000, "a0")])
    assert words in sentence(decide_and_explain(made, POLICY).waits["q"])
    assert words in explanation_sentence(explain(made, POLICY, "q"))


def test_the_reason_of_a_job_that_waits_for_a_gpu_does_not_name_cpu() -> None:
    made = situation(job("q", "ann", 5001), [running(f"r{at}", "ann", 1000, f"a{at}") for at in range(3)])
    assert "CPU" not in sentence(decide_and_explain(made, POLICY).waits["q"])


def test_an_explanation_counts_the_node_resources_of_other_pools() -> None:
    alone = situation(job("q", "ann", 4801), [])
    shared = situation(job("q", "ann", 4801), [], *(replace(d, id=f"u{d.id}") for d in devices("a", "ZZ", "u")))
    assert explain(alone, POLICY, "q").estimate_at == NOW
    assert "no node has 4.801 CPU" in explanation_sentence(explain(shared, POLICY, "q"))


def test_no_plan_ever_gives_more_cpu_than_a_node_has() -> None:
    for seed in range(60):
        random = Random(seed)
        jobs = [job(f"q{n:02d}", random.choice(["ann", "bob"]), random.choice([0, 500, 3000, 7000])) for n in range(6)]
        cpu = {one.id: one.cpu_milli for one in jobs}
        starts = [action.workload for action in plan(jobs, []).actions if isinstance(action, Start)]
        assert sum(cpu[name] for name in starts) <= 8000
        assert starts or all(milli > 8000 for milli in cpu.values())


def test_demand_in_the_snapshot_changes_the_device_and_not_the_start() -> None:
    waiting = [job(f"q{n}", "ann", 1000) for n in range(3)]
    without, with_demand = plan(waiting, []), plan(waiting, [], demand=SOME)
    assert sorted(said(without)) == sorted(said(with_demand))


def test_a_refusal_counts_the_ranks_for_which_there_was_cpu() -> None:
    assert place(two_nodes(), Request(500, 4, (), 8000)) == Refusal(possible_ranks=3)
