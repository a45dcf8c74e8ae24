"""Days of a bank, made up by a seed: notebooks with bursts, data preparation, training, campaigns and sweeps.

The parameters and where they come from stand in ``bank.toml``. Two worlds are made of the same people and their work:
ours, with a slice for each notebook and a queue for the training, and the baseline, where a notebook is one whole GPU,
held while it is open, and training runs inside it. Ours is played with and without lending the slices of idle
notebooks. All are played by the same shipped controller.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .tracefile import JobWork, NodeSpec, NotebookWork, Trace

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kind of week, and how large the bank is."""

    name: str
    active_percent: int
    work: float
    people: int
    gpus: int
    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A notebook and its person; instants in ms from the first moment. ``work`` is what is trained meanwhile.

    ``present``: when its person is there, as (from, to); at other times it is open and no cell runs.
    """

    id: str
    person: int
    opens_at: int
    closes_at: int
    work: tuple[JobWork, ...]
    present: tuple[tuple[int, int], ...]


@cache
def parameters() -> Mapping[str, Any]:
    """The committed parameters."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def _variants() -> dict[str, Variant]:
    given = parameters()
    size = {key: given[key] for key in ("people", "gpus", "days")}
    return {name: Variant(name=name, **size, **row) for name, row in given["variants"].items()}


VARIANTS = _variants()


def smaller(variant: Variant, *, people: int, gpus: int, days: int) -> Variant:
    """The same kind of week in a smaller bank."""
    return replace(variant, people=people, gpus=gpus, days=days)


def project_of(person: int) -> str:
    return f"team-{person // parameters()['people_per_project']:02d}"


# --- the people and their work --------------------------------------------------------------------------------------
def sessions(variant: Variant, seed: int) -> list[Session]:
    """Everybody's days; equal seeds give equal days."""
    chance = random.Random(f"{variant.name} {seed}")  # noqa: S311 - a simulation, not a secret
    found: list[Session] = []
    for person in range(variant.people):
        found += _days_of(variant, person, chance)
    return sorted(found, key=lambda one: (one.opens_at, one.id))


def _days_of(variant: Variant, person: int, chance: random.Random) -> list[Session]:
    """A person's sessions; to a notebook that was left open its owner comes back the next morning."""
    found: list[Session] = []
    for day in range(variant.days):
        if day % 7 >= 5 or chance.random() * 100 >= variant.active_percent:
            continue
        session = _day_of(variant, person, day, chance)
        if found and found[-1].closes_at >= _at(day, 0.0):
            earlier = found.pop()
            session = replace(
                earlier,
                closes_at=max(earlier.closes_at, session.closes_at),
                work=(*earlier.work, *session.work),
                present=(*earlier.present, *session.present),
            )
        found.append(session)
    return found


def _day_of(variant: Variant, person: int, day: int, chance: random.Random) -> Session:
    given = parameters()["notebook"]
    opens_at = _at(day, chance.gauss(given["opens_at_h"], given["opens_sd_h"]))
    goes_home_at = opens_at + round(_lognormal(chance, given["lasts_median_h"], given["lasts_sigma"]) * HOUR_MS)
    left_open = chance.random() * 100 < given["left_open_percent"]
    name = f"p{person:03d}-d{day}"
    return Session(
        id=name,
        person=person,
        opens_at=opens_at,
        closes_at=max(goes_home_at, _at(day + 1, given["next_morning_h"])) if left_open else goes_home_at,
        work=tuple(_work_of(variant, person, name, opens_at, goes_home_at, chance)),
        present=((opens_at, goes_home_at),),
    )


def _at(day: int, hour: float) -> int:
    return day * DAY_MS + round(max(0.0, hour) * HOUR_MS)


def _lognormal(chance: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(sigma * chance.gauss(0, 1))


def _work_of(
    variant: Variant, person: int, session: str, begins: int, ends: int, chance: random.Random
) -> Iterator[JobWork]:
    for kind, row in parameters()["work"].items():
        for number in range(_poisson(chance, row["per_person_day"] * variant.work)):
            at = ends if row["when"] == "evening" else chance.randrange(begins, ends)
            for trial in range(row.get("trials", 1)):
                yield _job_work(row, person, f"{session}-{kind}-{number}-{trial:02d}", at, chance)


def _poisson(chance: random.Random, mean: float) -> int:
    """Knuth's: how many arrivals of a unit rate come before ``mean``."""
    bound, product, count = math.exp(-mean), chance.random(), 0
    while product > bound:
        product *= chance.random()
        count += 1
    return count


def _job_work(row: Mapping[str, Any], person: int, name: str, at: int, chance: random.Random) -> JobWork:
    sigma = math.sqrt(2 * math.log(row["mean_s"] / row["median_s"]))
    lasts_s = min(20 * 3600.0, max(30.0, _lognormal(chance, row["median_s"], sigma)))
    saves = {"checkpoint_every_s": row["checkpoint_every_s"] or None, "saves_in_s": row["saves_in_s"] or None}
    return JobWork.model_validate(
        {
            "kind": "training",
            "id": name,
            "submit_s": at / 1000,
            "project": project_of(person),
            "user": f"ds-{person:03d}",
            "gpu": row["gpu"],
            "duration_s": round(lasts_s, 3),
            "use_percent": row["use_percent"],
            "starts_after_s": 5,
            **saves,
        }
    )


# --- our world ------------------------------------------------------------------------------------------------------
def day_trace(variant: Variant, *, seed: int, lending: bool = False) -> Trace:
    """The people's days with a slice for each notebook, and training in the queue; idle slices are lent, or not."""
    work: list[JobWork | NotebookWork] = []
    for session in sessions(variant, seed):
        work += [_notebook_work(session, random.Random(f"{variant.name} {seed} {session.id}")), *session.work]  # noqa: S311
    return Trace(
        begins_at=parameters()["begins_at"],
        nodes=_nodes(variant),
        work=sorted(work, key=lambda one: one.submit_ms),
        quotas=quotas(variant, lending=lending),
    )


def _notebook_work(session: Session, chance: random.Random) -> NotebookWork:
    open_ms = session.closes_at - session.opens_at
    return NotebookWork.model_validate(
        {
            "kind": "notebook",
            "id": session.id,
            "submit_s": session.opens_at / 1000,
            "project": project_of(session.person),
            "user": f"ds-{session.person:03d}",
            "gpu": parameters()["notebook"]["slice"],
            "duration_s": open_ms / 1000,
            "use_percent": 100,
            "bursts_s": [[begin / 1000, min(end, open_ms) / 1000] for begin, end in bursts(session, chance)],
        }
    )


def bursts(session: Session, chance: random.Random) -> list[tuple[int, int]]:
    """When a notebook's cells use its slice, as (from, to) in ms after it opened; it is idle between them.

    Cells are run at the committed rate, at random instants, while their person is there. Each takes as long as its work
    takes on the slice, and begins when the one before it has ended.
    """
    given, found, free_at = parameters()["notebook"], list[tuple[int, int]](), 0
    over, under = given["slice"].split("/")
    lasts_ms = round(given["burst_s"] * 1_000_000 / (1000 * int(over) // int(under)))
    open_ms = session.closes_at - session.opens_at
    for since, until in session.present:
        at = since + round(chance.expovariate(given["bursts_per_h"]) * HOUR_MS)
        while at < until:
            begin = max(free_at, at - session.opens_at)
            free_at = begin + lasts_ms
            if begin < open_ms:
                found.append((begin, free_at))
            at += round(chance.expovariate(given["bursts_per_h"]) * HOUR_MS)
    return found


def _burst_permille() -> int:
    """How busy one whole GPU is with one notebook's cells while their person is there, on average."""
    given = parameters()["notebook"]
    return round(float(given["burst_s"] * given["bursts_per_h"] / 3.6))


def _nodes(variant: Variant) -> list[NodeSpec]:
    per_node = parameters()["per_node"]
    full, rest = divmod(variant.gpus, per_node)
    return [NodeSpec(name=f"gpu-{at}", gpus=per_node) for at in range(full)] + (
        [NodeSpec(name=f"gpu-{full}", gpus=rest)] if rest else []
    )


def quotas(variant: Variant, *, lending: bool = False) -> dict[str, object]:
    """The quota file of our world: the same for every team. All of ``policy.idle`` but its mode is the default."""
    given = parameters()["quota"]
    teams = sorted({project_of(person) for person in range(variant.people)})
    amounts = {key: given[key] for key in ("notebook", "training", "limit")}
    times = {key: given[key] for key in ("grace", "lent_grace", "min_runtime")}
    return {
        "version": 1,
        "pools": [{"name": "shared"}],
        "projects": [{"name": name, "quota": {"shared": amounts}} for name in teams],
        "policy": {"preemption": times, "idle": {"mode": "reclaim" if lending else "report"}},
    }


# --- the baseline ---------------------------------------------------------------------------------------------------
def baseline_trace(variant: Variant, *, seed: int) -> Trace:
    """One GPU each, first come first served, held while the notebook is open; training runs inside, one at a time.

    A notebook is a job that cannot be paused. It is open until its owner closes it, and until its training is done.
    A user without a GPU at the end of the day gives up. Training on several GPUs takes as many times as long.
    """
    work = [_holding(session) for session in sessions(variant, seed)]
    names = ["everybody"]
    return Trace(
        begins_at=parameters()["begins_at"],
        nodes=_nodes(variant),
        work=sorted(work, key=lambda one: one.submit_ms),
        quotas={
            "version": 1,
            "pools": [{"name": "shared"}],
            "projects": [{"name": name, "quota": {"shared": {"training": variant.gpus}}} for name in names],
            "policy": {"within_project": "first_come"},
        },
    )


def _holding(session: Session) -> JobWork:
    inside = inside_notebook(session)
    open_ms = max([session.closes_at - session.opens_at, *(end for _, end in inside.values())])
    busy_ms = sum(
        (end - begin) * min(1000, work.gpu_milli) * work.use_permille / 1_000_000
        for work in session.work
        for begin, end in [inside[str(work.id)]]
    )
    present_ms = sum(until - since for since, until in session.present)
    use = (busy_ms + present_ms * _burst_permille() / 1000) / open_ms
    day_end = session.opens_at - session.opens_at % DAY_MS + _at(0, parameters()["notebook"]["patience_until_h"])
    return JobWork.model_validate(
        {
            "kind": "training",
            "id": session.id,
            "submit_s": session.opens_at / 1000,
            "project": "everybody",
            "user": f"ds-{session.person:03d}",
            "gpu": 1,
            "duration_s": open_ms / 1000,
            "use_percent": round(min(100.0, 100 * use), 1),
            "preemptible": False,
            "time_limit_s": 10 * 86_400,
            "gives_up_s": max(day_end, session.opens_at) / 1000,
        }
    )


def inside_notebook(session: Session) -> dict[str, tuple[int, int]]:
    """When each training begins and ends inside a notebook that holds one GPU, in ms after it was had."""
    found, free_at = {}, 0
    for work in sorted(session.work, key=lambda one: (one.submit_ms, str(one.id))):
        gpus = max(1, work.gpu_milli // 1000) * work.ranks
        begin = max(free_at, work.submit_ms - session.opens_at, 0)
        free_at = begin + work.duration_ms * gpus
        found[str(work.id)] = begin, free_at
    return found
