"""The packing experiment on the public openb trace: the shipped ``decide`` beside published and re-implemented ones.

``python -m tests.benchmarks.packing.openb [--seeds 42 43] [--mixes] [--peers] [--json FILE]``. The trace is read from
the folder in GPU_QUOTA_OPENB, else from ``../shared/data/openb`` beside the checkout. Published: as printed in
"Beware of Fragmentation" (USENIX ATC 2023). Re-implemented: from that paper, in this harness. Seconds are CPU time, as
other processes share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from jupyter_gpu_quota.simulate.packing.fill import MARKS, fill
from jupyter_gpu_quota.simulate.packing.trace import ClusterTrace, Unreadable, read_folder
from tests.benchmarks.figures import Figure
from tests.benchmarks.packing.mixes import MIXES
from tests.benchmarks.packing.one_by_one import Placer, Shipped, place_one_by_one
from tests.benchmarks.packing.peers import BestFit, BestFitByGpu, Gradient, Random

SEEDS = tuple(range(42, 52))
PUBLISHED = {
    "random": (86.30, 86.88, 87.28, 87.47),
    "dot-product": (90.62, 90.70, 90.77, 90.85),
    "GPU clustering": (91.65, 91.73, 91.80, 91.88),
    "GPU packing": (91.78, 91.86, 91.92, 92.00),
    "best-fit": (92.86, 92.94, 93.00, 93.08),
    "FGD": (95.23, 95.30, 95.35, 95.39),
}
MIN_ALLOCATED_PERCENT = {100: 95.4, 130: 96.0}
"""The least allocated percent by offered percent; it is also at least that of every peer."""
SECONDS, PEER_SEEDS = 60.0, 3
"""The most seconds of a run, of 65 plans, and the number of seeds for the peers in the table of all figures."""
CLUSTER = "1,213 nodes, 6,212 GPUs, nothing ends"
SHAPE = f"{CLUSTER}; each plan of decide starts tasks that ask for 2 % of the GPU, others place one at a time"
Maker = Callable[[ClusterTrace, int], Placer]
PLACEMENT = "the placement of decide, one task at a time"
POLICIES: dict[str, Maker] = {
    "random": lambda trace, seed: Random(trace.nodes, seed),
    "best-fit": lambda trace, _: BestFit(trace.nodes),
    "best-fit by GPU alone": lambda trace, _: BestFitByGpu(trace.nodes),
    "FGD": lambda trace, _: Gradient(trace.nodes, trace.tasks),
    PLACEMENT: lambda trace, _: Shipped(trace.nodes),
}
OURS = "ours"
"""The policy that runs ``decide``."""
PEERS = [name for name in POLICIES if name != PLACEMENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one mix: mean allocated percent at each mark, and the slowest run."""

    mix: str
    policy: str
    percent: tuple[float, ...]
    by_seed: tuple[tuple[float, ...], ...]
    slowest_s: float


def folder() -> Path | None:
    """The folder of the trace; None if it does not exist."""
    named = os.environ.get("GPU_QUOTA_OPENB")
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "openb"
    trace = Path(named) if named else beside
    return trace if trace.is_dir() else None


def run(trace: ClusterTrace, mix: str, policy: str, seeds: Sequence[int]) -> Row:
    """Every seed of one policy."""
    by_seed, slowest = [], 0.0
    for seed in seeds:
        began = time.process_time()
        if policy == OURS:
            figures = fill(trace.nodes, trace.tasks, seed)
        else:
            figures = place_one_by_one(trace.nodes, trace.tasks, seed, POLICIES[policy](trace, seed))
        slowest = max(slowest, time.process_time() - began)
        by_seed.append(tuple(round(figures.percent(mark), 3) for mark in MARKS))
    means = tuple(round(mean(column), 3) for column in zip(*by_seed, strict=True))
    return Row(mix=mix, policy=policy, percent=means, by_seed=tuple(by_seed), slowest_s=round(slowest, 2))


def figures(quick: bool = False) -> list[Figure]:
    """The shipped decide and the peers on all mixes; none, with a message, where the trace is missing.

    A quick run uses one seed of the default mix.
    """
    place = folder()
    if place is None:
        print("openb: the trace is not here; name its folder in GPU_QUOTA_OPENB.", file=sys.stderr)
        return []
    trace = _read(place)
    return [*_of_default(trace, quick=quick), *([] if quick else _of_mixes(trace)), _of_placement(trace)]


def _of_default(trace: ClusterTrace, *, quick: bool) -> list[Figure]:
    seeds = SEEDS[:1] if quick else SEEDS
    ours = run(trace, "default", OURS, seeds)
    peers = [run(trace, "default", name, seeds[:PEER_SEEDS]) for name in PEERS]
    timed = f"{SHAPE}; mean of seeds {seeds[0]}-{seeds[-1]}"
    return [
        *(_allocated(ours, peers, mark, least, timed) for mark, least in MIN_ALLOCATED_PERCENT.items()),
        Figure(
            name="openb, slowest run", value=ours.slowest_s, unit="s", timed=f"CPU time of a run; {timed}",
            bound=SECONDS, peers="the simulator of the paper: about 17 min on two cores, measured",
        ),
    ]  # fmt: skip


def _allocated(ours: Row, peers: Sequence[Row], mark: int, least: float, timed: str) -> Figure:
    """The allocation at an offered percentage; the bound is raised to the best peer."""
    at = MARKS.index(mark)
    published = [(row[at], f"{name} {row[at]:.2f} published") for name, row in PUBLISHED.items()]
    again = [(row.percent[at], f"{row.policy} {row.percent[at]:.2f} re-implemented, {len(row.by_seed)} seeds")
             for row in peers]  # fmt: skip
    strongest = sorted([*again, *published], reverse=True)
    return Figure(
        name=f"openb, GPU allocated at {mark} % offered", value=ours.percent[at], unit="%", timed=timed,
        least=max(least, strongest[0][0]), peers="; ".join(label for _, label in strongest),
    )  # fmt: skip


def _of_mixes(trace: ClusterTrace) -> list[Figure]:
    """Other mixes with one seed, beside FGD."""
    found = []
    for mix, make in MIXES.items():
        world = make(trace)
        ours, peer = run(world, mix, OURS, SEEDS[:1]), run(world, mix, "FGD", SEEDS[:1])
        beside = f"FGD {peer.percent[-1]:.2f} re-implemented, the same seed"
        timed = f"{SHAPE}; seed {SEEDS[0]}"
        name = f"openb, {mix}: GPU allocated at 130 % offered"
        found.append(
            Figure(name=name, value=ours.percent[-1], unit="%", timed=timed, least=peer.percent[-1], peers=beside)
        )
    return found


def _of_placement(trace: ClusterTrace) -> Figure:
    row = run(trace, "default", PLACEMENT, SEEDS[:1])
    timed = f"{CLUSTER}; {PLACEMENT}; seed {SEEDS[0]}; {row.slowest_s:.1f} s CPU"
    return Figure(
        name="openb by placement, GPU allocated at 130 % offered", value=row.percent[-1], unit="%", timed=timed
    )


def _read(place: Path) -> ClusterTrace:
    found = read_folder(place)
    if isinstance(found, Unreadable):
        raise SystemExit(found.sentence)
    return found


def read_trace() -> ClusterTrace:
    """The trace; ends the program where it is missing."""
    place = folder()
    if place is None:
        raise SystemExit("The trace is not here; name its folder in GPU_QUOTA_OPENB.")
    return _read(place)


def show(console: Console, rows: Sequence[Row]) -> None:
    """The table of one mix after the other, published figures first where there are any."""
    for mix in dict.fromkeys(row.mix for row in rows):
        table = Table(title=f"openb, {mix}: allocated GPU in % by offered GPU", title_justify="left")
        for heading in ("policy", "how obtained", *(f"{mark} %" for mark in MARKS), "slowest run"):
            table.add_column(heading, justify="left" if heading in ("policy", "how obtained") else "right")
        for name, percent in PUBLISHED.items() if mix == "default" else ():
            table.add_row(name, "published", *(f"{value:.2f}" for value in percent), "")
        for row in (row for row in rows if row.mix == mix):
            how = "measured" if row.policy in (OURS, PLACEMENT) else "re-implemented"
            seeds = f"{how}, {len(row.by_seed)} seeds"
            table.add_row(row.policy, seeds, *(f"{value:.2f}" for value in row.percent), f"{row.slowest_s:.1f} s")
        console.print(table)


def main() -> None:
    """Print the requested tables; exit with 1 where the trace is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--peers", action="store_true", help="the re-implemented placements too")
    parser.add_argument(
        "--mixes", nargs="*", choices=MIXES, help="other mixes made from the trace; all where none named"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    trace = read_trace()
    mixes = ["default"] if args.mixes is None else args.mixes or list(MIXES)
    rows = []
    for mix in mixes:
        world = MIXES[mix](trace) if mix in MIXES else trace
        for policy in (*POLICIES, OURS) if args.peers else (OURS,):
            rows.append(run(world, mix, policy, args.seeds))
            print(rows[-1], file=sys.stderr)
    show(Console(width=110), rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
