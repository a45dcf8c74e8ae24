"""Weeks of a bank, generated from a seed: notebooks with bursts, data preparation, training, campaigns and sweeps.

``bank.toml`` has the parameters and their sources. There are two traces of the same users and work: one has a slice for
each notebook and a queue for the training, with or without lending of idle slices; in the baseline an open notebook has
one whole GPU, and training runs inside it. The shipped controllers run both.
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
EVERYBODY = "everybody"
"""The only project of the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kind of week, and the size of the bank."""

    name: str
    active_percent: int
    work: float
    people: int
    gpus: int
    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A notebook of a user; instants in ms from the begin of the trace. ``work`` is the training submitted meanwhile.

    ``present``: when its user is present, as (from, to); at other times it is open and no cell runs.
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
    values = parameters()
    size = {key: values[key] for key in ("people", "gpus", "days")}
    return {name: Variant(name=name, **size, **row) for name, row in values["variants"].items()}


VARIANTS = _variants()


def smaller(variant: Variant, *, people: int, gpus: int, days: int) -> Variant:
    """The same kind of week in a smaller bank."""
    return replace(variant, people=people, gpus=gpus, days=days)


def project_of(person: int) -> str:
    return f"team-{person // parameters()['people_per_project']:02d}"


# --- the users and their work ---------------------------------------------------------------------------------------
def sessions(variant: Variant, seed: int) -> list[Session]:
    """The sessions of all users; equal seeds give equal sessions."""
    rng = random.Random(f"{variant.name} {seed}")  # noqa: S311 - a simulation, not a secret
    found: list[Session] = []
    for person in range(variant.people):
        found += _sessions_of(variant, person, rng)
    return sorted(found, key=lambda one: (one.opens_at, one.id))


def _sessions_of(variant: Variant, person: int, rng: random.Random) -> list[Session]:
    """The sessions of one user. A notebook that was left open continues as the session of the next morning."""
    found: list[Session] = []
    for day in range(variant.days):
        if day % 7 >= 5 or rng.random() * 100 >= variant.active_percent:
            continue
        session = _session_on(variant, person, day, rng)
        if found and found[-1].closes_at >= _instant_of(day, 0.0):
            earlier = found.pop()
            session = replace(
                earlier,
                closes_at=max(earlier.closes_at, session.closes_at),
                work=(*earlier.work, *session.work),
                present=(*earlier.present, *session.present),
            )
        found.append(session)
    return found


def _session_on(variant: Variant, person: int, day: int, rng: random.Random) -> Session:
    values = parameters()["notebook"]
    opens_at = _instant_of(day, rng.gauss(values["opens_at_h"], values["opens_sd_h"]))
    goes_home_at = opens_at + round(_lognormal(rng, values["lasts_median_h"], values["lasts_sigma"]) * HOUR_MS)
    left_open = rng.random() * 100 < values["left_open_percent"]
    name = f"p{person:03d}-d{day}"
    return Session(
        id=name,
        person=person,
        opens_at=opens_at,
        closes_at=max(goes_home_at, _instant_of(day + 1, values["next_morning_h"])) if left_open else goes_home_at,
        work=tuple(_work_of(variant, person, name, opens_at, goes_home_at, rng)),
        present=((opens_at, goes_home_at),),
    )


def _instant_of(day: int, hour: float) -> int:
    return day * DAY_MS + round(max(0.0, hour) * HOUR_MS)


def _lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(sigma * rng.gauss(0, 1))


def _work_of(
    variant: Variant, person: int, session: str, begins: int, ends: int, rng: random.Random
) -> Iterator[JobWork]:
    for kind, row in parameters()["work"].items():
        for number in range(_poisson(rng, row["per_person_day"] * variant.work)):
            at = ends if row["when"] == "evening" else rng.randrange(begins, ends)
            for trial in range(row.get("trials", 1)):
                yield _job_work(row, person, f"{session}-{kind}-{number}-{trial:02d}", at, rng)


def _poisson(rng: random.Random, mean: float) -> int:
    """The number of arrivals of a unit rate before ``mean``, by Knuth's algorithm."""
    bound, product, count = math.exp(-mean), rng.random(), 0
    while product > bound:
        product *= rng.random()
        count += 1
    return count


def _job_work(row: Mapping[str, Any], person: int, name: str, at: int, rng: random.Random) -> JobWork:
    sigma = math.sqrt(2 * math.log(row["mean_s"] / row["median_s"]))
    lasts_s = min(20 * 3600.0, max(30.0, _lognormal(rng, row["median_s"], sigma)))
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


# --- slices and a queue ---------------------------------------------------------------------------------------------
def day_trace(variant: Variant, *, seed: int, lending: bool = False) -> Trace:
    """The sessions with a slice for each notebook, and training in the queue. ``lending``: idle slices are lent."""
    work: list[JobWork | NotebookWork] = []
    for session in sessions(variant, seed):
        work += [_notebook_work(session, random.Random(f"{variant.name} {seed} {session.id}")), *session.work]  # noqa: S311
    return Trace(
        begins_at=parameters()["begins_at"],
        nodes=_nodes(variant),
        work=sorted(work, key=lambda one: one.submit_ms),
        quotas=quotas(variant, lending=lending),
    )


def _notebook_work(session: Session, rng: random.Random) -> NotebookWork:
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
            "bursts_s": [[begin / 1000, min(end, open_ms) / 1000] for begin, end in bursts(session, rng)],
        }
    )


def bursts(session: Session, rng: random.Random) -> list[tuple[int, int]]:
    """When a notebook's cells use its slice, as (from, to) in ms after it opened; it is idle between them.

    Cells start at the configured rate, at random instants, while the user is present. Each lasts as long as its work
    takes on the slice, and begins after the previous one ended.
    """
    values, found, free_at = parameters()["notebook"], list[tuple[int, int]](), 0
    over, under = values["slice"].split("/")
    lasts_ms = round(values["burst_s"] * 1_000_000 / (1000 * int(over) // int(under)))
    open_ms = session.closes_at - session.opens_at
    for since, until in session.present:
        at = since + round(rng.expovariate(values["bursts_per_h"]) * HOUR_MS)
        while at < until:
            begin = max(free_at, at - session.opens_at)
            free_at = begin + lasts_ms
            if begin < open_ms:
                found.append((begin, free_at))
            at += round(rng.expovariate(values["bursts_per_h"]) * HOUR_MS)
    return found


def _burst_permille() -> int:
    """The mean use of one whole GPU by one notebook's cells while its user is present."""
    values = parameters()["notebook"]
    return round(float(values["burst_s"] * values["bursts_per_h"] / 3.6))


def _nodes(variant: Variant) -> list[NodeSpec]:
    per_node = parameters()["per_node"]
    full, rest = divmod(variant.gpus, per_node)
    return [NodeSpec(name=f"gpu-{at}", gpus=per_node) for at in range(full)] + (
        [NodeSpec(name=f"gpu-{full}", gpus=rest)] if rest else []
    )


def quotas(variant: Variant, *, lending: bool = False) -> dict[str, object]:
    """The quota file: equal quotas for every team. All of ``policy.idle`` but its mode is the default."""
    values = parameters()["quota"]
    teams = sorted({project_of(person) for person in range(variant.people)})
    amounts = {key: values[key] for key in ("notebook", "training", "limit")}
    times = {key: values[key] for key in ("grace", "lent_grace", "min_runtime")}
    return {
        "version": 1,
        "pools": [{"name": "shared"}],
        "projects": [{"name": name, "quota": {"shared": amounts}} for name in teams],
        "policy": {"preemption": times, "idle": {"mode": "reclaim" if lending else "report"}},
    }


# --- the baseline ---------------------------------------------------------------------------------------------------
def baseline_trace(variant: Variant, *, seed: int) -> Trace:
    """One GPU for each open notebook, first come first served; its training runs inside, one at a time.

    A notebook is a job that cannot be paused. It is open until its user closed it and its training ended. A user
    without a GPU in the late afternoon cancels the request. Training for several GPUs takes as many times as long.
    """
    work = [_baseline_job(session) for session in sessions(variant, seed)]
    return Trace(
        begins_at=parameters()["begins_at"],
        nodes=_nodes(variant),
        work=sorted(work, key=lambda one: one.submit_ms),
        quotas={
            "version": 1,
            "pools": [{"name": "shared"}],
            "projects": [{"name": EVERYBODY, "quota": {"shared": {"training": variant.gpus}}}],
            "policy": {"within_project": "first_come"},
        },
    )


def _baseline_job(session: Session) -> JobWork:
    inside = training_in_notebook(session)
    open_ms = max([session.closes_at - session.opens_at, *(end for _, end in inside.values())])
    busy_ms = sum(
        (end - begin) * min(1000, work.gpu_milli) * work.use_permille / 1_000_000
        for work in session.work
        for begin, end in [inside[str(work.id)]]
    )
    present_ms = sum(until - since for since, until in session.present)
    use = (busy_ms + present_ms * _burst_permille() / 1000) / open_ms
    gives_up_at = _instant_of(session.opens_at // DAY_MS, parameters()["notebook"]["patience_until_h"])
    return JobWork.model_validate(
        {
            "kind": "training",
            "id": session.id,
            "submit_s": session.opens_at / 1000,
            "project": EVERYBODY,
            "user": f"ds-{session.person:03d}",
            "gpu": 1,
            "duration_s": open_ms / 1000,
            "use_percent": round(min(100.0, 100 * use), 1),
            "preemptible": False,
            "time_limit_s": 10 * 86_400,
            "gives_up_s": max(gives_up_at, session.opens_at) / 1000,
        }
    )


def training_in_notebook(session: Session) -> dict[str, tuple[int, int]]:
    """When each training begins and ends inside a notebook with one GPU, in ms after the GPU was allocated."""
    found, free_at = {}, 0
    for work in sorted(session.work, key=lambda one: (one.submit_ms, str(one.id))):
        gpus = max(1, work.gpu_milli // 1000) * work.ranks
        begin = max(free_at, work.submit_ms - session.opens_at, 0)
        free_at = begin + work.duration_ms * gpus
        found[str(work.id)] = begin, free_at
    return found
