"""The record of an attempt: what was ordered, and how far that is. Pure.

order      the ranks, the placements and the limit of outputs of the start order
started    "true": every rank has a pod, or is refused
refused    why ranks cannot start, by rank
lost       why no rank that has no pod starts, where another attempt may
stop       the reason of the first stop order
stop_at    when that came, in ms since 1970, before the pause file was written
stop_ranks how many ranks it names; an attempt that was stopped before its start has no other number
settled    "true": its end is stored, and its objects are being removed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...protocol import StartOrder, StopOrder
from ...rendering.cluster_names import ATTEMPT, JOB

Json = dict[str, Any]
Attempt = tuple[str, int]

ORDER, STARTED, REFUSED, LOST, SETTLED = "order", "started", "refused", "lost", "settled"
STOP, STOP_AT, STOP_RANKS = "stop", "stop_at", "stop_ranks"
CLOCKS_DIFFER_MS = 10_000
"""How far the clock of a node may be behind those of the API server and the controllers.

A node without a time server loses some seconds in a day. An end that was not seen before a stop order, and has a time
of these seconds before it, is most likely an answer to the order: a kubelet reports an end within a second or two. The
clocks of the API server and of the controllers may differ by as much.
"""


def data_of(record: Json) -> dict[str, str]:
    """The fields of a record."""
    data: dict[str, str] = record.get("data") or {}
    return data


def attempt_of(record: Json) -> Attempt:
    """The job and the attempt of a record, or of a pod."""
    labels = record["metadata"]["labels"]
    return labels[JOB], int(labels[ATTEMPT])


def order_field(order: StartOrder) -> dict[str, str]:
    """The field with a start order."""
    kept = {"ranks": order.ranks, "placements": [asdict(part) for part in order.placements]}
    return {ORDER: json.dumps(kept | {"outputs_limit_mib": order.outputs_limit_mib})}


def order_of(data: dict[str, str]) -> Json:
    """The start order in a record; empty for an attempt that was stopped before it had one."""
    order: Json = json.loads(data.get(ORDER, "{}"))
    return order


def ranks_of(data: dict[str, str]) -> int:
    """How many ranks were ordered, or else are named by the stop order."""
    return int(order_of(data).get("ranks", data.get(STOP_RANKS, 1)))


def outputs_limit_of(data: dict[str, str]) -> int | None:
    """The limit of the job's outputs in MiB; None: it has none, or was started by a release that enforced none."""
    limit: int | None = order_of(data).get("outputs_limit_mib")
    return limit


def refused_of(data: dict[str, str]) -> dict[str, str]:
    """Why ranks cannot start, by rank."""
    refused: dict[str, str] = json.loads(data.get(REFUSED, "{}"))
    return refused


def refused_field(refused: Mapping[int, str]) -> dict[str, str]:
    """The field with why ranks cannot start; none where there is no such rank."""
    return {REFUSED: json.dumps(refused)} if refused else {}


def kept_order(data: dict[str, str]) -> Json:
    """The part of the start order that the record of an end on the volume keeps."""
    order = order_of(data)
    return (
        {"ranks": order["ranks"], "placements": [list(part.values()) for part in order["placements"]]} if order else {}
    )


def stop_fields(order: StopOrder, now_ms: int) -> dict[str, str]:
    """The fields with a stop order."""
    return {STOP: order.reason, STOP_AT: str(now_ms), STOP_RANKS: str(order.ranks)}


def pause_before(data: dict[str, str], ended_at: int) -> Json:
    """The pause request of a stop order that came before a rank ended, for an end that was not seen before the order.

    A rank may obey the pause file, and end, before its pod is deleted. The end is by the clock of its node.
    """
    if STOP_AT not in data or ended_at + CLOCKS_DIFFER_MS <= int(data[STOP_AT]):
        return {}
    return {"pause_requested": True, "pause_reason": data[STOP]}
