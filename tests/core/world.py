"""A small world around ``decide``, written as text.

::

    pool train 4                             # four devices on one node; `pool train 2x8` is two nodes of eight
    department risk 4 of train, limit 6      # also: notebooks, weight, priority, limit per user, notebooks per user
    bob 2 of train in risk, notebooks 0.25   # quotas; also all that a department may have
    bob runs 3 of 1                          # three running jobs of one GPU: bob1, bob2, bob3; also: on n1g0,n1g1
    bob queues 2 of 0.5 by ann fixed         # two waiting ones; also: priority 70, ranks 2, model A100, minutes 5
    bob queues 1 of 1 ranks 2-4              # elastic: two to four ranks of one GPU; running: `ranks 2-4 held 3`
    bob notebook 0.125 by ann                # a requested slice
    window nights from 10 to 20: bob 3 of train, limit 4; department risk 6 of train
                                             # seconds of the world; what is left out (`bob of train, limit 4`) stays
    history 1.5, half-life 100               # k, and the half-life in seconds
    bob used 40 of train                     # GPU-seconds above its quota, decayed
    n1g0 foreign 0.3                         # work that is not ours; also: n1g0 unhealthy, n1g0 quarantined
    n1 cordoned                              # also: n1 draining, n1 draining by 60 (seconds of the world)
"""

from __future__ import annotations

import dataclasses as dc
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from jupyter_gpu_quota.core.model import Change, Health, History, Job, PreemptionPolicy, Upkeep
from tests.core.cluster import BEGIN, GENTLE, TICK_MS, World, placed

__all__ = ["BEGIN", "GENTLE", "TICK_MS", "World", "add", "milli", "placed", "world"]

AMOUNTS = {
    "notebooks": "notebook_milli",
    "limit": "limit_milli",
    "notebooks per user": "user_notebook_milli",
    "limit per user": "user_jobs_milli",
}


def milli(text: str) -> int:
    return int(Decimal(text) * 1000)


def world(text: str, *, preemption: PreemptionPolicy = GENTLE, within_project: str = "users_in_turn") -> World:
    """Read a world; see the module's docstring."""
    made = World(preemption=preemption, within_project=within_project)
    add(made, text)
    return made


def add(made: World, text: str) -> None:
    """Read more lines of a world, of which some time has passed."""
    for line in text.strip().splitlines():
        words = line.split("#")[0].strip()
        if words:
            _read(made, words)


def _read(made: World, line: str) -> None:
    for pattern, reader in _LINES.items():
        if found := re.fullmatch(pattern, line):
            reader(made, *found.groups())
            return
    raise ValueError(f"not a line of a world: {line}")


def _read_pool(made: World, name: str, nodes: str | None, each: str, model: str | None) -> None:
    made.pool(name, int(nodes or 1), int(each), model or "X")


def _read_owner(made: World, department: str | None, name: str, quota: str, pool: str, rest: str) -> None:
    amounts = _amounts(rest)
    amounts.setdefault("weight", 1)
    amounts.setdefault("priority", 50)
    if department:
        made.department(name, pool, training_milli=milli(quota), **amounts)
    else:
        within = re.search(r"\bin (\S+?)(?:,|$)", rest)
        made.project(name, pool, department=within and within[1], training_milli=milli(quota), **amounts)


def _amounts(rest: str) -> dict[str, int | None]:
    words = re.findall(rf"({'|'.join(sorted(AMOUNTS, reverse=True))}) ([\d.]+)", rest)
    found: dict[str, int | None] = {AMOUNTS[word]: milli(amount) for word, amount in words}
    return found | {word: int(amount) for word, amount in re.findall(r"(weight|priority) (\d+)", rest)}


def _read_window(made: World, name: str, begins: str, ends: str, changes: str) -> None:
    made.window(name, int(begins), int(ends), *(_change(part.strip()) for part in changes.split(";")))


def _change(text: str) -> Change:
    found = re.fullmatch(r"(department )?(\S+) (?:([\d.]+) )?of (\w+)(.*)", text)
    assert found, f"not a change of a window: {text}"
    department, owner, quota, pool, rest = found.groups()
    training = milli(quota) if quota else None
    return Change(owner=owner, pool=pool, department=bool(department), training_milli=training, **_amounts(rest))


def _read_history(made: World, k: str, half_life: str | None) -> None:
    history = History(k_milli=milli(k), half_life_s=int(half_life or 100))
    made.policy = dc.replace(made.policy, history=history)


def _read_used(made: World, project: str, gpu_seconds: str, pool: str) -> None:
    made.used[project, pool] = milli(gpu_seconds)


def _read_jobs(made: World, project: str, verb: str, count: str | None, gpu: str, rest: str) -> None:
    for _ in range(int(count or 1)):
        _read_job(made, project, verb == "runs", milli(gpu), rest)


def _read_job(made: World, project: str, runs: bool, gpu: int, rest: str) -> None:
    words = dict(re.findall(r"(by|priority|ranks|model|minutes|on|ran|pool|saved|held) (\S+)", rest))
    extra: dict[str, Any] = {"pool": words.get("pool", "")}
    if "model" in words:
        extra["gpu_models"] = tuple(words["model"].split(","))
    if "minutes" in words:
        extra["time_limit_s"] = int(words["minutes"]) * 60
    least, _, most = words.get("ranks", "1").rpartition("-")
    job = made.submit(
        project,
        gpu,
        user=words.get("by", project),
        priority=int(words.get("priority", "50")),
        ranks=int(most),
        min_ranks=int(least) if least else None,
        preemptible="fixed" not in rest,
        **extra,
    )
    if runs:
        devices = words["on"].split(",") if "on" in words else _free_devices(made, job, int(words.get("held", most)))
        made.put(job, devices, ran_s=int(words.get("ran", "3600")), borrower="lent" in rest)


def _free_devices(made: World, job: Job, ranks: int) -> list[str]:
    """The first devices with room, each rank's on one node."""
    each, many, taken = min(job.gpu_milli, 1000), max(1, job.gpu_milli // 1000), list[str]()
    for _ in range(ranks):
        room = [name for name in made.devices if made.free(name) - each * taken.count(name) >= each]
        nodes = [made.devices[name].node for name in room]
        node = next((node for node in nodes if nodes.count(node) >= many), None)
        assert node, f"no room for {job}"
        taken += [name for name in room if made.devices[name].node == node][:many]
    return taken


def _read_notebook(made: World, project: str, gpu: str, user: str | None) -> None:
    made.ask(project, milli(gpu), user=user or "")


def _read_foreign(made: World, device: str, gpu: str) -> None:
    made.devices[device] = dc.replace(made.devices[device], foreign_milli=milli(gpu))


def _read_health(made: World, device: str, health: str) -> None:
    made.health(device, Health(health))


def _read_upkeep(made: World, node: str, upkeep: str, by_s: str | None) -> None:
    made.keep_up(node, Upkeep(upkeep), by_s=None if by_s is None else int(by_s))


_LINES: dict[str, Callable[..., None]] = {
    r"pool (\S+) (?:(\d+)x)?(\d+)(?: (\S+))?": _read_pool,
    r"window (\S+) from (\d+) to (\d+): (.*)": _read_window,
    r"history ([\d.]+)(?:, half-life (\d+))?": _read_history,
    r"(\S+) used ([\d.]+) of (\S+)": _read_used,
    r"(\S+) (runs|queues) (?:(\d+) of )?([\d.]+)(.*)": _read_jobs,
    r"(\S+) notebook ([\d.]+)(?: by (\S+))?": _read_notebook,
    r"(\S+) foreign ([\d.]+)": _read_foreign,
    r"(\S+) (unhealthy|quarantined)": _read_health,
    r"(\S+) (cordoned|draining)(?: by (\d+))?": _read_upkeep,
    r"(department )?(\S+) ([\d.]+) of (\w+)(.*)": _read_owner,
}
