"""The bank: a week of 400 people on 40 GPUs, one GPU each against slices and a queue, with and without lending.

``python -m tests.benchmarks.scheduling.bank [VARIANT ...] [--seed N]``. The shipped controllers run all three worlds
from Monday 0:00 to Saturday 9:00. Use is measured over that span; jobs that wait then run to their end. Training whose
owner had no GPU that day is never done. The parameters are in ``simulate/bank.toml``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jupyter_gpu_quota.simulate import bank, worlds
from jupyter_gpu_quota.simulate.bank import DAY_MS, HOUR_MS, Variant
from jupyter_gpu_quota.simulate.report import Outcome, lent_gpu_hours, simulate_trace, utilisation_percent
from jupyter_gpu_quota.simulate.tracefile import Trace
from tests.benchmarks.figures import Figure, print_plainly

SEED = 42
NEVER = math.inf
LONGER_DAYS = 4
TIMES, SLICE_S = 5, 10 + 2
"""The bounds: use by that of one GPU each, and lent_grace + 2 ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """The results of one variant."""

    variant: Variant
    seed: int
    baseline: Outcome
    queue: Outcome
    lending: Outcome


def played(variant: Variant, seed: int) -> Week:
    """The baseline, and the world with the product, without and with lending."""
    before = _played(bank.baseline_trace(variant, seed=seed), seed, _span_ms(variant))
    traces = [bank.day_trace(variant, seed=seed, lending=lending) for lending in (False, True)]
    queue, lending = (_played(trace, seed, _span_ms(variant) + LONGER_DAYS * DAY_MS) for trace in traces)
    return Week(variant=variant, seed=seed, baseline=before, queue=queue, lending=lending)


def _span_ms(variant: Variant) -> int:
    return variant.days * DAY_MS + 9 * HOUR_MS


def _played(trace: Trace, seed: int, until_ms: int) -> Outcome:
    return simulate_trace(trace, worlds.own_quota(trace), seed=seed, until_ms=until_ms)


def _in_span(variant: Variant, one: Outcome) -> Outcome:
    return replace(one, ended_at=one.began_at + _span_ms(variant))


def done_after_s(week: Week, after: Outcome) -> list[tuple[float, float]]:
    """Seconds from the wish to the end of each training, as (baseline, with the product)."""
    found = []
    for session in bank.sessions(week.variant, week.seed):
        holding = week.baseline.record.jobs.get(session.id)
        inside = bank.training_in_notebook(session)
        for work in session.work:
            wanted = week.baseline.began_at + work.submit_ms
            allocated_at = holding.allocated_at if holding else None
            then = NEVER if allocated_at is None else (allocated_at + inside[str(work.id)][1] - wanted) / 1000
            job = after.record.jobs.get(str(work.id))
            found.append((then, (job.ended_at - wanted) / 1000 if job and job.ended_at else NEVER))
    return found


def figures(variant: Variant, seed: int = SEED) -> list[Figure]:
    """The figures of one variant."""
    week = played(variant, seed)
    timed = f"{variant.people} people, {variant.gpus} GPUs, {variant.days} days, seed {seed}, virtual time"
    was = utilisation_percent(_in_span(variant, week.baseline)) or 0.0
    found = [Figure(name=f"bank, {variant.name}: GPU use, one GPU each", value=was, unit="%", timed=timed)]
    for how, after in (("without lending", week.queue), ("with lending", week.lending)):
        name = f"bank, {variant.name}, {how}"
        found += [*_use(name, timed, was, _in_span(variant, after)), *_notebooks(name, timed, after)]
        found += _job_work(name, timed, done_after_s(week, after))
    return found + list(_loans(f"bank, {variant.name}", timed, week.lending))


def _use(name: str, timed: str, was: float, after: Outcome) -> list[Figure]:
    now = utilisation_percent(after) or 0.0
    return [
        Figure(name=f"{name}: GPU use", value=now, unit="%", timed=timed),
        Figure(
            name=f"{name}: GPU use by that of one GPU each", value=now / was, unit="times", timed=timed, least=TIMES
        ),
        Figure(name=f"{name}: violations of P10", value=len(after.violations), unit="", timed=timed, bound=0),
    ]


def _notebooks(name: str, timed: str, after: Outcome) -> list[Figure]:
    books = after.record.notebooks.values()
    waits = [book.allocated_at - book.asked_at for book in books if book.allocated_at is not None]
    longest = max(waits, default=0) / 1000
    late = sum(book.allocated_at is None for book in books)
    return [
        Figure(name=f"{name}: longest wait for a slice", value=longest, unit="s", timed=timed, bound=SLICE_S),
        Figure(name=f"{name}: slices never booked", value=late, unit="", timed=timed, bound=0),
    ]


def _job_work(name: str, timed: str, done: Sequence[tuple[float, float]]) -> Iterator[Figure]:
    then, now = (sorted(row) for row in zip(*done, strict=True))
    was_done, is_done = (sum(each < NEVER for each in row) / len(row) * 100 for row in (then, now))
    sooner = sum(after < before for before, after in done) / len(done) * 100
    yield Figure(
        name=f"{name}: training done", value=is_done, unit="%", timed=f"{timed}; one GPU each: {was_done:.1f} %",
        least=100,
    )  # fmt: skip
    yield Figure(name=f"{name}: done sooner than with one GPU each", value=sooner, unit="%", timed=timed)
    for percent in (10, 25, 50, 75, 90, 100):
        at = -(-len(now) * percent // 100) - 1
        baseline = "never" if then[at] == NEVER else f"{then[at] / 3600:.2f} h"
        yield Figure(
            name=f"{name}: {percent} % of the training was done within", value=now[at] / 3600, unit="h",
            timed=f"{timed}; one GPU each: {baseline}", bound=None if then[at] == NEVER else then[at] / 3600,
        )  # fmt: skip


def _loans(name: str, timed: str, after: Outcome) -> Iterator[Figure]:
    """The slices lent by idle notebooks, and the waits of their owners."""
    waits = sorted(wake.allocated_at - wake.asked_at for wake in after.wakes if wake.allocated_at is not None)
    middle, longest = (waits[len(waits) // 2] / 1000, waits[-1] / 1000) if waits else (0.0, 0.0)
    never = sum(wake.allocated_at is None for wake in after.wakes)
    rows: tuple[tuple[str, float, str, float | None], ...] = (
        ("slices lent", after.slices_lent, "", None),
        ("lent", lent_gpu_hours(after), "GPU-hours", None),
        ("idle kernels shut down", after.kernels_freed, "", None),
        ("wait after a wake-up, median", middle, "s", None),
        ("wait after a wake-up, longest", longest, "s", SLICE_S),
        ("wake-ups never served", never, "", 0),
    )
    for label, value, unit, bound in rows:
        yield Figure(name=f"{name}, with lending: {label}", value=value, unit=unit, timed=timed, bound=bound)


def all_figures(quick: bool) -> list[Figure]:
    """Every variant; for a quick run the calm one."""
    names = ["calm"] if quick else list(bank.VARIANTS)
    return [figure for name in names for figure in figures(bank.VARIANTS[name])]


def main() -> None:
    """Print the figures of the named variants, each when it is finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=list(bank.VARIANTS))
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    for name in given.variants:
        print_plainly(figures(bank.VARIANTS[name], given.seed))


if __name__ == "__main__":
    main()
