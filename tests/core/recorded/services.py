"""How a plan serves each workload: it starts, gets devices that others leave, or neither; read from a recorded plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Action = Mapping[str, Any]

OF_VICTIMS = ("moved", "shrunk", "grown")
"""A job that is moved or changes its size has its new devices reserved with one of these reasons."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a plan does for one workload.

    ``kind``: ``starts``, ``claims`` (others leave for it), ``offered`` (devices that others leave anyway), ``resizes``,
    or the name of any other action. ``victims``: (reason code, workload), in the order of the plan.
    """

    kind: str
    code: str
    placements: tuple[tuple[int, str, int], ...] = ()
    victims: tuple[tuple[str, str], ...] = ()

    @property
    def pauses(self) -> int:
        """How many jobs are paused for it and lose all their devices."""
        return sum(code not in OF_VICTIMS for code, _ in self.victims)

    @property
    def ways(self) -> frozenset[str]:
        """How its victims make room: ``pauses``, ``preempts`` in the own project, ``moves``, ``shrinks``, ``grows``."""
        return frozenset(WAYS.get(code, "pauses") for code, _ in self.victims)


WAYS = {
    "moved": "moves",
    "shrunk": "shrinks",
    "grown": "grows",
    "preempted_in_project": "preempts",
    "borrower_returns": "ends a loan",
}


def services_of(actions: Iterable[Action]) -> dict[str, Service]:
    """The services of a plan in its order, by workload. Records of backfill reservations are left out."""
    rows = [one for one in actions if not is_backfill(one)]
    victims: dict[str, list[Action]] = defaultdict(list)
    for one in rows:
        if one["action"] == "pause":
            victims[one["preemptor"] or one["workload"]].append(one)
    found = {}
    for one in rows:
        if one["action"] != "pause" and not (one["action"] == "reserve" and _code(one) in OF_VICTIMS):
            key = one["workload"] if one["action"] in SERVES else f"{one['workload']}, {one['action']}"
            found[key] = _service(one, victims.pop(key, ()))
    for name, left in victims.items():
        found[name] = Service("resizes", "", victims=_pairs(left))
    return found


SERVES = ("start", "resume", "reserve")


def _service(action: Action, victims: Iterable[Action]) -> Service:
    pairs = _pairs(victims)
    placements = tuple(sorted((one["rank"], one["device"], one["gpu_milli"]) for one in action.get("placements", ())))
    kind = action["action"]
    if kind in ("start", "resume"):
        kind = "starts"
    elif kind == "reserve":
        kind = "claims" if pairs else "offered"
    return Service(kind, _code(action), placements, pairs)


def _pairs(victims: Iterable[Action]) -> tuple[tuple[str, str], ...]:
    return tuple((_code(one), one["workload"]) for one in victims)


def _code(action: Action) -> str:
    return str(action["reason"]["code"])


def is_backfill(action: Action) -> bool:
    """Whether an action records a backfill reservation."""
    return action["action"] == "reserve" and action.get("starts_at") is not None
