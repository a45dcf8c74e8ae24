"""The packing experiment on small clusters: through ``decide``, and the placement alone, one task at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import pytest

from jupyter_gpu_quota.core.plan import Plan
from jupyter_gpu_quota.simulate.packing import fill as filling
from jupyter_gpu_quota.simulate.packing.fill import MARKS, FillFigures, TaskPlacement, fill, offered
from jupyter_gpu_quota.simulate.packing.trace import ClusterTrace, TraceNode, TraceTask, Unreadable, read_folder
from tests.benchmarks.packing.mixes import MIXES
from tests.benchmarks.packing.one_by_one import Placer, Shipped, place_one_by_one
from tests.benchmarks.packing.peers import BestFit, BestFitByGpu, Gradient
from tests.benchmarks.packing.peers import Random as RandomPeer

Maker = Callable[[Sequence[TraceNode], Sequence[TraceTask]], Placer]
SHIPPED: Maker = lambda nodes, tasks: Shipped(nodes)  # noqa: E731 - a row of the table below
PLACERS = [
    pytest.param(SHIPPED, id="the shipped placement"),
    pytest.param(lambda nodes, tasks: RandomPeer(nodes, 1), id="random"),
    pytest.param(lambda nodes, tasks: BestFit(nodes), id="best-fit"),
    pytest.param(lambda nodes, tasks: BestFitByGpu(nodes), id="best-fit by GPU alone"),
    pytest.param(Gradient, id="FGD"),
]


def cluster(seed: int) -> ClusterTrace:
    """A few nodes of three kinds and tasks of every kind, some for one model only."""
    random = Random(seed)
    kinds = [(96_000, 393_216, 8, "G2"), (104_000, 524_288, 2, "T4"), (16_000, 122_880, 2, "P100")]
    nodes = []
    for number in range(random.randint(3, 9)):
        cpu, memory, gpus, model = random.choice(kinds)
        nodes.append(TraceNode(name=f"n{number}", cpu_milli=cpu, memory_mib=memory, gpus=gpus, model=model))
    tasks = tuple(_task(random, number) for number in range(120))
    return ClusterTrace(nodes=tuple(nodes), tasks=tasks)


def _task(random: Random, number: int) -> TraceTask:
    gpu = random.choice([0, 110, 230, 320, 470, 470, 810, 1000, 1000, 1000, 2000, 8000])
    model = random.choice([(), (), (), ("G2",), ("P100", "T4")])
    return TraceTask(
        name=f"t{number}",
        cpu_milli=random.choice([0, 3152, 4000, 11_908, 24_000, 88_000]),
        memory_mib=random.choice([0, 5600, 47_104, 200_000]),
        gpu_milli=gpu,
        models=model,
    )


class Books:
    """What is free on each node, kept from the spots alone; it says what is wrong with one."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self.nodes = nodes
        self.cpu = [node.cpu_milli for node in nodes]
        self.memory = [node.memory_mib for node in nodes]
        self.free = [[1000] * node.gpus for node in nodes]

    def fits(self, node: int, task: TraceTask) -> bool:
        if task.cpu_milli > self.cpu[node] or task.memory_mib > self.memory[node]:
            return False
        if task.models and self.nodes[node].model not in task.models:
            return False
        if task.gpu_milli <= 1000:
            return max(self.free[node]) >= task.gpu_milli
        return self.free[node].count(1000) >= task.gpu_milli // 1000

    def fault(self, task: TraceTask, placement: TaskPlacement | None) -> str | None:
        if placement is None:
            able = [node for node in range(len(self.nodes)) if self.fits(node, task)]
            return f"{task} was turned away and fits node {able[0]}" if able else None
        self.cpu[placement.node] -= task.cpu_milli
        self.memory[placement.node] -= task.memory_mib
        each = min(task.gpu_milli, 1000)
        for device in placement.devices:
            self.free[placement.node][device] -= each
        counted = each * len(set(placement.devices)) == task.gpu_milli and len(set(placement.devices)) == len(
            placement.devices
        )
        least = min(self.cpu[placement.node], self.memory[placement.node], *self.free[placement.node])
        allowed = not task.models or self.nodes[placement.node].model in task.models
        return None if counted and allowed and least >= 0 else f"{task} does not fit {placement}"


def faults(trace: ClusterTrace, figures: FillFigures, seed: int) -> list[str]:
    """Everything that is wrong with a run, found without the code that placed."""
    books = Books(trace.nodes)
    order = offered(trace.tasks, figures.capacity_milli * 130 // 100, seed)
    return [
        said
        for task, placement in zip(order, figures.placements, strict=True)
        if (said := books.fault(task, placement))
    ]


@pytest.mark.parametrize("make", PLACERS)
@pytest.mark.parametrize("seed", range(6))
def test_no_node_is_overfull_and_nothing_that_fits_is_rejected(make: Maker, seed: int) -> None:
    trace = cluster(seed)
    assert faults(trace, place_one_by_one(trace.nodes, trace.tasks, seed, make(trace.nodes, trace.tasks)), seed) == []


@pytest.mark.parametrize("waste", ["cpu_milli", "memory_mib"])
def test_the_checker_finds_a_placement_without_cpu_or_memory(waste: str) -> None:
    class Forgetful(Shipped):
        def offer(self, task: TraceTask) -> TaskPlacement | None:
            kept = {"cpu_milli": task.cpu_milli, "memory_mib": task.memory_mib, waste: 0}
            return super().offer(TraceTask(name=task.name, gpu_milli=task.gpu_milli, models=task.models, **kept))

    wrong = [
        bool(faults(trace, place_one_by_one(trace.nodes, trace.tasks, seed, Forgetful(trace.nodes)), seed))
        for seed in range(3)
        for trace in [cluster(seed)]
    ]
    assert any(wrong)


def spots_of(placer: Placer, tasks: Iterable[TraceTask]) -> list[TaskPlacement | None]:
    return [placer.offer(task) for task in tasks]


def depends_on_later_tasks(make: Maker, seed: int) -> bool:
    """Whether the first half of the tasks goes elsewhere when the second half is another."""
    trace, other = cluster(seed), cluster(seed + 1000)
    first = trace.tasks[:60]
    one, two = (*first, *trace.tasks[60:]), (*first, *other.tasks[60:])
    return spots_of(make(trace.nodes, one), one)[:60] != spots_of(make(trace.nodes, two), two)[:60]


def test_no_placement_depends_on_a_later_task() -> None:
    assert not any(depends_on_later_tasks(SHIPPED, seed) for seed in range(8))


def test_the_checker_finds_a_placement_that_knows_later_tasks() -> None:
    assert any(depends_on_later_tasks(Gradient, seed) for seed in range(8))


def test_tasks_are_offered_one_at_a_time() -> None:
    trace, events = cluster(3), list[str]()
    few = trace.tasks[:10]

    class Watched(Sequence[TraceTask]):
        """The tasks, drawn one by one; copies are read through here."""

        def __getitem__(self, at: object) -> TraceTask:
            events.append("drawn")
            return few[at]  # type: ignore[index]

        def __len__(self) -> int:
            return len(few)

    class Recording(Shipped):
        def offer(self, task: TraceTask) -> TaskPlacement | None:
            events.append("offered")
            return super().offer(task)

    place_one_by_one(trace.nodes, Watched(), 3, Recording(trace.nodes), demand=1000)
    copies = events[events.index("offered") + len(few) :]
    assert len(copies) > 10
    assert "drawn drawn" not in " ".join(copies)


def test_equal_seeds_give_equal_runs_and_other_seeds_other_ones() -> None:
    trace = cluster(7)
    assert fill(trace.nodes, trace.tasks, 1) == fill(trace.nodes, trace.tasks, 1)
    assert fill(trace.nodes, trace.tasks, 1).placements != fill(trace.nodes, trace.tasks, 2).placements


def test_the_marks_have_the_allocation_at_that_demand() -> None:
    nodes = [TraceNode(name="n", cpu_milli=8000, memory_mib=1000, gpus=1, model="X")]
    tasks = [TraceTask(name="t", cpu_milli=1000, memory_mib=1, gpu_milli=300)]
    figures = fill(nodes, tasks, 42)
    assert figures.placements == (*[TaskPlacement(node=0, devices=(0,))] * 3, None, None)
    assert [figures.percent(mark) for mark in MARKS] == [90.0] * 4


def test_copies_are_appended_until_the_demand_is_reached() -> None:
    tasks = [TraceTask(name=f"t{n}", cpu_milli=0, memory_mib=0, gpu_milli=400) for n in range(4)]
    assert sum(task.gpu_milli for task in offered(tasks, 2600, 1)) == 2800
    assert sorted(task.name for task in list(offered(tasks, 2600, 1))[:4]) == ["t0", "t1", "t2", "t3"]


def test_tasks_stop_when_the_demand_is_reached() -> None:
    tasks = [TraceTask(name=f"t{n}", cpu_milli=0, memory_mib=0, gpu_milli=400) for n in range(4)]
    assert len(list(offered(tasks, 800, 1))) == 2


def test_tasks_without_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="no GPU"):
        fill(cluster(1).nodes, [TraceTask(name="t", cpu_milli=1, memory_mib=1, gpu_milli=0)], 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_score_leaves_more_whole_devices_free_than_best_fit(seed: int) -> None:
    nodes = [TraceNode(name=f"n{n}", cpu_milli=96_000, memory_mib=393_216, gpus=8, model="G2") for n in range(24)]
    light = [TraceTask(name=f"a{n}", cpu_milli=3000, memory_mib=5600, gpu_milli=810) for n in range(60)]
    heavy = [TraceTask(name=f"b{n}", cpu_milli=24_000, memory_mib=50_000, gpu_milli=1000) for n in range(40)]
    rest = [TraceTask(name=f"c{n}", cpu_milli=11_000, memory_mib=47_000, gpu_milli=470) for n in range(80)]
    tasks = [*light, *heavy, *rest, TraceTask(name="d", cpu_milli=88_000, memory_mib=300_000, gpu_milli=8000)]
    ours = fill(nodes, tasks, seed).percent(130)
    assert ours > place_one_by_one(nodes, tasks, seed, BestFitByGpu(nodes)).percent(130)


@pytest.mark.parametrize("mix", MIXES)
def test_the_other_mixes_request_as_much_as_the_trace(mix: str) -> None:
    trace = cluster(5)
    made = MIXES[mix](trace)
    assert made.nodes == trace.nodes
    assert MIXES[mix](trace) == made
    assert sum(task.gpu_milli for task in made.tasks) >= sum(node.gpus for node in trace.nodes) * 900


@pytest.mark.parametrize("seed", range(4))
def test_allocation_never_exceeds_the_requests_so_far(seed: int) -> None:
    nodes = [TraceNode(name="n", cpu_milli=64_000, memory_mib=400_000, gpus=2, model="X")]
    tasks = [TraceTask(name="t", cpu_milli=1000, memory_mib=1, gpu_milli=milli) for milli in (800, 300, 1000, 50)]
    figures = fill(nodes, tasks, seed)
    assert len(figures.asked_milli) == len(figures.allocated_milli) == 130
    assert all(given <= asked for asked, given in zip(figures.asked_milli, figures.allocated_milli, strict=True))
    assert all(figures.asked_milli[mark - 1] >= 20 * mark for mark in MARKS)


# --- through decide -------------------------------------------------------------------------------------------------
def test_no_task_is_placed_without_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = cluster(1)
    monkeypatch.setattr(
        filling, "decide", lambda snapshot, policy, cache: Plan(now=snapshot.now, seen_version=snapshot.version)
    )
    assert fill(trace.nodes, trace.tasks, 1).allocated_milli[-1] == 0


@pytest.mark.parametrize("seed", range(6))
def test_decide_overfills_no_node_and_leaves_out_nothing_that_fits(seed: int) -> None:
    trace = cluster(seed)
    figures = fill(trace.nodes, trace.tasks, seed)
    books, order = Books(trace.nodes), list(offered(trace.tasks, figures.capacity_milli * 130 // 100, seed))
    placed = [(task, placement) for task, placement in zip(order, figures.placements, strict=True) if placement]
    assert [said for task, placement in placed if (said := books.fault(task, placement))] == []
    left = [
        task for task, placement in zip(order, figures.placements, strict=True) if placement is None and task.gpu_milli
    ]
    assert not [task for task in left if any(books.fits(node, task) for node in range(len(trace.nodes)))]
    assert sum(task.gpu_milli for task, _ in placed) == figures.allocated_milli[-1]


# --- the reader ---------------------------------------------------------------------------------------------------
NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\nb,96000,393216,8,G2\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "one,4000,2000,1,460,,LS\nnone,100,1,0,0,,BE\nmany,1,1,2,1000,G2|P100,LS\n"
)


def wrote(folder: Path, nodes: str = NODES, pods: str = PODS) -> Path:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "pods_default.csv").write_text(pods)
    return folder


def test_a_folder_is_read(tmp_path: Path) -> None:
    assert read_folder(wrote(tmp_path)) == ClusterTrace(
        nodes=(
            TraceNode(name="a", cpu_milli=64_000, memory_mib=262_144, gpus=2, model="P100"),
            TraceNode(name="b", cpu_milli=96_000, memory_mib=393_216, gpus=8, model="G2"),
        ),
        tasks=(
            TraceTask(name="one", cpu_milli=4000, memory_mib=2000, gpu_milli=460),
            TraceTask(name="none", cpu_milli=100, memory_mib=1, gpu_milli=0),
            TraceTask(name="many", cpu_milli=1, memory_mib=1, gpu_milli=2000, models=("G2", "P100")),
        ),
    )


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        pytest.param(NODES.replace("64000", "-1"), PODS, "nodes.csv, line 2: cpu_milli is '-1'", id="less than no CPU"),
        pytest.param(
            NODES.replace("64000", "6e4"), PODS, "nodes.csv, line 2: cpu_milli is '6e4'", id="not a whole one"
        ),
        pytest.param(NODES.replace("\nb,", "\na,"), PODS, "nodes.csv, line 3: a was there before", id="a node twice"),
        pytest.param(NODES.replace(",8,", ",0,"), PODS, "nodes.csv, line 3: gpu is '0'", id="a node without a GPU"),
        pytest.param(
            NODES.replace("model\n", "mod\n"), PODS, "line 1: the column model", id="a column that is missing"
        ),
        pytest.param(NODES + "c,1\n", PODS, "nodes.csv, line 4: 2 fields", id="a truncated line"),
        pytest.param(NODES.splitlines()[0] + "\n", PODS, "nodes.csv has no rows", id="no nodes"),
        pytest.param(NODES, PODS.replace("460", "1001"), "line 2: gpu_milli is '1001'", id="more than a device"),
        pytest.param(NODES, PODS.replace("460", ""), "line 2: gpu_milli is ''", id="one GPU of unknown size"),
        pytest.param(
            NODES, PODS.replace("2,1000", "2,500"), "line 4: gpu_milli is '500'", id="two halves for one task"
        ),
        pytest.param(NODES, PODS.replace("G2|P100", "G2|"), "line 4: gpu_spec is 'G2|'", id="a model without a name"),
        pytest.param(NODES, PODS.replace("many,", "one,"), "line 4: one was there before", id="a task twice"),
        pytest.param(
            NODES,
            PODS.replace("4000,2000", '"4000,2000'),
            "pods_default.csv: unexpected end",
            id="an unterminated quote",
        ),
        pytest.param("\x1f", PODS, "nodes.csv, line 1: the column sn must be there once", id="another file"),
        pytest.param(NODES, PODS.replace("460", "9" * 5000), "line 2: gpu_milli is", id="a number that is too long"),
    ],
)
def test_a_fault_is_refused_with_its_file_and_line(nodes: str, pods: str, said: str, tmp_path: Path) -> None:
    found = read_folder(wrote(tmp_path, nodes, pods))
    assert isinstance(found, Unreadable)
    assert said in found.sentence


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert isinstance(read_folder(wrote(tmp_path, "\ufeff" + NODES, "\ufeff" + PODS)), ClusterTrace)


def test_a_file_of_another_encoding_is_refused_with_its_name(tmp_path: Path) -> None:
    (wrote(tmp_path) / "nodes.csv").write_bytes(b"\x1f\x8b\x08")
    found = read_folder(tmp_path)
    assert isinstance(found, Unreadable) and found.sentence.startswith("nodes.csv is not UTF-8 text")


def test_a_folder_with_two_task_files_needs_a_file_name(tmp_path: Path) -> None:
    wrote(tmp_path)
    (tmp_path / "pods_other.csv").write_text(PODS)
    found = read_folder(tmp_path)
    assert isinstance(found, Unreadable)
    assert "pods_default.csv, pods_other.csv" in found.sentence
    assert isinstance(read_folder(tmp_path, "pods_other.csv"), ClusterTrace)


def test_a_file_without_the_optional_columns_has_tasks_for_any_model(tmp_path: Path) -> None:
    found = read_folder(wrote(tmp_path, pods="name,cpu_milli,memory_mib,num_gpu,gpu_milli\none,4000,2000,1,460\n"))
    assert isinstance(found, ClusterTrace)
    assert found.tasks == (TraceTask(name="one", cpu_milli=4000, memory_mib=2000, gpu_milli=460),)


def test_an_optional_column_may_not_be_there_twice(tmp_path: Path) -> None:
    found = read_folder(wrote(tmp_path, pods=PODS.replace(",qos", ",gpu_spec")))
    assert isinstance(found, Unreadable) and "line 1: the column gpu_spec must be there once" in found.sentence


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert isinstance(read_folder(tmp_path / "gone", "pods_default.csv"), Unreadable)


@pytest.mark.parametrize(("lines", "said"), [(3, None), (2, "nodes.csv, line 3: no more than 2 lines are read")])
def test_a_file_with_too_many_lines_is_refused(
    lines: int, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.simulate.packing.trace.MAX_LINES", lines)
    found = read_folder(wrote(tmp_path, pods="\n".join(PODS.splitlines()[:2]) + "\n"))
    assert isinstance(found, Unreadable) if said else isinstance(found, ClusterTrace)
    assert said is None or said in found.sentence  # type: ignore[union-attr]
