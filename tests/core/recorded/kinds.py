"""The kinds of change between two plans of one snapshot, each with the rule that demands it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.core.recorded.services import Service, is_backfill, services_of


class Kind(NamedTuple):
    """A kind of change, as a sentence, and the rules of docs/scheduling.md that demand it."""

    text: str
    rules: str


RECORDED = Kind("Only the backfill reservation is recorded, and borrowers leave it in time", "R28, R31")
FIGURES = Kind("The same actions, with other figures, or in another order", "R39")
OFFERED = Kind("What a claim frees beyond its need is offered to the next job in the order", "R42")
BORROWS = Kind("A job starts as a borrower of the reservation", "R31")
MOVES = Kind("Moves make room for a job that waited", "R52")
SHRINKS = Kind("Elastic jobs give up ranks for a job that waited", "R51")
GROWS = Kind("An elastic job grows within its quota, and elastic jobs of others shrink", "R50")
MIXED = Kind("Moves, shrinks and pauses together make room for a job that waited", "R40")
PREEMPTS = Kind("A job that waited preempts a job of lower priority in its project", "R48")
PAUSES = Kind("Pauses make room for a job that waited", "R38, R40")
MOVES_FOR_PAUSES = Kind("Moves or shrinks take the place of pauses", "R40")
FEWER = Kind("Fewer jobs are paused for a claim", "R43")
CHEAPER = Kind("As many jobs are paused for a claim, but others", "R39, R40")
NO_VICTIM = Kind("A job gets devices without a victim", "R39, R43")
TAKEN_OVER = Kind("A claim takes over reserved devices instead of others that are in use", "R26")
AGAIN = Kind("A job that loses its reservation to a claim is a candidate again in the same plan", "R23, R26")
DEVICES = Kind("The same jobs on other devices, or their ranks in another order", "R30, R72 to R75")
NOT_RESERVED = Kind("A job starts on devices that the backfill reservation no longer keeps from it", "R27, R32")
BINDS = Kind("A job waits for the backfill reservation, or for devices that a job before it gets", "R22, R30")
LATER = Kind("A claim that only a start of the same plan makes legal is decided one tick later", "introduction, R38")
OWN_ORDER = Kind("A job above its fair share, or behind the first of its project, preempts none in it", "R21, R23, R37")
CEILING = Kind("A job waits until work below the same ceiling or limit has left its devices", "R12")
OVERDUE = Kind("A job waits for an older one of its project, which has waited for its patience", "R24")
BEFORE_IT = Kind("A job that was started pauses, moves or shrinks others now, or the reverse", "R22, R26")
SURPLUS = Kind("A job counts as running on surplus where it was a borrower, or the reverse", "R6, R76")
OWN_REASON = Kind("A non-preemptible job of a project over quota starts with a reason of its own", "R8")
OTHER = Kind("No rule", "")

TAKES = {
    frozenset({"moves"}): MOVES,
    frozenset({"shrinks"}): SHRINKS,
    frozenset({"preempts"}): PREEMPTS,
    frozenset({"pauses"}): PAUSES,
    frozenset({"grows", "shrinks"}): GROWS,
    frozenset({"grows"}): GROWS,
}
WAITS = {"above_user_ceiling": CEILING, "above_limit": CEILING, "behind_overdue_job": OVERDUE}
RESERVED_CODE, NON_PREEMPTIBLE_CODE = "borrows_reserved_devices", "non_preemptible_within_quota"


def kind_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> Kind | None:
    """The kind of the first service that differs between two recorded decisions. None if their plans are equal.

    A difference in the reason alone counts if there is no other.
    """
    if before["plan"]["actions"] == now["plan"]["actions"]:
        return None
    if kinds := sorted(_kinds(before, now), key=lambda kind: kind is OWN_REASON):
        return kinds[0]
    was, rows = before["plan"]["actions"], now["plan"]["actions"]
    return RECORDED if [one for one in rows if not is_backfill(one)] == was else FIGURES


def _kinds(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Kind]:
    was, found = (services_of(one["plan"]["actions"]) for one in (before, now))
    for name in dict.fromkeys([*found, *was]):
        if was.get(name) is None and f"{name}, unreserve" in found:
            yield AGAIN
        elif was.get(name) != found.get(name):
            yield _kind(was.get(name), found.get(name), now["waits"].get(name, {}).get("code"))


def _kind(was: Service | None, found: Service | None, waits: str | None) -> Kind:
    """The kind of one difference; ``waits`` is the reason code of a workload that waits now."""
    match was, found:
        case None, Service():
            return _new(found)
        case Service(), None:
            return WAITS.get(waits or "", OWN_ORDER if was.ways == {"preempts"} else _no_longer(was))
        case Service(kind="starts"), Service(kind="starts"):
            return _other_start(was, found)
        case Service(kind="claims"), Service(kind="claims"):
            return _other_claim(was, found)
        case Service(kind="claims" | "resizes"), Service(kind="starts" | "offered"):
            return NO_VICTIM
        case Service(kind="offered"), Service(kind="offered"):
            return DEVICES
        case Service(kind="offered"), Service(kind="starts"):
            return NO_VICTIM
        case Service(kind="starts" | "offered"), Service(kind="claims" | "offered"):
            return BEFORE_IT
        case _:
            return OTHER


def _no_longer(was: Service) -> Kind:
    return LATER if was.kind == "claims" else BINDS


def _new(found: Service) -> Kind:
    """A workload is served that was not."""
    match found.kind:
        case "offered":
            return OFFERED
        case "claims" | "resizes":
            return TAKES.get(found.ways, MIXED)
        case "starts":
            return BORROWS if found.code == RESERVED_CODE else NOT_RESERVED
        case "unreserve":
            return TAKEN_OVER
        case _:
            return OTHER


def _other_start(was: Service, found: Service) -> Kind:
    if was.code != found.code:
        if found.code == NON_PREEMPTIBLE_CODE and was.placements == found.placements:
            return OWN_REASON
        return BORROWS if found.code == RESERVED_CODE else SURPLUS
    return DEVICES


def _other_claim(was: Service, found: Service) -> Kind:
    if set(was.victims) == set(found.victims):
        return DEVICES if was.placements != found.placements else FIGURES
    if found.pauses < was.pauses:
        return MOVES_FOR_PAUSES if found.ways & {"moves", "shrinks"} else FEWER
    return CHEAPER
