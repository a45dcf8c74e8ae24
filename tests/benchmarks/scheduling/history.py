"""Surplus by weight with past use: endless equal demand, three weights, on the shipped controller.

``python -m tests.benchmarks.scheduling.history``: 8 GPUs; projects of weight 1, 2 and 4, each with a training quota of
one GPU and more one-GPU jobs of four hours than ever run; k is 1, the window a week, the half-life two days.
"""

from __future__ import annotations

from jupyter_gpu_quota.simulate import worlds
from jupyter_gpu_quota.simulate.report import Outcome, simulate_trace
from jupyter_gpu_quota.simulate.tracefile import JobWork, NodeSpec, Trace
from tests.benchmarks.figures import Figure, print_plainly

DAY_MS, WEEK_MS = 86_400_000, 7 * 86_400_000
GPUS, WEIGHTS, QUOTA = 8, {"one": 1, "two": 2, "four": 4}, 1
LASTS_S = 14_400
PERCENT_OFF = 5.0
"""P15: so far may a project's part of the surplus be from its weight's, in percent of it."""


def trace(days: int) -> Trace:
    """Everybody's jobs, all there from the first moment."""
    jobs = GPUS * days * 86_400 // LASTS_S
    work = [_job(name, number) for number in range(jobs) for name in WEIGHTS]
    quotas = {
        "version": 1,
        "pools": [{"name": "shared"}],
        "projects": [
            {"name": name, "quota": {"shared": {"training": QUOTA, "weight": weight}}}
            for name, weight in WEIGHTS.items()
        ],
        "policy": {"history": {"k": 1, "half_life": "2d", "window": "7d"}},
    }
    return Trace(nodes=[NodeSpec(name="node", gpus=GPUS)], work=list(work), quotas=quotas)


def _job(project: str, number: int) -> JobWork:
    return JobWork.model_validate(
        {
            "kind": "training",
            "id": f"{project}-{number:05d}",
            "submit_s": 0,
            "project": project,
            "gpu": 1,
            "duration_s": LASTS_S,
            "checkpoint_every_s": 600,
            "saves_in_s": 10,
        }
    )


def surplus_of(outcome: Outcome, begin: int, end: int) -> dict[str, float]:
    """Each project's part of the GPU time above the quotas, between two instants."""
    used = {name: outcome.record.used_by[name, "shared"].area(begin, end) for name in WEIGHTS}
    above = {name: milli - 1000 * QUOTA * (end - begin) for name, milli in used.items()}
    return {name: milli / sum(above.values()) for name, milli in above.items()}


def figures(days: int = 14) -> list[Figure]:
    """How far each project's part of the last week's surplus is from its weight's."""
    made = trace(days)
    outcome = simulate_trace(made, worlds.own_quota(made), until_ms=days * DAY_MS)
    end = outcome.began_at + days * DAY_MS
    parts = surplus_of(outcome, max(outcome.began_at, end - WEEK_MS), end)
    total = sum(WEIGHTS.values())
    timed = f"{GPUS} GPUs, {days} days of virtual time of which the last 7 count, k 1, half-life 2 d"
    return [
        Figure(
            name=f"history, weight {WEIGHTS[name]} of {total}: surplus off its part",
            value=100 * abs(part * total / WEIGHTS[name] - 1),
            unit="%",
            timed=timed,
            bound=PERCENT_OFF,
        )
        for name, part in parts.items()
    ]


if __name__ == "__main__":
    print_plainly(figures())
