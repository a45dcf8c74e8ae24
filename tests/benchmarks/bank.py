"""The bank: a generated week of 400 people on 40 GPUs, one GPU each against slices and a queue.

``python -m tests.benchmarks.bank [VARIANT ...] [--seed N]``. Both worlds are played by the shipped controller over the
same span, from Monday 0:00 to Saturday 9:00. Training that nobody ran, because its owner had no GPU that day, was never
done. The parameters are those of ``simulate/bank.toml``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from jupyter_gpu_quota.simulate import bank, worlds
from jupyter_gpu_quota.simulate.bank import DAY_MS, HOUR_MS, Variant
from jupyter_gpu_quota.simulate.report import Outcome, play, utilisation_percent
from tests.benchmarks.figures import Figure, print_plainly

SEED = 42
NEVER = math.inf


def played(variant: Variant, seed: int) -> tuple[Outcome, Outcome]:
    """The baseline and our world, over the same span."""
    span_ms = variant.days * DAY_MS + 9 * HOUR_MS
    traces = bank.baseline_trace(variant, seed=seed), bank.day_trace(variant, seed=seed)
    before, after = (play(trace, worlds.own_quota(trace), seed=seed, until_ms=span_ms) for trace in traces)
    return before, after


def done_after_s(variant: Variant, seed: int, before: Outcome, after: Outcome) -> tuple[list[float], list[float]]:
    """How long after it was wanted each training was done, in the baseline and with us, sorted."""
    then, now = [], []
    for session in bank.sessions(variant, seed):
        holding = before.record.jobs.get(session.id)
        inside = bank.inside_notebook(session)
        for work in session.work:
            wanted = before.began_at + work.submit_ms
            had_at = holding.had_at if holding else None
            then.append(NEVER if had_at is None else (had_at + inside[str(work.id)][1] - wanted) / 1000)
            story = after.record.jobs.get(str(work.id))
            now.append((story.ended_at - wanted) / 1000 if story and story.ended_at else NEVER)
    return sorted(then), sorted(now)


def figures(variant: Variant, seed: int = SEED) -> list[Figure]:
    """What one variant must reach."""
    before, after = played(variant, seed)
    was, is_now = utilisation_percent(before) or 0.0, utilisation_percent(after) or 0.0
    then, now = done_after_s(variant, seed, before, after)
    times = after.record.notebooks.values()
    waits = [book.had_at - book.asked_at for book in times if book.had_at is not None]
    late = sum(book.had_at is None and book.state != "refused" for book in times)
    timed = f"{variant.people} people, {variant.gpus} GPUs, {variant.days} days, seed {seed}, virtual time"
    name = f"bank, {variant.name}"
    return [
        Figure(name=f"{name}: GPU use, one GPU each", value=was, unit="%", timed=timed),
        Figure(name=f"{name}: GPU use, slices and queue", value=is_now, unit="%", timed=timed),
        Figure(
            name=f"{name}: one GPU each, by slices and queue", value=was / is_now, unit="of the use", timed=timed,
            bound=1 / 5,
        ),
        Figure(
            name=f"{name}: longest wait for a slice", value=max(waits, default=0) / 1000, unit="s", timed=timed,
            bound=10 + 2,
        ),
        Figure(name=f"{name}: slices never had", value=late, unit="slices", timed=timed, bound=0),
        Figure(
            name=f"{name}: promises of P10 broken", value=len(after.violations), unit="claims", timed=timed, bound=0
        ),
        *_training(name, timed, then, now),
    ]  # fmt: skip


def _training(name: str, timed: str, then: Sequence[float], now: Sequence[float]) -> list[Figure]:
    done, was_done = (sum(each < NEVER for each in row) / len(row) * 100 for row in (now, then))
    rows = [
        Figure(name=f"{name}: training done, one GPU each", value=was_done, unit="%", timed=timed),
        Figure(name=f"{name}: training done, slices and queue", value=done, unit="%", timed=timed),
    ]
    for percent in (10, 25, 50, 75, 90):
        at = len(now) * percent // 100
        told = "never" if then[at] == NEVER else f"{then[at] / 3600:.2f} h"
        rows.append(
            Figure(
                name=f"{name}: {percent} % of the training was done within", value=now[at] / 3600, unit="h",
                timed=f"{timed}; one GPU each: {told}", bound=None if then[at] == NEVER else then[at] / 3600,
            )
        )  # fmt: skip
    return rows


def all_figures(quick: bool) -> list[Figure]:
    """Every variant; for a quick look the calm one."""
    names = ["calm"] if quick else list(bank.VARIANTS)
    return [figure for name in names for figure in figures(bank.VARIANTS[name])]


def main() -> None:
    """Print the figures of the variants that are named, each when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=list(bank.VARIANTS))
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    for name in given.variants:
        print_plainly(figures(bank.VARIANTS[name], given.seed))


if __name__ == "__main__":
    main()
