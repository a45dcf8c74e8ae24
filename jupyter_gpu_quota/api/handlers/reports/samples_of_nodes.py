"""The route by which nodes send the readings of their devices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from ....core.model import NotebookState
from ....core.samples import WORKLOADS, DeviceSample, ProcessUse
from ....wire.samples import IngestedView, NodeDeviceView, ProcessUseIn, SampleBatch, SampleIn
from ...access.permissions import Person
from ...access.refusals import Refused
from ...requests.call import Call
from ...state.store_view import StoreView
from ...state.utilisation import AHEAD_MS
from ...views.records import instant

V = TypeVar("V")

HOUR_MS = 3_600_000
NAMED_DEVICES = 5
"""Unknown devices that a refusal names."""
RETRY_AFTER_S = 2
FIGURES = frozenset({"utilisation_percent", "memory_used_mib", "foreign", WORKLOADS})
"""The parts of a reading, beside workloads, that may be unknown for a reason."""

Users = Mapping[str, Mapping[str, bool]]
"""The workloads with a part of each device, by device id; True: it lent its part."""


async def ingest(call: Call) -> IngestedView:
    """Store one node's readings; a repeated batch is accepted and ignored, one with an unknown device is refused.

    The answer names the node's devices and their workloads, by which its agent attributes the processes of the next.
    """
    batch: SampleBatch = call.body
    _check_node(call.person, batch.node)
    store_view, now = call.store_view, call.services.clock()
    users = await _users_of_devices(store_view, batch)
    keep_ms = call.services.settings.keep_samples_hours * HOUR_MS
    rows = [_row(batch.node, sample, users[sample.device], now, keep_ms=keep_ms) for sample in batch.samples]
    new = await store_view.write_samples(store_view.store.add_samples, batch.node, batch.sequence, rows, now=now)
    return IngestedView(accepted=new, devices=_views(store_view, users))


def _check_node(person: Person, node: str) -> None:
    """Refuse the batch of an agent for another node than that of its token."""
    if person.node is not None and person.node != node:
        sentence = f"samples: the agent of node {person.node} sent a batch of node {node}. Nothing of it was kept."
        raise Refused(403, "other_node", sentence)


async def _users_of_devices(store_view: StoreView, batch: SampleBatch) -> Users:
    """The users of the node's devices. Refuses a batch as a whole if one of its devices is not recorded on its node.

    Nothing of it is stored, nor its sequence number: the node sends the same batch again once the device is recorded.
    """
    users, named = _users(store_view, batch.node), {sample.device for sample in batch.samples}
    if not named <= users.keys():
        await store_view.refresh()  # a device that was recorded since the last one
        users = _users(store_view, batch.node)
    unknown = sorted(named - users.keys())
    if not unknown:
        return users
    more = f" and {len(unknown) - NAMED_DEVICES} more" if len(unknown) > NAMED_DEVICES else ""
    sentence = (
        f"samples: {', '.join(unknown[:NAMED_DEVICES])}{more} of node {batch.node}: not recorded. Nothing of the"
        " batch was kept: send it again with the same sequence number once the controllers have observed the device."
    )
    raise Refused(409, "unknown_device", sentence, {"Retry-After": str(RETRY_AFTER_S)})


def _users(store_view: StoreView, node: str) -> Users:
    found: dict[str, dict[str, bool]] = {
        device.id: {} for device in store_view.mirror.devices.values() if device.node == node
    }
    for part in store_view.allocations.values():
        if part.device in found:
            found[part.device][part.workload] = False
    for record in store_view.mirror.notebooks.values():
        home = record.notebook.device
        if record.notebook.state is NotebookState.LENT and home in found:
            found[home].setdefault(record.notebook.id, True)
    return found


def _views(store_view: StoreView, users: Users) -> list[NodeDeviceView]:
    """The devices that a node can read: simulated ones, and slots of unknown devices, have no driver to ask."""
    devices = [store_view.mirror.devices[name] for name in sorted(users)]
    return [
        NodeDeviceView(
            id=each.id, uuid=each.uuid, workloads=sorted(users[each.id]),
            lent=sorted(name for name, has_lent in users[each.id].items() if has_lent),
        )
        for each in devices
        if each.uuid is not None and not each.simulated
    ]  # fmt: skip


# --- rows -------------------------------------------------------------------------------------------------------------
def _row(node: str, sample: SampleIn, users: Mapping[str, bool], now: int, *, keep_ms: int) -> DeviceSample:
    """A reading as a row. Refuses one of the future, and one that is older than any that is kept."""
    at = _instant_ms(sample.at)
    if not now - keep_ms <= at <= now + AHEAD_MS:
        when = "ahead of" if at > now else "behind"
        sentence = (
            f"samples: the reading of {sample.device} is dated {abs(at - now) // 1000} s {when} this service's clock"
            f" ({instant(now):%Y-%m-%dT%H:%M:%SZ}); from {keep_ms // 1000} s behind to {AHEAD_MS // 1000} s ahead is"
            f" taken. Nothing of the batch was kept: set the clock of {node} and send new readings."
        )
        raise Refused(400, "invalid", sentence)
    workloads = _of(users, sample.workloads)
    processes = {name: tuple(map(_process, uses)) for name, uses in _of(users, sample.processes).items()}
    return DeviceSample(
        **dict(sample)
        | {
            "node": node, "at": at, "workloads": workloads, "processes": processes,
            "workload_memory_mib": _of(users, sample.workload_memory_mib),
            "why": _of({*FIGURES, *workloads}, sample.why),
        }
    )  # fmt: skip


def _of(users: Mapping[str, bool] | set[str], by_workload: Mapping[str, V]) -> dict[str, V]:
    """The entries of workloads that have a part of the device now."""
    return {name: value for name, value in by_workload.items() if name in users}


def _process(use: ProcessUseIn) -> ProcessUse:
    used_at = None if use.used_at is None else _instant_ms(use.used_at)
    return ProcessUse(**dict(use) | {"used_at": used_at, "places": tuple(use.places)})


def _instant_ms(at: datetime) -> int:
    """An instant in milliseconds since 1970. Refuses one without a time zone."""
    if at.tzinfo is None:
        sentence = "samples: each `at` is an instant with its time zone, such as 2027-01-01T00:00:00Z."
        raise Refused(400, "invalid", sentence)
    return int(at.timestamp() * 1000)
